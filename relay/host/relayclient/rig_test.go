package relayclient_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

var t0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// rig is a real relay over a real store, served on loopback, and a client of
// it. Both clocks are the test's and sequence numbers run 1, 2, 3.
type rig struct {
	t      testing.TB
	now    atomic.Int64 // of the relay, Unix milliseconds
	ahead  atomic.Int64 // of the client's clock, milliseconds
	relay  *relay.Relay
	client *relayclient.Client
}

func newRig(t *testing.T, change ...func(l *relay.Limits)) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{t: t}
	r.now.Store(t0.UnixMilli())
	l := relay.DefaultLimits()
	for _, f := range change {
		f(&l)
	}
	key := must(wire.GenerateKey())
	store := must(sqlite.Open(t.Context(), sqlite.Options{
		Dir: t.TempDir(), Key: key.Public(), Now: r.clock, SeqNow: func() int64 { return 0 },
	}))
	r.relay = must(relay.New(t.Context(), relay.Options{
		Store: store, Key: key, Version: "test", Limits: l, Authority: authority.HostKey{}, Now: r.clock,
	}))
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.New(server.Options{Relay: r.relay}).Serve(ctx, listener) }()
	r.client = must(relayclient.New("http://"+listener.Addr().String()+"/", relayclient.Options{Now: func() time.Time {
		return r.clock().Add(time.Duration(r.ahead.Load()) * time.Millisecond)
	}}))
	t.Cleanup(func() {
		r.client.Close()
		stop()
		if err := errors.Join(<-served, store.Check(context.Background()), store.Close()); err != nil {
			t.Errorf("end the relay: %v", err)
		}
	})
	return r
}

func (r *rig) clock() time.Time { return time.UnixMilli(r.now.Load()).UTC() }

func caller(h *wiretest.Host) relayclient.Caller {
	return relayclient.Caller{Host: h.Name, Key: h.Key}
}

// enrol makes a host and enrols it with the client.
func (r *rig) enrol(name string) *wiretest.Host {
	r.t.Helper()
	h := wiretest.NewHost(name)
	c := must(r.client.Challenge(r.t.Context(), caller(h)))
	if err := r.client.Enrol(r.t.Context(), caller(h), "", c, nil); err != nil {
		r.t.Fatalf("enrol %s: %v", name, err)
	}
	return h
}

// mail is a fresh sealed envelope as an item.
func mail(from, to *wiretest.Host) relayclient.Item {
	id, w := from.Envelope(to, "hello", "the build is green")
	return relayclient.Item{Kind: wire.KindEnvelope, ID: id, Target: to.Pub(), Wire: w}
}

// status checks that err is an answer with this status and code.
func status(t testing.TB, what string, err error, want int, code string) *relayclient.StatusError {
	t.Helper()
	var e *relayclient.StatusError
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v; want status %d", what, err, want)
		return &relayclient.StatusError{}
	}
	if e.Status != want || e.Code != code {
		t.Errorf("%s: got %d %q (%v); want %d %q", what, e.Status, e.Code, err, want, code)
	}
	return e
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
