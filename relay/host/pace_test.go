package host

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// A relay takes 120 pushes a minute of one host (protocol.md §3). A daemon that
// is given mail without end pushes less often than that, and pushes it all.
func TestSteadyMailStaysUnderTheRelaysRate(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick() // enrols
	var pushes atomic.Int64
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.Method == http.MethodPost && in.URL.Path == "/v2/relay/items" {
			pushes.Add(1)
		}
		relay.ServeHTTP(out, in)
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- alpha.Daemon(ctx, DaemonOptions{}) }()

	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	sent := 0
	for time.Since(began) < 2*time.Second {
		alpha.send(beta, "steady")
		sent++
		<-pace.C
	}
	for deadline := time.Now().Add(20 * time.Second); alpha.outbox() > 0 && time.Now().Before(deadline); {
		<-pace.C
	}
	stop()
	noError(t, <-ended)
	took := time.Since(began)

	if n := alpha.outbox(); n > 0 {
		t.Errorf("left in the outbox: got %d, %q; want 0", n, ask[string](alpha, "SELECT max(error) FROM outbox"))
	}
	same(t, "accepted", int(ask[int64](alpha, "SELECT count(*) FROM relay_sent")), sent)
	if got, most := pushes.Load(), int64(took/(500*time.Millisecond))+1; got > most || got == 0 {
		t.Errorf("got %d pushes in %s; want at most %d, as 120 a minute allow", got, took, most)
	}
}

// A tick that finds the long poll waiting on the relay's queue leaves it the
// queue and sends what is due: at a daemon's start both begin at once.
func TestTickDoesNotWaitForTheLongPoll(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.SwitchLANOff()
	beta.tick()
	alpha.tick()
	polling := make(chan struct{}, 10)
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.Method == http.MethodGet && in.URL.Path == "/v2/relay/items" {
			polling <- struct{}{}
		}
		relay.ServeHTTP(out, in)
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var report RelayReport
		_, _ = alpha.receive(ctx, alpha.sessionNow(), 25*time.Second, &report)
	}()
	<-polling
	alpha.send(beta, "hello")
	ticked := make(chan Report, 1)
	go func() {
		r, _ := alpha.Tick(context.Background()) // with a pull: as before there is a session
		ticked <- r
	}()
	select {
	case r := <-ticked:
		same(t, "accepted", r.Relay.Accepted, 1)
		same(t, "state", r.Relay.State, relayOK)
	case <-time.After(15 * time.Second):
		t.Error("the tick waits for the long poll")
	}
	stop()
	<-ended
}
