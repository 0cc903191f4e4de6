package api

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// How many connections the door takes at once, so that nobody without a token uses
// up the relay's files, and how many of one address that have shown no token yet,
// so that nobody without one keeps others out.
const (
	maxConns     = 128
	maxConnsEach = 8
)

// places closes what comes while its places are taken, or from an address that is
// shut out.
type places struct {
	net.Listener
	all, each int
	shut      func(at string) bool // nobody from there is listened to now

	mu        sync.Mutex
	taken     int
	strangers map[string]int // by address: those that have shown no token
}

func newPlaces(l net.Listener, all, each int, shut func(at string) bool) *places {
	return &places{Listener: l, all: all, each: each, shut: shut, strangers: map[string]int{}}
}

func (p *places) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		at := addressKey(c.RemoteAddr().String())
		if !p.shut(at) && p.take(at) {
			return &placedConn{Conn: c, places: p, at: at}, nil
		}
		_ = c.Close()
	}
}

func (p *places) take(at string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.all || p.strangers[at] >= p.each {
		return false
	}
	p.taken++
	p.strangers[at]++
	return true
}

// placedConn has a place, and gives it back when it is closed.
type placedConn struct {
	net.Conn
	places *places
	at     string
	proven bool // it has shown a token
	gone   bool
}

// known takes the connection from those of its address: it has shown a token.
func (c *placedConn) known() {
	c.places.mu.Lock()
	defer c.places.mu.Unlock()
	c.settle()
}

func (c *placedConn) settle() {
	if c.proven {
		return
	}
	c.proven = true
	if c.places.strangers[c.at]--; c.places.strangers[c.at] == 0 {
		delete(c.places.strangers, c.at)
	}
}

func (c *placedConn) Close() error {
	c.places.mu.Lock()
	c.settle()
	if !c.gone {
		c.gone = true
		c.places.taken--
	}
	c.places.mu.Unlock()
	return c.Conn.Close()
}

// connKey is what a request's context has its connection under.
type connKey struct{}

// withConn is the http.Server's ConnContext: only from there does a handler know
// the connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// proven says that a request's connection has shown a token.
func proven(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*placedConn); ok {
		c.known()
	}
}
