package relay_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// wireOf is the wire of an item with one target: what v1 pushes.
func wireOf(it wire.PushItem) []byte { return it.Targets[0].Wire }

// encKey publishes a host's sealing key the v1 way.
func (r *rig) encKey(h *wiretest.Host) {
	r.t.Helper()
	sig := h.Key.Sign(wire.EncKeyV1Payload(h.Name, h.Enc.Public()))
	ok(r.t, "publish the v1 key of "+h.Name, r.relay.PutEncKey(context.Background(), r.caller(h), h.Enc.Public().String(), sig))
}

func TestA1_SealedEnvelopeIsStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.encKey(beta)
	published, err := r.relay.EncKey(t.Context(), r.caller(alpha), "", "beta")
	ok(t, "look up beta's key", err)
	enc, err := wire.ParseEncPublicKey(published.V1.EncPub)
	ok(t, "parse it", err)

	const plain = "The build is green."
	draft := alpha.Draft(beta, "hello", plain)
	w, err := wire.Seal(draft, enc, alpha.Key, "alpha")
	ok(t, "seal", err)
	same(t, "answer", r.pushV1(alpha, w), relay.V1Result{Stored: 1})
	same(t, "queue", r.queued(beta), "1:"+draft.ID)
	stored, err := wire.ParseEnvelope(r.queue(beta)[0].Wire)
	ok(t, "parse what is stored", err)
	if _, err := base64.StdEncoding.DecodeString(stored.Body); err != nil || stored.Body == plain || bytes.Contains(r.queue(beta)[0].Wire, []byte(plain)) {
		t.Errorf("stored body: got %q; want base64 that is not the plain text", stored.Body)
	}
	opened, err := wire.Open(r.queue(beta)[0].Wire, beta.Enc)
	if err != nil || string(opened) != plain {
		t.Errorf("opened by beta: got %q, %v; want %q", opened, err, plain)
	}
}

func TestA2_RetargetedCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	good := wireOf(mail(alpha, beta))
	altered := bytes.Replace(good, []byte("reviewer@beta"), []byte("reviewer@gamma"), 1)
	same(t, "answer", r.pushV1(alpha, good, altered), relay.V1Result{Stored: 2})
	for h, want := range map[*wiretest.Host]error{beta: nil, gamma: wire.ErrBadSignature} {
		items := r.queue(h)
		if len(items) != 1 {
			t.Fatalf("queue of %s: got %d items; want 1", h.Name, len(items))
		}
		same(t, "signature at "+h.Name, wire.VerifyEnvelope(items[0].Wire, alpha.Pub()), want)
	}
}

func TestA3_SameEnvelopeTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	for range 2 {
		same(t, "answer", r.pushV1(alpha, wireOf(it)), relay.V1Result{Stored: 1})
	}
	p, err := r.relay.PullV1(t.Context(), r.caller(beta), 0)
	ok(t, "pull", err)
	same(t, "pulled", seqs(p.Items), "1:"+it.ID)
}

func TestA4_DepthAndSize(t *testing.T) {
	t.Parallel()
	t.Run("a", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems = 2 }))
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		same(t, "batch of two", r.pushV1(alpha, wireOf(mail(alpha, beta)), wireOf(mail(alpha, beta))), relay.V1Result{Stored: 2})
		third := r.pushV1(alpha, wireOf(mail(alpha, beta)))
		same(t, "third stored", third.Stored, 0)
		contains(t, "error", third.Error, "queue depth")
	})
	t.Run("b", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.MaxItemBytes = 1024 }))
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		_, w := alpha.Envelope(beta, "hello", string(bytes.Repeat([]byte("x"), 2048)))
		res := r.pushV1(alpha, w)
		same(t, "stored", res.Stored, 0)
		contains(t, "error", res.Error, "size")
		same(t, "queue", r.queued(beta), "")
	})
}

func TestA5_PushPullAck(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	r.pushV1(alpha, wireOf(mail(alpha, beta)))
	p, err := r.relay.PullV1(t.Context(), r.caller(beta), 0)
	ok(t, "pull", err)
	if len(p.Items) != 1 || p.Cursor != 1 || p.Items[0].SenderHost != "alpha" {
		t.Fatalf("pull: got %+v; want one item from alpha, cursor 1", p)
	}
	w := p.Items[0].Wire
	if _, err := wire.Open(w, beta.Enc); err != nil {
		t.Errorf("open by beta: got %v; want nil", err)
	}
	if _, err := wire.Open(w, gamma.Enc); err != wire.ErrUndecryptable {
		t.Errorf("open by gamma: got %v; want ErrUndecryptable", err)
	}
	ok(t, "ack", r.relay.AckV1(t.Context(), r.caller(beta), float64(p.Cursor)))
	same(t, "queue", r.queued(beta), "")
}

func TestA7_UnprovenOwnerIsNotCharged(t *testing.T) {
	t.Parallel()
	quota := limits(func(l *relay.Limits) { l.MaxQueueItems, l.MaxOwnerItems = 2, 1 })
	t.Run("a", func(t *testing.T) {
		r := newRig(t, quota)
		alpha, beta, gamma := r.enrol("alpha"), wiretest.NewHost("beta"), wiretest.NewHost("gamma")
		ok(t, "enrol beta", r.tryEnrol(beta, "one-owner"))
		ok(t, "enrol gamma", r.tryEnrol(gamma, "one-owner"))
		same(t, "for beta", r.pushV1(alpha, wireOf(mail(alpha, beta)), wireOf(mail(alpha, beta))), relay.V1Result{Stored: 2})
		same(t, "for gamma", r.pushV1(alpha, wireOf(mail(alpha, gamma))), relay.V1Result{Stored: 1})
		next := r.pushV1(alpha, wireOf(mail(alpha, beta)))
		same(t, "next for beta", next.Stored, 0)
		contains(t, "error", next.Error, "quota:queue depth")
	})
	t.Run("a, proven", func(t *testing.T) {
		r := newRig(t, quota, withAccounts)
		alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta", "acme"), r.enrol("gamma", "acme")
		same(t, "for beta", r.pushV1(alpha, wireOf(mail(alpha, beta))), relay.V1Result{Stored: 1})
		next := r.pushV1(alpha, wireOf(mail(alpha, gamma)))
		same(t, "for gamma", next.Stored, 0)
		contains(t, "error", next.Error, "quota:owner queue depth")
	})
	t.Run("b", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.PushesPerMinute = 2 }))
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		for range 2 {
			same(t, "within the rate", r.pushV1(alpha, wireOf(mail(alpha, beta))), relay.V1Result{Stored: 1})
		}
		third := r.pushV1(alpha, wireOf(mail(alpha, beta)))
		same(t, "third stored", third.Stored, 0)
		contains(t, "error", third.Error, "rate")
		same(t, "queued", len(r.queue(beta)), 2)
	})
}

func TestJ4_AmbiguousName(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts)
	alpha, one, two := r.enrol("alpha"), r.enrol("beta"), r.enrol("Beta")
	r.encKey(one)
	r.encKey(two)
	res := r.pushV1(alpha, wireOf(mail(alpha, one)))
	same(t, "answer", res, relay.V1Result{Error: "recipient host ambiguous"})
	_, err := r.relay.EncKey(t.Context(), r.caller(alpha), "", "beta")
	refused(t, "look up by host", err, relay.NotFound, "NOT_FOUND")
	_, err = r.relay.EncKey(t.Context(), r.caller(alpha), two.Pub().String(), "")
	ok(t, "look up by key", err)

	// Inside one proven account the name is one host's.
	mine, friend := r.enrol("beta", "acme"), r.enrol("friend", "acme")
	same(t, "from the account", r.pushV1(friend, wireOf(mail(friend, mine))), relay.V1Result{Stored: 1})
	same(t, "queues", r.queued(one)+r.queued(two), "")
	same(t, "queue of the account's", len(r.queue(mine)), 1)
}

func TestV1RecipientHosts(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxTargets = 2 }))
	alpha, beta, gamma, delta := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma"), r.enrol("delta")
	send := func(addresses ...string) ([]byte, relay.V1Result) {
		draft := alpha.Draft(beta, "hello", "all of you")
		draft.To = addresses
		_, w := alpha.Seal(draft, beta)
		return w, r.pushV1(alpha, w)
	}
	for _, tt := range []struct {
		name, want string
		to         []string
	}{
		{"no host", "recipient host not enrolled", []string{"reviewer"}},
		{"broadcast", "recipient host not enrolled", []string{"*"}},
		{"unknown host", "recipient host not enrolled", []string{"reviewer@beta", "reviewer@nowhere"}},
		{"no name of a host", "recipient host not enrolled", []string{"reviewer@be ta"}},
		{"over max_targets", "too many", []string{"a@beta", "a@gamma", "a@delta"}},
	} {
		_, res := send(tt.to...)
		same(t, tt.name+": stored", res.Stored, 0)
		contains(t, tt.name, res.Error, tt.want)
	}
	same(t, "items of what was refused", r.totals().Items, 0) // all hosts or none

	w, res := send("reviewer@BETA", "builder@gamma", "builder@beta")
	same(t, "two hosts", res, relay.V1Result{Stored: 1})
	for _, h := range []*wiretest.Host{beta, gamma} {
		if q := r.queue(h); len(q) != 1 || !bytes.Equal(q[0].Wire, w) {
			t.Errorf("queue of %s: got %v; want the raw envelope once", h.Name, seqs(q))
		}
	}

	// All or none by quota too.
	ok(t, "gamma takes nobody", r.publish(gamma, t0))
	_, res = send("reviewer@beta", "reviewer@gamma")
	same(t, "one host refuses", res, relay.V1Result{Error: "sender not accepted by target"})
	same(t, "queued for beta and delta", len(r.queue(beta))+len(r.queue(delta)), 1)
}

// A v1 sender seals anew on each retry: its id alone makes a duplicate.
func TestV1DedupByID(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems = 1 }))
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	draft := alpha.Draft(beta, "hello", "once")
	first := sealed(alpha, draft, beta)
	same(t, "first", r.pushV1(alpha, wireOf(first)), relay.V1Result{Stored: 1})
	same(t, "sealed anew, the queue full", r.pushV1(alpha, wireOf(sealed(alpha, draft, beta))), relay.V1Result{Stored: 1})
	if q := r.queue(beta); len(q) != 1 || !bytes.Equal(q[0].Wire, wireOf(first)) {
		t.Errorf("queue: got %s; want the first bytes once", seqs(q))
	}
	// With a host that is new to it, only that one gets the copy.
	draft.To = append(draft.To, "reviewer@gamma")
	same(t, "one more host", r.pushV1(alpha, wireOf(sealed(alpha, draft, beta))), relay.V1Result{Stored: 1})
	same(t, "queues", r.queued(beta)+" "+r.queued(gamma), "1:"+draft.ID+" 1:"+draft.ID)
	// v2 compares the bytes of an item that v1 stored.
	r.pushed(alpha, first, "duplicate")
	r.pushed(alpha, sealed(alpha, draft, beta), "rejected:conflict")
}

func TestV1BatchStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems = 2 }))
	alpha, beta, gamma, stranger := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma"), wiretest.NewHost("stranger")
	_, plain := alpha.PlainEnvelope(beta, "hello", "open")
	for _, tt := range []struct {
		name, want string
		bad        []byte
	}{
		{"host not enrolled", "recipient host not enrolled", wireOf(mail(alpha, stranger))},
		{"not sealed", "envelope body is not sealed", plain},
		{"shape", "bad envelope", []byte(`{"v":3}`)},
		{"not an object", "bad envelope", []byte(`null`)},
	} {
		before := r.totals().Items
		good := mail(alpha, gamma)
		res := r.pushV1(alpha, wireOf(good), tt.bad, wireOf(mail(alpha, beta)))
		same(t, tt.name+": stored", res.Stored, 1)
		contains(t, tt.name, res.Error, tt.want)
		same(t, tt.name+": items", r.totals().Items-before, 1)
		r.ack(gamma, r.queue(gamma)[0].Seq)
	}
	// A refusal of the transaction ends the batch as well, before a later fault.
	res := r.pushV1(alpha, wireOf(mail(alpha, beta)), wireOf(mail(alpha, beta)), wireOf(mail(alpha, beta)))
	same(t, "over the depth: stored", res.Stored, 2)
	contains(t, "over the depth", res.Error, "queue depth")
	same(t, "one more: stored", r.pushV1(alpha, wireOf(mail(alpha, beta)), wireOf(mail(alpha, gamma))).Stored, 0)
	same(t, "queue of gamma", r.queued(gamma), "")
	same(t, "nothing at all", r.pushV1(alpha), relay.V1Result{})
}

// A v1 pull serves envelopes only, in one bounded page; its cursor is the head,
// or the last seq read when there is more.
func TestV1Pull(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxPull = 2 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	a, b := mail(alpha, beta), mail(alpha, beta)
	msg := mail(beta, alpha).ID
	r.push(alpha, a, receipt(alpha, beta, msg, 1), receipt(alpha, beta, msg, 2), b)
	for _, tt := range []struct {
		after  int64
		want   string
		cursor int64
	}{
		{0, "1:" + a.ID, 2}, {1, "", 3}, {2, "4:" + b.ID, 4}, {3, "4:" + b.ID, 4}, {4, "", 4}, {9, "", 4},
	} {
		p, err := r.relay.PullV1(t.Context(), r.caller(beta), tt.after)
		ok(t, "pull", err)
		same(t, fmt.Sprintf("after %d", tt.after), fmt.Sprintf("%s %d", seqs(p.Items), p.Cursor), fmt.Sprintf("%s %d", tt.want, tt.cursor))
	}
	for _, bad := range []float64{-1, math.NaN()} {
		refused(t, fmt.Sprint("ack ", bad), r.relay.AckV1(t.Context(), r.caller(beta), bad), relay.BadRequest, "BAD_ACK")
	}
	ok(t, "ack beyond the head", r.relay.AckV1(t.Context(), r.caller(beta), math.Inf(1)))
	same(t, "queue", r.queued(beta), "")
	r.view(func(v store.Reader) error {
		acked, err := v.Acked(beta.Pub())
		same(t, "acked through", acked, 4) // never beyond the head
		return err
	})
	c := mail(alpha, beta)
	r.pushed(alpha, c, "accepted")
	same(t, "the next item", r.queued(beta), "5:"+c.ID)
}

// v1 mail never expires, even where it meets a v2 retry.
func TestV1NeverExpires(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushV1(alpha, wireOf(it))
	r.pushed(alpha, it, "duplicate")
	r.clock.Add(5 * 365 * day)
	s := r.sweep()
	same(t, "sweep", s, relay.SweepReceipt{At: s.At})
	same(t, "queue", r.queued(beta), "1:"+it.ID)
	same(t, "known still", r.pushed(alpha, it, "duplicate").Targets[0].Seq, 1)
	if at := r.queue(beta)[0].ExpiresAt; !at.Equal(time.Time{}) {
		t.Errorf("expires at %v; want never", at)
	}
}

// A target that is rotated away between the look-up of its name and the write
// gets nothing on its dead key.
func TestV1TargetRotatedInBetween(t *testing.T) {
	t.Parallel()
	hook := &hookStore{}
	r := newRig(t, func(s *setup) { s.Wrap = hook.wrap })
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	who, other := r.caller(alpha), must(relay.New(t.Context(), relay.Options{Store: r.store, Key: r.key, Limits: relay.DefaultLimits(), Now: r.clock.Now}))
	next := wiretest.NewHost("beta")
	hook.beforeUpdate = func() {
		hook.beforeUpdate = nil
		_, err := other.Rotate(t.Context(), wire.MakeRotation(beta.Key, next.Key, "beta", next.Enc.Public(), t0))
		ok(t, "rotate", err)
	}
	it := mail(alpha, beta)
	res, err := r.relay.PushV1(t.Context(), who, [][]byte{wireOf(it)})
	ok(t, "push", err)
	same(t, "answer", res, relay.V1Result{Error: "target not enrolled"})
	same(t, "items", r.totals().Items, 0)
	same(t, "retry", r.pushV1(alpha, wireOf(it)), relay.V1Result{Stored: 1})
	same(t, "queue of the new key", r.queued(next), "1:"+it.ID)
}

// hookStore runs a function of the test before a transaction, or fails it.
type hookStore struct {
	store.Store
	beforeUpdate func()
	failing      atomic.Bool
}

func (h *hookStore) wrap(s store.Store) store.Store { h.Store = s; return h }

func (h *hookStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	if h.beforeUpdate != nil {
		h.beforeUpdate()
	}
	if h.failing.Load() {
		return errors.New("disk I/O error")
	}
	return h.Store.Update(ctx, fn)
}
