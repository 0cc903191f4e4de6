package backup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The store becomes the backup with what must not be lost, the replaced one is
// kept, and the command that goes back works.
func TestE1_RestoreAndRollback(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	old := whatStands(t, dir)
	r, err := restoreInto(t, dir, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Carried; c.Revocations != 1 || c.SenderLists != 1 || c.SeqFloors != 1 || c.EncAds != 0 || c.EncAdRecords != 0 || c.Held != 1 || r.NewerMail != 1 {
		t.Errorf("carried: got %+v, %d newer; want one revocation, list, floor, held item and newer message", c, r.NewerMail)
	}
	if r.From != old.epoch || r.To == old.epoch || r.BackupEpoch != old.epoch || r.AgeSeconds != 48*3600 || r.Before == nil || r.Before.Items != 22 || r.After.Items != 21 {
		t.Errorf("got %+v; want the epochs, the age and the counts of both", r)
	}
	now := whatStands(t, dir)
	if now.epoch != r.To || now.restores != 1 || now.held != 2 || now.contents == old.contents {
		t.Errorf("got %+v; want the receipt's epoch, the restore in the log, both held items", now)
	}
	if got := sorted(snapshot(t, dir)); !slices.Equal(got, []string{"relay.db", "relay.key", "relay.lock", "reserve",
		"rollback/" + filepath.Base(r.Rollback), "rollback/" + filepath.Base(r.Rollback) + ".json"}) {
		t.Errorf("got %q in the folder; want the store, the replaced one and nothing else", got)
	}
	for path, mode := range map[string]fs.FileMode{r.Rollback: 0o600, r.Rollback + ".json": 0o600, filepath.Dir(r.Rollback): 0o700, filepath.Join(dir, "relay.db"): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: got %v, %v; want mode %o", path, st.Mode(), err, mode)
		}
	}
	rep, err := Verify(t.Context(), r.Rollback, Want{Key: relayKey})
	if err != nil || !rep.Good || rep.SHA256 != r.RollbackSHA || rep.Bytes != r.RollbackBytes {
		t.Errorf("rollback: got %v, %s, %v; want a good file with the hash that was told", rep.Fault(), rep.SHA256, err)
	}
	if want := "agentmbx relay restore " + r.Rollback + " --store-dir " + dir; r.Undo != want {
		t.Errorf("undo: got %q; want %q", r.Undo, want)
	}
	// The relay opens it, serves, and takes its backup; then the way back.
	s := openStore(t, dir)
	update(t, s, func(tx store.Tx) error { return tx.AppendLog(day2, "backup", []byte("{}")) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	back, err := restoreInto(t, dir, r.Rollback, nil)
	if err != nil {
		t.Fatal(err)
	}
	if back.From != r.To || back.Carried.Revocations != 0 || back.NewerMail != 0 {
		t.Errorf("rollback: got from %s, %+v; want %s and no revocation", back.From, back.Carried, r.To)
	}
	if again := whatStands(t, dir); again.held != old.held || again.restores != 2 || again.epoch == old.epoch {
		t.Errorf("got %+v; want what stood before, under a third epoch", again)
	}
}

func TestRestoreIntoANewFolder(t *testing.T) {
	t.Parallel()
	_, file := lostMail(t)
	for name, make := range map[string]func(dir string){
		"empty":             func(string) {},
		"a store not begun": func(dir string) { mustWrite(t, filepath.Join(dir, "relay.db"), nil) },
		"a log alone":       func(dir string) { mustWrite(t, filepath.Join(dir, "relay.db-wal"), []byte("left")) },
		"lost+found":        func(dir string) { _ = os.Mkdir(filepath.Join(dir, "lost+found"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			make(dir)
			r, err := restoreInto(t, dir, file, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.From != "" || r.Before != nil || r.Undo != "" || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "no store to carry") {
				t.Errorf("got %+v; want a receipt without an old store, and a warning", r)
			}
			if now := whatStands(t, dir); now.epoch != r.To {
				t.Errorf("got %+v; want the receipt's epoch", now)
			}
			if name == "a log alone" {
				if b := mustRead(t, r.Rollback+"-wal"); string(b) != "left" {
					t.Errorf("the log: got %q; want it set aside", b)
				}
			}
			if err := openStore(t, dir).Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A preview tells the same and leaves every byte.
func TestPreviewChangesNothing(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	was, entries := snapshot(t, dir), names(t, dir)
	r, err := withLock(t, dir, file, Preview, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := snapshot(t, dir)
	now["relay.lock"] = was["relay.lock"] // who has it now
	if !slices.Equal(names(t, dir), entries) {
		t.Errorf("got %q in the folder; want %q", names(t, dir), entries)
	}
	for name, b := range was {
		if now[name] != b {
			t.Errorf("%s has changed", name)
		}
	}
	did, err := restoreInto(t, copyDir(t, dir), file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Carried.Revocations != 1 || r.After != did.After || *r.Before != *did.Before || r.NewerMail != did.NewerMail || len(r.Warnings) != len(did.Warnings) {
		t.Errorf("preview %+v; want what the restore did: %+v", r, did)
	}
	if r, err = withLock(t, t.TempDir(), file, Preview, nil); err != nil || r.Before != nil {
		t.Errorf("without a store: got %+v, %v; want a preview", r, err)
	}
}

// What is no backup, or not of this store, is refused in one line that says what
// to do, and nothing changes.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	bad := t.TempDir()
	at := func(name string, b []byte) string {
		path := filepath.Join(bad, name)
		mustWrite(t, path, b)
		return path
	}
	good := mustRead(t, file)
	if err := os.Symlink(file, filepath.Join(bad, "link")); err != nil {
		t.Fatal(err)
	}
	other := otherStore(t, secret("another relay").Public())
	otherFile := filepath.Join(bad, "other.db")
	if err := other.Copy(t.Context(), otherFile, nil); err != nil {
		t.Fatal(err)
	}
	newer := at("newer.db", good)
	run(t, newer, "PRAGMA user_version = 0", "UPDATE meta SET v = 99 WHERE k = 'schema_version'")
	undated := at("undated.db", good)
	run(t, undated, "PRAGMA user_version = 0", "UPDATE meta SET v = 999999999999999 WHERE k = 'heartbeat'")
	sealed := filepath.Join(bad, "sealed.age")
	f := folder(t, openStore(t, t.TempDir()))
	id := identity(t)
	f.Recipients = []age.Recipient{id.Recipient()}
	enc := filled(t, t.TempDir())
	if _, err := f.Create(t.Context(), enc, sealed, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file string
		change     func(o *RestoreOptions)
		want       error
		text       string
	}{
		{"missing", filepath.Join(bad, "none.db"), nil, fs.ErrNotExist, "no backup at"},
		{"a folder", bad, nil, ErrBad, "folder"},
		{"a link", filepath.Join(bad, "link"), nil, ErrBad, "symbolic link"},
		{"empty", at("empty.db", nil), nil, ErrBad, "empty"},
		{"cut off", at("cut.db", good[:len(good)/2]), nil, ErrBad, ""},
		{"junk", at("junk.db", []byte(strings.Repeat("junk", 4000))), nil, ErrBad, "not an SQLite database"},
		{"another relay's", otherFile, nil, sqlite.ErrOtherKey, secret("another relay").Public().Fingerprint()},
		{"a newer schema", newer, nil, ErrBad, "newer"},
		{"the store itself", filepath.Join(dir, "relay.db"), nil, ErrRefused, "the store itself"},
		{"encrypted, no identity", sealed, nil, ErrEncrypted, "identity"},
		{"encrypted, another identity", sealed, func(o *RestoreOptions) { o.Identities = []age.Identity{identity(t)} }, ErrBad, "with these identities"},
		{"no lock", file, func(o *RestoreOptions) { o.Lock = nil }, ErrRefused, "lock"},
		{"no room", file, func(o *RestoreOptions) { o.Free = func(string) (int64, error) { return 1 << 20, nil } }, ErrNoRoom, "make room"},
		{"another relay's key", file, func(o *RestoreOptions) { o.Key = secret("another relay").Public() }, sqlite.ErrOtherKey, relayKey.Fingerprint()},
		{"ended early", file, func(o *RestoreOptions) {
			o.Progress = func(string, int64, int64) {}
			o.step = func(name string, done bool) error {
				if name == "copying" {
					return context.Canceled
				}
				return nil
			}
		}, context.Canceled, "interrupted; the store is as it was"},
		{"no date", undated, nil, ErrBad, "times: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			for mode, do := range map[string]func(context.Context, RestoreOptions) (RestoreReceipt, error){"restore": Restore, "preview": Preview} {
				was, stood := snapshot(t, dir), whatStands(t, dir)
				_, err := withLock(t, dir, c.file, do, c.change)
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s: got %v; want %v with %q", mode, err, c.want, c.text)
				}
				if err != nil && strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: got %q; want one line", mode, err)
				}
				now := snapshot(t, dir)
				if _, folded := was["relay.db-wal"]; folded && now["relay.db-wal"] == "" {
					delete(was, "relay.db-wal") // it may be one file now
				}
				if !slices.Equal(sorted(was), sorted(now)) || whatStands(t, dir) != stood {
					t.Errorf("%s: got %q; want the folder as it was: %q", mode, sorted(now), sorted(was))
				}
			}
		})
	}
	if r, err := restoreInto(t, copyDir(t, dir), sealed, func(o *RestoreOptions) { o.Identities = []age.Identity{id} }); err != nil || r.After.Items != 21 {
		t.Errorf("with its identity: got %+v, %v; want it restored", r.After, err)
	}
}

// A current store of another key is never replaced; one that cannot be read, or
// that a relay without our lock may have, only with force.
func TestRestoreOverWhatStands(t *testing.T) {
	t.Parallel()
	base, file := lostMail(t)
	fresh := func(o *RestoreOptions) { o.HadLock, o.Now = false, func() time.Time { return day0.Add(time.Minute) } }
	junk := func(t *testing.T, dir string) {
		mustWrite(t, filepath.Join(dir, "relay.db"), []byte(strings.Repeat("junk", 4000)))
		mustWrite(t, filepath.Join(dir, "relay.db-shm"), []byte("index"))
	}
	damaged := func(t *testing.T, dir string) { // a counter that is wrong
		path := filepath.Join(dir, "relay.db")
		if err := sqlite.Fold(path); err != nil {
			t.Fatal(err)
		}
		run(t, path, "UPDATE totals SET value = value + 7 WHERE name = 'items'")
	}
	holed := func(t *testing.T, dir string) { // pages of nothing
		path := filepath.Join(dir, "relay.db")
		if err := sqlite.Fold(path); err != nil {
			t.Fatal(err)
		}
		b := mustRead(t, path)
		for i := 4 * 8192; i < len(b); i++ {
			b[i] = 0x5a
		}
		mustWrite(t, path, b)
	}
	for _, c := range []struct {
		name    string
		make    func(t *testing.T, dir string)
		change  func(o *RestoreOptions)
		want    error // without force
		forced  error
		text    string
		carried bool // with force
	}{
		{"junk", junk, nil, ErrRefused, nil, "--force", false},
		{"a wrong counter", damaged, nil, ErrRefused, nil, "--force", true},
		{"holes", holed, nil, ErrRefused, nil, "--force", false},
		{"a fresh heartbeat, no lock file", func(*testing.T, string) {}, fresh, ErrRefused, nil, "may be serving", true},
		{"another relay's store", func(t *testing.T, dir string) {
			o := otherStore(t, secret("another relay").Public())
			mustWrite(t, filepath.Join(dir, "relay.db-wal"), nil)
			if err := os.Remove(filepath.Join(dir, "relay.db")); err != nil {
				t.Fatal(err)
			}
			if err := o.Copy(t.Context(), filepath.Join(dir, "relay.db"), nil); err != nil {
				t.Fatal(err)
			}
		}, nil, sqlite.ErrOtherKey, sqlite.ErrOtherKey, "rekey", false},
		{"a newer schema", func(t *testing.T, dir string) {
			if err := sqlite.Fold(filepath.Join(dir, "relay.db")); err != nil {
				t.Fatal(err)
			}
			run(t, filepath.Join(dir, "relay.db"), "UPDATE meta SET v = 99 WHERE k = 'schema_version'")
		}, nil, sqlite.ErrNewerSchema, sqlite.ErrNewerSchema, "newer binary", false},
		{"a link", func(t *testing.T, dir string) {
			if err := errors.Join(os.Remove(filepath.Join(dir, "relay.db")), os.Symlink(file, filepath.Join(dir, "relay.db"))); err != nil {
				t.Fatal(err)
			}
		}, nil, ErrRefused, ErrRefused, "not a regular file", false},
		{"no key anywhere", junk, func(o *RestoreOptions) { o.Key = wire.PublicKey{} }, ErrRefused, ErrRefused, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := copyDir(t, base)
			c.make(t, dir)
			was := snapshot(t, dir)
			for _, do := range []func(context.Context, RestoreOptions) (RestoreReceipt, error){Preview, Restore} {
				_, err := withLock(t, dir, file, do, c.change)
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), restoreWork) {
					t.Errorf("got %v; want %v with %q", err, c.want, c.text)
				}
			}
			now := snapshot(t, dir)
			if now["relay.db"] != was["relay.db"] && c.name != "a fresh heartbeat, no lock file" { // which may be folded
				t.Error("relay.db has changed")
			}
			r, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
				if c.change != nil {
					c.change(o)
				}
				o.Force = true
			})
			if !errors.Is(err, c.forced) {
				t.Fatalf("with force: got %v; want %v", err, c.forced)
			}
			if c.forced != nil {
				return
			}
			if carried := r.Carried.Revocations == 1; carried != c.carried {
				t.Errorf("with force: got %+v; want carried %v", r.Carried, c.carried)
			}
			if st := whatStands(t, dir); st.epoch != r.To || st.restores != 1 {
				t.Errorf("with force: got %+v; want the restored store", st)
			}
			if left, err := sqlite.Sidecars(filepath.Join(dir, "relay.db")); err != nil || len(left) > 0 {
				t.Errorf("got %v, %v beside the store; want nothing", left, err)
			}
			if kept := mustRead(t, r.Rollback); c.name != "a fresh heartbeat, no lock file" && string(kept) != was["relay.db"] {
				t.Error("the replaced file is not kept as it was")
			} else if int64(len(kept)) != r.RollbackBytes {
				t.Errorf("rollback bytes: got %d; want %d", r.RollbackBytes, len(kept))
			}
			if _, ok := was["relay.db-shm"]; ok && string(mustRead(t, r.Rollback+"-shm")) != was["relay.db-shm"] {
				t.Error("what stood beside it is not kept with it")
			}
		})
	}
}

// Without a key of its own the current store says whose it is.
func TestRestoreByTheCurrentKey(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	noKey := func(o *RestoreOptions) { o.Key = wire.PublicKey{} }
	if r, err := restoreInto(t, dir, file, noKey); err != nil || r.Carried.Revocations != 1 {
		t.Errorf("got %+v, %v; want it restored", r.Carried, err)
	}
	_, err := restoreInto(t, t.TempDir(), file, noKey)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), relayKey.Fingerprint()) {
		t.Errorf("no store: got %v; want a refusal that names the key to bring", err)
	}
}

func TestRestoreConsumesItsPath(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	if _, err := restoreInto(t, dir, file, func(o *RestoreOptions) { o.Consume = true }); err != nil {
		t.Fatal(err)
	}
	if _, err := restoreInto(t, dir, file, nil); err != nil { // carried by the next restore, too
		t.Fatal(err)
	}
	paths, err := sqlite.RestoredPaths(dir)
	if err != nil || len(paths) != 1 || !paths[file].Equal(day2) {
		t.Errorf("got %v, %v; want the path and when", paths, err)
	}
}

func TestRestoreFromTheFuture(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	r, err := restoreInto(t, dir, file, func(o *RestoreOptions) { o.Now = func() time.Time { return day0.Add(-2 * time.Hour) } })
	if err != nil || !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "in the future") }) {
		t.Errorf("got %v, %v; want a warning and no more", r.Warnings, err)
	}
}

// The last replaced stores stay, and nothing that we do not know goes.
func TestRollbacksAreBounded(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	var made []string
	mustMkdir(t, filepath.Join(dir, rollbackFolder))
	for _, name := range []string{"relay-20200101T000000Z-abcdef01.db", "mine.db", "relay-20200101T000000Z-abcdef01.db.txt"} {
		mustWrite(t, filepath.Join(dir, rollbackFolder, name), []byte("of others"))
	}
	for range keepRollbacks + 2 {
		r, err := restoreInto(t, dir, file, nil) // the clock stands: names must differ all the same
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, filepath.Base(r.Rollback))
	}
	var kept []string
	for _, name := range names(t, filepath.Join(dir, rollbackFolder)) {
		if slices.Contains(made, name) {
			kept = append(kept, name)
		}
	}
	want := slices.Sorted(slices.Values(made[2:]))
	if slices.Sort(kept); !slices.Equal(kept, want) {
		t.Errorf("kept: got %q; want the newest: %q", kept, want)
	}
	if n := len(names(t, filepath.Join(dir, rollbackFolder))); n != 3+2*keepRollbacks {
		t.Errorf("got %d files; want those of others too", n)
	}
}

func mustMkdir(t testing.TB, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// What was verified is what is restored: a file that changes in between is not.
func TestRestoreOfAFileThatChanges(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	stood := whatStands(t, dir)
	_, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
		o.step = func(name string, done bool) error {
			if name == "copy" && !done {
				flip(t, file, int64(len(mustRead(t, file))-100), 1)
			}
			return nil
		}
	})
	if !errors.Is(err, ErrBad) || !strings.Contains(err.Error(), "changed while it was restored") || whatStands(t, dir) != stood {
		t.Errorf("got %v; want ErrBad, and the store as it was", err)
	}
}

// Where the file system gives a file no second name, the replaced store is copied.
func TestRestoreWithoutLinks(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	was := whatStands(t, dir)
	r, err := restoreInto(t, dir, file, func(o *RestoreOptions) { o.link = noLinks })
	if err != nil {
		t.Fatal(err)
	}
	if rep, err := Verify(t.Context(), r.Rollback, Want{Key: relayKey}); err != nil || !rep.Good || rep.SHA256 != r.RollbackSHA || rep.Info.Epoch != was.epoch {
		t.Errorf("got %v, %s; want the replaced store", err, rep.Fault())
	}
	// A restored store that no relay opened yet is a good rollback, too.
	if r, err = restoreInto(t, dir, file, nil); err != nil {
		t.Fatal(err)
	}
	if rep, err := Verify(t.Context(), r.Rollback, Want{Key: relayKey}); err != nil || !rep.Good {
		t.Errorf("got %v, %s; want a good file", err, rep.Fault())
	}
}

// A restore that takes long ends with a heartbeat of its end.
func TestRestoreBeatsAtItsEnd(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	now := day2
	r, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
		o.Now = func() time.Time { return now }
		o.step = func(name string, _ bool) error {
			if name == "renewing" {
				now = day2.Add(time.Hour)
			}
			return nil
		}
	})
	if err != nil || !r.At.Equal(day2) {
		t.Errorf("got %s, %v; want the receipt of the time it began", r.At, err)
	}
	in, err := sqlite.InfoAtRest(dir)
	if err != nil || !in.Heartbeat.Equal(day2.Add(time.Hour)) {
		t.Errorf("got a heartbeat of %s, %v; want that of the end", in.Heartbeat, err)
	}
}

// The replaced store that was restored stays, by whatever path it was named.
func TestRollbackByAnotherPathIsKept(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	var oldest string
	for range keepRollbacks {
		r, err := restoreInto(t, dir, file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if oldest == "" {
			oldest = r.Rollback
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := restoreInto(t, dir, filepath.Join(link, rollbackFolder, filepath.Base(oldest)), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(oldest); err != nil {
		t.Errorf("got %v; want it kept", err)
	}
}
