package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// page describes a page: "1:id 2:id last 2 more true head 3".
func page(p relay.Page) string {
	return fmt.Sprintf("%s last %d more %t head %d", seqs(p.Items), p.LastSeq, p.More, p.HeadSeq)
}

func TestC5_PullAndAck(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxPull = 2 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	a, b, c := mail(alpha, beta), mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, a, b, c)
	epoch := r.epoch()
	who := r.caller(beta)

	p := r.pull(beta, relay.PullQuery{Epoch: epoch}) // (a)
	same(t, "page 1", page(p), "1:"+a.ID+" 2:"+b.ID+" last 2 more true head 3")
	same(t, "epoch", p.Epoch, epoch)
	same(t, "sender", p.Items[0].Sender, alpha.Pub())
	p = r.pull(beta, relay.PullQuery{After: p.LastSeq, Epoch: epoch}) // (b)
	same(t, "page 2", page(p), "3:"+c.ID+" last 3 more false head 3")
	same(t, "empty page", page(r.pull(beta, relay.PullQuery{After: 3})), " last 3 more false head 3")
	same(t, "beyond the head", page(r.pull(beta, relay.PullQuery{After: 99})), " last 99 more false head 3")
	same(t, "a smaller limit", page(r.pull(beta, relay.PullQuery{Limit: 1})), "1:"+a.ID+" last 1 more true head 3")
	same(t, "a larger limit", page(r.pull(beta, relay.PullQuery{Limit: 500})), "1:"+a.ID+" 2:"+b.ID+" last 2 more true head 3")
	same(t, "the last two", page(r.pull(beta, relay.PullQuery{After: 1})), "2:"+b.ID+" 3:"+c.ID+" last 3 more false head 3")

	_, err := r.relay.Pull(t.Context(), who, relay.PullQuery{Epoch: "another"}) // (c)
	e := refused(t, "pull with a stale epoch", err, relay.Conflict, "EPOCH")
	same(t, "position", *e.At, relay.Position{Epoch: epoch, Head: 3})

	for _, bad := range []float64{4, -1, 0.5, 2.5, math.NaN(), math.Inf(1), 1e300} { // (d)
		_, err := r.relay.Ack(t.Context(), who, epoch, bad)
		e := refused(t, fmt.Sprint("ack ", bad), err, relay.BadRequest, "BAD_ACK")
		same(t, "position", *e.At, relay.Position{Epoch: epoch, Head: 3})
	}
	_, err = r.relay.Ack(t.Context(), who, "another", 2) // (e)
	e = refused(t, "ack with an old epoch", err, relay.Conflict, "EPOCH")
	same(t, "position", *e.At, relay.Position{Epoch: epoch, Head: 3})
	_, err = r.relay.Ack(t.Context(), who, "another", 4)
	refused(t, "ack beyond the head of an old epoch", err, relay.Conflict, "EPOCH")
	_, err = r.relay.Ack(t.Context(), who, "", 2)
	refused(t, "ack without an epoch", err, relay.Conflict, "EPOCH")
	same(t, "queue after refused acks", len(r.queue(beta)), 3)

	same(t, "ack 2", r.ack(beta, 2), relay.AckResult{AckedThrough: 2, Deleted: 2, HeadSeq: 3}) // (f)
	same(t, "left", page(r.pull(beta, relay.PullQuery{})), "3:"+c.ID+" last 3 more false head 3")
	same(t, "ack 2 again", r.ack(beta, 2), relay.AckResult{AckedThrough: 2, Deleted: 0, HeadSeq: 3})
	same(t, "an older ack", r.ack(beta, 1), relay.AckResult{AckedThrough: 2, Deleted: 0, HeadSeq: 3})
	same(t, "ack 0", r.ack(beta, 0), relay.AckResult{AckedThrough: 2, Deleted: 0, HeadSeq: 3})
	same(t, "queue", r.queued(beta), "3:"+c.ID) // (g)
	same(t, "ack of an empty queue", r.ack(alpha, 0), relay.AckResult{})

	in, err := r.relay.Info(t.Context(), &who)
	ok(t, "info", err)
	same(t, "you", fmt.Sprint(in.You.HeadSeq, in.You.AckedThrough), "3 2")
	same(t, "seqs are never reused", r.pushed(alpha, mail(alpha, beta), "accepted").Targets[0].Seq, 4)
}

func TestC5h_ByteBudget(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxPullBytes = 10 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	a, b := mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, a, b)
	same(t, "first", page(r.pull(beta, relay.PullQuery{})), "1:"+a.ID+" last 1 more true head 2")
	same(t, "second", page(r.pull(beta, relay.PullQuery{After: 1})), "2:"+b.ID+" last 2 more false head 2")
	p, err := r.relay.PullV1(t.Context(), r.caller(beta), 0)
	ok(t, "v1 pull", err)
	same(t, "v1 page", fmt.Sprint(seqs(p.Items), " ", p.Cursor), "1:"+a.ID+" 1")
}

func TestC5h_BudgetOfTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	a, b, c := mail(alpha, beta), mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, a, b, c)
	two := int64(len(wireOf(a)) + len(wireOf(b)))
	for budget, want := range map[int64]string{
		two:     "1:" + a.ID + " 2:" + b.ID + " last 2 more true head 3",
		two - 1: "1:" + a.ID + " last 1 more true head 3",
	} {
		r.setup.Limits.MaxPullBytes = budget
		r.restart()
		same(t, fmt.Sprint("budget ", budget), page(r.pull(beta, relay.PullQuery{})), want)
	}
}

// Pulls and acks of a host that is not, or no longer, enrolled are refused.
func TestPullOfADeadKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	who := r.caller(beta)
	r.pushed(alpha, mail(alpha, beta), "accepted")
	r.revoke(beta)
	_, err := r.relay.Pull(t.Context(), who, relay.PullQuery{})
	refused(t, "pull", err, relay.Unauthorized, "")
	_, err = r.relay.Ack(t.Context(), who, r.epoch(), 1)
	refused(t, "ack", err, relay.Unauthorized, "")
	_, err = r.relay.PullV1(t.Context(), who, 0)
	refused(t, "v1 pull", err, relay.Unauthorized, "")
	refused(t, "v1 ack", r.relay.AckV1(t.Context(), who, 1), relay.Unauthorized, "")
	same(t, "queued", len(r.queue(beta)), 1)
}

// A store that fails is no reason to send a host away: a 401 would make it
// enrol again.
func TestPullOfAFailingStore(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk I/O error")
	failing := &brokenReads{}
	r := newRig(t, func(s *setup) { s.Wrap = failing.wrap })
	beta := r.enrol("beta")
	who := r.caller(beta)
	failing.err = broken
	_, err := r.relay.Pull(t.Context(), who, relay.PullQuery{})
	var e *relay.Error
	if errors.As(err, &e) || !errors.Is(err, broken) {
		t.Errorf("pull: got %v; want the store's own error", err)
	}
}

// brokenReads fails every look-up of an enrolment.
type brokenReads struct {
	store.Store
	err error
}

func (b *brokenReads) wrap(s store.Store) store.Store { b.Store = s; return b }

func (b *brokenReads) View(ctx context.Context, fn func(store.Reader) error) error {
	return b.Store.View(ctx, func(v store.Reader) error { return fn(brokenReader{v, b.err}) })
}

type brokenReader struct {
	store.Reader
	err error
}

func (b brokenReader) Enrolment(k wire.PublicKey) (store.Enrolment, error) {
	if b.err != nil {
		return store.Enrolment{}, b.err
	}
	return b.Reader.Enrolment(k)
}

// The info answer: limits and key for anyone, the queue and the published keys
// for a caller.
func TestC13_Info(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	beta, namesake := r.enrol("beta"), r.enrol("beta")
	in, err := r.relay.Info(t.Context(), nil)
	ok(t, "info", err)
	if in.Key != r.key.Public() || in.Epoch != r.epoch() || in.Version != "test" || in.Limits.RetentionDays != 14 || in.You != nil {
		t.Errorf("info for anyone: got %+v; want the relay's key, epoch, version, retention 14, no you", in)
	}
	r.encKey(namesake)
	who := r.caller(beta)
	in, err = r.relay.Info(t.Context(), &who)
	ok(t, "info", err)
	if in.You == nil || *in.You != (relay.You{Host: "beta", Key: beta.Pub()}) {
		t.Errorf("you: got %+v; want the signing key's, not the shared name's", in.You)
	}
}

// What a page may take is told by what can be in it: held items are not.
func TestWaitingCountsNoHeldItem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	a, b := mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, a, b)
	waiting := func(h *wiretest.Host) int64 {
		n, err := r.relay.Waiting(t.Context(), r.caller(h))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	all := waiting(beta)
	rest := int64(0)
	for _, it := range r.queue(beta)[1:] {
		rest += it.Size
	}
	if err := r.store.Update(t.Context(), func(tx store.Tx) error {
		return tx.Hold(beta.Pub(), 1, r.clock.Now(), "operator", "reason")
	}); err != nil {
		t.Fatal(err)
	}
	same(t, "one held", waiting(beta), rest)
	if rest == 0 || rest == all {
		t.Errorf("got %d of %d bytes; want a part", rest, all)
	}
	if err := r.store.Update(t.Context(), func(tx store.Tx) error { _, err := tx.Release(beta.Pub(), 1); return err }); err != nil {
		t.Fatal(err)
	}
	same(t, "released", waiting(beta), all)
	same(t, "a host without mail", waiting(alpha), int64(0))
}
