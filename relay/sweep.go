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
	notice, fate, err := c.notice(it, now, it.ExpiresAt)
	if err != nil {
		return err
	}
	switch it.Kind {
	case store.KindReceipt: // advisory: dropped without notice
		did.Expired.Receipts++
	case store.KindExpired:
		did.Expired.Notices++
	default:
		did.Expired.Envelopes++
	}
	switch fate {
	case NoticeQueued:
		did.Notices++
	case NoticeNotEnrolled:
		did.Skipped.NotEnrolled++
	case NoticeBefore:
		did.Skipped.Duplicate++
	case noticeOverCap:
		did.Skipped.OverCap++
	}
	if err := c.drop(it, notice, fate); err != nil {
		return err
	}
	return c.did(Effect{Kind: Expired, At: now, Host: it.Target, Item: it, Seq: it.Seq})
}

// notice makes the signed notice for the sender of an envelope that is to be
// dropped unread, and says what becomes of it. end is when the item's time was over.
func (c *change) notice(it store.Item, now, end time.Time) (n store.Item, fate string, err error) {
	if it.Kind != store.KindEnvelope {
		return n, NoticeNone, nil
	}
	sender, err := c.Enrolment(it.Sender)
	if errors.Is(err, store.ErrNotFound) || err == nil && !sender.Live() {
		return n, NoticeNotEnrolled, nil
	}
	if err != nil {
		return n, "", err
	}
	id, body := wire.MakeExpiryNotice(c.r.key, it.ID, it.Target, it.AcceptedAt, end)
	if _, err := c.Dedup(c.r.pub, id, it.Sender); err == nil {
		return n, NoticeBefore, nil
	} else if !errors.Is(err, store.ErrNotFound) {
		return n, "", err
	}
	full, err := c.overCap(sender, int64(len(body)), it)
	if err != nil {
		return n, "", err
	}
	if full {
		return n, noticeOverCap, nil
	}
	return store.Item{
		Target: it.Sender, Kind: store.KindExpired, ID: id, Sender: c.r.pub, SenderHost: "",
		Hash: wire.Hash(body), Size: int64(len(body)), AcceptedAt: now, ExpiresAt: now.Add(c.r.retention()), Wire: body,
	}, NoticeQueued, nil
}

// drop removes an item and queues the notice of it, if there is to be one.
func (c *change) drop(it, notice store.Item, fate string) (err error) {
	if err := c.Drop(it); err != nil || fate != NoticeQueued {
		return err
	}
	if notice.Seq, err = c.Insert(notice); err != nil {
		return err
	}
	return c.did(Effect{Kind: Accepted, At: notice.AcceptedAt, Host: notice.Target, Item: notice, Seq: notice.Seq})
}

// overCap reports whether a host's queue, or its account, has no room for one
// more item of a size once an item has left.
func (c *change) overCap(e store.Enrolment, size int64, leaving store.Item) (bool, error) {
	l := &c.r.limits
	u, err := c.QueueUsage(e.Key)
	if err != nil {
		return true, err
	}
	if leaving.Target == e.Key {
		u.Items, u.Bytes = u.Items-1, u.Bytes-leaving.Size
	}
	if u.Items+1 > l.MaxQueueItems || u.Bytes+size > l.MaxQueueBytes || e.Account == "" {
		return u.Items+1 > l.MaxQueueItems || u.Bytes+size > l.MaxQueueBytes, nil
	}
	if u, err = c.AccountUsage(e.Account); err != nil {
		return true, err
	}
	target, err := c.Enrolment(leaving.Target)
	if err := present(err); err != nil {
		return true, err
	}
	if target.Account == e.Account {
		u.Items, u.Bytes = u.Items-1, u.Bytes-leaving.Size
	}
	return u.Items+1 > l.MaxOwnerItems || u.Bytes+size > l.MaxOwnerBytes, nil
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
