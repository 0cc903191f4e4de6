package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// closedHome is a home that no process has open.
func closedHome(t *testing.T) Options {
	t.Helper()
	o := Options{Home: filepath.Join(t.TempDir(), "alpha"), Now: func() time.Time { return t0 }}
	noError(t, Init(context.Background(), o, "alpha"))
	return o
}

// In these states a home can't be opened; each names what is wrong and what to do.
var brokenHomes = []struct {
	name  string
	opens bool // Open looks less closely, or later
	spoil func(t *testing.T, e *examiner)
}{
	{"no-home", false, func(t *testing.T, e *examiner) { noError(t, os.RemoveAll(e.o.Home)) }},
	{"no-host", false, func(t *testing.T, e *examiner) {
		noError(t, os.RemoveAll(e.o.Home))
		noError(t, os.Mkdir(e.o.Home, 0o700))
	}},
	{"home-is-a-file", false, func(t *testing.T, e *examiner) {
		noError(t, os.RemoveAll(e.o.Home))
		noError(t, os.WriteFile(e.o.Home, nil, 0o600))
	}},
	{"home-open-to-others", false, func(t *testing.T, e *examiner) { noError(t, os.Chmod(e.o.Home, 0o750)) }},
	{"home-not-writable", true, func(t *testing.T, e *examiner) {
		e.writable = func(path string) error {
			if path == e.o.Home {
				return unix.EACCES
			}
			return nil
		}
	}},
	{"read-only-file-system", true, func(t *testing.T, e *examiner) { e.writable = func(string) error { return unix.EROFS } }},
	{"config-missing", false, func(t *testing.T, e *examiner) { remove(t, e, configFile) }},
	{"config-damaged", false, func(t *testing.T, e *examiner) { fill(t, e, configFile, `{"v":1,`) }},
	{"config-readable-by-others", false, func(t *testing.T, e *examiner) {
		noError(t, os.Chmod(filepath.Join(e.o.Home, configFile), 0o644))
	}},
	{"keys-missing", false, func(t *testing.T, e *examiner) { remove(t, e, keysFile) }},
	{"keys-damaged", false, func(t *testing.T, e *examiner) { fill(t, e, keysFile, `{"v":1}`) }},
	{"keys-readable-by-others", false, func(t *testing.T, e *examiner) {
		noError(t, os.Chmod(filepath.Join(e.o.Home, keysFile), 0o640))
	}},
	{"keys-symlink", false, func(t *testing.T, e *examiner) {
		path := filepath.Join(e.o.Home, keysFile)
		noError(t, os.Rename(path, filepath.Join(e.o.Home, "elsewhere")))
		noError(t, os.Symlink("elsewhere", path))
	}},
	{"db-missing", false, func(t *testing.T, e *examiner) { remove(t, e, dbFile) }},
	{"db-empty", false, func(t *testing.T, e *examiner) { fill(t, e, dbFile, "") }},
	{"db-foreign", false, func(t *testing.T, e *examiner) { pragma(t, e, "application_id = 7") }},
	{"db-no-database", false, func(t *testing.T, e *examiner) { fill(t, e, dbFile, strings.Repeat("no database ", 1000)) }},
	{"db-newer", false, func(t *testing.T, e *examiner) { pragma(t, e, "user_version = 99") }},
	{"db-damaged", true, func(t *testing.T, e *examiner) {
		f := must(os.OpenFile(filepath.Join(e.o.Home, dbFile), os.O_WRONLY, 0))
		must(f.WriteAt([]byte(strings.Repeat("\xff", 4096)), 4*4096))
		noError(t, f.Close())
	}},
	{"db-readable-by-others", false, func(t *testing.T, e *examiner) {
		noError(t, os.Chmod(filepath.Join(e.o.Home, dbFile), 0o604))
	}},
	{"db-not-writable", true, func(t *testing.T, e *examiner) {
		e.writable = func(path string) error {
			if filepath.Base(path) == dbFile {
				return unix.EACCES
			}
			return nil
		}
	}},
	{"lock-symlink", true, func(t *testing.T, e *examiner) {
		noError(t, os.Symlink(keysFile, filepath.Join(e.o.Home, lockFile)))
	}},
	{"disk-full", true, func(t *testing.T, e *examiner) { e.free = func(string) (int64, error) { return diskFull - 1, nil } }},
}

func remove(t *testing.T, e *examiner, file string) {
	t.Helper()
	noError(t, os.Remove(filepath.Join(e.o.Home, file)))
}

func fill(t *testing.T, e *examiner, file, content string) {
	t.Helper()
	noError(t, os.WriteFile(filepath.Join(e.o.Home, file), []byte(content), 0o600))
}

func pragma(t *testing.T, e *examiner, set string) {
	t.Helper()
	d := must(openDB(context.Background(), e.o.Home, false, e.o.Now))
	must(d.writer.c.ExecContext(context.Background(), "PRAGMA "+set))
	noError(t, d.close())
}

func TestDoctorOnAHomeThatCannotBeUsed(t *testing.T) {
	for _, tt := range brokenHomes {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newExaminer(closedHome(t))
			e.free = func(string) (int64, error) { return 1 << 40, nil }
			fingerprint := ""
			if h, err := Open(context.Background(), e.o); err == nil {
				fingerprint = h.Key().Fingerprint()
				noError(t, h.Close())
			}
			tt.spoil(t, e)
			h, err := Open(context.Background(), e.o)
			if err == nil {
				noError(t, h.Close())
			}
			if tt.opens != (err == nil) {
				t.Errorf("open: got %v; want an error: %v", err, !tt.opens)
			}
			d := e.examine(context.Background())
			same(t, "healthy", d.Healthy, false)
			golden(t, tt.name, d, e.o.Home, "HOME", fingerprint, "OWN-KEY")
		})
	}
}

// A running host's database is read beside it, with what is not yet in the
// main file; nothing of it changes.
func TestDoctorChangesNothingOfAnOpenHome(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	atRelay(w, alpha, "hello")
	alpha.send(alpha, "to itself")
	before, commits := dump(alpha), must(alpha.db.changes())
	names := listing(t, alpha.opts.Home, false)
	hasCheck(t, alpha.doctor(), LevelInfo, "relay-mail", "1 message taken by the relay")
	same(t, "database", dump(alpha), before)
	same(t, "commits", must(alpha.db.changes()), commits)
	same(t, "files", listing(t, alpha.opts.Home, false), names)
}

// dump is all that host.db holds.
func dump(h *testHost) string {
	var b strings.Builder
	noError(h.w.t, h.db.read(context.Background(), func(t *tx) error {
		var tables []string
		err := t.each("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name", nil, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			tables = append(tables, name)
			return err
		})
		if err != nil {
			return err
		}
		for _, table := range tables {
			rows, err := t.c.c.QueryContext(context.Background(), "SELECT * FROM "+table)
			if err != nil {
				return err
			}
			columns := must(rows.Columns())
			for rows.Next() {
				row := make([]any, len(columns))
				for i := range row {
					row[i] = new(any)
				}
				if err := rows.Scan(row...); err != nil {
					return err
				}
				for i := range row {
					fmt.Fprintf(&b, "%s.%s = %v\n", table, columns[i], *row[i].(*any))
				}
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return err
			}
		}
		return nil
	}))
	return b.String()
}

// listing is every file of a folder with its mode and time, and with contents
// what is in it.
func listing(t *testing.T, dir string, contents bool) string {
	t.Helper()
	var b strings.Builder
	for _, entry := range must(os.ReadDir(dir)) {
		fi := must(entry.Info())
		if strings.HasSuffix(entry.Name(), "-shm") { // the locks of who reads: memory, not data
			continue
		}
		fmt.Fprintln(&b, entry.Name(), fi.Mode(), fi.Size(), fi.ModTime())
		if contents {
			fmt.Fprintf(&b, "%x\n", must(os.ReadFile(filepath.Join(dir, entry.Name()))))
		}
	}
	return b.String()
}

// Of a home that nobody has open Doctor leaves every byte as it is, also after
// a crash, when the newest commits are only in the log.
func TestDoctorChangesNoByte(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	atRelay(w, alpha, "hello")
	copyHome := func(name string) Options {
		o := alpha.opts
		o.Home = filepath.Join(t.TempDir(), name)
		// Another process: to close a file drops SQLite's locks of this one.
		noError(t, exec.Command("cp", "-Rp", alpha.opts.Home, o.Home).Run())
		return o
	}
	crashed, noIndex := copyHome("crashed"), copyHome("no-index")
	noError(t, os.Remove(filepath.Join(noIndex.Home, dbFile+"-shm")))
	closed := copyHome("closed")
	noError(t, must(Open(context.Background(), closed)).Close())
	if _, err := os.Stat(filepath.Join(closed.Home, dbFile+"-wal")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v; want no log beside a closed database", err)
	}
	for _, o := range []Options{closed, crashed, noIndex} {
		before := listing(t, o.Home, true)
		d := Doctor(context.Background(), o)
		hasCheck(t, d, LevelInfo, "relay-mail", "1 message taken by the relay")
		hasCheck(t, d, LevelOK, "database")
		if after := listing(t, o.Home, true); after != before {
			t.Errorf("%s: the home has changed: got\n%.2000s\nwant\n%.2000s", filepath.Base(o.Home), after, before)
		}
		h := must(Open(context.Background(), o))
		noError(t, errors.Join(h.db.check(context.Background()), h.Close()))
	}
	for _, tt := range brokenHomes {
		e := newExaminer(closedHome(t))
		tt.spoil(t, e)
		if fi, err := os.Stat(e.o.Home); err != nil || !fi.IsDir() {
			continue
		}
		before := listing(t, e.o.Home, true)
		e.examine(context.Background())
		if after := listing(t, e.o.Home, true); after != before {
			t.Errorf("%s: the home has changed", tt.name)
		}
	}
}

// What a daemon writes between two looks does not confuse a reader that took
// the database for a quiet one.
func TestDoctorReadsAgainWhenTheDatabaseMoved(t *testing.T) {
	t.Parallel()
	e := newExaminer(closedHome(t))
	calls := 0
	noError(t, e.readDB(context.Background(), filepath.Join(e.o.Home, dbFile), func(d *db) error {
		if calls++; calls == 1 {
			h := must(Open(context.Background(), e.o))
			must(h.NewPairToken(context.Background(), time.Minute))
			noError(t, h.Close())
		}
		return nil
	}))
	same(t, "calls", calls, 2)
}
