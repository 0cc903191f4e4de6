package sqlite

import (
	"context"

	"github.com/agentmbx/agentmbx/relay/store"
)

// viewer is a read-only connection with a goroutine of its own. SQLite needs
// a deep stack, and a goroutine keeps the stack it once grew to: were views run
// by their callers, each host that waits in a long poll would hold 32 KiB of it.
type viewer struct {
	c    *conn
	jobs chan func()
}

func newViewer(c *conn) *viewer {
	v := &viewer{c, make(chan func())}
	go func() {
		for job := range v.jobs {
			job()
		}
	}()
	return v
}

func (v *viewer) close() error {
	close(v.jobs)
	return v.c.close()
}

// do runs fn on the viewer's goroutine and waits for it. A panic is the caller's.
func (v *viewer) do(fn func() error) (err error) {
	done := make(chan any)
	v.jobs <- func() {
		defer func() { done <- recover() }()
		err = fn()
	}
	if p := <-done; p != nil {
		panic(p)
	}
	return err
}

// View runs fn over a snapshot on one of the read-only connections.
func (s *Store) View(ctx context.Context, fn func(store.Reader) error) error {
	select {
	case v := <-s.readers:
		defer func() { s.readers <- v }()
		return v.do(func() error { return s.snapshot(v.c, fn) })
	case <-s.closing:
		return store.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) snapshot(c *conn, fn func(store.Reader) error) (err error) {
	c.failed = nil
	if _, err := c.exec("BEGIN"); err != nil {
		return plain(err, s.path)
	}
	defer func() {
		c.failed = nil
		if _, e := c.exec("COMMIT"); e != nil && err == nil {
			err = plain(e, s.path)
		}
	}()
	if err := fn(reader{c}); err != nil {
		if c.failed != nil {
			return plain(err, s.path)
		}
		return err
	}
	return nil
}
