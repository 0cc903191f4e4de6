package jwks_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
)

func TestRedirects(t *testing.T) {
	r := newRig(t)
	var strayed atomic.Int64
	own := jwkstest.NewKey("EdDSA", "ed-1")
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		strayed.Add(1)
		_, _ = w.Write(jwkstest.Set(own))
	}))
	t.Cleanup(elsewhere.Close)
	good := jwkstest.Text("", jwkstest.Set(r.ed))
	// hops redirects so often on the same host, by the query.
	hops := func(n int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			at := len(q.URL.RawQuery)
			if at == n {
				good.ServeHTTP(w, q)
				return
			}
			http.Redirect(w, q, jwkstest.JWKSPath+"?"+strings.Repeat("x", at+1), http.StatusFound)
		})
	}
	host := strings.TrimPrefix(r.issuer.URL, "http://")
	port := host[strings.LastIndexByte(host, ':'):]
	const there, endless = "the answer is a redirect to another host or scheme", "the answer is one redirect after another"
	for _, c := range []struct {
		name   string
		answer http.Handler
		want   string
	}{
		{"one", hops(1), ""},
		{"three", hops(3), ""},
		{"four", hops(4), endless},
		{"round and round", hops(-1), endless},
		{"to another port", http.RedirectHandler(elsewhere.URL, http.StatusFound), there},
		{"to another name of the host", http.RedirectHandler("http://localhost"+port+jwkstest.JWKSPath, http.StatusFound), there},
		{"to another scheme", http.RedirectHandler("https://"+host+jwkstest.JWKSPath, http.StatusMovedPermanently), there},
		{"with a user", http.RedirectHandler("http://ann:secret@"+host+jwkstest.JWKSPath, http.StatusTemporaryRedirect), there},
		{"to a file", http.RedirectHandler("file:///etc/passwd", http.StatusFound), there},
		{"nowhere", jwkstest.Status(302), "the answer has the status 302"},
	} {
		r.issuer.Serve(c.answer)
		detail, err := r.auth.Refresh(t.Context())
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: got %v; want a key set", c.name, err)
		case c.want != "" && (err == nil || err.Error() != "fetch the key set: "+c.want):
			t.Errorf("%s: got %q, %v; want %q", c.name, detail, err, c.want)
		}
	}
	if n := strayed.Load(); n != 0 {
		t.Errorf("got %d requests elsewhere; want none", n)
	}
}

// TestTroubleIsTheSameText: each try has a port of its own, and an address may have
// a secret in its query.
func TestTroubleIsTheSameText(t *testing.T) {
	r := newFreshRig(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	for url, want := range map[string]string{
		gone.URL:                      "it cannot be reached: connection refused",
		secure.URL:                    "its certificate is not trusted here",
		"http://" + secure.URL[8:]:    "the answer has the status 400",
		"https://" + r.issuer.URL[7:]: "it cannot be reached",
	} {
		o := r.options()
		o.URL = url + "/?secret=hunter2"
		r.auth = r.authority(o)
		before := r.logs.count(t, logTrouble)
		for range 3 {
			_, err := r.auth.Refresh(t.Context())
			if got := fmt.Sprint(err); got != "fetch the key set: "+want {
				t.Errorf("%s: got %q; want %q", url, got, want)
			}
		}
		if got := r.logs.count(t, logTrouble) - before; got != 1 {
			t.Errorf("%s: got %d lines in the log; want 1", url, got)
		}
	}
	r.trip = transport(func(q *http.Request) (*http.Response, error) {
		return nil, &net.DNSError{Err: "no such host", Name: q.URL.Hostname(), Server: "192.0.2.1:53", IsNotFound: true}
	})
	r.restart()
	if got := r.refreshFails(); got != "its name cannot be looked up" {
		t.Errorf("no such host: got trouble %q", got)
	}
}
