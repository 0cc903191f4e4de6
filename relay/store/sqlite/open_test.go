package sqlite

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var relayKey = storetest.Key("relay")

// testOptions are those of a store whose clock stands still and whose seqs
// begin at 1.
func testOptions(dir string) Options {
	now := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	return Options{Dir: dir, Key: relayKey, Now: func() time.Time { return now }, SeqNow: func() int64 { return 0 }, Free: plenty}
}

// mustOpen opens a store; the test's end checks and closes it.
func mustOpen(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { checkedClose(t, s) })
	return s
}

// checkedClose checks and closes a store, unless the test has closed it.
func checkedClose(t *testing.T, s *Store) {
	t.Helper()
	err := s.Check(context.Background())
	if errors.Is(err, store.ErrClosed) {
		return
	}
	if err != nil {
		t.Errorf("check before close: got %v; want a store that agrees with itself", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func mustInsert(t *testing.T, s *Store, target, id string) {
	t.Helper()
	if err := s.Update(t.Context(), inserting(target, id)); err != nil {
		t.Fatalf("insert %s: %v", id, err)
	}
}

// inserting queues an item as a push does: a retry changes nothing.
func inserting(target, id string) func(store.Tx) error {
	return func(tx store.Tx) error {
		return push(tx, storetest.Mail(storetest.Key(target), storetest.Key("s"), id, 200))
	}
}

func push(tx store.Tx, it store.Item) error {
	_, err := tx.Dedup(it.Sender, it.ID, it.Target)
	if errors.Is(err, store.ErrNotFound) {
		_, err = tx.Insert(it)
	}
	return err
}

func queued(t *testing.T, s *Store, target string) (ids []string) {
	t.Helper()
	if err := s.View(t.Context(), func(r store.Reader) error {
		return r.Page(storetest.Key(target), 0, 1<<30, func(it store.Item) bool { ids = append(ids, it.ID); return true })
	}); err != nil {
		t.Fatalf("page: %v", err)
	}
	return ids
}

func TestFilesArePrivate(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"new folder", "empty folder, open to all"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "deep", "store")
			if name != "new folder" {
				if err := os.MkdirAll(dir, 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(dir, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			s := mustOpen(t, testOptions(dir))
			mustInsert(t, s, "a", "1")
			want := map[string]fs.FileMode{
				".": 0o700, FileName: 0o600, FileName + "-wal": 0o600, FileName + "-shm": 0o600, lockName: 0o600, reserveName: 0o600,
			}
			for name, mode := range want {
				if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != mode {
					t.Errorf("%s: got %v, %v; want mode %o", name, st, err, mode)
				}
			}
			for _, e := range dirEntries(t, dir) {
				if _, ok := want[e]; !ok {
					t.Errorf("got a file %s; want none but %v", e, slices.Sorted(maps.Keys(want)))
				}
			}
		})
	}
}

func dirEntries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestForeignFolderKeepsItsMode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "someone-elses"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, testOptions(dir))
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("got %v, %v; want mode 0755", st.Mode(), err)
	}
}

func TestPragmas(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testOptions(t.TempDir()))
	read := func(c *conn, pragma string) (v any) {
		if _, err := c.one(func(r row) { v = r[0] }, "PRAGMA "+pragma); err != nil {
			t.Errorf("pragma %s: %v", pragma, err)
		}
		return v
	}
	compare := func(which string, c *conn, want map[string]any) {
		for pragma, w := range want {
			if got := read(c, pragma); got != w {
				t.Errorf("%s: %s: got %v; want %v", which, pragma, got, w)
			}
		}
	}
	if err := s.send(t.Context(), &call{direct: func(c *conn) error {
		compare("writer", c, map[string]any{
			"auto_vacuum": int64(2), "page_size": int64(8192), "journal_mode": "wal", "synchronous": int64(2), "application_id": int64(applicationID),
			"foreign_keys": int64(1), "trusted_schema": int64(0),
		})
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if err := s.View(t.Context(), func(r store.Reader) error {
		c := r.(reader).c
		compare("reader", c, map[string]any{"query_only": int64(1), "journal_mode": "wal", "trusted_schema": int64(0)})
		if _, err := c.exec("DELETE FROM meta"); err == nil {
			t.Error("a write on a reader: got nil; want an error")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestFreedPagesGoBack(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testOptions(t.TempDir()))
	a := storetest.Key("a")
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for _, id := range []string{"1", "2", "3", "4"} {
			if _, err := tx.Insert(storetest.Mail(a, storetest.Key("s"), id, 300_000)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	full, err := s.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), func(tx store.Tx) error { _, err := tx.AckThrough(a, 4); return err }); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if z, err := s.Size(t.Context()); err != nil || z.Data > full.Data/2 {
		t.Errorf("got %d bytes, %v after all was acked; want less than half of %d", z.Data, err, full.Data)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	own := t.TempDir()
	s := mustOpen(t, testOptions(own))
	mustInsert(t, s, "a", "1")
	checkedClose(t, s)
	ownBytes := readFile(t, filepath.Join(own, FileName))

	// change makes a store's file over by SQL, in the rollback form that other
	// programs use.
	made := func(path string, sql ...string) []byte {
		c, err := openConn(path, "rwc", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range append(sql, "PRAGMA journal_mode=DELETE") {
			if err := c.query(func(row) error { return nil }, q); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
		}
		if err := c.close(); err != nil {
			t.Fatal(err)
		}
		return readFile(t, path)
	}
	newer := filepath.Join(t.TempDir(), FileName)
	writeFile(t, newer, ownBytes)
	other := storetest.Key("other relay")
	tests := []struct {
		name      string
		file      []byte
		key       wire.PublicKey
		want      error
		text      string
		unchanged bool
	}{
		{"another key", ownBytes, other, ErrOtherKey, other.Fingerprint(), false},
		{"a newer schema", made(newer, "UPDATE meta SET v = v + 1 WHERE k = 'schema_version'"), relayKey, ErrNewerSchema, "newer binary", false},
		{"another program's database", made(filepath.Join(t.TempDir(), "x"), "CREATE TABLE users (id INTEGER)", "INSERT INTO users VALUES (1)"),
			relayKey, ErrNotAStore, "another program's", true},
		{"another program's empty database with its id", made(filepath.Join(t.TempDir(), "x"), "PRAGMA application_id = 7", "VACUUM"),
			relayKey, ErrNotAStore, "another program's", true},
		{"a text", []byte(strings.Repeat("these are my notes\n", 1000)), relayKey, ErrNotAStore, "not an SQLite database", true},
		{"a short text", []byte("notes"), relayKey, ErrNotAStore, "not an SQLite database", true},
		{"half a header", []byte("SQLite format 3\x00"), relayKey, ErrNotAStore, "not an SQLite database", true},
		{"a text, without a key", []byte("notes"), wire.PublicKey{}, ErrNotAStore, "not an SQLite database", true},
		{"an empty file, without a key", nil, wire.PublicKey{}, ErrNoStore, "relay serve", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, FileName)
			writeFile(t, path, tt.file)
			o := testOptions(dir)
			o.Key = tt.key
			s, err := Open(t.Context(), o)
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), dir) ||
				strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v; want %v, one line with %q and the place", err, tt.want, tt.text)
			}
			if strings.Contains(err.Error(), tt.key.String()) && !tt.key.IsZero() {
				t.Errorf("got %q; want no key in it", err)
			}
			if tt.unchanged {
				if !bytes.Equal(readFile(t, path), tt.file) {
					t.Error("the file was changed; want its bytes as they were")
				}
				for _, e := range dirEntries(t, dir) {
					if e != FileName && e != lockName {
						t.Errorf("got a file %s; want none but the lock", e)
					}
				}
			}
			// Nothing holds the folder any more.
			_, held, err := ReadHolder(dir)
			if held || err != nil {
				t.Errorf("lock: got held %v, %v; want it free", held, err)
			}
		})
	}
	t.Run("its own key and none open it still", func(t *testing.T) {
		for _, key := range []wire.PublicKey{relayKey, {}} {
			o := testOptions(own)
			o.Key = key
			s := mustOpen(t, o)
			if got := queued(t, s, "a"); !slices.Equal(got, []string{"1"}) {
				t.Errorf("got %v; want the item", got)
			}
			checkedClose(t, s)
		}
	})
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutKeyNothingIsMade(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{parent, filepath.Join(parent, "not", "there")} {
		o := testOptions(dir)
		o.Key = wire.PublicKey{}
		if _, err := Open(t.Context(), o); !errors.Is(err, ErrNoStore) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v; want ErrNoStore with the folder", dir, err)
		}
	}
	if got := dirEntries(t, parent); len(got) != 0 {
		t.Errorf("got %v; want nothing made", got)
	}
	if st, err := os.Stat(parent); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("got mode %v, %v; want it as it was", st.Mode(), err)
	}
}

// A crash may leave any of these of a store that was just being made.
func TestHalfMadeStoreIsCompleted(t *testing.T) {
	t.Parallel()
	header := filepath.Join(t.TempDir(), "h")
	c, err := openConn(header, "rwc", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range newStore {
		if err := c.query(func(row) error { return nil }, q); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string][]byte{"an empty file": {}, "a header alone": readFile(t, header)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, FileName), file)
			if exists, err := Exists(dir); exists != (len(file) > 0) || err != nil {
				t.Errorf("exists: got %v, %v; want it of a file with bytes", exists, err)
			}
			s := mustOpen(t, testOptions(dir))
			mustInsert(t, s, "a", "1")
			if err := s.View(t.Context(), func(r store.Reader) error {
				in, err := r.Info()
				if in.RelayKey != relayKey || in.Epoch == "" {
					t.Errorf("got %+v; want a store of the key", in)
				}
				vacuum, err2 := r.(reader).pragma("auto_vacuum")
				page, err3 := r.(reader).pragma("page_size")
				if vacuum != 2 || page != 8192 {
					t.Errorf("got auto_vacuum %d, page_size %d; want 2 and 8192", vacuum, page)
				}
				return errors.Join(err, err2, err3)
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The first commit of a store may stand in its log alone when it is killed:
// the file's own header then names no program.
func TestStoreInItsLogAloneIsOurs(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testOptions(t.TempDir()))
	mustInsert(t, s, "a", "1")
	dir := t.TempDir() // what a kill at this moment leaves
	for _, suffix := range []string{"", "-wal"} {
		writeFile(t, filepath.Join(dir, FileName+suffix), readFile(t, s.path+suffix))
	}
	again := mustOpen(t, testOptions(dir))
	if got := queued(t, again, "a"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v; want the item", got)
	}
}

func TestSchemaFilesAreInOrder(t *testing.T) {
	t.Parallel()
	steps, err := migrations()
	if err != nil || len(steps) < 1 {
		t.Fatalf("got %d steps, %v; want the schema", len(steps), err)
	}
	entries, err := fs.ReadDir(schemaFiles, "schema")
	if err != nil || len(entries) != len(steps) {
		t.Errorf("got %d files, %v; want one a step", len(entries), err)
	}
	s := mustOpen(t, testOptions(t.TempDir()))
	if err := s.View(t.Context(), func(r store.Reader) error {
		in, err := r.Info()
		if in.Schema != len(steps) {
			t.Errorf("got schema %d; want %d", in.Schema, len(steps))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestSecondOpenWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpen(t, testOptions(dir))
	o := testOptions(dir)
	_, err := Open(t.Context(), o)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Holder.PID != os.Getpid() {
		t.Errorf("without waiting: got %v; want a *LockedError that names this process", err)
	}
	mustInsert(t, s, "a", "1") // and it did no harm
	o.LockWait = time.Minute
	told := 0
	o.Waiting = func(h Holder) {
		told++
		if h.PID != os.Getpid() {
			t.Errorf("waiting for %+v; want this process", h)
		}
		checkedClose(t, s)
	}
	again := mustOpen(t, o)
	if got := queued(t, again, "a"); told != 1 || !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v, told %d times; want the item, told once", got, told)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		have, want string
		ok         bool
	}{{"3.51.3", "3.51.3", true}, {"3.51.2", "3.51.3", false}, {"3.54.1", "3.51.3", true}, {"3.6.9", "3.51.3", false}, {"4.0.0", "3.51.3", true}, {"x", "3.51.3", false}} {
		if got := atLeast(tt.have, tt.want); got != tt.ok {
			t.Errorf("%s for %s: got %v; want %v", tt.have, tt.want, got, tt.ok)
		}
	}
}

// Opening a store writes nothing to it: a start on a full disk has no room to.
func TestOpenWritesNothing(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testOptions(t.TempDir()))
	mustInsert(t, s, "a", "1")
	checkedClose(t, s)
	before := readFile(t, s.path)
	again := mustOpen(t, testOptions(s.dir))
	if st, err := os.Stat(s.path + "-wal"); err != nil || st.Size() != 0 {
		t.Errorf("log after an open: got %v, %v; want it empty", st, err)
	}
	checkedClose(t, again)
	if !bytes.Equal(readFile(t, s.path), before) {
		t.Error("the file was changed by an open; want its bytes as they were")
	}
}
