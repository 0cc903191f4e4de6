package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// afterVerify are the checks of a drill after those of the verification, in order.
var afterVerify = []string{
	"restore", "age", "new epoch", "serve", "integrity",
	"same items", "same held", "same dedup", "same enrolments", "same denials", "same deny lists", "same sender lists", "same v1 sealing keys",
	"same v2 sealing keys", "same rotations", "same acks", "same heads", "revoked stay revoked", "wire bytes",
	"enrol", "push", "sender list", "push again", "pull", "pull again", "ack", "push after ack", "not again", "stale epoch", "sequence", "untouched",
}

func names(r Receipt) (list []string) {
	for _, c := range r.Checks {
		if !strings.HasPrefix(c.Name, "backup: ") {
			list = append(list, c.Name)
		}
	}
	return list
}

// A drill of a real backup passes every check, and leaves the live store, its
// backups and the machine as they were.
func TestDrillOfARealBackup(t *testing.T) {
	s := newSite(t)
	file := s.backup()
	s.close()
	s.now = s.now.Add(3 * time.Hour)
	before, goroutines := fingerprint(t, s.dir), runtime.NumGoroutine()
	o := s.options(file)
	stages := map[string]bool{}
	o.Progress = func(stage string, done, total int64) { stages[stage] = true }
	r, err := s.drill(t.Context(), o)
	if err != nil || !r.Passed {
		t.Fatalf("got %v, %s; want a drill that passes\n%s", err, r.Verdict(), text(r))
	}
	wantSame(t, "the live store's folder", before, fingerprint(t, s.dir))
	wantGoroutines(t, goroutines)
	if got := names(r); !slices.Equal(got, afterVerify) {
		t.Errorf("checks: got %q; want %q", got, afterVerify)
	}
	receipt := must(backup.ReadReceipt(file))
	if r.V != 1 || r.Type != "relay-drill" || !r.At.Equal(s.now) || r.File != file || r.SHA256 != receipt.SHA256 || r.Source != FromBackup ||
		r.RPO != 3*60*60 || r.RTO <= 0 || r.Took < r.RTO || r.Items != receipt.Items || !r.TakenAt.Equal(t0) {
		t.Errorf("receipt: got %+v", r)
	}
	if !stages["serve"] || !stages["done"] {
		t.Errorf("progress: got %v", stages)
	}
	doc := string(must(json.Marshal(r)))
	if strings.Contains(doc, s.key.Seed()) || len(doc) > 16<<10 {
		t.Errorf("receipt: got %d bytes, or the relay's key in it: %s", len(doc), doc)
	}
	if v := r.Verdict(); !strings.HasPrefix(v, "passed: ") || !strings.Contains(v, "3h0m0s old") {
		t.Errorf("verdict: got %q", v)
	}
}

func text(r Receipt) string {
	var b strings.Builder
	for _, c := range r.Checks {
		b.WriteString(map[bool]string{true: "ok   ", false: "FAIL "}[c.OK] + c.Name + ": " + c.Text + "\n")
	}
	return b.String()
}

// A drill runs beside a relay that takes mail all the while, in its own process.
func TestDrillBesideTheLiveStore(t *testing.T) {
	s := newSite(t)
	file := s.backup()
	ctx, stop := context.WithCancel(t.Context())
	written := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := s.store.Update(context.Background(), func(tx store.Tx) error { return s.mail(tx, s.hosts[7], s.hosts[8], "live") }); err != nil {
				t.Errorf("a write to the live store during the drill: %v", err)
				break
			}
		}
		written <- n
	}()
	r, err := s.drill(t.Context(), s.options(file))
	stop()
	n := <-written
	if err != nil || !r.Passed {
		t.Errorf("got %v, %s", err, text(r))
	}
	var u store.Usage
	if err := s.store.View(t.Context(), func(v store.Reader) (err error) { u, err = v.QueueUsage(s.hosts[8].Pub()); return err }); err != nil || u.Items < int64(n) || n == 0 {
		t.Errorf("got %+v after %d writes, %v", u, n, err)
	}
}

// A clock that is wrong by days or hours fails no drill: it is told.
func TestDrillUnderAWrongClock(t *testing.T) {
	for name, off := range map[string]time.Duration{"40 days ahead": 40 * 24 * time.Hour, "2 hours behind": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			file := s.backup()
			s.now = s.now.Add(off)
			r, err := s.drill(t.Context(), s.options(file))
			if err != nil || !r.Passed || r.RPO != max(off, 0).Seconds() {
				t.Fatalf("got %v, RPO %v, %s", err, r.RPO, text(r))
			}
			if c := checkOf(r, "age"); off < 0 && !strings.Contains(c.Text, "2h0m0s in the future") {
				t.Errorf("age: got %q", c.Text)
			}
			if c := checkOf(r, "sequence"); off < 0 && !strings.Contains(c.Text, "the clock is behind") {
				t.Errorf("sequence: got %q", c.Text)
			}
		})
	}
}

// The limits of a relay that is full, or that is set as tight as it can be, do
// not fail its drills.
func TestDrillUnderTightLimits(t *testing.T) {
	s := newSite(t)
	o := s.options(s.backup())
	for _, f := range relay.LimitFields(&o.Limits) {
		*f.Value = f.Min
	}
	if r, err := s.drill(t.Context(), o); err != nil || !r.Passed {
		t.Errorf("got %v, %s", err, text(r))
	}
}

// A store in which nobody ever enrolled is drilled like any other.
func TestDrillOfAnEmptyStore(t *testing.T) {
	s := &site{t: t, now: t0, key: must(wire.GenerateKey()), dir: filepath.Join(t.TempDir(), "store")}
	s.open()
	t.Cleanup(s.close)
	if r, err := s.drill(t.Context(), s.options(s.backup())); err != nil || !r.Passed {
		t.Errorf("got %v, %s", err, text(r))
	}
}

// An encrypted backup is drilled with an identity that opens it; without one the
// drill cannot be done, which says nothing about the backup.
func TestDrillOfAnEncryptedBackup(t *testing.T) {
	s := newSite(t)
	id, other := must(age.GenerateX25519Identity()), must(age.GenerateX25519Identity())
	f := s.folder()
	f.Recipients = []age.Recipient{id.Recipient()}
	receipt := must(f.Create(t.Context(), s.store, "", func(string, int64, int64) {}))
	o := s.options(receipt.File)
	if r, err := s.drill(t.Context(), o); !errors.Is(err, backup.ErrEncrypted) || r.Passed {
		t.Errorf("without an identity: got %v, %s", err, text(r))
	}
	o.Identities = []age.Identity{other}
	if r, err := s.drill(t.Context(), o); err != nil || r.Passed || len(r.Failed()) == 0 {
		t.Errorf("with another identity: got %v, %s", err, text(r))
	}
	o.Identities = []age.Identity{other, id}
	if r, err := s.drill(t.Context(), o); err != nil || !r.Passed || r.SHA256 != receipt.SHA256 {
		t.Errorf("with the identity: got %v, %s", err, text(r))
	}
}

// What says nothing about the backup is an error, and no failed check.
func TestDrillThatCannotBeDone(t *testing.T) {
	s := newSite(t)
	file := s.backup()
	t.Run("no such file", func(t *testing.T) {
		if _, err := s.drill(t.Context(), s.options(file+"x")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no room", func(t *testing.T) {
		o := s.options(file)
		o.Free = func(string) (int64, error) { return 100 << 20, nil }
		r, err := s.drill(t.Context(), o)
		if !errors.Is(err, backup.ErrNoRoom) || !strings.Contains(err.Error(), "100 MiB free") || r.Passed || len(r.Checks) > 0 {
			t.Errorf("got %v, %+v", err, r)
		}
	})
	t.Run("the disk fills up in the middle", func(t *testing.T) {
		o := s.options(file)
		o.step = func(name string) error {
			if name == "push" {
				return fmt.Errorf("write: %w", syscall.ENOSPC)
			}
			return nil
		}
		if r, err := s.drill(t.Context(), o); !errors.Is(err, syscall.ENOSPC) || r.Passed || len(r.Failed()) > 0 {
			t.Errorf("got %v, %s; want an error and no failed check", err, text(r))
		}
	})
	t.Run("a scratch folder that is a file", func(t *testing.T) {
		o := s.options(file)
		o.Scratch = file
		if _, err := Run(t.Context(), o); err == nil {
			t.Error("got nil; want an error")
		}
	})
	t.Run("a scratch folder that others own", func(t *testing.T) {
		o := s.options(file)
		o.Scratch = filepath.Join(t.TempDir(), "new", "folder")
		if r, err := s.drill(t.Context(), o); err != nil || !r.Passed {
			t.Errorf("got %v; want it made", err)
		}
		if st, err := os.Stat(o.Scratch); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("got %v, %v; want 0700", st, err)
		}
	})
}

// Ended at any step, a drill leaves nothing behind and says why it ended.
func TestDrillEndedAtEachStep(t *testing.T) {
	s := newSite(t)
	file := s.backup()
	for _, st := range steps {
		t.Run(st.name, func(t *testing.T) {
			goroutines := runtime.NumGoroutine()
			ctx, stop := context.WithCancelCause(t.Context())
			why := errors.New("the relay stops")
			o := s.options(file)
			o.step = func(name string) error {
				if name == st.name {
					stop(why)
				}
				return nil
			}
			r, err := s.drill(ctx, o)
			if !errors.Is(err, why) || r.Passed {
				t.Errorf("got %v, passed %v; want %v", err, r.Passed, why)
			}
			if failed := r.Failed(); len(failed) > 0 {
				t.Errorf("got failed checks %v; want none: the backup is good", failed)
			}
			wantGoroutines(t, goroutines)
		})
	}
}

// A panic is a failed check of the step it was in.
func TestPanicInAStep(t *testing.T) {
	s := newSite(t)
	file := s.backup()
	for _, st := range []string{"verify", "serve", "ack"} {
		goroutines := runtime.NumGoroutine()
		o := s.options(file)
		o.step = func(name string) error {
			if name == st {
				panic("a fault of ours")
			}
			return nil
		}
		r, err := s.drill(t.Context(), o)
		if c := checkOf(r, st); err != nil || r.Passed || c == nil || c.OK || !strings.Contains(c.Text, "a fault of ours") {
			t.Errorf("%s: got %v, %s", st, err, text(r))
		}
		wantGoroutines(t, goroutines)
	}
}
