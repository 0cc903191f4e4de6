package host

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// The tests of the hostile_ files have relays, peers, clocks and disks do what
// they should not. Each of them checks where that ends, that the mail is still
// somewhere, that nobody on the way saw a body, and that with honest service
// everything arrives once.

// liar stands between the relay and its hosts and keeps every byte that passes.
type liar struct {
	w *world

	mu     sync.Mutex
	seen   bytes.Buffer
	calls  map[string]int
	before func(c *passing) (answered bool)
	after  func(c *passing)
}

// passing is a call on its way through. Before the relay has seen it only the
// request is there.
type passing struct {
	call   string // method and path
	in     *http.Request
	asked  []byte
	status int
	header http.Header
	answer []byte
}

// lies puts a liar between the relay and its hosts. It tells the truth at first.
func (w *world) lies() *liar {
	l := &liar{w: w, calls: map[string]int{}}
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		asked, _ := io.ReadAll(in.Body)
		c := &passing{call: in.Method + " " + in.URL.Path, in: in, asked: asked, header: http.Header{}}
		l.mu.Lock()
		before, after := l.before, l.after
		l.calls[c.call]++
		l.note(in.URL.String(), fmt.Sprint(in.Header), string(asked))
		l.mu.Unlock()
		if before == nil || !before(c) {
			again := in.Clone(in.Context())
			again.Body = io.NopCloser(bytes.NewReader(asked))
			rec := httptest.NewRecorder()
			relay.ServeHTTP(rec, again)
			c.status, c.header, c.answer = rec.Code, rec.Header(), rec.Body.Bytes()
			if after != nil {
				after(c)
			}
		}
		l.mu.Lock()
		if len(c.answer) < 1<<20 { // larger ones are the liar's own
			l.note(string(c.answer))
		}
		l.mu.Unlock()
		maps.Copy(out.Header(), c.header)
		out.Header().Set("Date", w.clock().Format(http.TimeFormat)) // the relay's clock, not this machine's
		out.Header().Del("Content-Length")
		if c.status == 0 {
			hangUp(out)
			return
		}
		out.WriteHeader(c.status)
		_, _ = out.Write(c.answer)
	})
	return l
}

func (l *liar) note(parts ...string) {
	for _, p := range parts {
		l.seen.WriteString(p)
		l.seen.WriteByte('\n')
	}
}

// says sets what is done to calls before and after the relay has seen them.
func (l *liar) says(before func(c *passing) bool, after func(c *passing)) {
	l.mu.Lock()
	l.before, l.after = before, after
	l.mu.Unlock()
}

// honest ends the lies.
func (l *liar) honest() { l.says(nil, nil) }

// count is how often a call was made, all of them for "".
func (l *liar) count(call string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, k := range l.calls {
		if call == "" || c == call {
			n += k
		}
	}
	return n
}

// The calls of the relay's interface.
const (
	callInfo    = "GET /v2/relay/info"
	callPull    = "GET /v2/relay/items"
	callPush    = "POST /v2/relay/items"
	callAck     = "POST /v2/relay/ack"
	callSenders = "POST /v2/relay/senders"
	callAd      = "POST /v2/relay/enc-key"
	callAdV1    = "POST /v1/relay/enc-key"
	callEncKey  = "GET /v2/relay/enc-key"
	callAsk     = "POST /v1/relay/challenge"
	callEnrol   = "POST /v1/relay/enrol"
)

// lieOn restricts a lie to one call that the relay answered well.
func lieOn(call string, lie func(c *passing)) func(c *passing) {
	return func(c *passing) {
		if c.call == call && c.status == http.StatusOK {
			lie(c)
		}
	}
}

// change edits the JSON of an answer.
func (c *passing) change(edit func(m map[string]any)) {
	d := json.NewDecoder(bytes.NewReader(c.answer))
	d.UseNumber()
	m := map[string]any{}
	if d.Decode(&m) != nil {
		return
	}
	edit(m)
	c.answer = must(json.Marshal(m))
}

// servedPage is a page of items as a relay serves it.
type servedPage struct {
	Epoch string       `json:"epoch"`
	Head  int64        `json:"head_seq"`
	Items []servedItem `json:"items"`
	Last  int64        `json:"last_seq"`
	More  bool         `json:"more"`
}

type servedItem struct {
	Seq    int64  `json:"seq"`
	Kind   string `json:"kind"`
	ID     string `json:"item_id"`
	Sender string `json:"sender_pubkey"`
	Wire   string `json:"wire_b64"`
}

// page edits a served page.
func (c *passing) page(edit func(p *servedPage)) {
	var p servedPage
	if json.Unmarshal(c.answer, &p) != nil {
		return
	}
	edit(&p)
	c.answer = must(json.Marshal(p))
}

// accept edits the accepts of a push and signs them again with key.
func (c *passing) accept(key wire.PrivateKey, edit func(a *wire.Accept)) {
	c.change(func(m map[string]any) {
		results, _ := m["results"].([]any)
		for _, one := range results {
			r, _ := one.(map[string]any)
			if r["accept"] == nil {
				continue
			}
			var a wire.Accept
			if json.Unmarshal(must(json.Marshal(r["accept"])), &a) != nil {
				continue
			}
			edit(&a)
			raw, sig := wire.SignAccept(key, a)
			r["accept"], r["sig"] = json.RawMessage(raw), sig
		}
	})
}

var base64Text = regexp.MustCompile(`[A-Za-z0-9+/]{24,}={0,2}`)

// plain reports whether a text stands in bytes as they are, or in what is
// base64 among them.
func plain(b []byte, text string) bool {
	if bytes.Contains(b, []byte(text)) {
		return true
	}
	for _, s := range base64Text.FindAll(b, -1) {
		if inner, err := base64.StdEncoding.DecodeString(string(s)); err == nil && plain(inner, text) {
			return true
		}
	}
	return false
}

// sawNoBody checks that no body of send crossed the network in the clear.
func sawNoBody(t testing.TB, where string, seen []byte) {
	t.Helper()
	if len(seen) == 0 {
		t.Errorf("%s saw nothing at all", where)
	}
	if plain(seen, "the body of") {
		t.Errorf("%s saw a body in the clear", where)
	}
}

// sawNoBody checks all that has passed.
func (l *liar) sawNoBody() {
	l.w.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	sawNoBody(l.w.t, "the relay", l.seen.Bytes())
}

// arrived counts how often a message stands in the host's mailboxes.
func (h *testHost) arrived(msg string) int {
	return int(ask[int64](h, "SELECT count(*) FROM deliveries d JOIN messages m ON m.id = d.msg WHERE m.origin <> '' AND substr(d.msg, 1, 26) = ?", msg))
}

// kept fails when a message is neither on its way, nor there, nor given back.
func kept(from, to *testHost, msgs ...string) {
	from.w.t.Helper()
	for _, msg := range msgs {
		rows := ask[int64](from, "SELECT count(*) FROM outbox WHERE msg = ?", msg)
		held := ask[int64](from, "SELECT count(*) FROM relay_sent WHERE msg = ? AND state IN ('relay-accepted', 'repush')", msg)
		ended := ask[int64](from, "SELECT count(*) FROM routes WHERE msg = ? AND state IN ('undelivered', 'unconfirmed')", msg)
		if rows > 1 {
			from.w.t.Errorf("%s: got %d rows in the outbox; want one at most", msg, rows)
		}
		if rows+held+ended == 0 && to.arrived(msg) == 0 {
			from.w.t.Errorf("%s is gone: not queued, not held, not delivered, not given back", msg)
		}
	}
}

// settle lets honest service run until nothing waits any more.
func settle(hosts ...*testHost) {
	hosts[0].w.t.Helper()
	for range 40 {
		waiting := 0
		for _, h := range hosts {
			h.tick()
		}
		for _, h := range hosts {
			waiting += h.outbox() + h.count("receipts_out") +
				int(ask[int64](h, "SELECT count(*) FROM relay_sent WHERE state IN ('relay-accepted', 'repush')"))
		}
		if waiting == 0 {
			return
		}
		hosts[0].w.pass(61 * time.Minute) // past every backoff and hold
	}
	for _, h := range hosts {
		hosts[0].w.t.Errorf("%s still waits: %d rows, %d receipts; relay %+v", h.Name(), h.outbox(), h.count("receipts_out"), h.relayRow())
	}
}

// arriveOnce lets honest service run and checks that every message is there
// once, is confirmed, and that nobody was told otherwise.
func arriveOnce(from, to *testHost, msgs ...string) {
	from.w.t.Helper()
	settle(from, to)
	for _, msg := range msgs {
		same(from.w.t, msg+": copies", to.arrived(msg), 1)
		same(from.w.t, msg+": confirmed", ask[string](from, "SELECT state FROM routes WHERE msg = ?", msg), "confirmed")
	}
	same(from.w.t, "messages at "+to.Name(), to.inbox(), len(msgs))
	same(from.w.t, "alerts at "+from.Name(), len(from.alerts("builder")), 0)
	same(from.w.t, "bytes kept for the relay", from.count("wires"), 0)
}

// twoOverRelay are two hosts that know each other only through the relay, with
// mail for beta that the relay may take.
func twoOverRelay(w *world, subjects ...string) (alpha, beta *testHost, msgs []string) {
	w.t.Helper()
	alpha, beta = w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	for _, s := range subjects {
		msgs = append(msgs, alpha.send(beta, s))
	}
	if len(subjects) > 0 {
		alpha.lanFailedTwice()
	}
	return alpha, beta, msgs
}

// impatient gives up calls that take long: tests do not wait 15 seconds.
type impatient struct{ limit time.Duration }

func (i impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), i.limit)
	res, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body = &cancelling{res.Body, cancel}
	return res, nil
}

type cancelling struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *cancelling) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}

// foreign makes a page's item of something that no push would have let in.
func foreign(seq int64, kind, id string, sender wire.PublicKey, raw []byte) servedItem {
	return servedItem{Seq: seq, Kind: kind, ID: id, Sender: sender.String(), Wire: base64.StdEncoding.EncodeToString(raw)}
}

// relayStates are all that a pass may end in.
var relayStates = []string{relayOK, relayV1, relayDown, relayBadAnswer, relayUnavailable, relayMismatch, relayEnrolFailed, relaySkew, relayRefused, relayFull, relayNoToken, relayOver, relayDenied, relayKeyless}

// oneState checks that a pass ended in one of some states.
func oneState(t testing.TB, what, got string, want ...string) {
	t.Helper()
	if len(want) == 0 {
		want = relayStates
	}
	if !slices.Contains(want, got) {
		t.Errorf("%s: got the state %q; want %s", what, got, strings.Join(want, " or "))
	}
}
