package relay

import (
	"context"
	"errors"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// EffectKind names what a transaction did.
type EffectKind string

// What can be observed.
const (
	Enrolled     EffectKind = "enrolled"      // Host
	Accepted     EffectKind = "accepted"      // Item is queued for its target
	Acked        EffectKind = "acked"         // Host acknowledged through Seq; Count items went
	Expired      EffectKind = "expired"       // Item was dropped unread
	Held         EffectKind = "held"          // Item was taken into the quarantine
	Released     EffectKind = "released"      // Item is back in its queue, as Seq
	Discarded    EffectKind = "discarded"     // Item was dropped from the quarantine
	Revoked      EffectKind = "revoked"       // Host
	Denied       EffectKind = "denied"        // Host is refused; without Host, Count hosts or more are
	Undenied     EffectKind = "undenied"      // a denial is gone, of Host when it is enrolled
	Rotated      EffectKind = "rotated"       // Host became Other; Count items moved
	Listed       EffectKind = "listed"        // Host published its sender list
	Swept        EffectKind = "swept"         // a sweep ended
	EpochRotated EffectKind = "epoch-rotated" // to Epoch
)

// Effect is one thing that a transaction did. Item carries no Wire.
type Effect struct {
	Kind  EffectKind
	At    time.Time
	Host  wire.PublicKey
	Other wire.PublicKey
	Item  store.Item
	Seq   int64
	Count int64
	Epoch string
}

// Observer sees effects inside the transaction that has them, and may add rows
// of its own through tx: what it adds is stored if and only if the effect is.
// An error undoes both. It must not wait for anything. What a dry run does is seen
// here, too, and undone.
type Observer interface {
	Observe(tx store.Tx, e Effect) error
}

// change is a transaction together with what it did.
type change struct {
	store.Tx
	r       *Relay
	effects []Effect
}

// did tells the observers of an effect.
func (c *change) did(e Effect) error {
	if e.At.IsZero() {
		e.At = c.r.now()
	}
	e.Item.Wire = nil
	c.effects = append(c.effects, e)
	for _, o := range c.r.observers {
		if err := o.Observe(c.Tx, e); err != nil {
			return err
		}
	}
	return nil
}

// update runs fn in a transaction; after the commit it wakes whoever waits for
// what it did. fn may run more than once and starts from nothing each time.
func (r *Relay) update(ctx context.Context, fn func(c *change) error) error {
	var c change
	err := r.store.Update(ctx, func(tx store.Tx) error {
		c = change{Tx: tx, r: r}
		return fn(&c)
	})
	if err == nil {
		r.activity.count(r.clock(), c.effects)
	}
	if err == nil || errors.Is(err, store.ErrUnknownOutcome) { // it may have been stored: look
		r.wake(c.effects)
	}
	return storeError(err)
}

// wake ends the waits of those whom effects concern.
func (r *Relay) wake(effects []Effect) {
	for _, e := range effects {
		switch e.Kind {
		case Accepted, Released:
			r.polls.wake(e.Item.Target)
		case Denied:
			if e.Count > 0 {
				r.polls.wakeAll()
			} else {
				r.polls.wake(e.Host)
			}
		case Revoked:
			r.polls.wake(e.Host)
		case Rotated:
			r.polls.wake(e.Host)
			r.polls.wake(e.Other)
		case EpochRotated:
			r.polls.wakeAll()
		}
	}
}
