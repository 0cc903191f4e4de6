package api

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/admin"
)

func TestRemoteURL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ url, token, want string }{
		{"https://relay.example:7375", fullToken, ""},
		{"https://relay.example/desk/", fullToken, ""},
		{"http://127.0.0.1:7375", fullToken, ""},
		{"http://[::1]:7375", fullToken, ""},
		{"http://localhost:7375", fullToken, ""},
		{"http://relay.example:7375", fullToken, "plain http"},
		{"http://127.0.0.1.example:7375", fullToken, "plain http"},
		{"https://" + fullToken + "@relay.example", fullToken, "is refused"},
		{"https://me:" + fullToken + "@relay.example", fullToken, "is refused"},
		{"https://relay.example?token=" + fullToken, fullToken, "is refused"},
		{"https://relay.example#" + fullToken, fullToken, "is refused"},
		{"https://relay.example?", fullToken, "is refused"},
		{"ftp://relay.example", fullToken, "none of a relay's desk"},
		{"relay.example:7375", fullToken, "none of a relay's desk"},
		{"https://", fullToken, "none of a relay's desk"},
		{"https://relay.example/%zz" + fullToken, fullToken, "not readable"},
		{"https://relay.example", "short", "no token"},
		{"https://relay.example", fullToken + "\n" + fullToken, "no token"},
		{"https://relay.example", strings.Repeat("x", 513), "no token"},
		{"https://relay.example", "", "no token"},
	} {
		c, err := Remote(tt.url, tt.token)
		if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v; want %q", tt.url, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), fullToken) {
			t.Errorf("%s: the error holds the token", tt.url)
		}
		if err == nil && c.Place() != strings.TrimRight(tt.url, "/") {
			t.Errorf("got place %s; want %s", c.Place(), tt.url)
		}
	}
}

// What answers elsewhere may be anything: no call takes it for a relay, follows
// it somewhere, or shows it the token twice.
func TestRemoteIsNoDesk(t *testing.T) {
	t.Parallel()
	var shown int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { shown++ }))
	defer other.Close()
	for _, tt := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		{"sends elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, "no desk of a relay: it says 307"},
		{"is a web site", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("<html>")) }, "no desk of a relay"},
		{"fails", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "502 Bad Gateway"},
		{"hangs up", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, "hung up"},
		{"hangs up in the middle", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("{"))
		}, "hung up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(tt.answer))
			defer s.Close()
			_, err := remote(t, s.URL, fullToken).RotateEpoch(t.Context(), admin.Action{Actor: "me"})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), fullToken) {
				t.Errorf("got %v; want %q", err, tt.want)
			}
			if errors.Is(err, ErrNotRunning) {
				t.Errorf("got %v; want no word of a relay that is gone: something answers there", err)
			}
		})
	}
	if shown != 0 {
		t.Errorf("got %d calls elsewhere; want none", shown)
	}
}

// A desk that closes a connection before it says a word is there all the same.
func TestRemoteHangsUpAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	for _, scheme := range []string{"http", "https"} {
		for range 30 { // it may be closed before the request, in the middle of it, or after it
			c := remote(t, scheme+"://"+l.Addr().String(), fullToken)
			for _, ask := range []func() error{
				func() error { _, err := c.Status(t.Context()); return err },
				func() error { _, err := c.RotateEpoch(t.Context(), admin.Action{Actor: "me"}); return err },
			} {
				if err := ask(); err == nil || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "hung up before") {
					t.Fatalf("%s: got %v; want that it hung up", scheme, err)
				}
			}
		}
	}
}

func TestRemoteIsGone(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	if _, err := remote(t, "http://"+address, fullToken).Status(t.Context()); !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), address) {
		t.Errorf("got %v; want ErrNotRunning and where", err)
	}
}

func TestWrongTokenOverTCP(t *testing.T) {
	t.Parallel()
	_, address := open(t, nil)
	_, err := remote(t, "http://"+address, "a-guess-that-is-wrong").Status(t.Context())
	if !errors.Is(err, admin.ErrRefused) || errors.Is(err, ErrNotRunning) {
		t.Errorf("got %v; want a refusal", err)
	}
}
