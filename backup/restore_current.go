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
	copied bool  // path is a copy: its own file could not be made one at rest
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
	w.Progress("look at the current store", 0, 0)
	path, err := w.fold(ctx)
	if err == nil {
		err = w.open(ctx, path)
	}
	return w.judge(w.named(err, path))
}

// judge says whether the restore goes on after an error of the current store. Only
// a store that is damaged itself, or none of ours, can be given up: one that was
// merely not reached tells what was revoked once it is.
func (w *restoring) judge(err error) error {
	var at *fs.PathError
	whose := ""
	if errors.Is(err, fs.ErrPermission) && errors.As(err, &at) {
		whose = sqlite.Whose(at.Path)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoRoom), filledUp(err), interrupted(err):
		return err
	case sqlite.Damaged(err) && w.Force:
		w.current.fault = err
		return nil
	case sqlite.Damaged(err):
		return fmt.Errorf("%w: the current store cannot be read, so that what was revoked and denied since the backup would be lost: %w; %s",
			ErrRefused, err, w.force("to restore all the same"))
	case sqlite.Unwritable(err):
		return fmt.Errorf("%w: the current store was not reached, and may be whole: %w%s; look at its device and its owner: --force gives up damaged stores only",
			ErrRefused, err, whose)
	}
	return err
}

// force is what to do in order to go on in spite of what err says.
func (w *restoring) force(what string) string {
	if !w.Consume {
		return what + ": --force"
	}
	return what + ", unset MBX_RELAY_RESTORE_FROM and run: " + RestoreCommand(w.File, w.StoreDir, w.report.Encrypted) + " --force"
}

// named tells an error of a copy by the name of what was copied.
func (w *restoring) named(err error, path string) error {
	if err == nil || path == "" || path == w.db {
		return err
	}
	return &elsewhere{err, path, w.db}
}

// fold makes the current store one file at rest and answers where: the store's
// own, or a copy of it when nothing may change or its file cannot be written.
func (w *restoring) fold(ctx context.Context) (string, error) {
	if !w.dry {
		err := w.do("fold", func() error { return sqlite.Fold(w.db) })
		if err == nil || !sqlite.Unwritable(err) {
			return w.db, err
		}
		w.Log.Warn("the current store is not folded where it stands, but in a copy", "error", err)
		w.current.copied = true
		if err := w.room(); err != nil {
			return "", err
		}
	}
	path, err := w.copyCurrent(ctx)
	if err != nil {
		return path, fmt.Errorf("copy the current store to look at it: %w", err)
	}
	return path, w.do("fold the copy", func() error { return sqlite.Fold(path) })
}

// elsewhere tells of a copy's error by the name of what was copied.
type elsewhere struct {
	err      error
	path, of string
}

func (e *elsewhere) Error() string { return strings.ReplaceAll(e.err.Error(), e.path, e.of) }
func (e *elsewhere) Unwrap() error { return e.err }

// open reads the current store.
func (w *restoring) open(ctx context.Context, path string) (err error) {
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
		return fmt.Errorf("%w: the store in %s has a heartbeat of %s and never had a lock file: a relay may be serving it; stop it, or wait %s, or %s",
			ErrRefused, w.StoreDir, wire.FormatTime(in.Heartbeat), freshBeat, w.force("if none runs"))
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

// copyCurrent copies the current store with its log, to fold the copy. Nobody has the store open: we hold its lock.
func (w *restoring) copyCurrent(ctx context.Context) (string, error) {
	path := filepath.Join(w.work, "current.db")
	for _, suffix := range []string{"", "-wal", "-journal"} {
		_, err := w.copyFile(ctx, w.db+suffix, path+suffix)
		if err != nil && !(suffix != "" && errors.Is(err, fs.ErrNotExist)) {
			return path, err
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
