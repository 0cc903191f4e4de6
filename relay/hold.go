package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// What became of the notice of a discarded item.
const (
	NoticeQueued      = "queued"       // its sender will hear
	NoticeNone        = "none"         // a receipt or a notice: nobody waits for it
	NoticeBefore      = "told before"  //
	NoticeNotEnrolled = "not enrolled" // its sender is not there any more

	noticeOverCap = "over cap" // there is no room for it
)

// Hold takes queued items out of their queues and into the quarantine. There
// they keep their dedup rows, their numbers and their charge, acks and pulls do
// not see them, and their deadlines go on.
func (r *Relay) Hold(ctx context.Context, refs []ItemRef, d Deed) ([]Outcome, error) {
	return r.items(ctx, refs, d, itemDeed{"hold", true, (*change).queuedItem, func(c *change, now time.Time, _ *Outcome, it store.Item) error {
		if err := c.Hold(it.Target, it.Seq, now, d.Actor, d.Reason); err != nil {
			return err
		}
		it.Held = true
		return c.did(Effect{Kind: Held, At: now, Host: it.Target, Item: it, Seq: it.Seq})
	}})
}

// Release puts held items back at the tail of their queues, each under a number
// above all that were there, so that its host pulls it however far it has acked.
// One whose time is over is expired by the next sweep.
func (r *Relay) Release(ctx context.Context, refs []ItemRef, d Deed) ([]Outcome, error) {
	return r.items(ctx, refs, d, itemDeed{"release", true, (*change).heldItem, func(c *change, now time.Time, o *Outcome, it store.Item) error {
		e, err := c.Enrolment(it.Target)
		if err := present(err); err != nil {
			return err
		}
		if err != nil || !e.Live() {
			o.Problem = ProblemNoHost
			return nil
		}
		if o.NewSeq, err = c.Release(it.Target, it.Seq); err != nil {
			return err
		}
		it.Held, it.Seq = false, o.NewSeq
		return c.did(Effect{Kind: Released, At: now, Host: it.Target, Item: it, Seq: it.Seq})
	}})
}

// Discard drops held items and tells their senders with the signed notice of
// expiry, whose expired_at is now. Their dedup rows stay: a retry is a duplicate.
// ErrDetached without the relay's key.
func (r *Relay) Discard(ctx context.Context, refs []ItemRef, d Deed) ([]Outcome, error) {
	if r.keyless() { // it could not sign the notices
		return nil, fmt.Errorf("discard: %w", ErrDetached)
	}
	return r.items(ctx, refs, d, itemDeed{"discard", false, (*change).heldItem, func(c *change, now time.Time, o *Outcome, it store.Item) error {
		it.Held = true
		notice, fate, err := c.notice(it, now, now)
		if err != nil {
			return err
		}
		if fate == noticeOverCap {
			o.Problem = ProblemSenderFull
			return nil
		}
		o.Notice = fate
		if err := c.drop(it, notice, fate); err != nil {
			return err
		}
		return c.did(Effect{Kind: Discarded, At: now, Host: it.Target, Item: it, Seq: it.Seq})
	}})
}
