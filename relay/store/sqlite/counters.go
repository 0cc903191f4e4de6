package sqlite

import (
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Names of the totals rows.
const (
	totalEnrolments = "enrolments"
	totalItems      = "items"
	totalBytes      = "bytes"
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
	nextSeq int64 // 0: there is no row yet
	store.Usage
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

// back takes back what the closure at hand changed.
func (c *counters) back() {
	for _, f := range c.undo {
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
		_, err = c.r.c.one(func(r row) { q = queueRow{r.int(0), store.Usage{Items: r.int(1), Bytes: r.int(2)}} },
			"SELECT next_seq, items, bytes FROM seqs WHERE target_pubkey = ?", target)
		return q, err
	})
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

// charge adds items and bytes to a queue, to the sender's share of it, to the
// account of its host and to the totals; negative numbers give them back.
func (c *counters) charge(target, sender wire.PublicKey, account string, u store.Usage) error {
	q, err := c.queue(target)
	if err != nil {
		return err
	}
	set(c, q, queueRow{q.now.nextSeq, add(q.now.Usage, u)})
	s, err := c.share(target, sender)
	if err != nil {
		return err
	}
	set(c, s, add(s.now, u))
	if err := c.chargeAccount(account, u); err != nil {
		return err
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

// flush writes what changed, once, at the end of a group: in the middle of one
// a failing closure would take back what it wrote of the others. Shares and accounts that hold nothing have no row.
func (c *counters) flush() error {
	db := c.r.c
	for k, v := range c.queues {
		if err := put(v, func(q queueRow) error {
			_, err := db.exec(`INSERT INTO seqs VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET
				next_seq = excluded.next_seq, items = excluded.items, bytes = excluded.bytes`, k, q.nextSeq, q.Items, q.Bytes)
			return err
		}); err != nil {
			return err
		}
	}
	for k, v := range c.shares {
		if err := put(v, func(u store.Usage) (err error) {
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
		if err := put(v, func(u store.Usage) (err error) {
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
		if err := put(v, func(n int64) error {
			_, err := db.exec("UPDATE totals SET value = ? WHERE name = ?", n, k)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func put[T comparable](c *counter[T], write func(T) error) error {
	if c.now == c.stored {
		return nil
	}
	if err := write(c.now); err != nil {
		return err
	}
	c.stored = c.now
	return nil
}
