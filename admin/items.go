package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const listItems = "items"

// Items lists queued items. Those of a sender are looked for only in the queues
// that hold some of its.
func (l *Local) Items(ctx context.Context, f ItemFilter) (page Page[Item], err error) {
	at, err := f.open(listItems)
	if err != nil {
		return page, err
	}
	switch f.Kind {
	case "", store.KindEnvelope, store.KindReceipt, store.KindExpired:
	default:
		return page, fmt.Errorf("%w: kind: want %s, %s or %s", ErrBadRequest, store.KindEnvelope, store.KindReceipt, store.KindExpired)
	}
	if f.ID != "" && !wire.ValidItemID(f.ID) {
		return page, fmt.Errorf("%w: id: want a whole item id, of 1 to %d characters", ErrBadRequest, wire.MaxItemID)
	}
	if at != nil && !f.Target.IsZero() && at.Key != f.Target {
		return page, fmt.Errorf("%w: after: it is of the queue of another target", ErrBadRequest)
	}
	p := newPager[Item](ctx, f.Paging)
	err = l.look(ctx, func(v *look) error { return v.itemsAfter(p, f, at) })
	return p.page, err
}

func (v *look) itemsAfter(p *pager[Item], f ItemFilter, at *cursor) error {
	after := store.ItemMark{Target: f.Target}
	if at != nil {
		after = store.ItemMark{Target: at.Key, Seq: at.N}
	}
	if f.Sender.IsZero() {
		return v.items(p, f, after, false)
	}
	return v.itemsOf(p, f, after)
}

// items goes on with the items after a mark, of one target where f names one; more
// says that others may follow.
func (v *look) items(p *pager[Item], f ItemFilter, after store.ItemMark, more bool) error {
	return fill(p, &store.Item{Target: after.Target, Seq: after.Seq}, rows[store.Item, Item]{
		read: func(after *store.Item, each func(store.Item) bool) error {
			return v.Items(store.ItemMark{Target: after.Target, Seq: after.Seq}, func(it store.Item) bool {
				return (f.Target.IsZero() || it.Target == f.Target) && each(it)
			})
		},
		show: func(it store.Item) (shown Item, ok bool, err error) {
			if !f.has(it) {
				return shown, false, nil
			}
			shown, err = v.item(it)
			return shown, true, err
		},
		mark: func(it store.Item) cursor { return cursor{List: listItems, Key: it.Target, N: it.Seq} },
		more: more,
	})
}

// has reports whether an item is one of those asked for.
func (f ItemFilter) has(it store.Item) bool {
	return (f.Target.IsZero() || it.Target == f.Target) &&
		(f.Sender.IsZero() || it.Sender == f.Sender) &&
		(f.Kind == "" || it.Kind == f.Kind) &&
		(f.ID == "" || it.ID == f.ID) &&
		(f.OlderThan.IsZero() || it.AcceptedAt.Before(f.OlderThan))
}

// itemsOf goes on with the items of a sender, queue by queue of those that hold
// some.
func (v *look) itemsOf(p *pager[Item], f ItemFilter, after store.ItemMark) error {
	one := !f.Target.IsZero()
	if !after.Target.IsZero() { // where the page before ended, or the only one
		if err := v.itemsOfIn(p, f, after, !one); err != nil || one || p.over() {
			return err
		}
	}
	for {
		queues, more, err := take(lookAhead, func(each func(share) bool) error {
			return shares(v.SharesOf, f.Sender)(&share{key: after.Target}, each)
		})
		if err != nil {
			return err
		}
		for i, s := range queues {
			after = store.ItemMark{Target: s.key}
			if err := v.itemsOfIn(p, f, after, more || i+1 < len(queues)); err != nil || p.over() {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// itemsOfIn goes on with the items that a sender has in one queue, after a mark;
// more says that other queues may hold some, too.
func (v *look) itemsOfIn(p *pager[Item], f ItemFilter, after store.ItemMark, more bool) error {
	f.Target = after.Target
	u, err := v.ShareUsage(f.Target, f.Sender)
	if err != nil {
		return err
	}
	if p.page.Looked++; p.over() {
		p.page.Next = cursor{List: listItems, Key: after.Target, N: after.Seq}.String()
		return p.ctx.Err()
	}
	if u.Items == 0 {
		return p.ctx.Err()
	}
	if f.ID != "" {
		if sure, err := v.knownItem(p, f, after); sure || err != nil {
			if p.over() && more {
				p.page.Next = cursor{List: listItems, Key: after.Target, N: math.MaxInt64}.String()
			}
			return err
		}
	}
	return v.items(p, f, after, more)
}

// knownItem looks for an item by its id in the memory of what was accepted. It is
// not sure where queues became one: an item may stand there that the memory of
// another took the place of.
func (v *look) knownItem(p *pager[Item], f ItemFilter, after store.ItemMark) (sure bool, err error) {
	if former, err := v.RotatedFrom(f.Target, 1); err != nil || len(former) > 0 {
		return false, err
	}
	d, err := v.Dedup(f.Sender, f.ID, f.Target)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	it, err := v.Reader.Item(f.Target, d.Seq)
	if errors.Is(err, store.ErrNotFound) || err == nil && (it.Seq <= after.Seq || !f.has(it)) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	shown, err := v.item(it)
	if err == nil {
		p.page.Items = append(p.page.Items, shown)
	}
	return true, err
}

// item shows an item.
func (v *look) item(it store.Item) (Item, error) {
	target, err := v.host(it.Target)
	if err != nil {
		return Item{}, err
	}
	sender, err := v.host(it.Sender)
	if err != nil {
		return Item{}, err
	}
	return Item{
		ItemRef: relay.ItemRef{Target: it.Target, Seq: it.Seq, ID: it.ID}, TargetHost: target, Kind: it.Kind, Sender: sender,
		SenderHost: it.SenderHost, Hash: hex.EncodeToString(it.Hash[:]), Bytes: it.Size, AcceptedAt: it.AcceptedAt, ExpiresAt: it.ExpiresAt,
	}, nil
}

// heldItem shows an item that stands in the quarantine.
func (v *look) heldItem(h store.HeldItem) (Item, error) {
	it, err := v.item(h.Item)
	it.Held = &Hold{At: h.HeldAt, Actor: h.Actor, Reason: h.Reason}
	return it, err
}

// Item finds an item, queued or held, by where it stands.
func (l *Local) Item(ctx context.Context, ref relay.ItemRef) (it Item, err error) {
	if err := checkKey("target", ref.Target); err != nil {
		return it, err
	}
	if ref.Seq < 1 {
		return it, fmt.Errorf("%w: seq: want a number from 1", ErrBadRequest)
	}
	err = l.look(ctx, func(v *look) error {
		it, err = v.standing(ref)
		return err
	})
	return it, err
}

func (v *look) standing(ref relay.ItemRef) (Item, error) {
	q, err := v.Reader.Item(ref.Target, ref.Seq)
	if err == nil && (ref.ID == "" || q.ID == ref.ID) {
		return v.item(q)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Item{}, err
	}
	h, err := v.HeldItem(ref.Target, ref.Seq)
	if err == nil && (ref.ID == "" || h.ID == ref.ID) {
		return v.heldItem(h)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Item{}, err
	}
	return Item{}, fmt.Errorf("%w: no such item stands at %d for %s: it was fetched, moved or has expired", ErrNotFound, ref.Seq, ref.Target.Fingerprint())
}
