package lan

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestI3_EncKeyNeedsAHop(t *testing.T) {
	r := newRig(t)
	r.want(http.StatusUnauthorized, r.request("GET", "/v1/enc-key", ""))
	stranger := Caller{Host: "stranger", Key: r.keys["stranger"]}
	if _, _, _, err := r.client.EncKey(t.Context(), stranger, r.addr); !hasStatus(err, http.StatusUnauthorized) {
		t.Errorf("an unpaired host: got %v; want 401", err)
	}
	stranger.Host = "work" // a peer's name, with another key
	if _, _, _, err := r.client.EncKey(t.Context(), stranger, r.addr); !hasStatus(err, http.StatusUnauthorized) {
		t.Errorf("a stranger under a peer's name: got %v; want 401", err)
	}
	if len(r.node.seen) != 0 {
		t.Errorf("got %q seen; want none", r.node.seen)
	}
	host, pub, sig, err := r.client.EncKey(t.Context(), r.work, r.addr)
	if err != nil || host != "home" || pub != r.node.encPub || len(sig) != 88 {
		t.Errorf("a peer: got %s, %s, %s, %v", host, pub, sig, err)
	}
}

func hasStatus(err error, status int) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Status == status
}

func TestEverySignedCallRefusesABadHop(t *testing.T) {
	r := newRig(t)
	for path, method := range map[string]string{
		"/v2/envelopes": "POST", "/v1/receipts": "POST", "/v1/enc-key": "GET", "/v1/unpair": "POST",
	} {
		body := map[string]string{"/v2/envelopes": `{"envelopes":[]}`, "/v1/receipts": `{"receipts":[]}`}[path]
		for name, spoil := range map[string]func(*http.Request){
			"no headers":       func(q *http.Request) { q.Header = http.Header{} },
			"no host":          func(q *http.Request) { q.Header.Del(wire.HeaderHost) },
			"no time":          func(q *http.Request) { q.Header.Del(wire.HeaderTS) },
			"no signature":     func(q *http.Request) { q.Header.Del(wire.HeaderSig) },
			"two hosts":        func(q *http.Request) { q.Header.Add(wire.HeaderHost, "work") },
			"two times":        func(q *http.Request) { q.Header.Add(wire.HeaderTS, q.Header.Get(wire.HeaderTS)) },
			"two signatures":   func(q *http.Request) { q.Header.Add(wire.HeaderSig, q.Header.Get(wire.HeaderSig)) },
			"two ports":        func(q *http.Request) { q.Header["X-Mbx-Port"] = []string{"7373", "7373"} },
			"unknown host":     func(q *http.Request) { q.Header.Set(wire.HeaderHost, "elsewhere") },
			"not a host name":  func(q *http.Request) { q.Header.Set(wire.HeaderHost, "wo rk") },
			"another time":     func(q *http.Request) { q.Header.Set(wire.HeaderTS, "2026-10-02T12:34:57.001Z") },
			"time in ms":       func(q *http.Request) { q.Header.Set(wire.HeaderTS, "1790944497000") },
			"cut signature":    func(q *http.Request) { q.Header.Set(wire.HeaderSig, q.Header.Get(wire.HeaderSig)[:87]) },
			"not base64":       func(q *http.Request) { q.Header.Set(wire.HeaderSig, strings.Repeat("!", 88)) },
			"signed by others": func(q *http.Request) { r.sign(q, "stranger", method, path, body) },
			"another method":   func(q *http.Request) { r.sign(q, "work", "PUT", path, body) },
			"another path":     func(q *http.Request) { r.sign(q, "work", method, "/v1/status", body) },
			"another body":     func(q *http.Request) { r.sign(q, "work", method, path, body+" ") },
			"path with query":  func(q *http.Request) { r.signWhole(q, method, path+"?q=1", body) },
		} {
			t.Run(path+" "+name, func(t *testing.T) {
				req := r.signedRequest(method, path, body)
				spoil(req)
				r.want(http.StatusUnauthorized, req)
			})
		}
		r.want(http.StatusOK, r.signedRequest(method, path, body))
	}
	if len(r.node.seen) != 4 {
		t.Errorf("got %q seen; want the four good hops", r.node.seen)
	}
}

func (r *rig) sign(q *http.Request, key, method, path, body string) {
	_, sig := wire.SignLANHop(r.keys[key], method, path, []byte(body), day)
	q.Header.Set(wire.HeaderSig, sig)
}

// signWhole signs the path with its query, as a hop to a relay does.
func (r *rig) signWhole(q *http.Request, method, target, body string) {
	payload := method + "\n" + target + "\n" + wire.FormatTime(day) + "\n" + wire.HashHex([]byte(body))
	q.Header.Set(wire.HeaderSig, r.work.Key.Sign([]byte(payload)))
	q.URL.RawQuery = "q=1"
}

func TestPeerNamesWithoutCase(t *testing.T) {
	r := newRig(t)
	req := r.signedRequest("GET", "/v1/enc-key", "")
	req.Header.Set(wire.HeaderHost, "WORK")
	r.want(http.StatusOK, req)
}

func TestHopTimeIsFiveMinutesEitherWay(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		off    time.Duration
		status int
	}{
		{5 * time.Minute, 200}, {-5 * time.Minute, 200},
		{5*time.Minute + time.Millisecond, 401}, {-5*time.Minute - time.Millisecond, 401},
	} {
		req := r.signedRequest("GET", "/v1/enc-key", "")
		ts, sig := wire.SignLANHop(r.work.Key, "GET", "/v1/enc-key", nil, day.Add(tc.off))
		req.Header.Set(wire.HeaderTS, ts)
		req.Header.Set(wire.HeaderSig, sig)
		r.want(tc.status, req)
	}
}

// A hop that fails by name or time is answered with none of its body sent; one
// that does not is answered only when the body is there.
func TestHopOrder(t *testing.T) {
	r := newRig(t)
	head := func(host, ts string) string {
		return fmt.Sprintf("POST /v2/envelopes HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\nx-mbx-host: %s\r\nx-mbx-ts: %s\r\nx-mbx-sig: x\r\n\r\n", host, ts)
	}
	for name, text := range map[string]string{
		"unknown peer": head("elsewhere", wire.FormatTime(day)),
		"old time":     head("work", wire.FormatTime(day.Add(-time.Hour))),
	} {
		t.Run(name, func(t *testing.T) {
			conn := r.dial(text)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != http.StatusUnauthorized || !res.Close {
				t.Errorf("got %s, close %v; want 401 and a close", res.Status, res.Close)
			}
			conn.Close()
		})
	}
	if want := []string{"elsewhere", "work"}; len(r.node.asked) != 2 || !slices.Contains(r.node.asked, want[0]) || !slices.Contains(r.node.asked, want[1]) {
		t.Errorf("got %q looked up; want %q", r.node.asked, want)
	}

	// An unknown peer is not even told that its body is too large, nor is an old hop.
	big := strings.Repeat(" ", MaxBody+1)
	req := r.signedRequest("POST", "/v2/envelopes", big)
	req.Header.Set(wire.HeaderHost, "elsewhere")
	r.want(http.StatusUnauthorized, req)
	// A bad signature is found after the body.
	req = r.signedRequest("POST", "/v2/envelopes", big)
	req.Header.Set(wire.HeaderSig, strings.Repeat("A", 88))
	r.want(http.StatusRequestEntityTooLarge, req)
}

func TestPeerLookupFails(t *testing.T) {
	r := newRig(t)
	r.node.peer = errors.New("s3cr3t")
	if body := r.want(http.StatusInternalServerError, r.signedRequest("GET", "/v1/enc-key", "")); strings.Contains(body, "s3cr3t") {
		t.Errorf("got %s; want no text of the node", body)
	}
}

func TestSeen(t *testing.T) {
	r := newRig(t)
	for port, want := range map[string]string{
		"7373": "work 127.0.0.1:7373", "1": "work 127.0.0.1:1", "65535": "work 127.0.0.1:65535",
		"": "work ", "0": "work ", "65536": "work ", "-1": "work ", "+80": "work ", "080": "work ", "80 80": "work ", "http": "work ",
	} {
		req := r.signedRequest("GET", "/v1/enc-key", "")
		if port != "" {
			req.Header.Set(HeaderPort, port)
		}
		r.want(http.StatusOK, req)
		if got := r.node.seen[len(r.node.seen)-1]; got != want {
			t.Errorf("port %q: got %q; want %q", port, got, want)
		}
	}
}

func TestListensAt(t *testing.T) {
	for _, tc := range []struct{ remote, port, want string }{
		{"192.0.2.7:5000", "7373", "192.0.2.7:7373"},
		{"[2001:db8::1]:5000", "7373", "[2001:db8::1]:7373"},
		{"[fe80::1%eth0]:5000", "7373", "[fe80::1%eth0]:7373"},
		{"[::ffff:192.0.2.7]:5000", "7373", "192.0.2.7:7373"},
		{"@", "7373", ""},
	} {
		if got := listensAt(tc.remote, tc.port); got != tc.want {
			t.Errorf("%s %s: got %q; want %q", tc.remote, tc.port, got, tc.want)
		}
	}
}
