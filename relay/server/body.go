package server

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Caps of request bodies (protocol.md §3).
const (
	maxBody   = 8 << 20
	smallBody = 8 << 10 // challenge, enrol, rotate
	denyBody  = 64 << 10

	drainBytes = 16 << 20 // of a refused body that are read and thrown away
)

// share is a number of bytes that requests divide between them.
type share struct {
	*semaphore.Weighted
	total int64
	wait  time.Duration
}

func newShare(total int64, wait time.Duration) *share {
	return &share{semaphore.NewWeighted(total), total, wait}
}

// take gets n bytes of the share, or errBusy after a wait. More than there is
// in all is as much as there is in all; it answers what to give back.
func (s *share) take(ctx context.Context, n int64) (int64, error) {
	n = min(n, s.total)
	if s.TryAcquire(n) {
		return n, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	if s.Acquire(ctx, n) != nil {
		return 0, errBusy
	}
	return n, nil
}

// sizes of body buffers. A body moves to a larger one as its bytes arrive, so
// that announcing much costs nothing.
var sizes = [...]int{4 << 10, 64 << 10, 512 << 10, 4 << 20, maxBody}

// firstSize is the most that is given before anything arrived.
const firstSize = 64 << 10

type buffer struct {
	b     []byte
	class int
	held  int64 // of the share
}

// bodies lends buffers for request bodies.
type bodies struct {
	share *share
	pools [len(sizes)]sync.Pool
}

func newBodies(s *share) *bodies {
	b := &bodies{share: s}
	for i := range sizes {
		b.pools[i].New = func() any { return &buffer{b: make([]byte, 0, sizes[i]), class: i} }
	}
	return b
}

// take lends an empty buffer for at least n bytes, which is at most maxBody.
func (p *bodies) take(ctx context.Context, n int) (*buffer, error) {
	return p.grow(ctx, &buffer{class: -1}, n)
}

// grow lends a larger buffer in place of b. Only what is larger is asked of the
// share: a body must not wait for what it holds itself.
func (p *bodies) grow(ctx context.Context, b *buffer, n int) (*buffer, error) {
	class := 0
	for sizes[class] < n {
		class++
	}
	more, err := p.share.take(ctx, min(int64(sizes[class]), p.share.total)-b.held)
	if err != nil {
		return nil, err
	}
	larger := p.pools[class].Get().(*buffer)
	larger.b = append(larger.b, b.b...)
	larger.held, b.held = b.held+more, 0
	if b.class >= 0 {
		p.giveBack(b)
	}
	return larger, nil
}

func (p *bodies) giveBack(b *buffer) {
	p.share.Release(b.held)
	b.b, b.held = b.b[:0], 0
	p.pools[b.class].Put(b)
}

// readBody reads the body of a request into c.body, where it stays until
// releaseBody. It refuses one over most bytes as soon as that shows.
func (c *call) readBody(most int) (err error) {
	if !c.unread {
		return nil
	}
	length := c.r.ContentLength // -1: not announced
	if length > int64(most) {
		return errTooLarge
	}
	// Set whether or not there is more to come: the deadline also bounds what
	// net/http reads after us.
	_ = c.rc.SetReadDeadline(time.Now().Add(c.times.Body))
	expect := most + 1 // the byte too many is how a body without length shows
	if length >= 0 {
		expect = int(length)
	}
	if c.buf, err = c.bodies.take(c.ctx, min(max(expect, 1), firstSize)); err != nil {
		return err
	}
	for {
		n, err := c.readSome(expect)
		if err == errBusy {
			return err
		}
		if n > most {
			return errTooLarge
		}
		switch {
		case err == io.EOF:
			c.body, c.unread = c.buf.b, false
			// Cleared, or it would end the request while it is worked on: net/http
			// watches the connection for a client that goes away.
			_ = c.rc.SetReadDeadline(time.Time{})
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errSlow
		case err != nil:
			return errBody
		}
	}
}

// readSome reads once and answers how many bytes there are by now.
func (c *call) readSome(expect int) (n int, err error) {
	b := c.buf
	if len(b.b) == cap(b.b) {
		if len(b.b) >= min(expect, maxBody) { // only the end is missing
			var one [1]byte
			n, err := c.r.Body.Read(one[:])
			return len(b.b) + n, err
		}
		larger, err := c.bodies.grow(c.ctx, b, min(expect, 8*cap(b.b), maxBody))
		if err != nil {
			return len(b.b), err
		}
		c.buf, b = larger, larger
	}
	n, err = c.r.Body.Read(b.b[len(b.b):cap(b.b)])
	b.b = b.b[:len(b.b)+n]
	return len(b.b), err
}

// releaseBody gives the body's memory to the next request.
func (c *call) releaseBody() {
	if c.buf != nil {
		c.bodies.giveBack(c.buf)
		c.buf, c.body = nil, nil
	}
}

// abandonBody gives back the body's share but not its memory, which whoever
// panicked may still hold.
func (c *call) abandonBody() {
	if c.buf != nil {
		c.bodies.share.Release(c.buf.held)
		c.buf, c.body = nil, nil
	}
}

// drain reads on for a while after a refusal that left the body unread, so
// that a client which is still sending sees the answer and not a reset. The
// connection is closed after it.
func (c *call) drain() {
	c.releaseBody()
	if c.rc.Flush() != nil {
		return
	}
	_ = c.rc.SetReadDeadline(time.Now().Add(c.times.Drain))
	_, _ = io.CopyN(io.Discard, c.r.Body, drainBytes)
}
