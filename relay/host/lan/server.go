package lan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/agentmbx/agentmbx/relay/ratelimit"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Calls a minute.
const (
	peerCalls     = 600 // of one peer, counted once its signature is verified
	strangerCalls = 30  // of one client address, for hello, join and rotate each
	rateKeys      = 4096
)

// How long a client may take, by the system's clock, never by Options.Now.
const (
	headerTime = 10 * time.Second
	bodyTime   = 30 * time.Second
	writeTime  = 30 * time.Second // for an answer, counted from when there is one
	idleTime   = 60 * time.Second
	drainTime  = 2 * time.Second
	stopTime   = 5 * time.Second

	maxHeaderBytes = 16 << 10
)

// Server answers other hosts over HTTP. Safe for concurrent use.
//
// A signed call is refused by its name and time before its body is read, and by
// its signature after. Unknown names, bad times and bad signatures are told
// apart by nobody: all of them are 401 with one text.
type Server struct {
	node    Node
	version string
	log     *slog.Logger
	now     func() time.Time
	started time.Time

	nonces *nonces
	bodies *budget
	peers  *ratelimit.Limiter
	// Each has a table of its own: who greets often can still join.
	hellos, joins, rotations *ratelimit.Limiter

	stop time.Duration
}

// NewServer makes a server.
func NewServer(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{
		node: o.Node, version: o.Version, log: o.Log, now: o.Now, started: o.Now(),
		nonces:    newNonces(),
		bodies:    newBudget(maxBodies, maxBodiesOfOne),
		peers:     ratelimit.New(peerCalls, rateKeys),
		hellos:    ratelimit.New(strangerCalls, rateKeys),
		joins:     ratelimit.New(strangerCalls, rateKeys),
		rotations: ratelimit.New(strangerCalls, rateKeys),
		stop:      stopTime,
	}
}

// Handler answers requests. It does not bound headers and idle connections:
// that is Serve's.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Serve answers what comes in on l until ctx ends. Then it gives the requests
// at work five seconds to end, cuts off what is left and returns nil. It returns
// an error when serving ended by itself. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	hs := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       bodyTime,
		WriteTimeout:      bodyTime + writeTime, // renewed for each answer; here it covers what net/http itself answers
		IdleTimeout:       idleTime,
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
	// Not of ctx, which has ended.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.stop)
	defer cancel()
	err := hs.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests cut off by the stop", "after", s.stop)
		err = hs.Close()
	}
	<-ended // http.ErrServerClosed, at once: the listener is closed
	if err != nil {
		s.log.Warn("server stopped with an error", "err", err)
	}
	return nil
}

// status is GET /v1/status.
func (c *call) status() (any, error) {
	id := c.node.Identity()
	return Status{
		Service: service, V: 1, Host: id.Host, HostPubkey: id.HostKey,
		Version: c.version, StartedAt: wire.FormatTime(c.started),
	}, nil
}

// service is what a host of this protocol calls itself.
const service = "agentmbx"
