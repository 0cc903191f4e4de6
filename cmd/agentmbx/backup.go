package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func newBackup(e env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "backup [FILE]",
		Short: "Take a backup now and verify it",
		Long: `Take a backup now and verify it. Without FILE it goes into the backup folder
and takes its place among those that are kept; with FILE it goes there and is
never pruned. Mail flows on meanwhile.

The backup is one file with a receipt beside it, FILE.json. It does not hold the
relay's key: keep that elsewhere, a restore needs it.`,
		Example: `  agentmbx relay backup --store-dir ./data
  agentmbx relay backup /mnt/usb/relay.db --json`,
		Args: nArgs(0, 1, ""),
	}
	r := bindSettings(cmd.Flags(), "store-dir", "backup-dir")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the receipt")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		var a admin.BackupArgs
		if len(args) == 1 {
			if args[0] == "" {
				return usage(fmt.Errorf("FILE is empty"))
			}
			if a.File, err = filepath.Abs(args[0]); err != nil {
				return err
			}
		}
		return runBackup(cmd.Context(), e, s, r.given("backup.dir", "backup.age_recipient"), a, asJSON)
	}
	return cmd
}

func runBackup(ctx context.Context, e env, s Settings, given []string, a admin.BackupArgs, asJSON bool) error {
	return withDesk(ctx, e, s, func(svc admin.Service, running bool) error {
		ownSettings(e, running, given)
		q := jobs.Request{Job: admin.JobBackup}
		if a.File != "" {
			asked, err := json.Marshal(a)
			if err != nil {
				return err
			}
			q.Job, q.Args = admin.JobBackupFile, asked
		}
		return backupNow(ctx, e, svc, q, asJSON)
	})
}

// backupNow has a backup taken and prints its receipt.
func backupNow(ctx context.Context, e env, svc admin.Service, q jobs.Request, asJSON bool) error {
	run, err := followJob(ctx, e, svc, q)
	if err != nil {
		return err
	}
	var r backup.Receipt
	if err := json.Unmarshal(run.Result, &r); err != nil {
		return fmt.Errorf("the backup was taken, but its receipt cannot be read here: %s", run.Detail)
	}
	if asJSON {
		return printJSON(e.out, r)
	}
	return printReceipt(e.out, r)
}

func printReceipt(out io.Writer, r backup.Receipt) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "backup\t%s\n", printable(r.File))
	fmt.Fprintf(w, "size\t%d bytes\n", r.Bytes)
	fmt.Fprintf(w, "sha256\t%s\n", printable(r.SHA256))
	fmt.Fprintf(w, "holds\t%d items (%d bytes), %d hosts\n", r.Items, r.ItemBytes, r.Enrolments)
	fmt.Fprintf(w, "epoch\t%s\n", printable(r.Epoch))
	fmt.Fprintf(w, "relay key\t%s (not in the backup: keep it elsewhere)\n", printable(r.Fingerprint))
	fmt.Fprintf(w, "taken\t%s, verified\n", wire.FormatTime(r.At))
	if r.Encrypted {
		fmt.Fprintf(w, "encrypted\tyes, with age\n")
	}
	fmt.Fprintf(w, "restore with\t%s\n", printable(r.Restore))
	return w.Flush()
}
