package sqlite

import (
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// table is where an item stands.
func table(held bool) string {
	if held {
		return "quarantine"
	}
	return "items"
}

// Hold and Release copy the whole item. Where room is scarce they wait: what is
// left belongs to acks and drops, and an item that stays where it is is not lost.
func (t *tx) Hold(target wire.PublicKey, seq int64, at time.Time, actor, reason string) error {
	it, err := t.Item(target, seq)
	if err != nil {
		return err
	}
	if !t.take(it.Size) {
		return store.ErrFull
	}
	return t.putAside(it, at, actor, reason)
}

// putAside moves a queued item into the quarantine.
func (t *tx) putAside(it store.Item, at time.Time, actor, reason string) error {
	if _, err := t.c.exec("INSERT INTO quarantine ("+itemColumns+", held_at, actor, reason, wire) SELECT "+itemColumns+
		", ?, ?, ?, wire FROM items WHERE target_pubkey = ? AND seq = ?", at, actor, reason, it.Target, it.Seq); err != nil {
		return err
	}
	if _, err := t.c.exec("DELETE FROM items WHERE target_pubkey = ? AND seq = ?", it.Target, it.Seq); err != nil {
		return err
	}
	return t.counters.hold(it.Target, it.Size)
}

func (t *tx) Release(target wire.PublicKey, seq int64) (int64, error) {
	it, err := t.HeldItem(target, seq)
	if err != nil {
		return 0, err
	}
	if !t.take(it.Size) {
		return 0, store.ErrFull
	}
	newSeq, err := t.takeSeq(target)
	if err != nil {
		return 0, err
	}
	if _, err := t.c.exec(`INSERT INTO items (target_pubkey, seq, kind, item_id, sender_pubkey, sender_host, wire_hash, bytes, accepted_at, expires_at, wire)
		SELECT target_pubkey, ?, kind, item_id, sender_pubkey, sender_host, wire_hash, bytes, accepted_at, expires_at, wire
		FROM quarantine WHERE target_pubkey = ? AND seq = ?`, newSeq, target, seq); err != nil {
		return 0, err
	}
	if _, err := t.c.exec("DELETE FROM quarantine WHERE target_pubkey = ? AND seq = ?", target, seq); err != nil {
		return 0, err
	}
	if err := t.dedupFollows(it.Item, newSeq); err != nil {
		return 0, err
	}
	return newSeq, t.counters.release(target, it.Size, it.AcceptedAt)
}

// dedupFollows gives the dedup row of an item its new number. An item need not
// have one: of two with the same id that a rotation brought together the other
// one's stands. And the row may be of another key of the sender than the item.
func (t *tx) dedupFollows(it store.Item, seq int64) error {
	follow := func(sender wire.PublicKey) (bool, error) {
		n, err := t.c.exec("UPDATE dedup SET seq = ? WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ? AND seq = ?",
			seq, sender, it.ID, it.Target, it.Seq)
		return n > 0, err
	}
	if done, err := follow(it.Sender); done || err != nil {
		return err
	}
	others, err := t.everyKey(it.Sender)
	if err != nil {
		return err
	}
	for _, sender := range others {
		if done, err := follow(sender); done || err != nil {
			return err
		}
	}
	return nil
}
