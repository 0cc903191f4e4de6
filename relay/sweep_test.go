package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// dedup reports whether the store still knows an item of a sender.
func (r *rig) dedup(from *wiretest.Host, it wire.PushItem) (known bool) {
	r.t.Helper()
	r.view(func(v store.Reader) error {
		_, err := v.Dedup(from.Pub(), it.ID, it.Targets[0].Key)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		known = err == nil
		return err
	})
	return known
}

func TestE3_Sweep(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems = 3 }))
	alpha, beta, mallory := r.enrol("alpha"), r.enrol("beta"), r.enrol("mallory")
	e1, live, e2 := mail(alpha, beta), mail(alpha, beta), mail(mallory, beta)
	rcpt := receipt(beta, alpha, live.ID, 1)
	r.pushed(alpha, e1, "accepted")
	r.pushV1(alpha, wireOf(live)) // v1 mail lives for ever
	r.clock.Add(2 * day)
	r.pushed(mallory, e2, "accepted")
	r.pushed(beta, rcpt, "accepted")
	r.revoke(mallory)

	r.clock.Set(t0.Add(16 * day))
	same(t, "served, swept or not yet", seqs(r.pull(beta, relay.PullQuery{}).Items), "1:"+e1.ID+" 2:"+live.ID+" 3:"+e2.ID)
	first := r.sweep()
	same(t, "(a) sweep", first, relay.SweepReceipt{
		At: "2026-10-18T12:00:00.000Z", Expired: relay.ExpiredCounts{Envelopes: 2, Receipts: 1},
		Notices: 1, Skipped: relay.SkippedNotices{NotEnrolled: 1},
	})
	same(t, "(b) queue", r.queued(beta), "2:"+live.ID)
	same(t, "(b) usage", r.usage(beta), store.Usage{Items: 1, Bytes: int64(len(wireOf(live)))})

	queue := r.queue(alpha) // (c)
	if len(queue) != 1 {
		t.Fatalf("(c) queue of alpha: got %s; want the notice alone", seqs(queue))
	}
	id := "expired:" + e1.ID + ":" + beta.Pub().String()
	got := queue[0]
	same(t, "(c) kind and id", got.Kind+" "+got.ID, "expired "+id)
	same(t, "(c) seq after the receipt's", got.Seq, 2)
	same(t, "(c) sender", got.Sender, r.key.Public())
	n, err := wire.ParseExpiryNotice(got.Wire, r.key.Public())
	ok(t, "(c) notice, its signature too", err)
	if n.ItemID != e1.ID || n.Target != beta.Pub() || !n.AcceptedAt.Equal(t0) || !n.ExpiredAt.Equal(t0.Add(14*day)) {
		t.Errorf("(c) notice: got %+v; want e1 for beta, accepted at t0, expired 14 days later", n)
	}
	if _, err := wire.ParseExpiryNotice(got.Wire, alpha.Pub()); err == nil {
		t.Error("(c) the notice verifies under another key")
	}
	same(t, "(c) pulled as kind", r.pull(alpha, relay.PullQuery{}).Items[0].Kind, "expired")

	late := r.accept(alpha, e1, r.pushed(alpha, e1, "duplicate")) // (d)
	same(t, "(d) at and seq", fmt.Sprint(late.At, late.Targets[0].Seq), wire.FormatTime(t0)+"1")
	same(t, "(d) queue", r.queued(beta), "2:"+live.ID)

	again := r.sweep()
	same(t, "(e) second sweep", again, relay.SweepReceipt{At: again.At})
	same(t, "(e) notices", len(r.queue(alpha)), 1)

	r.clock.Set(t0.Add(22 * day)) // e2 and the receipt are 20 days old
	pruned := r.sweep()
	same(t, "(f) sweep", pruned, relay.SweepReceipt{At: pruned.At, Pruned: 1})
	same(t, "(f) rows of e1, live, e2", fmt.Sprint(r.dedup(alpha, e1), r.dedup(alpha, live), r.dedup(mallory, e2)), "false true true")

	r.ack(alpha, 2) // (g)
	e4 := mail(alpha, beta)
	r.pushed(alpha, e4, "accepted")
	for range 3 {
		same(t, "fill the queue of alpha", r.pushV1(beta, wireOf(mail(beta, alpha))).Stored, 1)
	}
	r.clock.Add(14 * day)
	full := r.sweep()
	same(t, "(g) expired", full.Expired, relay.ExpiredCounts{Envelopes: 1})
	same(t, "(g) notices and skipped", fmt.Sprint(full.Notices, full.Skipped), fmt.Sprint(0, relay.SkippedNotices{OverCap: 1}))
	same(t, "(g) queue of alpha", r.usage(alpha).Items, 3)

	log := r.log("sweep") // (h)
	if len(log) != 3 {
		t.Fatalf("(h) log: got %d sweep receipts; want 3", len(log))
	}
	for i, want := range []relay.SweepReceipt{first, pruned, full} {
		var s relay.SweepReceipt
		ok(t, "(h) decode", json.Unmarshal(log[i].Receipt, &s))
		same(t, fmt.Sprintf("(h) receipt %d", i+1), s, want)
		same(t, "(h) its time", wire.FormatTime(log[i].At), want.At)
	}
}

// An item expires at its time, to the millisecond, and its dedup row is
// forgotten after the horizon of retention and seven days.
func TestExpiryBoundaries(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	same(t, "expires at", r.queue(beta)[0].ExpiresAt, t0.Add(14*day))
	for _, tt := range []struct {
		name   string
		at     time.Duration
		items  int
		pruned int64
		known  bool
	}{
		{"1 ms early", 14*day - time.Millisecond, 1, 0, true},
		{"on time", 14 * day, 0, 0, true},
		{"at the horizon", 21 * day, 0, 0, true},
		{"past the horizon", 21*day + time.Millisecond, 0, 1, false},
	} {
		r.clock.Set(t0.Add(tt.at))
		s := r.sweep()
		same(t, tt.name+": queued", len(r.queue(beta)), tt.items)
		same(t, tt.name+": pruned", s.Pruned, tt.pruned)
		same(t, tt.name+": known", r.dedup(alpha, it), tt.known)
	}
	same(t, "sweeps in the log", len(r.log("sweep")), 2)
}

// Expiry of what is no envelope tells nobody; a notice has its own retention.
func TestExpiryOfNoticesAndReceipts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.pushed(alpha, mail(alpha, beta), "accepted")
	r.clock.Add(14 * day)
	same(t, "notices", r.sweep().Notices, 1)
	r.clock.Add(14*day - time.Millisecond)
	same(t, "notice held", r.sweep().Expired, relay.ExpiredCounts{})
	r.clock.Add(time.Millisecond)
	s := r.sweep()
	same(t, "notice dropped", s.Expired, relay.ExpiredCounts{Notices: 1})
	same(t, "notices of it", s.Notices, 0)
	same(t, "items", r.totals(), store.Totals{Enrolments: 2})
}

// The same item for the same target is told of once, even if it comes back.
func TestNoticeNeverTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	it := mail(alpha, beta)
	both := mail(alpha, beta, gamma)
	r.push(alpha, it, both)
	r.clock.Add(14 * day)
	same(t, "a notice for each target", r.sweep().Notices, 3)
	r.clock.Add(7*day + time.Millisecond)
	same(t, "forgotten", r.sweep().Pruned, 3)
	r.pushed(alpha, it, "accepted") // a sender that comes back after all
	r.clock.Add(14 * day)
	s := r.sweep()
	same(t, "second expiry", fmt.Sprint(s.Expired.Envelopes, s.Notices, s.Skipped.Duplicate), "1 0 1")
}

// A notice is skipped, and counted, for a sender that is gone or full.
func TestNoticeSkipped(t *testing.T) {
	t.Parallel()
	size := func(from, to string) int64 {
		return int64(len(wireOf(mail(wiretest.NewHost(from), wiretest.NewHost(to)))))
	}
	for _, tt := range []struct {
		name string
		set  func(*relay.Limits)
		do   func(r *rig, alpha, beta *wiretest.Host)
		want relay.SkippedNotices
	}{
		{"revoked", nil, func(r *rig, alpha, _ *wiretest.Host) { r.revoke(alpha) }, relay.SkippedNotices{NotEnrolled: 1}},
		{"rotated away", nil, func(r *rig, alpha, _ *wiretest.Host) { r.rotated(alpha) }, relay.SkippedNotices{NotEnrolled: 1}},
		{"item cap", func(l *relay.Limits) { l.MaxQueueItems = 1 }, fill, relay.SkippedNotices{OverCap: 1}},
		{"byte cap", func(l *relay.Limits) { l.MaxQueueBytes = size("alpha", "beta") }, fill, relay.SkippedNotices{OverCap: 1}},
		{"owner items", func(l *relay.Limits) { l.MaxOwnerItems = 1 }, fill, relay.SkippedNotices{OverCap: 1}},
		{"owner bytes", func(l *relay.Limits) { l.MaxOwnerBytes = size("alpha", "beta") }, fill, relay.SkippedNotices{OverCap: 1}},
		{"target revoked", nil, func(r *rig, _, beta *wiretest.Host) { r.revoke(beta) }, relay.SkippedNotices{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, withAccounts, func(s *setup) {
				if tt.set != nil {
					tt.set(&s.Limits)
				}
			})
			alpha, beta := r.enrol("alpha", "acme"), r.enrol("beta")
			r.pushed(alpha, mail(alpha, beta), "accepted")
			tt.do(r, alpha, beta)
			held := len(r.queue(alpha))
			r.clock.Add(14 * day)
			s := r.sweep()
			same(t, "expired", s.Expired, relay.ExpiredCounts{Envelopes: 1})
			same(t, "skipped", s.Skipped, tt.want)
			told := 1 - int(tt.want.NotEnrolled+tt.want.OverCap)
			same(t, "notices", s.Notices, int64(told))
			same(t, "queue of the sender", len(r.queue(alpha)), held+told)
		})
	}
}

// fill puts one item that never expires into alpha's queue.
func fill(r *rig, alpha, beta *wiretest.Host) {
	r.t.Helper()
	same(r.t, "fill", r.pushV1(beta, wireOf(mail(beta, alpha))), relay.V1Result{Stored: 1})
}

// Items from before the store first enforced expiry never expire.
func TestExpiryFrom(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *setup) { s.Birth = t0.Add(time.Hour) })
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	before, after := mail(alpha, beta), mail(alpha, beta)
	r.clock.Set(t0.Add(time.Hour - time.Millisecond))
	r.pushed(alpha, before, "accepted")
	r.clock.Set(t0.Add(time.Hour))
	r.pushed(alpha, after, "accepted")
	r.clock.Add(365 * day)
	same(t, "expired", r.sweep().Expired, relay.ExpiredCounts{Envelopes: 1})
	same(t, "queue", r.queued(beta), "1:"+before.ID)
	same(t, "known still", r.dedup(alpha, before), true)
}

// A run is 20 batches of 500, each a transaction; the rest is the next run's.
func TestSweepBounds(t *testing.T) {
	t.Parallel()
	if raceDetector {
		t.Skip("20,000 rows from one goroutine: a minute of nothing to detect")
	}
	hook := &hookStore{}
	r := newRig(t, func(s *setup) { s.Wrap = hook.wrap })
	beta, sender := r.enrol("beta"), wiretest.NewHost("sender")
	const n = 20*500 + 7
	ok(t, "fill", r.store.Update(t.Context(), func(tx store.Tx) error {
		for i := range n {
			w := []byte(`{}`)
			if _, err := tx.Insert(store.Item{
				Target: beta.Pub(), Kind: store.KindReceipt, ID: fmt.Sprint("r", i), Sender: sender.Pub(),
				Hash: wire.Hash(w), Size: 2, AcceptedAt: t0, ExpiresAt: t0.Add(time.Hour), Wire: w,
			}); err != nil {
				return err
			}
		}
		return nil
	}))
	updates := 0
	hook.beforeUpdate = func() { updates++ }
	r.clock.Add(2 * time.Hour)
	s := r.sweep()
	same(t, "first run", fmt.Sprint(s.Expired.Receipts, s.More), "10000 true")
	same(t, "its transactions, the log's too", updates, 21)
	same(t, "left", r.usage(beta).Items, 7)
	s = r.sweep()
	same(t, "second run", fmt.Sprint(s.Expired.Receipts, s.More), "7 false")
	updates = 0
	r.clock.Add(22 * day)
	s = r.sweep()
	same(t, "prune", fmt.Sprint(s.Pruned, s.More), "10000 true")
	same(t, "its transactions", updates, 1+20+1)
	s = r.sweep()
	same(t, "second prune", fmt.Sprint(s.Pruned, s.More), "7 false")
}

// A sweep that fails half-way keeps what its earlier batches did, and the next
// one does the rest: nobody is told twice.
func TestSweepThatFails(t *testing.T) {
	t.Parallel()
	fail := &failingObserver{kind: relay.Expired, after: 1}
	r := newRig(t, func(s *setup) { s.Observers = []relay.Observer{fail} })
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.push(alpha, mail(alpha, beta), mail(alpha, beta))
	r.clock.Add(14 * day)
	if _, err := r.relay.Sweep(context.Background()); !errors.Is(err, errObserver) {
		t.Fatalf("sweep: got %v; want the observer's error", err)
	}
	same(t, "queue of beta", len(r.queue(beta)), 2) // one transaction: all or nothing
	same(t, "queue of alpha", len(r.queue(alpha)), 0)
	fail.kind = ""
	s := r.sweep()
	same(t, "next sweep", fmt.Sprint(s.Expired.Envelopes, s.Notices), "2 2")
}

// What an operator holds keeps its deadline: at its time it goes, and its
// sender is told as of any other.
func TestHeldItemExpires(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts)
	alpha, beta := r.enrol("alpha"), r.enrol("beta", "acme")
	held, queued, acked := mail(alpha, beta), mail(alpha, beta), mail(alpha, beta)
	r.pushed(alpha, held, "accepted")
	r.pushed(alpha, acked, "accepted")
	r.clock.Add(day)
	ok(t, "hold", r.store.Update(t.Context(), func(tx store.Tx) error {
		return tx.Hold(beta.Pub(), 1, r.clock.Now(), "operator", "looks like spam")
	}))
	r.pushed(alpha, queued, "accepted")
	quarantine := func() (list []store.HeldItem) {
		r.view(func(v store.Reader) error {
			list = nil
			return v.Held(func(it store.HeldItem) bool { list = append(list, it); return true })
		})
		return list
	}
	same(t, "served", seqs(r.pull(beta, relay.PullQuery{}).Items), "2:"+acked.ID+" 3:"+queued.ID)
	same(t, "acked past it", r.ack(beta, 2), relay.AckResult{AckedThrough: 2, Deleted: 1, HeadSeq: 3})
	late := r.accept(alpha, held, r.pushed(alpha, held, "duplicate"))
	same(t, "a retry's seq", late.Targets[0].Seq, 1)
	size := int64(len(held.Targets[0].Wire) + len(queued.Targets[0].Wire))
	same(t, "charged", r.usage(beta), store.Usage{Items: 2, Bytes: size})

	r.clock.Set(t0.Add(14*day - time.Millisecond))
	early := r.sweep()
	same(t, "1 ms early", early, relay.SweepReceipt{At: early.At})
	same(t, "held", len(quarantine()), 1)

	beta2 := r.rotated(beta) // and it follows its target
	r.clock.Set(t0.Add(14 * day))
	s := r.sweep()
	same(t, "sweep", s, relay.SweepReceipt{At: s.At, Expired: relay.ExpiredCounts{Envelopes: 1}, Notices: 1})
	same(t, "held after it", len(quarantine()), 0)
	same(t, "queue", r.queued(beta2), "2:"+queued.ID)
	same(t, "charged after it", r.usage(beta2), store.Usage{Items: 1, Bytes: int64(len(queued.Targets[0].Wire))})
	page := r.pull(alpha, relay.PullQuery{})
	if len(page.Items) != 1 || page.Items[0].Kind != "expired" {
		t.Fatalf("queue of the sender: got %s; want the notice alone", seqs(page.Items))
	}
	n, err := wire.ParseExpiryNotice(page.Items[0].Wire, r.key.Public())
	ok(t, "notice, its signature too", err)
	if n.ItemID != held.ID || n.Target != beta2.Pub() || !n.AcceptedAt.Equal(t0) || !n.ExpiredAt.Equal(t0.Add(14*day)) {
		t.Errorf("notice: got %+v; want the held item for beta, accepted at t0, expired 14 days later", n)
	}
	again := r.sweep()
	same(t, "second sweep", again, relay.SweepReceipt{At: again.At})
	r.clock.Set(t0.Add(21*day + time.Millisecond))
	pruned := r.sweep()
	same(t, "pruned, with the acked one", pruned, relay.SweepReceipt{
		At: pruned.At, Expired: relay.ExpiredCounts{Envelopes: 1}, Notices: 1, Pruned: 2, // the queued one's time is over, too
	})
}
