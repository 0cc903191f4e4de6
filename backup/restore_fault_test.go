package backup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
)

// restoreSteps are the steps of a restore, in order, and what a failure of each
// leaves when it took place but was reported as failed.
var restoreSteps = []struct {
	name string
	new  bool // from here on the new store stands
}{{"fold", false}, {"copying", false}, {"copy", false}, {"renewing", false}, {"renew", false}, {"rollback", false}, {"aside", false},
	{"swap", true}, {"keep", true}, {"prune", true}}

// Each step fails twice: it was not done, and it was done but reported as failed.
// The store is wholly the old one or wholly the new, and the error says which.
func TestRestoreFaults(t *testing.T) {
	t.Parallel()
	base, file := lostMail(t)
	old := whatStands(t, base)
	reference := copyDir(t, base)
	if _, err := restoreInto(t, reference, file, nil); err != nil {
		t.Fatal(err)
	}
	want := whatStands(t, reference)
	boom := errors.New("the device failed")
	for i, s := range restoreSteps {
		for _, done := range []bool{false, true} {
			if done && (s.name == "copying" || s.name == "renewing") {
				continue // moments, not deeds
			}
			for _, fault := range []error{boom, store.ErrFull} {
				if fault != boom && !slices.Contains([]string{"copy", "renew", "rollback"}, s.name) {
					continue
				}
				t.Run(fmt.Sprintf("%s done %v %v", s.name, done, fault), func(t *testing.T) {
					dir := copyDir(t, base)
					r, err := restoreInto(t, dir, file, func(o *RestoreOptions) {
						o.step = func(name string, d bool) error {
							if name == s.name && d == done {
								return fault
							}
							return nil
						}
					})
					isNew := s.new && (done || i > 7)
					reported := s.name != "swap" || !done
					if reported && err == nil {
						t.Fatal("got nil; want the fault told")
					}
					now := whatStands(t, dir)
					switch {
					case isNew && (now.contents != want.contents || now.epoch != r.To):
						t.Errorf("got %+v, %v; want the new store: %+v", now, err, want)
					case isNew && err != nil && !strings.Contains(err.Error(), "is restored"):
						t.Errorf("got %v; want it to say that the backup is restored", err)
					case errors.Is(err, ErrRestored) != (isNew && err != nil):
						t.Errorf("got %v; want ErrRestored %v", err, isNew)
					case !isNew && now != old:
						t.Errorf("got %+v, %v; want the old store: %+v", now, err, old)
					case !isNew && s.name != "fold" && !strings.Contains(err.Error(), "as it was"):
						t.Errorf("got %v; want it to say that the store is as it was", err)
					}
					if !isNew && fault == store.ErrFull && s.name != "fold" && !errors.Is(err, ErrNoRoom) {
						t.Errorf("got %v; want ErrNoRoom", err)
					}
					if !isNew && slices.ContainsFunc(sorted(snapshot(t, dir)), func(n string) bool { return strings.Contains(n, "/") }) {
						t.Errorf("got %q; want nothing left", sorted(snapshot(t, dir)))
					}
					wantRestorable(t, dir, file, want, isNew)
				})
			}
		}
	}
}

// wantRestorable sweeps a folder, finds nothing of ours in it but what belongs
// there, and restores again.
func wantRestorable(t *testing.T, dir, file string, want stands, isNew bool) {
	t.Helper()
	if err := SweepRestore(dir); err != nil {
		t.Fatalf("sweep: %v", err)
	}
	files, rolled := sorted(snapshot(t, dir)), 0
	for _, name := range files {
		switch {
		case strings.HasPrefix(name, rollbackFolder+"/"):
			rolled++
		case !slices.Contains([]string{"relay.db", "relay.db-wal", "relay.db-shm", "relay.key", "relay.lock", "reserve"}, name):
			t.Errorf("%s was left", name)
		}
	}
	if isNew && rolled != 2 || !isNew && rolled != 0 {
		t.Errorf("got %q; want the replaced store and its receipt %v", files, isNew)
	}
	for _, name := range names(t, dir) {
		if strings.Contains(name, "partial") {
			t.Errorf("%s was left", name)
		}
	}
	r, err := restoreInto(t, dir, file, nil)
	if err != nil {
		t.Fatalf("again: %v", err)
	}
	if now := whatStands(t, dir); now.contents != want.contents || now.epoch != r.To {
		t.Errorf("again: got %+v; want %+v", now, want)
	}
}
