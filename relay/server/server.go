// Package server is the relay's HTTP surface: v1 and v2 of protocol.md §3 over
// the rules in package relay.
//
// Every answer but a health check is decided by package relay; what is decided
// here is who is asked first: a signed hop is looked at before its body is
// read, a body is refused while it streams, and no client can hold a handler,
// or more memory than its share, for ever.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/agentmbx/agentmbx/relay"
)

// Options are what a server is made of.
type Options struct {
	Relay *relay.Relay
	Trust TrustMode // where the client address is read from
	Log   *slog.Logger
	// Problems tells what else is wrong, for /readyz and so for anyone; may be nil.
	Problems func(ctx context.Context) []string
	Now      func() time.Time // measures requests for the log; nil means time.Now
	Times    Times            // zero fields mean the protocol's
}

// Times bounds how long a client may take. They are measured by the system's
// clock, never by Options.Now.
type Times struct {
	Header time.Duration // to send a header; 10 s
	Body   time.Duration // to send a body; 30 s
	Idle   time.Duration // between requests; 5 s, or 75 s when a proxy is trusted
	Write  time.Duration // to take each 64 KiB of an answer; 30 s
	Answer time.Duration // to take all of an answer; 10 min
	Drain  time.Duration // to go on sending a body that was refused; 2 s
	Share  time.Duration // to wait for a share of the memory for bodies or pages; 3 s
	Stop   time.Duration // for requests to end when the server stops; 5 s
}

const (
	maxHeaderBytes = 16 << 10
	maxPayloads    = 64 << 20 // bytes of signed payloads at once
)

func (t Times) withDefaults(trust TrustMode) Times {
	idle := 5 * time.Second
	if trust != TrustNone {
		idle = 75 * time.Second // longer than a proxy keeps a connection it may still use
	}
	for _, d := range []struct {
		v    *time.Duration
		zero time.Duration
	}{
		{&t.Header, 10 * time.Second}, {&t.Body, 30 * time.Second}, {&t.Idle, idle}, {&t.Write, 30 * time.Second},
		{&t.Answer, 10 * time.Minute}, {&t.Drain, 2 * time.Second}, {&t.Share, 3 * time.Second}, {&t.Stop, 5 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.zero
		}
	}
	return t
}

// Server answers hosts over HTTP. Safe for concurrent use.
type Server struct {
	relay    *relay.Relay
	limits   relay.Limits
	trust    TrustMode
	log      *slog.Logger
	problems func(ctx context.Context) []string
	now      func() time.Time
	times    Times
	ids      requestIDs
	bodies   *bodies
	pages    *pages

	payloads *share // of hops being verified
}

// New makes a server.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	l := o.Relay.Limits()
	times := o.Times.withDefaults(o.Trust)
	return &Server{
		relay: o.Relay, limits: l, trust: o.Trust, log: o.Log, problems: o.Problems, now: o.Now, times: times,
		ids:    newRequestIDs(),
		bodies: newBodies(newShare(l.BodyBytesInFlight, times.Share)),
		pages:  newPages(newShare(l.BodyBytesInFlight, times.Share), l.MaxPullBytes),

		payloads: newShare(maxPayloads, times.Share),
	}
}

// Handler answers requests. It does not bound headers and idle connections:
// that is Serve's.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Serve answers what comes in on l until ctx ends. Then it ends the long polls,
// gives the other requests Times.Stop to end, and cuts off what is left. It
// returns nil after such a stop, and an error when serving ended by itself.
// It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	hs := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: s.times.Header,
		WriteTimeout:      s.times.Write, // renewed for each answer; here it covers what net/http itself answers
		IdleTimeout:       s.times.Idle,
		MaxHeaderBytes:    maxHeaderBytes,

		DisableGeneralOptionsHandler: true, // OPTIONS * is a path like any other
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- hs.Serve(l) }()
	select {
	case err := <-ended:
		return errors.Join(fmt.Errorf("serving ended unasked: %w", err), hs.Close())
	case <-ctx.Done():
	}
	s.relay.StopPolls() // first: each would hold the stop for its whole wait
	// Not of ctx, which has ended.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.times.Stop)
	defer cancel()
	err := hs.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests cut off by the stop", "after", s.times.Stop)
		err = hs.Close()
	}
	<-ended // http.ErrServerClosed, at once: the listener is closed
	if err != nil {
		s.log.Warn("server stopped with an error", "err", err)
	}
	return nil
}
