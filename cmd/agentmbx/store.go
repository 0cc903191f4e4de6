package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// openStore takes the store's lock, restores what MBX_RELAY_RESTORE_FROM names,
// and opens the store with the relay's key. A new relay gets its key and its store
// here.
func openStore(ctx context.Context, e env, s Settings, log *slog.Logger) (st *sqlite.Store, key wire.PrivateKey, source string, err error) {
	secret := takeSecret("MBX_RELAY_KEY")
	if err := sqlite.MakeFolder(s.StoreDir); err != nil {
		return nil, key, "", err
	}
	o := sqlite.Options{Dir: s.StoreDir, LockWait: lockWait, Log: log, Waiting: func(h sqlite.Holder) { waiting(log, s.StoreDir, h) }}
	if o.Lock, err = lockStore(ctx, o, s.RestoreFrom == ""); err != nil {
		return nil, key, "", protective(err)
	}
	defer func() {
		if st == nil && o.Lock != nil {
			err = errors.Join(err, giveBack(o.Lock, err))
		}
	}()
	if err := settleKey(s.StoreDir, log); err != nil {
		return nil, key, "", err
	}
	exists, err := sqlite.Exists(s.StoreDir)
	if err != nil {
		return nil, key, "", err
	}
	key, source, err = relay.LoadKey(s.StoreDir, secret, exists || s.RestoreFrom != "")
	if errors.Is(err, relay.ErrKeyLost) && !exists { // the restore says which key is wanted
		if e := restoreFrom(ctx, e, s, wire.PublicKey{}, o.Lock, log); e != nil {
			err = e
		}
	}
	if err != nil {
		return nil, key, "", protective(err)
	}
	if s.RestoreFrom != "" {
		if err := restoreFrom(ctx, e, s, key.Public(), o.Lock, log); err != nil {
			return nil, key, "", err
		}
	}
	with := o
	with.Key = key.Public()
	o.Lock = nil // it is the store's
	if st, err = sqlite.Open(ctx, with); err != nil {
		return nil, key, "", protective(err)
	}
	if !exists && s.RestoreFrom == "" && !strings.HasSuffix(source, relay.NewKey) {
		log.Warn("there was no store; a new, empty one was made for this key", "store", s.StoreDir)
	}
	return st, key, source, nil
}

// openExisting opens the store in a folder whatever its key is, for a command that
// does not wait long for it.
func openExisting(ctx context.Context, dir string) (*sqlite.Store, error) {
	o := sqlite.Options{Dir: dir, LockWait: time.Second}
	exists, err := sqlite.Exists(dir)
	if err == nil && exists { // else Open says what is missing, and makes no lock file there
		o.Lock, err = lockStore(ctx, o, true)
	}
	if err != nil {
		return nil, protective(err)
	}
	st, err := sqlite.Open(ctx, o)
	return st, protective(err)
}

// lockStore takes the lock of the store in o.Dir, and ends what a crash left of a
// restore, before anybody opens the store. Where there is no store yet and a
// restore or an import of one was cut off, that is to be done again: an empty store
// in its place would serve hosts who know another. idle says that no restore is
// about to be.
func lockStore(ctx context.Context, o sqlite.Options, idle bool) (_ *sqlite.Lock, err error) {
	lock, err := sqlite.AcquireLock(ctx, o.Dir, o.LockWait, o.Waiting)
	if err != nil {
		return nil, err
	}
	err = sqlite.CutImport(o.Dir)
	if err == nil && idle {
		err = backup.CutRestore(o.Dir)
	}
	if err == nil {
		err = backup.SweepRestore(o.Dir)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return lock, nil
}

// settleKey finishes a rekey that a crash cut off. The caller has the store's
// lock, and loads the key after it.
func settleKey(dir string, log *slog.Logger) error {
	if !relay.KeyStaged(dir) {
		return nil
	}
	exists, err := sqlite.Exists(dir)
	if err != nil || !exists {
		return err
	}
	in, err := sqlite.InfoAtRest(dir)
	if err != nil {
		return err
	}
	finished, kept, err := relay.FinishRekey(dir, in.RelayKey)
	if finished {
		log.Warn("a rekey that was cut off is finished", "fingerprint", in.RelayKey.Fingerprint(), "old_key", kept)
	} else if kept != "" {
		log.Warn("a key that this store is not bound to was set aside; keep it if a newer store may be", "file", kept)
	}
	return err
}

func waiting(log *slog.Logger, dir string, h sqlite.Holder) {
	log.Warn("another process has the store; waiting for it to end", "store", dir,
		"pid", h.PID, "host", h.Host, "deployment", h.DeploymentID, "wait", lockWait.String())
}

// protective gives an error the exit code of a refusal that protects something.
func protective(err error) error {
	var locked *sqlite.LockedError
	for _, target := range []error{sqlite.ErrOtherKey, sqlite.ErrNewerSchema, sqlite.ErrNotAStore, sqlite.ErrCutOff, relay.ErrKeyLost, backup.ErrRefused} {
		if errors.Is(err, target) {
			return refused(err)
		}
	}
	if errors.As(err, &locked) {
		return refused(err)
	}
	if errors.Is(err, sqlite.ErrNoStore) {
		return notFound(err)
	}
	return err
}
