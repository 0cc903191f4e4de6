package lan

import (
	"io"
	"sync"
	"time"
)

// Bytes of bodies in memory at once, of all requests and of those from one
// address. A body is read before its signature can be checked, so anybody who
// knows the name of a peer gets this far: not one of them shall take it all.
const (
	maxBodies      = 64 << 20
	maxBodiesOfOne = 32 << 20
)

// firstRead is the most that is held before anything arrived.
const firstRead = 32 << 10

// budget is a number of bytes that requests divide between them.
type budget struct {
	total, one int
	mu         sync.Mutex
	used       int
	by         map[string]int // client address to bytes; no zeros
}

func newBudget(total, one int) *budget {
	return &budget{total: total, one: one, by: map[string]int{}}
}

// take reports whether the address may hold n bytes more, and holds them.
func (b *budget) take(addr string, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.total || b.by[addr]+n > b.one {
		return false
	}
	b.used += n
	b.by[addr] += n
	return true
}

func (b *budget) give(addr string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.by[addr] -= n; b.by[addr] == 0 {
		delete(b.by, addr)
	}
}

// readBody reads the body of a request into c.body. It refuses one over MaxBody
// as soon as that shows, whatever length was announced.
func (c *call) readBody() error {
	// Cleared when done, or it would end the request while it is worked on:
	// net/http watches the connection for a client that goes away.
	defer func() { _ = c.rc.SetReadDeadline(time.Time{}) }()
	if !c.unread {
		return nil
	}
	if c.r.ContentLength > MaxBody {
		return errLarge
	}
	_ = c.rc.SetReadDeadline(time.Now().Add(bodyTime))
	var b []byte
	for {
		if len(b) == cap(b) {
			// One byte over the cap is how a body without length shows that it is too long.
			size := min(max(firstRead, 2*cap(b)), MaxBody+1)
			if !c.bodies.take(c.remote, size-cap(b)) {
				return errBusy
			}
			c.held += size - cap(b)
			b = append(make([]byte, 0, size), b...)
		}
		n, err := c.r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case len(b) > MaxBody:
			return errLarge
		case err == io.EOF:
			c.body, c.unread = b, false
			return nil
		case err != nil:
			return errBody
		}
	}
}

// releaseBody gives back what the body holds of the budget.
func (c *call) releaseBody() {
	if c.held > 0 {
		c.bodies.give(c.remote, c.held)
		c.held = 0
	}
}
