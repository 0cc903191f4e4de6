package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// Long polls are tested in bubbles: there the clock of the waits stands still
// while anyone has something to do, so an answer at the same instant is a poll
// that was woken, and one 25 s later a poll that was not.

const wait = 25 * time.Second

// poll is a pull that goes on elsewhere.
type poll struct {
	r     *rig
	began time.Time
	done  chan struct{}
	page  relay.Page
	err   error
	took  time.Duration
}

// poll starts a pull with a wait and returns once it has settled.
func (r *rig) poll(ctx context.Context, h *wiretest.Host, q relay.PullQuery) *poll {
	r.t.Helper()
	p := &poll{r: r, began: time.Now(), done: make(chan struct{})}
	who := r.caller(h)
	q.Wait = wait
	go func() {
		p.page, p.err = r.relay.Pull(ctx, who, q)
		p.took = time.Since(p.began)
		close(p.done)
	}()
	synctest.Wait()
	return p
}

func (p *poll) waits(what string) {
	p.r.t.Helper()
	select {
	case <-p.done:
		p.r.t.Errorf("%s: got an answer, %s, %v; want the poll to wait", what, page(p.page), p.err)
	default:
	}
}

// answer waits for the poll to end and checks how long it took.
func (p *poll) answer(what string, after time.Duration) (relay.Page, error) {
	p.r.t.Helper()
	<-p.done
	if p.took != after {
		p.r.t.Errorf("%s: got the answer after %s; want %s", what, p.took, after)
	}
	return p.page, p.err
}

func bubble(t *testing.T, name string, fn func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, fn) })
}

func TestLongPollIsWokenByMail(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(r *rig, alpha, beta *wiretest.Host)
		want string // kind of the item
	}{
		{"push", func(r *rig, alpha, beta *wiretest.Host) { r.pushed(alpha, mail(alpha, beta), "accepted") }, "envelope"},
		{"v1 push", func(r *rig, alpha, beta *wiretest.Host) { r.pushV1(alpha, wireOf(mail(alpha, beta))) }, "envelope"},
		{"receipt", func(r *rig, alpha, beta *wiretest.Host) {
			r.pushed(alpha, receipt(alpha, beta, mail(beta, alpha).ID, 1), "accepted")
		}, "receipt"},
		{"one target of several", func(r *rig, alpha, beta *wiretest.Host) {
			r.pushed(alpha, mail(alpha, r.enrol("gamma"), beta), "accepted")
		}, "envelope"},
		{"a rotation that moves mail in", func(r *rig, alpha, beta *wiretest.Host) {
			old := r.enrol("beta")
			r.pushed(alpha, mail(alpha, old), "accepted")
			moved, err := r.rotate(old, beta)
			ok(r.t, "rotate", err)
			same(r.t, "moved", moved, 1)
		}, "envelope"},
		{"a release", func(r *rig, alpha, beta *wiretest.Host) {
			it := mail(alpha, beta)
			r.held1(alpha, beta, it)
			r.done(r.relay.Release, ref(beta, 1, it))
		}, "envelope"},
		{"the notice of a discarded item", func(r *rig, alpha, beta *wiretest.Host) {
			it := mail(beta, alpha)
			r.held1(beta, alpha, it)
			r.done(r.relay.Discard, ref(alpha, 1, it))
		}, "expired"},
		{"an expiry notice", func(r *rig, alpha, beta *wiretest.Host) {
			r.pushed(beta, mail(beta, alpha), "accepted")
			r.clock.Add(14 * day)
			same(r.t, "notices", r.sweep().Notices, 1)
		}, "expired"},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t)
			alpha, beta := r.enrol("alpha"), r.enrol("beta")
			p := r.poll(t.Context(), beta, relay.PullQuery{Epoch: r.epoch()})
			p.waits("before")
			tt.do(r, alpha, beta)
			got, err := p.answer("poll", 0)
			ok(t, "poll", err)
			if len(got.Items) != 1 || got.Items[0].Kind != tt.want || got.LastSeq != got.Items[0].Seq || got.HeadSeq != got.LastSeq {
				t.Errorf("poll: got %s; want one %s", page(got), tt.want)
			}
		})
	}
}

func TestLongPollIsEnded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(r *rig, beta *wiretest.Host)
		kind relay.Kind
		code string
	}{
		{"by revocation", func(r *rig, beta *wiretest.Host) { r.revoke(beta) }, relay.Unauthorized, ""},
		{"by a block", func(r *rig, beta *wiretest.Host) {
			same(r.t, "block", r.block(beta.Pub(), time.Time{}, operator), true)
		},
			relay.Unauthorized, "DENIED"},
		{"by a rotation to another key", func(r *rig, beta *wiretest.Host) { r.rotated(beta) }, relay.Unauthorized, ""},
		{"by a new epoch", func(r *rig, _ *wiretest.Host) {
			_, err := r.relay.RotateEpoch(r.t.Context(), "test", "restored")
			ok(r.t, "rotate the epoch", err)
		}, relay.Conflict, "EPOCH"},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t)
			beta := r.enrol("beta")
			p := r.poll(t.Context(), beta, relay.PullQuery{Epoch: r.epoch()})
			p.waits("before")
			tt.do(r, beta)
			_, err := p.answer("poll", 0)
			refused(t, "poll", err, tt.kind, tt.code)
		})
	}
	bubble(t, "by a stop", func(t *testing.T) {
		r := newRig(t)
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		p, q := r.poll(t.Context(), beta, relay.PullQuery{}), r.poll(t.Context(), alpha, relay.PullQuery{})
		r.relay.StopPolls()
		for _, p := range []*poll{p, q} {
			got, err := p.answer("poll", 0)
			ok(t, "poll", err)
			same(t, "page", page(got), " last 0 more false head 0")
		}
		_, err := r.poll(t.Context(), beta, relay.PullQuery{}).answer("poll after the stop", 0)
		ok(t, "poll after the stop", err)
		r.pushed(alpha, mail(alpha, beta), "accepted")
	})
	bubble(t, "by a new epoch, though none was named", func(t *testing.T) {
		r := newRig(t)
		p := r.poll(t.Context(), r.enrol("beta"), relay.PullQuery{})
		epoch, err := r.relay.RotateEpoch(t.Context(), "test", "no epoch was given")
		ok(t, "rotate the epoch", err)
		got, err := p.answer("poll", 0)
		ok(t, "poll", err)
		same(t, "page", page(got), " last 0 more false head 0")
		same(t, "epoch", got.Epoch, epoch)
	})
	bubble(t, "by its client", func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancel(t.Context())
		p := r.poll(ctx, r.enrol("beta"), relay.PullQuery{})
		cancel()
		if _, err := p.answer("poll", 0); !errors.Is(err, context.Canceled) {
			t.Errorf("poll: got %v; want the context's error", err)
		}
		s, err := r.relay.Status(t.Context())
		ok(t, "status", err)
		same(t, "polls that wait", s.LongPolls, 0)
	})
}

// held1 pushes the first item of a host and has it held before any poll sees it:
// the poll of the tests is woken by the push, finds nothing, and waits on.
func (r *rig) held1(from, to *wiretest.Host, it wire.PushItem) {
	r.t.Helper()
	ok(r.t, "push and hold at once", r.store.Update(r.t.Context(), func(tx store.Tx) error {
		w := it.Targets[0].Wire
		seq, err := tx.Insert(store.Item{Target: to.Pub(), Kind: store.KindEnvelope, ID: it.ID, Sender: from.Pub(), SenderHost: from.Name,
			Hash: wire.Hash(w), Size: int64(len(w)), AcceptedAt: t0, ExpiresAt: t0.Add(14 * day), Wire: w})
		if err != nil {
			return err
		}
		return tx.Hold(to.Pub(), seq, t0, operator.Actor, operator.Reason)
	}))
}

// A dry run wakes nobody.
func TestDryRunsWakeNobody(t *testing.T) {
	t.Parallel()
	bubble(t, "all of them", func(t *testing.T) {
		r := newRig(t)
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		it := mail(alpha, beta)
		r.held1(alpha, beta, it)
		dry := operator
		dry.Dry = true
		mine, hers := r.poll(t.Context(), alpha, relay.PullQuery{}), r.poll(t.Context(), beta, relay.PullQuery{})
		ctx, refs := t.Context(), []relay.ItemRef{ref(beta, 1, it)}
		_, released := r.relay.Release(ctx, refs, dry)
		_, discarded := r.relay.Discard(ctx, refs, dry)
		_, blocked := r.relay.Block(ctx, beta.Pub(), time.Time{}, dry)
		_, revoked := r.relay.RevokeHost(ctx, beta.Pub(), dry)
		ok(t, "dry runs", errors.Join(released, discarded, blocked, revoked))
		for _, p := range []*poll{mine, hers} {
			got, err := p.answer("poll", wait)
			ok(t, "poll", err)
			same(t, "items", len(got.Items), 0)
		}
		same(t, "held", r.quarantine(), "1:"+it.ID)
	})
}

func TestLongPollTimesOut(t *testing.T) {
	t.Parallel()
	bubble(t, "nothing came", func(t *testing.T) {
		r := newRig(t)
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		it := mail(alpha, beta)
		r.pushed(alpha, it, "accepted")
		p := r.poll(t.Context(), beta, relay.PullQuery{After: 1})
		time.Sleep(10 * time.Second) // of the bubble: what happens now is not for this poll
		r.pushed(alpha, mail(alpha, r.enrol("gamma")), "accepted")
		r.pushed(alpha, it, "duplicate")
		r.pushed(beta, mail(beta, alpha), "accepted")
		r.ack(beta, 1)
		synctest.Wait()
		p.waits("mail for others")
		got, err := p.answer("poll", wait)
		ok(t, "poll", err)
		same(t, "page", page(got), " last 1 more false head 1")
		same(t, "epoch", got.Epoch, r.epoch())
	})
	bubble(t, "at once", func(t *testing.T) {
		r := newRig(t)
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		it := mail(alpha, beta)
		r.pushed(alpha, it, "accepted")
		began := time.Now()
		same(t, "mail is there", page(r.pull(beta, relay.PullQuery{Wait: wait})), "1:"+it.ID+" last 1 more false head 1")
		same(t, "no wait asked", page(r.pull(beta, relay.PullQuery{After: 1})), " last 1 more false head 1")
		_, err := r.relay.Pull(t.Context(), r.caller(beta), relay.PullQuery{After: 1, Epoch: "another", Wait: wait})
		refused(t, "stale epoch", err, relay.Conflict, "EPOCH")
		same(t, "time it took", time.Since(began), 0)
	})
}

func TestLongPollLimits(t *testing.T) {
	t.Parallel()
	polls := func(t *testing.T, r *rig, want int) {
		t.Helper()
		s, err := r.relay.Status(t.Context())
		ok(t, "status", err)
		same(t, "polls that wait", s.LongPolls, want)
	}
	bubble(t, "a key", func(t *testing.T) {
		r := newRig(t)
		alpha, beta := r.enrol("alpha"), r.enrol("beta")
		var waiting []*poll
		for range 4 {
			waiting = append(waiting, r.poll(t.Context(), beta, relay.PullQuery{}))
		}
		got, err := r.poll(t.Context(), beta, relay.PullQuery{}).answer("fifth", 0)
		ok(t, "fifth", err)
		same(t, "fifth", page(got), " last 0 more false head 0")
		other := r.poll(t.Context(), alpha, relay.PullQuery{})
		other.waits("another key")
		polls(t, r, 5)
		r.pushed(alpha, mail(alpha, beta), "accepted")
		for _, p := range waiting { // all are woken, not only one
			got, err := p.answer("poll", 0)
			if err != nil || len(got.Items) != 1 {
				t.Errorf("poll: got %s, %v; want the item", page(got), err)
			}
		}
		polls(t, r, 1)
		again := r.poll(t.Context(), beta, relay.PullQuery{After: 1})
		again.waits("there is room again")
		_, _ = again.answer("poll", wait)
		_, _ = other.answer("poll", wait)
		polls(t, r, 0)
	})
	bubble(t, "in all", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.Polls = 2 }))
		alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
		a, b := r.poll(t.Context(), alpha, relay.PullQuery{}), r.poll(t.Context(), beta, relay.PullQuery{})
		_, err := r.poll(t.Context(), gamma, relay.PullQuery{}).answer("third", 0)
		ok(t, "third", err)
		a.waits("first")
		b.waits("second")
		polls(t, r, 2)
		_, _ = a.answer("first", wait)
		_, _ = b.answer("second", wait)
		polls(t, r, 0)
	})
}

// Hosts that push, poll, ack and rotate at once: every item comes to its poll
// by the commit that brought it. A wake-up that was lost would cost its poll
// the whole wait, and the bubble's clock would tell.
func TestLongPollLosesNoWakeUp(t *testing.T) {
	t.Parallel()
	const senders, targets, each = 4, 3, 20
	bubble(t, "many at once", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.PushesPerMinute = 1_000_000 }))
		began := time.Now()
		var hosts []*wiretest.Host
		for i := range targets {
			hosts = append(hosts, r.enrol(fmt.Sprint("target", i)))
		}
		var all sync.WaitGroup
		for i := range senders {
			h := r.enrol(fmt.Sprint("sender", i))
			who := r.caller(h)
			all.Go(func() {
				for range each {
					it := mail(h, hosts...)
					res, err := r.relay.Push(t.Context(), who, []wire.PushItem{it})
					if err != nil || res[0].Status != "accepted" {
						t.Errorf("push: got %v, %v; want accepted", res, err)
						return
					}
				}
			})
		}
		for _, h := range hosts {
			who := r.caller(h)
			all.Go(func() {
				seen, after := map[string]bool{}, int64(0)
				for len(seen) < senders*each {
					p, err := r.relay.Pull(t.Context(), who, relay.PullQuery{After: after, Limit: 3, Wait: wait})
					if err != nil || len(p.Items) == 0 || time.Since(began) > wait/2 { // a group of the store may wait a moment
						t.Errorf("poll after %d: got %s, %v, after %s; want mail well before the end of the wait", after, page(p), err, time.Since(began))
						return
					}
					for _, it := range p.Items {
						if seen[it.ID] || it.Seq <= after {
							t.Errorf("poll after %d: got %d:%s again", after, it.Seq, it.ID)
						}
						seen[it.ID], after = true, it.Seq
					}
					if after%2 == 0 {
						if _, err := r.relay.Ack(t.Context(), who, p.Epoch, float64(after)); err != nil {
							t.Errorf("ack: %v", err)
						}
					}
				}
			})
		}
		all.Wait()
	})
}
