package relayclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Options are what a client is made of. The zero value is usable.
type Options struct {
	Now       func() time.Time  // the time that hops are signed for; nil means time.Now
	Timeout   time.Duration     // of one call, from dialling to the end of its answer; 0 means 15 s. A long poll adds its wait
	Transport http.RoundTripper // nil means one of its own, which Close ends
}

// Client calls one relay. Safe for concurrent use.
type Client struct {
	base      string // without a path
	now       func() time.Time
	timeout   time.Duration
	transport http.RoundTripper
	own       *http.Transport // nil when the transport is somebody else's
}

// New makes a client for the relay at base, which ParseURL has to accept. It
// does not call it.
func New(base string, o Options) (*Client, error) {
	base, err := ParseURL(base)
	if err != nil {
		return nil, err
	}
	c := &Client{base: base, now: o.Now, timeout: o.Timeout, transport: o.Transport}
	if c.now == nil {
		c.now = time.Now
	}
	if c.timeout <= 0 {
		c.timeout = 15 * time.Second
	}
	if c.transport == nil {
		c.own = NewTransport()
		c.transport = c.own
	}
	return c, nil
}

// Close gives up the idle connections. A call after it still works.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// NewTransport carries calls with bounded dials and headers, over HTTP/1 only.
func NewTransport() *http.Transport {
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &http.Transport{
		Proxy:               quietly(http.ProxyFromEnvironment),
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		Protocols:           &http1,
		DisableCompression:  true, // bounds are of what crosses the network
		MaxIdleConns:        8,
		MaxIdleConnsPerHost: 4,
		// Shorter than a relay keeps an idle connection (5 s), so that no request
		// is written into one that is being closed.
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// quietly is proxy without its errors, which repeat the setting: that may hold
// a password.
func quietly(proxy func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return func(r *http.Request) (*url.URL, error) {
		u, err := proxy(r)
		if err != nil {
			return nil, errors.New("the proxy set in the environment is not a URL")
		}
		return u, nil
	}
}

// Bounds of answers, in bytes.
const (
	smallAnswer  = 64 << 10
	pageAnswer   = 16 << 20 // base64 of 8 MiB of wire bytes and of an item over; v1: the bytes themselves
	pushAnswer   = 4 << 20
	resultAnswer = 5 << 10 // one result with the longest id, for pushes of many
)

// call is one call of a relay.
type call struct {
	what   string // for its errors
	method string
	target string // path and query
	body   []byte
	caller *Caller       // who signs it, nil for nobody
	noKey  bool          // v1: the relay finds the caller by its name
	bound  int64         // of a successful answer
	wait   time.Duration // how long the relay may hold it
	secret []byte        // part of body that no error may repeat
}

// answer is what came back: of a status other than 200 no body that is over
// smallAnswer or incomplete.
type answer struct {
	status int
	date   time.Time
	body   []byte
}

// do makes a call that has to succeed and returns its answer.
func (c *Client) do(ctx context.Context, q call) ([]byte, error) {
	a, err := c.exchange(ctx, q)
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, q.refused(a)
	}
	return a.body, nil
}

// exchange makes a call and reads its answer, whatever its status.
func (c *Client) exchange(caller context.Context, q call) (a answer, err error) {
	ctx, cancel := context.WithTimeout(caller, c.timeout+q.wait)
	defer cancel()
	r, err := c.request(ctx, q)
	if err != nil {
		return a, q.named(err)
	}
	// Not an http.Client: it would look at redirects and add what it knows of the URL.
	res, err := c.transport.RoundTrip(r)
	if err != nil {
		return a, q.unreachable(ctx, err)
	}
	defer res.Body.Close()
	a.status = res.StatusCode
	a.date, _ = http.ParseTime(res.Header.Get("Date"))
	switch {
	case a.status == http.StatusOK:
		a.body, err = readBounded(res, q.bound)
	case a.status > http.StatusOK: // below it there is no body but a connection that never ends
		// The status alone says enough: its body is welcome, not needed.
		if a.body, err = readBounded(res, smallAnswer); err != nil && ctx.Err() == nil {
			a.body, err = nil, nil
		}
	}
	switch {
	case errors.Is(err, ErrBadAnswer):
		return a, q.named(err)
	case err != nil:
		return a, q.unreachable(ctx, err)
	}
	return a, nil
}

func (c *Client) request(ctx context.Context, q call) (*http.Request, error) {
	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, c.base+q.target, body)
	if err != nil {
		return nil, errors.New("no such request") // not reached: base is parsed and targets are ours
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "agentmbx")
	if q.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if q.caller == nil {
		return r, nil
	}
	return r, c.sign(r, q)
}

// sign adds the hop. What is signed as the path must be what is sent.
func (c *Client) sign(r *http.Request, q call) error {
	if q.caller.Key.IsZero() || !wire.ValidHostName(q.caller.Host) {
		return errCaller
	}
	path := q.target
	if strings.HasPrefix(path, "/v1/") {
		path, _, _ = strings.Cut(path, "?")
	}
	ts, sig := wire.SignHop(q.caller.Key, q.method, path, q.body, c.now())
	r.Header.Set(wire.HeaderHost, q.caller.Host)
	r.Header.Set(wire.HeaderTS, ts)
	r.Header.Set(wire.HeaderSig, sig)
	if !q.noKey {
		r.Header.Set(wire.HeaderKey, q.caller.Key.Public().String())
	}
	return nil
}

var errCaller = errors.New("the caller has no key or no valid host name")

// readBounded reads a body to its end. One that is over the bound matches
// ErrBadAnswer; any other error is the connection's.
func readBounded(res *http.Response, bound int64) ([]byte, error) {
	if res.ContentLength > bound {
		return nil, errOverBound
	}
	var b bytes.Buffer
	b.Grow(int(max(res.ContentLength, 0)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(res.Body, bound+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > bound {
		return nil, errOverBound
	}
	return b.Bytes(), nil
}
