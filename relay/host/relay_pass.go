package host

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// RelayReport is what one pass over the relay did. State is one of the relay
// states, "" without a relay.
type RelayReport struct {
	State        string `json:"state"`
	Detail       string `json:"detail,omitempty"`
	Accepted     int    `json:"accepted"` // rows that the relay took
	Rejected     int    `json:"rejected"` // rows that it refused: they stay
	Failed       int    `json:"failed"`   // rows that could not be given to it: they stay
	ReceiptsSent int    `json:"receipts_sent"`
	Received     int    `json:"received"` // new mail
	Duplicates   int    `json:"duplicates"`
	Receipts     int    `json:"receipts"` // receipts applied
	Notices      int    `json:"notices"`  // expiry notices
	Quarantined  int    `json:"quarantined"`
}

func (r *RelayReport) add(d RelayReport) {
	r.Received += d.Received
	r.Duplicates += d.Duplicates
	r.Receipts += d.Receipts
	r.Notices += d.Notices
	r.Quarantined += d.Quarantined
}

// relayPass opens a session, gives the relay what is for it and, with pull,
// takes what it has. Trouble with the relay is part of the report; an error is
// this host's own.
func (h *Host) relayPass(ctx context.Context, rows []row, receipts []owed, pull bool) (report RelayReport, more bool, err error) {
	url := h.relayURL()
	if url == "" {
		h.setSession(nil)
		return report, false, nil
	}
	s, err := h.openSession(ctx, url)
	if err == nil {
		h.setSession(s)
		more, err = h.useSession(ctx, s, rows, receipts, pull, &report)
	}
	var tr *trouble
	switch {
	case err == nil && s.v1:
		report.State = relayV1
	case err == nil:
		report.State = relayOK
	case errors.As(err, &tr):
		h.setSession(nil)
		report.State, report.Detail = tr.state, tr.detail
		if tr.held {
			return report, false, nil
		}
	default:
		h.setSession(nil)
		return report, false, err
	}
	return report, more, h.noteState(ctx, url, report.State, tr)
}

func (h *Host) useSession(ctx context.Context, s *session, rows []row, receipts []owed, pull bool, report *RelayReport) (more bool, err error) {
	if s.v1 {
		return false, h.useV1(ctx, s, rows, report)
	}
	pushErr := h.push(ctx, s, rows, receipts, report)
	var tr *trouble
	if pushErr != nil && (!errors.As(pushErr, &tr) || tr.state != relayUnavailable) || !pull {
		return false, pushErr
	}
	// A relay that takes nothing now (its disk is full) may still give: what is
	// fetched makes room there.
	more, err = h.receive(ctx, s, 0, report)
	return more, cmp.Or(err, pushErr)
}

// setSession keeps a session for the long poll.
func (h *Host) setSession(s *session) {
	h.mu.Lock()
	h.session = s
	h.mu.Unlock()
}

// sessionNow is the session that was opened last, nil for none.
func (h *Host) sessionNow() *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.session
}

// fresh reports whether a session needs no new look at the relay yet.
func (h *Host) fresh(s *session) bool {
	return s != nil && !s.v1 && s.url == h.relayURL() && s.own == h.Key() && h.now().Sub(s.opened) < sessionLife && !h.now().Before(s.opened) &&
		(s.renewAt.IsZero() || h.now().Before(s.renewAt))
}

const sessionLife = 10 * time.Second
