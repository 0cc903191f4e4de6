package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Bounds of the sample of refused pushes. One host that sends nothing but
// nonsense must not push out what is known of the others.
const (
	maxRefusals      = 200
	maxRefusalsOfOne = 10
	maxRefusedText   = 200 // characters of an item id or a reason

	refusedName = "refused-pushes" // of the sample in the store
)

// Refusal is a push that was refused as a conflict or as malformed. A bounded
// sample of them is kept, for the operator to see which host sends what it should
// not.
type Refusal struct {
	ID     int64          `json:"id"` // of the sample
	At     time.Time      `json:"at"` // of the last one
	Sender wire.PublicKey `json:"sender"`
	Name   string         `json:"name"`    // the sender's at the time
	ItemID string         `json:"item_id"` // as it was sent, and cut; of the last one
	Reason string         `json:"reason"`
	Count  int64          `json:"count"` // how often this sender was refused for this reason, since the first one
}

// sample is the refusals, the newest last, as the store has them.
type sample struct {
	LastID int64     `json:"last_id"` // an id is never given twice
	List   []Refusal `json:"refusals"`
}

// refusals is the sample in memory.
type refusals struct {
	storing sync.Mutex // held by who stores the sample, throughout its transaction
	mu      sync.Mutex
	sample  sample
	version int64 // grows with each change
	stored  int64 // the version that the store has
}

func (s *refusals) note(from Caller, itemID, reason string, now time.Time) {
	n := Refusal{At: now, Sender: from.Key, Name: from.Name, ItemID: wire.Cut(itemID, maxRefusedText), Reason: wire.Cut(reason, maxRefusedText)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	list := s.sample.List
	first, ofOne := -1, 0 // of the same sender
	for i := range list {
		if list[i].Sender != n.Sender {
			continue
		}
		if list[i].Reason == n.Reason {
			n.ID, n.Count = list[i].ID, list[i].Count
			list = slices.Delete(list, i, i+1)
			break
		}
		if ofOne++; first < 0 {
			first = i
		}
	}
	if n.ID == 0 {
		s.sample.LastID++
		n.ID = s.sample.LastID
		if ofOne >= maxRefusalsOfOne {
			list = slices.Delete(list, first, first+1)
		} else if len(list) >= maxRefusals {
			list = slices.Delete(list, 0, 1)
		}
	}
	n.Count++
	s.sample.List = append(list, n)
}

// now copies the sample, and names its version; changed tells that the store has
// another one.
func (s *refusals) now() (copied sample, version int64, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	copied = sample{s.sample.LastID, slices.Clone(s.sample.List)}
	return copied, s.version, s.version != s.stored
}

// isStored notes that the store has a version.
func (s *refusals) isStored(version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = version
}

// dismissed takes refusals out of memory that are out of the store, which had
// them in a version.
func (s *refusals) dismissed(gone []Refusal, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sample.List = slices.DeleteFunc(s.sample.List, func(x Refusal) bool {
		return slices.ContainsFunc(gone, func(g Refusal) bool { return g.ID == x.ID })
	})
	more := s.version != version // came in between
	if s.version++; !more {
		s.stored = s.version
	}
}

// loadRefusals reads the sample that the store has. One that can't be read is
// none: it decides nothing.
func loadRefusals(v store.Reader) (s sample, err error) {
	value, err := v.State(refusedName)
	if errors.Is(err, store.ErrNotFound) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if json.Unmarshal(value, &s) != nil || len(s.List) > maxRefusals {
		return sample{}, nil
	}
	return s, nil
}

func (c *change) storeRefusals(s sample) error {
	value, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return c.SetState(refusedName, value)
}

// Refusals lists the sample, newest first.
func (r *Relay) Refusals(ctx context.Context) ([]Refusal, error) {
	s, _, _ := r.refusals.now()
	if r.detached() {
		err := r.store.View(ctx, func(v store.Reader) (err error) { s, err = loadRefusals(v); return err })
		if err != nil {
			return nil, storeError(err)
		}
	}
	slices.Reverse(s.List)
	return s.List, nil
}

// Dismiss takes refusals out of the sample, and says how many it took; none named
// means all of them.
func (r *Relay) Dismiss(ctx context.Context, ids []int64, d Deed) (int, error) {
	if err := checkIDs(ids); err != nil {
		return 0, err
	}
	r.refusals.storing.Lock()
	defer r.refusals.storing.Unlock()
	ours, version, _ := r.refusals.now()
	var gone []Refusal
	err := r.deed(ctx, "dismiss-refused", d, func(c *change, line *deedLine) (done bool, err error) {
		s := ours
		if r.detached() {
			if s, err = loadRefusals(c); err != nil {
				return false, err
			}
		}
		left := sample{LastID: s.LastID}
		gone = nil
		for _, x := range s.List {
			if len(ids) == 0 || slices.Contains(ids, x.ID) {
				gone = append(gone, x)
			} else {
				left.List = append(left.List, x)
			}
		}
		if len(gone) == 0 {
			return false, nil
		}
		line.Refusals = gone
		return true, c.storeRefusals(left)
	})
	if err != nil {
		return 0, err
	}
	if !d.Dry && len(gone) > 0 && !r.detached() {
		r.refusals.dismissed(gone, version)
	}
	return len(gone), nil
}

func checkIDs(ids []int64) error {
	if len(ids) > MaxItems {
		return fmt.Errorf("%w: at most %d in one call, not %d", ErrBadDeed, MaxItems, len(ids))
	}
	sorted := slices.Sorted(slices.Values(ids))
	if len(slices.Compact(sorted)) != len(ids) {
		return fmt.Errorf("%w: one of them is named twice", ErrBadDeed)
	}
	return nil
}
