package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Times of the stories here: the backup is taken between the first two.
var (
	early    = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	late     = early.Add(time.Hour)
	restored = early.Add(48 * time.Hour)
)

// story is a write in a story; it may run more than once.
type story func(tx store.Tx) error

func all(parts ...story) story {
	return func(tx store.Tx) error {
		for _, p := range parts {
			if err := p(tx); err != nil {
				return err
			}
		}
		return nil
	}
}

func key(l string) wire.PublicKey { return storetest.Key(l) }

func enrol(label string) story { return enrolAs(label, label, "") }

func enrolAs(label, name, account string) story {
	return func(tx store.Tx) error {
		return tx.PutEnrolment(store.Enrolment{Key: key(label), Name: name, Account: account, AuthorizedBy: "host-key", EnrolledAt: early})
	}
}

func revoke(label string, at time.Time) story {
	return func(tx store.Tx) error { _, err := tx.Revoke(key(label), at); return err }
}

func pushed(target, sender, id string) story {
	return func(tx store.Tx) error { return push(tx, storetest.Mail(key(target), key(sender), id, 300)) }
}

func rotated(from, to string, at time.Time) story {
	return func(tx store.Tx) error {
		_, err := tx.Rotate(store.Rotation{Old: key(from), New: key(to), Name: from, Record: []byte("rotation " + from + to), At: at})
		return err
	}
}

func listed(target string, iat time.Time, senders ...string) story {
	l := store.SenderList{Target: key(target), IAT: iat, Record: []byte("list " + strings.Join(senders, " ")), Sig: "sig"}
	for _, s := range senders {
		l.Senders = append(l.Senders, key(s))
	}
	return func(tx store.Tx) error { return tx.PutSenderList(l) }
}

func advertised(host, what string, at time.Time) story {
	return func(tx store.Tx) error {
		return errors.Join(tx.PutEncKey(key(host), host, store.EncKey{EncPub: "v1 " + what, Sig: "sig", At: at}),
			tx.PutEncAd(key(host), store.EncAd{Record: []byte("v2 " + what), Sig: "sig", At: at}))
	}
}

func denial4(fp, source, reason string) story {
	return func(tx store.Tx) error {
		return tx.AddDenial(store.Denial{HostFP: fp, Source: source, Reason: reason, AddedAt: early})
	}
}

func noDenials(tx store.Tx) error { return tx.(*txOfTest).sql("DELETE FROM deny") }

func logged(op, receipt string, at time.Time) story {
	return func(tx store.Tx) error { return tx.AppendLog(at, op, []byte(receipt)) }
}

// heldNow holds an item of a queue by its id.
func heldNow(target, id string, at time.Time, actor string) story {
	return func(tx store.Tx) error {
		seq := int64(0)
		if err := tx.Page(key(target), 0, 1000, func(it store.Item) bool {
			if it.ID == id {
				seq = it.Seq
			}
			return seq == 0
		}); err != nil {
			return err
		}
		return tx.Hold(key(target), seq, at, actor, "why "+id)
	}
}

func stated(name, value string) story {
	return func(tx store.Tx) error { return tx.SetState(name, []byte(value)) }
}

func started(job, holder string, at time.Time) story {
	return func(tx store.Tx) error {
		_, err := tx.StartRun(store.Run{Job: job, AskedBy: "schedule", Holder: holder, StartedAt: at})
		return err
	}
}

func ran(job string, at time.Time) story {
	return func(tx store.Tx) error {
		id, err := tx.StartRun(store.Run{Job: job, AskedBy: "schedule", Holder: "h", StartedAt: at})
		if err != nil {
			return err
		}
		return tx.FinishRun(store.Run{ID: id, FinishedAt: at.Add(time.Second), Outcome: store.OutcomeOK, Detail: "fine"}, 200)
	}
}

// txOfTest is a transaction that reaches below the contract.
type txOfTest struct{ *tx }

func (t *txOfTest) sql(q string, args ...any) error { _, err := t.c.exec(q, args...); return err }

func tell(t *testing.T, s *Store, stories ...story) {
	t.Helper()
	for i, fn := range stories {
		if fn == nil {
			continue
		}
		if err := s.Update(t.Context(), func(x store.Tx) error { return fn(&txOfTest{x.(*tx)}) }); err != nil {
			t.Fatalf("part %d of the story: %v", i, err)
		}
	}
}

// replaced tells a story with a backup in its middle, and answers the backup and
// the store that went on, both at rest.
func replaced(t *testing.T, before, after story) (copied, current string) {
	t.Helper()
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	tell(t, s, before)
	copied = filepath.Join(t.TempDir(), "copy.db")
	if err := s.Copy(t.Context(), copied, nil); err != nil {
		t.Fatal(err)
	}
	tell(t, s, after)
	checkedClose(t, s)
	return copied, foldedAt(t, o.Dir)
}

func foldedAt(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, FileName)
	if err := Fold(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// another is a store of its own, as one that was begun anew after a loss.
func another(t *testing.T, at time.Time, parts story) string {
	t.Helper()
	o := testOptions(t.TempDir())
	o.Now = func() time.Time { return at }
	s := mustOpen(t, o)
	tell(t, s, parts)
	checkedClose(t, s)
	return foldedAt(t, o.Dir)
}

// renewed renews the copy and opens what it became.
func renewed(t *testing.T, copied, current string, r Renewal) (*Store, Carried) {
	t.Helper()
	if r.Epoch == "" {
		r.Epoch = "new epoch"
	}
	if r.At.IsZero() {
		r.At = restored
	}
	if r.Finish == nil {
		r.Finish = func(c Carried) ([]byte, error) { return json.Marshal(c) }
	}
	was := map[string][]byte{}
	if current != "" {
		was[current] = readFile(t, current)
	}
	done, err := Renew(t.Context(), copied, current, r)
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	for path, b := range was {
		if !slices.Equal(b, readFile(t, path)) {
			t.Error("the replaced store's file has changed; want it as it was")
		}
	}
	for _, path := range []string{copied, current} {
		if list, err := Sidecars(path); err != nil || len(list) > 0 {
			t.Errorf("beside %s: got %v, %v; want nothing", path, list, err)
		}
	}
	var seal Seal
	_, _ = seal.Write(readFile(t, copied))
	if sealed, _ := seal.Whole(); sealed {
		t.Error("it carries the checksum of the copy that it was")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), readFile(t, copied), 0o600); err != nil {
		t.Fatal(err)
	}
	return mustOpen(t, testOptions(dir)), done
}

// looks runs fn over a store.
func looks(t *testing.T, s *Store, fn func(r store.Reader) error) {
	t.Helper()
	if err := s.View(context.Background(), fn); err != nil {
		t.Error(err)
	}
}

func wantLive(t *testing.T, r store.Reader, label string, want bool) {
	t.Helper()
	e, err := r.Enrolment(key(label))
	if err != nil && !errors.Is(err, store.ErrNotFound) || (err == nil && e.Live()) != want {
		t.Errorf("%s: got %+v, %v; want live %v", label, e, err, want)
	}
}

func wantQueue(t *testing.T, r store.Reader, target string, want ...string) {
	t.Helper()
	var ids []string
	if err := r.Page(key(target), 0, 1000, func(it store.Item) bool { ids = append(ids, it.ID); return true }); err != nil {
		t.Error(err)
	}
	if !slices.Equal(ids, want) {
		t.Errorf("queue of %s: got %v; want %v", target, ids, want)
	}
}

// wantHeld compares what is held: id, target and actor of each.
func wantHeld(t *testing.T, r store.Reader, want ...string) {
	t.Helper()
	var got []string
	labels := map[wire.PublicKey]string{key("alpha"): "alpha", key("beta"): "beta", key("beta2"): "beta2", key("gamma2"): "gamma2"}
	if err := r.Held(func(h store.HeldItem) bool {
		got = append(got, fmt.Sprintf("%s %s %s", h.ID, labels[h.Target], h.Actor))
		if d, err := r.Dedup(h.Sender, h.ID, h.Target); err != nil || d.Seq != h.Seq {
			t.Errorf("dedup of %s: got %+v, %v; want its row with seq %d", h.ID, d, err, h.Seq)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("held: got %q; want %q", got, want)
	}
}

var hosts = all(enrol("alpha"), enrol("beta"), enrol("gamma"))

func TestCarry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before, after story
		want          Carried // without LogLines
		warns         int
		check         func(t *testing.T, r store.Reader)
	}{
		{name: "nothing happened since", before: hosts, check: func(t *testing.T, r store.Reader) {
			in, err := r.Info()
			if err != nil || in.Epoch != "new epoch" || !in.Heartbeat.Equal(restored) || !in.CreatedAt.Equal(early) {
				t.Errorf("got %+v, %v; want the new epoch, a heartbeat now, the birth it had", in, err)
			}
			if v, err := r.State("job-wanted:backup"); err != nil || string(v) != `"after a restore"` {
				t.Errorf("wanted: got %s, %v; want a backup", v, err)
			}
		}},
		{name: "E1 a revocation, a longer list, two more messages",
			before: all(hosts, pushed("beta", "alpha", "m1"), listed("beta", early, "alpha"), advertised("beta", "one", early)),
			after: all(pushed("beta", "alpha", "m4"), pushed("beta", "alpha", "m5"), revoke("gamma", late),
				listed("beta", late, "alpha", "delta"), advertised("beta", "one", late)), // published again as it was
			want: Carried{Revocations: 1, SenderLists: 1, SeqFloors: 1, NewerMail: 2},
			check: func(t *testing.T, r store.Reader) {
				e, err := r.Enrolment(key("gamma"))
				if err != nil || !e.RevokedAt.Equal(late) {
					t.Errorf("gamma: got %+v, %v; want it revoked when it was", e, err)
				}
				if _, named, err := r.Accepts(key("beta"), key("delta")); err != nil || !named {
					t.Errorf("delta: got %v, %v; want it in beta's list", named, err)
				}
				wantQueue(t, r, "beta", "m1")
				if head, err := r.Head(key("beta")); err != nil || head != 3 {
					t.Errorf("head: got %d, %v; want 3, what the replaced store reached", head, err)
				}
			}},
		{name: "G19 a newer enc ad", before: all(hosts, advertised("beta", "one", early)), after: advertised("beta", "two", late),
			want: Carried{EncAds: 1, EncAdRecords: 1}, check: func(t *testing.T, r store.Reader) {
				ad, err := r.EncAd(key("beta"))
				k, err2 := r.EncKey(key("beta"))
				if err != nil || err2 != nil || string(ad.Record) != "v2 two" || k.EncPub != "v1 two" {
					t.Errorf("got %q, %q, %v; want the newer of both", ad.Record, k.EncPub, errors.Join(err, err2))
				}
			}},
		{name: "an older list does not come over, an ad of a clock that was set back does",
			before: all(hosts, listed("beta", late, "alpha"), advertised("beta", "one", late)),
			after:  all(listed("beta", early, "gamma"), advertised("beta", "two", early)),
			want:   Carried{EncAds: 1, EncAdRecords: 1},
			check: func(t *testing.T, r store.Reader) {
				ad, err := r.EncAd(key("beta"))
				if _, named, err2 := r.Accepts(key("beta"), key("alpha")); !named || err2 != nil || err != nil || string(ad.Record) != "v2 two" {
					t.Errorf("got %v, %q, %v; want the backup's list and the ad published last", named, ad.Record, errors.Join(err, err2))
				}
			}},
		{name: "a host that enrolled and was revoked since", before: hosts, after: all(enrolAs("delta", "d", "acct"), revoke("delta", late)),
			want: Carried{Revocations: 1}, check: func(t *testing.T, r store.Reader) {
				if e, err := r.Enrolment(key("delta")); err != nil || e.Live() || e.Account != "acct" {
					t.Errorf("got %+v, %v; want it revoked, with what was known of it", e, err)
				}
			}},
		{name: "a host that enrolled since is not carried", before: hosts, after: enrol("delta"), check: func(t *testing.T, r store.Reader) {
			wantLive(t, r, "delta", false)
		}},
		{name: "a rotation", before: all(hosts, pushed("beta", "alpha", "m1"), pushed("beta", "gamma", "m2"), listed("beta", early, "alpha", "gamma"),
			listed("alpha", early, "beta"), advertised("beta", "one", early)),
			after: all(rotated("beta", "beta2", late), pushed("beta2", "alpha", "m3")),
			want:  Carried{Rotations: 1, SeqFloors: 1, NewerMail: 1},
			check: func(t *testing.T, r store.Reader) {
				wantLive(t, r, "beta", false)
				wantLive(t, r, "beta2", true)
				wantQueue(t, r, "beta")
				wantQueue(t, r, "beta2", "m1", "m2")
				if _, named, err := r.Accepts(key("beta2"), key("gamma")); !named || err != nil {
					t.Errorf("its list: got %v, %v; want it to follow", named, err)
				}
				if _, named, err := r.Accepts(key("alpha"), key("beta2")); !named || err != nil {
					t.Errorf("alpha's list: got %v, %v; want it to name the new key", named, err)
				}
				if _, err := r.Dedup(key("alpha"), "m1", key("beta2")); err != nil {
					t.Errorf("dedup: %v; want it to follow", err)
				}
				if e, err := r.Enrolment(key("beta")); err != nil || !e.RevokedAt.Equal(late) {
					t.Errorf("old key: got %+v, %v; want it revoked when it was", e, err)
				}
				if head, err := r.Head(key("beta2")); err != nil || head < 3 {
					t.Errorf("head: got %d, %v; want it above all that was handed out", head, err)
				}
			}},
		{name: "a chain of rotations on a clock that stood still, then revoked", before: all(hosts, pushed("beta", "alpha", "m1")),
			after: all(rotated("beta", "z", late), rotated("z", "b", late), rotated("b", "a", late), revoke("a", late)),
			want:  Carried{Rotations: 3, Revocations: 1, SeqFloors: 3}, check: func(t *testing.T, r store.Reader) {
				for _, l := range []string{"beta", "z", "b", "a"} {
					wantLive(t, r, l, false)
				}
				wantQueue(t, r, "a", "m1")
			}},
		{name: "a rotation of a host that the backup does not know", before: all(hosts, listed("alpha", early, "delta")),
			after: all(enrol("delta"), rotated("delta", "delta2", late)), want: Carried{Rotations: 1}, check: func(t *testing.T, r store.Reader) {
				wantLive(t, r, "delta", false)
				wantLive(t, r, "delta2", false)
				if _, err := r.Enrolment(key("delta2")); !errors.Is(err, store.ErrNotFound) {
					t.Errorf("new key: got %v; want no enrolment", err)
				}
				if e, err := r.Enrolment(key("delta")); err != nil || e.Live() {
					t.Errorf("old key: got %+v, %v; want it revoked", e, err)
				}
				if keys, err := r.RotatedFrom(key("delta2"), 9); err != nil || len(keys) != 1 {
					t.Errorf("rotated from: got %v, %v; want the old key", keys, err)
				}
				if _, named, err := r.Accepts(key("alpha"), key("delta2")); !named || err != nil {
					t.Errorf("alpha's list: got %v, %v; want it to name the new key", named, err)
				}
			}},
		{name: "a rotation into an account where the name was free again",
			before: all(enrolAs("beta", "mac", ""), enrolAs("beta2", "other", "acct"), enrolAs("gamma", "mac", "acct"), pushed("beta", "alpha", "m1")),
			after:  all(revoke("gamma", late), rotated("beta", "beta2", late)), want: Carried{Revocations: 1, Rotations: 1, SeqFloors: 1},
			check: func(t *testing.T, r store.Reader) {
				wantLive(t, r, "beta2", true)
				wantQueue(t, r, "beta2", "m1")
				if u, err := r.AccountUsage("acct"); err != nil || u.Items != 1 {
					t.Errorf("account: got %+v, %v; want the item charged", u, err)
				}
			}},
		{name: "a rotation whose name is taken in the backup", warns: 1,
			before: all(enrolAs("beta", "mac", ""), enrolAs("beta2", "other", "acct"), enrolAs("gamma", "mac", "acct"), pushed("beta", "alpha", "m1")),
			after:  all(enrolAs("gamma", "renamed", "acct"), rotated("beta", "beta2", late)), // gamma's new name is an enrolment, which is not carried
			want:   Carried{Rotations: 1, SeqFloors: 1},
			check: func(t *testing.T, r store.Reader) {
				wantLive(t, r, "beta", false)
				wantLive(t, r, "gamma", true)
				wantQueue(t, r, "beta2", "m1")
			}},
		{name: "denials", before: all(denial4("aa", "op", "one"), denial4("bb", "op", "two"), denial4("cc", "op", "same")),
			after: all(noDenials, denial4("aa", "op", "changed"), denial4("cc", "op", "same"), denial4("dd", "op", "new")),
			want:  Carried{Denials: 2}, check: func(t *testing.T, r store.Reader) {
				for fp, want := range map[string]string{"aa": "changed", "bb": "", "cc": "same", "dd": "new"} {
					d, err := r.Denied(fp, "", late)
					if err != nil && !errors.Is(err, store.ErrNotFound) || d.Reason != want {
						t.Errorf("%s: got %q, %v; want %q", fp, d.Reason, err, want)
					}
				}
			}},
		{name: "held items", before: all(hosts, pushed("beta", "alpha", "m1"), pushed("beta", "alpha", "m2"), pushed("beta", "alpha", "m3"), heldNow("beta", "m3", early, "first"),
			pushed("beta", "alpha", "m5"), heldNow("beta", "m5", early, "first")),
			after: all(heldNow("beta", "m2", late, "op"), pushed("beta", "alpha", "m4"), heldNow("beta", "m4", late, "op"),
				func(tx store.Tx) error { // the hold of m5 was lifted, and m5 delivered
					return tx.(*txOfTest).Drop(store.Item{Target: key("beta"), Seq: 4, Held: true})
				}),
			want: Carried{Held: 2, SeqFloors: 1, HeldAgain: 1}, check: func(t *testing.T, r store.Reader) {
				wantQueue(t, r, "beta", "m1")
				wantHeld(t, r, "m2 beta op", "m3 beta first", "m4 beta op", "m5 beta first")
				if u, err := r.QueueUsage(key("beta")); err != nil || u.Items != 5 {
					t.Errorf("usage: got %+v, %v; want the five charged", u, err)
				}
			}},
		{name: "items held after a rotation of both ends", before: all(hosts, pushed("beta", "alpha", "m1"), pushed("beta", "alpha", "m2")),
			after: all(rotated("beta", "beta2", late), rotated("alpha", "alpha2", late), heldNow("beta2", "m1", late, "op"),
				pushed("beta2", "alpha2", "m3"), heldNow("beta2", "m3", late, "op")),
			want: Carried{Rotations: 2, SeqFloors: 1, Held: 2}, check: func(t *testing.T, r store.Reader) {
				wantQueue(t, r, "beta2", "m2")
				wantHeld(t, r, "m1 beta2 op", "m3 beta2 op")
			}},
		{name: "an item that was held before its queue moved", before: all(hosts, pushed("beta", "alpha", "m1")),
			after: all(heldNow("beta", "m1", late, "op"), rotated("beta", "beta2", late)),
			want:  Carried{Rotations: 1, SeqFloors: 1, Held: 1}, check: func(t *testing.T, r store.Reader) {
				wantQueue(t, r, "beta2")
				wantHeld(t, r, "m1 beta2 op")
			}},
		{name: "runs", before: all(ran("drill", early), started("backup", "h", early)),
			after: all(func(tx store.Tx) error {
				return tx.FinishRun(store.Run{ID: 2, FinishedAt: late, Outcome: store.OutcomeOK, Detail: "taken"}, 200)
			}, started("sweep", "h", late)), check: func(t *testing.T, r store.Reader) {
				if last, err := r.LastRun("backup", store.OutcomeOK); err != nil || last.ID != 2 || last.Detail != "taken" {
					t.Errorf("backup: got %+v, %v; want the replaced store's word", last, err)
				}
				if last, err := r.LastRun("sweep", store.OutcomeCrashed); err != nil || !last.FinishedAt.Equal(restored) {
					t.Errorf("sweep: got %+v, %v; want it ended", last, err)
				}
				if list, err := r.Runs("", 9); err != nil || len(list) != 3 {
					t.Errorf("got %v, %v; want three runs", list, err)
				}
			}},
		{name: "state", before: all(stated("clock", `"jumped"`), stated("job-wanted:drill", `"old wish"`), stated("kept", `1`), stated("both", `1`)),
			after: all(stated("both", `2`), stated("new", `3`), func(tx store.Tx) error {
				return errors.Join(tx.SetState("clock", nil), tx.SetState("job-wanted:drill", nil))
			}, stated("restored_paths", `{"/b/one.db":"2026-10-02T12:00:00Z"}`)),
			want: Carried{RestoredPaths: 1}, check: func(t *testing.T, r store.Reader) {
				for name, want := range map[string]string{"clock": "", "job-wanted:drill": "", "kept": "1", "both": "2", "new": "3",
					"restored_paths": `{"/b/one.db":"2026-10-02T12:00:00Z"}`} {
					v, err := r.State(name)
					if err != nil && !errors.Is(err, store.ErrNotFound) || string(v) != want {
						t.Errorf("%s: got %s, %v; want %q", name, v, err, want)
					}
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			copied, current := replaced(t, c.before, c.after)
			s, done := renewed(t, copied, current, Renewal{})
			if len(done.Warnings) != c.warns {
				t.Errorf("warnings: got %q; want %d", done.Warnings, c.warns)
			}
			if done.LogLines != 0 {
				t.Errorf("log lines: got %d; want 0", done.LogLines)
			}
			got := done
			got.Warnings, got.After = nil, store.Totals{}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("carried: got %+v; want %+v", got, c.want)
			}
			looks(t, s, func(r store.Reader) error {
				c.check(t, r)
				totals, err := r.Totals()
				if totals != done.After {
					t.Errorf("totals: got %+v; want %+v, as it was told", totals, done.After)
				}
				return err
			})
		})
	}
}

// The log goes on: with the old ids where the replaced store is a continuation of
// the backup, in the order of time where it is not.
func TestCarryLog(t *testing.T) {
	t.Parallel()
	texts := func(t *testing.T, s *Store) (list []string) {
		looks(t, s, func(r store.Reader) error {
			lines, err := r.Log("", 5000)
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
			lines, err := r.Log("sweep", 5000)
			if err != nil || len(lines) != store.LogKeep || string(lines[0].Receipt) != `{"n":2499}` {
				t.Errorf("got %d lines, %v; want the last %d", len(lines), err, store.LogKeep)
			}
			if rare, err := r.Log("rare", 5); err != nil || len(rare) != 1 {
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
		lines, err := r.Log("", 9)
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
			copied, _ := replaced(t, all(hosts, ran("backup", early), started("drill", "h", early), stated("kept", "1")), nil)
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
