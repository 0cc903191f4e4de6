package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

const cap8 = 8 << 20

// padded is a push of nothing with a body of n bytes.
func padded(n int) []byte {
	b := bytes.Repeat([]byte(" "), n)
	copy(b, `{"items":[]}`)
	return b
}

// unannounced sends a body without its length.
func unannounced(q *http.Request) *http.Request {
	q.Body, q.ContentLength = io.NopCloser(io.MultiReader(q.Body)), -1
	return q
}

func TestBodyCaps(t *testing.T) {
	// The least memory a relay may be given: what one body takes.
	r := newRig(t, noRates, limits(func(l *relay.Limits) { l.BodyBytesInFlight = cap8 }))
	alpha := r.enrol("alpha")
	for _, n := range []int{12, 4095, 4096, 4097, 64 << 10, 64<<10 + 1, 512<<10 + 1, cap8} {
		r.do(r.request(alpha, "POST", "/v2/relay/items", padded(n))).is(200).says(`{"results":[]}`)
		r.do(unannounced(r.request(alpha, "POST", "/v2/relay/items", padded(n)))).is(200).says(`{"results":[]}`)
	}
	long := r.request(alpha, "POST", "/v2/relay/items", nil) // what it signs does not matter: it is not read
	long.Body, long.ContentLength = io.NopCloser(io.LimitReader(zeros{}, cap8+1)), cap8+1
	r.do(long).is(413).says(`{"error":"the body is too large","code":"TOO_LARGE"}`)
	long = r.request(alpha, "POST", "/v2/relay/items", nil)
	long.Body, long.ContentLength = io.NopCloser(io.LimitReader(zeros{}, cap8+1)), -1
	r.do(long).is(413, "TOO_LARGE")
	small := func(n int) []byte {
		return []byte(`{"host":"a","x":"` + strings.Repeat("x", n-19) + `"}`)
	}
	r.do(r.request(nil, "POST", "/v1/relay/challenge", small(8<<10))).is(400, "BAD_KEY")
	r.do(unannounced(r.request(nil, "POST", "/v1/relay/challenge", small(8<<10)))).is(400, "BAD_KEY")
	r.do(r.request(nil, "POST", "/v1/relay/challenge", small(8<<10+1))).is(413, "TOO_LARGE")
	r.do(unannounced(r.request(nil, "POST", "/v1/relay/challenge", small(8<<10+1)))).is(413, "TOO_LARGE")
}

// TestRefusedWhileStreaming has a client that announces too much, and goes on
// sending: it sees the answer, then the end of the connection.
func TestRefusedWhileStreaming(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	for name, x := range map[string]struct {
		head   string
		status int
	}{
		"over the cap": {r.rawHead(alpha, "POST", "/v2/relay/items", nil, "Content-Length: 9000000"), 413},
		"bad hop":      {r.rawHead(nil, "POST", "/v2/relay/items", nil, "Content-Length: 9000000"), 401},
		"health":       {r.rawHead(nil, "GET", "/healthz", nil, "Content-Length: 9000000"), 200},
		"info":         {r.rawHead(alpha, "GET", "/v2/relay/info", nil, "Content-Length: 9000000"), 200},
	} {
		c := r.dial()
		must(io.WriteString(c, x.head))
		answer := bufio.NewReader(c)
		res := must(http.ReadResponse(answer, nil)) // before any of the body was sent
		same(t, name+": status", res.StatusCode, x.status)
		same(t, name+": close", res.Close, true)
		must(io.ReadAll(res.Body))
		sent, err := io.Copy(c, io.LimitReader(zeros{}, 9000000))
		if err != nil || sent != 9000000 {
			t.Errorf("%s: sent %d bytes, then %v; want all of them read", name, sent, err)
		}
		if n, err := answer.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%s: after the body: got %d, %v; want the end of the connection", name, n, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestSlowClients(t *testing.T) {
	r := newRig(t, times(server.Times{Header: 500 * time.Millisecond, Body: 500 * time.Millisecond, Drain: 50 * time.Millisecond, Idle: 500 * time.Millisecond}))
	alpha := r.enrol("alpha")
	read := func(sent string) string {
		c := r.dial()
		must(io.WriteString(c, sent))
		return string(must(io.ReadAll(c)))
	}
	if got := read("GET /healthz HTTP/1.1\r\nHost: "); got != "" {
		t.Errorf("half a header: got %q; want the connection closed", got)
	}
	got := read(r.rawHead(nil, "GET", "/healthz", nil))
	if !strings.HasSuffix(got, `{"ok":true}`) {
		t.Errorf("an idle connection: got %q; want an answer, then the end", got)
	}
	for name, head := range map[string]string{
		"signed":       r.rawHead(alpha, "POST", "/v2/relay/items", nil, "Content-Length: 100"),
		"chunked":      r.rawHead(alpha, "POST", "/v2/relay/items", nil, "Transfer-Encoding: chunked"),
		"unsigned":     r.rawHead(nil, "POST", "/v1/relay/challenge", nil, "Content-Length: 100"),
		"with expects": r.rawHead(nil, "POST", "/v1/relay/challenge", nil, "Content-Length: 100", "Expect: 100-continue"),
	} {
		got := read(head + "8\r\n{\"items\"")
		if !strings.Contains(got, "408 Request Timeout") || !strings.HasSuffix(got, `{"error":"the body took too long","code":"TIMEOUT"}`) {
			t.Errorf("%s: got %q; want 408", name, got)
		}
	}
	got = read(r.rawHead(alpha, "POST", "/v2/relay/items", nil, "Transfer-Encoding: chunked") + "zz\r\n")
	if !strings.Contains(got, "400 Bad Request") || !strings.HasSuffix(got, `"code":"BAD_BODY"}`) {
		t.Errorf("bad chunks: got %q; want 400", got)
	}
}

// TestBodyTimeEndsWithTheBody has a poll that waits longer than a body may take.
func TestBodyTimeEndsWithTheBody(t *testing.T) {
	r := newRig(t, times(server.Times{Body: 500 * time.Millisecond}))
	alpha := r.enrol("alpha")
	p := r.call(alpha, "GET", "/v2/relay/items?after=0&wait=1", "a body").page()
	same(t, "items", len(p.Items), 0)
}

func TestHugeHeader(t *testing.T) {
	r := newRig(t)
	c := r.dial()
	must(io.WriteString(c, r.rawHead(nil, "GET", "/healthz", nil, "X: "+strings.Repeat("x", 30<<10))))
	got := string(must(io.ReadAll(c)))
	if !strings.HasPrefix(got, "HTTP/1.1 431 ") {
		t.Errorf("got %q; want 431", got)
	}
}

func TestBodiesShareABudget(t *testing.T) {
	r := newRig(t, limits(func(l *relay.Limits) { l.BodyBytesInFlight = 100 << 10 }), times(server.Times{Share: 20 * time.Millisecond}))
	alpha := r.enrol("alpha")
	body := padded(60 << 10)
	slow := r.dial()
	must(io.WriteString(slow, r.rawHead(alpha, "POST", "/v2/relay/items", body, fmt.Sprintf("Content-Length: %d", len(body)), "Expect: 100-continue")))
	answer := bufio.NewReader(slow)
	res := must(http.ReadResponse(answer, nil)) // it has its share, and is asked for the rest
	same(t, "the slow one", res.StatusCode, 100)

	r.call(alpha, "POST", "/v2/relay/items", body).is(503).says(`{"error":"the relay is busy; try again","code":"BUSY"}`)
	r.call(alpha, "POST", "/v2/relay/items", padded(100)).is(200)
	r.call(nil, "GET", "/healthz", nil).is(200)

	must(slow.Write(body))
	res = must(http.ReadResponse(answer, nil))
	same(t, "the slow one", res.StatusCode, 200)
	must(io.ReadAll(res.Body))
	r.call(alpha, "POST", "/v2/relay/items", body).is(200)
	slow.Close()
	for range 5 { // each of these gives its share back
		gone := r.dial()
		must(io.WriteString(gone, r.rawHead(alpha, "POST", "/v2/relay/items", body, fmt.Sprintf("Content-Length: %d", len(body)))+"{"))
		gone.Close()
	}
	r.eventually("the share of clients that went away is free", func() bool {
		return r.call(alpha, "POST", "/v2/relay/items", body).status == 200
	})
}

// small makes the system hold little of what a client does not read.
type small struct{ net.Listener }

func (l small) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

func TestClientThatNeverReads(t *testing.T) {
	r := newRig(t, times(server.Times{Write: 200 * time.Millisecond, Share: 20 * time.Millisecond}),
		func(s *setup) {
			s.Listener = func(l net.Listener) net.Listener { return small{l} }
			s.Limits.BodyBytesInFlight = cap8
		})
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	fill(r, alpha, beta, 5)
	for _, target := range []string{"/v2/relay/items?after=0", "/v1/relay/messages?after=0"} {
		c := r.dial()
		must(0, c.(*net.TCPConn).SetReadBuffer(4096))
		must(io.WriteString(c, r.rawHead(beta, "GET", target, nil)))
		path, _, _ := strings.Cut(target, "?")
		r.eventually("the handler has ended", func() bool {
			return len(r.logs.find(map[string]string{"msg": "request", "method": "GET", "path": path})) == 1
		})
		res := must(http.ReadResponse(bufio.NewReader(c), nil))
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: half an answer looks whole", target)
		}
	}
	// Its memory is free: this asks for all there is.
	r.call(beta, "GET", "/v2/relay/items?after=0&limit=1", nil).is(200)
}

// One host that pulls again and again and never reads holds its own few pages,
// and nobody else's.
func TestPullsThatNobodyReads(t *testing.T) {
	r := newRig(t, times(server.Times{Write: 5 * time.Second, Share: 20 * time.Millisecond}), noRates,
		func(s *setup) {
			s.Listener = func(l net.Listener) net.Listener { return small{l} }
			s.Limits.BodyBytesInFlight = 5 * cap8
		})
	alpha, beta, gamma, delta := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma"), r.enrol("delta")
	fill(r, alpha, beta, 20)
	fill(r, alpha, gamma, 1)
	for range 40 {
		c := r.dial()
		must(0, c.(*net.TCPConn).SetReadBuffer(4096))
		must(io.WriteString(c, r.rawHead(beta, "GET", "/v2/relay/items?after=0", nil)))
	}
	r.eventually("all but four were refused", func() bool {
		return len(r.logs.find(map[string]string{"msg": "request", "method": "GET", "status": "503"})) == 36
	})
	r.call(beta, "GET", "/v2/relay/items?after=0", nil).is(503, "BUSY")
	for _, target := range []string{"/v2/relay/items?after=0", "/v1/relay/messages?after=0"} {
		r.call(gamma, "GET", target, nil).is(200)
		r.call(delta, "GET", target, nil).is(200)
	}
}

// fill pushes large mail, without HTTP.
func fill(r *rig, from, to *wiretest.Host, n int) {
	r.t.Helper()
	for range n {
		id, w := from.Envelope(to, "hello", strings.Repeat("x", 150<<10))
		r.pushed(from, item("envelope", id, w, to))
	}
}
