package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// current is the store that is to be replaced.
type current struct {
	exists bool
	path   string // where it can be read, as one file at rest; "" where it cannot
	info   store.Info
	fault  error // why it cannot be read, or not be trusted
}

// good reports whether the store could be restored again.
func (c current) good() bool { return c.path != "" && c.fault == nil }

// freshBeat is how young the last heartbeat is of a relay that may still run.
const freshBeat = 90 * time.Second

// look finds out what the store that is to be replaced is. It refuses another
// relay's store always, and without Force one that tells nothing of what was
// revoked, or that a relay without our lock may be serving.
func (w *restoring) look(ctx context.Context) error {
	st, err := os.Lstat(w.db)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() == 0 { // empty: one that never began
		return nil
	}
	if err != nil {
		return err
	}
	w.current.exists = true
	path := w.db
	if w.dry {
		if path, err = w.copyCurrent(ctx); err != nil {
			return fmt.Errorf("copy the current store to look at it: %w", err)
		}
	}
	w.Progress("look at the current store", 0, 0)
	if err = w.open(ctx, path); err != nil && path != w.db {
		err = &elsewhere{err, path, w.db}
	}
	switch {
	case err == nil:
		return nil
	case !unreadable(err):
		return err
	case !w.Force:
		return fmt.Errorf("%w: the current store cannot be read, so that what was revoked and denied since the backup would be lost: %w; to restore all the same: --force",
			ErrRefused, err)
	}
	w.current.fault = err
	return nil
}

// elsewhere tells of a copy's error by the name of what was copied.
type elsewhere struct {
	err      error
	path, of string
}

func (e *elsewhere) Error() string { return strings.ReplaceAll(e.err.Error(), e.path, e.of) }
func (e *elsewhere) Unwrap() error { return e.err }

// open folds the current store into one file, and reads it.
func (w *restoring) open(ctx context.Context, path string) (err error) {
	if err := w.do("fold", func() error { return sqlite.Fold(path) }); err != nil {
		return err
	}
	f, err := sqlite.OpenFile(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	in := f.Info()
	switch {
	case in.RelayKey.IsZero():
		return fmt.Errorf("%s: %w: it names no relay key", path, sqlite.ErrNotAStore)
	case in.RelayKey != w.report.Info.RelayKey:
		return fmt.Errorf("%w: the store in %s is of the relay %s, the backup of %s; to give a store another key is agentmbx relay rekey",
			sqlite.ErrOtherKey, w.StoreDir, in.RelayKey.Fingerprint(), w.report.Info.RelayKey.Fingerprint())
	case !w.HadLock && !w.Force && w.at.Sub(in.Heartbeat).Abs() < freshBeat:
		return fmt.Errorf("%w: the store in %s has a heartbeat of %s and never had a lock file: a relay may be serving it; stop it, or wait %s, or if none runs: --force",
			ErrRefused, w.StoreDir, wire.FormatTime(in.Heartbeat), freshBeat)
	}
	w.current.info, w.r.From = in, in.Epoch
	if err := f.View(func(r store.Reader) error {
		t, err := r.Totals()
		w.r.Before = &t
		return err
	}); err != nil {
		w.r.Before = nil
		return err
	}
	w.current.path = path
	return f.Check(ctx)
}

// unreadable tells a store that is at fault itself from a device without room,
// from one that somebody uses, and from one that we must not touch.
func unreadable(err error) bool {
	for _, e := range []error{store.ErrFull, syscall.ENOSPC, syscall.EDQUOT, sqlite.ErrBusy, sqlite.ErrOtherKey, sqlite.ErrNewerSchema,
		ErrRefused, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return false
		}
	}
	return true
}

// copyCurrent copies the current store with its log, so that a preview can fold
// the copy. Nobody has the store open: we hold its lock.
func (w *restoring) copyCurrent(ctx context.Context) (string, error) {
	path := filepath.Join(w.work, "current.db")
	for _, suffix := range []string{"", "-wal", "-journal"} {
		_, err := w.copyFile(ctx, w.db+suffix, path+suffix)
		if err != nil && !(suffix != "" && errors.Is(err, fs.ErrNotExist)) {
			return "", err
		}
	}
	return path, nil
}

// copyFile copies a file durably and answers what it read.
func (w *restoring) copyFile(ctx context.Context, from, to string) (_ *digest, err error) {
	in, st, err := openRegular(from)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	sum := newDigest()
	if _, err := stream(ctx, io.MultiWriter(out, sum), in, func(n int64) { w.Progress("keep the current store", n, st.Size()) }); err != nil {
		return nil, err
	}
	return sum, out.Sync()
}
