package jobs

import (
	"context"
	"sync"
	"time"
)

// clocks reads the wall clock and the monotonic one together, and compares how
// far each went since the last look.
type clocks struct {
	now   func() time.Time
	since func() time.Duration

	mu   sync.Mutex
	seen bool
	wall time.Time
	mono time.Duration
}

func newClocks(now func() time.Time, since func() time.Duration) *clocks {
	if now == nil {
		now = time.Now
	}
	if since == nil {
		start := time.Now()
		since = func() time.Duration { return time.Since(start) }
	}
	return &clocks{now: now, since: since}
}

// read answers the wall time as the store keeps it, and without the monotonic
// reading that would hide a jump from Sub.
func (c *clocks) read() (wall time.Time, mono time.Duration) {
	return c.now().Round(0).UTC().Truncate(time.Millisecond), c.since()
}

// compare reads the clocks and calls jumped, which is waited for by every other
// caller, when they have parted since the last call.
func (c *clocks) compare(jumped func(by time.Duration)) (wall time.Time, mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, mono = c.read()
	by := wall.Sub(c.wall) - (mono - c.mono)
	first := !c.seen
	c.seen, c.wall, c.mono = true, wall, mono
	if !first && (by > JumpOver || by < -JumpOver) {
		jumped(by)
	}
	return wall, mono
}

// watch notices a jump of the clock. Nothing remembers a next time by the wall
// clock, so there is nothing to correct: each look works it out anew.
func (r *Runner) watch(ctx context.Context) (wall time.Time, mono time.Duration) {
	return r.clocks.compare(func(by time.Duration) {
		r.log.Warn("the clock jumped", "by", by.Round(time.Second).String())
		if r.o.Jumped != nil {
			r.o.Jumped(context.WithoutCancel(ctx), by)
		}
	})
}
