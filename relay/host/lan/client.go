package lan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const (
	dialTime = 3 * time.Second
	callTime = 15 * time.Second // for all of a call

	// Less than hosts keep an idle connection (0.5.x: 5 s): a call on one that is
	// just being closed would fail for nothing.
	idleConnTime = 4 * time.Second

	maxText       = 200 // characters of another host's text that are kept
	maxErrorBytes = 64 << 10
)

// Client calls other hosts. Each call takes 15 seconds at most, asks no proxy
// and follows no redirect. Safe for concurrent use.
//
// The errors of a call match ErrUnreachable when no connection was made, are a
// *StatusError for an answer other than 200, and are plain otherwise. What the
// other host says is in them printable and cut.
//
// An addr is a host with or without port, as NormalizeAddr reads it.
type Client struct {
	now       func() time.Time
	transport *http.Transport
	timeout   time.Duration
}

// NewClient makes a client. now dates its signatures; nil means time.Now.
func NewClient(now func() time.Time) *Client {
	if now == nil {
		now = time.Now
	}
	dialer := &net.Dialer{Timeout: dialTime}
	return &Client{now: now, timeout: callTime, transport: &http.Transport{
		Proxy: nil, // another host of the LAN, whatever the environment says
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
			}
			return conn, nil
		},
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        idleConnTime,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // what is read is bounded as it arrives
	}}
}

// Close closes the connections that no call uses.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Error is the status and what the other host said.
func (e *StatusError) Error() string {
	s := "answered " + strconv.Itoa(e.Status)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// callError is a call that failed without an answer. Its text is printable and
// cut: net/http quotes whole lines of what it could not read.
type callError struct {
	what string
	err  error
}

func (e *callError) Error() string { return e.what + ": " + printable(e.err.Error(), maxText) }

func (e *callError) Unwrap() error { return e.err }

// do makes a call and decodes the answer, which must be an object, into into.
// A nil into takes any answer. A nil who signs nothing.
func (c *Client) do(ctx context.Context, who *Caller, method, addr, path string, body []byte, into any) error {
	addr, err := NormalizeAddr(addr)
	if err != nil {
		return err
	}
	what := method + " " + path + " of " + addr
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	connected := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	req, err := c.request(ctx, who, method, addr, path, body)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	// The transport itself: it follows nothing and keeps no cookies.
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		if !connected && !errors.Is(err, ErrUnreachable) { // the context ended while it was dialling
			err = fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		return &callError{what, err}
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return &StatusError{Status: res.StatusCode, Reason: reason(res)}
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, MaxBody+1))
	if err != nil {
		return &callError{what, err}
	}
	if len(b) > MaxBody {
		return fmt.Errorf("%s: unreadable answer: over %d bytes", what, MaxBody)
	}
	if into == nil {
		return nil
	}
	if err := wire.Decode(b, into); err != nil {
		return fmt.Errorf("%s: unreadable answer: %w", what, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, who *Caller, method, addr, path string, body []byte) (*http.Request, error) {
	if len(body) > MaxBody {
		return nil, fmt.Errorf("body over %d bytes", MaxBody)
	}
	u := url.URL{Scheme: "http", Host: addr, Path: path}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", service)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if who == nil {
		return req, nil
	}
	if who.Key.IsZero() || !wire.ValidHostName(who.Host) {
		return nil, errors.New("no host name or key to sign with")
	}
	ts, sig := wire.SignLANHop(who.Key, method, path, body, c.now())
	req.Header.Set(wire.HeaderHost, who.Host)
	req.Header.Set(wire.HeaderTS, ts)
	req.Header.Set(wire.HeaderSig, sig)
	if who.Port > 0 && who.Port <= 65535 {
		req.Header.Set(HeaderPort, strconv.Itoa(who.Port))
	}
	return req, nil
}

// reason is the error that an answer names, if it does.
func reason(res *http.Response) string {
	if res.StatusCode < 400 {
		return "" // after a 101 the body is the connection itself, which no deadline bounds
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	if err != nil {
		return ""
	}
	var a struct {
		Error string `json:"error"`
	}
	if wire.Decode(b, &a) != nil {
		return ""
	}
	return printable(a.Error, maxText)
}

// printable is s without what could do anything to a terminal or a log, cut to
// most characters.
func printable(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n += utf16.RuneLen(r); n > most {
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}
