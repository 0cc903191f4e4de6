package sqlite

import (
	"errors"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Rotate moves all that a host has from its old key to its new one. The order
// matters: the old key gives up its name before the new one takes it.
//
// The dedup rows of what is queued move with it. All others stay under the old
// key, where Dedup finds them: a busy host has a million, and to rewrite them
// would keep every other host waiting.
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
		successor.ClientID, successor.SessionEnds = old.ClientID, old.SessionEnds
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
	if err := t.moveLists(r.Old, r.New); err != nil {
		return 0, fmt.Errorf("move the sender lists: %w", err)
	}
	for _, q := range []string{"DELETE FROM enc_ads WHERE host_pubkey = ?", "DELETE FROM enc_ad_records WHERE host_pubkey = ?"} {
		if _, err := t.c.exec(q, r.Old); err != nil {
			return 0, err
		}
	}
	clear(t.formerly)
	_, err = t.c.exec("INSERT OR REPLACE INTO rotations (old_pubkey, new_pubkey, host_name, record, at) VALUES (?, ?, ?, ?, ?)",
		r.Old, r.New, r.Name, r.Record, r.At)
	return moved, err
}

// moveQueue appends the old key's items to the new key's queue, in order; held
// ones go along and stay held. An item that both have with the same bytes is kept
// once, where the new key has it, and held when either held it; with other bytes
// both stay, and the new key's dedup row stands.
func (t *tx) moveQueue(from, to wire.PublicKey, fromAccount, toAccount string) (moved int64, err error) {
	var queue []store.Item
	if err := t.c.query(func(r row) error {
		it := item(r)
		it.Held = r.int(10) == 1
		queue = append(queue, it)
		return nil
	}, "SELECT "+itemColumns+", 0 FROM items WHERE target_pubkey = ?1 UNION ALL SELECT "+itemColumns+
		", 1 FROM quarantine WHERE target_pubkey = ?1 ORDER BY seq", from); err != nil {
		return 0, err
	}
	senders := t.everyKeyOnce()
	for _, it := range queue {
		if err := t.counters.leave(from, it.Sender, fromAccount, store.Usage{Items: 1, Bytes: it.Size}, it.Held); err != nil {
			return 0, err
		}
		keys, err := senders(it.Sender)
		if err != nil {
			return 0, err
		}
		there, err := t.dedupOf(keys, it.ID, to)
		both := err == nil
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return 0, err
		}
		if both { // the new key's row stands
			if _, err := t.c.exec("DELETE FROM dedup WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ? AND seq = ?",
				it.Sender, it.ID, from, it.Seq); err != nil {
				return 0, err
			}
		}
		if both && there.Hash == it.Hash {
			if it.Held {
				if err := t.holdLike(it, to, there.Seq); err != nil {
					return 0, err
				}
			}
			if _, err := t.c.exec("DELETE FROM "+table(it.Held)+" WHERE target_pubkey = ? AND seq = ?", from, it.Seq); err != nil {
				return 0, err
			}
			continue
		}
		seq, err := t.takeSeq(to)
		if err != nil {
			return 0, err
		}
		if _, err := t.c.exec("UPDATE "+table(it.Held)+" SET target_pubkey = ?, seq = ? WHERE target_pubkey = ? AND seq = ?",
			to, seq, from, it.Seq); err != nil {
			return 0, err
		}
		if !both {
			if _, err := t.c.exec(`UPDATE dedup SET target_pubkey = ?, seq = ?
				WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ? AND seq = ?`, to, seq, it.Sender, it.ID, from, it.Seq); err != nil {
				return 0, err
			}
		}
		it.Target, it.Seq = to, seq
		if err := t.counters.enter(it, toAccount); err != nil {
			return 0, err
		}
		moved++
	}
	return moved, nil
}

// holdLike holds the same item where another key has it, if it is queued there
// still, by whom and since when this one is held.
func (t *tx) holdLike(it store.Item, key wire.PublicKey, seq int64) error {
	there, err := t.Item(key, seq)
	if errors.Is(err, store.ErrNotFound) || err == nil && there.ID != it.ID {
		return nil
	}
	if err != nil {
		return err
	}
	h, err := t.HeldItem(it.Target, it.Seq)
	if err != nil {
		return err
	}
	return t.putAside(there, h.HeldAt, h.Actor, h.Reason)
}

// everyKeyOnce is everyKey that asks once about each key.
func (t *tx) everyKeyOnce() func(wire.PublicKey) ([]wire.PublicKey, error) {
	known := map[wire.PublicKey][]wire.PublicKey{}
	return func(k wire.PublicKey) (keys []wire.PublicKey, err error) {
		if keys, ok := known[k]; ok {
			return keys, nil
		}
		if keys, err = t.everyKey(k); err == nil {
			known[k] = keys
		}
		return keys, err
	}
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
