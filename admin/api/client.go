package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/admin"
)

// ErrNotRunning: no relay is there to answer. A Client may ask again later.
var ErrNotRunning = errors.New("no relay is running on this store")

// Unsent reports whether err says that a call reached no relay: nothing was done.
func Unsent(err error) bool {
	var away *gone
	return errors.Is(err, ErrNotRunning) && !errors.As(err, &away)
}

// Client is the Service of a running relay. It outlives the relay: once another
// runs, calls reach that. Safe for concurrent use.
type Client struct {
	http  http.Client
	base  string // what a path is put behind
	token string
	place string
}

var _ admin.Service = (*Client)(nil)

// At is the client of whatever relay runs on the store in dir when it is called.
func At(dir string) *Client {
	return &Client{base: "http://relay", place: dir, http: http.Client{
		Transport: &http.Transport{
			// Each call finds the socket anew: a relay that starts again may have another.
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx, dir) },
		},
	}}
}

// Dial finds the relay that runs on the store in dir, or ErrNotRunning.
func Dial(ctx context.Context, dir string) (*Client, error) {
	c, err := connect(ctx, dir)
	if err != nil {
		return nil, err
	}
	_ = c.Close() // it was only to see who is there
	return At(dir), nil
}

// Place is the store's folder or the relay's URL, for people.
func (c *Client) Place() string { return c.place }

const (
	maxAnswer  = 64 << 20
	callAnswer = 30 * time.Second
)

// ask has the relay answer one call.
func ask[Q, A any](ctx context.Context, c *Client, rt route[Q, A], q Q) (a A, err error) {
	method, path := rt.pattern()
	var body []byte
	if rt.write {
		body, err = encode(q)
		if err == nil && int64(len(body)) > rt.body {
			err = fmt.Errorf("%w: too much for one call", admin.ErrBadRequest)
		}
	} else if query, failed := encodeQuery(q); failed != nil {
		err = failed
	} else if query != "" {
		path += "?" + query
	}
	if err != nil {
		return a, err
	}
	if !rt.patient {
		bounded, stop := context.WithTimeout(ctx, callAnswer)
		defer stop()
		return a, c.call(bounded, ctx, method, path, body, &a)
	}
	return a, c.call(ctx, ctx, method, path, body, &a)
}

// call asks within ctx; the caller's own context says whether it was the caller
// who gave up.
func (c *Client) call(ctx, caller context.Context, method, path string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.failed(caller, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return c.failed(caller, err)
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("%w: the answer is too large: ask for fewer", admin.ErrBadRequest)
	}
	if resp.StatusCode == http.StatusOK {
		if json.Unmarshal(b, out) != nil {
			return fmt.Errorf("what answers at %s is no desk of a relay, or one of another version", c.place)
		}
		return nil
	}
	var p problem
	if json.Unmarshal(b, &p) != nil || p.Error == "" {
		return fmt.Errorf("what answers at %s is no desk of a relay: it says %d %s", c.place, resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return admin.OfKind(p.Code, p.Error)
}

// gone is an error of a relay that is not there, or not any more.
type gone struct{ text string }

func (g *gone) Error() string { return g.text }
func (g *gone) Unwrap() error { return ErrNotRunning }

// hungUp reports whether the other end closed the connection. What net/http says
// of one that was closed before it was used is an error without a name.
func hungUp(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return strings.HasSuffix(err.Error(), "server closed idle connection")
}

// failed says why no answer came.
func (c *Client) failed(caller context.Context, err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // which call it was is known to who asked
	}
	switch {
	case caller.Err() != nil:
		return caller.Err()
	case errors.Is(err, ErrNotRunning), admin.Kind(err) != "":
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the relay did not answer within %s", callAnswer)
	case hungUp(err) && c.token == "":
		return &gone{"the relay went away before it answered: see what it did before you ask again"}
	case hungUp(err):
		// Over TCP a relay that is there hangs up, too; whether one is, the next call shows.
		return fmt.Errorf("%s hung up before its answer was whole: see what it did before you ask again (it listens to nobody at an address for a minute after failed tries, and takes few connections at once)", c.place)
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return fmt.Errorf("%s: its certificate is not trusted here: %w (SSL_CERT_FILE may name the one to trust)", c.place, cert.Err)
	}
	return fmt.Errorf("%s: %w", c.place, err)
}
