package lan

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

var day = time.Date(2026, 10, 2, 12, 34, 57, 0, time.UTC)

// clock is a time that tests set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// fakeNode is home, which knows work. What it is asked it notes; what a test
// sets it answers, and else it accepts everything.
type fakeNode struct {
	mu       sync.Mutex
	id       Identity
	peers    map[string]Peer // by folded name
	asked    []string        // names looked up
	seen     []string        // name and address
	lists    [][][]byte
	joins    []Join
	unpaired []string

	err    error // of every call but Peer
	peer   error // of Peer
	texts  []string
	boom   bool          // panic
	block  chan struct{} // wait in Envelopes until closed
	inside chan struct{} // told that Envelopes waits
	encPub wire.EncPublicKey
}

func (n *fakeNode) Identity() Identity {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.id
}

func (n *fakeNode) Peer(_ context.Context, name string) (Peer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, name)
	if n.peer != nil {
		return Peer{}, n.peer
	}
	p, ok := n.peers[wire.FoldName(name)]
	if !ok {
		return Peer{}, ErrRefused
	}
	return p, nil
}

func (n *fakeNode) Seen(_ context.Context, p Peer, addr string, _ time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = append(n.seen, p.Name+" "+addr)
}

func (n *fakeNode) Join(_ context.Context, j Join) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.joins = append(n.joins, j)
	if n.err != nil {
		return "", n.err
	}
	return "mac-of-the-answer", nil
}

func (n *fakeNode) note(list [][]byte, each string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.boom {
		panic("s3cr3t")
	}
	n.lists = append(n.lists, list)
	if n.err != nil || n.texts != nil {
		return n.texts, n.err
	}
	var out []string
	for range list {
		out = append(out, each)
	}
	return out, nil
}

func (n *fakeNode) Rotate(_ context.Context, records [][]byte) ([]string, error) {
	return n.note(records, "rotated")
}

func (n *fakeNode) Envelopes(_ context.Context, _ Peer, envelopes [][]byte) ([]Result, error) {
	if n.block != nil {
		n.inside <- struct{}{}
		<-n.block
	}
	texts, err := n.note(envelopes, "accepted")
	if err != nil {
		return nil, err
	}
	var out []Result
	for i, text := range texts {
		var e struct{ ID string }
		if i < len(envelopes) {
			_ = json.Unmarshal(envelopes[i], &e)
		}
		out = append(out, Result{e.ID, text})
	}
	return out, nil
}

func (n *fakeNode) Receipts(_ context.Context, _ Peer, receipts [][]byte) ([]string, error) {
	return n.note(receipts, "accepted")
}

func (n *fakeNode) EncKey(context.Context) (wire.EncPublicKey, string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.encPub, wire.EncodeBase64(make([]byte, 64)), n.err
}

func (n *fakeNode) Unpair(_ context.Context, p Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unpaired = append(n.unpaired, p.Name)
	return n.err
}

// rig is a server on loopback, home, and one peer of it, work.
type rig struct {
	*testing.T
	clock  *clock
	node   *fakeNode
	server *Server
	http   *httptest.Server
	addr   string
	client *Client
	keys   map[string]wire.PrivateKey
	work   Caller
}

func newRig(t *testing.T) *rig {
	t.Helper()
	keys := wiretest.Keys(t)
	r := &rig{T: t, clock: &clock{t: day}, keys: keys, work: Caller{Host: "work", Key: keys["work"]}}
	r.node = &fakeNode{
		id:    Identity{Host: "home", HostKey: keys["home"].Public()},
		peers: map[string]Peer{"work": {"work", keys["work"].Public()}},
	}
	r.server = NewServer(Options{Node: r.node, Version: "1.2.3", Now: r.clock.now})
	r.http = httptest.NewServer(r.server.Handler())
	r.addr = r.http.Listener.Addr().String()
	r.client = NewClient(r.clock.now)
	t.Cleanup(func() { r.client.Close(); r.http.Close() })
	return r
}

// signedRequest is a request of work, with a good hop.
func (r *rig) signedRequest(method, path, body string) *http.Request {
	r.Helper()
	req := r.request(method, path, body)
	ts, sig := wire.SignLANHop(r.work.Key, method, path, []byte(body), r.clock.now())
	req.Header.Set(wire.HeaderHost, r.work.Host)
	req.Header.Set(wire.HeaderTS, ts)
	req.Header.Set(wire.HeaderSig, sig)
	return req
}

func (r *rig) request(method, path, body string) *http.Request {
	r.Helper()
	req, err := http.NewRequest(method, r.http.URL+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	return req
}

// send sends a request and returns status, header and body of the answer.
func (r *rig) send(req *http.Request) (int, http.Header, string) {
	r.Helper()
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

// want sends a request and checks the status; a refusal must be an error
// document, one line of plain text.
func (r *rig) want(status int, req *http.Request) string {
	r.Helper()
	got, header, body := r.send(req)
	if got != status {
		r.Errorf("%s %s: got %d %s; want %d", req.Method, req.URL.Path, got, body, status)
	}
	if ct := header.Get("Content-Type"); ct != "application/json" {
		r.Errorf("%s %s: got content type %q", req.Method, req.URL.Path, ct)
	}
	if got != http.StatusOK {
		var e map[string]string
		if err := json.Unmarshal([]byte(body), &e); err != nil || len(e) != 1 || e["error"] == "" {
			r.Errorf("%s %s: got %s; want an error document", req.Method, req.URL.Path, body)
		}
	}
	return body
}

// dial sends raw text and returns the connection, which the test closes.
func (r *rig) dial(text string) net.Conn {
	r.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		r.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		r.Fatal(err)
	}
	return conn
}

func equalLists(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
