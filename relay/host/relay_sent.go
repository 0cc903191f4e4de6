package host

import (
	"fmt"
	"slices"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// repush puts what a relay accepted, and nobody confirmed, back into the
// outbox, due now. With all it is everything this relay holds, else what it
// accepted in another epoch.
func repush(t *tx, url, epoch string, all bool) (int64, error) {
	const which = "relay = ?1 AND state = 'relay-accepted' AND (?2 OR epoch <> ?3)"
	_, err := t.exec(`INSERT INTO outbox (msg, fold, state, queued_at, attempts, next_at)
		SELECT msg, fold, 'repush', ?4, 0, ?4 FROM relay_sent WHERE `+which+` AND fold IN (SELECT fold FROM peers) ON CONFLICT DO NOTHING`, url, all, epoch, t.now)
	if err != nil {
		return 0, err
	}
	_, err = t.exec(`UPDATE routes SET state = 'queued', at = ?4 WHERE (msg, fold) IN (SELECT msg, fold FROM relay_sent WHERE `+which+`)`, url, all, epoch, t.now)
	if err != nil {
		return 0, err
	}
	return t.exec(`UPDATE relay_sent SET state = 'repush', state_at = ?4 WHERE `+which, url, all, epoch, t.now)
}

// sweepDeadlines ends what a relay accepted and nobody confirmed in time. The
// sender is told here, whatever the relay does: one that lost the mail can't say so.
func (h *Host) sweepDeadlines(t *tx) (n int, err error) {
	type late struct {
		row
		recipients []byte
	}
	var rows []late
	err = t.each(`SELECT s.msg, s.fold, r.recipients FROM relay_sent s JOIN routes r ON r.msg = s.msg AND r.fold = s.fold
		WHERE s.state IN ('relay-accepted', 'repush') AND s.deadline < ? ORDER BY s.deadline LIMIT ?`, []any{t.now, maxDue}, func(scan func(...any) error) error {
		var l late
		err := scan(&l.msg, &l.fold, &l.recipients)
		rows = append(rows, l)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, l := range rows {
		if err := h.unconfirmed(t, l.row, l.recipients); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (h *Host) unconfirmed(t *tx, r row, recipients []byte) error {
	if err := end(t, r.msg, r.fold, "unconfirmed", "unconfirmed"); err != nil {
		return err
	}
	if !named(recipients) {
		// A name or a role that another host turned out to have: nobody waits for this one.
		var one int
		if heard, err := t.get("SELECT 1 FROM confirmations WHERE msg = ? LIMIT 1", []any{r.msg}, &one); err != nil || heard {
			return err
		}
	}
	p, err := peerOrGone(t, r.fold)
	if err != nil {
		return err
	}
	if p.confirms {
		return h.tellSender(t, r.msg, p.name, "Undelivered/unconfirmed",
			"the relay took it, and the host never confirmed it; it may be lost")
	}
	return h.tellSender(t, r.msg, p.name, "Undelivered/unconfirmed",
		"there is no delivery confirmation; no receipt has ever come from this host: the peer may be older than 0.5.3, and the message may have arrived")
}

// takeNotice ends a row that the relay says it dropped unread. Only the pinned
// relay's word counts, and only for mail that it holds for this target.
func (h *Host) takeNotice(t *tx, relay wire.PublicKey, itemID string, raw []byte) (result string, err error) {
	n, err := wire.ParseExpiryNotice(raw, relay)
	if err != nil || n.ID() != itemID {
		return "rejected:bad expiry notice", nil
	}
	var rows []row
	err = t.each("SELECT msg, fold, target FROM relay_sent WHERE msg = ? AND state IN ('relay-accepted', 'repush')", []any{n.ItemID}, func(scan func(...any) error) error {
		var r row
		var target []byte
		if err := scan(&r.msg, &r.fold, &target); err != nil {
			return err
		}
		if slices.Equal(target, n.Target[:]) {
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if len(rows) == 0 { // the relay moved it to the peer's new key, which we may know by now
		if rows, err = openRowsForKey(t, n.ItemID, n.Target); err != nil {
			return "", err
		}
	}
	for _, r := range rows {
		if err := h.expired(t, r); err != nil {
			return "", err
		}
	}
	return resultAccepted, nil
}

// openRowsForKey finds the open row of a message for the peer that has this key now.
func openRowsForKey(t *tx, msg string, key wire.PublicKey) (rows []row, err error) {
	err = t.each(`SELECT s.msg, s.fold FROM relay_sent s JOIN peers p ON p.fold = s.fold
		WHERE s.msg = ? AND s.state IN ('relay-accepted', 'repush') AND p.key = ?`, []any{msg, key[:]}, func(scan func(...any) error) error {
		var r row
		err := scan(&r.msg, &r.fold)
		rows = append(rows, r)
		return err
	})
	return rows, err
}

func (h *Host) expired(t *tx, r row) error {
	if err := end(t, r.msg, r.fold, "expired", "undelivered"); err != nil {
		return err
	}
	p, err := peerOrGone(t, r.fold)
	if err != nil {
		return err
	}
	return h.tellSender(t, r.msg, p.name, "Undelivered", "the host did not come for it while the relay kept it")
}

// plural counts things.
func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
