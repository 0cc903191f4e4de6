package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

type restoreFlags struct {
	dryRun, force, json bool
	identity            string
}

func newRestore(e env) *cobra.Command {
	var o restoreFlags
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the store what a backup holds; the relay is stopped for it",
		Long: `Make the store what the backup in FILE holds, under a new epoch: senders push again
what is not confirmed, receivers read from the start, and dedup keeps both harmless.

What was taken away since the backup stays taken away: revoked and denied hosts,
keys that were rotated, items that are held. Sequence numbers go on above both
stores, newer sender lists and sealing keys and the log come along; enrolments do
not, those hosts enrol anew by themselves.

It is all or nothing. The replaced store is kept in the folder rollback of the
store's, the last three of them, and the command that goes back is printed. A
store restores backups of its own relay key only. The next start of the relay
takes a backup at once.

--force goes on where the current store is damaged, and where it has a fresh
heartbeat but never had a lock file; a relay that runs is never overruled, and a
store that is only out of reach (its owner, its device) is never given up.`,
		Example: `  agentmbx relay restore ./data/backups/FILE.db --store-dir ./data --dry-run
  agentmbx relay restore ./data/backups/FILE.db --store-dir ./data`,
		Args: nArgs(1, 1, "the backup to restore"),
	}
	r := bindSettings(cmd.Flags(), "store-dir")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "say what would happen, change nothing")
	cmd.Flags().BoolVar(&o.force, "force", false, "go on though the current store is damaged or may be in use")
	cmd.Flags().StringVar(&o.identity, "identity", "", "`file` of age identities that opens an encrypted backup")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		if args[0] == "" {
			return usage(errors.New("FILE is empty"))
		}
		file, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		return runRestore(cmd.Context(), e, s, file, o)
	}
	return cmd
}

func runRestore(ctx context.Context, e env, s Settings, file string, o restoreFlags) (err error) {
	key, err := restoreKey(s.StoreDir, takeSecret("MBX_RELAY_KEY"))
	if err != nil {
		return err
	}
	ro := backup.RestoreOptions{File: file, StoreDir: s.StoreDir, Key: key, Force: o.force, Actor: actor(), Version: version}
	if o.identity == "" {
		o.identity = s.AgeIdentityFile
	}
	if o.identity != "" {
		if ro.Identities, err = backup.ReadIdentities(o.identity); err != nil {
			return usage(err)
		}
	}
	made, err := makeFolder(s.StoreDir)
	if err != nil {
		return err
	}
	lock, err := restoreLock(ctx, s.StoreDir)
	if err != nil {
		return errors.Join(err, made())
	}
	show, finish := progressBar(e, "restore")
	defer finish()
	ro.Lock, ro.HadLock, ro.Progress = lock, !lock.Made(), show
	do := backup.Restore
	if o.dryRun {
		do = backup.Preview
	}
	receipt, err := do(ctx, ro)
	finish()
	if err != nil || o.dryRun { // the folder had no lock file, and is to tell that the next time, too
		if err = errors.Join(restoreError(err, "--identity FILE"), giveBack(lock, err), made()); err != nil {
			return err
		}
		return showRestore(e, s, receipt, o)
	}
	// A reader that went away must not end the process before it said what it did.
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGPIPE)
	if err := errors.Join(lock.Release(), showRestore(e, s, receipt, o)); err != nil {
		return didRestore(receipt, err)
	}
	return nil
}

// giveBack lets the lock go after err: as if it had never been taken, unless the
// store was replaced all the same. Then the command that goes back, which err
// tells, has to find a lock file.
func giveBack(lock *sqlite.Lock, err error) error {
	if errors.Is(err, backup.ErrRestored) {
		return lock.Release()
	}
	return lock.Undo()
}

func showRestore(e env, s Settings, receipt backup.RestoreReceipt, o restoreFlags) error {
	if o.json {
		return printJSON(e.out, receipt)
	}
	return printRestore(e, s, receipt, o.dryRun)
}

// didRestore says in an error of what came after a restore that it is done.
func didRestore(r backup.RestoreReceipt, err error) error {
	err = fmt.Errorf("%s is restored, under the epoch %s, but: %w", r.Source, r.To, err)
	if r.Undo != "" {
		err = fmt.Errorf("%w; to go back: %s", err, r.Undo)
	}
	return err
}

// restoreKey is the relay's key; zero when it is nowhere, so that the current
// store must say whose it is.
func restoreKey(dir, secret string) (pub wire.PublicKey, err error) {
	key, _, err := relay.LoadKey(dir, secret, true)
	if errors.Is(err, relay.ErrKeyLost) {
		return pub, nil
	}
	return key.Public(), badSecret(secret, protective(err))
}

// badSecret is the exit code of a setting for a key in the environment that is
// none; its text has nothing of it.
func badSecret(secret string, err error) error {
	if secret != "" && errors.Is(err, relay.ErrKeyFile) {
		return usage(err)
	}
	return err
}

// restoreLock takes the lock of a store that no relay has.
func restoreLock(ctx context.Context, dir string) (*sqlite.Lock, error) {
	lock, err := sqlite.AcquireLock(ctx, dir, time.Second, nil)
	var locked *sqlite.LockedError
	if errors.As(err, &locked) {
		return nil, refused(fmt.Errorf("RELAY_RUNNING: %w", err))
	}
	if err != nil && ctx.Err() != nil {
		return nil, errors.New("interrupted; the store is as it was")
	}
	if err != nil {
		return nil, err
	}
	if _, err := api.Dial(ctx, dir); err == nil {
		return nil, errors.Join(refused(fmt.Errorf("RELAY_RUNNING: a relay answers on the socket of %s, though its lock file is gone: stop it first", dir)), lock.Undo())
	}
	return lock, nil
}

// makeFolder makes a folder that is not there, and answers what takes away again
// what of it is still empty.
func makeFolder(dir string) (undo func() error, err error) {
	var made []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Lstat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, d)
	}
	return func() error {
		for _, d := range made {
			if os.Remove(d) != nil { // something stands in it
				break
			}
		}
		return nil
	}, sqlite.MakeFolder(dir)
}

// restoreError gives an error of a restore its exit code. identity is how an
// identity is given.
func restoreError(err error, identity string) error {
	switch {
	case errors.Is(err, backup.ErrEncrypted):
		return usage(fmt.Errorf("%w, with %s", err, identity))
	case errors.Is(err, sqlite.ErrBusy):
		return refused(err)
	}
	if err = deskError(err); exitCode(err) == codeFailed {
		return protective(err)
	}
	return err
}

func printRestore(e env, s Settings, r backup.RestoreReceipt, dry bool) error {
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	heading := "restored"
	if dry {
		heading = "would restore (nothing was changed)"
	}
	fmt.Fprintf(w, "%s\t%s\n", heading, printable(r.Source))
	fmt.Fprintf(w, "taken\t%s, %s\n", wire.FormatTime(r.TakenAt), ago(r.AgeSeconds))
	from := r.From
	if from == "" {
		from = "none"
	}
	to := r.To
	if dry {
		to = "a new one"
	}
	fmt.Fprintf(w, "epoch\t%s -> %s (the backup's: %s)\n", from, to, r.BackupEpoch)
	if r.Before != nil {
		fmt.Fprintf(w, "before\t%d hosts, %d items, %d bytes\n", r.Before.Enrolments, r.Before.Items, r.Before.Bytes)
	} else {
		fmt.Fprintf(w, "before\tno store that could be read\n")
	}
	fmt.Fprintf(w, "after\t%d hosts, %d items, %d bytes\n", r.After.Enrolments, r.After.Items, r.After.Bytes)
	fmt.Fprintf(w, "newer mail\t%d queued items must come back from their senders\n", r.NewerMail)
	c := r.Carried
	fmt.Fprintf(w, "carried\t%d revocations, %d denials, %d rotations, %d sender lists, %d v1 keys, %d enc ads,\n", c.Revocations, c.Denials, c.Rotations, c.SenderLists, c.EncAds, c.EncAdRecords)
	fmt.Fprintf(w, "\t%d sequence floors, %d held items, %d discarded items (held now), %d log lines, %d restored paths\n", c.SeqFloors, c.Held, c.Discarded, c.LogLines, c.RestoredPaths)
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "WARNING\t%s\n", printable(warning))
	}
	if dry {
		return w.Flush()
	}
	if r.Rollback != "" {
		fmt.Fprintf(w, "rollback\t%s, %d bytes\n", printable(r.Rollback), r.RollbackBytes)
	}
	if r.Undo != "" {
		fmt.Fprintf(w, "to go back\t%s\n", printable(r.Undo))
	}
	fmt.Fprintf(w, "next\tstart the relay; it takes a backup at once: agentmbx relay serve --store-dir %s\n", printable(s.StoreDir))
	return w.Flush()
}

func ago(seconds int64) string {
	d := time.Duration(seconds) * time.Second
	if d < 0 {
		return (-d).String() + " in the future"
	}
	return d.String() + " ago"
}

// restoreFrom restores what MBX_RELAY_RESTORE_FROM names, once for each path: a
// service that restarts with the setting still in place must not lose what came
// since. The caller has the lock, and opens the store after it.
func restoreFrom(ctx context.Context, e env, s Settings, key wire.PublicKey, lock *sqlite.Lock, log *slog.Logger) error {
	if err := backup.SweepRestore(s.StoreDir); err != nil {
		return err
	}
	file, err := filepath.Abs(s.RestoreFrom)
	if err != nil {
		return err
	}
	paths, err := sqlite.RestoredPaths(s.StoreDir)
	if at, done := paths[file]; err == nil && done {
		log.Info("MBX_RELAY_RESTORE_FROM was restored before and is left alone; unset it, or name another file to restore that",
			"file", file, "restored_at", wire.FormatTime(at))
		return nil
	}
	// What a damaged store has consumed is not known, and Restore refuses to replace
	// it. One that only was not reached may have consumed the path.
	if err != nil && !sqlite.Damaged(err) {
		return protective(fmt.Errorf("MBX_RELAY_RESTORE_FROM: whether it was restored before is not known: %w", err))
	}
	o := backup.RestoreOptions{File: file, StoreDir: s.StoreDir, Key: key, Lock: lock, HadLock: !lock.Made(), Consume: true,
		Actor: "MBX_RELAY_RESTORE_FROM", Version: version, Log: log}
	if s.AgeIdentityFile != "" {
		if o.Identities, err = backup.ReadIdentities(s.AgeIdentityFile); err != nil {
			return usage(fmt.Errorf("MBX_BACKUP_AGE_IDENTITY_FILE: %w", err))
		}
	}
	show, finish := progressBar(e, "restore")
	defer finish()
	o.Progress = show
	r, err := backup.Restore(ctx, o)
	finish()
	if err != nil {
		return restoreError(fmt.Errorf("MBX_RELAY_RESTORE_FROM: %w", err), "MBX_BACKUP_AGE_IDENTITY_FILE")
	}
	for _, warning := range r.Warnings {
		log.Warn(warning)
	}
	log.Info("restored MBX_RELAY_RESTORE_FROM", "file", file, "taken_at", wire.FormatTime(r.TakenAt), "epoch", r.To,
		"items", r.After.Items, "rollback", r.Rollback, "undo", r.Undo)
	return nil
}
