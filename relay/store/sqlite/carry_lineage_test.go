package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The log goes on: with the old ids where the replaced store is a continuation of
// the backup, in the order of time where it is not.
func TestCarryLog(t *testing.T) {
	t.Parallel()
	texts := func(t *testing.T, s *Store) (list []string) {
		looks(t, s, func(r store.Reader) error {
			lines, err := r.Log("", 0, 5000)
			for _, l := range slices.Backward(lines) {
				list = append(list, fmt.Sprintf("%d %s", l.ID, l.Op))
			}
			return err
		})
		return list
	}
	t.Run("continued", func(t *testing.T) {
		copied, current := replaced(t, logged("one", "{}", early), all(logged("two", "{}", late), logged("three", "{}", early))) // the clock went back
		s, done := renewed(t, copied, current, Renewal{})
		if got, want := texts(t, s), []string{"1 one", "2 two", "3 three", "4 restore"}; !slices.Equal(got, want) || done.LogLines != 2 {
			t.Errorf("got %v, %d carried; want %v, 2", got, done.LogLines, want)
		}
	})
	t.Run("another store", func(t *testing.T) {
		copied, _ := replaced(t, all(logged("one", "{}", early), logged("late", "{}", late.Add(time.Hour))), nil)
		current := another(t, late, logged("begun", "{}", late))
		s, done := renewed(t, copied, current, Renewal{})
		if got, want := texts(t, s), []string{"3 one", "4 begun", "5 late", "6 restore"}; !slices.Equal(got, want) || done.LogLines != 1 {
			t.Errorf("got %v, %d carried; want %v, 1", got, done.LogLines, want)
		}
	})
	t.Run("no store", func(t *testing.T) {
		copied, _ := replaced(t, logged("one", "{}", early), nil)
		s, _ := renewed(t, copied, "", Renewal{})
		if got, want := texts(t, s), []string{"1 one", "2 restore"}; !slices.Equal(got, want) {
			t.Errorf("got %v; want %v", got, want)
		}
	})
	t.Run("a thousand lines of a kind", func(t *testing.T) {
		many := func(from, n int) story {
			return func(tx store.Tx) error {
				for i := range n {
					if err := tx.AppendLog(early, "sweep", fmt.Appendf(nil, `{"n":%d}`, from+i)); err != nil {
						return err
					}
				}
				return nil
			}
		}
		copied, current := replaced(t, all(logged("rare", "{}", early), denial4("aa", "op", "x"), many(0, 700)), all(noDenials, many(700, 1800)))
		s, _ := renewed(t, copied, current, Renewal{})
		looks(t, s, func(r store.Reader) error {
			lines, err := r.Log("sweep", 0, 5000)
			if err != nil || len(lines) != store.LogKeep || string(lines[0].Receipt) != `{"n":2499}` {
				t.Errorf("got %d lines, %v; want the last %d", len(lines), err, store.LogKeep)
			}
			if rare, err := r.Log("rare", 0, 5); err != nil || len(rare) != 1 {
				t.Errorf("rare: got %v, %v; want it kept", rare, err)
			}
			if _, err := r.Denied("aa", "", late); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("denial: got %v; want it gone: the store went on from the backup, whose newest lines it has dropped", err)
			}
			return nil
		})
	})
}

// What a store denies that did not go on from the backup adds to what the backup
// denies, and so do its held items and its runs.
func TestCarryFromAnotherStore(t *testing.T) {
	t.Parallel()
	copied, _ := replaced(t, all(hosts, pushed("beta", "alpha", "m1"), denial4("aa", "op", "one"), denial4("bb", "op", "two"), logged("one", "{}", early),
		ran("backup", early), stated("kept", "1"), stated("clock", `"x"`), rotated("gamma", "gamma2", early)), nil)
	current := another(t, late, all(hosts, pushed("beta", "alpha", "new"), heldNow("beta", "new", late, "op"), denial4("bb", "op", "changed"),
		denial4("cc", "issuer", "three"), ran("drill", late), listed("gamma", late, "alpha"),
		pushed("gamma", "alpha", "astray"), heldNow("gamma", "astray", late, "op")))
	s, done := renewed(t, copied, current, Renewal{Consume: "/b/two.db"})
	if done.Denials != 2 || done.Held != 2 || done.SenderLists != 0 {
		t.Errorf("got %+v; want 2 denials, 2 held, no list of a key that was rotated away", done)
	}
	looks(t, s, func(r store.Reader) error {
		for fp, want := range map[string]string{"aa": "one", "bb": "changed", "cc": "three"} {
			if d, err := r.Denied(fp, "", late); err != nil || d.Reason != want {
				t.Errorf("%s: got %q, %v; want %q", fp, d.Reason, err, want)
			}
		}
		wantQueue(t, r, "beta", "m1")
		wantHeld(t, r, "astray gamma2 op", "new beta op") // the latter under another number: m1 has the one it had
		for _, job := range []string{"backup", "drill"} {
			if _, err := r.LastRun(job, store.OutcomeOK); err != nil {
				t.Errorf("%s: %v; want the history of both", job, err)
			}
		}
		if v, err := r.State("kept"); err != nil || string(v) != "1" {
			t.Errorf("kept: got %s, %v; want it", v, err)
		}
		if v, err := r.State("restored_paths"); err != nil || !strings.Contains(string(v), "/b/two.db") {
			t.Errorf("restored paths: got %s, %v; want the consumed one", v, err)
		}
		return nil
	})
}

// A number that was ever given to a denial names that one or none after a restore:
// who has it on a screen, or in a script, unblocks no other host.
func TestCarryKeepsTheNumbersOfDenials(t *testing.T) {
	t.Parallel()
	gone := func(ids ...int64) story {
		return func(tx store.Tx) error {
			for _, id := range ids {
				if err := tx.RemoveDenial(id); err != nil {
					return err
				}
			}
			return nil
		}
	}
	deny := func(fps ...string) story {
		return func(tx store.Tx) error {
			for _, fp := range fps {
				if err := denial4(fp, "op", "of "+fp)(tx); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name          string
		before, after story
		other         story // of a store that did not go on from the backup
		want          string
		next          int64
	}{
		{"what was added and removed since", deny("aa", "bb"), all(gone(1), deny("cc", "dd"), gone(4)), nil, "2bb 3cc", 5},
		{"a number that only the backup has", deny("aa", "bb"), gone(1, 2), nil, "", 3},
		{"the last ones given are gone from both", all(deny("aa", "bb", "cc"), gone(3)), nil, nil, "1aa 2bb", 4},
		{"the last ones given are gone from the backup", all(deny("aa"), gone(1)), nil, deny(), "", 2},
		{"two stores", deny("aa", "bb", "cc"), nil, all(deny("xx", "bb", "yy", "zz"), gone(4)), "5aa 6cc 7xx 8bb 9yy", 10},
		{"two stores that deny the same", deny("aa", "bb"), nil, all(deny("aa", "bb", "cc"), gone(3)), "1aa 2bb", 4},
		{"two stores that deny the same under other numbers", deny("aa", "bb"), nil, all(deny("aa", "cc", "bb"), gone(2)), "4aa 5bb", 6},
		{"two stores, only the backup denies", deny("aa"), nil, deny(), "2aa", 3},
	} {
		copied, current := replaced(t, tt.before, tt.after)
		if tt.other != nil {
			current = another(t, late, tt.other)
		}
		s, _ := renewed(t, copied, current, Renewal{})
		tell(t, s, deny("new"))
		var got []string
		looks(t, s, func(r store.Reader) error {
			list, err := r.(reader).denials()
			for _, d := range list {
				got = append(got, fmt.Sprint(d.id, d.who.hostFP))
			}
			return err
		})
		if want := strings.TrimSpace(fmt.Sprintf("%s %dnew", tt.want, tt.next)); strings.Join(got, " ") != want {
			t.Errorf("%s: got %v; want %s", tt.name, got, want)
		}
	}
}

// Of two denials of one subject, in stores that did not go on from each other,
// the one that lasts longer decides until when.
func TestCarryKeepsTheLaterEndOfADenial(t *testing.T) {
	t.Parallel()
	until := func(ends ...time.Time) story {
		return func(tx store.Tx) error {
			for i, end := range ends {
				if err := tx.AddDenial(store.Denial{HostFP: string(rune('a' + i)), Source: "op", Reason: "x", AddedAt: early, Until: end}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	a, b, ever := restored, restored.Add(time.Hour), time.Time{}
	mine, theirs, want := []time.Time{ever, a, b, a, ever}, []time.Time{a, ever, a, b, ever}, []time.Time{ever, ever, b, b, ever}
	copied, _ := replaced(t, until(mine...), nil)
	s, done := renewed(t, copied, another(t, late, until(theirs...)), Renewal{})
	if done.Denials != 2 {
		t.Errorf("got %d denials; want the two that last longer now", done.Denials)
	}
	var got []time.Time
	looks(t, s, func(r store.Reader) error {
		list, err := r.(reader).denials()
		for _, d := range list {
			got = append(got, d.till)
		}
		return err
	})
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("got %v; want %v", got, want)
	}
}

// A store that was restored from an older backup since is of the same birth as a
// newer backup, and does not know what that denies: its silence lifts nothing.
func TestCarryLiftsNoDenialByIgnorance(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	older, newer := filepath.Join(t.TempDir(), "older.db"), filepath.Join(t.TempDir(), "newer.db")
	tell(t, s, logged("begun", "{}", early))
	if err := s.Copy(t.Context(), older, nil); err != nil {
		t.Fatal(err)
	}
	tell(t, s, all(denial4("aa", "op", "bad"), logged("deny", "{}", late)))
	if err := s.Copy(t.Context(), newer, nil); err != nil {
		t.Fatal(err)
	}
	lost, _ := renewed(t, older, "", Renewal{})
	checkedClose(t, lost)
	s2, _ := renewed(t, newer, foldedAt(t, lost.Dir()), Renewal{})
	looks(t, s2, func(r store.Reader) error {
		_, err := r.Denied("aa", "", late)
		return err
	})
}

// Restoring the replaced store brings it back as it was, and nothing that was
// taken away in between comes back with it.
func TestE1_RollbackCarriesNothingTwice(t *testing.T) {
	t.Parallel()
	copied, current := replaced(t, all(hosts, pushed("beta", "alpha", "m1"), listed("beta", early, "alpha")),
		all(pushed("beta", "alpha", "m2"), revoke("gamma", late), listed("beta", late, "alpha", "delta"), logged("backup", "{}", late)))
	first, done := renewed(t, copied, current, Renewal{})
	if done.Revocations != 1 || done.SenderLists != 1 || done.SeqFloors != 1 {
		t.Errorf("restore: got %+v; want 1 of each", done)
	}
	tell(t, first, logged("backup", `{"after":"restore"}`, restored))
	checkedClose(t, first)
	second, done := renewed(t, current, foldedAt(t, first.Dir()), Renewal{Epoch: "third", At: restored.Add(time.Hour)})
	if done.Revocations != 0 || done.SenderLists != 0 || done.NewerMail != 0 {
		t.Errorf("rollback: got %+v; want nothing carried but the log", done)
	}
	looks(t, second, func(r store.Reader) error {
		wantQueue(t, r, "beta", "m1", "m2")
		wantLive(t, r, "gamma", false)
		lines, err := r.Log("", 0, 9)
		var ops []string
		for _, l := range lines {
			ops = append(ops, l.Op)
		}
		if !slices.Equal(ops, []string{"restore", "backup", "restore", "backup"}) {
			t.Errorf("log: got %v; want restore, backup, restore, backup, the newest first", ops)
		}
		return err
	})
}

// Between stores that did not go on from each other the signed time of an ad
// tells which is newer, and when it was received only where none is told.
func TestCarryAdsOfAnotherStore(t *testing.T) {
	t.Parallel()
	signed := func(iat time.Time, more string) string {
		return `{"iat":"` + wire.FormatTime(iat) + `","of":"` + more + `"}`
	}
	ad := func(record string, at time.Time) story {
		return func(tx store.Tx) error {
			return tx.PutEncAd(key("beta"), store.EncAd{Record: []byte(record), Sig: "sig", At: at})
		}
	}
	for _, c := range []struct {
		name         string
		mine, theirs string
		mineAt, at   time.Time
		carried      int
	}{
		{"signed later, received earlier", signed(early, "a"), signed(late, "b"), late, early, 1},
		{"signed earlier, received later", signed(late, "a"), signed(early, "b"), early, late, 0},
		{"signed at once, received later", signed(early, "a"), signed(early, "b"), early, late, 1},
		{"no time in one, received later", "v2 one", signed(early, "b"), early, late, 1},
		{"no time in the other, received earlier", signed(early, "a"), `{"iat":7}`, late, early, 0},
		{"the same", signed(early, "a"), signed(early, "a"), early, late, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			copied, _ := replaced(t, all(hosts, ad(c.mine, c.mineAt)), nil)
			s, done := renewed(t, copied, another(t, late, all(enrol("beta"), ad(c.theirs, c.at))), Renewal{})
			want := c.mine
			if c.carried > 0 {
				want = c.theirs
			}
			looks(t, s, func(r store.Reader) error {
				got, err := r.EncAd(key("beta"))
				if string(got.Record) != want || done.EncAdRecords != c.carried {
					t.Errorf("got %q, %+v; want %q", got.Record, done, want)
				}
				return err
			})
		})
	}
}
