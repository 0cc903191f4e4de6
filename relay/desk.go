package relay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	ProblemLater      = "left for another call: this one moves 8 MiB at most"        // it was not tried; see MaxDeedBytes
)

// MaxItems is the most items that one call takes.
const MaxItems = 500

// MaxDeedBytes is the most bytes of mail that one call moves, save for an item that
// is larger by itself: nobody else can write meanwhile. What comes after the first
// item that would be beyond it is left, in its order, for another call. A discard
// moves nothing: 500 of the largest items take it no longer than a hold of 8 MiB.
const MaxDeedBytes = 8 << 20

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

	Items    int           `json:"items,omitempty"` // how many
	Groups   []*itemsOf    `json:"groups,omitempty"`
	Host     *hostLine     `json:"host,omitempty"`
	Denial   *denialLine   `json:"denial,omitempty"`
	Added    int64         `json:"added,omitempty"`    // denials of an issuer's list
	Denials  []*denialLine `json:"denials,omitempty"`  // the first of them
	Replaced []int64       `json:"replaced,omitempty"` // ids of denials
	Refusals []Refusal     `json:"refusals,omitempty"`

	at     time.Time
	groups map[itemKind]*itemsOf
}

// maxDenialLines is how many denials of a list a line of the log names.
const maxDenialLines = 50

// itemsOf are the items of a deed that are alike: a line of 500 says of each only
// what is its own.
type itemsOf struct {
	itemKind
	Bytes int64      `json:"bytes"` // together
	Items []itemLine `json:"items"`
}

type itemKind struct {
	Target wire.PublicKey `json:"target"`
	Sender wire.PublicKey `json:"sender"`
	Kind   string         `json:"kind"`
	Notice string         `json:"notice,omitempty"`
}

type itemLine struct {
	Seq    int64  `json:"seq"`
	ID     string `json:"id"`
	NewSeq int64  `json:"new_seq,omitempty"`
}

// add notes an item that something was done to.
func (l *deedLine) add(it store.Item, o Outcome) {
	l.Items++
	kind := itemKind{o.Target, it.Sender, it.Kind, o.Notice}
	g, ok := l.groups[kind]
	if !ok {
		g = &itemsOf{itemKind: kind}
		if l.groups == nil {
			l.groups = map[itemKind]*itemsOf{}
		}
		l.groups[kind], l.Groups = g, append(l.Groups, g)
	}
	g.Bytes += it.Size
	g.Items = append(g.Items, itemLine{o.Seq, o.ID, o.NewSeq})
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

// itemDeed is something that is done to items. find answers an item as it is, and do
// does it; either sets o.Problem instead where it can't be done.
type itemDeed struct {
	op    string
	moves bool // whole items, from one table to another
	find  func(c *change, o *Outcome) (store.Item, error)
	do    func(c *change, now time.Time, o *Outcome, it store.Item) error
}

// items does something to each of the items in one transaction, in the order of
// target and seq: mail keeps its order, however it was named. Outcomes come in the
// order of refs.
func (r *Relay) items(ctx context.Context, refs []ItemRef, d Deed, what itemDeed) ([]Outcome, error) {
	if err := checkRefs(refs); err != nil {
		return nil, err
	}
	var list []Outcome
	err := r.deed(ctx, what.op, d, func(c *change, line *deedLine) (bool, error) {
		list = make([]Outcome, len(refs))
		moved := int64(0)
		places := inOrder(refs)
		for n, i := range places {
			o := &list[i]
			o.ItemRef = refs[i]
			it, err := what.find(c, o)
			if err == nil && o.Problem == "" {
				if what.moves && moved > 0 && moved+it.Size > MaxDeedBytes {
					for _, i := range places[n:] {
						list[i] = Outcome{ItemRef: refs[i], Problem: ProblemLater}
					}
					break
				}
				err = what.do(c, line.at, o, it)
			}
			if err != nil {
				return false, fmt.Errorf("%s, item %d of %d: %w", what.op, i+1, len(refs), err)
			}
			if o.Problem != "" {
				continue
			}
			o.Done = true
			moved += it.Size
			line.add(it, *o)
		}
		return line.Items > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Compare is the order of target and seq.
func (r ItemRef) Compare(other ItemRef) int {
	return cmp.Or(bytes.Compare(r.Target[:], other.Target[:]), cmp.Compare(r.Seq, other.Seq))
}

// inOrder lists the places of refs, by target and seq.
func inOrder(refs []ItemRef) []int {
	places := make([]int, len(refs))
	for i := range refs {
		places[i] = i
	}
	slices.SortFunc(places, func(a, b int) int { return refs[a].Compare(refs[b]) })
	return places
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
