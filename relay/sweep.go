package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Bounds of a sweep (protocol §3): each batch is one transaction, and a run
// that found more than it may do leaves the rest to the next.
const (
	SweepEvery   = 10 * time.Minute
	sweepBatch   = 500
	sweepBatches = 20
	dedupGrace   = 7 * 24 * time.Hour // the dedup horizon is retention and this
)

// SweepReceipt says what a sweep did.
type SweepReceipt struct {
	At      string         `json:"at"`
	Expired ExpiredCounts  `json:"expired"`
	Notices int64          `json:"notices"`
	Skipped SkippedNotices `json:"skipped"`
	Pruned  int64          `json:"dedup_pruned"`
	More    bool           `json:"more"` // there was more than one run may do
}

// ExpiredCounts counts dropped items by kind.
type ExpiredCounts struct {
	Envelopes int64 `json:"envelope"`
	Receipts  int64 `json:"receipt"`
	Notices   int64 `json:"expired"`
}

// SkippedNotices counts senders that could not be told, by reason.
type SkippedNotices struct {
	NotEnrolled int64 `json:"not_enrolled"`
	OverCap     int64 `json:"over_cap"`
	Duplicate   int64 `json:"duplicate"` // told before
}

// Sweep drops what has expired, tells the senders, and forgets dedup rows past
// their horizon. A sweep that did something is written to the log. After a jump of
// the clock it may be held: *HeldSweepError. ErrDetached.
func (r *Relay) Sweep(ctx context.Context) (SweepReceipt, error) {
	now := r.now()
	sure, err := r.mayExpire(ctx, now)
	if err != nil {
		return SweepReceipt{At: wire.FormatTime(now)}, err
	}
	return r.sweep(ctx, now, sure)
}

// sweep forgets no dedup row while the clock is not sure.
func (r *Relay) sweep(ctx context.Context, now time.Time, sure bool) (SweepReceipt, error) {
	if r.detached() { // it could not sign the notices
		return SweepReceipt{At: wire.FormatTime(now)}, fmt.Errorf("sweep: %w", ErrDetached)
	}
	total := SweepReceipt{At: wire.FormatTime(now)}
	for n := 0; ; n++ {
		if n == sweepBatches {
			total.More = true
			break
		}
		found, err := r.sweepBatch(ctx, now, &total)
		if err != nil {
			return total, fmt.Errorf("sweep: %w", err)
		}
		if found < sweepBatch {
			break
		}
	}
	if sure {
		if err := r.prune(ctx, now, &total); err != nil {
			return total, fmt.Errorf("prune dedup rows: %w", err)
		}
	}
	if total == (SweepReceipt{At: total.At}) {
		return total, nil
	}
	receipt, err := json.Marshal(total)
	if err != nil {
		return total, err
	}
	return total, r.update(ctx, func(c *change) error {
		if err := c.AppendLog(now, "sweep", receipt); err != nil {
			return err
		}
		return c.did(Effect{Kind: Swept, At: now})
	})
}

// sweepBatch expires up to sweepBatch items in one transaction and adds what it
// did to total once that is committed.
func (r *Relay) sweepBatch(ctx context.Context, now time.Time, total *SweepReceipt) (found int, err error) {
	var did SweepReceipt
	err = r.update(ctx, func(c *change) error {
		did = SweepReceipt{}
		in, err := c.Info()
		if err != nil {
			return err
		}
		list, err := c.Expired(in.ExpiryFrom, now, sweepBatch)
		if err != nil {
			return err
		}
		found = len(list)
		for _, it := range list {
			if err := c.expire(it, now, &did); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	total.add(did)
	return found, nil
}

func (t *SweepReceipt) add(d SweepReceipt) {
	t.Expired.Envelopes += d.Expired.Envelopes
	t.Expired.Receipts += d.Expired.Receipts
	t.Expired.Notices += d.Expired.Notices
	t.Notices += d.Notices
	t.Skipped.NotEnrolled += d.Skipped.NotEnrolled
	t.Skipped.OverCap += d.Skipped.OverCap
	t.Skipped.Duplicate += d.Skipped.Duplicate
	t.Pruned += d.Pruned
}

// expire drops one item. Its dedup row stays as a tombstone, so that a late
// retry is a duplicate and no delivery.
func (c *change) expire(it store.Item, now time.Time, did *SweepReceipt) error {
	if err := c.Drop(it); err != nil {
		return err
	}
	switch it.Kind {
	case store.KindReceipt: // advisory: dropped without notice
		did.Expired.Receipts++
	case store.KindExpired:
		did.Expired.Notices++
	default:
		did.Expired.Envelopes++
		if err := c.notify(it, now, did); err != nil {
			return err
		}
	}
	return c.did(Effect{Kind: Expired, At: now, Host: it.Target, Item: it, Seq: it.Seq})
}

// notify queues the signed notice for the sender of an expired envelope.
func (c *change) notify(it store.Item, now time.Time, did *SweepReceipt) error {
	sender, err := c.Enrolment(it.Sender)
	if errors.Is(err, store.ErrNotFound) || err == nil && !sender.Live() {
		did.Skipped.NotEnrolled++
		return nil
	}
	if err != nil {
		return err
	}
	id, body := wire.MakeExpiryNotice(c.r.key, it.ID, it.Target, it.AcceptedAt, it.ExpiresAt)
	if _, err := c.Dedup(c.r.pub, id, it.Sender); err == nil {
		did.Skipped.Duplicate++
		return nil
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	full, err := c.overCap(sender, int64(len(body)))
	if err != nil {
		return err
	}
	if full {
		did.Skipped.OverCap++
		return nil
	}
	notice := store.Item{
		Target: it.Sender, Kind: store.KindExpired, ID: id, Sender: c.r.pub, SenderHost: "",
		Hash: wire.Hash(body), Size: int64(len(body)), AcceptedAt: now, ExpiresAt: now.Add(c.r.retention()), Wire: body,
	}
	if notice.Seq, err = c.Insert(notice); err != nil {
		return err
	}
	did.Notices++
	return c.did(Effect{Kind: Accepted, At: now, Host: notice.Target, Item: notice, Seq: notice.Seq})
}

// overCap reports whether a host's queue, or its account, has no room for one
// more item of a size.
func (c *change) overCap(e store.Enrolment, size int64) (bool, error) {
	l := &c.r.limits
	u, err := c.QueueUsage(e.Key)
	if err != nil || u.Items+1 > l.MaxQueueItems || u.Bytes+size > l.MaxQueueBytes {
		return true, err
	}
	if e.Account == "" {
		return false, nil
	}
	u, err = c.AccountUsage(e.Account)
	return u.Items+1 > l.MaxOwnerItems || u.Bytes+size > l.MaxOwnerBytes, err
}

// prune forgets dedup rows past the horizon, counted from the acceptance. The
// rows are looked for outside the writer.
func (r *Relay) prune(ctx context.Context, now time.Time, total *SweepReceipt) error {
	before := now.Add(-r.retention() - dedupGrace)
	var rows []store.DedupKey
	err := r.store.View(ctx, func(v store.Reader) (err error) {
		rows, err = v.Prunable(before, sweepBatch*sweepBatches)
		return err
	})
	if err != nil {
		return err
	}
	if len(rows) == sweepBatch*sweepBatches {
		total.More = true
	}
	for len(rows) > 0 {
		n := min(len(rows), sweepBatch)
		var pruned int64
		if err := r.update(ctx, func(c *change) (err error) { pruned, err = c.Forget(rows[:n], before); return err }); err != nil {
			return err
		}
		total.Pruned += pruned
		rows = rows[n:]
	}
	return nil
}
