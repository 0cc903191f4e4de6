package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
)

// FuzzHandler sends anything to every endpoint, signed and unsigned: nothing a
// client sends may look like the relay's own fault.
func FuzzHandler(f *testing.F) {
	r, hosts, endpoints := badInputRig(f, limits(func(l *relay.Limits) { l.MaxWaitS, l.OpenChallenges, l.Enrolments = 0, 1e6, 1e7 }))
	beta := hosts[1] // alpha may be rotated away
	handler := r.server.Handler()
	for _, e := range endpoints {
		f.Add("POST", e.target, "", encode(e.good()), e.from != nil)
	}
	for _, target := range []string{"/v2/relay/items?after=0&limit=1&wait=1", "/v2/relay/info", "/v1/relay/messages?after=0", "/v2/relay/enc-key?host=alpha", "/readyz", "/x?%zz"} {
		f.Add("GET", target, "x-mbx-host: alpha\r\nx-forwarded-for: ::1\r\n", []byte(nil), true)
	}
	f.Fuzz(func(t *testing.T, method, target, headers string, body []byte, signed bool) {
		if len(body) > 1<<20 {
			return
		}
		var hop strings.Builder
		if signed {
			for k, v := range beta.Hop(method, signedPath(target), body, r.clock()) {
				fmt.Fprintf(&hop, "%s: %s\r\n", k, v)
			}
		}
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: relay\r\n%s%sContent-Length: %d\r\n\r\n", method, target, hop.String(), headers, len(body))
		q, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(head), bytes.NewReader(body))))
		if err != nil {
			return // never reaches a handler
		}
		q.RemoteAddr = "1.2.3.4:5"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, q)
		if w.Code >= 500 || w.Code < 200 {
			t.Errorf("%q %q %q: got %d %s", method, target, headers, w.Code, w.Body)
		}
	})
}
