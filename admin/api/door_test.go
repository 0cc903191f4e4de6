package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/relay/ratelimit"
)

const (
	fullToken    = "the-full-token-of-this-test"
	readingToken = "the-reading-token-of-this-test"
)

func hashOf(token string) TokenHash { return sha256.Sum256([]byte(token)) }

// open serves a fake through a door on loopback until the test ends. Whatever is
// logged must hold nothing of a token.
func open(t *testing.T, change func(*Door)) (f *fake, address string) {
	t.Helper()
	f = &fake{}
	var lines bytes.Buffer
	d := &Door{Address: "127.0.0.1:0", Service: f, Token: hashOf(fullToken), ReadOnlyToken: hashOf(readingToken),
		Log: slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(d)
	}
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v; want nil after a stop", err)
		}
		for _, secret := range []string{fullToken, readingToken, "guess", fmt.Sprintf("%x", hashOf(fullToken))[:8]} {
			if strings.Contains(lines.String(), secret) {
				t.Errorf("the log holds %q:\n%s", secret, lines.String())
			}
		}
	})
	return f, l.Addr().String()
}

func remote(t *testing.T, url, token string) *Client {
	t.Helper()
	c, err := Remote(url, token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// Every call crosses over TCP; what changes something is recorded as from there.
func TestEveryCallOverTCP(t *testing.T) {
	t.Parallel()
	f, address := open(t, nil)
	eachCall(t, remote(t, "http://"+address, fullToken), func(call string, args []any, _ any, err error) {
		got, gotArgs := f.asked()
		if err != nil || got != call {
			t.Errorf("%s: got %v, asked %q; want nil", call, err, got)
		}
		if admin.AccessOf(call) == admin.Reads {
			if !reflect.DeepEqual(gotArgs, args) {
				t.Errorf("%s: asked with %+v; want %+v", call, gotArgs, args)
			}
			return
		}
		if want := "tcp:127.0.0.1 a text of"; !strings.Contains(fmt.Sprintf("%+v", gotArgs), want) {
			t.Errorf("%s: asked with %+v; want an actor that begins %q", call, gotArgs, want)
		}
	})
	// Who names nobody is nobody from there, too.
	if _, err := remote(t, "http://"+address, fullToken).StartJob(t.Context(), jobs.Request{Job: "sweep", By: " "}); err != nil {
		t.Fatal(err)
	}
	if _, args := f.asked(); args[0].(jobs.Request).By != " " {
		t.Errorf("got %+v; want an actor that the Service refuses", args)
	}
}

func TestReadOnlyTokenReadsOnly(t *testing.T) {
	t.Parallel()
	f, address := open(t, nil)
	eachCall(t, remote(t, "http://"+address, readingToken), func(call string, _ []any, _ any, err error) {
		got, _ := f.asked()
		if writes := admin.AccessOf(call) == admin.Writes; writes && (!errors.Is(err, admin.ErrRefused) || got != "") || !writes && err != nil {
			t.Errorf("%s: got %v and %q of the service; want reads only", call, err, got)
		}
	})
}

// newGuard is a guard without a listener, whose clock is the caller's.
func newGuard(f *fake, now *time.Time) *guard {
	quiet := slog.New(slog.DiscardHandler)
	return &guard{
		full: newHandler(f, quiet, usualTimes), reading: newHandler(admin.ReadOnly(f), quiet, usualTimes),
		token: hashOf(fullToken), readOnlyToken: hashOf(readingToken), log: quiet, now: func() time.Time { return *now },
		failures: ratelimit.New(maxFailures, maxAddresses), lines: ratelimit.New(maxLines, 1),
	}
}

func try(g *guard, from, target string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr = from
	r.Header = header
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func TestGuard(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	for _, tt := range []struct {
		name   string
		target string
		header http.Header
		want   int
	}{
		{"the full token", "/v1/status", bearer(fullToken), 200},
		{"the reading token", "/v1/status", bearer(readingToken), 200},
		{"a scheme in small letters", "/v1/status", http.Header{"Authorization": {"bearer " + fullToken}}, 200},
		{"another host", "http://elsewhere.example/v1/status", bearer(fullToken), 200},
		{"no token", "/v1/status", http.Header{}, 401},
		{"no token, no such call", "/v1/none", http.Header{}, 401},
		{"a wrong token", "/v1/status", bearer("a-guess-that-is-wrong"), 401},
		{"the hash in place of the token", "/v1/status", bearer(fmt.Sprintf("%x", hashOf(fullToken))), 401},
		{"a token and more", "/v1/status", bearer(fullToken + " "), 401},
		{"an empty token", "/v1/status", bearer(""), 401},
		{"another scheme", "/v1/status", http.Header{"Authorization": {"Digest " + fullToken}}, 401},
		{"two headers", "/v1/status", http.Header{"Authorization": {"Bearer " + fullToken, "Bearer " + fullToken}}, 401},
		{"a token of 5000 bytes", "/v1/status", bearer(strings.Repeat("x", 5000)), 401},
		{"a token that is no text", "/v1/status", bearer("\xff\xfe\x01aaaaaaaaaaaaaaaaaa"), 401},
		{"the right token in the query, too", "/v1/status?token=" + fullToken, bearer(fullToken), 400},
		{"in the query only", "/v1/status?access_token=" + fullToken, http.Header{}, 400},
		{"in the query, escaped", "/v1/status?a=b&%74oken=" + fullToken, http.Header{}, 400},
		{"in the query, in capitals", "/v1/status?TOKEN=" + fullToken, http.Header{}, 400},
		{"one of ours in the path", "/v1/status/mbxa_" + strings.Repeat("0a", 32), bearer(fullToken), 400},
		{"one of ours under any name", "/v1/status?x=mbxa_" + strings.Repeat("0a", 32), bearer(fullToken), 400},
		{"before the host", "/v1/status", http.Header{"Authorization": {"Basic OnRva2Vu"}}, 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := try(newGuard(&fake{}, &now), "192.0.2.1:1000", tt.target, tt.header)
			if w.Code != tt.want || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("got %d, %v; want %d, not to be stored", w.Code, w.Header(), tt.want)
			}
			if w.Code == 400 && !strings.Contains(w.Body.String(), "replace that token") {
				t.Errorf("got %s; want the advice to replace the token", w.Body)
			}
			if (w.Code == 401) != (w.Header().Get("WWW-Authenticate") == "Bearer") {
				t.Errorf("got %v; want a challenge with 401 only", w.Header())
			}
			if (w.Code == 200) == (w.Header().Get("Connection") == "close") {
				t.Errorf("got %v; want the connection closed unless the token is right", w.Header())
			}
			if strings.Contains(w.Body.String(), fullToken) || w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("got %v %s; want nothing of the token, and no other origins", w.Header(), w.Body)
			}
		})
	}
}

// Failed tries end at ten a minute from one address, with the right token too;
// another address is not touched by that, and right tries are not counted.
func TestFailedTriesAreLimited(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	g := newGuard(&fake{}, &now)
	for i := range 50 {
		if w := try(g, "192.0.2.1:1", "/v1/status", bearer(fullToken)); w.Code != 200 {
			t.Fatalf("right try %d: got %d; want 200", i, w.Code)
		}
	}
	for i := range maxFailures {
		if w := try(g, fmt.Sprintf("192.0.2.1:%d", 1000+i), "/v1/status", bearer("a-guess-that-is-wrong")); w.Code != 401 {
			t.Fatalf("wrong try %d: got %d; want 401", i, w.Code)
		}
	}
	w := try(g, "192.0.2.1:1", "/v1/status", bearer(fullToken))
	if w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("after the limit: got %d, %v; want 429 and when to come again", w.Code, w.Header())
	}
	if w := try(g, "192.0.2.2:1", "/v1/status", bearer(fullToken)); w.Code != 200 {
		t.Errorf("another address: got %d; want 200", w.Code)
	}
	now = now.Add(time.Minute)
	if w := try(g, "192.0.2.1:1", "/v1/status", bearer(fullToken)); w.Code != 200 {
		t.Errorf("a minute later: got %d; want 200", w.Code)
	}
	for i := range maxFailures { // one client has a whole /64
		try(g, fmt.Sprintf("[2001:db8::%d]:1", i), "/v1/status?token=x", nil)
	}
	if w := try(g, "[2001:db8::ffff]:1", "/v1/status", bearer(fullToken)); w.Code != 429 {
		t.Errorf("from the same /64: got %d; want 429", w.Code)
	}
}

func TestDoorRefusesToOpen(t *testing.T) {
	t.Parallel()
	files := newCertFiles(t)
	for _, tt := range []struct {
		name   string
		change func(*Door)
		want   string
	}{
		{"without a token", func(d *Door) { d.Token, d.ReadOnlyToken = TokenHash{}, TokenHash{} }, "relay admin token"},
		{"with one token for both", func(d *Door) { d.ReadOnlyToken = d.Token }, "are the same"},
		{"to other machines without TLS", func(d *Door) { d.Address = "0.0.0.0:0" }, "without TLS"},
		{"to all addresses without TLS", func(d *Door) { d.Address = ":0" }, "without TLS"},
		{"to IPv6 without TLS", func(d *Door) { d.Address = "[::]:0" }, "without TLS"},
		{"with half a certificate", func(d *Door) { d.CertFile = files.cert }, "belong together"},
		{"with a certificate that is not there", func(d *Door) { d.CertFile, d.KeyFile = files.cert+"x", files.key }, "no such file"},
		{"with files swapped", func(d *Door) { d.CertFile, d.KeyFile = files.key, files.cert }, "no certificate and its key"},
		{"with a folder", func(d *Door) { d.CertFile, d.KeyFile = t.TempDir(), files.key }, "is not a file"},
		{"on no address", func(d *Door) { d.Address = "here" }, "address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &Door{Address: "127.0.0.1:0", Token: hashOf(fullToken), Log: slog.New(slog.DiscardHandler)}
			tt.change(d)
			if err := d.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Check: got %v; want %q", err, tt.want)
			}
			if l, err := d.Listen(); err == nil {
				l.Close()
				t.Error("Listen: got nil; want an error")
			}
		})
	}
	d := &Door{Address: "0.0.0.0:0", Token: hashOf(fullToken), CertFile: files.cert, KeyFile: files.key, Log: slog.New(slog.DiscardHandler)}
	if err := d.Check(); err != nil {
		t.Errorf("to other machines with TLS: got %v; want nil", err)
	}
}

func TestParseTokenHash(t *testing.T) {
	t.Parallel()
	if h, err := ParseTokenHash(fmt.Sprintf("%x", hashOf("x"))); err != nil || h != hashOf("x") {
		t.Errorf("got %x, %v; want the hash", h, err)
	}
	for _, bad := range []string{"", "abc", fullToken, strings.Repeat("g", 64), strings.Repeat("0", 64), strings.Repeat("a", 66),
		"mbxa_" + strings.Repeat("a", 64), "mbxa_" + strings.Repeat("a", 59), fmt.Sprintf("%x", hashOf("")), strings.ToUpper(fmt.Sprintf("%x", hashOf(""))), fmt.Sprintf("%x", hashOf("\n"))} {
		if _, err := ParseTokenHash(bad); err == nil || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: got %v; want an error that does not repeat it", bad, err)
		}
	}
}

// What is no HTTP gets no more than a word, and the door stays open.
func TestGarbageAtTheDoor(t *testing.T) {
	t.Parallel()
	_, address := open(t, nil)
	for _, garbage := range []string{
		"\x00\xff\x16\x03\x01garbage\r\n\r\n",
		"GET /v1/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + strings.Repeat("x", maxHeaderBytes+8192) + "\r\n\r\n",
		"GET http://" + fullToken + "@x/v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
	} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, garbage); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.LimitReader(c, 1<<20))
		if err == nil && (strings.HasPrefix(string(b), "HTTP/1.1 2") || len(b) > 1000) {
			t.Errorf("%.30q: got %q; want a refusal", garbage, b)
		}
		c.Close()
	}
	if _, err := remote(t, "http://"+address, fullToken).Status(t.Context()); err != nil {
		t.Errorf("Status: got %v; want nil", err)
	}
}
