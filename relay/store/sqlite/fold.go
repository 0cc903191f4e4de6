package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	sqlite3 "modernc.org/sqlite/lib"
)

// Fold makes the database at path, which no process has open, one finished file:
// what its log or journal holds goes into it, and nothing stands beside it.
// A crash leaves the same store, folded or not, and so does an error that is
// Unwritable.
func Fold(path string) (err error) {
	if err := refuseForeign(path); err != nil {
		return err
	}
	if err := refuseFormat(path); err != nil {
		return err
	}
	c, err := openConn(path, "rw", []string{"synchronous(full)", "busy_timeout(5000)", "trusted_schema(off)"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(plain(err, path), c.close()) }()
	if err := c.query(func(r row) error {
		if r.int(0) != 0 {
			return ErrBusy
		}
		return nil
	}, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return err
	}
	mode := ""
	if _, err := c.one(func(r row) { mode = r.text(0) }, "PRAGMA journal_mode = delete"); err != nil {
		return err
	}
	if mode != "delete" {
		return fmt.Errorf("%w: its mode is %q", errNotFolded, mode)
	}
	return nil
}

var errNotFolded = errors.New("the log could not be folded into the database")

// refuseFormat refuses a database whose header asks for another SQLite than there
// is, which opens as if its file could not be written.
func refuseFormat(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var h [20]byte
	if _, err := f.ReadAt(h[:], 0); err == nil && (h[18] > 2 || h[19] > 2) {
		return fmt.Errorf("%s: %w: its header names a format that there is not", path, ErrDamaged)
	}
	return nil // what is too short for a header, others refuse
}

// Damaged reports whether err shows that what a file holds is at fault: it is
// damaged, or no store of ours. An error of the device, of an owner or of room
// tells nothing of that.
func Damaged(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return true
	}
	return errors.Is(err, ErrDamaged) || errors.Is(err, ErrNotAStore)
}

// Unwritable reports whether err is one of reaching a file, and not of what it
// holds: a device that fails or is full, a file or a folder of somebody else.
func Unwritable(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL:
		return true
	}
	for _, e := range []error{fs.ErrPermission, syscall.EROFS, syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, store.ErrFull, errNotFolded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Whose tells the mode and the owner of a file that cannot be opened, and who asks.
func Whose(path string) string { return whose(path) }

// RestoredPaths are the paths that MBX_RELAY_RESTORE_FROM restored into the
// store in dir, and when. The caller holds the store's lock, and nobody has the
// store open. Where there is no store there are none.
func RestoredPaths(dir string) (paths map[string]time.Time, err error) {
	exists, err := Exists(dir)
	if err != nil || !exists {
		return nil, err
	}
	return paths, stopped(dir, func(r reader) error {
		in, err := r.Info()
		if err != nil || in.Schema < 2 {
			return err
		}
		paths, err = restoredPaths(r)
		return err
	})
}

// InfoAtRest is what the store in dir knows of itself, whatever its key and its
// schema. The caller holds the store's lock, and nobody has the store open.
func InfoAtRest(dir string) (in store.Info, err error) {
	return in, stopped(dir, func(r reader) (err error) { in, err = r.Info(); return err })
}

// stopped reads a store that nobody has open, with what its log holds.
func stopped(dir string, fn func(reader) error) (err error) {
	path := filepath.Join(dir, FileName)
	if err := refuseForeign(path); err != nil {
		return err
	}
	c, err := openConn(path, "rw", []string{"query_only(on)", "busy_timeout(5000)", "trusted_schema(off)"}) // rw: a log is read only with an index beside it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(plain(err, path), c.close()) }()
	return fn(reader{c})
}

// MakeFolder makes a store's folder, with what is missing of the way to it, and
// makes each of them durable: a store in a folder that a power cut takes is lost.
func MakeFolder(dir string) error {
	st, err := os.Stat(dir)
	if err == nil && st.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := MakeFolder(parent); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil { // it has the words for what is no folder
		return err
	}
	if err := syncDir(parent); !errors.Is(err, fs.ErrPermission) { // one that only lets us write
		return err
	}
	return nil
}

// Sidecars are the files that may stand beside a database and belong to it.
func Sidecars(path string) (list []string, err error) {
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		switch _, err := os.Lstat(path + suffix); {
		case err == nil:
			list = append(list, path+suffix)
		case !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	return list, nil
}
