package host

import (
	"context"
	"errors"
	"strings"

	"github.com/agentmbx/agentmbx/relay/host/lan"
)

// ReceiptReport is what one pass over the owed receipts did.
type ReceiptReport struct {
	Sent     int `json:"sent"`
	Deferred int `json:"deferred"`
}

// owed is a row of receipts_out.
type owed struct {
	msg, recipient string
	seq            int64
	fold           string
	wire           []byte
	attempts       int
	overRelay      bool // it may go over the relay at once
}

// dueReceipts are the receipts of this tick.
func dueReceipts(t *tx) (all []owed, more bool, err error) {
	more, err = receiptQueue.due(t, func(fold string, scan func(...any) error) error {
		o := owed{fold: fold}
		err := scan(&o.msg, &o.recipient, &o.seq, &o.wire, &o.attempts, &o.overRelay)
		all = append(all, o)
		return err
	})
	return all, more, err
}

func (o owed) drop(t *tx) error {
	_, err := t.exec("DELETE FROM receipts_out WHERE msg = ? AND recipient = ? AND seq = ?", o.msg, o.recipient, o.seq)
	return err
}

// receiptsUnknown is what a row for a peer that knows no receipts says.
const receiptsUnknown = "an older peer: it takes no receipts"

// postpone notes a failed attempt; a peer that knows no receipts is left alone for an hour.
func (o owed) postpone(t *tx, cause error) error {
	wait, reason := backoff(o.attempts), lanReason(cause)
	var status *lan.StatusError
	if errors.As(cause, &status) && tooOld(status.Status) {
		wait, reason = receiptHold, receiptsUnknown
	}
	_, err := t.exec("UPDATE receipts_out SET attempts = attempts + 1, next_at = ?, error = ? WHERE msg = ? AND recipient = ? AND seq = ?",
		t.now+wait.Milliseconds(), printable(reason), o.msg, o.recipient, o.seq)
	return err
}

// lanReceipts brings receipts to their hosts over the LAN.
func (h *Host) lanReceipts(ctx context.Context, all []owed) (report ReceiptReport, err error) {
	byFold := map[string][]owed{}
	var folds []string
	for _, o := range all {
		if byFold[o.fold] == nil {
			folds = append(folds, o.fold)
		}
		byFold[o.fold] = append(byFold[o.fold], o)
	}
	sent, deferred := make(chan int, len(folds)), make(chan int, len(folds))
	err = h.perHost(folds, func(fold string) error {
		s, d, err := h.bring(ctx, fold, byFold[fold])
		sent <- s
		deferred <- d
		return err
	})
	for range folds {
		report.Sent += <-sent
		report.Deferred += <-deferred
	}
	return report, err
}

// bring gives one host its receipts.
func (h *Host) bring(ctx context.Context, fold string, all []owed) (sent, deferred int, err error) {
	var p *peer
	err = h.db.read(ctx, func(t *tx) (err error) {
		p, err = findPeer(t, fold)
		return err
	})
	if err != nil || p == nil {
		return 0, 0, err
	}
	wires := make([][]byte, len(all))
	for i, o := range all {
		wires[i] = o.wire
	}
	var results []string
	cause := error(nil)
	switch {
	case h.lanIsOff():
		cause = errLANOff
	case p.addr == "":
		cause = lan.ErrUnreachable
	default:
		results, cause = h.lan.Receipts(ctx, h.caller(), p.addr, wires)
	}
	if ctx.Err() != nil {
		return 0, 0, ctx.Err()
	}
	err = h.db.write(ctx, func(t *tx) error {
		sent, deferred = 0, 0
		for i, o := range all {
			result := ""
			if i < len(results) {
				result = results[i]
			}
			switch after, rejected := strings.CutPrefix(result, "rejected:"); {
			case result == resultAccepted, result == resultDuplicate, result == resultStale:
				sent++
				if err := o.drop(t); err != nil {
					return err
				}
			case rejected:
				sent++
				if err := errors.Join(o.drop(t), audit(t, "receipt.rejected", p.name+": "+after)); err != nil {
					return err
				}
			default:
				deferred++
				err := cause
				if err == nil {
					err = errors.New("the host gave no result for it")
				}
				if err := o.postpone(t, err); err != nil {
					return err
				}
			}
		}
		if cause != nil {
			return noteLANFailure(t, p, cause)
		}
		return nil
	})
	if err == nil && cause == nil {
		err = h.reached(ctx, p)
	}
	return sent, deferred, err
}
