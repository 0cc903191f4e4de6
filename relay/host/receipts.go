package host

import (
	"context"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// receiptLife is how long a receipt is tried, as for the outbox; receiptHold is
// the wait after a peer that knows no receipts.
const (
	receiptLife = 72 * time.Hour
	receiptHold = time.Hour

	maxConfirmations = 1000 // of one message
)

// oweReceipt signs a receipt for a delivery of the message id, keeps it with the delivery and
// queues it for the host that sent the message. What came over a relay may be
// confirmed over it at once.
func (h *Host) oweReceipt(t *tx, id, origin string, r wire.Receipt, mailbox string, overRelay bool) error {
	seq, err := nextReceiptSeq(t)
	if err != nil {
		return err
	}
	r.Seq = seq
	signed := wire.MakeReceipt(h.keyring().key, r)
	if _, err := t.exec("UPDATE deliveries SET receipt = ?, seq = ? WHERE msg = ? AND mailbox = ?", signed, seq, id, mailbox); err != nil {
		return err
	}
	return queueReceipt(t, r.Msg, r.Recipient, seq, origin, signed, overRelay)
}

func queueReceipt(t *tx, msg, recipient string, seq int64, origin string, signed []byte, overRelay bool) error {
	_, err := t.exec(`INSERT INTO receipts_out (msg, recipient, seq, fold, wire, queued_at, next_at, relay) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7)
		ON CONFLICT DO UPDATE SET relay = max(relay, ?7), next_at = ?6`, msg, recipient, seq, origin, signed, t.now, overRelay)
	return err
}

// signedByAnother is how a relay refuses a receipt whose signature is not of
// the pushing host: one that lost its store has lost this host's rotations, too.
const signedByAnother = "receipt is not signed by the sending host"

// signAgain replaces an owed receipt by the same one under this host's key of now.
func (h *Host) signAgain(t *tx, o owed) error {
	r, err := wire.CheckReceipt(o.wire)
	if err != nil || r.SignedBy(h.Key()) {
		_, err := t.exec("UPDATE receipts_out SET error = ? WHERE msg = ? AND recipient = ? AND seq = ?", "the relay refused it: "+signedByAnother, o.msg, o.recipient, o.seq)
		return err
	}
	box, _, _ := wire.SplitAddress(o.recipient)
	id, known, err := placeFor(t, o.msg, o.fold)
	if err != nil {
		return err
	}
	if err := o.drop(t); err != nil || !known {
		return err
	}
	var seq int64
	current, err := t.get("SELECT seq FROM deliveries WHERE msg = ? AND mailbox = ?", []any{id, box}, &seq)
	if err != nil || !current || seq != o.seq { // a newer one is owed
		return err
	}
	return h.oweReceipt(t, id, o.fold, r, box, true)
}

// nextReceiptSeq never goes back, whatever the clock does, and stays ahead of
// what a restored older copy of host.db has forgotten.
func nextReceiptSeq(t *tx) (seq int64, err error) {
	var last int64
	if _, err := t.get("SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'receipt_seq'", nil, &last); err != nil {
		return 0, err
	}
	seq = max(last+1, t.now)
	_, err = t.exec("INSERT INTO facts (name, value) VALUES ('receipt_seq', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1", seq)
	return seq, err
}

// oweAgain queues the current receipts of a message once more: the same bytes,
// so that one which did arrive is a duplicate.
func (h *Host) oweAgain(t *tx, msg string, overRelay bool) error {
	type owed struct {
		mailbox, origin string
		seq             int64
		receipt         []byte
	}
	var all []owed
	err := t.each(`SELECT d.mailbox, m.origin, d.seq, d.receipt FROM deliveries d JOIN messages m ON m.id = d.msg
		WHERE d.msg = ? AND d.receipt IS NOT NULL`, []any{msg}, func(scan func(...any) error) error {
		var o owed
		err := scan(&o.mailbox, &o.origin, &o.seq, &o.receipt)
		all = append(all, o)
		return err
	})
	for _, o := range all {
		if err == nil {
			err = queueReceipt(t, wireID(msg), o.mailbox+"@"+h.Name(), o.seq, o.origin, o.receipt, overRelay)
		}
	}
	return err
}

// Receipts takes delivery receipts that a peer brought over the LAN. It is part of lan.Node.
func (h *Host) Receipts(ctx context.Context, from lan.Peer, receipts [][]byte) (results []string, err error) {
	err = h.db.write(ctx, func(t *tx) error {
		for _, raw := range receipts {
			result, err := h.acceptReceipt(t, raw, from.Name)
			if err != nil {
				return err
			}
			results = append(results, result)
		}
		return nil
	})
	return results, err
}

// acceptReceipt applies a receipt by rank, then by sequence. Caller names the
// peer that brought it over the LAN, "" for a relay. A receipt settles the
// message's way to that host, whichever transport it came by.
func (h *Host) acceptReceipt(t *tx, raw []byte, caller string) (result string, err error) {
	r, err := wire.CheckReceipt(raw)
	if err != nil {
		return "rejected:invalid receipt", nil
	}
	_, host, _ := wire.SplitAddress(r.Recipient)
	p, err := findPeer(t, wire.FoldName(host))
	switch {
	case err != nil:
		return "", err
	case p == nil:
		return notPaired, nil
	case caller != "" && wire.FoldName(caller) != p.fold:
		return "rejected:recipient at another host", nil
	}
	keys, err := keysOf(t, p)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(keys, r.SignedBy) {
		return "rejected:bad signature", nil
	}
	var routed string
	found, err := t.get("SELECT state FROM routes WHERE msg = ? AND fold = ?", []any{r.Msg, p.fold}, &routed)
	if err != nil {
		return "", err
	}
	if !found {
		var one int
		if pruned, err := t.get("SELECT 1 FROM pruned_ids WHERE id = ? AND origin = ''", []any{r.Msg}, &one); err != nil || pruned {
			return resultStale, err // mail of this host that it keeps no longer
		}
		return "rejected:unknown message", nil
	}
	var state string
	var seq int64
	known, err := t.get("SELECT state, seq FROM confirmations WHERE msg = ? AND recipient = ?", []any{r.Msg, r.Recipient}, &state, &seq)
	if err != nil {
		return "", err
	}
	if known {
		switch rank := stateRank[state]; {
		case r.Rank() < rank, r.Rank() == rank && r.Seq < seq:
			return resultStale, nil
		case r.Rank() == rank && r.Seq == seq:
			return resultDuplicate, nil
		}
	}
	if !known { // a host has only so many mailboxes, whatever it says
		var n int
		if _, err := t.get("SELECT count(*) FROM confirmations WHERE msg = ?", []any{r.Msg}, &n); err != nil {
			return "", err
		}
		if n >= maxConfirmations {
			return "rejected:too many recipients", nil
		}
	}
	_, err = t.exec(`INSERT INTO confirmations (msg, recipient, fold, state, at, note, did, seq, receipt) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
		ON CONFLICT (msg, recipient) DO UPDATE SET state = ?4, at = ?5, note = ?6, did = ?7, seq = ?8, receipt = ?9`,
		r.Msg, r.Recipient, p.fold, r.State, r.At.UnixMilli(), r.Note, r.Did, r.Seq, raw)
	if err != nil {
		return "", err
	}
	return resultAccepted, confirmed(t, r.Msg, p)
}

// confirmed ends a message's way to a host: it is there.
func confirmed(t *tx, msg string, p *peer) error {
	if err := end(t, msg, p.fold, "settled", "confirmed"); err != nil {
		return err
	}
	if p.confirms {
		return nil
	}
	_, err := t.exec("UPDATE peers SET confirms = 1 WHERE fold = ?", p.fold)
	return err
}

// expireReceipts drops receipts that could not be given to their host: they
// are advisory.
func expireReceipts(t *tx) error {
	n, err := t.exec("DELETE FROM receipts_out WHERE (msg, recipient, seq) IN (SELECT msg, recipient, seq FROM receipts_out WHERE queued_at < ? LIMIT 1000)",
		t.now-receiptLife.Milliseconds())
	if err != nil || n == 0 {
		return err
	}
	return audit(t, "receipt.expired", plural(n, "receipt")+" could not be given to their host for 72 hours")
}
