package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// restoreChild restores until it reaches a step, where it is killed: args are the
// folder, the file, the step, and whether the file system has links.
func restoreChild(args []string) error {
	kill := killAt(args[2], 1)
	err := childRestores(args[0], args[1], args[3] == "true", true, func(name string, done bool) error {
		kill(fmt.Sprint(name, " ", done))
		return nil
	})
	return fmt.Errorf("the restore ended: %w", err)
}

func childRestores(dir, file string, links, force bool, step func(name string, done bool) error) error {
	lock, err := sqlite.AcquireLock(context.Background(), dir, 10*time.Second, nil)
	if err != nil {
		return err
	}
	o := RestoreOptions{File: file, StoreDir: dir, Key: relayKey, Lock: lock, HadLock: true, Force: force, Actor: "child", Version: "test",
		Now: func() time.Time { return day2 }, step: step}
	if !links {
		o.link = noLinks
	}
	_, err = Restore(context.Background(), o)
	return errors.Join(err, lock.Release())
}

// limitedRestore restores in a process that may write no file longer than so many
// bytes; a disk that is full fails the same calls. It tells whether it restored.
func limitedRestore(args []string) error {
	limit, _ := strconv.ParseUint(args[2], 10, 63)
	signal.Ignore(syscall.SIGXFSZ) // the write's error tells
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	_ = childRestores(args[0], args[1], false, false, nil) // what it left is looked at
	return nil
}

func noLinks(string, string) error { return errors.ErrUnsupported }

// killRestore runs a restore in a process of its own and kills it at a step.
func killRestore(t *testing.T, dir, file, at string, links bool) {
	t.Helper()
	if !runChild(t, "restore", dir, file, at, fmt.Sprint(links)) {
		t.Fatalf("the child was not killed at %q", at)
	}
}

// A restore that is killed at any step leaves the old store or the new one,
// whole; the sweep leaves nothing else, and the next restore goes through.
func TestCrashRestore(t *testing.T) {
	killsChildren(t)
	t.Parallel()
	base, file := lostMail(t)
	old := whatStands(t, base)
	reference := copyDir(t, base)
	if _, err := restoreInto(t, reference, file, nil); err != nil {
		t.Fatal(err)
	}
	want := whatStands(t, reference)
	for i, s := range restoreSteps {
		for _, done := range []bool{false, true} {
			if done && (s.name == "copying" || s.name == "renewing") {
				continue
			}
			at := fmt.Sprint(s.name, " ", done)
			t.Run(at, func(t *testing.T) {
				t.Parallel() // it mostly waits for the disk
				for round := range rounds() {
					dir := copyDir(t, base)
					killRestore(t, dir, file, at, round%2 == 0)
					isNew := i > 7 || s.name == "swap" && done
					looked := func() {
						now := whatStands(t, dir)
						if isNew && (now.contents != want.contents || now.epoch == old.epoch || now.restores != 1) || !isNew && now != old {
							t.Errorf("round %d: got %+v; want new %v: %+v or %+v", round, now, isNew, old, want)
						}
					}
					looked()
					if round%2 == 1 { // somebody opens the store before anybody sweeps
						s := openStore(t, dir)
						if err := s.Check(t.Context()); err != nil {
							t.Error(err)
						}
						if err := s.Close(); err != nil {
							t.Error(err)
						}
						looked()
					}
					wantRestorable(t, dir, file, want, isNew)
					if isNew {
						if list, err := rollbacks(dir); err != nil || len(list) != 2 {
							t.Errorf("round %d: got %v, %v; want both replaced stores", round, list, err)
						}
					}
				}
			})
		}
	}
}

// Whichever write finds no room, the store is the old one or the new one.
func TestRestoreWritesFail(t *testing.T) {
	t.Parallel()
	base, file := lostMail(t)
	old := whatStands(t, base)
	reference := copyDir(t, base)
	if _, err := restoreInto(t, reference, file, nil); err != nil {
		t.Fatal(err)
	}
	want := whatStands(t, reference)
	size := len(mustRead(t, file))
	failed := 0
	for _, limit := range []int{100, 8192, size / 2, size - 1, size, size + 8192, 4 * size} {
		dir := copyDir(t, base)
		runChild(t, "restore, limited", dir, file, fmt.Sprint(limit))
		now := whatStands(t, dir)
		isNew := now.epoch != old.epoch
		if isNew && now.contents != want.contents || !isNew && now != old {
			t.Errorf("limit %d: got %+v; want %+v or %+v", limit, now, old, want)
		}
		if !isNew {
			failed++
		}
		wantRestorable(t, dir, file, want, isNew)
	}
	if failed < 4 || failed == 7 {
		t.Errorf("got %d of 7 that failed; want some, and not all", failed)
	}
}

// A store that cannot be read is set aside with what stands beside it: a kill in
// the middle of that leaves all of it together, before or after.
func TestCrashRestoreSetsAside(t *testing.T) {
	killsChildren(t)
	t.Parallel()
	base, file := lostMail(t)
	mustWrite(t, filepath.Join(base, "relay.db"), []byte(strings.Repeat("junk", 4000)))
	mustWrite(t, filepath.Join(base, "relay.db-shm"), []byte("index"))
	was := snapshot(t, base)
	for _, at := range []string{"rollback true", "aside true", "swap false", "swap true", "keep false", "keep true"} {
		t.Run(at, func(t *testing.T) {
			for round := range rounds() {
				dir := copyDir(t, base)
				killRestore(t, dir, file, at, round%2 == 0)
				if err := SweepRestore(dir); err != nil {
					t.Fatal(err)
				}
				if err := SweepRestore(dir); err != nil {
					t.Fatalf("twice: %v", err)
				}
				now := snapshot(t, dir)
				if slices.Contains([]string{"rollback true", "aside true", "swap false"}, at) {
					for _, name := range []string{"relay.db", "relay.db-wal", "relay.db-shm"} {
						if now[name] != was[name] {
							t.Errorf("%s: %d bytes; want it as it was", name, len(now[name]))
						}
					}
					if len(now) != len(was) {
						t.Errorf("got %q; want %q", sorted(now), sorted(was))
					}
					continue
				}
				if st := whatStands(t, dir); st.restores != 1 {
					t.Errorf("got %+v; want the new store", st)
				}
				kept := names(t, filepath.Join(dir, rollbackFolder))
				if len(kept) != 3 || len(now) != len(was)+1 { // both names and the log's; relay.db is the new one
					t.Errorf("got %q; want the three files set aside together", sorted(now))
				}
				for i, suffix := range []string{"", "-shm", "-wal"} {
					if i < len(kept) && string(mustRead(t, filepath.Join(dir, rollbackFolder, kept[i]))) != was["relay.db"+suffix] {
						t.Errorf("%s is not what stood there", kept[i])
					}
				}
			}
		})
	}
}

// What is no work of ours is never swept.
func TestSweepRestoreLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	if err := SweepRestore(dir); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	mustWrite(t, filepath.Join(elsewhere, "mine"), []byte("mine"))
	if err := os.Symlink(elsewhere, filepath.Join(dir, restoreWork)); err != nil {
		t.Fatal(err)
	}
	if err := SweepRestore(dir); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a link: got %v; want a refusal", err)
	}
	if names(t, elsewhere)[0] != "mine" {
		t.Error("the file behind the link is gone")
	}
}
