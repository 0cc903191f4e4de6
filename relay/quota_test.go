package relay_test

import (
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestC9_SharesAndAccounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts, limits(func(l *relay.Limits) { l.MaxSenderItems, l.MaxOwnerItems = 2, 3 }))
	alpha, beta, h2 := r.enrol("alpha"), r.enrol("beta", "acme"), r.enrol("h2", "acme")
	mallory := wiretest.NewHost("mallory")
	ok(t, "enrol mallory", r.tryEnrol(mallory, "the-owner-of-beta"))

	r.pushed(mallory, mail(mallory, beta), "accepted")
	r.pushed(mallory, mail(mallory, beta), "accepted")
	r.pushed(mallory, mail(mallory, beta), "rejected:quota:sender share exceeded for beta") // (a)
	r.pushed(alpha, mail(alpha, beta), "accepted")                                          // (b)
	r.pushed(alpha, mail(alpha, h2), "rejected:quota:owner queue depth exceeded for h2")    // (c)
	same(t, "account depth", r.accountUsage("acme").Items, 3)
}

// Each limit is reached exactly, refuses the next item by its name, never
// refuses a duplicate, and gives way once something is acked or expires.
func TestQuotas(t *testing.T) {
	t.Parallel()
	// Mail of these hosts is always of one size.
	size := int64(len(wireOf(mail(wiretest.NewHost("alpha"), wiretest.NewHost("beta")))))
	tests := []struct {
		name, want string
		set        func(*relay.Limits)
	}{
		{"queue depth", "queue depth exceeded for beta", func(l *relay.Limits) { l.MaxQueueItems = 2 }},
		{"queue bytes", "queue bytes exceeded for beta", func(l *relay.Limits) { l.MaxQueueBytes = 2 * size }},
		{"sender items", "sender share exceeded for beta", func(l *relay.Limits) { l.MaxSenderItems = 2 }},
		{"sender bytes", "sender share exceeded for beta", func(l *relay.Limits) { l.MaxSenderBytes = 2 * size }},
		{"owner depth", "owner queue depth exceeded for beta", func(l *relay.Limits) { l.MaxOwnerItems = 2 }},
		{"owner bytes", "owner queue bytes exceeded for beta", func(l *relay.Limits) { l.MaxOwnerBytes = 2 * size }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, withAccounts, limits(tt.set))
			alpha, beta := r.enrol("alpha"), r.enrol("beta", "acme")
			full := "rejected:quota:" + tt.want
			first, second := mail(alpha, beta), mail(alpha, beta)
			r.pushed(alpha, first, "accepted")
			r.pushed(alpha, second, "accepted")
			r.pushed(alpha, mail(alpha, beta), full)
			r.pushed(alpha, first, "duplicate")
			same(t, "usage", r.usage(beta), store.Usage{Items: 2, Bytes: 2 * size})
			same(t, "account", r.accountUsage("acme"), store.Usage{Items: 2, Bytes: 2 * size})

			r.ack(beta, 1)
			r.pushed(alpha, first, "duplicate") // the dedup row outlives the item
			third := mail(alpha, beta)
			r.pushed(alpha, third, "accepted")
			r.pushed(alpha, mail(alpha, beta), full)

			next := r.rotated(beta) // the charge moves with the queue
			same(t, "usage of the dead key", r.usage(beta), store.Usage{})
			same(t, "usage of the new key", r.usage(next), store.Usage{Items: 2, Bytes: 2 * size})
			same(t, "account", r.accountUsage("acme"), store.Usage{Items: 2, Bytes: 2 * size})
			r.pushed(alpha, mail(alpha, next), full)

			r.clock.Add(14 * day)
			r.pushed(alpha, mail(alpha, next), full) // until the sweep
			same(t, "expired", r.sweep().Expired.Envelopes, 2)
			same(t, "usage after the sweep", r.usage(next), store.Usage{})
			same(t, "account after the sweep", r.accountUsage("acme"), store.Usage{})
			r.pushed(alpha, mail(alpha, next), "accepted")
			r.pushed(alpha, third, "rejected:target not enrolled") // the key it names is dead
			r.pushed(alpha, item(third.Kind, third.ID, to(next, wireOf(third))), "duplicate")
		})
	}
}

// An item with several targets of one account is charged for all of them before
// any is stored.
func TestQuotaOfSeveralTargets(t *testing.T) {
	t.Parallel()
	size := int64(len(wireOf(mail(wiretest.NewHost("alpha"), wiretest.NewHost("beta")))))
	for _, tt := range []struct {
		name, want string
		set        func(*relay.Limits)
	}{
		{"depth", "owner queue depth exceeded for zeta", func(l *relay.Limits) { l.MaxOwnerItems = 3 }},
		{"bytes", "owner queue bytes exceeded for zeta", func(l *relay.Limits) { l.MaxOwnerBytes = 3 * size }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, withAccounts, limits(tt.set))
			alpha, beta, zeta, free := r.enrol("alpha"), r.enrol("beta", "acme"), r.enrol("zeta", "acme"), r.enrol("free")
			first := mail(alpha, beta)
			r.pushed(alpha, first, "accepted")
			both := mail(alpha, beta, zeta)
			r.pushed(alpha, both, "accepted") // three of three
			same(t, "account", r.accountUsage("acme").Items, 3)
			r.ack(zeta, 1) // two of three

			r.pushed(alpha, mail(alpha, free, beta, zeta), "rejected:quota:"+tt.want)
			same(t, "queues", r.queued(free)+r.queued(zeta), "")
			same(t, "queue of beta", r.queued(beta), "1:"+first.ID+" 2:"+both.ID)
			// Known targets are not charged again.
			known := item(first.Kind, first.ID, first.Targets[0], sealedAs(alpha, first.ID, zeta))
			r.pushed(alpha, known, "accepted")
			same(t, "account", r.accountUsage("acme").Items, 3)
			r.pushed(alpha, known, "duplicate")
		})
	}
}

// A full queue refuses no item whose copy for it is known.
func TestQuotaOfPartialDuplicate(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems = 1 }))
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	both := mail(alpha, beta, gamma)
	r.pushed(alpha, item(both.Kind, both.ID, both.Targets[0]), "accepted")
	r.pushed(alpha, both, "accepted")
	same(t, "queues", r.queued(beta)+" "+r.queued(gamma), "1:"+both.ID+" 1:"+both.ID)
}

// In a batch, what is stored first counts against what follows.
func TestQuotaInsideABatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems = 2 }))
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	res := r.push(alpha, mail(alpha, beta), mail(alpha, beta, gamma), mail(alpha, beta), mail(alpha, gamma))
	got := ""
	for _, x := range res {
		got += x.Status + "\n"
	}
	same(t, "statuses", got, "accepted\naccepted\nrejected:quota:queue depth exceeded for beta\naccepted\n")
}

func TestPushRate(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.PushesPerMinute, l.MaxQueueItems = 3, 1000 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	over := func(what string) {
		t.Helper()
		a, b := mail(alpha, beta), wire.PushItem{Kind: "nonsense"} // its item_id is no string
		before := r.totals()
		for i, res := range r.push(alpha, a, b) {
			same(t, what+": status", res.Status, "rejected:rate")
			same(t, what+": item_id", res.ItemID, []string{a.ID, ""}[i])
			same(t, what+": targets", len(res.Targets), 0)
		}
		v1 := r.pushV1(alpha, wireOf(mail(alpha, beta)))
		same(t, what+": v1 stored", v1.Stored, 0)
		contains(t, what+": v1", v1.Error, "rate")
		same(t, what+": items stored", r.totals(), before)
	}
	// Requests count, not items, and v1 and v2 together.
	r.push(alpha, mail(alpha, beta), mail(alpha, beta), mail(alpha, beta), mail(alpha, beta))
	r.clock.Add(30 * time.Second)
	r.pushV1(alpha, wireOf(mail(alpha, beta)))
	r.pushed(alpha, mail(alpha, beta), "accepted")
	over("fourth in the minute")
	r.pushed(beta, mail(beta, alpha), "accepted") // the rate is each sender's own

	r.clock.Add(30*time.Second - time.Millisecond)
	over("1 ms before the window ends")
	r.clock.Add(time.Millisecond)
	for range 3 {
		r.pushed(alpha, mail(alpha, beta), "accepted")
	}
	over("fourth of the next window")

	r.clock.Add(-time.Hour) // a clock set back shuts nobody out
	for range 3 {
		r.pushed(alpha, mail(alpha, beta), "accepted")
	}
	over("fourth after the clock was set back")
}

// The rate table is bounded: when it is full the oldest window makes room, and
// no caller is refused for it.
func TestRateTableIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.EnrolPerMinute, l.RateKeys = 1, 2 }))
	allow := func(addr string, want bool) {
		t.Helper()
		r.clock.Add(time.Millisecond)
		if got := r.relay.AllowAddress(addr) == nil; got != want {
			t.Errorf("call of %s: got %v; want %v", addr, got, want)
		}
	}
	allow("a", true)
	allow("b", true)
	allow("a", false)
	allow("c", true)  // takes a's place
	allow("b", false) // b's is kept
	allow("c", false)
	allow("a", true)
}
