package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func newVerify(e env) *cobra.Command {
	var identity string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check a backup in full",
		Long: `Check a backup in full: that it is a finished store of this relay, whole, agreeing
with itself and with the receipt beside it, with every row of it readable. The
store in --store-dir is not touched; only its key is read, to compare.

The exit code is 5 for a bad file, 4 for a missing one, 2 for an encrypted one
without its identity.`,
		Example: `  agentmbx relay verify /mnt/usb/relay.db --store-dir ./data
  agentmbx relay verify backups/relay-20261130T031700Z-000017.db.age --identity key.txt`,
		Args: cobra.ExactArgs(1),
	}
	r := bindSettings(cmd.Flags(), "store-dir", "backup-dir")
	cmd.Flags().StringVar(&identity, "identity", "", "age identity `file` of an encrypted backup")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		if identity != "" {
			s.AgeIdentityFile = identity
		}
		return runVerify(cmd.Context(), e, s, args[0], asJSON)
	}
	return cmd
}

func runVerify(ctx context.Context, e env, s Settings, file string, asJSON bool) error {
	if file == "" {
		return usage(errors.New("FILE is empty"))
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	want := backup.Want{Scratch: scratch(s)}
	if want.Key, err = expectedKey(ctx, s); err != nil {
		return err
	}
	if s.AgeIdentityFile != "" {
		if want.Identities, err = backup.ReadIdentities(s.AgeIdentityFile); err != nil {
			return usage(err)
		}
	}
	show, finish := progressBar(e, "verify")
	defer finish()
	want.Progress = show
	report, err := backup.Verify(ctx, path, want)
	finish()
	switch {
	case errors.Is(err, fs.ErrNotExist) && len(report.Checks) == 0:
		return notFound(err)
	case err != nil && !errors.Is(err, backup.ErrEncrypted):
		return err
	case asJSON:
		err = errors.Join(err, printJSON(e.out, report))
	default:
		err = errors.Join(err, printReport(e.out, report))
	}
	switch {
	case err == nil:
		return unhealthy(report.Err())
	case report.Fault() != "": // bad, whatever it holds
		return unhealthy(fmt.Errorf("%s: %w: %s", path, backup.ErrBad, report.Fault()))
	case errors.Is(err, backup.ErrEncrypted):
		return usage(fmt.Errorf("%w, with --identity", err))
	}
	return err
}

// scratch is where an encrypted backup is opened: the backup folder is swept
// after a crash, and has room.
func scratch(s Settings) string {
	if st, err := os.Stat(s.BackupDir); err == nil && st.IsDir() {
		return s.BackupDir
	}
	return os.TempDir()
}

// expectedKey is the key of the store in the settings, zero where there is none
// or its key is elsewhere. The store itself is not opened.
func expectedKey(ctx context.Context, s Settings) (wire.PublicKey, error) {
	if _, err := os.Stat(filepath.Join(s.StoreDir, relay.KeyFile)); err == nil || os.Getenv("MBX_RELAY_KEY") != "" {
		key, _, err := relay.LoadKey(s.StoreDir, takeSecret("MBX_RELAY_KEY"), true)
		if err != nil {
			return wire.PublicKey{}, fmt.Errorf("the key to compare with: %w", err)
		}
		return key.Public(), nil
	}
	c, err := api.Dial(ctx, s.StoreDir)
	if err != nil {
		return wire.PublicKey{}, nil // no relay: any key, and the report says so
	}
	st, err := c.Status(ctx)
	if err != nil {
		return wire.PublicKey{}, fmt.Errorf("ask the relay for its key: %w", err)
	}
	return wire.ParsePublicKey(st.Key)
}

func printReport(out io.Writer, r backup.Report) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, c := range r.Checks {
		word := "ok"
		if !c.OK {
			word = "FAIL"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", word, c.Name, printable(c.Text))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	verdict := "a good backup"
	if r.Fault() != "" {
		verdict = "NOT a good backup"
	} else if !r.Good {
		verdict = "not verified: it is encrypted"
	}
	_, err := fmt.Fprintf(out, "%s: %s\n", printable(r.File), verdict)
	return err
}
