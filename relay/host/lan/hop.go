package lan

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// hop is who a request says it is from.
type hop struct{ host, ts, sig, port string }

// hopHeaders reads the headers of a hop. One that is there twice could be read
// one way here and another way elsewhere: not ok.
func hopHeaders(h http.Header) (hp hop, ok bool) {
	for _, f := range [...]struct {
		name string
		to   *string
	}{{wire.HeaderHost, &hp.host}, {wire.HeaderTS, &hp.ts}, {wire.HeaderSig, &hp.sig}, {HeaderPort, &hp.port}} {
		switch lines := h.Values(f.name); len(lines) {
		case 0:
		case 1:
			*f.to = lines[0]
		default:
			return hop{}, false
		}
	}
	return hp, wire.ValidHostName(hp.host)
}

// signed makes a call that only a peer may make, with its body read.
func signed(answer func(*call, Peer) (any, error)) func(*call) (any, error) {
	return func(c *call) (any, error) {
		p, err := c.hop()
		if err != nil {
			return nil, err
		}
		return answer(c, p)
	}
}

// hop finds out who is calling: name, then time, both before the body is read,
// then signature, then rate. The node hears of calls that passed all four.
func (c *call) hop() (Peer, error) {
	hp, ok := hopHeaders(c.r.Header)
	if !ok {
		return Peer{}, errHop
	}
	p, err := c.node.Peer(c.ctx, hp.host)
	if errors.Is(err, ErrRefused) {
		return Peer{}, errHop
	} else if err != nil {
		return Peer{}, fmt.Errorf("find peer: %w", err)
	}
	if wire.CheckLANHopTime(hp.ts, c.now()) != nil {
		return Peer{}, errHop
	}
	if err := c.readBody(); err != nil {
		return Peer{}, err
	}
	if !wire.VerifyLANHop(p.Key, hp.sig, c.r.Method, c.path, hp.ts, c.body) {
		return Peer{}, errHop
	}
	if !c.peers.Allow(p.Key.String(), c.now()) {
		return Peer{}, errTooMany
	}
	at, _ := wire.ParseTime(hp.ts) // it was checked
	c.node.Seen(c.ctx, p, listensAt(c.r.RemoteAddr, hp.port), at)
	return p, nil
}

// listensAt is where a peer listens: its address as we see it, with the port
// that it says, or "" when either is missing or wrong.
func listensAt(remote, port string) string {
	from, err := netip.ParseAddrPort(remote)
	n, ok := parsePort(port)
	if err != nil || !ok {
		return ""
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), n).String()
}

// clientAddr is the address that calls and bodies are counted under. An IPv6
// address counts by itself: the hosts of a LAN share their /64.
func clientAddr(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr // a Unix socket's
	}
	return from.Addr().Unmap().WithZone("").String()
}

// parsePort reads a port from 1 to 65535 in its one spelling.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && s == strconv.FormatUint(n, 10)
}

// envelopes is POST /v2/envelopes.
func (c *call) envelopes(p Peer) (any, error) {
	return answerList(c, "envelopes", MaxEnvelopes, func(ctx context.Context, l [][]byte) ([]Result, error) {
		return c.node.Envelopes(ctx, p, l)
	})
}

// receipts is POST /v1/receipts.
func (c *call) receipts(p Peer) (any, error) {
	return answerList(c, "receipts", MaxReceipts, func(ctx context.Context, l [][]byte) ([]string, error) {
		return c.node.Receipts(ctx, p, l)
	})
}

// results is the answer to a list, one for each of it.
type results[T any] struct {
	Results []T `json:"results"`
}

// answerList hands the list in the body to the node. A node that does not
// answer for each has failed: the peer, which would give up what has no result,
// shall send all of it again.
func answerList[T any](c *call, member string, most int, do func(context.Context, [][]byte) ([]T, error)) (any, error) {
	list, err := parseList(c.body, member, most)
	if err != nil {
		return nil, err
	}
	got, err := do(c.ctx, list)
	if err != nil {
		return nil, err
	}
	if len(got) != len(list) {
		return nil, fmt.Errorf("%d results for %d %s", len(got), len(list), member)
	}
	if got == nil {
		got = []T{} // not null
	}
	return results[T]{got}, nil
}

// encKeyAnswer is the answer to GET /v1/enc-key.
type encKeyAnswer struct {
	V      int    `json:"v"`
	Host   string `json:"host"`
	EncPub string `json:"enc_pub"`
	Sig    string `json:"sig"`
}

// encKey is GET /v1/enc-key.
func (c *call) encKey(Peer) (any, error) {
	pub, sig, err := c.node.EncKey(c.ctx)
	if err != nil {
		return nil, err
	}
	return encKeyAnswer{1, c.node.Identity().Host, pub.String(), sig}, nil
}

// unpair is POST /v1/unpair.
func (c *call) unpair(p Peer) (any, error) {
	if err := c.node.Unpair(c.ctx, p); err != nil {
		return nil, err
	}
	return struct {
		OK bool `json:"ok"`
	}{true}, nil
}
