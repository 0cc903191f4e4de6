package jwks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const (
	aud       = "https://relay.example.test"
	challenge = "the-challenge"
)

var t0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// clock is a time that only tests move.
type clock struct{ ms atomic.Int64 }

func (c *clock) Now() time.Time       { return time.UnixMilli(c.ms.Load()).UTC() }
func (c *clock) Set(at time.Time)     { c.ms.Store(at.UnixMilli()) }
func (c *clock) Add(by time.Duration) { c.ms.Add(by.Milliseconds()) }

// logs keeps the log, in JSON.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// lines are the messages so far; each line must be whole JSON.
func (l *logs) lines(t testing.TB) (msgs []string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.buf.Bytes()) {
		var m struct{ Msg string }
		if err := json.Unmarshal(line, &m); err != nil || m.Msg == "" {
			t.Fatalf("log line %q: %v; want one JSON object a line", line, err)
		}
		msgs = append(msgs, m.Msg)
	}
	return msgs
}

// count is how often a message was logged.
func (l *logs) count(t testing.TB, msg string) (n int) {
	t.Helper()
	for _, m := range l.lines(t) {
		if m == msg {
			n++
		}
	}
	return n
}

// rig is an authority with its store and clock, and the issuer it believes.
type rig struct {
	t      testing.TB
	clock  *clock
	dir    string
	relay  wire.PublicKey
	store  *sqlite.Store
	ed, es jwkstest.Key
	issuer *jwkstest.Issuer
	host   jwkstest.Host
	logs   *logs
	auth   *jwks.Authority
	trip   http.RoundTripper
	wrap   func(store.Store) store.Store // what the authority sees of the store
}

// offline has the issuer answer without a network: for synctest bubbles.
func offline(r *rig) {
	r.issuer = &jwkstest.Issuer{URL: "https://accounts.example.test"}
	r.issuer.Publish(r.ed, r.es)
	r.trip = r.issuer
}

func newRig(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	r := &rig{
		t: t, clock: &clock{}, dir: t.TempDir(), logs: &logs{}, host: jwkstest.NewHost(), relay: jwkstest.NewHost().Key.Public(),
		ed: jwkstest.NewKey("EdDSA", "ed-1"), es: jwkstest.NewKey("ES256", "es-1"),
	}
	r.clock.Set(t0)
	for _, f := range change {
		f(r)
	}
	if r.issuer == nil {
		r.issuer = jwkstest.NewIssuer(t, r.ed, r.es)
	}
	r.openStore()
	t.Cleanup(func() {
		if err := r.store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	r.restart()
	return r
}

// newFreshRig has fetched the keys.
func newFreshRig(t testing.TB, change ...func(*rig)) *rig {
	t.Helper()
	r := newRig(t, change...)
	r.refresh()
	return r
}

func (r *rig) openStore() {
	r.t.Helper()
	st, err := sqlite.Open(context.Background(), sqlite.Options{
		Dir: r.dir, Key: r.relay, Now: r.clock.Now,
		Free: func(string) (free, size int64, err error) { return 1 << 30, 1 << 20, nil },
	})
	if err != nil {
		r.t.Fatalf("open the store: %v", err)
	}
	r.store = st
}

func (r *rig) options() jwks.Options {
	var st store.Store = r.store
	if r.wrap != nil {
		st = r.wrap(st)
	}
	return jwks.Options{
		Issuer: r.issuer.URL, Audience: aud, URL: r.issuer.URL + jwkstest.JWKSPath, DenyURL: r.issuer.URL + "/deny",
		Store: st, Transport: r.trip, Now: r.clock.Now, Log: slog.New(slog.NewJSONHandler(r.logs, nil)),
	}
}

// restart makes a new authority on the same store.
func (r *rig) restart() {
	r.t.Helper()
	r.auth = r.authority(r.options())
}

func (r *rig) authority(o jwks.Options) *jwks.Authority {
	r.t.Helper()
	a, err := jwks.New(context.Background(), o)
	if err != nil {
		r.t.Fatalf("new authority: %v", err)
	}
	return a
}

func (r *rig) refresh() {
	r.t.Helper()
	if _, err := r.auth.Refresh(context.Background()); err != nil {
		r.t.Fatalf("refresh: %v", err)
	}
}

// refreshFails refreshes and answers what State then says of it.
func (r *rig) refreshFails() string {
	r.t.Helper()
	if detail, err := r.auth.Refresh(context.Background()); err == nil {
		r.t.Fatalf("refresh: got %q; want an error", detail)
	}
	return r.auth.State().Trouble
}

// claims are those of a good token for the rig's host, now.
func (r *rig) claims() jwkstest.JSON { return r.host.Claims(r.issuer.URL, aud, r.clock.Now()) }

// proof is the host's proof with a token.
func (r *rig) proof(token string) json.RawMessage {
	return r.host.Proof(token, aud, challenge, r.clock.Now())
}

func (r *rig) applicant(proof json.RawMessage) relay.Applicant {
	return relay.Applicant{Name: "alpha", Key: r.host.Key.Public(), Challenge: challenge, Proof: proof}
}

// code is what an applicant is told: "" when it may enrol.
func (r *rig) code(who relay.Applicant) string {
	r.t.Helper()
	g, err := r.auth.Authorize(context.Background(), who)
	if g.OK && (err != nil || g.Code != "") || !g.OK && (g.Code == "" || g.Reason == "") {
		r.t.Fatalf("got grant %+v and error %v; want either a grant or a refusal with its code", g, err)
	}
	return g.Code
}

// with is what a good host with a token of this key is told.
func (r *rig) with(k jwkstest.Key) string {
	r.t.Helper()
	return r.code(r.applicant(r.proof(k.Sign(nil, r.claims()))))
}

// wants fails unless a host with a token of this key is told so.
func (r *rig) wants(what string, k jwkstest.Key, want string) {
	r.t.Helper()
	if got := r.with(k); got != want {
		r.t.Fatalf("%s: got %q; want %q", what, got, want)
	}
}

// fetched fails unless the key set was fetched so often.
func (r *rig) fetched(what string, want int) {
	r.t.Helper()
	if got := r.issuer.Fetches(); got != want {
		r.t.Fatalf("%s: got %d fetches; want %d", what, got, want)
	}
}
