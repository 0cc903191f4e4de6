package lan

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// padded is a good body of n bytes.
func padded(n int) string {
	const doc = `{"envelopes":[]}`
	return doc + strings.Repeat(" ", n-len(doc))
}

func TestBodyCap(t *testing.T) {
	r := newRig(t)
	for n, status := range map[int]int{MaxBody: 200, MaxBody + 1: 413} {
		r.want(status, r.signedRequest("POST", "/v2/envelopes", padded(n)))

		chunked := r.signedRequest("POST", "/v2/envelopes", padded(n))
		chunked.ContentLength = -1
		r.want(status, chunked)
	}
	// The cap is of calls without a hop, too.
	for path, body := range map[string]string{"/v1/pair/join": r.joinBody(nil), "/v1/rotate": `{"records":[]}`} {
		r.want(http.StatusOK, r.request("POST", path, body+strings.Repeat(" ", MaxBody-len(body))))
		r.want(http.StatusRequestEntityTooLarge, r.request("POST", path, body+strings.Repeat(" ", MaxBody+1-len(body))))
	}
}

func (r *rig) head(length string) string {
	return fmt.Sprintf("POST /v2/envelopes HTTP/1.1\r\nHost: h\r\n%s\r\nx-mbx-host: work\r\nx-mbx-ts: %s\r\nx-mbx-sig: x\r\n\r\n", length, wire.FormatTime(day))
}

// The refusal comes while the client is still sending.
func TestBodyCapWhileStreaming(t *testing.T) {
	r := newRig(t)
	conn := r.dial(r.head("Transfer-Encoding: chunked"))
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat(" ", 64<<10))
	for range MaxBody/(64<<10) + 1 { // and no last chunk
		if _, err := io.WriteString(conn, chunk); err != nil {
			t.Fatal(err)
		}
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %v, %v; want 413", res, err)
	}
}

// A body that ends before its announced length is none.
func TestBodyCut(t *testing.T) {
	r := newRig(t)
	conn := r.dial(r.head("Content-Length: 100") + `{"envelopes":[]}`)
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("got %v, %v; want 400", res, err)
	}
}

// Bytes after the announced length are not of the body.
func TestBodyLongerThanAnnounced(t *testing.T) {
	r := newRig(t)
	req := r.signedRequest("POST", "/v2/envelopes", `{"envelopes":[]}`)
	var raw strings.Builder
	if err := req.Write(&raw); err != nil {
		t.Fatal(err)
	}
	conn := r.dial(raw.String() + "rubbish")
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v; want 200", res, err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	if len(r.node.lists) != 1 {
		t.Errorf("the node heard of %d lists; want 1", len(r.node.lists))
	}
}

func TestBodyBudget(t *testing.T) {
	r := newRig(t)
	r.server.bodies = newBudget(100<<10, 100<<10)
	if !r.server.bodies.take("another", 80<<10) {
		t.Fatal("the budget is not empty")
	}
	r.want(http.StatusServiceUnavailable, r.signedRequest("POST", "/v2/envelopes", `{"envelopes":[]}`))
	r.want(http.StatusServiceUnavailable, r.request("POST", "/v1/rotate", `{"records":[]}`))
	r.want(http.StatusOK, r.signedRequest("GET", "/v1/enc-key", "")) // holds nothing
	r.server.bodies.give("another", 80<<10)
	r.want(http.StatusOK, r.signedRequest("POST", "/v2/envelopes", `{"envelopes":[]}`))
	r.want(http.StatusServiceUnavailable, r.signedRequest("POST", "/v2/envelopes", padded(200<<10))) // when it grew too large
	r.http.Close()
	if r.server.bodies.used != 0 || len(r.server.bodies.by) != 0 {
		t.Errorf("%d bytes are still held", r.server.bodies.used)
	}
}

func TestBudgetOfOne(t *testing.T) {
	b := newBudget(10, 6)
	if !b.take("a", 6) || b.take("a", 1) || !b.take("b", 4) || b.take("b", 1) {
		t.Error("want 6 for one address and 10 for all")
	}
	b.give("a", 6)
	if !b.take("b", 2) || b.take("b", 1) {
		t.Error("want what was given back to be there again")
	}
}

func TestPeerRate(t *testing.T) {
	r := newRig(t)
	r.node.peers["stranger"] = Peer{"stranger", r.keys["stranger"].Public()}
	// What is not of the peer does not count against it.
	for range peerCalls + 10 {
		r.call(http.StatusUnauthorized, "GET", "/v1/enc-key", "", "work", "stranger")
	}
	for range peerCalls {
		r.call(http.StatusOK, "GET", "/v1/enc-key", "", "work", "work")
	}
	r.call(http.StatusTooManyRequests, "GET", "/v1/enc-key", "", "work", "work")
	r.call(http.StatusTooManyRequests, "POST", "/v1/receipts", `{"receipts":[]}`, "Work", "work") // under any spelling
	r.call(http.StatusOK, "GET", "/v1/enc-key", "", "stranger", "stranger")
	if len(r.node.seen) != peerCalls+1 {
		t.Errorf("got %d seen; want %d", len(r.node.seen), peerCalls+1)
	}
	r.clock.add(time.Minute)
	r.call(http.StatusOK, "GET", "/v1/enc-key", "", "work", "work")
}

// call makes a call under a name with a key.
func (r *rig) call(status int, method, path, body, name, key string) {
	r.Helper()
	req := r.request(method, path, body)
	ts, sig := wire.SignLANHop(r.keys[key], method, path, []byte(body), r.clock.now())
	req.Header.Set(wire.HeaderHost, name)
	req.Header.Set(wire.HeaderTS, ts)
	req.Header.Set(wire.HeaderSig, sig)
	r.want(status, req)
}

func TestStrangerRates(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct{ method, path, body string }{
		{"GET", "/v1/pair/hello", ""},
		{"POST", "/v1/pair/join", `{}`},
		{"POST", "/v1/rotate", `{"records":[]}`},
	} {
		status := http.StatusOK
		if tc.path == "/v1/pair/join" {
			status = http.StatusBadRequest // counts as any other
		}
		for range 30 {
			r.want(status, r.request(tc.method, tc.path, tc.body))
		}
		r.want(http.StatusTooManyRequests, r.request(tc.method, tc.path, tc.body))
	}
	r.want(http.StatusOK, r.request("GET", "/v1/status", "")) // liveness has no rate
	r.clock.add(time.Minute)
	r.want(http.StatusOK, r.request("GET", "/v1/pair/hello", ""))
}
