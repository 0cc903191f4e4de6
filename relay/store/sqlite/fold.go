package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// Fold makes the database at path, which no process has open, one finished file:
// what its log or journal holds goes into it, and nothing stands beside it.
// A crash leaves the same store, folded or not.
func Fold(path string) (err error) {
	if err := refuseForeign(path); err != nil {
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
		return fmt.Errorf("the log could not be folded into the database: its mode is %q", mode)
	}
	return nil
}

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
