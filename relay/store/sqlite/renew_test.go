package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// An error of the store that is replaced is known from one of what is made of the
// backup, and a damaged store from one that was only not reached.
func TestRenewTellsWhoseErrorItIs(t *testing.T) {
	t.Parallel()
	undecodable := func(tx store.Tx) error {
		return tx.(*txOfTest).sql("INSERT OR REPLACE INTO state (name, value) VALUES ('restored_paths', '[1]')")
	}
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte(strings.Repeat("junk", 4000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name              string
		before, after     story
		change            func(copied, current *string, r *Renewal)
		replaced, damaged bool
	}{
		{"junk", hosts, nil, func(_, current *string, _ *Renewal) { *current = junk }, true, true},
		{"missing", hosts, nil, func(_, current *string, _ *Renewal) { *current += ".none" }, true, false},
		{"a state that cannot be decoded", hosts, undecodable, nil, true, true},
		{"the same in the backup", all(hosts, undecodable), noDenials, nil, false, true},
		{"the backup's copy is gone", hosts, nil, func(copied, _ *string, _ *Renewal) { *copied += ".none" }, false, false},
		{"the device of the new one", hosts, nil, func(_, _ *string, r *Renewal) {
			r.Finish = func(Carried) ([]byte, error) { return nil, syscall.EIO }
		}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			copied, current := replaced(t, c.before, c.after)
			r := Renewal{Epoch: "e", At: restored}
			if c.change != nil {
				c.change(&copied, &current, &r)
			}
			_, err := Renew(t.Context(), copied, current, r)
			if err == nil || errors.Is(err, ErrReplaced) != c.replaced || Damaged(err) != c.damaged {
				t.Errorf("got %v: of the replaced store %v, damaged %v; want %v, %v", err, errors.Is(err, ErrReplaced), Damaged(err), c.replaced, c.damaged)
			}
		})
	}
}

// What SQLite itself answers counts as what it is.
func TestDamagedAndUnwritable(t *testing.T) {
	t.Parallel()
	fresh := func(t *testing.T) string { return another(t, early, hosts) }
	for _, c := range []struct {
		name               string
		fail               func(t *testing.T) error
		damaged, unreached bool
	}{
		{"read-only", func(t *testing.T) error {
			c, err := openConn(fresh(t), "ro", nil)
			if err != nil {
				return err
			}
			defer c.close()
			_, err = c.exec("DELETE FROM state")
			return plain(err, "x")
		}, false, true},
		{"cannot be opened", func(t *testing.T) error {
			_, err := openConn(filepath.Join(t.TempDir(), "none", "x.db"), "rw", []string{"synchronous(full)"})
			return err
		}, false, true},
		{"no permission", func(*testing.T) error { return &os.PathError{Op: "open", Path: "x", Err: syscall.EACCES} }, false, true},
		{"the device", func(*testing.T) error { return &os.PathError{Op: "read", Path: "x", Err: syscall.EIO} }, false, true},
		{"a page of nothing", func(t *testing.T) error {
			path := fresh(t)
			b := readFile(t, path)
			for i := pageSize; i < len(b); i++ {
				b[i] = 0x5a
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := OpenFile(path)
			if err == nil {
				err = errors.Join(f.Check(t.Context()), f.Close())
			}
			return err
		}, true, false},
		{"a format that there is not", func(t *testing.T) error {
			path := fresh(t)
			b := readFile(t, path)
			b[18] = 9
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			return Fold(path)
		}, true, false},
		{"a stranger's error", func(*testing.T) error { return errors.New("disk I/O error: malformed") }, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if err := c.fail(t); err == nil || Damaged(err) != c.damaged || Unwritable(err) != c.unreached {
				t.Errorf("got %v: damaged %v, unwritable %v; want %v, %v", err, Damaged(err), Unwritable(err), c.damaged, c.unreached)
			}
		})
	}
}

// Backups and replaced stores of any earlier schema.
func TestCarryOlderSchemas(t *testing.T) {
	t.Parallel()
	for _, dump := range releasedSchemas(t) {
		t.Run("backup "+filepath.Base(dump), func(t *testing.T) {
			copied := foldedAt(t, restoreDump(t, dump))
			current := another(t, late, all(enrol("delta"), revoke("delta", late), stated("new", "1")))
			s, done := renewed(t, copied, current, Renewal{})
			if done.Revocations != 1 {
				t.Errorf("got %+v; want the revocation", done)
			}
			goesOn(t, s)
		})
		t.Run("replaced "+filepath.Base(dump), func(t *testing.T) {
			copied, _ := replaced(t, all(hosts, logged("backup", "{}", early), ran("backup", early), started("drill", "h", early), stated("kept", "1")), nil)
			s, _ := renewed(t, copied, foldedAt(t, restoreDump(t, dump)), Renewal{})
			looks(t, s, func(r store.Reader) error {
				_, err := r.LastRun("drill", store.OutcomeCrashed)
				_, err2 := r.LastRun("backup", store.OutcomeOK)
				_, err3 := r.State("kept")
				return errors.Join(err, err2, err3)
			})
		})
	}
}

// Whatever statement fails, the copy is what it was, and the error is told.
func TestRenewAllOrNothing(t *testing.T) {
	t.Parallel()
	copied, current := replaced(t, all(hosts, pushed("beta", "alpha", "m1")), all(rotated("beta", "beta2", late), revoke("gamma", late)))
	was := readFile(t, copied)
	boom := errors.New("no receipt")
	for name, fail := range map[string]func() error{
		"the receipt": func() error {
			_, err := Renew(t.Context(), copied, current, Renewal{Epoch: "e", At: restored, Finish: func(Carried) ([]byte, error) { return nil, boom }})
			if !errors.Is(err, boom) {
				t.Errorf("got %v; want the receipt's error", err)
			}
			return err
		},
		"an early end": func() error {
			ctx, stop := context.WithCancel(t.Context())
			_, err := Renew(ctx, copied, current, Renewal{Epoch: "e", At: restored, Finish: func(Carried) ([]byte, error) { stop(); return []byte("{}"), nil }})
			return err
		},
		"a receipt that is none": func() error {
			_, err := Renew(t.Context(), copied, current, Renewal{Epoch: "e", At: restored, Finish: func(Carried) ([]byte, error) { return []byte("{"), nil }})
			return err
		},
		"a current store that is none": func() error {
			junk := filepath.Join(t.TempDir(), "junk")
			if err := os.WriteFile(junk, []byte(strings.Repeat("junk", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Renew(t.Context(), copied, junk, Renewal{Epoch: "e", At: restored})
			return err
		},
	} {
		if err := fail(); err == nil {
			t.Errorf("%s: got nil; want an error", name)
		}
		if !slices.Equal(was, readFile(t, copied)) {
			t.Errorf("%s: the copy has changed", name)
		}
		if list, err := Sidecars(copied); err != nil || len(list) > 0 {
			t.Errorf("%s: got %v, %v beside the copy; want nothing", name, list, err)
		}
	}
}

// Fold and RestoredPaths read what a killed process left.
func TestFoldTakesTheLogIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpen(t, testOptions(dir))
	tell(t, s, all(pushed("beta", "alpha", "m1"), stated("restored_paths", `{"/b/one.db":"2026-10-02T12:00:00Z"}`)))
	killed := t.TempDir()
	for _, suffix := range []string{"", "-wal"} {
		if err := os.WriteFile(filepath.Join(killed, FileName+suffix), readFile(t, filepath.Join(dir, FileName+suffix)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if paths, err := RestoredPaths(killed); err != nil || !paths["/b/one.db"].Equal(early) {
		t.Errorf("restored paths: got %v, %v; want the one", paths, err)
	}
	path := foldedAt(t, killed)
	if list, err := Sidecars(path); err != nil || len(list) > 0 {
		t.Errorf("got %v, %v beside it; want nothing", list, err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.View(func(r store.Reader) error { wantQueue(t, r, "beta", "m1"); return nil }); err != nil {
		t.Error(err)
	}
	if paths, err := RestoredPaths(t.TempDir()); err != nil || len(paths) != 0 {
		t.Errorf("no store: got %v, %v; want none", paths, err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("junk", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Fold(path); !errors.Is(err, ErrNotAStore) {
		t.Errorf("junk: got %v; want ErrNotAStore", err)
	}
	if _, err := RestoredPaths(killed); !errors.Is(err, ErrNotAStore) {
		t.Errorf("junk: got %v; want ErrNotAStore", err)
	}
}

// However long a restore takes, a start soon after it finds a fresh heartbeat.
func TestRenewBeatsAtItsEnd(t *testing.T) {
	t.Parallel()
	copied, current := replaced(t, hosts, nil)
	now := restored
	s, _ := renewed(t, copied, current, Renewal{At: restored, Now: func() time.Time { return now },
		Finish: func(Carried) ([]byte, error) { now = now.Add(time.Hour); return []byte("{}"), nil }})
	looks(t, s, func(r store.Reader) error {
		in, err := r.Info()
		if err != nil || !in.Heartbeat.Equal(restored.Add(time.Hour)) {
			t.Errorf("got a heartbeat of %s, %v; want the time of the end", in.Heartbeat, err)
		}
		log, err := r.Log("restore", 0, 1)
		if err != nil || len(log) != 1 || !log[0].At.Equal(restored) {
			t.Errorf("got %v, %v; want the restore logged at its beginning", log, err)
		}
		return nil
	})
}

// An end of the context is told as that, and not as a fault of either store.
func TestRenewEndsWithItsContext(t *testing.T) {
	t.Parallel()
	copied, current := replaced(t, all(hosts, pushed("beta", "alpha", "m1")), all(revoke("gamma", late), pushed("beta", "alpha", "m2")))
	was := readFile(t, copied)
	for _, what := range []string{"before", "in its receipt"} {
		ctx, stop := context.WithCancel(t.Context())
		if what == "before" {
			stop()
		}
		_, err := Renew(ctx, copied, current, Renewal{Epoch: "e", At: restored, Finish: func(Carried) ([]byte, error) { stop(); return []byte("{}"), nil }})
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrReplaced) || Damaged(err) {
			t.Errorf("%s: got %v; want context.Canceled and nothing else", what, err)
		}
		if !slices.Equal(was, readFile(t, copied)) {
			t.Errorf("%s: the copy has changed", what)
		}
	}
}

// What is made of a file ends with the context in the middle of its rows, and so
// does a long write.
func TestStatementsEndWithTheContext(t *testing.T) {
	t.Parallel()
	c, err := openConn(another(t, early, hosts), "rw", renewPragmas)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	const numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
	for what, run := range map[string]func(stop func()) error{
		"rows": func(stop func()) error { return c.query(func(row) error { stop(); return nil }, numbers+"i FROM n") },
		"a write": func(stop func()) error {
			time.AfterFunc(time.Millisecond, stop)
			_, err := c.execLong("INSERT INTO state (name, value) " + numbers + "'n' || i, '1' FROM n")
			return err
		},
	} {
		ctx, stop := context.WithCancel(t.Context())
		if err := c.during(ctx, func() error { return run(stop) }); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v; want context.Canceled", what, err)
		}
		stop()
		c.failed = nil
	}
}

// A store's folder is made with the way to it, for its owner alone.
func TestMakeFolder(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	writeFile(t, filepath.Join(base, "file"), nil)
	for _, c := range []struct {
		dir  string
		made bool
	}{{"one/two/three", true}, {"one/two/three", true}, {"one", true}, {"file", false}, {"file/two", false}} {
		dir := filepath.Join(base, c.dir)
		if err := MakeFolder(dir); (err == nil) != c.made {
			t.Errorf("%s: got %v; want it made %v", c.dir, err, c.made)
		}
		if st, err := os.Stat(dir); c.made && (err != nil || st.Mode() != os.ModeDir|0o700) {
			t.Errorf("%s: got %v, %v; want a folder of mode 0700", c.dir, st, err)
		}
	}
}
