package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// notFolded fails the fold of a store where it stands, as a device or an owner does.
func notFolded(err error, then func(name string, done bool) error) func(*RestoreOptions) {
	return func(o *RestoreOptions) {
		o.step = func(name string, done bool) error {
			if name == "fold" && !done {
				return err
			}
			if then != nil {
				return then(name, done)
			}
			return nil
		}
	}
}

var unreached = []error{syscall.EIO, syscall.EROFS, syscall.ENOSPC, store.ErrFull, &fs.PathError{Op: "open", Path: "relay.db", Err: syscall.EACCES}}

// A store that cannot be written is still read: all that is to be carried comes
// from a copy, which is kept and leads back.
func TestRestoreOverAStoreThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	base, file := lostMail(t)
	old := whatStands(t, base)
	for i, fault := range unreached {
		t.Run(fault.Error(), func(t *testing.T) {
			t.Parallel()
			dir := copyDir(t, base)
			r, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
				notFolded(fault, nil)(o)
				if i%2 == 1 {
					o.link = noLinks
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if c := r.Carried; c.Revocations != 1 || c.SenderLists != 1 || c.Held != 1 || r.NewerMail != 1 || r.From != old.epoch {
				t.Errorf("got %+v; want all of it carried", c)
			}
			wantWayBack(t, dir, r, old)
		})
	}
}

// wantWayBack looks at the replaced store that was kept, and goes back to it.
func wantWayBack(t *testing.T, dir string, r RestoreReceipt, old stands) {
	t.Helper()
	name := rollbackFolder + "/" + filepath.Base(r.Rollback)
	if got := sorted(snapshot(t, dir)); !slices.Equal(got, []string{"relay.db", "relay.key", "relay.lock", "reserve", name, name + receiptSuffix}) {
		t.Errorf("got %q in the folder; want the store and the replaced one", got)
	}
	rep, err := Verify(t.Context(), r.Rollback, Want{Key: relayKey})
	if err != nil || !rep.Good || rep.SHA256 != r.RollbackSHA || rep.Info.Epoch != old.epoch || Contents(rep.Read) != old.contents {
		t.Errorf("rollback: got %v, %s; want the replaced store, whole", err, rep.Fault())
	}
	back, err := restoreInto(t, dir, r.Rollback, nil)
	if now := whatStands(t, dir); err != nil || now.contents != old.contents || back.Carried.Revocations != 0 {
		t.Errorf("the way back: got %v, %+v; want what stood before", err, now)
	}
}

// Each step fails after the store was folded in a copy: it stands as it was, with
// its log, or the new one does.
func TestRestoreOfAnUnfoldedStoreFaults(t *testing.T) {
	t.Parallel()
	base, file := lostMail(t)
	was := snapshot(t, base)
	for _, at := range unfoldedSteps {
		for _, links := range []bool{true, false} {
			t.Run(fmt.Sprint(at, " links ", links), func(t *testing.T) {
				t.Parallel()
				dir := copyDir(t, base)
				_, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
					notFolded(syscall.EIO, func(name string, done bool) error {
						if fmt.Sprint(name, " ", done) == at {
							return errors.New("the device failed")
						}
						return nil
					})(o)
					if !links {
						o.link = noLinks
					}
				})
				if err == nil && at != "swap true" {
					t.Error("got nil; want the fault told")
				}
				wantUnfolded(t, dir, was, slices.Contains(unfoldedNew, at))
			})
		}
	}
}

var (
	unfoldedSteps = []string{"fold the copy false", "fold the copy true", "copy true", "renewing false", "renew true", "rollback false", "rollback true",
		"aside false", "aside true", "swap false", "swap true", "keep false", "keep true"}
	unfoldedNew = unfoldedSteps[10:]
)

// wantUnfolded sweeps a folder, and wants the old store to the byte or the new one.
func wantUnfolded(t *testing.T, dir string, was map[string]string, isNew bool) {
	t.Helper()
	for range 2 {
		if err := SweepRestore(dir); err != nil {
			t.Fatal(err)
		}
	}
	now := snapshot(t, dir)
	delete(now, "relay.lock")
	if isNew {
		if st := whatStands(t, dir); st.restores != 1 || len(now) != 5 || now["relay.db-wal"] != "" {
			t.Errorf("got %+v, %q; want the new store, and the replaced one with its receipt", st, sorted(now))
		}
		return
	}
	for name, b := range was {
		if name != "relay.lock" && now[name] != b {
			t.Errorf("%s: %d bytes; want it as it was", name, len(now[name]))
		}
	}
	if len(now) != len(was)-1 {
		t.Errorf("got %q; want %q", sorted(now), sorted(was))
	}
}

// unfoldedRestore is restoreChild over a store that cannot be written.
func unfoldedRestore(args []string) error {
	kill := killAt(args[2], 1)
	o := RestoreOptions{}
	notFolded(syscall.EIO, func(name string, done bool) error { kill(fmt.Sprint(name, " ", done)); return nil })(&o)
	return fmt.Errorf("the restore ended: %w", childRestores(args[0], args[1], args[3] == "true", false, o.step))
}

// A kill at any of these steps leaves the same.
func TestCrashRestoreOfAnUnfoldedStore(t *testing.T) {
	killsChildren(t)
	t.Parallel()
	base, file := lostMail(t)
	was := snapshot(t, base)
	for _, at := range unfoldedSteps {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			for round := range rounds() {
				dir := copyDir(t, base)
				if !runChild(t, "restore, unfolded", dir, file, at, fmt.Sprint(round%2 == 0)) {
					t.Fatal("the child was not killed")
				}
				wantUnfolded(t, dir, was, slices.Contains(unfoldedNew, at))
			}
		})
	}
}

// A store that was not even read is never given up, whoever forces it; nor is
// anything lost of it by an error of the file that is made.
func TestForceGivesUpDamagedStoresOnly(t *testing.T) {
	t.Parallel()
	base, file := lostMail(t)
	was := snapshot(t, base)
	for _, fault := range append(unreached, context.Canceled, errors.New("an error that nobody knows")) {
		for _, at := range []string{"fold the copy", "renewing"} {
			t.Run(at+" "+fault.Error(), func(t *testing.T) {
				t.Parallel()
				dir := copyDir(t, base)
				for _, do := range []func(context.Context, RestoreOptions) (RestoreReceipt, error){Preview, Restore} {
					_, err := withLock(t, dir, file, do, func(o *RestoreOptions) {
						notFolded(syscall.EIO, func(name string, done bool) error {
							if name == at && !done {
								return fault
							}
							return nil
						})(o)
						o.Force = true
					})
					if err == nil || strings.Contains(err.Error(), "restore all the same") || !errors.Is(err, fault) && !errors.Is(err, ErrNoRoom) {
						t.Errorf("got %v; want the fault, and no advice to go on", err)
					}
				}
				wantUnfolded(t, dir, was, false)
			})
		}
	}
	// The current store is damaged, and what fails is the new one.
	dir := copyDir(t, base)
	if err := sqlite.Fold(filepath.Join(dir, "relay.db")); err != nil {
		t.Fatal(err)
	}
	run(t, filepath.Join(dir, "relay.db"), "UPDATE totals SET value = value + 7 WHERE name = 'items'")
	stood, tries := snapshot(t, dir), 0
	_, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
		o.Force = true
		o.step = func(name string, _ bool) error {
			if name == "renewing" {
				tries++
				return syscall.EIO
			}
			return nil
		}
	})
	if !errors.Is(err, syscall.EIO) || tries != 1 || strings.Contains(err.Error(), "current store") || snapshot(t, dir)["relay.db"] != stood["relay.db"] {
		t.Errorf("got %v after %d tries; want the new file's error at once, and the store as it was", err, tries)
	}
}

// What a store holds beside its mail may be what cannot be decoded.
func TestRestoreOverAnUndecodableState(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	path := filepath.Join(dir, "relay.db")
	if err := sqlite.Fold(path); err != nil {
		t.Fatal(err)
	}
	run(t, path, "INSERT OR REPLACE INTO state (name, value) VALUES ('restored_paths', '[1]')")
	was := string(mustRead(t, path))
	if _, err := restoreInto(t, dir, file, nil); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "to restore all the same: --force") {
		t.Errorf("got %v; want a refusal", err)
	}
	// A relay that starts has no --force.
	_, err := restoreInto(t, dir, file, func(o *RestoreOptions) { o.Consume = true })
	if want := "agentmbx relay restore " + file + " --store-dir " + dir + " --force"; !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
		t.Errorf("at a start: got %v; want the command that goes on: %s", err, want)
	}
	r, err := restoreInto(t, dir, file, func(o *RestoreOptions) { o.Force = true })
	if err != nil || r.Undo != "" || !strings.Contains(r.Rollback, "unread") || string(mustRead(t, r.Rollback)) != was || r.RollbackBytes != int64(len(was)) {
		t.Errorf("with force: got %+v, %v; want it set aside as it is, and no way back", r, err)
	}
	if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "nothing could be carried") }) {
		t.Errorf("got %q; want a warning", r.Warnings)
	}
}

// A restore that is done says so whatever follows, and how to go back.
func TestRestoreThatIsDoneTellsTheWayBack(t *testing.T) {
	t.Parallel()
	dir, file := lostMail(t)
	r, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
		o.step = func(name string, _ bool) error {
			if name == "prune" {
				return syscall.EIO
			}
			return nil
		}
	})
	if err == nil || !strings.Contains(err.Error(), "is restored") || !strings.Contains(err.Error(), r.Undo) || r.Undo == "" {
		t.Errorf("got %v; want it to say that it is restored, and the way back", err)
	}
}

// strangersRestore restores as a user who is not root: args are the folder, the
// file, whether it is forced, and what its error must say ("" for none).
func strangersRestore(args []string) error {
	if os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			return err
		}
	}
	err := childRestores(args[0], args[1], true, args[2] == "true", nil)
	if said := fmt.Sprint(err); args[3] != "" && !strings.Contains(said, args[3]) || args[3] == "" && err != nil {
		return fmt.Errorf("got %v; want %q", err, args[3])
	}
	return nil
}

// Files that their owner may not write, or not read.
func TestRestoreOverFilesWithoutPermission(t *testing.T) {
	t.Parallel()
	base, file := lostMail(t)
	old := whatStands(t, base)
	for _, c := range []struct {
		file, force, says string
		mode              fs.FileMode
	}{
		{"relay.db", "false", "", 0o400},
		{"relay.db-wal", "false", "", 0o400},
		{"relay.db", "false", "our uid", 0},
		{"relay.db", "true", "our uid", 0},
		{"relay.db-wal", "true", "our uid", 0},
	} {
		t.Run(fmt.Sprintf("%s %o force %s", c.file, c.mode, c.force), func(t *testing.T) {
			dir := copyDir(t, base)
			from := filepath.Join(t.TempDir(), "backup.db")
			mustWrite(t, from, mustRead(t, file))
			if err := os.Chmod(filepath.Join(dir, c.file), c.mode); err != nil {
				t.Fatal(err)
			}
			giveAway(t, dir, filepath.Dir(from))
			runChild(t, "restore, as another", dir, from, c.force, c.says)
			if c.says != "" {
				if err := os.Chmod(filepath.Join(dir, c.file), 0o600); err != nil {
					t.Fatal(err)
				}
				if now := whatStands(t, dir); now != old {
					t.Errorf("got %+v; want the store as it was", now)
				}
				return
			}
			list, err := rollbacks(dir)
			if err != nil || len(list) != 1 {
				t.Fatalf("got %v, %v; want one replaced store", list, err)
			}
			wantWayBack(t, dir, RestoreReceipt{Rollback: list[0].File, RollbackSHA: list[0].SHA256}, old)
		})
	}
}

// giveAway gives folders of a test to the user that a child becomes.
func giveAway(t *testing.T, dirs ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	for _, dir := range dirs {
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, 65534, 65534))
		}); err != nil {
			t.Fatal(err)
		}
	}
}
