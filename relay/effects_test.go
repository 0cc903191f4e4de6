package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

var errObserver = errors.New("the observer refuses")

// failingObserver refuses an effect of a kind after so many of them.
type failingObserver struct {
	kind  relay.EffectKind
	after int
}

func (f *failingObserver) Observe(_ store.Tx, e relay.Effect) error {
	if e.Kind != f.kind {
		return nil
	}
	if f.after--; f.after < 0 {
		return errObserver
	}
	return nil
}

// recorder writes each effect to the relay log, in its transaction, and refuses
// those of the kind that a test names.
type recorder struct {
	mu     sync.Mutex
	names  map[wire.PublicKey]string
	refuse relay.EffectKind
	seen   []relay.Effect
}

func (o *recorder) Observe(tx store.Tx, e relay.Effect) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, e)
	receipt, err := json.Marshal(o.describe(e))
	if err != nil {
		return err
	}
	if err := tx.AppendLog(e.At, "seen", receipt); err != nil {
		return err
	}
	if e.Kind == o.refuse {
		return errObserver
	}
	return nil
}

func (o *recorder) describe(e relay.Effect) string {
	s := string(e.Kind)
	for _, k := range []wire.PublicKey{e.Host, e.Other} {
		if !k.IsZero() {
			s += " " + o.names[k]
		}
	}
	return s + fmt.Sprintf(" seq %d count %d", e.Seq, e.Count)
}

func (o *recorder) name(h *wiretest.Host, name string) { o.names[h.Pub()] = name }

// lines are what the log has of the recorder, oldest first.
func (r *rig) lines() (list []string) {
	for _, op := range r.log("seen") {
		var s string
		ok(r.t, "decode", json.Unmarshal(op.Receipt, &s))
		list = append(list, s)
	}
	return list
}

func TestEffects(t *testing.T) {
	t.Parallel()
	o := &recorder{names: map[wire.PublicKey]string{}}
	r := newRig(t, func(s *setup) { s.Observers = []relay.Observer{o} })
	alpha, beta, next := wiretest.NewHost("alpha"), wiretest.NewHost("beta"), wiretest.NewHost("beta")
	o.name(alpha, "alpha")
	o.name(beta, "beta")
	o.name(next, "next")
	first, second := mail(alpha, beta), mail(alpha, beta)
	steps := []struct {
		name string
		do   func() error
		want []string
	}{
		{"enrol", func() error { return r.tryEnrol(alpha, "") }, []string{"enrolled alpha seq 0 count 0"}},
		{"enrol again, nothing new", func() error { return r.tryEnrol(alpha, "") }, nil},
		{"enrol another", func() error { return r.tryEnrol(beta, "") }, []string{"enrolled beta seq 0 count 0"}},
		{"publish", func() error { return r.publish(beta, t0, alpha) }, []string{"listed beta seq 0 count 1"}},
		{"push", func() error {
			_, err := r.relay.Push(t.Context(), r.caller(alpha), []wire.PushItem{first, second, first, item("nonsense", "x")})
			return err
		}, []string{"accepted beta seq 1 count 0", "accepted beta seq 2 count 0"}},
		{"v1 push", func() error {
			_, err := r.relay.PushV1(t.Context(), r.caller(alpha), [][]byte{wireOf(first), wireOf(mail(alpha, beta))})
			return err
		}, []string{"accepted beta seq 3 count 0"}},
		{"ack", func() error { _, err := r.relay.Ack(t.Context(), r.caller(beta), r.epoch(), 1); return err },
			[]string{"acked beta seq 1 count 1"}},
		{"v1 ack", func() error { return r.relay.AckV1(t.Context(), r.caller(beta), 1) }, []string{"acked beta seq 1 count 0"}},
		{"hold", func() error { r.done(r.relay.Hold, ref(beta, 2, second)); return nil }, []string{"held beta seq 2 count 0"}},
		{"hold again", func() error { r.outcomes(r.relay.Hold, ref(beta, 2, second)); return nil }, nil},
		{"release", func() error { r.done(r.relay.Release, ref(beta, 2, second)); return nil }, []string{"released beta seq 4 count 0"}},
		{"discard", func() error {
			r.done(r.relay.Hold, ref(beta, 4, second))
			r.done(r.relay.Discard, ref(beta, 4, second))
			return nil
		}, []string{"accepted alpha seq 1 count 0", "discarded beta seq 4 count 0", "held beta seq 4 count 0"}},
		{"block", func() error { _, err := r.relay.Block(t.Context(), beta.Pub(), time.Time{}, operator); return err },
			[]string{"denied beta seq 0 count 0"}},
		{"block again", func() error { _, err := r.relay.Block(t.Context(), beta.Pub(), time.Time{}, operator); return err }, nil},
		{"unblock", func() error {
			_, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: r.denials(beta)[0].ID}, operator)
			return err
		},
			[]string{"undenied beta seq 0 count 0"}},
		{"dismiss", func() error { _, err := r.relay.Dismiss(t.Context(), nil, operator); return err }, nil},
		{"rotate", func() error { _, err := r.rotate(beta, next); return err }, []string{"rotated beta next seq 0 count 1"}},
		{"expire", func() error { r.clock.Add(14 * day); _, err := r.relay.Sweep(t.Context()); return err },
			[]string{"expired alpha seq 1 count 0", "swept seq 0 count 0"}},
		{"epoch", func() error { _, err := r.relay.RotateEpoch(t.Context(), "test", "why not"); return err },
			[]string{"epoch-rotated seq 0 count 0"}},
		{"revoke", func() error { _, err := r.relay.RevokeHost(t.Context(), alpha.Pub(), operator); return err }, []string{"revoked alpha seq 0 count 0"}},
		{"revoke again", func() error { _, err := r.relay.RevokeHost(t.Context(), alpha.Pub(), operator); return err }, nil},
		{"beat", func() error { return r.relay.Beat(t.Context()) }, nil},
	}
	for _, tt := range steps {
		before := len(r.lines())
		ok(t, tt.name, tt.do())
		got := r.lines()[before:]
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q; want %q", tt.name, got, tt.want)
		}
	}
	for _, e := range o.seen {
		if e.At.IsZero() || e.Item.Wire != nil {
			t.Errorf("effect %s: got at %v, %d bytes of wire; want a time and no wire", e.Kind, e.At, len(e.Item.Wire))
		}
		switch e.Kind {
		case relay.EpochRotated:
			same(t, "epoch", e.Epoch, r.epoch())
		case relay.Accepted, relay.Expired, relay.Held, relay.Released, relay.Discarded:
			same(t, string(e.Kind)+": held", e.Item.Held, e.Kind == relay.Held || e.Kind == relay.Discarded)
			if e.Item.Target != e.Host || e.Item.Seq != e.Seq || e.Item.ID == "" || e.Item.Size == 0 || e.Item.Hash == [32]byte{} {
				t.Errorf("effect %s: got %+v; want the whole item but its wire", e.Kind, e.Item)
			}
		}
	}
}

// An observer's error undoes the effect and its own rows, whatever the effect.
func TestObserverUndoesTheEffect(t *testing.T) {
	t.Parallel()
	o := &recorder{names: map[wire.PublicKey]string{}}
	r := newRig(t, func(s *setup) { s.Observers = []relay.Observer{&failingObserver{}, o} })
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), wiretest.NewHost("gamma")
	r.pushed(alpha, mail(alpha, beta), "accepted")
	r.pushed(alpha, mail(alpha, beta), "accepted")
	ctx := t.Context()
	for _, tt := range []struct {
		name string
		kind relay.EffectKind
		do   func() error
	}{
		{"enrol", relay.Enrolled, func() error { return r.tryEnrol(gamma, "") }},
		{"push", relay.Accepted, func() error {
			_, err := r.relay.Push(ctx, r.caller(alpha), []wire.PushItem{mail(alpha, beta)})
			return err
		}},
		{"v1 push", relay.Accepted, func() error {
			_, err := r.relay.PushV1(ctx, r.caller(alpha), [][]byte{wireOf(mail(alpha, beta))})
			return err
		}},
		{"ack", relay.Acked, func() error { _, err := r.relay.Ack(ctx, r.caller(beta), r.epoch(), 1); return err }},
		{"publish", relay.Listed, func() error { return r.publish(beta, t0, alpha) }},
		{"hold", relay.Held, func() error { return r.tryDeed(r.relay.Hold, beta) }},
		{"release", relay.Released, func() error { return r.tryDeed(r.relay.Release, beta) }},
		{"hold, to discard", relay.Held, func() error { return r.tryDeed(r.relay.Hold, beta) }},
		{"discard", relay.Discarded, func() error { return r.tryDeed(r.relay.Discard, beta) }},
		{"hold, to discard another", relay.Held, func() error { return r.tryDeed(r.relay.Hold, beta) }},
		{"discard, its notice", relay.Accepted, func() error { return r.tryDeed(r.relay.Discard, beta) }},
		{"block", relay.Denied, func() error { _, err := r.relay.Block(ctx, gamma.Pub(), time.Time{}, operator); return err }},
		{"unblock", relay.Undenied, func() error {
			_, err := r.relay.Unblock(ctx, relay.DenialRef{ID: r.denials(gamma)[0].ID}, operator)
			return err
		}},
		{"epoch", relay.EpochRotated, func() error { _, err := r.relay.RotateEpoch(ctx, "test", "why not"); return err }},
		{"expire", relay.Expired, func() error { r.clock.Add(14 * day); _, err := r.relay.Sweep(ctx); return err }},
		{"rotate", relay.Rotated, func() error { _, err := r.rotate(beta, wiretest.NewHost("beta")); return err }},
		{"revoke", relay.Revoked, func() error { _, err := r.relay.RevokeHost(ctx, alpha.Pub(), operator); return err }},
	} {
		before := r.state(alpha, beta, gamma)
		o.refuse = tt.kind
		if err := tt.do(); !errors.Is(err, errObserver) {
			t.Errorf("%s: got %v; want the observer's error", tt.name, err)
		}
		same(t, tt.name+": state", r.state(alpha, beta, gamma), before)
		o.refuse = ""
		ok(t, tt.name+", once the observer agrees", tt.do())
		if r.state(alpha, beta, gamma) == before {
			t.Errorf("%s: got no change; want the effect and its row", tt.name)
		}
	}
}

// tryDeed does something to the first item of a host, wherever it stands.
func (r *rig) tryDeed(do deedOf, h *wiretest.Host) error {
	r.t.Helper()
	var it store.Item
	if held := r.heldBy(h); len(held) > 0 {
		it = held[0].Item
	} else {
		it = r.queue(h)[0]
	}
	_, err := do(context.Background(), []relay.ItemRef{{Target: it.Target, Seq: it.Seq, ID: it.ID}}, operator)
	return err
}

// state sums up what a store holds.
func (r *rig) state(hosts ...*wiretest.Host) string {
	s := []string{r.epoch(), fmt.Sprint(r.totals()), r.quarantine(), strings.Join(r.lines(), ";"), fmt.Sprint(len(r.log("")))}
	for _, h := range hosts {
		e, _ := r.enrolment(h)
		s = append(s, fmt.Sprint(e), r.queued(h), fmt.Sprint(r.usage(h)))
	}
	return strings.Join(s, "\n")
}
