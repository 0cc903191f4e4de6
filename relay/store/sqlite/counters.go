package sqlite

import (
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Names of the totals rows.
const (
	totalEnrolments = "enrolments"
	totalItems      = "items"
	totalBytes      = "bytes"
	totalHeld       = "held"
)

// counters are the rows that a group of writes touches again and again: read
// once, kept in memory, written once before the commit. A batch of a hundred
// items to one queue costs one update of its row rather than a hundred.
//
// Each closure of a group is undone alone, so a row remembers what it was when
// the closure at hand first changed it.
type counters struct {
	r        reader
	queues   map[wire.PublicKey]*counter[queueRow]
	shares   map[shareKey]*counter[store.Usage]
	accounts map[string]*counter[store.Usage]
	totals   map[string]*counter[int64]
	call     int      // the closure at hand
	undo     []func() // what takes it back
}

type queueRow struct {
	nextSeq     int64 // 0: there is no row yet
	store.Usage       // queued and held
	held        store.Usage
	oldest      int64 // when the first queued item was accepted, in ms; means nothing while none is queued
	stale       bool  // oldest has to be looked up: the first item may have gone
}

// queued is how many items wait.
func (q queueRow) queued() int64 { return q.Items - q.held.Items }

// joined is q with one more item queued, behind all others.
func (q queueRow) joined(accepted time.Time) queueRow {
	if q.queued() == 1 {
		q.oldest, q.stale = accepted.UnixMilli(), false
	}
	return q
}

type shareKey struct{ target, sender wire.PublicKey }

type counter[T comparable] struct {
	now    T
	stored T   // what the database holds in this transaction
	saved  int // the closure that has an undo for it
}

func newCounters(r reader) *counters {
	c := &counters{r: r}
	c.reset()
	return c
}

// reset forgets all: the next group starts from the database.
func (c *counters) reset() {
	c.queues = map[wire.PublicKey]*counter[queueRow]{}
	c.shares = map[shareKey]*counter[store.Usage]{}
	c.accounts = map[string]*counter[store.Usage]{}
	c.totals = map[string]*counter[int64]{}
	c.call, c.undo = 0, nil
}

// next begins another closure.
func (c *counters) next() { c.call, c.undo = c.call+1, c.undo[:0] }

// back takes back what the closure at hand changed, the last first.
func (c *counters) back() {
	for _, f := range slices.Backward(c.undo) {
		f()
	}
	c.undo = c.undo[:0]
}

// load finds a counter in memory, or reads its row.
func load[K, T comparable](m map[K]*counter[T], k K, read func() (T, error)) (*counter[T], error) {
	if c, ok := m[k]; ok {
		return c, nil
	}
	v, err := read()
	if err != nil {
		return nil, err
	}
	c := &counter[T]{now: v, stored: v}
	m[k] = c
	return c, nil
}

// set changes a counter so that back can take it back.
func set[T comparable](cs *counters, c *counter[T], v T) {
	if c.saved != cs.call {
		c.saved = cs.call
		was := c.now
		cs.undo = append(cs.undo, func() { c.now, c.saved = was, 0 })
	}
	c.now = v
}

func (c *counters) queue(target wire.PublicKey) (*counter[queueRow], error) {
	return load(c.queues, target, func() (q queueRow, err error) {
		_, err = c.r.c.one(func(r row) {
			q = queueRow{nextSeq: r.int(0), Usage: store.Usage{Items: r.int(1), Bytes: r.int(2)},
				held: store.Usage{Items: r.int(3), Bytes: r.int(4)}, oldest: r.int(5)}
		}, "SELECT next_seq, items, bytes, held_items, held_bytes, oldest FROM seqs WHERE target_pubkey = ?", target)
		return q, err
	})
}

// whole is a queue whose oldest is known: of all that went from it in a closure
// or a group, the first item that is left is looked up once.
func (c *counters) whole(target wire.PublicKey) (*counter[queueRow], error) {
	q, err := c.queue(target)
	if err != nil {
		return nil, err
	}
	return q, c.refresh(target, q)
}

const oldestQuery = "SELECT accepted_at FROM items WHERE target_pubkey = ? ORDER BY seq LIMIT 1"

func (c *counters) refresh(target wire.PublicKey, q *counter[queueRow]) error {
	now := q.now
	switch {
	case now.queued() == 0:
		now.oldest = 0
	case now.stale:
		if _, err := c.r.c.one(func(r row) { now.oldest = r.int(0) }, oldestQuery, target); err != nil {
			return err
		}
	}
	if now.stale = false; now != q.now {
		set(c, q, now)
	}
	return nil
}

func (c *counters) share(target, sender wire.PublicKey) (*counter[store.Usage], error) {
	return load(c.shares, shareKey{target, sender}, func() (store.Usage, error) { return c.r.ShareUsage(target, sender) })
}

func (c *counters) account(name string) (*counter[store.Usage], error) {
	return load(c.accounts, name, func() (store.Usage, error) { return c.r.AccountUsage(name) })
}

func (c *counters) total(name string) (*counter[int64], error) {
	return load(c.totals, name, func() (v int64, err error) {
		_, err = c.r.c.one(func(r row) { v = r.int(0) }, "SELECT value FROM totals WHERE name = ?", name)
		return v, err
	})
}

func (c *counters) addTotal(name string, n int64) error {
	t, err := c.total(name)
	if err != nil {
		return err
	}
	set(c, t, t.now+n)
	return nil
}

// enter charges an item to its queue, to the sender's share of it, to the
// account of its host and to the totals. It stands last in the queue, or in
// quarantine.
func (c *counters) enter(it store.Item, account string) error {
	q, err := c.queue(it.Target)
	if err != nil {
		return err
	}
	now, one := q.now, store.Usage{Items: 1, Bytes: it.Size}
	now.Usage = add(now.Usage, one)
	if it.Held {
		now.held = add(now.held, one)
	} else {
		now = now.joined(it.AcceptedAt)
	}
	set(c, q, now)
	return c.charge(it.Target, it.Sender, account, one, it.Held)
}

// leave gives back what items of one sender are charged, that were queued or held.
func (c *counters) leave(target, sender wire.PublicKey, account string, u store.Usage, held bool) error {
	q, err := c.queue(target)
	if err != nil {
		return err
	}
	now := q.now
	now.Usage = add(now.Usage, minus(u))
	if held {
		now.held = add(now.held, minus(u))
	} else {
		now.stale = true
	}
	set(c, q, now)
	return c.charge(target, sender, account, minus(u), held)
}

// hold counts a queued item as held, release a held one as queued, behind all
// others. What is charged for it stays.
func (c *counters) hold(target wire.PublicKey, size int64) error {
	q, err := c.queue(target)
	if err != nil {
		return err
	}
	now := q.now
	now.held, now.stale = add(now.held, store.Usage{Items: 1, Bytes: size}), true
	set(c, q, now)
	return c.addTotal(totalHeld, 1)
}

func (c *counters) release(target wire.PublicKey, size int64, accepted time.Time) error {
	q, err := c.queue(target)
	if err != nil {
		return err
	}
	now := q.now
	now.held = add(now.held, store.Usage{Items: -1, Bytes: -size})
	set(c, q, now.joined(accepted))
	return c.addTotal(totalHeld, -1)
}

// charge adds to what is kept beside a queue; negative numbers give back.
func (c *counters) charge(target, sender wire.PublicKey, account string, u store.Usage, held bool) error {
	s, err := c.share(target, sender)
	if err != nil {
		return err
	}
	set(c, s, add(s.now, u))
	if err := c.chargeAccount(account, u); err != nil {
		return err
	}
	if held {
		if err := c.addTotal(totalHeld, u.Items); err != nil {
			return err
		}
	}
	if err := c.addTotal(totalItems, u.Items); err != nil {
		return err
	}
	return c.addTotal(totalBytes, u.Bytes)
}

func (c *counters) chargeAccount(account string, u store.Usage) error {
	if account == "" {
		return nil
	}
	a, err := c.account(account)
	if err != nil {
		return err
	}
	set(c, a, add(a.now, u))
	return nil
}

func add(a, b store.Usage) store.Usage {
	return store.Usage{Items: a.Items + b.Items, Bytes: a.Bytes + b.Bytes}
}

func minus(u store.Usage) store.Usage { return store.Usage{Items: -u.Items, Bytes: -u.Bytes} }

// flush writes what changed, once, at the end of a group. A closure that lists
// counters has it written before, and back knows what the database holds then.
// Shares and accounts that hold nothing have no row.
func (c *counters) flush() error {
	db := c.r.c
	for k, v := range c.queues {
		if err := c.refresh(k, v); err != nil {
			return err
		}
		if err := put(c, v, func(q queueRow) error { return c.putQueue(k, q, v.stored) }); err != nil {
			return err
		}
	}
	for k, v := range c.shares {
		if err := put(c, v, func(u store.Usage) (err error) {
			if u.Items == 0 {
				_, err = db.exec("DELETE FROM shares WHERE target_pubkey = ? AND sender_pubkey = ?", k.target, k.sender)
				return err
			}
			_, err = db.exec(`INSERT INTO shares VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET
				items = excluded.items, bytes = excluded.bytes`, k.target, k.sender, u.Items, u.Bytes)
			return err
		}); err != nil {
			return err
		}
	}
	for k, v := range c.accounts {
		if err := put(c, v, func(u store.Usage) (err error) {
			if u.Items == 0 {
				_, err = db.exec("DELETE FROM accounts WHERE account = ?", k)
				return err
			}
			_, err = db.exec(`INSERT INTO accounts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET
				items = excluded.items, bytes = excluded.bytes`, k, u.Items, u.Bytes)
			return err
		}); err != nil {
			return err
		}
	}
	for k, v := range c.totals {
		if err := put(c, v, func(n int64) error {
			_, err := db.exec("UPDATE totals SET value = ? WHERE name = ?", n, k)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// putQueue writes the row of a queue. A statement that names a column writes the
// indexes that have it, changed or not: oldest and mib are named only where one of
// them changes, which for a queue that is not drained is seldom.
func (c *counters) putQueue(target wire.PublicKey, q, was queueRow) (err error) {
	var oldest any // NULL while nothing is queued
	if q.queued() > 0 {
		oldest = q.oldest
	}
	switch {
	case was.nextSeq == 0:
		_, err = c.r.c.exec(`INSERT INTO seqs (target_pubkey, next_seq, items, bytes, mib, held_items, held_bytes, oldest)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, target, q.nextSeq, q.Items, q.Bytes, q.MiB(), q.held.Items, q.held.Bytes, oldest)
	case q.MiB() != was.MiB() || q.oldest != was.oldest || (q.queued() == 0) != (was.queued() == 0):
		_, err = c.r.c.exec(`UPDATE seqs SET next_seq = ?, items = ?, bytes = ?, mib = ?, held_items = ?, held_bytes = ?, oldest = ?
			WHERE target_pubkey = ?`, q.nextSeq, q.Items, q.Bytes, q.MiB(), q.held.Items, q.held.Bytes, oldest, target)
	default:
		_, err = c.r.c.exec("UPDATE seqs SET next_seq = ?, items = ?, bytes = ?, held_items = ?, held_bytes = ? WHERE target_pubkey = ?",
			q.nextSeq, q.Items, q.Bytes, q.held.Items, q.held.Bytes, target)
	}
	return err
}

func put[T comparable](cs *counters, c *counter[T], write func(T) error) error {
	if c.now == c.stored {
		return nil
	}
	if err := write(c.now); err != nil {
		return err
	}
	was := c.stored
	cs.undo = append(cs.undo, func() { c.stored = was })
	c.stored = c.now
	return nil
}
