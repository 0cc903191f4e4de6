package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/agentmbx/agentmbx/relay/store"
	driverpkg "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Errors of opening a store that a command may test for.
var (
	ErrOtherKey    = errors.New("the store belongs to another relay key")
	ErrNewerSchema = errors.New("the store was written by a newer agentmbx")
	ErrNotAStore   = errors.New("not a store of this relay")
	ErrNoStore     = errors.New("there is no store")
	ErrNotAtRest   = errors.New("not a finished file")
	ErrDamaged     = errors.New("is damaged; restore a backup")
	ErrBusy        = errors.New("another program holds it open for writing")
)

// tagged is an error that is also another one, which its text does not tell.
type tagged struct {
	error
	also error
}

func (t *tagged) Unwrap() error        { return t.error }
func (t *tagged) Is(target error) bool { return target == t.also }

// also tags an error; nil stays nil.
func also(err, other error) error {
	if err == nil {
		return nil
	}
	return &tagged{err, other}
}

// code is the primary result code of a driver error, or 0.
func code(err error) int {
	var e *driverpkg.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// isFull reports whether a write found no room: in the database or its log, or
// in the log's index, which SQLite calls an I/O error.
func isFull(err error) bool {
	var e *driverpkg.Error
	return code(err) == sqlite3.SQLITE_FULL || errors.Is(err, syscall.ENOSPC) ||
		errors.As(err, &e) && e.Code() == sqlite3.SQLITE_IOERR_SHMSIZE
}

// plain turns a driver error into words that name the file, its owner and what
// to look at. SQLite's own text for a missing folder is "out of memory".
func plain(err error, path string) error {
	if err == nil {
		return nil
	}
	what := ""
	switch code(err) {
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%s: %w", path, store.ErrFull)
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_AUTH:
		what = "cannot be opened for writing" + whose(path)
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%s: %w: not an SQLite database", path, ErrNotAStore)
	case sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("%s: %w: %w", path, ErrDamaged, err)
	case sqlite3.SQLITE_IOERR:
		what = "the device failed a read or a write (or is full)"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%s: %w: %w", path, ErrBusy, err)
	default:
		return fmt.Errorf("%s: %w", path, err)
	}
	return fmt.Errorf("%s: %s: %w", path, what, err)
}

func whose(path string) string {
	for _, p := range []string{path, filepath.Dir(path)} {
		if st, err := os.Stat(p); err == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				return fmt.Sprintf(" (%s: mode %s, owner uid %d, our uid %d)", p, st.Mode(), sys.Uid, os.Getuid())
			}
		}
	}
	return fmt.Sprintf(" (%s does not exist)", filepath.Dir(path))
}
