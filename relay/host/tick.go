package host

import (
	"context"
	"errors"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Report is what one tick did.
type Report struct {
	Relay       RelayReport   `json:"relay"`
	LAN         LANReport     `json:"lan"`
	Receipts    ReceiptReport `json:"lan_receipts"`
	Unconfirmed int           `json:"unconfirmed"` // mail whose deadline is over
	GivenUp     int           `json:"given_up"`    // mail that was tried for 72 hours
	Retried     int           `json:"retried"`     // mail accepted out of quarantine
	More        bool          `json:"more"`        // there is more to do at once
}

// Tick does once what a daemon does every two seconds: the relay, then the LAN,
// over the rows due at its start, then what has a deadline. Trouble with peers
// or the relay is part of the report; an error is this host's own.
func (h *Host) Tick(ctx context.Context) (Report, error) { return h.tick(ctx, false) }

// tick with polled leaves the relay's queue to the long poll, and the relay
// alone for a while when there is nothing for it.
func (h *Host) tick(ctx context.Context, polled bool) (report Report, err error) {
	h.ticking.Lock()
	defer h.ticking.Unlock()
	if err := h.reload(ctx); err != nil {
		return report, err
	}
	var rows []row
	var receipts []owed
	var moreRows, moreReceipts, moreItems bool
	err = h.db.read(ctx, func(t *tx) (err error) {
		if rows, moreRows, err = due(t); err != nil {
			return err
		}
		receipts, moreReceipts, err = dueReceipts(t)
		return err
	})
	if err != nil {
		return report, err
	}
	// What goes wrong in one of these is not a reason to leave out the others.
	var errs []error
	try := func(err error) { errs = append(errs, err) }
	if quiet := polled && len(rows) == 0 && len(receipts) == 0 && h.fresh(h.sessionNow()); !quiet {
		report.Relay, moreItems, err = h.relayPass(ctx, rows, receipts, !polled)
		try(err)
	}
	try(h.announceRotations(ctx))
	report.LAN, err = h.lanPass(ctx, rows)
	try(err)
	receipts, err = h.stillOwed(ctx, receipts)
	try(err)
	report.Receipts, err = h.lanReceipts(ctx, receipts)
	try(err)
	report.Retried, err = h.retryQuarantine(ctx)
	try(err)
	try(h.deadlines(ctx, &report))
	progress := report.LAN.Sent+report.LAN.Rejected+report.Relay.Accepted+report.Receipts.Sent+report.Relay.ReceiptsSent > 0
	report.More = moreItems || (moreRows || moreReceipts) && progress
	return report, errors.Join(errs...)
}

// stillOwed leaves out the receipts that the relay has taken.
func (h *Host) stillOwed(ctx context.Context, receipts []owed) (left []owed, err error) {
	if len(receipts) == 0 {
		return nil, nil
	}
	err = h.db.read(ctx, func(t *tx) error {
		for _, o := range receipts {
			var one int
			owed, err := t.get("SELECT 1 FROM receipts_out WHERE msg = ? AND recipient = ? AND seq = ?", []any{o.msg, o.recipient, o.seq}, &one)
			if err != nil {
				return err
			}
			if owed {
				left = append(left, o)
			}
		}
		return nil
	})
	return left, err
}

// deadlines ends what is over. Most ticks find nothing and write nothing.
func (h *Host) deadlines(ctx context.Context, report *Report) error {
	due := false
	err := h.db.read(ctx, func(t *tx) (err error) {
		due, err = anythingOver(t)
		return err
	})
	if err != nil || !due {
		return err
	}
	return h.db.write(ctx, func(t *tx) (err error) {
		if err := backToNow(t); err != nil {
			return err
		}
		if report.Unconfirmed, err = h.sweepDeadlines(t); err != nil {
			return err
		}
		if report.GivenUp, err = h.giveUp(t); err != nil {
			return err
		}
		return errors.Join(expireReceipts(t), forgetPruned(t), dropTokens(t))
	})
}

// maxDeadline is the longest time that a relay's copy can have left.
const maxDeadline = maxRetention + deadlineGrace + wire.MaxAhead

// backToNow gives what was written while the clock was ahead the time that it
// would have now: it would be kept, or tried, for as long again as the clock
// was wrong.
func backToNow(t *tx) error {
	ahead := t.now + wire.MaxAhead.Milliseconds()
	for _, q := range []struct {
		query string
		args  []any
	}{
		{"UPDATE outbox SET queued_at = ?1 WHERE state = 'queued' AND queued_at > ?2", []any{t.now, ahead}},
		{"UPDATE receipts_out SET queued_at = ?1 WHERE queued_at > ?2", []any{t.now, ahead}},
		{"UPDATE pruned_ids SET at = ?1 WHERE at > ?2", []any{t.now, ahead}},
		{"UPDATE relay_sent SET deadline = ?1 + min(deadline - accepted_at, ?2) WHERE state IN ('relay-accepted', 'repush') AND deadline > ?1 + ?2",
			[]any{t.now, maxDeadline.Milliseconds()}},
	} {
		if _, err := t.exec(q.query, q.args...); err != nil {
			return err
		}
	}
	return nil
}

func anythingOver(t *tx) (bool, error) {
	var one int
	ahead := t.now + wire.MaxAhead.Milliseconds()
	for _, q := range []struct {
		query string
		at    int64
	}{
		{"SELECT 1 FROM relay_sent WHERE state IN ('relay-accepted', 'repush') AND deadline < ? LIMIT 1", t.now},
		{"SELECT 1 FROM outbox WHERE state = 'queued' AND queued_at < ? LIMIT 1", t.now - outboxLife.Milliseconds()},
		{"SELECT 1 FROM receipts_out WHERE queued_at < ? LIMIT 1", t.now - receiptLife.Milliseconds()},
		{"SELECT 1 FROM pruned_ids WHERE at < ? LIMIT 1", t.now - prunedLife.Milliseconds()},
		{"SELECT 1 FROM pair_tokens WHERE expires_at <= ? LIMIT 1", t.now},
		{"SELECT 1 FROM outbox WHERE state = 'queued' AND queued_at > ? LIMIT 1", ahead},
		{"SELECT 1 FROM receipts_out WHERE queued_at > ? LIMIT 1", ahead},
		{"SELECT 1 FROM pruned_ids WHERE at > ? LIMIT 1", ahead},
		{"SELECT 1 FROM relay_sent WHERE state IN ('relay-accepted', 'repush') AND deadline > ? LIMIT 1", t.now + maxDeadline.Milliseconds()},
	} {
		if found, err := t.get(q.query, []any{q.at}, &one); err != nil || found {
			return found, err
		}
	}
	return false, nil
}
