package server_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestForgedHops(t *testing.T) {
	r := newRig(t)
	alpha, beta, gone := r.enrol("alpha"), r.enrol("beta"), r.enrol("gone")
	must(r.relay.RevokeHost(t.Context(), gone.Pub(), relay.Deed{Actor: "test"}))
	body := encode(m{"items": []any{mail(alpha, beta)}})
	const path = "/v2/relay/items"
	before := r.snapshot(alpha, beta, gone)
	set := func(name, value string) func(*http.Request) {
		return func(q *http.Request) { q.Header.Set(name, value) }
	}
	resign := func(method, path string, body []byte, at time.Time) func(*http.Request) {
		return func(q *http.Request) {
			ts, sig := wire.SignHop(alpha.Key, method, path, body, at)
			q.Header.Set(wire.HeaderTS, ts)
			q.Header.Set(wire.HeaderSig, sig)
		}
	}
	send := func(b []byte) func(*http.Request) {
		return func(q *http.Request) {
			q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		}
	}
	now := r.clock()
	for name, spoil := range map[string]func(*http.Request){
		"no headers":         func(q *http.Request) { clear(q.Header) },
		"no signature":       func(q *http.Request) { q.Header.Del(wire.HeaderSig) },
		"no time":            func(q *http.Request) { q.Header.Del(wire.HeaderTS) },
		"no name and no key": func(q *http.Request) { q.Header.Del(wire.HeaderKey); q.Header.Del(wire.HeaderHost) },
		"another's key":      set(wire.HeaderKey, beta.Pub().String()),
		"an unknown key":     set(wire.HeaderKey, wire.PublicKey{7}.String()),
		"no key at all":      set(wire.HeaderKey, "x"),
		"an endless key":     set(wire.HeaderKey, strings.Repeat("A", 8000)),
		"a revoked key":      set(wire.HeaderKey, gone.Pub().String()),
		"unpadded signature": func(q *http.Request) {
			q.Header.Set(wire.HeaderSig, strings.TrimRight(q.Header.Get(wire.HeaderSig), "="))
		},
		"an endless signature":  set(wire.HeaderSig, strings.Repeat("A", 8000)),
		"other method":          resign("GET", path, body, now),
		"other path":            resign("POST", "/v2/relay/ack", body, now),
		"v1 path":               resign("POST", "/v1/relay/messages", body, now),
		"a query that isn't":    resign("POST", path+"?", body, now),
		"other body":            resign("POST", path, body[1:], now),
		"no body signed":        resign("POST", path, nil, now),
		"too old":               resign("POST", path, body, now.Add(-301*time.Second)),
		"too new":               resign("POST", path, body, now.Add(301*time.Second)),
		"altered body":          send(bytes.Replace(body, []byte("envelope"), []byte("receipts"), 1)),
		"longer body":           send(append(body[:len(body):len(body)], ' ')),
		"no body":               func(q *http.Request) { q.Body, q.ContentLength = http.NoBody, 0 },
		"altered time":          set(wire.HeaderTS, "1790000000000"),
		"time NaN":              set(wire.HeaderTS, "NaN"),
		"time with a fraction":  set(wire.HeaderTS, "1790942400000.0"),
		"negative time":         set(wire.HeaderTS, "-1"),
		"endless time":          set(wire.HeaderTS, strings.Repeat("1", 5000)),
		"key twice":             func(q *http.Request) { q.Header.Add(wire.HeaderKey, alpha.Pub().String()) },
		"host twice":            func(q *http.Request) { q.Header.Add(wire.HeaderHost, "alpha") },
		"time twice":            func(q *http.Request) { q.Header.Add(wire.HeaderTS, q.Header.Get(wire.HeaderTS)) },
		"signature twice":       func(q *http.Request) { q.Header.Add(wire.HeaderSig, q.Header.Get(wire.HeaderSig)) },
		"a query nobody signed": func(q *http.Request) { q.URL.RawQuery = "x=1" },
		"escaped path":          func(q *http.Request) { q.URL.Opaque = "//" + q.Host + "/v2/relay/%69tems" },
	} {
		q := r.request(alpha, "POST", path, body)
		spoil(q)
		if p := r.do(q); p.status != 401 || string(p.body) != `{"error":"bad relay hop"}` {
			t.Errorf("%s: got %d %s; want 401 bad relay hop", name, p.status, p.body)
		}
	}
	same(t, "the store", r.snapshot(alpha, beta, gone), before)
	q := r.request(alpha, "POST", path, body)
	q.Header.Set(wire.HeaderHost, "whoever") // a label: the key is the caller
	same(t, "unspoilt", r.do(q).results()[0].Status, "accepted")
	r.do(r.request(alpha, "POST", path, body)).is(200) // a replay: harmless
}

func TestWhatIsSignedIsTheTargetAsSent(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	for _, target := range []string{
		"/v2/relay/items?", "/v2/relay/items?after=0&&x=%7e~&epoch=", "/v2/relay/items?a=%2F/?b", "/v2/relay/items?after=%30", "/v2/relay/items?x='\"<>|{}^`;",
	} {
		c := r.dial()
		must(io.WriteString(c, r.rawHead(alpha, "GET", target, nil, "Connection: close")))
		answer := string(must(io.ReadAll(c)))
		if !strings.HasPrefix(answer, "HTTP/1.1 200 OK\r\n") {
			t.Errorf("%s: got %q; want 200", target, answer)
		}
	}
	// v1 signs the bare path: its query may change on the way.
	q := r.request(alpha, "GET", "/v1/relay/messages?after=0", nil)
	q.URL.RawQuery = "after=1"
	r.do(q).is(200).says(`{"items":[],"cursor":0}`)
	// The body of a GET is signed like any other.
	r.call(alpha, "GET", "/v2/relay/items?after=0", "hello").is(200)
	// What is not UTF-8 is signed as a JavaScript text decoder reads it.
	r.call(alpha, "POST", "/v2/relay/ack", []byte("{\"epoch\":\"\xff\xc3\"}")).is(400, "BAD_JSON")
}

func TestUnknownPaths(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	for _, x := range []struct{ method, target string }{
		{"GET", "/"}, {"GET", "/metrics"}, {"GET", "/v2/relay/deny"}, {"GET", "/v2/relay/items/"}, {"GET", "/v2/relay//items"}, {"GET", "/V2/relay/items"},
		{"GET", "/v2/relay/../relay/items"}, {"PUT", "/v2/relay/items"}, {"POST", "/v2/relay/info"}, {"GET", "/v1/relay/enrol"}, {"DELETE", "/v1/relay/messages"},
		{"POST", "/healthz"}, {"GET", "/v2/relay/ack?x=1"}, {"get", "/v2/relay/info"}, {"GET", "/v1/nothing?x=1"},
	} {
		q := r.request(nil, x.method, x.target, nil)
		r.do(q).is(401).says(`{"error":"bad relay hop"}`)
		r.call(alpha, x.method, x.target, nil).is(404).says(`{"error":"not found","code":"NOT_FOUND"}`)
	}
}

func TestAnswerHeadersAndLog(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	p := r.call(alpha, "GET", "/v2/relay/items?after=0&epoch=secret-query", nil).is(409)
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		same(t, name, p.header.Get(name), want)
	}
	if p.header.Get("Date") == "" {
		t.Error("there is no Date")
	}
	id := p.header.Get("X-Request-Id")
	r.eventually("the request is in the log", func() bool {
		return len(r.logs.find(map[string]string{
			"id": id, "msg": "request", "level": "DEBUG", "method": "GET", "path": "/v2/relay/items", "status": "409", "key": alpha.Pub().Fingerprint(),
		})) == 1
	})
	text := r.logs.text()
	for _, secret := range []string{"secret-query", alpha.Pub().String()} {
		if strings.Contains(text, secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	other := r.call(alpha, "GET", "/healthz", nil).is(200).says(`{"ok":true}`)
	if other.header.Get("X-Request-Id") == id {
		t.Error("two requests have one id")
	}
}
