package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

const (
	listHeld    = "quarantine-held"
	listRefused = "quarantine-refused"
)

// Quarantine lists held items, then refused pushes.
func (l *Local) Quarantine(ctx context.Context, f QuarantineFilter) (page Page[Quarantined], err error) {
	switch f.Kind {
	case "", QuarantineHeld, QuarantineRefused:
	default:
		return page, fmt.Errorf("%w: kind: want %s or %s", ErrBadRequest, QuarantineHeld, QuarantineRefused)
	}
	// A push was refused as a whole, and for no target.
	lists := []string{listHeld, listRefused}
	switch {
	case f.Kind == QuarantineRefused:
		lists = lists[1:]
	case f.Kind == QuarantineHeld, !f.Target.IsZero():
		lists = lists[:1]
	}
	at, err := f.open(lists...)
	if err != nil {
		return page, err
	}
	var refused []relay.Refusal
	if f.Kind != QuarantineHeld && f.Target.IsZero() {
		if refused, err = l.o.Relay.Refusals(ctx); err != nil {
			return page, err
		}
		refused = slices.SortedFunc(slices.Values(refused), byLast)
	}
	p := newPager[Quarantined](ctx, f.Paging)
	if f.Kind != QuarantineRefused && (at == nil || at.List == listHeld) {
		if err = l.look(ctx, func(v *look) error { return v.heldItems(p, f, at, len(refused) > 0) }); err != nil || p.over() {
			return p.page, err
		}
		at = nil
	}
	return p.page, refusals(p, f, at, refused)
}

// heldItems lists the items in quarantine, last held first.
func (v *look) heldItems(p *pager[Quarantined], f QuarantineFilter, at *cursor, more bool) error {
	var after *store.HeldItem
	if at != nil {
		after = &store.HeldItem{Item: store.Item{Target: at.Key, Seq: at.N}, HeldAt: time.UnixMilli(at.At).UTC()}
	}
	return fill(p, after, rows[store.HeldItem, Quarantined]{
		read: v.Reader.Quarantine,
		show: func(h store.HeldItem) (q Quarantined, ok bool, err error) {
			if !f.Target.IsZero() && h.Target != f.Target || !f.Sender.IsZero() && h.Sender != f.Sender {
				return q, false, nil
			}
			it, err := v.heldItem(h)
			return Quarantined{Kind: QuarantineHeld, Item: &it}, true, err
		},
		mark: func(h store.HeldItem) cursor {
			return cursor{List: listHeld, Key: h.Target, N: h.Seq, At: h.HeldAt.UnixMilli()}
		},
		more: more,
	})
}

// byLast orders refusals: newest first.
func byLast(a, b relay.Refusal) int {
	return cmp.Or(cmp.Compare(b.At.UnixMilli(), a.At.UnixMilli()), cmp.Compare(b.ID, a.ID))
}

// refusals lists refused pushes, from where a cursor stands.
func refusals(p *pager[Quarantined], f QuarantineFilter, at *cursor, list []relay.Refusal) error {
	var after *relay.Refusal
	if at != nil {
		after = &relay.Refusal{ID: at.N, At: time.UnixMilli(at.At).UTC()}
	}
	return fill(p, after, rows[relay.Refusal, Quarantined]{
		read: func(after *relay.Refusal, each func(relay.Refusal) bool) error {
			for _, r := range list {
				if (after == nil || byLast(*after, r) < 0) && !each(r) {
					break
				}
			}
			return nil
		},
		show: func(r relay.Refusal) (Quarantined, bool, error) {
			return Quarantined{Kind: QuarantineRefused, Refusal: &r}, f.Sender.IsZero() || r.Sender == f.Sender, nil
		},
		mark: func(r relay.Refusal) cursor { return cursor{List: listRefused, N: r.ID, At: r.At.UnixMilli()} },
	})
}
