package sqlite

import (
	"fmt"
	"math"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const queueColumns = `s.target_pubkey, s.items, s.bytes, s.held_items, s.held_bytes, s.oldest, s.next_seq - 1,
	(SELECT acked_through FROM acked a WHERE a.target_pubkey = s.target_pubkey)`

func queueOf(row row) store.Queue {
	return store.Queue{Target: row.key(0), Usage: store.Usage{Items: row.int(1), Bytes: row.int(2)},
		Held: store.Usage{Items: row.int(3), Bytes: row.int(4)}, Oldest: row.time(5), Head: row.int(6), Acked: row.int(7)}
}

func (r reader) Queue(target wire.PublicKey) (q store.Queue, err error) {
	ok, err := r.c.one(func(row row) { q = queueOf(row) }, "SELECT "+queueColumns+" FROM seqs s WHERE target_pubkey = ?", target)
	if err != nil || ok {
		return q, err
	}
	q.Target = target
	q.Acked, err = r.Acked(target) // an ack of nothing leaves no other trace
	return q, err
}

// queueOrders are the orders of queues: the terms that the index has and that an
// order begins with, and what of a queue is its place.
var queueOrders = map[store.QueueOrder]struct {
	has, column, further, order string
	place                       func(store.Queue) any
}{
	store.ByDepth:  {"items > 0", "items", "<", "items DESC", func(q store.Queue) any { return q.Items }},
	store.ByBytes:  {"mib > 0", "mib", "<", "mib DESC", func(q store.Queue) any { return q.MiB() }},
	store.ByOldest: {"oldest IS NOT NULL", "oldest", ">", "oldest", func(q store.Queue) any { return q.Oldest }},
}

func (r reader) Queues(by store.QueueOrder, after *store.Queue, each func(store.Queue) bool) error {
	o, ok := queueOrders[by]
	if !ok {
		return fmt.Errorf("there is no order of queues %q", by)
	}
	head, tail := "SELECT "+queueColumns+" FROM seqs s WHERE "+o.has, " ORDER BY "+o.order+", target_pubkey"
	give := func(row row) bool { return each(queueOf(row)) }
	if after == nil {
		return r.list(give, span{head + tail, nil})
	}
	place := o.place(*after)
	return r.list(give,
		span{head + " AND " + o.column + " = ? AND target_pubkey > ? ORDER BY target_pubkey", []any{place, after.Target}},
		span{head + " AND " + o.column + " " + o.further + " ?" + tail, []any{place}})
}

// span is one range of an index. A list that goes on after a row is read as the
// rest of those that are equal to it, and then the others: with one condition for
// both SQLite would read them all and sort.
type span struct {
	query string
	args  []any
}

// list calls each for the rows of the spans, until it answers false.
func (r reader) list(each func(row) bool, spans ...span) error {
	for _, p := range spans {
		err := r.c.query(func(row row) error {
			if !each(row) {
				return errStop
			}
			return nil
		}, p.query, p.args...)
		if err == errStop {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r reader) Shares(target, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error {
	return r.list(func(row row) bool { return each(row.key(0), store.Usage{Items: row.int(1), Bytes: row.int(2)}) },
		span{"SELECT sender_pubkey, items, bytes FROM shares WHERE target_pubkey = ? AND sender_pubkey > ? ORDER BY sender_pubkey", []any{target, after}})
}

func (r reader) SharesOf(sender, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error {
	return r.list(func(row row) bool { return each(row.key(0), store.Usage{Items: row.int(1), Bytes: row.int(2)}) },
		span{"SELECT target_pubkey, items, bytes FROM shares WHERE sender_pubkey = ? AND target_pubkey > ? ORDER BY target_pubkey", []any{sender, after}})
}

func (r reader) Items(after store.ItemMark, each func(store.Item) bool) error {
	return r.list(func(row row) bool { return each(item(row)) },
		span{"SELECT " + itemColumns + " FROM items WHERE target_pubkey = ? AND seq > ? ORDER BY seq", []any{after.Target, after.Seq}},
		span{"SELECT " + itemColumns + " FROM items WHERE target_pubkey > ? ORDER BY target_pubkey, seq", []any{after.Target}})
}

func (r reader) Item(target wire.PublicKey, seq int64) (it store.Item, err error) {
	ok, err := r.c.one(func(row row) { it = item(row) }, "SELECT "+itemColumns+" FROM items WHERE target_pubkey = ? AND seq = ?", target, seq)
	return it, found(ok, err)
}

const heldColumns = itemColumns + ", held_at, actor, reason"

func heldItem(row row) store.HeldItem {
	h := store.HeldItem{Item: item(row), HeldAt: row.time(10), Actor: row.text(11), Reason: row.text(12)}
	h.Item.Held = true
	return h
}

func (r reader) HeldItem(target wire.PublicKey, seq int64) (h store.HeldItem, err error) {
	ok, err := r.c.one(func(row row) { h = heldItem(row) }, "SELECT "+heldColumns+" FROM quarantine WHERE target_pubkey = ? AND seq = ?", target, seq)
	return h, found(ok, err)
}

func (r reader) Quarantine(after *store.HeldItem, each func(store.HeldItem) bool) error {
	const head, tail = "SELECT " + heldColumns + " FROM quarantine", " ORDER BY held_at DESC, target_pubkey, seq"
	give := func(row row) bool { return each(heldItem(row)) }
	if after == nil {
		return r.list(give, span{head + " WHERE held_at < ?" + tail, []any{int64(math.MaxInt64)}})
	}
	at, target := after.HeldAt, after.Target
	return r.list(give,
		span{head + " WHERE held_at = ? AND target_pubkey = ? AND seq > ? ORDER BY seq", []any{at, target, after.Seq}},
		span{head + " WHERE held_at = ? AND target_pubkey > ? ORDER BY target_pubkey, seq", []any{at, target}},
		span{head + " WHERE held_at < ?" + tail, []any{at}})
}

func (t *tx) Queue(target wire.PublicKey) (store.Queue, error) {
	c, err := t.counters.whole(target)
	if err != nil {
		return store.Queue{}, err
	}
	q := store.Queue{Target: target, Usage: c.now.Usage, Held: c.now.held, Head: max(c.now.nextSeq-1, 0)}
	if c.now.queued() > 0 {
		q.Oldest = time.UnixMilli(c.now.oldest).UTC()
	}
	q.Acked, err = t.Acked(target)
	return q, err
}

// A transaction has queues and shares in memory: to list them it writes them first.

func (t *tx) Queues(by store.QueueOrder, after *store.Queue, each func(store.Queue) bool) error {
	if err := t.counters.flush(); err != nil {
		return err
	}
	return t.reader.Queues(by, after, each)
}

func (t *tx) Shares(target, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error {
	if err := t.counters.flush(); err != nil {
		return err
	}
	return t.reader.Shares(target, after, each)
}

func (t *tx) SharesOf(sender, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error {
	if err := t.counters.flush(); err != nil {
		return err
	}
	return t.reader.SharesOf(sender, after, each)
}
