package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Others that the demo sends besides the stream of step 4.
const demoSingles = 8

// breakThings lets both hosts send while the relay and a daemon are killed. What
// breaks, breaks at a message and not at a time: with few messages, too. What is
// killed is killed with mail on its way, and between two breaks a message is sent.
func (d *demo) breakThings(ctx context.Context) error {
	n := d.messages - demoSingles
	breaks := []struct {
		percent int // of the stream that is sent by then
		do      func(ctx context.Context, sent int) error
		kills   bool
	}{
		{14, d.killRelay, true}, {26, d.reviveRelay, false},
		{34, d.killRelay, true}, {46, d.reviveRelay, false},
		{60, d.killWork, true}, {72, d.reviveWork, false},
	}
	pace := time.NewTicker(demoPace(n))
	defer pace.Stop()
	sites := [2]*site{d.home, d.work}
	for i := range n {
		d.show("%d of %d sent", i, n)
		if _, err := d.send(ctx, sites[i%2], sites[1-i%2], fmt.Sprintf("message %d of %d", i+1, n)); err != nil {
			return err
		}
		if len(breaks) > 0 && breaks[0].percent*n/100 <= i {
			ready := true
			if last := n-i <= len(breaks); breaks[0].kills && !last { // else at once: what was just sent is on its way
				var err error
				if ready, err = d.midFlight(ctx); err != nil {
					return err
				}
			}
			if ready {
				if err := breaks[0].do(ctx, i+1); err != nil {
					return err
				}
				breaks = breaks[1:]
			}
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	open, err := d.onTheWay(ctx)
	d.note("All %d are sent, %d not confirmed yet. A host keeps what it could not give to the\nrelay and tries again, after 5 seconds, 10, 20 and so on; so it does with receipts.", n, open)
	d.note("What the relay had stored when its answer was lost comes twice and is stored once.")
	return err
}

// demoPace is the time from message to message: the stream takes about six
// seconds, a short one less.
func demoPace(n int) time.Duration {
	return min(6*time.Second/time.Duration(n), 50*time.Millisecond)
}

// onTheWay counts the messages whose senders have no receipt yet.
func (d *demo) onTheWay(ctx context.Context) (int, error) {
	c, err := d.tallyNow(ctx)
	return c.Sent - c.Confirmed, err
}

// midFlight waits for a moment, another one each time, and reports whether a
// message is on its way then.
func (d *demo) midFlight(ctx context.Context) (bool, error) {
	select {
	case <-time.After(rand.N(50 * time.Millisecond)):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	n, err := d.onTheWay(ctx)
	return n > 0, err
}

func (d *demo) killRelay(ctx context.Context, sent int) error {
	d.relay.kill()
	d.facts.RelayKills++
	n, err := d.onTheWay(ctx)
	d.note("%4d sent   kill -9 of the relay; on their way: %d", sent, n)
	return err
}

func (d *demo) reviveRelay(ctx context.Context, sent int) error {
	n, err := d.onTheWay(ctx)
	if err != nil {
		return err
	}
	d.note("%4d sent   the relay starts again on its store; on their way: %d", sent, n)
	return d.serve(ctx)
}

func (d *demo) killWork(ctx context.Context, sent int) error {
	d.work.kill()
	d.facts.HostKills++
	n, err := d.onTheWay(ctx)
	d.note("%4d sent   kill -9 of work's daemon; on their way: %d", sent, n)
	return err
}

func (d *demo) reviveWork(ctx context.Context, sent int) error {
	d.note("%4d sent   work's daemon starts again; what work has sent meanwhile was on its disk", sent)
	return d.daemon(ctx, d.work, false)
}
