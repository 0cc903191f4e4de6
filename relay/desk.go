package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// What an operator does to the store goes through here: each deed is one
// transaction, with a line in the relay log that says who did it and why.

// ItemRef pins one item. Rows move while somebody looks at them: an item that
// does not stand there under that id any more is gone.
type ItemRef struct {
	Target wire.PublicKey `json:"target"`
	Seq    int64          `json:"seq"`
	ID     string         `json:"id"`
}

// Deed says who does something to the store, and why. A dry one goes all the
// way and is then undone.
type Deed struct {
	Actor, Reason string
	Dry           bool
}

// Outcome says what became of one item.
type Outcome struct {
	ItemRef
	Done    bool   `json:"done"`
	NewSeq  int64  `json:"new_seq,omitempty"` // of a released item
	Notice  string `json:"notice,omitempty"`  // of a discarded one: what its sender was told, see Notice…
	Problem string `json:"problem,omitempty"` // why it was not done, see Problem…
}

// Why something was not done to an item.
const (
	ProblemGone       = "gone"                                                       // acked, expired, moved or discarded
	ProblemHeld       = "held already"                                               //
	ProblemNotHeld    = "not held: hold it first"                                    //
	ProblemNoHost     = "its host is revoked: discard it, or let it expire"          // nobody would pull it
	ProblemSenderFull = "its sender's queue is full: the notice of it finds no room" // nothing vanishes silently
)

// MaxItems is the most items that one call takes.
const MaxItems = 500

// ErrBadDeed: what was asked for can't be done, whatever the store holds.
var ErrBadDeed = errors.New("bad request")

// errDry undoes the transaction of a deed that was only to be shown.
var errDry = errors.New("a dry run")

// deedLine is what the relay log says of a deed.
type deedLine struct {
	V      int    `json:"v"`
	Type   string `json:"type"`
	At     string `json:"at"`
	Actor  string `json:"actor"`
	Reason string `json:"reason"`

	Items    []itemLine  `json:"items,omitempty"`
	Host     *hostLine   `json:"host,omitempty"`
	Denial   *denialLine `json:"denial,omitempty"`
	Replaced []int64     `json:"replaced,omitempty"` // ids of denials
	Refusals []Refusal   `json:"refusals,omitempty"`

	at time.Time
}

type itemLine struct {
	ItemRef
	Kind   string         `json:"kind"`
	Sender wire.PublicKey `json:"sender"`
	Bytes  int64          `json:"bytes"`
	NewSeq int64          `json:"new_seq,omitempty"`
	Notice string         `json:"notice,omitempty"`
}

// deed runs fn in one transaction. fn fills the line of the log, which is written
// when it says that something was done.
func (r *Relay) deed(ctx context.Context, op string, d Deed, fn func(c *change, line *deedLine) (done bool, err error)) error {
	now := r.now()
	var done bool
	err := r.update(ctx, func(c *change) (err error) {
		line := deedLine{V: 1, Type: "relay-" + op, At: wire.FormatTime(now), Actor: d.Actor, Reason: d.Reason, at: now}
		if done, err = fn(c, &line); err == nil && done {
			err = c.logDeed(op, line)
		}
		if err == nil && d.Dry {
			err = errDry
		}
		return err
	})
	if errors.Is(err, errDry) {
		return nil
	}
	if err == nil && done {
		r.log.Info("an operator changed the store", "op", op, "actor", d.Actor, "reason", d.Reason)
	}
	return err
}

func (c *change) logDeed(op string, line deedLine) error {
	receipt, err := json.Marshal(line)
	if err != nil {
		return err
	}
	return c.AppendLog(line.at, op, receipt)
}

// items does something to each of the items in one transaction. do answers the
// item as it was, and sets o.Problem instead where it can't be done.
func (r *Relay) items(ctx context.Context, op string, refs []ItemRef, d Deed,
	do func(c *change, now time.Time, o *Outcome) (store.Item, error)) ([]Outcome, error) {
	if err := checkRefs(refs); err != nil {
		return nil, err
	}
	var list []Outcome
	err := r.deed(ctx, op, d, func(c *change, line *deedLine) (bool, error) {
		list = make([]Outcome, len(refs))
		for i, ref := range refs {
			o := &list[i]
			o.ItemRef = ref
			it, err := do(c, line.at, o)
			if err != nil {
				return false, fmt.Errorf("%s, item %d of %d: %w", op, i+1, len(refs), err)
			}
			if o.Problem != "" {
				continue
			}
			o.Done = true
			line.Items = append(line.Items, itemLine{ref, it.Kind, it.Sender, it.Size, o.NewSeq, o.Notice})
		}
		return len(line.Items) > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func checkRefs(refs []ItemRef) error {
	switch {
	case len(refs) == 0:
		return fmt.Errorf("%w: name the items", ErrBadDeed)
	case len(refs) > MaxItems:
		return fmt.Errorf("%w: at most %d items in one call, not %d", ErrBadDeed, MaxItems, len(refs))
	}
	seen := make(map[store.ItemMark]bool, len(refs))
	for _, ref := range refs {
		at := store.ItemMark{Target: ref.Target, Seq: ref.Seq}
		switch {
		case ref.Target.IsZero() || ref.Seq <= 0 || ref.ID == "":
			return fmt.Errorf("%w: an item is named by its target, seq and id", ErrBadDeed)
		case seen[at]:
			return fmt.Errorf("%w: item %d of %s is named twice", ErrBadDeed, ref.Seq, ref.Target.Fingerprint())
		}
		seen[at] = true
	}
	return nil
}

// queuedItem is the queued item that o names; without it o says why.
func (c *change) queuedItem(o *Outcome) (store.Item, error) {
	it, err := c.Item(o.Target, o.Seq)
	if err == nil && it.ID == o.ID {
		return it, nil
	}
	if err == nil || errors.Is(err, store.ErrNotFound) {
		var held store.HeldItem
		held, err = c.HeldItem(o.Target, o.Seq)
		o.missing(held.ID, ProblemHeld)
	}
	return it, present(err)
}

// heldItem is the held item that o names; without it o says why.
func (c *change) heldItem(o *Outcome) (store.Item, error) {
	held, err := c.HeldItem(o.Target, o.Seq)
	if err == nil && held.ID == o.ID {
		return held.Item, nil
	}
	if err == nil || errors.Is(err, store.ErrNotFound) {
		var it store.Item
		it, err = c.Item(o.Target, o.Seq)
		o.missing(it.ID, ProblemNotHeld)
	}
	return held.Item, present(err)
}

// missing says why an item is not where it was looked for: elsewhere is the id of
// what stands under its number in the other place.
func (o *Outcome) missing(elsewhere, there string) {
	o.Problem = ProblemGone
	if elsewhere == o.ID {
		o.Problem = there
	}
}

// present makes a row that is not there no error.
func present(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
