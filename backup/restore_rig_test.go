package backup

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var day2 = day0.Add(48 * time.Hour)

// lostMail makes a folder with a store as a kill leaves it, with its log beside
// it, and the backup file from before its last changes: a message nobody pulled, a
// revocation, a longer sender list and a held item.
func lostMail(t testing.TB) (dir, file string) {
	t.Helper()
	dir, live := t.TempDir(), t.TempDir()
	s := filled(t, live)
	file = filepath.Join(t.TempDir(), "backup.db")
	if _, err := folder(t, s).Create(t.Context(), s, file, nil); err != nil {
		t.Fatal(err)
	}
	beta, alpha := secret("beta").Public(), secret("alpha")
	put(t, s, beta, "m4", 500)
	put(t, s, beta, "m5", 500)
	update(t, s, func(tx store.Tx) error {
		head, err := tx.Head(beta)
		if err != nil {
			return err
		}
		if err := tx.Hold(beta, head, day0, "op", "to look at"); err != nil {
			return err
		}
		if _, err := tx.Revoke(alpha.Public(), day0.Add(time.Hour)); err != nil {
			return err
		}
		senders := []wire.PublicKey{alpha.Public(), secret("delta").Public()}
		record, sig := wire.MakeSenderList(secret("beta"), senders, day0.Add(time.Hour))
		if err := tx.PutSenderList(store.SenderList{Target: beta, Senders: senders, IAT: day0.Add(time.Hour), Record: record, Sig: sig}); err != nil {
			return err
		}
		return tx.AppendLog(day0.Add(time.Hour), "backup", []byte(`{"n":1}`))
	})
	for _, name := range []string{"relay.db", "relay.db-wal", "relay.lock"} {
		mustWrite(t, filepath.Join(dir, name), mustRead(t, filepath.Join(live, name)))
	}
	mustWrite(t, filepath.Join(dir, "relay.key"), []byte("the key"))
	mustWrite(t, filepath.Join(dir, "reserve"), make([]byte, 100))
	return dir, file
}

// copyDir copies a folder of plain files.
func copyDir(t testing.TB, from string) (to string) {
	t.Helper()
	to = t.TempDir()
	for name, b := range snapshot(t, from) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, filepath.Join(to, name), []byte(b))
	}
	return to
}

// snapshot is all that stands in a folder, by its path there.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files[name] = string(mustRead(t, path))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

func sorted(files map[string]string) (list []string) {
	for name := range files {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// restoreInto restores under the lock of the folder.
func restoreInto(t testing.TB, dir, file string, change func(*RestoreOptions)) (RestoreReceipt, error) {
	t.Helper()
	return withLock(t, dir, file, Restore, change)
}

func withLock(t testing.TB, dir, file string, do func(context.Context, RestoreOptions) (RestoreReceipt, error), change func(*RestoreOptions)) (RestoreReceipt, error) {
	t.Helper()
	lock, err := sqlite.AcquireLock(t.Context(), dir, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}()
	o := RestoreOptions{File: file, StoreDir: dir, Key: relayKey, Lock: lock, HadLock: true, Actor: "test", Version: "test", Now: func() time.Time { return day2 }}
	if change != nil {
		change(&o)
	}
	return do(t.Context(), o)
}

// stands is what a store is: all that it holds, and its epoch. It opens a copy,
// as the files lie there.
type stands struct {
	contents, epoch string
	restores        int
	held            int64
}

func whatStands(t testing.TB, dir string) (st stands) {
	t.Helper()
	scratch := t.TempDir()
	for _, suffix := range []string{"", "-wal", "-journal"} {
		if b, err := os.ReadFile(filepath.Join(dir, "relay.db"+suffix)); err == nil {
			mustWrite(t, filepath.Join(scratch, "relay.db"+suffix), b)
		}
	}
	path := filepath.Join(scratch, "relay.db")
	if err := sqlite.Fold(path); err != nil {
		t.Errorf("the store does not open: %v", err)
		return st
	}
	f, err := sqlite.OpenFile(path)
	if err != nil {
		t.Errorf("the store does not open: %v", err)
		return st
	}
	defer f.Close()
	if err := f.Check(t.Context()); err != nil {
		t.Errorf("the store does not agree with itself: %v", err)
	}
	c, err := f.Contents(t.Context(), sqlite.Look{Wires: true})
	if err != nil {
		t.Error(err)
	}
	st = stands{contents: Contents(c), epoch: f.Info().Epoch, held: c.Parts[sqlite.PartHeld].Rows}
	if err := f.View(func(r store.Reader) error {
		lines, err := r.Log("restore", 0, 100)
		st.restores = len(lines)
		return err
	}); err != nil {
		t.Error(err)
	}
	return st
}
