package api

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/agentmbx/agentmbx/relay/ratelimit"
)

// patient goes on when a connection cannot be taken, for want of files or memory:
// the relay does not end for that. It says so once a minute.
type patient struct {
	net.Listener
	done  <-chan struct{}
	log   *slog.Logger
	lines *ratelimit.Limiter
}

func newPatient(l net.Listener, done <-chan struct{}, log *slog.Logger) *patient {
	return &patient{l, done, log, ratelimit.New(1, 1)}
}

func (p *patient) Accept() (net.Conn, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		c, err := p.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return c, err
		}
		if p.lines.Allow("", time.Now()) {
			p.log.Warn("the desk cannot take a connection; it goes on trying", "at", p.Addr().String(), "err", err)
		}
		select {
		case <-p.done:
			return nil, http.ErrServerClosed
		case <-time.After(wait):
		}
	}
}
