package server

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestClientAddr(t *testing.T) {
	const xff, cf, real = "X-Forwarded-For", "Cf-Connecting-Ip", "X-Real-Ip"
	for _, x := range []struct {
		name   string
		trust  TrustMode
		socket string
		header string
		lines  []string
		want   string
	}{
		{"socket", TrustNone, "1.2.3.4:5", "", nil, "1.2.3.4"},
		{"socket v6", TrustNone, "[2001:db8:1:2:3::4]:5", "", nil, "2001:db8:1:2::/64"},
		{"socket with zone", TrustNone, "[fe80::1%eth0]:5", "", nil, "fe80::/64"},
		{"socket mapped", TrustNone, "[::ffff:1.2.3.4]:5", "", nil, "1.2.3.4"},
		{"unix socket", TrustNone, "@", "", nil, "@"},
		{"untrusted", TrustNone, "1.2.3.4:5", xff, []string{"6.6.6.6"}, "1.2.3.4"},
		{"other header", TrustXFF, "1.2.3.4:5", real, []string{"6.6.6.6"}, "1.2.3.4"},
		{"xff", TrustXFF, "1.2.3.4:5", xff, []string{"6.6.6.6"}, "6.6.6.6"},
		{"xff rightmost", TrustXFF, "1.2.3.4:5", xff, []string{"6.6.6.6,7.7.7.7 ,\t8.8.8.8 "}, "8.8.8.8"},
		{"xff last line", TrustXFF, "1.2.3.4:5", xff, []string{"6.6.6.6", "7.7.7.7, 9.9.9.9"}, "9.9.9.9"},
		{"xff empty entry", TrustXFF, "1.2.3.4:5", xff, []string{"6.6.6.6,"}, "1.2.3.4"},
		{"xff junk", TrustXFF, "1.2.3.4:5", xff, []string{"6.6.6.6, unknown"}, "1.2.3.4"},
		{"xff with port", TrustXFF, "1.2.3.4:5", xff, []string{"6.6.6.6:7"}, "6.6.6.6"},
		{"xff v6", TrustXFF, "1.2.3.4:5", xff, []string{"2001:db8::1"}, "2001:db8::/64"},
		{"xff v6 in brackets", TrustXFF, "1.2.3.4:5", xff, []string{"[2001:db8::1]"}, "2001:db8::/64"},
		{"xff v6 with port", TrustXFF, "1.2.3.4:5", xff, []string{"[2001:db8::1%x]:99"}, "2001:db8::/64"},
		{"v4 in brackets", TrustXFF, "1.2.3.4:5", xff, []string{"[6.6.6.6]"}, "1.2.3.4"},
		{"open bracket", TrustXFF, "1.2.3.4:5", xff, []string{"[2001:db8::1"}, "1.2.3.4"},
		{"unspecified", TrustXFF, "1.2.3.4:5", xff, []string{"::"}, "1.2.3.4"},
		{"cloudflare", TrustCloudflare, "1.2.3.4:5", cf, []string{" 6.6.6.6 "}, "6.6.6.6"},
		{"cloudflare list", TrustCloudflare, "1.2.3.4:5", cf, []string{"6.6.6.6, 7.7.7.7"}, "1.2.3.4"},
		{"cloudflare twice", TrustCloudflare, "1.2.3.4:5", cf, []string{"6.6.6.6", "7.7.7.7"}, "1.2.3.4"},
		{"real-ip", TrustRealIP, "1.2.3.4:5", real, []string{"::ffff:6.6.6.6"}, "6.6.6.6"},
		{"real-ip missing", TrustRealIP, "1.2.3.4:5", xff, []string{"6.6.6.6"}, "1.2.3.4"},
		{"real-ip in octal", TrustRealIP, "1.2.3.4:5", real, []string{"06.6.6.6"}, "1.2.3.4"},
	} {
		r := &http.Request{RemoteAddr: x.socket, Header: http.Header{}}
		if x.header != "" {
			r.Header[x.header] = x.lines
		}
		if got := clientAddr(r, x.trust); got != x.want {
			t.Errorf("%s: got %q; want %q", x.name, got, x.want)
		}
	}
}

func FuzzClientAddr(f *testing.F) {
	for _, s := range []string{"1.2.3.4", "[::1]:80", "a, b", "fe80::1%eth0", "::ffff:1.2.3.4", "[1.2.3.4]:1"} {
		f.Add(s, "xff", s)
		f.Add("9.9.9.9:1", "real-ip", s)
	}
	f.Fuzz(func(t *testing.T, socket, trust, header string) {
		r := &http.Request{RemoteAddr: socket, Header: http.Header{
			"X-Forwarded-For": {header}, "Cf-Connecting-Ip": {header}, "X-Real-Ip": {header},
		}}
		got := clientAddr(r, TrustMode(trust))
		if got == socket {
			return
		}
		if p, err := netip.ParsePrefix(got); err == nil && p.Bits() == 64 && p.Masked() == p && p.Addr().Is6() {
			return
		}
		if a, err := netip.ParseAddr(got); err != nil || !a.Is4() {
			t.Errorf("%q, %q, %q: got %q; want an IPv4 address or a /64", socket, trust, header, got)
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, s := range []string{"", "after=1&limit=2&epoch=x&wait=3", "after=1&after=2", "%61fter=1", "after=%31", "a=;b&&=", "after=-1", "%zz", "epoch=%zz", "after=+1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		c := &call{query: query}
		got, err := c.parameters("after", "epoch")
		if err != nil {
			return
		}
		n, err := integer(got, "after")
		if err != nil {
			return
		}
		if n < 0 || n > maxInteger {
			t.Errorf("%q: after is %d", query, n)
		}
		again := &call{query: query + "&after=1"}
		if _, had := got["after"]; had {
			if _, err := again.parameters("after"); err == nil {
				t.Errorf("%q and another after: got no error", query)
			}
		} else if q, err := again.parameters("after"); err != nil || q["after"] != "1" {
			t.Errorf("%q and an after: got %q, %v", query, q, err)
		}
		if len(got) == 0 && strings.HasPrefix(query, "after=") {
			t.Errorf("%q: found nothing", query)
		}
	})
}

func FuzzHopHeaders(f *testing.F) {
	f.Add("alpha", "key", "1", "sig", uint8(0))
	f.Add("", "", "", "", uint8(15))
	f.Fuzz(func(t *testing.T, host, key, ts, sig string, twice uint8) {
		h := http.Header{"X-Mbx-Host": {host}, "X-Mbx-Key": {key}, "X-Mbx-Ts": {ts}, "X-Mbx-Sig": {sig}}
		for i, name := range []string{"X-Mbx-Host", "X-Mbx-Key", "X-Mbx-Ts", "X-Mbx-Sig"} {
			if twice&(1<<i) != 0 {
				h[name] = append(h[name], h[name]...)
			}
		}
		hop, ok := hopHeaders(h)
		if ok != (twice&15 == 0) {
			t.Fatalf("twice %b: got ok %v", twice, ok)
		}
		if ok && (hop.Host != host || hop.Key != key || hop.TS != ts || hop.Sig != sig) {
			t.Errorf("got %+v", hop)
		}
	})
}
