package sqlite

import (
	"errors"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// standing is where an item stands in the restored store.
type standing struct {
	seq    int64
	held   bool
	sender wire.PublicKey
	hash   [32]byte
}

// held keeps in quarantine what an operator held: an item that the backup still
// has queued is taken out of its queue again, one that it does not know is
// brought along. What the backup holds stays held, whatever became of it since.
func (c *carry) held() error {
	keys, queue := c.t.everyKeyOnce(), c.standingOnce()
	c.still = map[store.ItemMark]bool{}
	before, err := c.heldBefore()
	if err != nil {
		return err
	}
	var failed error
	if err := c.from.Held(func(h store.HeldItem) bool {
		failed = func() error {
			targets, err := keys(h.Target)
			if err != nil {
				return err
			}
			h.Target = targets[0] // where a rotation has brought the rest of its queue
			stand, err := queue(h.Target)
			if err != nil {
				return err
			}
			senders, err := keys(h.Sender)
			if err != nil {
				return err
			}
			for _, s := range stand[h.ID] {
				if s.hash != h.Hash || !oneOf(senders, s.sender) {
					continue
				}
				c.still[store.ItemMark{Target: h.Target, Seq: s.seq}] = true
				if s.held {
					_, err := c.t.c.exec("UPDATE quarantine SET held_at = ?, actor = ?, reason = ? WHERE target_pubkey = ? AND seq = ?",
						h.HeldAt, h.Actor, h.Reason, h.Target, s.seq)
					return err
				}
				c.done.Held++
				return c.t.Hold(h.Target, s.seq, h.HeldAt, h.Actor, h.Reason)
			}
			c.done.Held++
			if h.Seq, err = c.insertHeld(h); err == nil {
				c.still[store.ItemMark{Target: h.Target, Seq: h.Seq}] = true
			}
			return err
		}()
		return failed == nil
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	for _, b := range before {
		if !c.still[b] {
			c.done.HeldAgain++
		}
	}
	return nil
}

func (c *carry) heldBefore() (list []store.ItemMark, err error) {
	err = c.t.c.query(func(r row) error {
		list = append(list, store.ItemMark{Target: r.key(0), Seq: r.int(1)})
		return nil
	},
		"SELECT target_pubkey, seq FROM quarantine")
	return list, err
}

func oneOf(keys []wire.PublicKey, key wire.PublicKey) bool {
	for _, k := range keys {
		if k == key {
			return true
		}
	}
	return false
}

// standing lists what is queued and held for a target, by id.
func (c *carry) standing(target wire.PublicKey) (map[string][]standing, error) {
	list := map[string][]standing{}
	err := c.t.c.query(func(r row) error {
		list[r.text(0)] = append(list[r.text(0)], standing{r.int(1), r.int(2) == 1, r.key(3), r.hash(4)})
		return nil
	}, `SELECT item_id, seq, 0, sender_pubkey, wire_hash FROM items WHERE target_pubkey = ?1
		UNION ALL SELECT item_id, seq, 1, sender_pubkey, wire_hash FROM quarantine WHERE target_pubkey = ?1`, target)
	return list, err
}

// standingOnce is standing that asks once about each target.
func (c *carry) standingOnce() func(wire.PublicKey) (map[string][]standing, error) {
	known := map[wire.PublicKey]map[string][]standing{}
	return func(target wire.PublicKey) (list map[string][]standing, err error) {
		if list, ok := known[target]; ok {
			return list, nil
		}
		if list, err = c.standing(target); err == nil {
			known[target] = list
		}
		return list, err
	}
}

// insertHeld brings a held item along, under its own number unless another has
// it here, with its dedup row and its charge. It answers the number.
func (c *carry) insertHeld(h store.HeldItem) (seq int64, err error) {
	taken, err := c.t.c.one(func(row) {}, "SELECT 1 FROM charged WHERE target_pubkey = ? AND seq = ?", h.Target, h.Seq)
	if err != nil {
		return 0, err
	}
	if head, err := c.t.Head(h.Target); err != nil {
		return 0, err
	} else if taken || h.Seq > head {
		if h.Seq, err = c.t.takeSeq(h.Target); err != nil {
			return 0, err
		}
	}
	if _, err := c.t.c.exec("INSERT INTO quarantine ("+itemColumns+", held_at, actor, reason, wire) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		h.Target, h.Seq, h.Kind, h.ID, h.Sender, h.SenderHost, h.Hash, h.Size, h.AcceptedAt, h.ExpiresAt, h.HeldAt, h.Actor, h.Reason, h.Wire); err != nil {
		return 0, err
	}
	// A row that the backup has of an item long gone from its queue now names
	// this one; one of other bytes stands.
	if _, err := c.t.c.exec(`INSERT INTO dedup (sender_pubkey, item_id, target_pubkey, wire_hash, seq, accepted_at) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET seq = excluded.seq WHERE wire_hash = excluded.wire_hash`,
		h.Sender, h.ID, h.Target, h.Hash, h.Seq, h.AcceptedAt); err != nil {
		return 0, err
	}
	account, err := c.t.accountOf(h.Target)
	if err != nil {
		return 0, err
	}
	return h.Seq, c.t.counters.enter(h.Item, account)
}
