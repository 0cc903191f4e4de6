package relay

import (
	"context"
	"errors"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// PullQuery is what a host asks of its queue.
type PullQuery struct {
	After int64
	Limit int           // 0: as many as a page holds
	Epoch string        // "": any
	Wait  time.Duration // how long to wait for a first item
}

// Page is one page of a queue.
type Page struct {
	Epoch   string
	HeadSeq int64
	Items   []store.Item
	LastSeq int64
	More    bool
}

// Pull serves whatever is queued for the caller after a seq, swept or not. With
// a wait it holds an empty answer until a commit brings something, the wait or the
// caller's session is over, or the relay stops.
func (r *Relay) Pull(ctx context.Context, who Caller, q PullQuery) (Page, error) {
	if q.Wait <= 0 {
		return r.page(ctx, who, q)
	}
	// Wait first, look then: what is committed in between closes the channel.
	woken, done, ok := r.polls.wait(who.Key)
	if !ok {
		return r.page(ctx, who, q)
	}
	defer func() { done() }()
	timeout := time.NewTimer(r.untilSessionEnds(who, q.Wait))
	defer timeout.Stop()
	for epoch := ""; ; {
		p, err := r.page(ctx, who, q)
		if err != nil || len(p.Items) > 0 || epoch != "" && p.Epoch != epoch { // a new epoch is news, too
			return p, err
		}
		epoch = p.Epoch
		select {
		case <-woken:
			done()
			if woken, done, ok = r.polls.wait(who.Key); !ok {
				done = func() {}
				return r.page(ctx, who, q)
			}
		case <-timeout.C:
			return r.page(ctx, who, q)
		case <-ctx.Done():
			return Page{}, ctx.Err()
		}
	}
}

// untilSessionEnds is the wait, cut at the end of the caller's session.
func (r *Relay) untilSessionEnds(who Caller, wait time.Duration) time.Duration {
	if r.issuer == nil {
		return wait
	}
	return max(0, min(wait, who.SessionEnds.Sub(r.now())))
}

// Waiting tells how many bytes of mail wait for the caller: what a page of them
// may take, before it is read. Held items are in no page.
func (r *Relay) Waiting(ctx context.Context, who Caller) (bytes int64, err error) {
	err = r.store.View(ctx, func(v store.Reader) error {
		q, err := v.Queue(who.Key)
		bytes = q.Bytes - q.Held.Bytes
		return err
	})
	return bytes, storeError(err)
}

// page reads one page. The caller is looked at again: it may have been revoked,
// denied or rotated away while it waited.
func (r *Relay) page(ctx context.Context, who Caller, q PullQuery) (p Page, err error) {
	limit := int(r.limits.MaxPull)
	if q.Limit > 0 && q.Limit < limit {
		limit = q.Limit
	}
	err = r.store.View(ctx, func(v store.Reader) error {
		if err := r.stillWelcome(v, who.Key); err != nil {
			return err
		}
		in, err := v.Info()
		if err != nil {
			return err
		}
		p = Page{Epoch: in.Epoch, LastSeq: q.After}
		if p.HeadSeq, err = v.Head(who.Key); err != nil {
			return err
		}
		if q.Epoch != "" && q.Epoch != in.Epoch {
			return &Error{Kind: Conflict, Code: "EPOCH", Text: "the epoch has changed", At: &Position{in.Epoch, p.HeadSeq}}
		}
		bytes := int64(0)
		return v.Page(who.Key, q.After, limit+1, func(it store.Item) bool {
			bytes += it.Size
			if len(p.Items) == limit || len(p.Items) > 0 && bytes > r.limits.MaxPullBytes {
				p.More = true
				return false
			}
			p.Items = append(p.Items, it)
			p.LastSeq = it.Seq
			return true
		})
	})
	if err == nil && len(p.Items) > 0 {
		r.activity.pulled.add(r.clock(), int64(len(p.Items)))
	}
	return p, storeError(err)
}

func (r *Relay) stillWelcome(v store.Reader, key wire.PublicKey) error {
	e, err := v.Enrolment(key)
	if errors.Is(err, store.ErrNotFound) || err == nil && !e.Live() {
		return errHop
	}
	if err != nil { // the store's trouble: a 401 would make the host enrol again
		return err
	}
	return r.welcome(v, e)
}

// AckResult says where a queue stands after an ack.
type AckResult struct {
	AckedThrough, Deleted, HeadSeq int64
}

// Ack drops the caller's items through a seq. through is a number as JSON has
// them: one that is no seq of this queue is refused, since it tells that this
// store went back in time (seed 000 §4).
func (r *Relay) Ack(ctx context.Context, who Caller, epoch string, through float64) (a AckResult, err error) {
	err = r.update(ctx, func(c *change) error {
		if err := r.stillWelcome(c, who.Key); err != nil {
			return err
		}
		in, err := c.Info()
		if err != nil {
			return err
		}
		head, err := c.Head(who.Key)
		if err != nil {
			return err
		}
		at := &Position{in.Epoch, head}
		if epoch != in.Epoch {
			return &Error{Kind: Conflict, Code: "EPOCH", Text: "the epoch has changed", At: at}
		}
		if !(through >= 0 && through <= float64(head)) || through != float64(int64(through)) {
			return &Error{Kind: BadRequest, Code: "BAD_ACK", Text: "through is no sequence number of this queue", At: at}
		}
		a, err = c.ack(who.Key, int64(through), head)
		return err
	})
	return a, err
}

func (c *change) ack(target wire.PublicKey, through, head int64) (AckResult, error) {
	deleted, err := c.AckThrough(target, through)
	if err != nil {
		return AckResult{}, err
	}
	acked, err := c.Acked(target)
	if err != nil {
		return AckResult{}, err
	}
	return AckResult{acked, deleted, head}, c.did(Effect{Kind: Acked, Host: target, Seq: through, Count: deleted})
}

// StopPolls ends every long poll and lets none wait again: the first step of a
// stop.
func (r *Relay) StopPolls() { r.polls.close() }
