package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// importOptions are the argument and flags of `relay import`.
type importOptions struct {
	file, keyFile       string
	force, dryRun, json bool
}

func newImport(e env) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Take over the store of a TypeScript AgentMBX relay",
		Long: `Make a new store out of the relay.db of a TypeScript AgentMBX relay (schema 1 or
2), which has to be stopped: the same relay key, epoch and sequence numbers, every
queued item byte for byte, who is enrolled and revoked, sender lists, sealing keys,
dedup and log. No host notices. FILE is only read; with a log beside it (a relay
that was killed leaves FILE-wal) both are read from a private copy.

The relay's key is that of --key, else MBX_RELAY_KEY, else relay.key in the store's
folder, else relay.key beside FILE. It has to be the store's own; out of a file it
is written to the new store's relay.key.

Nothing is overwritten: a folder that has a store is refused. What cannot be taken
over is refused with the name of its table and row, and leaves nothing.`,
		Example: `  agentmbx relay import /data/relay.db --key /data/relay.key --store-dir ./data --dry-run
  agentmbx relay import /data/relay.db --key /data/relay.key --store-dir ./data`,
		Args: nArgs(1, 1, "the relay.db to import"),
	}
	r := bindSettings(cmd.Flags(), "store-dir")
	cmd.Flags().StringVar(&o.keyFile, "key", "", "`file` with that relay's private key")
	cmd.Flags().BoolVar(&o.force, "force", false, "go on though that relay gave a sign of life in the last 90 seconds")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "say what would come over, change nothing")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		if o.file, err = filepath.Abs(args[0]); err != nil {
			return err
		}
		return runImport(cmd.Context(), e, s, o)
	}
	return cmd
}

// importFacts is what `relay import --json` prints.
type importFacts struct {
	sqlite.Imported
	DryRun    bool   `json:"dry_run"`
	Dir       string `json:"store_dir"`
	KeySource string `json:"key_source"`
}

func runImport(ctx context.Context, e env, s Settings, o importOptions) error {
	secret := takeSecret("MBX_RELAY_KEY")
	if _, err := os.Stat(o.file); err != nil {
		if isMissing(err) {
			return notFound(fmt.Errorf("there is no %s: want the relay.db of a TypeScript relay", o.file))
		}
		return err
	}
	key, source, err := importKey(s.StoreDir, secret, o)
	if err != nil {
		return err
	}
	show, finish := progressBar(e, "import")
	defer finish()
	in := sqlite.ImportOptions{File: o.file, Dir: s.StoreDir, Key: key.Public(), Force: o.force, Actor: actor(), Progress: show}
	if source != "MBX_RELAY_KEY" {
		in.Before = func() error { return relay.PutKey(s.StoreDir, key) }
	}
	f := importFacts{DryRun: o.dryRun, Dir: s.StoreDir, KeySource: source}
	if o.dryRun {
		f.Imported, err = sqlite.PreviewImport(ctx, in)
	} else {
		f.Imported, err = importUnderLock(ctx, in)
	}
	finish()
	if err != nil {
		return importError(err)
	}
	if o.json {
		return printJSON(e.out, f)
	}
	return printImport(e, f)
}

// importUnderLock imports under the store's lock. A folder that it made, and that
// has no store after all, goes again.
func importUnderLock(ctx context.Context, o sqlite.ImportOptions) (did sqlite.Imported, err error) {
	_, err = os.Lstat(o.Dir)
	made := errors.Is(err, fs.ErrNotExist)
	if err := sqlite.MakeFolder(o.Dir); err != nil {
		return did, err
	}
	if o.Lock, err = sqlite.AcquireLock(ctx, o.Dir, time.Second, nil); err != nil {
		return did, err
	}
	if did, err = sqlite.Import(ctx, o); err == nil || errors.Is(err, sqlite.ErrDoubt) {
		return did, errors.Join(err, o.Lock.Release())
	}
	err = errors.Join(err, o.Lock.Undo())
	if made {
		_ = os.Remove(o.Dir) // only when nothing else is in it
	}
	return did, err
}

// importKey finds the relay's key, and says where.
func importKey(dir, secret string, o importOptions) (key wire.PrivateKey, source string, err error) {
	here := filepath.Join(dir, relay.KeyFile)
	if o.keyFile != "" {
		if key, err = readKeyFlag(o.keyFile); err != nil {
			return key, "", err
		}
		source = o.keyFile
	}
	if secret != "" {
		inEnv, err := wire.ParseKeyFile([]byte(secret))
		switch {
		case err != nil:
			return key, "", usage(fmt.Errorf("MBX_RELAY_KEY: %w", err))
		case source == "":
			return inEnv, "MBX_RELAY_KEY", nil
		case inEnv.Public() != key.Public():
			return key, "", usage(errors.New("MBX_RELAY_KEY holds another key than --key, and a relay takes that of MBX_RELAY_KEY: unset one of them"))
		}
	}
	for _, path := range []string{here, filepath.Join(filepath.Dir(o.file), relay.KeyFile)} {
		there, err := relay.ReadKey(path)
		if isMissing(err) {
			continue
		}
		switch {
		case source != "" && path != here:
			return key, source, nil
		case err != nil:
			return key, "", refused(fmt.Errorf("%w; move it away, or give the relay's key with --key", err))
		case source == "":
			return there, path, nil
		case there.Public() != key.Public():
			return key, "", refused(fmt.Errorf("%s: %w: it is %s, not %s; move it away", here, relay.ErrKeyThere,
				there.Public().Fingerprint(), key.Public().Fingerprint()))
		}
	}
	if source == "" {
		return key, "", refused(errors.New("the relay's key is needed: give its file with --key, or set MBX_RELAY_KEY; without the key every host would stop"))
	}
	return key, source, nil
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// importError gives an import's error its exit code.
func importError(err error) error {
	switch {
	case errors.Is(err, sqlite.ErrForeign), errors.Is(err, sqlite.ErrNewerSchema):
		return unhealthy(err)
	case errors.Is(err, sqlite.ErrStoreThere), errors.Is(err, sqlite.ErrInUse), errors.Is(err, relay.ErrKeyThere):
		return refused(err)
	}
	return protective(err)
}

func printImport(e env, f importFacts) error {
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	did := "imported"
	if f.DryRun {
		did = "would import"
	}
	fmt.Fprintf(w, "%s\t%s (schema %d) into %s\n", did, f.Source, f.Schema, f.Dir)
	fmt.Fprintf(w, "relay key\t%s (from %s)\n", f.Fingerprint, f.KeySource)
	fmt.Fprintf(w, "epoch\t%s, as it was\n", f.Epoch)
	fmt.Fprintf(w, "hosts\t%d, %d of them revoked\n", f.Enrolments, f.Revoked)
	fmt.Fprintf(w, "queued\t%d items, %d bytes\n", f.Items, f.ItemBytes)
	fmt.Fprintf(w, "dedup\t%d rows, %d added\n", f.Dedup, f.DedupAdded)
	fmt.Fprintf(w, "records\t%d sender lists, %d and %d sealing keys (v1 and v2), %d not signed by their host\n",
		f.SenderLists, f.EncAds, f.EncAdRecords, f.Unsigned)
	fmt.Fprintf(w, "log\t%d lines, %d restored paths\n", f.LogLines, f.RestoredPaths)
	for _, warning := range f.Warnings {
		fmt.Fprintf(w, "WARNING\t%s\n", printable(warning))
	}
	next := "agentmbx relay serve --store-dir " + f.Dir
	if f.DryRun {
		next = "the same without --dry-run"
	}
	fmt.Fprintf(w, "next\t%s\n", next)
	if !f.DryRun {
		fmt.Fprintf(w, "\twithin 10 minutes, or the epoch is new: harmless, hosts push and pull again\n")
	}
	return w.Flush()
}
