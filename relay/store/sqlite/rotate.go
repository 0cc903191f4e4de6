package sqlite

import (
	"errors"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Rotate moves all that a host has from its old key to its new one. The order
// matters: the old key gives up its name before the new one takes it, and the
// queue moves before the dedup rows of what is no longer queued.
func (t *tx) Rotate(r store.Rotation) (moved int64, err error) {
	old, err := t.Enrolment(r.Old)
	if err != nil {
		return 0, err
	}
	successor, err := t.Enrolment(r.New)
	if errors.Is(err, store.ErrNotFound) {
		successor = store.Enrolment{Key: r.New, OwnerFP: old.OwnerFP, EnrolledAt: r.At}
	} else if err != nil {
		return 0, err
	}
	successor.Name = old.Name
	if old.Account != "" || successor.Account == "" { // a stronger authority's word is never lost
		successor.Account, successor.Org, successor.AuthorizedBy = old.Account, old.Org, old.AuthorizedBy
	}
	if _, err := t.Revoke(r.Old, r.At); err != nil {
		return 0, err
	}
	if err := t.PutEnrolment(successor); err != nil {
		return 0, err
	}
	if moved, err = t.moveQueue(r.Old, r.New, old.Account, successor.Account); err != nil {
		return 0, fmt.Errorf("move the queue: %w", err)
	}
	if err := t.moveDedup(r.Old, r.New); err != nil {
		return 0, fmt.Errorf("move the dedup rows: %w", err)
	}
	if err := t.moveLists(r.Old, r.New); err != nil {
		return 0, fmt.Errorf("move the sender lists: %w", err)
	}
	for _, q := range []string{"DELETE FROM enc_ads WHERE host_pubkey = ?", "DELETE FROM enc_ad_records WHERE host_pubkey = ?"} {
		if _, err := t.c.exec(q, r.Old); err != nil {
			return 0, err
		}
	}
	_, err = t.c.exec("INSERT OR REPLACE INTO rotations (old_pubkey, new_pubkey, host_name, record, at) VALUES (?, ?, ?, ?, ?)",
		r.Old, r.New, r.Name, r.Record, r.At)
	return moved, err
}

// moveQueue appends the old key's items to the new key's queue, in order. An
// item that both hold with the same bytes is kept once; with other bytes both
// stay, and the new key's dedup row stands.
func (t *tx) moveQueue(from, to wire.PublicKey, fromAccount, toAccount string) (moved int64, err error) {
	var queue []store.Item
	if err := t.c.query(func(r row) error { queue = append(queue, item(r)); return nil },
		"SELECT "+itemColumns+" FROM items WHERE target_pubkey = ? ORDER BY seq", from); err != nil {
		return 0, err
	}
	rememberedAs := t.senders(from)
	for _, it := range queue {
		u := store.Usage{Items: 1, Bytes: it.Size}
		if err := t.counters.charge(from, it.Sender, fromAccount, store.Usage{Items: -1, Bytes: -it.Size}); err != nil {
			return 0, err
		}
		sender, err := rememberedAs(it)
		if err != nil {
			return 0, err
		}
		held, err := t.Dedup(sender, it.ID, to)
		both := err == nil
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return 0, err
		}
		if both && held.Hash == it.Hash {
			if _, err := t.c.exec("DELETE FROM items WHERE target_pubkey = ? AND seq = ?", from, it.Seq); err != nil {
				return 0, err
			}
			continue
		}
		seq, err := t.takeSeq(to)
		if err != nil {
			return 0, err
		}
		if _, err := t.c.exec("UPDATE items SET target_pubkey = ?, seq = ? WHERE target_pubkey = ? AND seq = ?",
			to, seq, from, it.Seq); err != nil {
			return 0, err
		}
		if !both {
			if _, err := t.c.exec(`UPDATE dedup SET target_pubkey = ?, seq = ?
				WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ? AND seq = ?`, to, seq, sender, it.ID, from, it.Seq); err != nil {
				return 0, err
			}
		}
		if err := t.counters.charge(to, it.Sender, toAccount, u); err != nil {
			return 0, err
		}
		moved++
	}
	return moved, nil
}

// senders answers under whose key the dedup row of an item of target stands:
// the pusher's, or the one it has rotated to since.
func (t *tx) senders(target wire.PublicKey) func(store.Item) (wire.PublicKey, error) {
	type place struct {
		seq  int64
		id   string
		hash [32]byte
	}
	var rows map[place]wire.PublicKey // read when the first item asks for it
	return func(it store.Item) (wire.PublicKey, error) {
		d, err := t.Dedup(it.Sender, it.ID, target)
		if err == nil && d.Seq == it.Seq {
			return it.Sender, nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return it.Sender, err
		}
		if rows == nil {
			rows = map[place]wire.PublicKey{}
			if err := t.c.query(func(r row) error { rows[place{r.int(0), r.text(1), r.hash(2)}] = r.key(3); return nil },
				"SELECT seq, item_id, wire_hash, sender_pubkey FROM dedup WHERE target_pubkey = ?", target); err != nil {
				return it.Sender, err
			}
		}
		if k, ok := rows[place{it.Seq, it.ID, it.Hash}]; ok {
			return k, nil
		}
		return it.Sender, nil // it has none: another item of the same id stood in its way
	}
}

// moveDedup lets a retry that names the old key, as target or as sender, be
// recognised under the new one. Where the new key has a row of its own, that
// row stands.
func (t *tx) moveDedup(from, to wire.PublicKey) error {
	for _, q := range []string{
		"UPDATE OR IGNORE dedup SET target_pubkey = ?2 WHERE target_pubkey = ?1",
		"DELETE FROM dedup WHERE target_pubkey = ?1",
		"UPDATE OR IGNORE dedup SET sender_pubkey = ?2 WHERE sender_pubkey = ?1",
		"DELETE FROM dedup WHERE sender_pubkey = ?1",
	} {
		args := []any{from, to}
		if q[0] == 'D' {
			args = args[:1]
		}
		if _, err := t.c.exec(q, args...); err != nil {
			return err
		}
	}
	return nil
}

// moveLists hands the old key's allowlist to the new key, unless that one has
// a newer list, and names the new key wherever others named the old.
func (t *tx) moveLists(from, to wire.PublicKey) error {
	mine, err := t.SenderList(from)
	if err == nil {
		theirs, err := t.SenderList(to)
		if errors.Is(err, store.ErrNotFound) || err == nil && mine.IAT.After(theirs.IAT) {
			mine.Target = to
			err = t.PutSenderList(mine)
		}
		if err != nil {
			return err
		}
		if err := t.dropSenderList(from); err != nil {
			return err
		}
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	var targets []wire.PublicKey
	if err := t.c.query(func(r row) error { targets = append(targets, r.key(0)); return nil },
		"SELECT target_pubkey FROM listed_senders WHERE sender_pubkey = ?", from); err != nil {
		return err
	}
	for _, target := range targets {
		l, err := t.SenderList(target)
		if err != nil {
			return err
		}
		for i, s := range l.Senders {
			if s == from {
				l.Senders[i] = to
			}
		}
		if err := t.PutSenderList(l); err != nil {
			return err
		}
	}
	return nil
}
