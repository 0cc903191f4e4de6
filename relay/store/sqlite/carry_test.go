package sqlite

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

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
			if v, err := r.State("job-wanted:backup"); err != nil || string(v) != `"a restore"` {
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
				if list, err := r.Runs("", 0, 9); err != nil || len(list) != 3 {
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

// When hosts were seen is the backup's own; a key that only the replaced store
// knew is found by its fingerprint, and what is held is counted.
func TestCarryForTheDesk(t *testing.T) {
	t.Parallel()
	seen := func(label string, at time.Time) story {
		return func(tx store.Tx) error { return tx.SetSeen(key(label), at) }
	}
	copied, current := replaced(t, all(hosts, pushed("beta", "alpha", "m1"), pushed("beta", "alpha", "m2"), seen("alpha", early)),
		all(seen("alpha", late), seen("beta", late), enrol("delta"), revoke("delta", late), heldNow("beta", "m1", late, "op"),
			pushed("beta", "alpha", "m3"), heldNow("beta", "m3", late, "op")))
	s, _ := renewed(t, copied, current, Renewal{})
	looks(t, s, func(r store.Reader) error {
		a, err := r.Seen(key("alpha"))
		b, err2 := r.Seen(key("beta"))
		if !a.Equal(early) || !b.IsZero() {
			t.Errorf("seen: got %s and %s; want what the backup says", a, b)
		}
		list, err3 := r.ByFingerprint(key("delta").Fingerprint(), 2)
		if len(list) != 1 || list[0].Live() {
			t.Errorf("delta: got %+v; want it found, and revoked", list)
		}
		q, err4 := r.Queue(key("beta"))
		n, err5 := r.Totals()
		if q.Items != 3 || q.Held.Items != 2 || q.Oldest.IsZero() || n.Held != 2 {
			t.Errorf("got %+v, %+v; want 3 items, 2 of them held", q, n)
		}
		return errors.Join(err, err2, err3, err4, err5)
	})
}
