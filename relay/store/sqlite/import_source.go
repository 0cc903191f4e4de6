package sqlite

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentmbx/agentmbx/relay/store"
)

// room looks whether there is room for the new store, and for a copy of the
// source where one is needed, before anything is begun.
func (o *ImportOptions) room() error {
	st, err := os.Stat(o.File)
	if err != nil {
		return err
	}
	need := st.Size() + st.Size()/4
	logs, err := o.logs()
	if err != nil {
		return err
	}
	for _, suffix := range logs {
		if st, err := os.Stat(o.real + suffix); err == nil {
			need += need + st.Size()
		}
	}
	free, size, err := o.Free(o.Dir)
	if err != nil {
		return nil // the writes will tell
	}
	if need += kept(size); free < need {
		return fmt.Errorf("%s: %w: %d bytes are free, the import needs about %d", o.Dir, store.ErrFull, free, need)
	}
	return nil
}

// source opens the file to import. A relay that was killed leaves a log beside
// its database: then both are copied to scratch and opened there, since to open
// them where they lie would write to them.
func (o *ImportOptions) source(scratch string) (f *foreign, done func() error, err error) {
	if err := o.unused(); err != nil {
		return nil, nil, err
	}
	if o.was, err = os.Stat(o.real); err != nil {
		return nil, nil, err
	}
	path, clean := o.real, func() error { return nil }
	logs, err := o.logs()
	if err != nil {
		return nil, nil, err
	}
	if len(logs) > 0 {
		o.Progress("copying", 0, 1)
		clean = func() error { return os.RemoveAll(scratch) }
		if path, err = copySource(o.real, scratch, logs); err != nil {
			return nil, nil, errors.Join(err, clean())
		}
		o.step("source copied")
	}
	if f, err = openForeign(path, o.File); err != nil {
		return nil, nil, errors.Join(err, clean())
	}
	return f, func() error { return errors.Join(f.c.close(), clean()) }, nil
}

// logs lists the endings of the logs with content beside the source.
func (o *ImportOptions) logs() (list []string, err error) {
	for _, suffix := range []string{"-wal", "-journal"} {
		st, err := os.Lstat(o.real + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !st.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: %w: it is not a file", o.real+suffix, ErrForeign)
		}
		if st.Size() > 0 {
			list = append(list, suffix)
		}
	}
	return list, nil
}

// copySource copies a database and its logs to a folder of its own and has
// SQLite bring them together there.
func copySource(file, dir string, logs []string) (path string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	path = filepath.Join(dir, FileName)
	for _, suffix := range append([]string{""}, logs...) {
		if err := copyFile(file+suffix, path+suffix); err != nil {
			return "", err
		}
	}
	c, err := openConn(path, "rw", []string{"trusted_schema(off)", "synchronous(off)", "locking_mode(exclusive)"})
	if err != nil {
		return "", foreignError(file, err)
	}
	err = c.query(func(row) error { return nil }, "PRAGMA journal_mode = delete")
	return path, errors.Join(foreignError(file, err), c.close())
}

func copyFile(from, to string) (err error) {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// unused refuses a source that another process has open. In WAL mode SQLite
// holds a shared lock on the database for as long as it is open.
func (o *ImportOptions) unused() error {
	st, err := os.Stat(o.File)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s: %w: it is not a file", o.File, ErrForeign)
	}
	f, err := os.Open(o.File)
	if err != nil {
		return err
	}
	defer f.Close()
	const sharedFirst, sharedSize = 0x40000002, 510 // of SQLite's file format
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: sharedFirst, Len: sharedSize}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return nil // a file system without locks: the heartbeat has to do
	}
	return fmt.Errorf("%s: %w: process %d has it open; stop that relay first", o.File, ErrInUse, lock.Pid)
}

// unchanged refuses a source that a relay was started on in the meantime.
func (o *ImportOptions) unchanged() error {
	if err := o.unused(); err != nil {
		return fmt.Errorf("while it was being imported: %w", err)
	}
	now, err := os.Stat(o.real)
	if err != nil {
		return err
	}
	if !os.SameFile(now, o.was) || now.Size() != o.was.Size() || !now.ModTime().Equal(o.was.ModTime()) {
		return fmt.Errorf("%s: %w: it was written to while it was being imported; stop that relay first", o.File, ErrInUse)
	}
	return nil
}
