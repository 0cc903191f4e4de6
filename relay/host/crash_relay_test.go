package host

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Here it is the relay that is a child and is killed; the hosts live on.

// relayTask is a relay that kills itself at a point: a call (push, pull, ack),
// then committing (its changes are made and not committed), committed, or
// answering. By narrows it to the calls of one host key.
type relayTask struct {
	Dir, Key string
	Now      int64
	At, By   string
}

// armed is a store, and a handler over it, with the point built in. One host
// calls at a time.
type armed struct {
	store.Store
	relayTask
	call atomic.Pointer[string] // in progress
}

func (a *armed) Update(ctx context.Context, fn func(store.Tx) error) error {
	call := *a.call.Load()
	err := a.Store.Update(ctx, func(tx store.Tx) error {
		err := fn(tx)
		if err == nil && a.At == call+":committing" {
			die()
		}
		return err
	})
	if err == nil && a.At == call+":committed" {
		die()
	}
	return err
}

func (a *armed) over(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		call := ""
		if a.By == in.Header.Get(wire.HeaderKey) {
			call = map[string]string{"POST /v2/relay/items": "push", "GET /v2/relay/items": "pull", "POST /v2/relay/ack": "ack"}[in.Method+" "+in.URL.Path]
		}
		a.call.Store(&call)
		if call != "" && a.At == call+":answering" {
			next.ServeHTTP(httptest.NewRecorder(), in)
			die()
		}
		next.ServeHTTP(out, in)
	})
}

// run serves until it is killed, or its stdin ends with the test. It prints
// where it listens.
func (c relayTask) run() error {
	ctx := context.Background()
	now := func() time.Time { return time.UnixMilli(c.Now).UTC() }
	key, err := wire.ParsePrivateKey(c.Key)
	if err != nil {
		return err
	}
	st, err := sqlite.Open(ctx, sqlite.Options{Dir: c.Dir, Key: key.Public(), Now: now, SeqNow: func() int64 { return 0 }})
	if err != nil {
		return err
	}
	none := ""
	a := &armed{Store: st, relayTask: c}
	a.call.Store(&none)
	r, err := relay.New(ctx, relay.Options{Store: a, Key: key, Version: "test", Limits: relay.DefaultLimits(), Authority: authority.HostKey{}, Now: now})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("http://" + l.Addr().String())
	return http.Serve(l, a.over(server.New(server.Options{Relay: r}).Handler()))
}

// killedAt puts a child in the relay's place while during runs; it must have
// been killed at the point. Then the relay runs in this process again, so that
// it can be looked into.
func (r *testRelay) killedAt(point string, by *testHost, during func()) {
	r.w.t.Helper()
	r.stop()
	task := childTask{Do: "relay", Relayed: relayTask{Dir: r.dir, Key: r.key.Seed(), Now: r.w.now.Load(), At: point, By: by.Key().String()}}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashChildEnv+"="+string(must(json.Marshal(task))))
	cmd.Stderr = os.Stderr
	stdin, stdout := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	noError(r.w.t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	noError(r.w.t, err)
	proxy := httputil.NewSingleHostReverseProxy(must(url.Parse(strings.TrimSpace(line))))
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	proxy.ErrorHandler = func(out http.ResponseWriter, _ *http.Request, _ error) {
		if c, _, err := out.(http.Hijacker).Hijack(); err == nil {
			c.Close()
		}
	}
	r.mu.Lock()
	r.handler = proxy
	r.mu.Unlock()

	during()

	noError(r.w.t, stdin.Close())
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		r.w.t.Errorf("the relay at %s: got %v; want it killed there", point, err)
	}
	r.start()
}

func (r *testRelay) epoch() (epoch string) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) error {
		in, err := v.Info()
		epoch = in.Epoch
		return err
	}))
	return epoch
}

func TestF1_CrashOfTheRelayAtEachBoundary(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.tick()
	beta.tick()
	epoch := w.relay.epoch()
	m1 := alpha.send(beta, "m1")
	alpha.lanFailedTwice()

	w.relay.killedAt("push:committing", alpha, func() { same(t, "(a) accepted", alpha.relayOnly().Accepted, 0) })
	same(t, "(a) at the relay", w.relay.queued(beta), 0)
	same(t, "(a) outbox", alpha.outbox(), 1)

	w.relay.killedAt("push:committed", alpha, func() { same(t, "(b) accepted", alpha.relayOnly().Accepted, 0) })
	same(t, "(b) at the relay", w.relay.queued(beta), 1)
	same(t, "(b) outbox", alpha.outbox(), 1)
	item := w.relay.held(beta)[0]

	w.pass(time.Minute)
	w.relay.killedAt("pull:answering", beta, func() {
		same(t, "(c) accepted", alpha.relayOnly().Accepted, 1)
		same(t, "(c) seq", ask[int64](alpha, "SELECT seq FROM relay_sent WHERE msg = ?", m1), item.Seq)
		same(t, "(c) time", ask[int64](alpha, "SELECT accepted_at FROM relay_sent WHERE msg = ?", m1), item.AcceptedAt.UnixMilli())
		same(t, "(c) epoch", ask[string](alpha, "SELECT epoch FROM relay_sent WHERE msg = ?", m1), epoch)
		same(t, "(c) outbox", alpha.outbox(), 0)
		same(t, "(c) received", beta.tick().Relay.Received, 0)
	})
	same(t, "(c) inbox", beta.inbox(), 0)
	same(t, "(c) at the relay", w.relay.queued(beta), 1)

	w.relay.killedAt("ack:committing", beta, func() { same(t, "(d) received", beta.tick().Relay.Received, 1) })
	same(t, "(d) at the relay", w.relay.queued(beta), 1)
	same(t, "(d) acked", w.relay.ackedBy(beta), 0)
	same(t, "(d) inbox", beta.inbox(), 1)

	w.relay.killedAt("ack:committed", beta, func() { same(t, "(e) received", beta.tick().Relay.Received, 0) })
	same(t, "(e) at the relay", w.relay.queued(beta), 0)
	same(t, "(e) acked", w.relay.ackedBy(beta), item.Seq)
	same(t, "(e) not noted yet", beta.relayRow().acked, 0)

	same(t, "(f) received", beta.tick().Relay.Received, 0)
	same(t, "(f) ack noted", beta.relayRow().acked, item.Seq)
	same(t, "(f) inbox", beta.inbox(), 1)
	m2 := alpha.send(beta, "m2")
	alpha.lanFailedTwice()
	same(t, "(f) accepted", alpha.relayOnly().Accepted, 1)
	same(t, "(f) m2 received", beta.tick().Relay.Received, 1)
	if seq := ask[int64](alpha, "SELECT seq FROM relay_sent WHERE msg = ?", m2); seq <= item.Seq {
		t.Errorf("(f) seq of m2: got %d; want it above %d", seq, item.Seq)
	}
	same(t, "(f) inbox with m2", beta.inbox(), 2)
	same(t, "(f) epoch", w.relay.epoch(), epoch)
}
