package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestImportFaults fails each statement that writes the new store, not applied and
// applied but reported failed: there is no store, and nothing is left.
func TestImportFaults(t *testing.T) {
	t.Parallel()
	dir, at, applied := memDir(t), 0, false
	o := importOptions(t, filepath.Join(fixtureDir, "relay.db"), dir)
	o.Lock = mustLock(t, dir)
	defer mustRelease(t, o.Lock)
	no, n := errors.New("the disk says no"), 0
	o.fault = func(_ string, done bool) error {
		if done == applied {
			if n++; n == at {
				return no
			}
		}
		return nil
	}
	for at = 1; ; at++ {
		for _, applied = range []bool{false, true} {
			n = 0
			_, err := Import(t.Context(), o)
			if n < at { // it has no more statements
				if err != nil || at < 60 {
					t.Errorf("after %d statements: got %v; want it imported", n, err)
				}
				return
			}
			if !errors.Is(err, no) {
				t.Fatalf("statement %d: got %v; want %v", at, err, no)
			}
			wantOnly(t, dir, "relay.lock")
		}
	}
}

// TestImportBeatsAtItsEnd: however long an import takes, a start soon after it
// finds a fresh heartbeat, and keeps the epoch.
func TestImportBeatsAtItsEnd(t *testing.T) {
	t.Parallel()
	o, now := importOptions(t, tsStore(t), t.TempDir()), fixtureNow
	o.Now = func() time.Time { return now }
	o.step = func(name string) {
		if name == "committed" {
			now = now.Add(time.Hour)
		}
	}
	did, err := importInto(t, o)
	if err != nil || !did.At.Equal(fixtureNow) {
		t.Errorf("got %s, %v; want the time it began", did.At, err)
	}
	in, err := InfoAtRest(o.Dir)
	if err != nil || !in.Heartbeat.Equal(now) {
		t.Errorf("got a heartbeat of %s, %v; want %s", in.Heartbeat, err, now)
	}
}

// TestImportEndsWithItsContext wherever it is, and leaves nothing.
func TestImportEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"begun", "first item", "rows copied", "committed"} {
		o := importOptions(t, tsStore(t), t.TempDir())
		o.Lock = mustLock(t, o.Dir)
		ctx, stop := context.WithCancel(t.Context())
		o.step = func(name string) {
			if name == at {
				stop()
			}
		}
		if _, err := Import(ctx, o); !errors.Is(err, context.Canceled) || Damaged(err) {
			t.Errorf("%s: got %v; want context.Canceled", at, err)
		}
		mustRelease(t, o.Lock)
		wantOnly(t, o.Dir, "relay.lock")
	}
}

// TestImportInDoubt: when the device fails after the rename, the error says that
// the store stands.
func TestImportInDoubt(t *testing.T) {
	t.Parallel()
	o := importOptions(t, tsStore(t), filepath.Join(t.TempDir(), "data"))
	if err := MakeFolder(o.Dir); err != nil {
		t.Fatal(err)
	}
	away := o.Dir + ".away"
	o.step = func(name string) {
		if name == "renamed" {
			if err := os.Rename(o.Dir, away); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := importInto(t, o); !errors.Is(err, ErrDoubt) {
		t.Errorf("got %v; want ErrDoubt", err)
	}
	if exists, err := Exists(away); err != nil || !exists {
		t.Errorf("a store is there: %t, %v; want it", exists, err)
	}
}
