package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// The tests of this package speak HTTP to a served relay over a real store.
// The relay's clock is the test's and sequence numbers run 1, 2, 3. Those that
// prove a situation of scenarios.md are named after it.

var t0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

type rig struct {
	t      testing.TB
	now    atomic.Int64 // Unix milliseconds
	store  *sqlite.Store
	relay  *relay.Relay
	server *server.Server
	url    string
	addr   string
	client *http.Client
	logs   *logLines
	direct bool // requests skip the network, for tests with thousands

	key    wire.PrivateKey
	dir    string
	stop   context.CancelFunc
	served chan error
}

type setup struct {
	Limits    relay.Limits
	Authority relay.EnrolmentAuthority
	Observers []relay.Observer
	Life      time.Duration // of a challenge
	Server    server.Options
	Listener  func(net.Listener) net.Listener
}

// limits changes the limits of a rig.
func limits(f func(l *relay.Limits)) func(*setup) { return func(s *setup) { f(&s.Limits) } }

// noRates lifts the rates, for tests that are about something else.
func noRates(s *setup) { s.Limits.PushesPerMinute, s.Limits.EnrolPerMinute = 1e9, 1e9 }

func times(t server.Times) func(*setup) { return func(s *setup) { s.Server.Times = t } }

func newRig(t testing.TB, change ...func(*setup)) *rig {
	t.Helper()
	if t, is := t.(*testing.T); is {
		t.Parallel()
	}
	r := &rig{t: t, logs: &logLines{}, served: make(chan error, 1)}
	r.now.Store(t0.UnixMilli())
	s := setup{Limits: relay.DefaultLimits(), Authority: authority.HostKey{}}
	s.Server.Log = slog.New(r.logs)
	for _, f := range change {
		f(&s)
	}
	r.key, r.dir = must(wire.GenerateKey()), t.TempDir()
	r.reopen()
	r.relay = must(relay.New(context.Background(), relay.Options{
		Store: r.store, Key: r.key, Version: "test", Limits: s.Limits, Authority: s.Authority, Observers: s.Observers, Now: r.clock, ChallengeLife: s.Life,
	}))
	s.Server.Relay = r.relay
	r.server = server.New(s.Server)
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	r.addr = l.Addr().String()
	r.url = "http://" + r.addr
	if s.Listener != nil {
		l = s.Listener(l)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.served <- r.server.Serve(ctx, l) }()
	r.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	t.Cleanup(r.close)
	return r
}

func (r *rig) reopen() {
	r.store = must(sqlite.Open(context.Background(), sqlite.Options{
		Dir: r.dir, Key: r.key.Public(), Now: r.clock, SeqNow: func() int64 { return 0 },
	}))
}

// close stops the server, and checks the store with itself.
func (r *rig) close() {
	r.client.CloseIdleConnections()
	r.stop()
	if err := <-r.served; err != nil {
		r.t.Errorf("serve: %v", err)
	}
	if err := r.store.Check(context.Background()); err != nil {
		r.t.Errorf("the store does not agree with itself: %v", err)
	}
	if err := r.store.Close(); err != nil {
		r.t.Errorf("close the store: %v", err)
	}
}

func (r *rig) clock() time.Time { return time.UnixMilli(r.now.Load()).UTC() }

// reply is an answer, read to its end.
type reply struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   []byte
}

// request makes a request, signed by from unless that is nil. A body that is
// not bytes or text is sent as JSON.
func (r *rig) request(from *wiretest.Host, method, target string, body any) *http.Request {
	r.t.Helper()
	b := encode(body)
	q := must(http.NewRequest(method, r.url+target, bytes.NewReader(b)))
	if len(b) == 0 {
		q.Body = http.NoBody
	}
	if from != nil {
		for k, v := range from.Hop(method, signedPath(target), b, r.clock()) {
			q.Header.Set(k, v)
		}
	}
	return q
}

func encode(body any) []byte {
	switch b := body.(type) {
	case nil:
		return nil
	case []byte:
		return b
	case string:
		return []byte(b)
	}
	return must(json.Marshal(body))
}

func signedPath(target string) string {
	if strings.HasPrefix(target, "/v1/") {
		target, _, _ = strings.Cut(target, "?")
	}
	return target
}

func (r *rig) do(q *http.Request) *reply {
	r.t.Helper()
	if r.direct {
		q.RequestURI, q.RemoteAddr = q.URL.RequestURI(), "127.0.0.1:1"
		w := httptest.NewRecorder()
		r.server.Handler().ServeHTTP(w, q)
		return &reply{r.t, q.Method + " " + q.RequestURI, w.Code, w.Header(), w.Body.Bytes()}
	}
	res, err := r.client.Do(q)
	if err != nil {
		r.t.Fatalf("%s %s: %v", q.Method, q.URL.Path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatalf("%s %s: read the answer: %v", q.Method, q.URL.Path, err)
	}
	return &reply{r.t, q.Method + " " + q.URL.RequestURI(), res.StatusCode, res.Header, b}
}

func (r *rig) call(from *wiretest.Host, method, target string, body any) *reply {
	r.t.Helper()
	return r.do(r.request(from, method, target, body))
}

// is checks the status and, where it is given, the code.
func (p *reply) is(status int, code ...string) *reply {
	p.t.Helper()
	if p.status != status {
		p.t.Errorf("%s: got %d %.300s; want %d", p.what, p.status, p.body, status)
	}
	if len(code) > 0 && p.code() != code[0] {
		p.t.Errorf("%s: got code %q (%.300s); want %q", p.what, p.code(), p.body, code[0])
	}
	return p
}

// says checks the whole body.
func (p *reply) says(format string, args ...any) *reply {
	p.t.Helper()
	if want := fmt.Sprintf(format, args...); string(p.body) != want {
		p.t.Errorf("%s: got %s; want %s", p.what, p.body, want)
	}
	return p
}

func (p *reply) code() string {
	s, _ := p.json()["code"].(string)
	return s
}

func (p *reply) error() string {
	s, _ := p.json()["error"].(string)
	return s
}

func (p *reply) json() map[string]any {
	p.t.Helper()
	var m map[string]any
	p.into(&m)
	return m
}

func (p *reply) into(v any) {
	p.t.Helper()
	if err := json.Unmarshal(p.body, v); err != nil {
		p.t.Fatalf("%s: the answer is no JSON: %v: %.300q", p.what, err, p.body)
	}
}

// tryEnrol enrols a host over HTTP.
func (r *rig) tryEnrol(h *wiretest.Host) *reply {
	r.t.Helper()
	return r.call(nil, "POST", "/v1/relay/enrol", enrolBody(h, r.challenge(h)))
}

func (r *rig) challenge(h *wiretest.Host) string {
	r.t.Helper()
	c := r.call(nil, "POST", "/v1/relay/challenge", m{"host": h.Name, "pubkey": h.Pub()}).is(200)
	return c.json()["challenge"].(string)
}

func enrolBody(h *wiretest.Host, challenge string) m {
	return m{"host": h.Name, "pubkey": h.Pub(), "owner_fp": "",
		"sig": h.Key.Sign(wire.EnrolPayload(challenge, h.Name, h.Pub(), ""))}
}

// enrol makes hosts and enrols them.
func (r *rig) enrol(name string) *wiretest.Host {
	r.t.Helper()
	h := wiretest.NewHost(name)
	r.tryEnrol(h).is(200).says(`{"ok":true}`)
	return h
}

type m = map[string]any

// item is one item of a v2 push.
func item(kind, id string, w []byte, targets ...*wiretest.Host) m {
	var list []m
	for _, h := range targets {
		list = append(list, m{"host_pubkey": h.Pub(), "wire_b64": base64.StdEncoding.EncodeToString(w)})
	}
	return m{"kind": kind, "item_id": id, "targets": list}
}

// mail is a fresh sealed envelope as an item.
func mail(from, to *wiretest.Host) m {
	id, w := from.Envelope(to, "hello", "the build is green")
	return item("envelope", id, w, to)
}

type result struct {
	ItemID  string           `json:"item_id"`
	Status  string           `json:"status"`
	Targets []map[string]any `json:"targets"`
	Accept  json.RawMessage  `json:"accept"`
	Sig     string           `json:"sig"`
}

func (p *reply) results() []result {
	p.t.Helper()
	var a struct {
		Results []result `json:"results"`
	}
	p.is(200).into(&a)
	return a.Results
}

func (r *rig) push(from *wiretest.Host, items ...m) []result {
	r.t.Helper()
	return r.call(from, "POST", "/v2/relay/items", m{"items": items}).results()
}

// pushed pushes one item that must be accepted.
func (r *rig) pushed(from *wiretest.Host, it m) {
	r.t.Helper()
	if got := r.push(from, it)[0].Status; got != "accepted" {
		r.t.Fatalf("push: got %q; want accepted", got)
	}
}

type pulled struct {
	Epoch   string `json:"epoch"`
	HeadSeq int64  `json:"head_seq"`
	Items   []struct {
		Seq    int64  `json:"seq"`
		Kind   string `json:"kind"`
		ItemID string `json:"item_id"`
		Sender string `json:"sender_pubkey"`
		Wire   []byte `json:"wire_b64"`
	} `json:"items"`
	LastSeq int64 `json:"last_seq"`
	More    bool  `json:"more"`
}

func (p *reply) page() (pg pulled) {
	p.t.Helper()
	p.is(200).into(&pg)
	return pg
}

func (r *rig) epoch() string {
	r.t.Helper()
	return r.call(nil, "GET", "/v2/relay/info", nil).json()["epoch"].(string)
}

// snapshot is what the store holds of these hosts and in all, as text.
func (r *rig) snapshot(hosts ...*wiretest.Host) string {
	r.t.Helper()
	var b strings.Builder
	err := r.store.View(context.Background(), func(v store.Reader) error {
		in, err := v.Info()
		if err != nil {
			return err
		}
		totals, err := v.Totals()
		if err != nil {
			return err
		}
		ops, err := v.Log("", 0, 1000)
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, in.Epoch, totals, len(ops))
		for _, h := range hosts {
			e, err1 := v.Enrolment(h.Pub())
			head, err2 := v.Head(h.Pub())
			acked, err3 := v.Acked(h.Pub())
			usage, err4 := v.QueueUsage(h.Pub())
			list, err5 := v.SenderList(h.Pub())
			ad, err6 := v.EncAd(h.Pub())
			v1, err7 := v.EncKey(h.Pub())
			for _, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					return err
				}
			}
			fmt.Fprintf(&b, "%s %v %d %d %v %s %s %v\n", h.Name, e, head, acked, usage, list.Record, ad.Record, v1)
		}
		return nil
	})
	if err != nil {
		r.t.Fatalf("read the store: %v", err)
	}
	return b.String()
}

// waits waits until so many long polls are waiting.
func (r *rig) waits(polls int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d long polls wait", polls), func() bool {
		return must(r.relay.Status(context.Background())).LongPolls == polls
	})
}

// eventually looks again and again, for what no channel tells a test.
func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	late := time.After(10 * time.Second)
	for !is() {
		select {
		case <-look.C:
		case <-late:
			r.t.Fatalf("it never came to it that %s", what)
		}
	}
}

// logLines is a log that can be read.
type logLines struct {
	mu    sync.Mutex
	lines []map[string]string
}

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }
func (l *logLines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logLines) WithGroup(string) slog.Handler            { return l }
func (l *logLines) Handle(_ context.Context, rec slog.Record) error {
	line := map[string]string{"level": rec.Level.String(), "msg": rec.Message}
	rec.Attrs(func(a slog.Attr) bool { line[a.Key] = a.Value.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

// find answers the lines that have all of these attributes.
func (l *logLines) find(want map[string]string) (found []map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
next:
	for _, line := range l.lines {
		for k, v := range want {
			if line[k] != v {
				continue next
			}
		}
		found = append(found, line)
	}
	return found
}

func (l *logLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.lines)
}

// dial opens a connection for a client that misbehaves.
func (r *rig) dial() net.Conn {
	r.t.Helper()
	c := must(net.Dial("tcp", r.addr))
	r.t.Cleanup(func() { c.Close() })
	must(0, c.SetDeadline(time.Now().Add(15*time.Second)))
	return c
}

// rawHead is a request's head as text, signed over body unless from is nil.
func (r *rig) rawHead(from *wiretest.Host, method, target string, body []byte, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: relay\r\n", method, target)
	if from != nil {
		for k, v := range from.Hop(method, signedPath(target), body, r.clock()) {
			fmt.Fprintf(&b, "%s: %s\r\n", k, v)
		}
	}
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n"
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v; want %v", what, got, want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
