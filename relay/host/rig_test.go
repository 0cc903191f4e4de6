package host

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The tests of this package run real hosts, each over its own home and served
// on loopback, against a real relay over a real store. All clocks are the
// test's and move only when it says so; the relay's sequence numbers run 1, 2,
// 3. Those that prove a situation of scenarios.md are named after it.

var t0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// deadAddr is an address that nobody listens at.
const deadAddr = "127.0.0.1:1"

// world is a clock, a relay and hosts.
type world struct {
	t     testing.TB
	now   atomic.Int64 // milliseconds
	relay *testRelay
}

// newWorld makes a world with a relay in it.
func newWorld(t testing.TB, change ...func(l *relay.Limits)) *world {
	t.Helper()
	if t, is := t.(*testing.T); is {
		if raceDetector && strings.Contains(t.Name(), "/") && crc32.ChecksumIEEE([]byte(t.Name()))%4 > 0 {
			t.Skip("a case of a table: every fourth runs under the race detector, all of them without")
		}
		t.Parallel()
	}
	w := &world{t: t}
	w.now.Store(t0.UnixMilli())
	l := relay.DefaultLimits()
	l.PushesPerMinute, l.EnrolPerMinute = 1e6, 1e6
	for _, f := range change {
		f(&l)
	}
	w.relay = newTestRelay(w, l)
	return w
}

func (w *world) clock() time.Time { return time.UnixMilli(w.now.Load()).UTC() }

// pass lets time go by.
func (w *world) pass(d time.Duration) { w.now.Add(d.Milliseconds()) }

// testRelay is a relay behind a fixed address. Tests can stop it, wipe it, give
// it another key, and stand between it and its hosts.
type testRelay struct {
	w      *world
	limits relay.Limits
	key    wire.PrivateKey
	dir    string
	store  *sqlite.Store
	relay  *relay.Relay
	url    string

	// authority, when set, is made anew for each start; otherwise a host key will do.
	authority func() relay.EnrolmentAuthority

	mu      sync.Mutex
	handler http.Handler // nil: it is down

	// between, when set, answers instead of the relay; it may call it.
	between func(out http.ResponseWriter, in *http.Request, relay http.Handler)
}

func newTestRelay(w *world, l relay.Limits) *testRelay {
	r := &testRelay{w: w, limits: l, key: must(wire.GenerateKey()), dir: w.t.TempDir()}
	front := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		r.mu.Lock()
		handler, between := r.handler, r.between
		r.mu.Unlock()
		switch {
		case handler == nil: // as a process that was killed
			if c, _, err := out.(http.Hijacker).Hijack(); err == nil {
				c.Close()
			}
		case between != nil:
			between(out, in, handler)
		default:
			handler.ServeHTTP(out, in)
		}
	}))
	r.url = front.URL
	r.start()
	w.t.Cleanup(func() {
		front.Close()
		if r.store != nil {
			r.stop()
		}
	})
	return r
}

// smallDisk keeps a relay's reserve file small: hundreds of tests make one each.
func smallDisk(string) (free, size int64, err error) { return 40 << 20, 40 << 20, nil }

func (r *testRelay) start() {
	r.w.t.Helper()
	r.store = must(sqlite.Open(context.Background(), sqlite.Options{
		Dir: r.dir, Key: r.key.Public(), Now: r.w.clock, SeqNow: func() int64 { return 0 }, Free: smallDisk,
	}))
	who := relay.EnrolmentAuthority(authority.HostKey{})
	if r.authority != nil {
		who = r.authority()
	}
	r.relay = must(relay.New(context.Background(), relay.Options{
		Store: r.store, Key: r.key, Version: "test", Limits: r.limits, Authority: who, Now: r.w.clock,
	}))
	s := server.New(server.Options{Relay: r.relay})
	r.mu.Lock()
	r.handler = s.Handler()
	r.mu.Unlock()
}

// stop ends the relay; its store must agree with itself.
func (r *testRelay) stop() {
	r.w.t.Helper()
	r.mu.Lock()
	r.handler = nil
	r.mu.Unlock()
	if err := errors.Join(r.store.Check(context.Background()), r.store.Close()); err != nil {
		r.w.t.Errorf("end the relay: %v", err)
	}
	r.store = nil
}

// wipe starts the relay again with an empty store and the same key.
func (r *testRelay) wipe() {
	r.w.t.Helper()
	r.stop()
	r.dir = r.w.t.TempDir()
	r.start()
}

// intercept puts fn between the relay and its hosts; nil takes it away.
func (r *testRelay) intercept(fn func(out http.ResponseWriter, in *http.Request, relay http.Handler)) {
	r.mu.Lock()
	r.between = fn
	r.mu.Unlock()
}

// queued counts the items that wait for a host.
func (r *testRelay) queued(h *testHost) (n int) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) error {
		u, err := v.QueueUsage(h.Key())
		n = int(u.Items)
		return err
	}))
	return n
}

// testHost is a host with its LAN server.
type testHost struct {
	*Host
	w      *world
	lanUp  atomic.Bool
	addr   string
	ahead  atomic.Int64 // milliseconds its clock is ahead of the world's
	opts   Options
	lanSrv *httptest.Server
}

// host makes a host that uses the world's relay.
func (w *world) host(name string) *testHost {
	w.t.Helper()
	h := &testHost{w: w}
	h.opts = Options{Home: filepath.Join(w.t.TempDir(), name), Now: func() time.Time {
		return w.clock().Add(time.Duration(h.ahead.Load()) * time.Millisecond)
	}}
	if w.relay != nil {
		h.opts.RelayURL = w.relay.url
	}
	noError(w.t, Init(context.Background(), h.opts, name))
	h.Host = must(Open(context.Background(), h.opts))
	h.lanUp.Store(true)
	h.lanSrv = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if !h.lanUp.Load() {
			if c, _, err := out.(http.Hijacker).Hijack(); err == nil {
				c.Close()
			}
			return
		}
		lan.NewServer(lan.Options{Node: h.Host, Version: "test", Now: h.opts.Now}).Handler().ServeHTTP(out, in)
	}))
	h.addr = h.lanSrv.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(h.addr)
	h.setPort(port)
	w.t.Cleanup(func() {
		h.lanSrv.Close()
		noError(w.t, h.db.check(context.Background()))
		noError(w.t, h.Close())
	})
	return h
}

func (h *testHost) setPort(port string) {
	l := must(net.ResolveTCPAddr("tcp", "127.0.0.1:"+port))
	h.listensAt(l)
}

// reopen closes the home and opens it again, as a restart does.
func (h *testHost) reopen() {
	h.w.t.Helper()
	port := h.lanPort
	noError(h.w.t, h.Close())
	h.Host = must(Open(context.Background(), h.opts))
	h.lanPort = port
}

// pair pins two hosts to each other. Without a LAN between them each knows only
// a dead address of the other.
func pair(a, b *testHost, overLAN bool) {
	a.w.t.Helper()
	for _, side := range [][2]*testHost{{a, b}, {b, a}} {
		own, other := side[0], side[1]
		addr := deadAddr
		if overLAN {
			addr = other.addr
		}
		noError(own.w.t, own.db.write(context.Background(), func(t *tx) error {
			return own.addPeer(t, other.Name(), other.Key(), "", addr)
		}))
	}
}

// sql runs one statement on a host's database: for tests that put it into a
// state which takes days to reach.
func (h *testHost) sql(query string, args ...any) int64 {
	h.w.t.Helper()
	var n int64
	noError(h.w.t, h.db.write(context.Background(), func(t *tx) (err error) {
		n, err = t.exec(query, args...)
		return err
	}))
	return n
}

// ask reads one value of a host's database.
func ask[T any](h *testHost, query string, args ...any) T {
	h.w.t.Helper()
	var v T
	noError(h.w.t, h.db.read(context.Background(), func(t *tx) error {
		_, err := t.get(query, args, &v)
		return err
	}))
	return v
}

// send sends from builder to reviewer at the other host.
func (h *testHost) send(to *testHost, subject string) string {
	h.w.t.Helper()
	s, err := h.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@" + to.Name()}, Subject: subject, Body: "the body of " + subject})
	noError(h.w.t, err)
	return s.ID
}

// lanFailedTwice puts a host's outbox rows where the relay may take them.
func (h *testHost) lanFailedTwice() {
	h.w.t.Helper()
	h.sql("UPDATE outbox SET attempts = 2, next_at = ?", h.now().Add(-time.Second).UnixMilli())
}

// tick ticks once; an error of the host's own ends the test.
func (h *testHost) tick() Report {
	h.w.t.Helper()
	r, err := h.Tick(context.Background())
	noError(h.w.t, err)
	return r
}

// relayOnly is the relay's half of a tick.
func (h *testHost) relayOnly() RelayReport {
	h.w.t.Helper()
	var rows []row
	var receipts []owed
	noError(h.w.t, h.db.read(context.Background(), func(t *tx) (err error) {
		if rows, _, err = due(t); err != nil {
			return err
		}
		receipts, _, err = dueReceipts(t)
		return err
	}))
	r, _, err := h.relayPass(context.Background(), rows, receipts, true)
	noError(h.w.t, err)
	return r
}

// outbox counts the rows that wait.
func (h *testHost) outbox() int { return int(ask[int64](h, "SELECT count(*) FROM outbox")) }

// inbox counts the messages from other hosts in the mailbox reviewer.
func (h *testHost) inbox() int {
	return int(ask[int64](h, "SELECT count(*) FROM deliveries d JOIN messages m ON m.id = d.msg WHERE d.mailbox = 'reviewer' AND m.origin <> ''"))
}

// sentState is the state of what a relay holds of a message, "" for nothing.
func (h *testHost) sentState(msg string) string {
	return ask[string](h, "SELECT state FROM relay_sent WHERE msg = ?", msg)
}

// alerts are the subjects of the alerts in a mailbox.
func (h *testHost) alerts(mailbox string) (subjects []string) {
	h.w.t.Helper()
	msgs, err := h.Inbox(context.Background(), mailbox, "", true, 1000)
	noError(h.w.t, err)
	for _, m := range msgs {
		if m.Kind == "alert" {
			subjects = append(subjects, m.Subject)
		}
	}
	return subjects
}

// audited counts the audit's entries of one event.
func (h *testHost) audited(event string) int {
	return int(ask[int64](h, "SELECT count(*) FROM audit WHERE event = ?", event))
}

// relayRow is what the host knows of the relay.
func (h *testHost) relayRow() *relayRow {
	h.w.t.Helper()
	r, err := h.readRelay(context.Background(), h.relayURL())
	noError(h.w.t, err)
	return r
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v; want %v", what, got, want)
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got %v; want no error", err)
	}
}

// hasPart checks that a text says something.
func hasPart(t testing.TB, what, got, part string) {
	t.Helper()
	if !strings.Contains(got, part) {
		t.Errorf("%s: got %q; want %q in it", what, got, part)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// sql stops the relay, runs statements on its store's file and starts it again.
func (r *testRelay) sql(statements ...string) {
	r.w.t.Helper()
	r.stop()
	file := must(sql.Open("sqlite", "file:"+filepath.Join(r.dir, sqlite.FileName)))
	for _, s := range statements {
		if _, err := file.Exec(s); err != nil {
			r.w.t.Fatalf("%s: %v", s, err)
		}
	}
	noError(r.w.t, file.Close())
	r.start()
}

// answerJSON answers in a relay's, or a host's, place.
func answerJSON(out http.ResponseWriter, v any) {
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(v)
}

// openLimits are a relay's limits without rates.
func openLimits() relay.Limits {
	l := relay.DefaultLimits()
	l.PushesPerMinute, l.EnrolPerMinute = 1e6, 1e6
	return l
}

// hexOf writes bytes as SQL's x'…' takes them.
func hexOf(b []byte) string { return hex.EncodeToString(b) }

// muchWork leaves a test that does much in few goroutines to the runs without
// the race detector: with it such a test takes minutes and finds nothing.
func muchWork(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("much work in few goroutines: it runs without the race detector")
	}
}
