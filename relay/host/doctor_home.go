package host

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
)

// Room on the home's device.
const (
	diskFull = 1 << 20
	diskLow  = 128 << 20
)

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// mayWrite asks without opening: to close a file drops this process's locks on
// it, SQLite's among them.
func mayWrite(path string) error { return unix.Access(path, unix.W_OK) }

// checkHome reports whether there is a home to look into.
func (e *examiner) checkHome() bool {
	dir := e.o.Home
	switch err := checkHome(dir); {
	case errors.Is(err, ErrNoHome):
		e.fail("home", dir+" is not there", "make a host with agentmbx init, or set MBX_HOME to its home")
		return false
	case err != nil && notOurs(err):
		e.fail("home", oneLine(err), "run agentmbx as the user who owns the home")
		return false
	case err != nil:
		e.failed("home", err, "set MBX_HOME to the folder of a host")
		return false
	}
	if _, err := os.Lstat(filepath.Join(dir, configFile)); errors.Is(err, os.ErrNotExist) {
		if !e.remains() {
			e.fail("home", dir+" has no host", "make one with agentmbx init, or set MBX_HOME to its home")
			return false
		}
		e.fail("home", dir+" has no "+configFile, "put back a copy of it; or run agentmbx init with the host's name, which keeps the keys and the mail that are there")
		return true
	}
	if !e.mayWrite("home", dir) {
		return true
	}
	e.ok("home", dir)
	return true
}

// remains reports whether a home without a configuration has anything else.
func (e *examiner) remains() bool {
	for _, f := range []string{keysFile, dbFile} {
		if _, err := os.Lstat(filepath.Join(e.o.Home, f)); err == nil {
			return true
		}
	}
	return false
}

func (e *examiner) mayWrite(name, path string) bool {
	switch err := e.writable(path); {
	case err == nil:
		return true
	case errors.Is(err, unix.EROFS):
		e.fail(name, path+" is on a file system that can't be written", "mount it for writing")
	default:
		e.fail(name, fmt.Sprintf("%s can't be written by uid %d", path, os.Getuid()),
			"run agentmbx as the user who owns the home, or give it to this one: chown -R "+fmt.Sprint(os.Getuid())+" "+e.o.Home)
	}
	return false
}

// notOurs tells an error of the operating system, which says nothing about what to do.
func notOurs(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p)
}

func (e *examiner) failedFile(name string, err error) {
	if notOurs(err) {
		e.fail(name, oneLine(err), "check the owner and the modes of what is in the home")
		return
	}
	e.failed(name, err, "move it away and put back a copy of the right file")
}

func (e *examiner) checkConfig() {
	c, err := readConfig(e.o.Home)
	if errors.Is(err, ErrNoHome) {
		return // checkHome said so
	}
	if err != nil {
		e.failedFile("config", err)
		return
	}
	e.config = c
	e.ok("config", "host "+c.Host)
}

func (e *examiner) checkKeys() {
	k, err := readKeys(filepath.Join(e.o.Home, keysFile))
	if errors.Is(err, os.ErrNotExist) {
		err = errNoKeys
	}
	if err != nil {
		e.failedFile("keys", err)
		return
	}
	e.keys = k
	e.ok("keys", "host key "+k.key.Public().Fingerprint())
}

func (e *examiner) checkDisk() {
	free, err := e.free(e.o.Home)
	switch {
	case err != nil:
		e.warn("disk", "its free space can't be told: "+oneLine(err), "look at it with df")
	case free < diskFull:
		e.fail("disk", "the disk is full: nothing can be stored", "make room on the device of "+e.o.Home)
	case free < diskLow:
		e.warn("disk", fmt.Sprintf("%d MiB are free", free>>20), "make room on the device of "+e.o.Home)
	}
}

func (e *examiner) checkLock() {
	running, err := daemonRuns(e.o.Home)
	if err != nil {
		text, _, _ := strings.Cut(oneLine(err), ": ")
		e.fail("daemon", text, "remove "+lockFile+" while no daemon runs")
	}
	e.running, e.lockBad = running, err != nil
}

// checkDatabase looks at host.db itself, then at what is in it.
func (e *examiner) checkDatabase(ctx context.Context) {
	path := filepath.Join(e.o.Home, dbFile)
	before := e.checks
	err := e.readDB(ctx, path, func(d *db) error {
		e.checks = before[:len(before):len(before)] // it may be called again
		if err := d.read(ctx, rightSchema); err != nil {
			return err
		}
		if err := d.check(ctx); err != nil {
			return err
		}
		if e.mayWrite("database", path) {
			e.ok("database", dbFile+" is sound")
		}
		return d.read(ctx, e.checkContents)
	})
	if err == nil {
		return
	}
	e.checks = before
	for _, known := range []error{ErrForeignDB, ErrNewerDB, ErrDamagedDB} {
		if errors.Is(err, known) {
			err = known // without what SQLite adds
		}
	}
	e.failedFile("database", err)
}

func rightSchema(t *tx) error {
	version, err := schemaOf(t)
	if err == nil && version == 0 {
		err = ErrDamagedDB // an empty file, in a home that has a host
	}
	return err
}

// readDB calls fn with host.db open for reading only. Where no other process
// has it open, SQLite is told that nothing changes: it then makes no files of
// its own. If something did change, fn is called again.
func (e *examiner) readDB(ctx context.Context, path string, fn func(*db) error) error {
	if err := homefile.Check(path); errors.Is(err, os.ErrNotExist) {
		return ErrNoDB
	} else if err != nil {
		return err
	}
	for try := 0; ; try++ {
		quiet, before := stamp(path)
		err := openReading(ctx, path, quiet && try < 3, e.now, fn)
		_, after := stamp(path)
		if !quiet || before == after || try == 3 {
			return err
		}
	}
}

// stamp is how host.db looks from outside; quiet without a log beside it, which
// is there as long as a process has the database open.
func stamp(path string) (quiet bool, s string) {
	if _, err := os.Lstat(path + "-wal"); errors.Is(err, os.ErrNotExist) {
		quiet = true
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return quiet, err.Error()
	}
	return quiet, fmt.Sprint(quiet, fi.Size(), fi.ModTime())
}

func openReading(ctx context.Context, path string, immutable bool, now time.Time, fn func(*db) error) (err error) {
	q := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "query_only(on)", "trusted_schema(off)", "temp_store(memory)"}}
	if immutable {
		q.Set("immutable", "1")
	}
	pool, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return err
	}
	d := &db{pool: pool, readers: make(chan *conn, 1), now: func() time.Time { return now }}
	defer func() { err = errors.Join(err, d.close()) }()
	c, err := d.connect(ctx)
	if err != nil {
		return err
	}
	d.readers <- c
	return fn(d)
}
