package account

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
)

var errBase = errors.New("not an issuer's URL: want https://HOST, without a user name, query or fragment; http:// only on this machine")

// ParseBase checks the URL of an issuer and returns it without a slash at its
// end: tokens travel to it, so that it has to be https, or on this machine. Its
// error repeats nothing of s.
func ParseBase(s string) (string, error) {
	s = strings.TrimRight(s, "/")
	if u, ok := parseURL(s); !ok || strings.Contains(s, "?") || u.Scheme != "https" && !loopback(u) {
		return "", errBase
	}
	return s, nil
}

// endpoint reports whether s can be called for an issuer at base: https, and
// http only where base is on this machine, too.
func endpoint(s, base string) bool {
	u, ok := parseURL(s)
	b, _ := parseURL(base)
	return ok && (u.Scheme == "https" || loopback(u) && b != nil && loopback(b))
}

// page reports whether s is a page that a person can be sent to.
func page(s string) bool {
	_, ok := parseURL(s)
	return ok
}

func parseURL(s string) (u *url.URL, ok bool) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" || u.User != nil ||
		u.Hostname() == "" || strings.Contains(s, "#") || !label(s) {
		return nil, false
	}
	return u, true
}

func loopback(u *url.URL) bool {
	if u.Hostname() == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.IsLoopback()
}

// Private reports whether a token may be sent to a relay at this URL: nobody on
// the way reads it.
func Private(relay string) bool {
	u, ok := parseURL(relay)
	return ok && (u.Scheme == "https" || loopback(u))
}
