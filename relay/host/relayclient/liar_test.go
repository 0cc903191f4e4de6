package relayclient_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
)

// liar is a server and a client of it.
func liar(t testing.TB, h http.HandlerFunc) (*relayclient.Client, *httptest.Server) {
	s := httptest.NewServer(h)
	c := must(relayclient.New(s.URL, relayclient.Options{}))
	t.Cleanup(func() { c.Close(); s.Close() })
	return c, s
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// raw answers with these bytes and closes the connection.
func raw(b string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		io.WriteString(c, b)
	}
}

// megabytes answers with a JSON string of that many, sent in pieces.
func megabytes(n int, length bool) http.HandlerFunc {
	piece := bytes.Repeat([]byte("x"), 1<<20)
	return func(w http.ResponseWriter, r *http.Request) {
		if length {
			w.Header().Set("Content-Length", strconv.Itoa(n<<20+2))
		}
		io.WriteString(w, `"`)
		for range n {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
		io.WriteString(w, `"`)
	}
}
