package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	sqlite3 "modernc.org/sqlite/lib"
)

// call is one caller's wait for the writer.
type call struct {
	fn     func(store.Tx) error
	direct func(*conn) error // runs outside a transaction, alone
	err    error
	done   chan struct{}
}

const (
	groupCalls = 256                   // most calls in one commit
	groupTime  = 20 * time.Millisecond // a group that has worked so long takes no more
	groupWait  = time.Millisecond      // how long after its beginning a group waits for one more
)

// Update hands fn to the writer and returns after the commit that carries it.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.send(ctx, &call{fn: fn})
}

func (s *Store) send(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.done = make(chan struct{})
	s.callers.Add(1)
	defer s.callers.Add(-1)
	select {
	case <-s.closing:
		return store.ErrClosed
	default:
	}
	select {
	case s.calls <- c:
		<-c.done
		return c.err
	case <-s.closing:
		return store.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write is the writer: the one goroutine that changes the database. It takes
// all callers that wait, runs each in a savepoint of its own, commits once and
// answers them. While a commit waits for the disk the next group gathers.
func (s *Store) write() {
	defer close(s.written)
	for {
		select {
		case c := <-s.calls:
			s.serve(c)
		case <-s.closing:
			for { // whoever got in before the close is served
				select {
				case c := <-s.calls:
					s.serve(c)
				default:
					return
				}
			}
		}
	}
}

func (s *Store) serve(first *call) {
	if s.w == nil { // a reopen failed earlier
		if err := s.reopen(); err != nil {
			answer([]*call{first}, err)
			return
		}
	}
	if first.direct != nil {
		answer([]*call{first}, first.direct(s.w))
		s.w.failed = nil
		return
	}
	began := time.Now()
	group, alone, err := s.group(first, began)
	switch {
	case err == nil, errors.Is(err, store.ErrUnknownOutcome):
	case isFull(err) && s.space.full():
		// The disk filled up under us and SQLite dropped the transaction. With
		// the reserve given back, acks have room; new mail is now refused.
		s.rollback()
		err = s.rerun(group)
	}
	if err != nil {
		s.rollback()
		for _, c := range group {
			c.err = plain(err, s.path)
		}
	}
	answer(group, nil)
	s.foldWhenLow()
	if alone != nil {
		s.serve(alone)
	}
}

// foldWhenLow folds the log into the database when room becomes scarce, while
// there is still enough for it: at once the log's own space serves what comes,
// acks above all. Without enough room half a fold would take what acks need,
// so that commits are kept from trying.
func (s *Store) foldWhenLow() {
	if s.w == nil || !s.space.low.Load() && !s.folded && !s.unfold {
		return
	}
	if !s.space.low.Load() { // there is room again
		s.folded = false
		s.space.keepReserve()
	} else if !s.folded {
		if z, err := s.Size(context.Background()); err == nil && z.Free > z.Log { // it takes at most the log's size
			s.folded = s.fold()
		}
	}
	if unfold := s.space.low.Load() && !s.folded; unfold != s.unfold {
		pages := s.space.logPages()
		if unfold {
			pages = 0
		}
		_ = s.w.query(func(row) error { return nil }, fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", pages)) // no I/O: it cannot fail
		s.unfold = unfold
	}
	s.w.failed = nil
}

// fold copies the log back and reports whether all of it was.
func (s *Store) fold() (all bool) {
	_ = s.w.query(func(r row) error {
		all = r.int(0) == 0 && r.int(1) == r.int(2)
		return nil
	}, "PRAGMA wal_checkpoint(PASSIVE)") // what fails is tried again after the next group
	s.w.failed = nil
	return all
}

// group runs first, and whoever joins meanwhile, in one transaction. The error
// is that of the whole group. alone is a call that cannot share it.
func (s *Store) group(first *call, began time.Time) (group []*call, alone *call, err error) {
	group = []*call{first}
	if err = s.begin(); err != nil {
		return group, nil, err
	}
	for i := 0; i < len(group); i++ {
		if err = s.savepoint(group[i]); err != nil {
			return group, alone, err
		}
		if alone != nil || len(group) == groupCalls || time.Since(began) > groupTime {
			continue
		}
		c := s.waitingCall()
		if c == nil && i == len(group)-1 && len(group) < s.crowd {
			c = s.nextCall(groupWait - time.Since(began))
		}
		switch {
		case c == nil:
		case c.direct != nil:
			alone = c
		default:
			group = append(group, c)
		}
	}
	err = s.commit()
	s.crowd = max(int(s.callers.Load()), s.crowd-1)
	return group, alone, err
}

// waitingCall takes a caller that waits already, or nil.
func (s *Store) waitingCall() *call {
	select {
	case c := <-s.calls:
		return c
	default:
		return nil
	}
}

// nextCall waits a moment for a caller. Under load those who were just
// answered come back in less time than a commit takes; to let them join costs
// them nothing and saves a commit. Whoever is alone is never kept waiting:
// crowd is how many were in flight at the end of the last commits.
func (s *Store) nextCall(wait time.Duration) *call {
	if wait <= 0 {
		return nil
	}
	s.pause.Reset(wait)
	defer s.pause.Stop()
	select {
	case c := <-s.calls:
		return c
	case <-s.pause.C:
		s.crowd = 0 // they do not come back that fast
		return nil
	}
}

// rerun is group for calls that already had their turn.
func (s *Store) rerun(calls []*call) error {
	if s.w == nil {
		return store.ErrFull
	}
	if err := s.begin(); err != nil {
		return err
	}
	for _, c := range calls {
		if err := s.savepoint(c); err != nil {
			return err
		}
	}
	return s.commit()
}

// begin opens a group's transaction.
func (s *Store) begin() error {
	s.w.failed = nil
	s.tx.begin()
	_, err := s.w.exec("BEGIN IMMEDIATE")
	return err
}

// savepoint runs one call. An error of the call is its own; the one returned
// is that of the transaction, which SQLite may have rolled back by itself: the
// savepoint is gone then, and neither ROLLBACK TO nor RELEASE finds it.
func (s *Store) savepoint(c *call) error {
	s.tx.next()
	if _, err := s.w.exec("SAVEPOINT call"); err != nil {
		return err
	}
	c.err = protect(c.fn, s.tx)
	if broken := s.w.failed; broken != nil && c.err == nil {
		c.err = broken // the closure looked away, but its statement failed
	}
	if c.err == nil {
		_, err := s.w.exec("RELEASE call")
		return err
	}
	broken := s.w.failed
	s.w.failed = nil
	s.tx.back()
	if _, err := s.w.exec("ROLLBACK TO call"); err != nil {
		return errors.Join(broken, err)
	}
	if _, err := s.w.exec("RELEASE call"); err != nil {
		return errors.Join(broken, err)
	}
	if broken != nil {
		if isFull(broken) {
			return broken
		}
		c.err = plain(c.err, s.path)
	}
	return nil
}

// protect keeps a panicking closure from taking the writer with it.
func protect(fn func(store.Tx) error, t *tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a store transaction: %v\n%s", p, debug.Stack())
		}
	}()
	return fn(t)
}

// commit ends the group's transaction. A file that was deleted or replaced takes
// writes as if nothing were, and loses them: that is looked at here, after the
// last call has joined. When COMMIT fails nobody can say what the disk holds: the
// connection is opened anew, which rolls back whatever is not whole, before anyone
// is answered.
func (s *Store) commit() error {
	if now, err := os.Stat(s.path); err != nil || !os.SameFile(now, s.file) {
		return store.ErrGone
	}
	if err := s.tx.counters.flush(); err != nil {
		return err
	}
	if _, err := s.w.exec("COMMIT"); err != nil {
		if isFull(err) {
			return err // its last frame found no room, so SQLite has dropped it: that much is known
		}
		return errors.Join(store.ErrUnknownOutcome, err, s.reopen())
	}
	return nil
}

// rollback leaves no transaction open. When even that fails the connection is
// given up.
func (s *Store) rollback() {
	if s.w == nil {
		return
	}
	s.w.failed = nil
	if _, err := s.w.exec("ROLLBACK"); err != nil && code(err) != sqlite3.SQLITE_ERROR { // "no transaction is active"
		_ = s.reopen() // its error comes back with the next call
	}
}

// reopen replaces the writer's connection.
func (s *Store) reopen() error {
	if s.w != nil {
		_ = s.w.close() // it is being given up; what it holds is rolled back
		s.w = nil
	}
	w, err := openConn(s.path, "rw", writerPragmas(s.space.logPages()))
	if err != nil {
		return err
	}
	w.fault = s.fault
	s.unfold = false
	s.w, s.tx = w, newTx(w, s.space.headroom, s.seqNow)
	return nil
}

func answer(calls []*call, err error) {
	for _, c := range calls {
		if err != nil {
			c.err = err
		}
		close(c.done)
	}
}
