package server

import (
	"net/http"
	"strings"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// hopHeaders reads who a request says it is from. A header that is there twice
// could be read one way by a proxy and another way here: not ok.
func hopHeaders(h http.Header) (hop relay.Hop, ok bool) {
	for _, f := range [...]struct {
		name string
		to   *string
	}{{"X-Mbx-Host", &hop.Host}, {"X-Mbx-Key", &hop.Key}, {"X-Mbx-Ts", &hop.TS}, {"X-Mbx-Sig", &hop.Sig}} {
		switch lines := h[f.name]; len(lines) {
		case 0:
		case 1:
			*f.to = lines[0]
		default:
			return relay.Hop{}, false
		}
	}
	return hop, true
}

// signedPath is what a hop signs as its path: the bare path in v1, the whole
// target as sent elsewhere.
func (c *call) signedPath() string {
	if strings.HasPrefix(c.path, "/v1/") {
		return c.path
	}
	return c.target
}

// hop finds out who is calling. The key and the time are checked before the
// body is read, the signature after.
func (c *call) hop() error {
	hop, ok := hopHeaders(c.r.Header)
	if !ok {
		return errHop
	}
	candidates, err := c.relay.Candidates(c.ctx, hop)
	if err != nil {
		return err
	}
	if err := c.readBody(maxBody); err != nil {
		return err
	}
	// What is signed is made anew from the body, escapes and all, and may be six
	// times its size: it has a share of its own.
	held, err := c.payloads.take(c.ctx, int64(wire.HopPayloadSize(c.r.Method, c.signedPath(), hop.TS, c.body)))
	if err != nil {
		return err
	}
	defer c.payloads.Release(held)
	who, err := c.relay.Verify(candidates, hop, c.r.Method, c.signedPath(), c.body)
	if err != nil {
		return err
	}
	c.who, c.known = who, true
	return nil
}
