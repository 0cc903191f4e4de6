package host

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// How the outbox tries (host.md §1).
const (
	firstBackoff = 5 * time.Second
	maxBackoff   = time.Hour
	outboxLife   = 72 * time.Hour // of a row that no relay holds
	relayAfter   = 2              // attempts over the LAN before the relay takes a row
)

// row is a row of the outbox: one message for one host.
type row struct {
	msg, fold string
	repush    bool // a relay has held it; its deadline stands in relay_sent
	attempts  int
	relayWord string // why the relay has not taken it in this tick
}

// due are the rows of this tick.
func due(t *tx) (rows []row, more bool, err error) {
	more, err = mailQueue.due(t, func(fold string, scan func(...any) error) error {
		r := row{fold: fold}
		err := scan(&r.msg, &r.repush, &r.attempts)
		rows = append(rows, r)
		return err
	})
	return rows, more, err
}

// backoff is the wait after so many attempts.
func backoff(attempts int) time.Duration {
	if attempts > 10 {
		return maxBackoff
	}
	return min(firstBackoff<<attempts, maxBackoff)
}

// postpone notes a failed attempt, and why the relay has not helped.
func postpone(t *tx, r row, reason string) error {
	if r.relayWord != "" {
		reason += "; " + r.relayWord
	}
	_, err := t.exec("UPDATE outbox SET attempts = attempts + 1, next_at = ?, error = ? WHERE msg = ? AND fold = ?",
		t.now+backoff(r.attempts).Milliseconds(), printable(reason), r.msg, r.fold)
	return err
}

// setError notes why the relay has not taken a row. The row remembers it: the
// LAN pass of the same tick writes its own reason beside it.
func setError(t *tx, r *row, reason string) error {
	r.relayWord = reason
	_, err := t.exec("UPDATE outbox SET error = ? WHERE msg = ? AND fold = ?", printable(reason), r.msg, r.fold)
	return err
}

// leave takes a row out of the outbox.
func leave(t *tx, msg, fold string) error {
	_, err := t.exec("DELETE FROM outbox WHERE msg = ? AND fold = ?", msg, fold)
	return err
}

// setRoute notes how a message's way to a host stands.
func setRoute(t *tx, msg, fold, state string) error {
	_, err := t.exec("UPDATE routes SET state = ?, at = ? WHERE msg = ? AND fold = ?", state, t.now, msg, fold)
	return err
}

// end ends a message's way to a host: nothing waits for it any more, neither
// here nor of what a relay holds. sent is the state of the relay's copy, if it
// has one that is open, route that of the way.
func end(t *tx, msg, fold, sent, route string) error {
	if err := leave(t, msg, fold); err != nil {
		return err
	}
	_, err := t.exec("UPDATE relay_sent SET state = ?, state_at = ? WHERE msg = ? AND fold = ? AND state IN ('relay-accepted', 'repush')", sent, t.now, msg, fold)
	if err != nil {
		return err
	}
	if _, err := t.exec("DELETE FROM wires WHERE msg = ? AND fold = ?", msg, fold); err != nil {
		return err
	}
	return setRoute(t, msg, fold, route)
}

// undelivered ends a row for good and tells the local sender.
func (h *Host) undelivered(t *tx, msg string, p *peer, reason string) error {
	if err := end(t, msg, p.fold, "rejected", "undelivered"); err != nil {
		return err
	}
	return h.tellSender(t, msg, p.name, "Undelivered", reason)
}

// tellSender leaves an alert in the mailbox that a message was sent from.
func (h *Host) tellSender(t *tx, msg, host, what, reason string) error {
	var sender, subject string
	if _, err := t.get("SELECT sender, subject FROM messages WHERE id = ?", []any{msg}, &sender, &subject); err != nil {
		return err
	}
	return h.alert(t, senderBox(sender), fmt.Sprintf("%s to %s: %s", what, host, subject), fmt.Sprintf("Message %s to %s: %s.\n", msg, host, reason))
}

// senderBox is the mailbox that a message of this host was sent from.
func senderBox(sender string) string {
	box, _, _ := wire.SplitAddress(sender)
	if !wire.ValidAgentName(box) {
		return "owner"
	}
	return box
}

// giveUp ends the rows that have been tried for outboxLife. A row that a relay
// has held is not one of them: it has a deadline of its own.
func (h *Host) giveUp(t *tx) (n int, err error) {
	var rows []row
	err = t.each("SELECT msg, fold FROM outbox WHERE state = 'queued' AND queued_at < ? ORDER BY queued_at LIMIT ?",
		[]any{t.now - outboxLife.Milliseconds(), maxDue}, func(scan func(...any) error) error {
			var r row
			err := scan(&r.msg, &r.fold)
			rows = append(rows, r)
			return err
		})
	for _, r := range rows {
		if err != nil {
			return n, err
		}
		var p *peer
		if p, err = peerOrGone(t, r.fold); err == nil {
			err = h.undelivered(t, r.msg, p, "it could not be delivered for 72 hours")
		}
		n++
	}
	return n, err
}

// peerOrGone stands in for a peer that was removed.
func peerOrGone(t *tx, fold string) (*peer, error) {
	p, err := findPeer(t, fold)
	if err == nil && p == nil {
		p = &peer{fold: fold, name: fold}
	}
	return p, err
}

// errUnreadable is a stored message that can't be read: its own trouble, which
// must not become that of all others.
var errUnreadable = errors.New("the stored message can't be read")

// loadEnvelope reads a message that was written here, or returns errUnreadable.
func loadEnvelope(t *tx, msg string) (wire.Envelope, error) {
	var env []byte
	found, err := t.get("SELECT envelope FROM messages WHERE id = ?", []any{msg}, &env)
	if err != nil {
		return wire.Envelope{}, err
	}
	e, err := wire.ParseEnvelope(env)
	if !found || err != nil {
		return wire.Envelope{}, errUnreadable
	}
	return e, nil
}
