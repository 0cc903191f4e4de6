package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// discardedBefore begins the reason of an item that is held because it was
// discarded after the backup.
const discardedBefore = "discarded before the restore: "

// deedReceipt is what the log says of items that an operator discarded or released.
type deedReceipt struct {
	V      int    `json:"v"`
	Type   string `json:"type"`
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
	Items  int    `json:"items"` // how many
	Groups []struct {
		Target wire.PublicKey `json:"target"`
		Sender wire.PublicKey `json:"sender"`
		Items  []struct {
			ID string `json:"id"`
		} `json:"items"`
	} `json:"groups"`
	at time.Time
}

// itemName is an item wherever it stands, by the newest keys of both hosts.
type itemName struct {
	target, sender wire.PublicKey
	id             string
}

// discarded keeps from its host what an operator discarded after the backup, which
// has it still: it is held, and a person discards it again or releases it.
func (c *carry) discarded() error {
	if !c.descends { // nobody can tell what came first
		return nil
	}
	keys, queue := c.t.everyKeyOnce(), c.standingOnce()
	list, err := c.discards(keys)
	if err != nil {
		return err
	}
	for name, by := range list {
		senders, err := keys(name.sender)
		if err != nil {
			return err
		}
		stand, err := queue(name.target)
		if err != nil {
			return err
		}
		for _, s := range stand[name.id] {
			if c.still[store.ItemMark{Target: name.target, Seq: s.seq}] || !oneOf(senders, s.sender) {
				continue
			}
			if err := c.holdDiscarded(name.target, s, by); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *carry) holdDiscarded(target wire.PublicKey, s standing, by *deedReceipt) error {
	reason := discardedBefore + by.Reason
	c.done.Discarded++
	if !s.held {
		return c.t.Hold(target, s.seq, by.at, by.Actor, reason)
	}
	c.done.HeldAgain--
	_, err := c.t.c.exec("UPDATE quarantine SET held_at = ?, actor = ?, reason = ? WHERE target_pubkey = ? AND seq = ?",
		by.at, by.Actor, reason, target, s.seq)
	return err
}

// discards are the items that the replaced store's log says were discarded since the
// backup, each with the last deed. One that a restore brought back and an operator
// released then is none.
func (c *carry) discards(keys func(wire.PublicKey) ([]wire.PublicKey, error)) (map[itemName]*deedReceipt, error) {
	mine, err := c.t.lines()
	if err != nil {
		return nil, err
	}
	lines, err := c.from.lines()
	if err != nil {
		return nil, err
	}
	last := int64(0)
	if len(mine) > 0 {
		last = mine[len(mine)-1].ID
	}
	list, bad := map[itemName]*deedReceipt{}, 0
	for _, l := range lines {
		if l.ID <= last || l.Op != "discard" && l.Op != "release" {
			continue
		}
		deed, err := readDeed(l.Op, l.Receipt)
		if err != nil {
			bad++
			continue
		}
		deed.at = l.At
		for _, g := range deed.Groups {
			targets, err := keys(g.Target)
			if err != nil {
				return nil, err
			}
			senders, err := keys(g.Sender)
			if err != nil {
				return nil, err
			}
			for _, it := range g.Items {
				name := itemName{targets[0], senders[0], it.ID}
				if delete(list, name); l.Op == "discard" {
					list[name] = deed
				}
			}
		}
	}
	if bad > 0 {
		c.warn("%d lines of the replaced store's log tell of discarded or released items and cannot be read: what was discarded there may be queued again", bad)
	}
	return list, nil
}

func readDeed(op string, receipt []byte) (d *deedReceipt, err error) {
	d = &deedReceipt{}
	if err := json.Unmarshal(receipt, d); err != nil {
		return d, err
	}
	if d.V != 1 || d.Type != "relay-"+op {
		return d, fmt.Errorf("a %q of version %d", d.Type, d.V)
	}
	n := 0
	for _, g := range d.Groups {
		for _, it := range g.Items {
			if it.ID == "" || g.Target.IsZero() || g.Sender.IsZero() {
				return d, fmt.Errorf("an item without its name")
			}
		}
		n += len(g.Items)
	}
	if n != d.Items {
		return d, fmt.Errorf("it names %d items of %d", n, d.Items)
	}
	return d, nil
}
