package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// Remote is the client of a relay elsewhere, at an https URL or, on this machine,
// an http one. The certificate must be trusted by this system. The errors say
// what is wrong with the URL or the token, and hold neither.
func Remote(at, token string) (*Client, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, errors.New("the URL is not readable: want https://HOST:PORT")
	}
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(at, "#") {
		return nil, errors.New("a URL with a user, a query or a fragment is refused, since it gets into logs: put the token into a file, and replace it if it stood in the URL")
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Opaque != "" {
		return nil, errors.New("the URL is none of a relay's desk: want https://HOST:PORT")
	}
	if u.Scheme == "http" && !loopbackName(u.Hostname()) {
		return nil, errors.New("plain http to another machine would show the token on the way: want https, or a tunnel to a port of this machine")
	}
	if !validToken(token) {
		return nil, errors.New("the token is no token: want 16 to 512 visible characters on one line")
	}
	base := strings.TrimRight(u.String(), "/")
	d := net.Dialer{Timeout: 10 * time.Second}
	return &Client{base: base, token: token, place: base, http: http.Client{
		// Whoever answers elsewhere would get the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			TLSHandshakeTimeout: 10 * time.Second,
			IdleConnTimeout:     time.Minute,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := d.DialContext(ctx, network, address)
				if err != nil && ctx.Err() == nil {
					err = &gone{fmt.Sprintf("no relay can be reached at %s: %v", base, err)}
				}
				return c, err
			},
		},
	}}, nil
}

// loopbackName reports whether a host's name is this machine's own.
func loopbackName(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback() || strings.EqualFold(host, "localhost")
}

const (
	minToken = 16
	maxToken = 512
)

// validToken reports whether s can be sent as a bearer token.
func validToken(s string) bool {
	if len(s) < minToken || len(s) > maxToken {
		return false
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}
