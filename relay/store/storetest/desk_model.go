package storetest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (m *model) Queue(target wire.PublicKey) (store.Queue, error) {
	q := store.Queue{Target: target, Head: max(m.next[target]-1, 0), Acked: m.acked[target]}
	for _, it := range m.queue(target) {
		q.Items, q.Bytes = q.Items+1, q.Bytes+it.Size
		switch {
		case it.Held:
			q.Held.Items, q.Held.Bytes = q.Held.Items+1, q.Held.Bytes+it.Size
		case q.Oldest.IsZero():
			q.Oldest = it.AcceptedAt
		}
	}
	return q, nil
}

// give calls each for those of a list that come after one, in an order.
func give[T any](list []T, order func(a, b T) int, after *T, each func(T) bool) error {
	slices.SortFunc(list, order)
	for _, v := range list {
		if (after == nil || order(v, *after) > 0) && !each(v) {
			break
		}
	}
	return nil
}

func byKey(a, b wire.PublicKey) int { return bytes.Compare(a[:], b[:]) }

func (m *model) Queues(by store.QueueOrder, after *store.Queue, each func(store.Queue) bool) error {
	var list []store.Queue
	for t := range m.next {
		q, _ := m.Queue(t)
		if q.Items > 0 && (by != store.ByBytes || q.MiB() > 0) && (by != store.ByOldest || !q.Oldest.IsZero()) {
			list = append(list, q)
		}
	}
	order := map[store.QueueOrder]func(a, b store.Queue) int{
		store.ByDepth:  func(a, b store.Queue) int { return cmp.Compare(b.Items, a.Items) },
		store.ByBytes:  func(a, b store.Queue) int { return cmp.Compare(b.MiB(), a.MiB()) },
		store.ByOldest: func(a, b store.Queue) int { return a.Oldest.Compare(b.Oldest) },
	}[by]
	if order == nil {
		return fmt.Errorf("there is no order %q", by)
	}
	return give(list, func(a, b store.Queue) int { return cmp.Or(order(a, b), byKey(a.Target, b.Target)) }, after, each)
}

// shares sums up the items that of selects, by the key that of answers.
func (m *model) shares(after wire.PublicKey, of func(*mailed) (wire.PublicKey, bool), each func(wire.PublicKey, store.Usage) bool) error {
	sums := map[wire.PublicKey]store.Usage{}
	for _, it := range m.items {
		if k, ok := of(it); ok {
			sums[k] = store.Usage{Items: sums[k].Items + 1, Bytes: sums[k].Bytes + it.Size}
		}
	}
	return give(slices.Collect(maps.Keys(sums)), byKey, &after, func(k wire.PublicKey) bool { return each(k, sums[k]) })
}

func (m *model) Shares(target, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error {
	return m.shares(after, func(it *mailed) (wire.PublicKey, bool) { return it.Sender, it.Target == target }, each)
}

func (m *model) SharesOf(sender, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error {
	return m.shares(after, func(it *mailed) (wire.PublicKey, bool) { return it.Target, it.Sender == sender }, each)
}

// find is an item without its wire, queued or held.
func (m *model) find(target wire.PublicKey, seq int64, held bool) (h store.HeldItem, err error) {
	for _, it := range m.items {
		if it.Target == target && it.Seq == seq && it.Held == held {
			h = store.HeldItem{Item: it.Item, HeldAt: it.heldAt, Actor: it.actor, Reason: it.reason}
			h.Wire = nil
			return h, nil
		}
	}
	return h, store.ErrNotFound
}

func (m *model) all(held bool) (list []store.HeldItem) {
	for _, it := range m.items {
		if it.Held == held {
			h, _ := m.find(it.Target, it.Seq, held)
			list = append(list, h)
		}
	}
	return list
}

func (m *model) Item(target wire.PublicKey, seq int64) (store.Item, error) {
	h, err := m.find(target, seq, false)
	return h.Item, err
}

func (m *model) HeldItem(target wire.PublicKey, seq int64) (store.HeldItem, error) {
	return m.find(target, seq, true)
}

func place(a, b store.HeldItem) int {
	return cmp.Or(byKey(a.Target, b.Target), cmp.Compare(a.Seq, b.Seq))
}

func (m *model) Items(after store.ItemMark, each func(store.Item) bool) error {
	mark := store.HeldItem{Item: store.Item{Target: after.Target, Seq: after.Seq}}
	return give(m.all(false), place, &mark, func(h store.HeldItem) bool { return each(h.Item) })
}

func (m *model) Quarantine(after *store.HeldItem, each func(store.HeldItem) bool) error {
	return give(m.all(true), func(a, b store.HeldItem) int { return cmp.Or(b.HeldAt.Compare(a.HeldAt), place(a, b)) }, after, each)
}

func (m *model) Enrolments(after *store.Enrolment, each func(store.Enrolment) bool) error {
	return give(slices.Collect(maps.Values(m.enrol)), func(a, b store.Enrolment) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), byKey(a.Key, b.Key))
	}, after, each)
}

func (m *model) ByFingerprint(fp string, limit int) (list []store.Enrolment, _ error) {
	for _, e := range m.enrol {
		if e.Key.Fingerprint() == fp && len(list) < limit {
			list = append(list, e)
		}
	}
	return list, nil
}

func (m *model) Seen(host wire.PublicKey) (time.Time, error) { return m.seen[host], nil }

func (m *model) SetSeen(host wire.PublicKey, at time.Time) error {
	if at.After(m.seen[host]) {
		m.seen[host] = at
	}
	return nil
}

func (m *model) Denials(hostFP string, before int64, each func(store.Denial) bool) error {
	for _, d := range slices.Backward(m.denials) {
		if (before == 0 || d.ID < before) && (hostFP == "" || d.HostFP == hostFP) && !each(d) {
			break
		}
	}
	return nil
}

// AddDenial gives an id that no other ever had.
func (m *model) AddDenial(d store.Denial) error {
	m.lastDenial++
	d.ID = m.lastDenial
	m.denials = append(m.denials, d)
	return nil
}

func (m *model) RemoveDenial(id int64) error {
	n := len(m.denials)
	m.denials = slices.DeleteFunc(m.denials, func(d store.Denial) bool { return d.ID == id })
	if len(m.denials) == n {
		return store.ErrNotFound
	}
	return nil
}

func (m *model) SenderLists(after wire.PublicKey, each func(store.SenderList) bool) error {
	return give(slices.Collect(maps.Values(m.lists)), func(a, b store.SenderList) int { return byKey(a.Target, b.Target) },
		&store.SenderList{Target: after}, func(l store.SenderList) bool {
			l.Record, l.Sig = nil, ""
			return each(l)
		})
}

func (m *model) Release(target wire.PublicKey, seq int64) (int64, error) {
	i := slices.IndexFunc(m.items, func(it *mailed) bool { return it.Target == target && it.Seq == seq && it.Held })
	if i < 0 {
		return 0, store.ErrNotFound
	}
	it := m.items[i]
	it.Held, it.Seq = false, m.takeSeq(target)
	it.heldAt, it.actor, it.reason = time.Time{}, "", ""
	for k, d := range m.dedups {
		if d.of == it {
			d.Seq = it.Seq
			m.dedups[k] = d
		}
	}
	return it.Seq, nil
}
