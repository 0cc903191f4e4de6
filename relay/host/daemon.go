package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmbx/agentmbx/relay/host/lan"
)

const (
	tickEvery  = 2 * time.Second
	lookEvery  = 100 * time.Millisecond // for what another process has written
	pushGap    = 600 * time.Millisecond // between pushes of what is new: a relay takes 120 a minute
	pollPause  = 2 * time.Second        // after a long poll that failed
	maxPollGap = 25 * time.Second
)

// DaemonOptions says how a daemon runs.
type DaemonOptions struct {
	// Listen is where to serve the LAN, host:port; "" switches the LAN off:
	// mail then goes over the relay only.
	Listen string

	// Ready, when not nil, is told the address the LAN is served at ("" when it
	// is off), once.
	Ready func(addr string)
}

// Daemon serves the LAN, and sends and receives until ctx ends. It returns nil
// then; ErrDaemonRuns when another one has this home.
func (h *Host) Daemon(ctx context.Context, o DaemonOptions) error {
	lock, err := h.lock()
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if err := h.db.check(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	addr := ""
	if o.Listen == "" {
		h.SwitchLANOff()
	} else {
		l, err := net.Listen(lanNetwork(o.Listen), o.Listen)
		if err != nil {
			return fmt.Errorf("listen for the LAN: %w: is another daemon running, or use --lan-port", err)
		}
		addr = l.Addr().String()
		h.listensAt(l.Addr())
		srv := lan.NewServer(lan.Options{Node: h, Version: h.opts.Version, Now: h.now})
		g.Go(func() error { return srv.Serve(ctx, l) })
	}
	if err := h.noteLANAddr(ctx, addr); err != nil {
		h.log.Warn("where the LAN is served was not stored", "err", err)
	}
	if o.Ready != nil {
		o.Ready(addr)
	}
	g.Go(func() error { return h.tickLoop(ctx) })
	g.Go(func() error { return h.pollLoop(ctx) })
	g.Go(func() error { return h.probeLoop(ctx) })
	return g.Wait()
}

// Once does what is due now and returns: for scripts, and for hosts that are
// not always on. It receives until the relay's queue is empty.
func (h *Host) Once(ctx context.Context) (total Report, err error) {
	lock, err := h.lock()
	if err != nil {
		return Report{}, err
	}
	defer lock.Unlock()
	h.waitForTokens()
	for range 1000 {
		r, err := h.Tick(ctx)
		if err != nil {
			return total, err
		}
		total = total.plus(r)
		// What was received is confirmed at once: nobody comes back for it soon.
		if r.Relay.Received == 0 && (!r.More || !r.news()) {
			return total, nil
		}
	}
	return total, nil
}

// plus adds up reports; the state of the relay is the last one's.
func (r Report) plus(n Report) Report {
	relay := n.Relay
	relay.add(r.Relay)
	relay.Accepted += r.Relay.Accepted
	relay.Rejected += r.Relay.Rejected
	relay.Failed += r.Relay.Failed
	relay.ReceiptsSent += r.Relay.ReceiptsSent
	return Report{
		Relay:       relay,
		LAN:         LANReport{r.LAN.Sent + n.LAN.Sent, r.LAN.Failed + n.LAN.Failed, r.LAN.Rejected + n.LAN.Rejected},
		Receipts:    ReceiptReport{r.Receipts.Sent + n.Receipts.Sent, r.Receipts.Deferred + n.Receipts.Deferred},
		Unconfirmed: r.Unconfirmed + n.Unconfirmed, GivenUp: r.GivenUp + n.GivenUp, Retried: r.Retried + n.Retried,
		More: n.More,
	}
}

// SwitchLANOff makes this host call nobody over the LAN: its mail goes over the
// relay. Daemon does it by itself when it is not told to listen.
func (h *Host) SwitchLANOff() {
	h.mu.Lock()
	h.lanOff = true
	h.mu.Unlock()
}

func (h *Host) listensAt(addr net.Addr) {
	_, port, err := net.SplitHostPort(addr.String())
	n, convErr := strconv.Atoi(port)
	if err != nil || convErr != nil {
		return
	}
	h.mu.Lock()
	h.lanPort = n
	h.mu.Unlock()
}

// tickLoop ticks every two seconds, and at once when there is something new:
// from this process, or from a command that wrote to the home. What is new soon
// after a push waits a little for more: steady mail stays under the relay's rate.
func (h *Host) tickLoop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	changes, err := h.db.changes()
	if err != nil {
		return err
	}
	news := false
	var pushed time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-h.woken:
			news = true
		case <-look.C:
			n, err := h.db.changes()
			if err != nil || n == changes { // what is wrong with the database a tick will say
				continue
			}
			changes, news = n, true
		}
		if wait := pushGap - time.Since(pushed); news && wait > 0 {
			timer.Reset(wait)
			continue
		}
		if news {
			h.staleSession()
			news = false
		}
		report, err := h.tick(ctx, h.polls())
		if ctx.Err() != nil {
			return nil
		}
		if r := report.Relay; r.Accepted+r.Rejected+r.Failed+r.ReceiptsSent > 0 {
			pushed = time.Now()
		}
		if err != nil {
			h.log.Error("a tick failed", "err", err)
		}
		if err == nil && (report.More && report.news() || report.Relay.Received > 0) { // receipts are owed for what was received
			timer.Reset(0)
		} else {
			timer.Reset(tickEvery)
		}
	}
}

// news reports whether a tick has moved anything: a relay that says for ever
// that there is more is asked no more often than others.
func (r Report) news() bool {
	return r.Relay.Received+r.Relay.Receipts+r.Relay.Notices+r.Relay.Accepted+r.Relay.ReceiptsSent+
		r.LAN.Sent+r.LAN.Rejected+r.Receipts.Sent > 0
}

// staleSession makes the next tick look at the relay anew.
func (h *Host) staleSession() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != nil {
		s := *h.session
		s.opened = time.Time{}
		h.session = &s
	}
}

// polls reports whether the long poll takes in what the relay has.
func (h *Host) polls() bool {
	s := h.sessionNow()
	return s != nil && !s.v1 && s.limits.MaxWaitS > 0
}

// pollLoop waits at the relay, so that mail arrives when it is there.
func (h *Host) pollLoop(ctx context.Context) error {
	for ctx.Err() == nil {
		if !h.polls() {
			pause(ctx, lookEvery)
			continue
		}
		s := h.sessionNow()
		if s == nil {
			continue
		}
		var report RelayReport
		started := h.now()
		_, err := h.receive(ctx, s, min(time.Duration(s.limits.MaxWaitS)*time.Second, maxPollGap), &report)
		if report.Received+report.Duplicates+report.Receipts > 0 {
			h.wake() // receipts are owed
		}
		var tr *trouble
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &tr):
			h.dropSession(s)
			if tr.state == relayOver {
				h.wake() // the next tick enrols again
			}
			if err := h.noteState(ctx, s.url, tr.state, tr); err != nil && ctx.Err() == nil {
				h.log.Error("the relay's state was not stored", "err", err)
			}
			pause(ctx, pollPause)
		case err != nil:
			h.log.Error("receiving failed", "err", err)
			pause(ctx, pollPause)
		case h.now().Sub(started) < lookEvery && report.Received == 0:
			pause(ctx, lookEvery) // a relay that answers an empty queue at once
		}
	}
	return nil
}

// dropSession forgets a session that went wrong, if it is still the one in use.
func (h *Host) dropSession(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != nil && h.session.epoch == s.epoch && h.session.url == s.url {
		h.session = nil
	}
}

func (h *Host) probeLoop(ctx context.Context) error {
	for ctx.Err() == nil {
		pause(ctx, probeAfter)
		if ctx.Err() != nil {
			return nil
		}
		if err := h.probe(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("looking for peers failed", "err", err)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// noteLANAddr remembers where this home's daemon serves the LAN, for the
// commands beside it.
func (h *Host) noteLANAddr(ctx context.Context, addr string) error {
	old, err := h.lanAddr(ctx)
	if err != nil || old == addr {
		return err
	}
	return h.db.write(ctx, func(t *tx) error {
		_, err := t.exec("INSERT INTO facts (name, value) VALUES ('lan_addr', ?1) ON CONFLICT (name) DO UPDATE SET value = ?1", addr)
		return err
	})
}

func (h *Host) lanAddr(ctx context.Context) (addr string, err error) {
	err = h.db.read(ctx, func(t *tx) error {
		_, err := t.get("SELECT value FROM facts WHERE name = 'lan_addr'", nil, &addr)
		return err
	})
	return addr, err
}

// lanNetwork makes an IPv4 address mean IPv4: as "tcp" 0.0.0.0 would be every
// address of both.
func lanNetwork(listen string) string {
	host, _, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.To4() != nil {
		return "tcp4"
	}
	return "tcp"
}
