package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// maxPages is how many pages one pass reads; a slow relay has less.
const (
	maxPages = 20
	maxPass  = 30 * time.Second // then the rest of the tick has waited long enough
)

// errMoved is a page that no longer fits: the position changed while it was on its way.
var errMoved = errors.New("the receive position moved meanwhile")

// receive reads the relay's queue from the stored position, a page at a time:
// every item is processed, in order, and the position stored; only then is the
// relay told. With wait an empty queue is waited on. It reports whether there
// may be more. While another call waits on the queue there is nothing to do for
// one that would not: a tick that stood in line would send nothing meanwhile.
func (h *Host) receive(ctx context.Context, s *session, wait time.Duration, report *RelayReport) (more bool, err error) {
	if wait > 0 {
		h.receiving.Lock()
	} else if !h.receiving.TryLock() {
		return false, nil
	}
	defer h.receiving.Unlock()
	started := h.now()
	rewound := false
	for range maxPages {
		if h.now().Sub(started) > wait+maxPass {
			return true, nil
		}
		r, err := h.readRelay(ctx, s.url)
		if err != nil {
			return false, err
		}
		if r.epoch != s.epoch {
			return false, nil // this session is over
		}
		if r.acked < r.position { // an ack that was lost
			back, err := h.ack(ctx, s, r.position)
			if err != nil || back && rewound { // once a pass: it could go on for ever
				return false, err
			}
			if back {
				rewound = true
				continue
			}
		}
		if err := h.roomInQuarantine(ctx); err != nil {
			return false, err
		}
		page, err := s.client.Pull(ctx, h.relayCaller(), r.position, s.limits.MaxPull, s.epoch, wait)
		if err != nil {
			return false, h.pullFailed(ctx, s, err)
		}
		wait = 0
		if page.Epoch != s.epoch {
			return false, h.timeTravel(ctx, s.url, page.Epoch, "")
		}
		if page.HeadSeq < r.position {
			err := h.timeTravel(ctx, s.url, s.epoch, fmt.Sprintf("its head %d is below %d, received before", page.HeadSeq, r.position))
			if err != nil || rewound {
				return false, err
			}
			rewound = true
			continue
		}
		if err := checkPage(page, r.position); err != nil {
			return false, err
		}
		if len(page.Items) == 0 {
			return false, nil
		}
		err = h.takePage(ctx, s, page, r.position, report)
		if errors.Is(err, errMoved) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		h.at("receive:checkpointed")
		if back, err := h.ack(ctx, s, page.LastSeq); back || err != nil {
			return false, err
		}
		if !page.More {
			return false, nil
		}
	}
	return true, nil
}

// checkPage refuses a page that contradicts itself. Nothing of it is
// processed: an item could be skipped for ever.
func checkPage(p relayclient.Page, after int64) error {
	last := after
	for _, it := range p.Items {
		if it.Seq <= last {
			return &trouble{state: relayBadAnswer, detail: fmt.Sprintf("a page after %d has %d after %d", after, it.Seq, last)}
		}
		last = it.Seq
	}
	switch {
	case p.LastSeq != last:
		return &trouble{state: relayBadAnswer, detail: fmt.Sprintf("a page says it ends at %d and ends at %d", p.LastSeq, last)}
	case p.HeadSeq < last:
		return &trouble{state: relayBadAnswer, detail: fmt.Sprintf("a page has %d beyond the head %d", last, p.HeadSeq)}
	case p.More && len(p.Items) == 0:
		return &trouble{state: relayBadAnswer, detail: "an empty page says that there is more"}
	}
	return nil
}

// pullFailed follows a relay into its new epoch.
func (h *Host) pullFailed(ctx context.Context, s *session, err error) error {
	var status *relayclient.StatusError
	if errors.As(err, &status) && status.Status == http.StatusConflict && status.Epoch != "" && status.Epoch != s.epoch {
		return h.timeTravel(ctx, s.url, status.Epoch, "")
	}
	return h.failed(err, s)
}

// takePage processes a page in a few transactions; the last one stores the
// position. A crash between them repeats items, which are duplicates then.
func (h *Host) takePage(ctx context.Context, s *session, page relayclient.Page, after int64, report *RelayReport) error {
	left := len(page.Items)
	for group := range slices.Chunk(page.Items, h.group) {
		left -= len(group)
		var done RelayReport
		err := h.db.write(ctx, func(t *tx) error {
			done = RelayReport{}
			for _, it := range group {
				if err := h.takeItem(t, s, it, &done); err != nil {
					return err
				}
			}
			if left > 0 {
				return nil
			}
			n, err := t.exec("UPDATE relays SET position = ? WHERE url = ? AND position = ? AND epoch = ?", page.LastSeq, s.url, after, s.epoch)
			if err == nil && n == 0 {
				err = errMoved
			}
			return err
		})
		if err != nil {
			return err
		}
		report.add(done)
		if left > 0 {
			h.at("receive:delivered")
		}
	}
	return nil
}

// takeItem processes one item: afterwards it is stored, or in quarantine.
func (h *Host) takeItem(t *tx, s *session, it relayclient.PulledItem, report *RelayReport) error {
	result := ""
	err := t.savepoint(func() (err error) {
		result, err = h.judgeItem(t, s, it)
		return err
	})
	if isConstraint(err) { // the item itself: it would stop the queue for ever
		result, err = "rejected:unreadable item", nil
	}
	if err != nil {
		return err
	}
	switch {
	case result == resultAccepted && it.Kind == wire.KindEnvelope:
		report.Received++
	case result == resultAccepted && it.Kind == wire.KindReceipt:
		report.Receipts++
	case result == resultAccepted:
		report.Notices++
	case result == resultDuplicate || result == resultStale:
		report.Duplicates++
	default:
		report.Quarantined++
		return h.quarantine(t, s, it, result)
	}
	return nil
}

func (h *Host) judgeItem(t *tx, s *session, it relayclient.PulledItem) (result string, err error) {
	switch {
	case !it.WireOK:
		return "rejected:unreadable item", nil
	case it.Kind == wire.KindEnvelope:
		_, result, err = h.receiveEnvelope(t, it.Wire, "", true)
		return result, err
	case it.Kind == wire.KindReceipt:
		return h.acceptReceipt(t, it.Wire, "")
	case it.Kind == wire.KindExpired:
		return h.takeNotice(t, s.key, it.ID, it.Wire)
	}
	return "rejected:unknown item kind", nil
}

// ack tells the relay what is stored. When it fails nothing is lost: the relay
// still holds the items, and the next ack covers them. It reports whether the
// relay went back in time, so that receiving starts over.
func (h *Host) ack(ctx context.Context, s *session, through int64) (back bool, err error) {
	_, err = s.client.Ack(ctx, h.relayCaller(), s.epoch, through)
	var status *relayclient.StatusError
	switch {
	case errors.As(err, &status) && status.Status == http.StatusConflict && status.Epoch != "" && status.Epoch != s.epoch:
		return true, h.timeTravel(ctx, s.url, status.Epoch, "")
	case errors.As(err, &status) && status.Code == "BAD_ACK":
		return true, h.timeTravel(ctx, s.url, s.epoch, fmt.Sprintf("it does not know %d, received before", through))
	case err != nil:
		return false, h.failed(err, s)
	}
	h.at("receive:acked") // unless it is noted below it is sent again, which changes nothing
	return false, h.db.write(ctx, func(t *tx) error {
		_, err := t.exec("UPDATE relays SET acked = ? WHERE url = ? AND epoch = ? AND position >= ?", through, s.url, s.epoch, through)
		return err
	})
}
