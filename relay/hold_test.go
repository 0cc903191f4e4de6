package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// A held item is out of reach of pulls and acks and stays charged; released, it
// comes at the tail, once.
func TestHoldAndRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts, limits(func(l *relay.Limits) { l.MaxQueueItems = 3 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta", "acme")
	first, held, last := mail(alpha, beta), mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, first, held, last)
	r.clock.Add(time.Hour)
	charged := r.usage(beta)
	r.undone("another id under the number of a queued item", r.relay.Hold, ref(beta, 2, last), relay.ProblemGone)
	r.done(r.relay.Hold, ref(beta, 2, held))
	line := r.receiptOf("hold")
	same(t, "receipt", fmt.Sprintf("%d %+v", line.Items, line.Groups), fmt.Sprintf("1 [{Target:%v Sender:%v Kind:envelope Notice: Bytes:%d Items:[{Seq:2 ID:%s NewSeq:0}]}]",
		beta.Pub(), alpha.Pub(), len(wireOf(held)), held.ID))
	r.view(func(v store.Reader) error {
		h, err := v.HeldItem(beta.Pub(), 2)
		same(t, "who, why and when", fmt.Sprint(h.Actor, h.Reason, h.HeldAt), fmt.Sprint(operator.Actor, operator.Reason, t0.Add(time.Hour)))
		return err
	})
	same(t, "held", r.totals().Held, 1)
	same(t, "charged while held", r.usage(beta), charged)
	same(t, "account charged while held", r.accountUsage("acme"), charged)
	r.pushed(alpha, mail(alpha, beta), "rejected:quota:queue depth exceeded for beta")
	same(t, "pulled", seqs(r.pull(beta, relay.PullQuery{}).Items), "1:"+first.ID+" 3:"+last.ID)
	same(t, "acked past it", r.ack(beta, 3).Deleted, 2)
	same(t, "held after the ack", r.quarantine(), "2:"+held.ID)
	same(t, "a retry's seq while held", r.accept(alpha, held, r.pushed(alpha, held, "duplicate")).Targets[0].Seq, 2)

	r.undone("hold again", r.relay.Hold, ref(beta, 2, held), relay.ProblemHeld)
	r.undone("another id under its number", r.relay.Release, ref(beta, 2, last), relay.ProblemGone)
	out := r.done(r.relay.Release, ref(beta, 2, held))
	same(t, "new seq", out[0].NewSeq, 4)
	same(t, "new seq in the receipt", r.receiptOf("release").Groups[0].Items[0].NewSeq, 4)
	same(t, "charged after the release", r.usage(beta).Items, 1)
	r.undone("release again", r.relay.Release, ref(beta, 2, held), relay.ProblemGone)
	r.undone("release under the new number", r.relay.Release, ref(beta, 4, held), relay.ProblemNotHeld)
	r.undone("discard of what is queued", r.relay.Discard, ref(beta, 4, held), relay.ProblemNotHeld)

	page := r.pull(beta, relay.PullQuery{After: 3}) // as a host that goes on after its last pull
	same(t, "pulled once", seqs(page.Items), "4:"+held.ID)
	same(t, "its bytes", string(page.Items[0].Wire), string(wireOf(held)))
	same(t, "a retry's seq after the release", r.accept(alpha, held, r.pushed(alpha, held, "duplicate")).Targets[0].Seq, 4)
	same(t, "acked", r.ack(beta, 4).Deleted, 1)
	same(t, "pulled again", seqs(r.pull(beta, relay.PullQuery{}).Items), "")
	r.pushed(alpha, held, "duplicate")
	same(t, "left", r.totals(), store.Totals{Enrolments: 2})
	r.undone("hold of what was acked", r.relay.Hold, ref(beta, 4, held), relay.ProblemGone)
}

// A held item may be held, released and held again; each release is a new number.
func TestHeldAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	for seq := int64(1); seq < 4; seq++ {
		r.done(r.relay.Hold, ref(beta, seq, it))
		same(t, "new seq", r.done(r.relay.Release, ref(beta, seq, it))[0].NewSeq, seq+1)
	}
	same(t, "queued", r.queued(beta), "4:"+it.ID)
}

// A discarded item is gone for its target and its sender is told; a retry is a
// duplicate, and the room it took is free.
func TestDiscard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it, other := mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, it, other)
	r.done(r.relay.Hold, ref(beta, 1, it))
	r.clock.Add(day)
	same(t, "notice", r.done(r.relay.Discard, ref(beta, 1, it))[0].Notice, relay.NoticeQueued)
	same(t, "notice in the receipt", r.receiptOf("discard").Groups[0].Notice, relay.NoticeQueued)
	n := r.notice(alpha)
	if n.ItemID != it.ID || n.Target != beta.Pub() || !n.AcceptedAt.Equal(t0) || !n.ExpiredAt.Equal(t0.Add(day)) {
		t.Errorf("notice: got %+v; want the item for beta, accepted at t0, expired now", n)
	}
	same(t, "notice lives", r.queue(alpha)[0].ExpiresAt, t0.Add(15*day))
	same(t, "held", r.quarantine(), "")
	same(t, "charged", r.usage(beta), store.Usage{Items: 1, Bytes: int64(len(wireOf(other)))})
	same(t, "a retry's seq", r.accept(alpha, it, r.pushed(alpha, it, "duplicate")).Targets[0].Seq, 1)
	same(t, "queue", r.queued(beta), "2:"+other.ID)
	r.undone("discard again", r.relay.Discard, ref(beta, 1, it), relay.ProblemGone)
	r.undone("release of what was discarded", r.relay.Release, ref(beta, 1, it), relay.ProblemGone)
	r.clock.Add(13 * day) // the sweep finds the other one alone, whose notice is its own
	same(t, "swept", r.sweep().Notices, 1)
	same(t, "notices", len(r.queue(alpha)), 2)
}

// What becomes of the notice, by who sent what. An item whose sender can't be
// told for want of room stays, and the others of the call are done.
func TestDiscardTellsTheSender(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		set             func(*relay.Limits)
		do              func(r *rig, alpha, beta *wiretest.Host)
		notice, problem string
	}{
		{"told", nil, nil, relay.NoticeQueued, ""},
		{"revoked", nil, func(r *rig, alpha, _ *wiretest.Host) { r.revoke(alpha) }, relay.NoticeNotEnrolled, ""},
		{"rotated away", nil, func(r *rig, alpha, _ *wiretest.Host) { r.rotated(alpha) }, relay.NoticeNotEnrolled, ""},
		{"item cap", func(l *relay.Limits) { l.MaxQueueItems = 2 }, fillTwo, "", relay.ProblemSenderFull},
		{"owner items", func(l *relay.Limits) { l.MaxOwnerItems = 2 }, fillTwo, "", relay.ProblemSenderFull},
		{"target revoked", nil, func(r *rig, _, beta *wiretest.Host) { r.revoke(beta) }, relay.NoticeQueued, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, withAccounts, func(s *setup) {
				if tt.set != nil {
					tt.set(&s.Limits)
				}
			})
			alpha, beta := r.enrol("alpha", "acme"), r.enrol("beta")
			it, rcpt := mail(alpha, beta), receipt(alpha, beta, mail(beta, alpha).ID, 1)
			r.push(alpha, it, rcpt)
			r.done(r.relay.Hold, ref(beta, 1, it), ref(beta, 2, rcpt))
			if tt.do != nil {
				tt.do(r, alpha, beta)
			}
			before := r.queued(alpha)
			list := r.outcomes(r.relay.Discard, ref(beta, 1, it), ref(beta, 2, rcpt))
			same(t, "the envelope", list[0], relay.Outcome{ItemRef: list[0].ItemRef, Done: tt.problem == "", Notice: tt.notice, Problem: tt.problem})
			same(t, "the receipt", list[1], relay.Outcome{ItemRef: list[1].ItemRef, Done: true, Notice: relay.NoticeNone})
			if tt.problem == "" {
				same(t, "held", r.quarantine(), "")
			} else {
				same(t, "held", r.quarantine(), "1:"+it.ID)
			}
			same(t, "told", len(r.queued(alpha)) > len(before), tt.notice == relay.NoticeQueued)
		})
	}
}

func fillTwo(r *rig, alpha, beta *wiretest.Host) {
	r.t.Helper()
	r.pushed(beta, mail(beta, alpha), "accepted")
	r.pushed(beta, mail(beta, alpha), "accepted")
}

// The notice may take the room that the item leaves: in the sender's own queue,
// and in an account that both ends share.
func TestDiscardCountsTheRoomItMakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		set  func(*relay.Limits)
		self bool
	}{
		{"mail to itself", func(l *relay.Limits) { l.MaxQueueItems = 1 }, true},
		{"one account", func(l *relay.Limits) { l.MaxOwnerItems = 1 }, false},
	} {
		r := newRig(t, withAccounts, limits(tt.set))
		alpha, beta := r.enrol("alpha", "acme"), r.enrol("beta", "acme")
		if tt.self {
			beta = alpha
		}
		it := mail(alpha, beta)
		r.pushed(alpha, it, "accepted")
		r.done(r.relay.Hold, ref(beta, 1, it))
		same(t, tt.name, r.done(r.relay.Discard, ref(beta, 1, it))[0].Notice, relay.NoticeQueued)
		r.notice(alpha)
		same(t, tt.name+": the account", r.accountUsage("acme").Items, 1)
	}
}

// The sender is told once of an item that came again after all.
func TestDiscardTellsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	r.clock.Add(14 * day)
	same(t, "notices", r.sweep().Notices, 1)
	r.clock.Add(7*day + time.Millisecond)
	same(t, "forgotten", r.sweep().Pruned, 1)
	r.pushed(alpha, it, "accepted")
	r.done(r.relay.Hold, ref(beta, 2, it))
	same(t, "notice", r.done(r.relay.Discard, ref(beta, 2, it))[0].Notice, relay.NoticeBefore)
	same(t, "held", r.quarantine(), "")
}

// Held mail follows its target's rotation; the old place is gone, the new one
// answers. Mail of a revoked host is not released.
func TestHeldItemsFollowTheirHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, lost := r.enrol("alpha"), r.enrol("beta"), r.enrol("lost")
	one, two, never := mail(alpha, beta), mail(alpha, beta), mail(alpha, lost)
	r.push(alpha, one, two, never)
	r.done(r.relay.Hold, ref(beta, 1, one), ref(beta, 2, two), ref(lost, 1, never))
	beta2 := r.rotated(beta)
	r.undone("release from the old key", r.relay.Release, ref(beta, 1, one), relay.ProblemGone)
	moved := r.heldBy(beta2)
	at := slices.IndexFunc(moved, func(it store.HeldItem) bool { return it.ID == one.ID })
	same(t, "held", len(moved), 2)
	out := r.done(r.relay.Release, ref(beta2, moved[at].Seq, one))
	same(t, "pulled by the new key", seqs(r.pull(beta2, relay.PullQuery{}).Items), fmt.Sprintf("%d:%s", out[0].NewSeq, one.ID))
	r.pushed(alpha, mail(alpha, beta), "rejected:target not enrolled")

	r.revoke(lost)
	r.undone("release to a revoked host", r.relay.Release, ref(lost, 1, never), relay.ProblemNoHost)
	same(t, "discard of its mail", r.done(r.relay.Discard, ref(lost, 1, never))[0].Notice, relay.NoticeQueued)
	same(t, "notice", r.notice(alpha).Target, lost.Pub())
}

func (r *rig) heldBy(h *wiretest.Host) (list []store.HeldItem) {
	r.t.Helper()
	r.view(func(v store.Reader) error {
		return v.Held(func(it store.HeldItem) bool {
			if it.Target == h.Pub() {
				list = append(list, it)
			}
			return true
		})
	})
	return list
}

// What is held past its time may be released, and is expired like any other.
func TestReleaseOfWhatIsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	r.done(r.relay.Hold, ref(beta, 1, it))
	r.clock.Add(14 * day)
	r.done(r.relay.Release, ref(beta, 1, it))
	same(t, "served until the sweep", seqs(r.pull(beta, relay.PullQuery{}).Items), "2:"+it.ID)
	same(t, "swept", r.sweep().Notices, 1)
	same(t, "notice", r.notice(alpha).ExpiredAt, t0.Add(14*day))
	r.undone("hold of what expired", r.relay.Hold, ref(beta, 2, it), relay.ProblemGone)
}

// A group of items is one transaction and one line; what can't be done is said of
// each, and a call that did nothing leaves no line.
func TestDeedsOfManyItems(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	one, two, three := mail(alpha, beta), mail(alpha, gamma), mail(alpha, beta)
	r.push(alpha, one, two, three)
	r.ack(beta, 1)
	list := r.outcomes(r.relay.Hold, ref(beta, 1, one), ref(gamma, 1, two), ref(beta, 2, three), ref(gamma, 7, two))
	var got []string
	for _, o := range list {
		got = append(got, fmt.Sprint(o.Done, o.Problem))
	}
	same(t, "outcomes", strings.Join(got, " "), "falsegone true true falsegone")
	same(t, "lines in the log", len(r.log("hold")), 1)
	same(t, "items in it", r.receiptOf("hold").Items, 2)
	r.undone("nothing to do", r.relay.Hold, ref(beta, 1, one), relay.ProblemGone)
}

// Two deeds on one item at once: one is done, the other is told that it is too
// late.
func TestTwoDeedsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	for n := range 10 {
		it := mail(alpha, beta)
		seq := r.pushed(alpha, it, "accepted").Targets[0].Seq
		r.done(r.relay.Hold, ref(beta, seq, it))
		results := make(chan relay.Outcome)
		for _, do := range []deedOf{r.relay.Release, r.relay.Discard} {
			go func() {
				list, err := do(context.Background(), []relay.ItemRef{ref(beta, seq, it)}, operator)
				if err != nil {
					list = []relay.Outcome{{Problem: err.Error()}}
				}
				results <- list[0]
			}()
		}
		one, two := <-results, <-results
		if two.Done {
			one, two = two, one
		}
		if !one.Done || two.Done || two.Problem != relay.ProblemGone {
			t.Fatalf("round %d: got %+v and %+v; want one done, the other gone", n, one, two)
		}
		want := 0
		if one.Notice == "" {
			want = 1
		}
		same(t, "queued", len(r.queue(beta)), want)
		r.ack(beta, r.pull(beta, relay.PullQuery{}).HeadSeq)
	}
}

// Without a running relay the desk works all the same; only what has to be signed
// needs the key.
func TestDeedsOfADetachedRelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	one, two := mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, one, two)
	o := relay.Options{Store: r.store, Limits: relay.DefaultLimits(), Now: r.clock.Now}
	keyless := relay.Detached(o)
	r.done(keyless.Hold, ref(beta, 1, one), ref(beta, 2, two))
	r.done(keyless.Release, ref(beta, 1, one))
	before := r.dump()
	if _, err := keyless.Discard(t.Context(), []relay.ItemRef{ref(beta, 2, two)}, operator); !errors.Is(err, relay.ErrDetached) {
		t.Errorf("discard without the key: got %v; want ErrDetached", err)
	}
	same(t, "the store", r.dump(), before)
	o.Key = r.key
	same(t, "discard with the key", r.done(relay.Detached(o).Discard, ref(beta, 2, two))[0].Notice, relay.NoticeQueued)
	same(t, "notice", r.notice(alpha).ItemID, two.ID)
}

// A store that is full takes no item back: the call is refused as a whole.
func TestDeedsOnAFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	one, two := mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, one, two)
	r.done(r.relay.Hold, ref(beta, 1, one))
	r.full.Store(true)
	before := r.dump()
	for _, call := range []struct {
		do  deedOf
		ref relay.ItemRef
	}{{r.relay.Hold, ref(beta, 2, two)}, {r.relay.Release, ref(beta, 1, one)}} {
		_, err := call.do(t.Context(), []relay.ItemRef{call.ref}, operator)
		refused(t, "deed", err, relay.Unavailable, "STORE_FULL")
	}
	same(t, "the store", r.dump(), before)
	same(t, "discard makes room", r.done(r.relay.Discard, ref(beta, 1, one))[0].Notice, relay.NoticeQueued)
}

// One call moves 8 MiB at most, and one item at least; the rest is left for others,
// in order, and nobody is told of it in the log. A discard moves nothing.
func TestDeedsMoveSoMuch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	const mib = 1 << 20
	insert := func(sizes ...int) (refs []relay.ItemRef) {
		ok(t, "insert", r.store.Update(t.Context(), func(tx store.Tx) error {
			refs = nil
			for _, size := range sizes {
				it := store.Item{Target: beta.Pub(), Kind: store.KindEnvelope, ID: mail(alpha, beta).ID, Sender: alpha.Pub(), SenderHost: "alpha", AcceptedAt: t0, Wire: make([]byte, size)}
				seq, err := tx.Insert(it)
				if err != nil {
					return err
				}
				refs = append(refs, relay.ItemRef{Target: beta.Pub(), Seq: seq, ID: it.ID})
			}
			return nil
		}))
		return refs
	}
	do := func(what string, do deedOf, refs []relay.ItemRef, want string) []relay.Outcome {
		t.Helper()
		for _, dry := range []bool{true, false} {
			d := operator
			d.Dry = dry
			before := fmt.Sprint(r.queued(beta), r.quarantine(), len(r.log("")))
			list, err := do(t.Context(), refs, d)
			ok(t, what, err)
			got := ""
			for i, o := range list {
				switch {
				case o.ItemRef != refs[i]:
					got += "another"
				case o.Done:
					got += "+"
				case o.Problem == relay.ProblemLater:
					got += "later "
				default:
					got += o.Problem + " "
				}
			}
			same(t, fmt.Sprintf("%s, dry %v", what, dry), got, want)
			if dry {
				same(t, what+": after a dry run", fmt.Sprint(r.queued(beta), r.quarantine(), len(r.log(""))), before)
				continue
			}
			return list
		}
		return nil
	}
	refs := insert(3*mib, 5*mib, 1, 100, 9*mib, 1)
	gone := relay.ItemRef{Target: beta.Pub(), Seq: 99, ID: "gone"}
	do("the first ones", r.relay.Hold, append(refs[:3:3], gone), "++later later ")
	same(t, "in the log", r.receiptOf("hold").Items, 2)
	same(t, "its bytes", r.receiptOf("hold").Groups[0].Bytes, 8*mib)
	do("what was left", r.relay.Hold, append(refs[2:4:4], gone), "++gone ")
	do("one that is larger by itself", r.relay.Hold, refs[4:], "+later ")
	do("and the last one", r.relay.Hold, append(refs[:1:1], refs[5]), relay.ProblemHeld+" +")
	out := do("back", r.relay.Release, refs, "++later later later later ")
	same(t, "in order", out[1].NewSeq, out[0].NewSeq+1)
	do("nothing is moved", r.relay.Discard, refs[2:], "++++")
}

// The log says of each item what is its own, and of those that are alike the rest:
// a line of 500 is no weight.
func TestReceiptsOfManyItems(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	var refs []relay.ItemRef
	for range relay.MaxItems / 20 {
		var list []wire.PushItem
		for range 20 {
			list = append(list, mail(alpha, beta))
		}
		r.push(alpha, list...)
		for _, it := range list {
			refs = append(refs, ref(beta, int64(len(refs)+1), it))
		}
	}
	r.done(r.relay.Hold, refs...)
	for _, op := range []string{"hold", "release"} {
		if op == "release" {
			r.done(r.relay.Release, refs...)
		}
		line, size := r.receiptOf(op), len(r.log(op)[0].Receipt)
		t.Logf("%s: %d bytes an item", op, size/len(refs))
		if line.Items != len(refs) || len(line.Groups) != 1 || len(line.Groups[0].Items) != len(refs) || size > 100*len(refs) {
			t.Errorf("%s: got %d items in %d groups, %d bytes; want %d in one, under 100 bytes an item", op, line.Items, len(line.Groups), size, len(refs))
		}
		for i, it := range line.Groups[0].Items {
			if it.Seq != refs[i].Seq || it.ID != refs[i].ID || (it.NewSeq != 0) != (op == "release") {
				t.Fatalf("%s, item %d: got %+v; want %+v", op, i, it, refs[i])
			}
		}
	}
}
