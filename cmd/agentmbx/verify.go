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
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
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
store in --store-dir is not touched; only whose it is is read, to compare.

The exit code is 5 for a bad file, 4 for a missing one, 2 for an encrypted one
without its identity.`,
		Example: `  agentmbx relay verify /mnt/usb/relay.db --store-dir ./data
  agentmbx relay verify backups/relay-20261130T031700Z-000017.db.age --identity key.txt`,
		Args: nArgs(1, 1, "the backup to verify; see agentmbx relay backups"),
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
	want := backup.Want{Scratch: os.TempDir()}
	if want.Key, err = expectedKey(ctx, e, s); err != nil {
		return err
	}
	if !want.Key.IsZero() { // the folder is swept by key
		want.Scratch = scratch(s)
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

// expectedKey is the key of the store in the settings, zero where there is none.
// When a store does not tell whose it is, a line says so.
func expectedKey(ctx context.Context, e env, s Settings) (pub wire.PublicKey, err error) {
	secret := takeSecret("MBX_RELAY_KEY")
	if _, err := os.Stat(filepath.Join(s.StoreDir, relay.KeyFile)); err == nil || secret != "" {
		key, _, err := relay.LoadKey(s.StoreDir, secret, true)
		if err != nil {
			return pub, badSecret(secret, fmt.Errorf("the key to compare with: %w", err))
		}
		return key.Public(), nil
	}
	exists, err := sqlite.Exists(s.StoreDir)
	if err == nil && exists {
		pub, err = keyOfStore(ctx, s.StoreDir)
	}
	if err != nil {
		fmt.Fprintf(e.errw, "agentmbx: whose store %s is cannot be told, and the backup is compared with no key: %s; set MBX_RELAY_KEY\n",
			printable(s.StoreDir), printable(err.Error()))
	}
	return pub, nil
}

// keyOfStore asks a store whose key file is elsewhere: through the relay that has
// it, or at rest.
func keyOfStore(ctx context.Context, dir string) (pub wire.PublicKey, err error) {
	if c, err := api.Dial(ctx, dir); err == nil {
		st, err := c.Status(ctx)
		if err != nil {
			return pub, fmt.Errorf("ask the relay for its key: %w", err)
		}
		return wire.ParsePublicKey(st.Key)
	}
	lock, err := sqlite.AcquireLock(ctx, dir, 0, nil)
	var locked *sqlite.LockedError
	switch {
	case errors.As(err, &locked):
		return pub, err
	case err != nil: // a folder that cannot be written to: only a finished file can be read there
		f, e := sqlite.OpenFile(filepath.Join(dir, sqlite.FileName))
		if e != nil {
			return pub, errors.Join(err, e)
		}
		return f.Info().RelayKey, f.Close()
	}
	in, err := sqlite.InfoAtRest(dir)
	return in.RelayKey, errors.Join(err, lock.Undo())
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
	_, err := fmt.Fprintf(out, "%s: %s\n", printable(r.File), r.Verdict())
	return err
}
