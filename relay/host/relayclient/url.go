package relayclient

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Errors of ParseURL. None repeats its input, which may hold a password.
var (
	errURL     = errors.New("not a relay URL: want https://HOST or http://HOST, with :PORT if needed")
	errURLUser = errors.New("not a relay URL: it must not hold a user name or password")
	errURLTail = errors.New("not a relay URL: it must not have a query or a fragment")
	errURLPath = errors.New("not a relay URL: it must not have a path, a relay is at the root of its host")
)

// ParseURL checks a relay's URL and returns it as scheme, host and port: a
// trailing slash is dropped, any other path is refused. Its errors say what is
// wrong and repeat nothing of s.
func ParseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" {
		return "", errURL
	}
	switch {
	case u.User != nil:
		return "", errURLUser
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"): // also an empty fragment
		return "", errURLTail
	case !validHost(u.Hostname()) || !validPort(u):
		return "", errURL
	case u.Path != "" && u.Path != "/" || u.RawPath != "":
		return "", errURLPath
	}
	return u.Scheme + "://" + (&url.URL{Host: u.Host}).String()[len("//"):], nil
}

func validPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

// validHost takes an address or a name in ASCII; url.Parse lets pass much that
// is neither.
func validHost(h string) bool {
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	if h == "" || len(h) > 253 {
		return false
	}
	for i := range len(h) {
		switch ch := h[i]; {
		case '0' <= ch && ch <= '9', 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', ch == '.', ch == '-', ch == '_':
		default:
			return false
		}
	}
	return true
}
