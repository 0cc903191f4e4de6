package relayclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The tests of this file call relays that lie, stall or break off.

func TestEveryCallTakesItsGoodAnswer(t *testing.T) {
	t.Parallel()
	for _, m := range methods() {
		c, _ := liar(t, says(200, " "+strings.TrimSuffix(m.good, "}")+`,"later":{"x":[1e3]}}`+"\n"))
		if err := m.call(t.Context(), c); err != nil {
			t.Errorf("%s: got %v; want its answer taken", m.name, err)
		}
	}
}

func TestEveryCallAgainstHostileAnswers(t *testing.T) {
	t.Parallel()
	bad, unreachable := relayclient.ErrBadAnswer, relayclient.ErrUnreachable
	type hostile struct {
		name   string
		answer func(good string) http.HandlerFunc
		want   error // nil: a StatusError of status
		status int
	}
	body := func(f func(good string) string) func(string) http.HandlerFunc {
		return func(good string) http.HandlerFunc { return says(200, f(good)) }
	}
	fixed := func(s string) func(string) http.HandlerFunc {
		return func(string) http.HandlerFunc { return says(200, s) }
	}
	always := func(h http.HandlerFunc) func(string) http.HandlerFunc {
		return func(string) http.HandlerFunc { return h }
	}
	reset := func(w http.ResponseWriter, r *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	for _, h := range []hostile{
		{"html", fixed("<!doctype html><title>It works!</title>"), bad, 0},
		{"nothing", fixed(""), bad, 0},
		{"null", fixed("null"), bad, 0},
		{"an array", fixed("[]"), bad, 0},
		{"a string", fixed(`"ok"`), bad, 0},
		{"a number", fixed("1e999"), bad, 0},
		{"no members", fixed("{}"), bad, 0},
		{"refused with 200", fixed(`{"error":"no","code":"DENIED"}`), bad, 0},
		{"cut", body(func(g string) string { return g[:len(g)-1] }), bad, 0},
		{"trailing data", body(func(g string) string { return g + "{}" }), bad, 0},
		{"a byte order mark", body(func(g string) string { return "\ufeff" + g }), bad, 0},
		{"a duplicated member", body(func(g string) string { return strings.Replace(g, "{", `{"x":1,"x":2,`, 1) }), bad, 0},
		{"a member twice", body(func(g string) string { return strings.TrimSuffix(g, "}") + "," + strings.TrimPrefix(g, "{") }), bad, 0},
		{"a member in capitals", body(func(g string) string { return strings.ToUpper(g[:3]) + g[3:] }), bad, 0},
		{"invalid utf-8", body(func(g string) string { return strings.Replace(g, "{", "{\"x\":\"\xff\",", 1) }), bad, 0},
		{"a lone surrogate", body(func(g string) string { return strings.Replace(g, "{", `{"x":"\ud800",`, 1) }), bad, 0},
		{"deep nesting", fixed(strings.Repeat("[", 30_000)), bad, 0},
		{"deep objects", fixed(strings.Repeat(`{"items":`, 5_000) + "1" + strings.Repeat("}", 5_000)), bad, 0},
		{"5 MB", always(megabytes(5, false)), bad, 0},
		{"40 MB", always(megabytes(40, false)), bad, 0},
		{"40 MB announced", always(megabytes(40, true)), bad, 0},
		{"a length of 2^62", always(raw("HTTP/1.1 200 OK\r\nContent-Length: 4611686018427387904\r\n\r\n{")), bad, 0},
		{"gzip", func(g string) http.HandlerFunc {
			return raw("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00")
		}, bad, 0},
		{"a body that breaks off", func(g string) http.HandlerFunc {
			return raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(g)+1, g))
		}, unreachable, 0},
		{"a body longer than its length", func(g string) http.HandlerFunc {
			return raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(g)-1, g))
		}, bad, 0},
		{"chunks that break off", always(raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")), unreachable, 0},
		{"chunks that are none", always(raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")), unreachable, 0},
		{"no http", always(raw("\x00\x1b[31mSSH-2.0-" + strings.Repeat("\u202e", 5000) + "\r\n\r\n")), unreachable, 0},
		{"a huge header", always(raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n{}")), unreachable, 0},
		{"a closed connection", always(raw("")), unreachable, 0},
		{"a reset connection", always(reset), unreachable, 0},
		{"a redirect", always(raw("HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")), nil, 307},
		{"a redirect to nowhere", always(raw("HTTP/1.1 302 X\r\nLocation: http://%zz\r\n\r\n")), nil, 302},
		{"another protocol", always(raw("HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")), nil, 101},
		{"another success", func(g string) http.HandlerFunc { return says(202, g) }, nil, 202},
		{"no content", always(says(204, "")), nil, 204},
		{"a gateway's page", always(says(502, "<html>")), nil, 502},
		{"a refusal that breaks off", always(raw("HTTP/1.1 503 X\r\nContent-Length: 9\r\n\r\n{")), nil, 503},
		{"a refusal of 5 MB", func(g string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(500)
				megabytes(5, false)(w, r)
			}
		}, nil, 500},
		{"a refusal of other types", always(says(413, `{"error":[],"code":7,"epoch":{},"head_seq":"1","stored":"0"}`)), nil, 413},
		{"a refusal that repeats the proof", always(says(403, `{"error":"\u001b[2J `+strings.Repeat("no ", 40)+`eyJhbGciOiJFZERTQSJ9.very-secret-account-token.c2ln`+strings.Repeat("\u202e", 500)+`","code":"eyJhbGciOiJFZERTQSJ9","epoch":"very-secret-account-token"}`)), nil, 403},
		{"a first line that repeats the proof", always(raw("very-secret-account-token \x1b[2J\r\n\r\n")), unreachable, 0},
	} {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			for _, m := range methods() {
				c, _ := liar(t, h.answer(m.good))
				err := m.call(t.Context(), c)
				if h.want != nil && !errors.Is(err, h.want) {
					t.Errorf("%s: got %v; want %v", m.name, err, h.want)
				}
				var e *relayclient.StatusError
				if h.want == nil && (!errors.As(err, &e) || e.Status != h.status) {
					t.Errorf("%s: got %v; want status %d", m.name, err, h.status)
				}
				fit(t, m.name, err)
			}
		})
	}
}

// fit checks that an error may be shown and logged.
func fit(t *testing.T, what string, err error) {
	t.Helper()
	for ; err != nil; err = errors.Unwrap(err) {
		s := err.Error()
		if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) || wire.UTF16Len(s) > 300 {
			t.Errorf("%s: an error that cannot be shown: %q", what, s)
		}
		if strings.Contains(s, "secret") && strings.Contains(what, "Enrol") || strings.Contains(s, us.Key.Seed()) {
			t.Errorf("%s: an error that repeats a secret: %q", what, s)
		}
	}
}

func TestRelayThatHangs(t *testing.T) {
	t.Parallel()
	for _, m := range methods() {
		for name, begin := range map[string]string{"header": "", "body": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "refusal": "HTTP/1.1 409 X\r\nContent-Length: 100\r\n\r\n{"} {
			entered, leave := make(chan struct{}, 1), make(chan struct{})
			_, s := liar(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				c, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					panic(err)
				}
				defer c.Close()
				io.WriteString(c, begin)
				entered <- struct{}{}
				<-leave
			})
			c := must(relayclient.New(s.URL, relayclient.Options{}))
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-entered; cancel() }()
			err := m.call(ctx, c)
			if !errors.Is(err, relayclient.ErrUnreachable) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s, cancelled: got %v; want it unreachable and cancelled", m.name, name, err)
			}
			if m.name != "Pull" { // which adds its wait of a second
				c = must(relayclient.New(s.URL, relayclient.Options{Timeout: 20 * time.Millisecond}))
				err = m.call(t.Context(), c)
				if !errors.Is(err, relayclient.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s, %s, timeout: got %v; want it unreachable and late", m.name, name, err)
				}
			}
			fit(t, m.name, err)
			close(leave)
			c.Close()
		}
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	c := must(relayclient.New("http://"+l.Addr().String(), relayclient.Options{}))
	l.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, m := range methods() {
		if err := m.call(t.Context(), c); !errors.Is(err, relayclient.ErrUnreachable) {
			t.Errorf("%s: got %v; want it unreachable", m.name, err)
		}
		if err := m.call(ended, c); !errors.Is(err, relayclient.ErrUnreachable) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled before: got %v; want it unreachable and cancelled", m.name, err)
		}
	}
}

func TestCertificateOfNobody(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(says(200, `{"ok":true}`))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	c := must(relayclient.New(s.URL, relayclient.Options{}))
	defer c.Close()
	if err := c.V1Ack(t.Context(), caller(us), 1); !errors.Is(err, relayclient.ErrUnreachable) {
		t.Errorf("a certificate that nobody signed: got %v; want it unreachable", err)
	}
	c = must(relayclient.New(s.URL, relayclient.Options{Transport: s.Client().Transport}))
	if err := c.V1Ack(t.Context(), caller(us), 1); err != nil {
		t.Errorf("a transport that trusts it: %v", err)
	}
}

func TestCallerWithoutKeyOrName(t *testing.T) {
	t.Parallel()
	c, _ := liar(t, says(200, `{"ok":true}`))
	for name, who := range map[string]relayclient.Caller{"no key": {Host: "alpha"}, "a bad name": {Host: "al\r\npha", Key: us.Key}} {
		if _, err := c.Ack(t.Context(), who, "e", 1); err == nil {
			t.Errorf("%s: a call was signed", name)
		}
	}
	if err := c.Enrol(t.Context(), relayclient.Caller{Host: "alpha"}, "", "c", nil); err == nil {
		t.Error("enrolled without a key")
	}
}

func TestHopsAreSignedOverWhatIsSent(t *testing.T) {
	t.Parallel()
	now := t0.Add(time.Millisecond)
	for _, m := range methods() {
		var got struct {
			method, target string
			header         http.Header
			body           []byte
		}
		_, s := liar(t, func(w http.ResponseWriter, r *http.Request) {
			got.method, got.target, got.header = r.Method, r.RequestURI, r.Header
			got.body, _ = io.ReadAll(r.Body)
			io.WriteString(w, m.good)
		})
		c := must(relayclient.New(s.URL, relayclient.Options{Now: func() time.Time { return now }}))
		if err := m.call(t.Context(), c); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		c.Close()
		h := got.header
		if m.name == "Info" || m.name == "Challenge" || m.name == "Enrol" || m.name == "Rotate" {
			same(t, m.name+": signed", len(h["X-Mbx-Host"])+len(h["X-Mbx-Key"])+len(h["X-Mbx-Ts"])+len(h["X-Mbx-Sig"]), 0)
			continue
		}
		path, key := got.target, us.Pub().String()
		if strings.HasPrefix(path, "/v1/") {
			path, _, _ = strings.Cut(path, "?")
		}
		if strings.HasPrefix(m.name, "V1") {
			key = ""
		}
		same(t, m.name+": host, key and time", h.Get(wire.HeaderHost)+" "+h.Get(wire.HeaderKey)+" "+h.Get(wire.HeaderTS), fmt.Sprintf("alpha %s %d", key, now.UnixMilli()))
		same(t, m.name+": signature", wire.VerifyHop(us.Pub(), h.Get(wire.HeaderSig), got.method, path, h.Get(wire.HeaderTS), got.body), true)
	}
}
