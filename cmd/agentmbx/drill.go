package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/backup/drill"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

func newDrill(e env) *cobra.Command {
	var asJSON bool
	var identity string
	cmd := &cobra.Command{
		Use:   "drill [FILE]",
		Short: "Rehearse a restore of a backup, beside the live store",
		Long: `Rehearse a restore: verify a backup, restore it into a scratch folder, serve it on
a loopback port, compare every queue with the backup, and let hosts of the drill's
own send, fetch and acknowledge mail as hosts do after a restore. The live store
and its port are not touched; the scratch folder is removed in the end.

Without FILE the newest verified backup is drilled. The result stands in the relay
log. It tells the age of the backup (RPO) and how long a restore takes (RTO).

A running relay does it itself; otherwise the store is opened under its lock. Where
there is no store at all, FILE is drilled with the key in MBX_RELAY_KEY, and no log
is kept. The exit code is 5 when a check fails.`,
		Example: `  agentmbx relay drill --store-dir ./data
  agentmbx relay drill data/backups/relay-20261130T031700Z-000017.db --json
  agentmbx relay drill FILE.db.age --identity ~/relay-backup.key`,
		Args: nArgs(0, 1, "the backup to drill; see agentmbx relay backups"),
	}
	r := bindSettings(cmd.Flags(), "store-dir", "backup-dir")
	cmd.Flags().StringVar(&identity, "identity", "", "age identity `file` that opens an encrypted backup")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		a := admin.DrillArgs{Identity: identity}
		if len(args) > 0 {
			a.File = args[0]
		}
		for _, path := range []*string{&a.File, &a.Identity} { // the relay that does it is elsewhere
			if *path == "" {
				continue
			}
			if *path, err = filepath.Abs(*path); err != nil {
				return err
			}
		}
		if a.File != "" {
			if _, err := os.Stat(a.File); errors.Is(err, os.ErrNotExist) {
				return notFound(err)
			} else if err != nil {
				return err
			}
		}
		if a.Identity != "" { // looked at here, where the operator is
			if _, err := backup.ReadIdentities(a.Identity); err != nil {
				return usage(err)
			}
		}
		return runDrill(cmd.Context(), e, s, a, asJSON)
	}
	return cmd
}

func runDrill(ctx context.Context, e env, s Settings, a admin.DrillArgs, asJSON bool) error {
	exists, err := sqlite.Exists(s.StoreDir)
	if err != nil {
		return err
	}
	if !exists && a.File != "" {
		return drillAlone(ctx, e, s, a, asJSON)
	}
	return withDesk(ctx, e, s, func(svc admin.Service, _ bool) error { return drillNow(ctx, e, svc, a, asJSON) })
}

// drillNow has a backup drilled and prints how it went.
func drillNow(ctx context.Context, e env, svc admin.Service, a admin.DrillArgs, asJSON bool) (err error) {
	q := jobs.Request{Job: admin.JobDrill}
	if a.File != "" {
		q.Job = admin.JobDrillFile
	}
	if q.Args, err = json.Marshal(a); err != nil {
		return err
	}
	run, failed := followJob(ctx, e, svc, q)
	if len(run.Result) == 0 {
		return failed
	}
	var receipt drill.Receipt
	if err := json.Unmarshal(run.Result, &receipt); err != nil {
		return errors.Join(failed, fmt.Errorf("the relay answered no drill's receipt: %w", err))
	}
	if err := printDrill(e.out, receipt, asJSON); err != nil {
		return err
	}
	return failed
}

// drillAlone drills a backup on a machine that has no store, as one that was kept
// elsewhere. What it needs besides is the relay's key.
func drillAlone(ctx context.Context, e env, s Settings, a admin.DrillArgs, asJSON bool) error {
	key, _, err := relay.LoadKey(s.StoreDir, takeSecret("MBX_RELAY_KEY"), true)
	if errors.Is(err, relay.ErrKeyLost) {
		return refused(errors.New("a drill needs the relay's key: set MBX_RELAY_KEY, or --store-dir to the folder of relay.key"))
	}
	if err != nil {
		return protective(err)
	}
	var ids []age.Identity
	if file := cmp.Or(a.Identity, s.AgeIdentityFile); file != "" {
		if ids, err = backup.ReadIdentities(file); err != nil {
			return usage(err)
		}
	}
	show, finish := progressBar(e, admin.JobDrill)
	receipt, err := drill.Run(ctx, drill.Options{
		File: a.File, Scratch: scratch(s), Key: key, Limits: s.Limits, Identities: ids,
		Version: version, Now: time.Now, Progress: show,
	})
	finish()
	if errors.Is(err, backup.ErrEncrypted) {
		return usage(fmt.Errorf("%w, with --identity", err))
	}
	if err != nil {
		return deskError(err)
	}
	if err := printDrill(e.out, receipt, asJSON); err != nil {
		return err
	}
	fmt.Fprintf(e.errw, "agentmbx: no store in %s: this drill stands in no log\n", s.StoreDir)
	if !receipt.Passed {
		return unhealthy(fmt.Errorf("the drill of %s failed: %s", filepath.Base(receipt.File), receipt.FirstFault()))
	}
	return nil
}

// printDrill prints a drill's checks, and its verdict last.
func printDrill(out io.Writer, r drill.Receipt, asJSON bool) error {
	if asJSON {
		return printJSON(out, r)
	}
	fmt.Fprintf(out, "%s (%s)\n", printable(r.File), printable(r.Source))
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, c := range r.Checks {
		mark := "ok"
		if !c.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", mark, c.Name, printable(c.Text))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if !r.TakenAt.IsZero() {
		fmt.Fprintf(out, "RPO %s: the age of the backup; newer mail would have to come back from its senders\n", drill.Span(r.RPO))
	}
	if r.RTO > 0 {
		fmt.Fprintf(out, "RTO %s: from the beginning until the restored relay answered\n", drill.Span(r.RTO))
	}
	_, err := fmt.Fprintf(out, "drill %s\n", r.Verdict())
	return err
}
