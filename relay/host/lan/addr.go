package lan

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

var errAddr = errors.New("not an address: want host:port")

// NormalizeAddr reads an address as people type it, a name or an IP with or
// without a port, and returns it as host:port in one spelling. Its error repeats
// nothing of the address.
func NormalizeAddr(addr string) (string, error) {
	addr = strings.TrimSpace(addr)
	if len(addr) > maxAddr {
		return "", errAddr
	}
	if ip, err := netip.ParseAddr(addr); err == nil { // before the colons of an IPv6 address are taken for a port's
		return joinIP(ip, DefaultPort)
	}
	host, port := addr, uint16(DefaultPort)
	if i := strings.LastIndexByte(addr, ':'); i >= 0 && !strings.HasSuffix(addr, "]") {
		n, ok := parsePort(addr[i+1:])
		if !ok {
			return "", errAddr
		}
		host, port = addr[:i], n
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		if !ok || err != nil || !ip.Is6() {
			return "", errAddr
		}
		return joinIP(ip, port)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
		return joinIP(ip, port)
	}
	if !nameChars(host) {
		return "", errAddr
	}
	return net.JoinHostPort(strings.ToLower(host), strconv.Itoa(int(port))), nil
}

func joinIP(ip netip.Addr, port uint16) (string, error) {
	if z := ip.Zone(); z != "" && !nameChars(z) {
		return "", errAddr
	}
	return netip.AddrPortFrom(ip.Unmap(), port).String(), nil
}

// nameChars reports whether s could be a DNS name or the name of an interface.
func nameChars(s string) bool {
	if s == "" || len(s) > 253 || s[0] == '-' || s[0] == '.' {
		return false
	}
	for i := range len(s) {
		switch ch := s[i]; {
		case '0' <= ch && ch <= '9', 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', ch == '.', ch == '-', ch == '_':
		default:
			return false
		}
	}
	return true
}
