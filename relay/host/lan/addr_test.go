package lan

import (
	"net"
	"strings"
	"testing"
)

func TestNormalizeAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7":               "192.0.2.7:7373",
		"192.0.2.7:80":            "192.0.2.7:80",
		" work.LAN ":              "work.lan:7373",
		"work:65535":              "work:65535",
		"work_1.local.":           "work_1.local.:7373",
		"2001:db8::1":             "[2001:db8::1]:7373",
		"[2001:DB8:0::1]":         "[2001:db8::1]:7373",
		"[2001:db8::1]:80":        "[2001:db8::1]:80",
		"fe80::1%eth0":            "[fe80::1%eth0]:7373",
		"[fe80::1%eth0]:80":       "[fe80::1%eth0]:80",
		"::ffff:192.0.2.7":        "192.0.2.7:7373",
		"[::ffff:192.0.2.7]:7373": "192.0.2.7:7373",
	} {
		got, err := NormalizeAddr(addr)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", addr, got, err, want)
		}
		if again, err := NormalizeAddr(got); err != nil || again != got {
			t.Errorf("%q: got %q, %v the second time", got, again, err)
		}
	}
	for _, addr := range []string{
		"", " ", ":", ":80", "work:", "work:0", "work:65536", "work:-1", "work:+1", "work:080", "work:http", "a:b:80",
		"http://work", "work/", "work?x", "work#x", "me@work", "wo rk", "wo\nrk", "wörk", "-work", ".work",
		"[work]", "[192.0.2.7]", "[::1", "::1]", "[::1]80", "[::1]:", "[]:80", "fe80::1%et\nh0",
		strings.Repeat("a", 254), "work%00:80",
	} {
		if got, err := NormalizeAddr(addr); err == nil {
			t.Errorf("%q: got %q; want an error", addr, got)
		} else if strings.Contains(err.Error(), "rk") {
			t.Errorf("%q: got %v; want nothing of it in the error", addr, err)
		}
	}
}

// Over IPv6, with and without a zone.
func TestIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6 loopback to listen on: %v", err)
	}
	r := newRig(t)
	r.http.Listener.Close()
	go func() { _ = r.server.Serve(t.Context(), l) }()
	r.work.Port = 7373
	for _, host := range []string{"[::1]", "[::1%lo]"} {
		addr := strings.Replace(l.Addr().String(), "[::1]", host, 1)
		if _, _, _, err := r.client.EncKey(t.Context(), r.work, addr); err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if got := r.node.seen[len(r.node.seen)-1]; got != "work [::1]:7373" {
			t.Errorf("%s: got %q seen", addr, got)
		}
	}
}
