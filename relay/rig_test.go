package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// The tests of this package are named by the situation of scenarios.md that
// they prove. They run a relay over a real store with a clock of their own;
// sequence numbers run 1, 2, 3 ("clock 0").

var t0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// operator is who does what is done at the desk.
var operator = relay.Deed{Actor: "ann", Reason: "a test"}

// clock is a time that only tests move.
type clock struct{ ms atomic.Int64 }

func (c *clock) Now() time.Time       { return time.UnixMilli(c.ms.Load()).UTC() }
func (c *clock) Set(at time.Time)     { c.ms.Store(at.UnixMilli()) }
func (c *clock) Add(by time.Duration) { c.ms.Add(by.Milliseconds()) }

// rig is a relay with its store, clock and key.
type rig struct {
	t     testing.TB
	dir   string
	key   wire.PrivateKey
	clock *clock
	store *sqlite.Store
	relay *relay.Relay
	full  atomic.Bool // the device
	setup setup
}

func (r *rig) free(dir string) (free, size int64, err error) {
	if r.full.Load() {
		return 0, 1 << 20, nil
	}
	return smallDevice(dir)
}

// template is a fresh store, made once and copied for each rig: making it takes
// longer than many a test.
var template = sync.OnceValues(func() (wire.PrivateKey, []byte) {
	dir, err := os.MkdirTemp("", "relay-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	key := must(wire.GenerateKey())
	st := must(sqlite.Open(context.Background(), sqlite.Options{Dir: dir, Key: key.Public(), Now: func() time.Time { return t0 }, Free: smallDevice}))
	if err := st.Close(); err != nil {
		panic(err)
	}
	return key, must(os.ReadFile(filepath.Join(dir, sqlite.FileName)))
})

// smallDevice spares each store the writing of its reserve file.
func smallDevice(string) (free, size int64, err error) { return 1 << 30, 1 << 20, nil }

// setup is what a test may change of a rig before it starts.
type setup struct {
	relay.Options
	Wrap  func(store.Store) store.Store // what the relay sees of the store
	Birth time.Time                     // when the store is made; zero means t0
}

func newRig(t testing.TB, change ...func(*setup)) *rig {
	t.Helper()
	key, fresh := template()
	r := &rig{t: t, dir: t.TempDir(), key: key, clock: &clock{}}
	r.clock.Set(t0)
	r.setup.Options = relay.Options{
		Key: r.key, Version: "test", Limits: relay.DefaultLimits(), Authority: authority.HostKey{}, Now: r.clock.Now,
	}
	for _, f := range change {
		f(&r.setup)
	}
	if r.setup.Birth.IsZero() {
		ok(t, "copy a fresh store", os.WriteFile(filepath.Join(r.dir, sqlite.FileName), fresh, 0o600))
	}
	r.open()
	t.Cleanup(r.close)
	return r
}

func limits(f func(*relay.Limits)) func(*setup) { return func(s *setup) { f(&s.Limits) } }

// open opens the store and makes a relay on it.
func (r *rig) open() {
	r.t.Helper()
	now := r.clock.Now
	if !r.setup.Birth.IsZero() {
		now = func() time.Time { return r.setup.Birth }
	}
	st, err := sqlite.Open(r.t.Context(), sqlite.Options{
		Dir: r.dir, Key: r.key.Public(), Now: now, SeqNow: func() int64 { return 0 }, Free: r.free,
	})
	if err != nil {
		r.t.Fatalf("open the store: %v", err)
	}
	r.store = st
	o := r.setup.Options
	o.Store = st
	if r.setup.Wrap != nil {
		o.Store = r.setup.Wrap(st)
	}
	if r.relay, err = relay.New(r.t.Context(), o); err != nil {
		r.t.Fatalf("make the relay: %v", err)
	}
}

// close checks the store with itself and closes it.
func (r *rig) close() {
	r.t.Helper()
	if err := r.store.Check(context.Background()); err != nil {
		r.t.Errorf("the store does not agree with itself: %v", err)
	}
	if err := r.store.Close(); err != nil {
		r.t.Errorf("close the store: %v", err)
	}
}

// restart is a stop and a start of the relay.
func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.open()
}

// enrol makes a host and enrols it; proof is what accounts reads.
func (r *rig) enrol(name string, proof ...string) *wiretest.Host {
	r.t.Helper()
	h := wiretest.NewHost(name)
	if err := r.tryEnrol(h, "", proof...); err != nil {
		r.t.Fatalf("enrol %s: %v", name, err)
	}
	return h
}

func (r *rig) tryEnrol(h *wiretest.Host, ownerFP string, proof ...string) error {
	challenge, err := r.relay.Challenge(h.Name, h.Pub().String())
	if err != nil {
		return err
	}
	return r.answer(h, challenge, ownerFP, proof...)
}

// answer is the second half of an enrolment.
func (r *rig) answer(h *wiretest.Host, challenge, ownerFP string, proof ...string) error {
	q := relay.EnrolRequest{
		Host: h.Name, Key: h.Pub().String(), OwnerFP: ownerFP,
		Sig: h.Key.Sign(wire.EnrolPayload(challenge, h.Name, h.Pub(), ownerFP)),
	}
	if len(proof) > 0 {
		q.Proof = must(json.Marshal(proof[0]))
	}
	return r.relay.Enrol(context.Background(), q)
}

// accounts is an authority that believes a proof to be the account's name, and
// proves nothing without one.
type accounts struct{}

func (accounts) Authorize(ctx context.Context, a relay.Applicant) (relay.Grant, error) {
	if a.Proof == nil {
		return authority.HostKey{}.Authorize(ctx, a)
	}
	g := relay.Grant{OK: true, By: "accounts"}
	return g, json.Unmarshal(a.Proof, &g.Account)
}

func withAccounts(s *setup) { s.Authority = accounts{} }

// hop signs a v2 request and has the relay verify it.
func (r *rig) hop(h *wiretest.Host) (relay.Caller, error) {
	hop := relay.Hop{Host: h.Name, Key: h.Pub().String()}
	const path = "/v2/relay/items?after=0"
	hop.TS, hop.Sig = wire.SignHop(h.Key, "GET", path, nil, r.clock.Now())
	list, err := r.relay.Candidates(context.Background(), hop)
	if err != nil {
		return relay.Caller{}, err
	}
	return r.relay.Verify(list, hop, "GET", path, nil)
}

func (r *rig) caller(h *wiretest.Host) relay.Caller {
	r.t.Helper()
	c, err := r.hop(h)
	if err != nil {
		r.t.Fatalf("hop of %s: %v", h.Name, err)
	}
	return c
}

// push pushes with a fresh hop and fails the test on an error.
func (r *rig) push(from *wiretest.Host, items ...wire.PushItem) []relay.PushResult {
	r.t.Helper()
	results, err := r.relay.Push(context.Background(), r.caller(from), items)
	if err != nil {
		r.t.Fatalf("push of %s: %v", from.Name, err)
	}
	if len(results) != len(items) {
		r.t.Fatalf("push of %s: got %d results; want %d", from.Name, len(results), len(items))
	}
	return results
}

// pushed pushes one item and checks its status; the answer's accept must hold.
func (r *rig) pushed(from *wiretest.Host, it wire.PushItem, status string) relay.PushResult {
	r.t.Helper()
	res := r.push(from, it)[0]
	if res.Status != status {
		r.t.Errorf("status of %s: got %q; want %q", it.ID, res.Status, status)
	}
	return res
}

// accept verifies the signed accept of a result against what was pushed.
func (r *rig) accept(from *wiretest.Host, it wire.PushItem, res relay.PushResult) wire.Accept {
	r.t.Helper()
	a, err := wire.VerifyAccept(res.Accept, res.Sig, r.key.Public())
	if err != nil {
		r.t.Fatalf("accept of %s (%s): %v", it.ID, res.Status, err)
	}
	if a.SenderPubkey != from.Pub() || a.ItemID != it.ID || a.Epoch != r.epoch() || len(a.Targets) != len(it.Targets) {
		r.t.Errorf("accept: got %+v; want one of %s for %d targets", a, it.ID, len(it.Targets))
	}
	for i, got := range a.Targets {
		want := it.Targets[i]
		if got.HostPubkey != want.Key || got.WireHash != hex64(want.Wire) || got != res.Targets[i] {
			r.t.Errorf("accept, target %d: got %+v; want the hash of the bytes and the result's %+v", i, got, res.Targets[i])
		}
	}
	return a
}

func hex64(w []byte) string { return fmt.Sprintf("%x", wire.Hash(w)) }

// pushV1 pushes envelopes the v1 way.
func (r *rig) pushV1(from *wiretest.Host, wires ...[]byte) relay.V1Result {
	r.t.Helper()
	res, err := r.relay.PushV1(context.Background(), r.caller(from), wires)
	if err != nil {
		r.t.Fatalf("v1 push of %s: %v", from.Name, err)
	}
	return res
}

func (r *rig) pull(h *wiretest.Host, q relay.PullQuery) relay.Page {
	r.t.Helper()
	p, err := r.relay.Pull(context.Background(), r.caller(h), q)
	if err != nil {
		r.t.Fatalf("pull of %s: %v", h.Name, err)
	}
	return p
}

func (r *rig) ack(h *wiretest.Host, through int64) relay.AckResult {
	r.t.Helper()
	a, err := r.relay.Ack(context.Background(), r.caller(h), r.epoch(), float64(through))
	if err != nil {
		r.t.Fatalf("ack of %s through %d: %v", h.Name, through, err)
	}
	return a
}

func (r *rig) rotate(h, next *wiretest.Host) (moved int64, err error) {
	doc := wire.MakeRotation(h.Key, next.Key, h.Name, next.Enc.Public(), r.clock.Now())
	return r.relay.Rotate(context.Background(), doc)
}

// rotated rotates h to a fresh key.
func (r *rig) rotated(h *wiretest.Host) *wiretest.Host {
	r.t.Helper()
	next := wiretest.NewHost(h.Name)
	if _, err := r.rotate(h, next); err != nil {
		r.t.Fatalf("rotate %s: %v", h.Name, err)
	}
	return next
}

func (r *rig) revoke(h *wiretest.Host) {
	r.t.Helper()
	if was, err := r.relay.RevokeHost(context.Background(), h.Pub(), operator); err != nil || !was {
		r.t.Fatalf("revoke %s: got %v, %v; want true", h.Name, was, err)
	}
}

func (r *rig) sweep() relay.SweepReceipt {
	r.t.Helper()
	s, err := r.relay.Sweep(context.Background())
	if err != nil {
		r.t.Fatalf("sweep: %v", err)
	}
	return s
}

// publish publishes who may push to h.
func (r *rig) publish(h *wiretest.Host, iat time.Time, senders ...*wiretest.Host) error {
	var keys []wire.PublicKey
	for _, s := range senders {
		keys = append(keys, s.Pub())
	}
	list, sig := wire.MakeSenderList(h.Key, keys, iat)
	return r.relay.PutSenders(context.Background(), r.caller(h), list, sig)
}
