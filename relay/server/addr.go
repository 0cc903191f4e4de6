package server

import (
	"net/http"
	"net/netip"
	"strings"
)

// TrustMode says whose word the client address is. A relay that trusts a
// header which no proxy sets lets every client choose its own address.
type TrustMode string

// Trust modes.
const (
	TrustNone       TrustMode = ""           // the socket's
	TrustXFF        TrustMode = "xff"        // the rightmost entry of X-Forwarded-For
	TrustCloudflare TrustMode = "cloudflare" // CF-Connecting-IP
	TrustRealIP     TrustMode = "real-ip"    // X-Real-IP, as Railway's edge sets it
)

// clientAddr is the address that a call is counted under: an IPv4 address or
// an IPv6 /64, which is the least that one client is given. A header that is
// missing, repeated where it must not be, or malformed counts as none: then it
// is the socket's address.
func clientAddr(r *http.Request, trust TrustMode) string {
	var said string
	switch trust {
	case TrustXFF:
		// Each proxy appends; only the last entry is our own proxy's word.
		if lines := r.Header["X-Forwarded-For"]; len(lines) > 0 {
			said = lines[len(lines)-1]
			said = said[strings.LastIndexByte(said, ',')+1:]
		}
	case TrustCloudflare:
		said = only(r.Header["Cf-Connecting-Ip"])
	case TrustRealIP:
		said = only(r.Header["X-Real-Ip"])
	}
	if a, ok := parseAddr(said); ok {
		return rateKey(a)
	}
	if a, ok := parseAddr(r.RemoteAddr); ok {
		return rateKey(a)
	}
	return r.RemoteAddr // a Unix socket's
}

func only(lines []string) string {
	if len(lines) != 1 {
		return ""
	}
	return lines[0]
}

// parseAddr reads an address with or without port, brackets and zone.
func parseAddr(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	a, err := netip.ParseAddr(s)
	if err != nil {
		p, err := netip.ParseAddrPort(s)
		if err == nil {
			a = p.Addr()
		} else if inner, ok := strings.CutPrefix(s, "["); !ok || !strings.HasSuffix(inner, "]") {
			return a, false
		} else if a, err = netip.ParseAddr(strings.TrimSuffix(inner, "]")); err != nil || !a.Is6() {
			return a, false
		}
	}
	a = a.Unmap().WithZone("")
	return a, !a.IsUnspecified()
}

func rateKey(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	p, _ := a.Prefix(64) // fails for a longer one only
	return p.String()
}
