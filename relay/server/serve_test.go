package server_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/server"
)

func TestStopIsBounded(t *testing.T) {
	r := newRig(t, times(server.Times{Stop: 50 * time.Millisecond}))
	alpha := r.enrol("alpha")
	c := r.dial()
	must(io.WriteString(c, r.rawHead(alpha, "POST", "/v2/relay/items", nil, "Content-Length: 100", "Expect: 100-continue")))
	b := make([]byte, 1)
	must(c.Read(b)) // it is waiting for the body, for thirty seconds
	r.stop()
	err := <-r.served
	r.served <- nil
	if err != nil {
		t.Errorf("serve: got %v; want nil", err)
	}
	io.Copy(io.Discard, c) // cut off
}

func TestUnaskedEndIsAnError(t *testing.T) {
	r := newRig(t)
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	l.Close()
	if err := r.server.Serve(t.Context(), l); err == nil {
		t.Error("serve on a closed listener: got nil; want an error")
	}
}

func TestHealth(t *testing.T) {
	r := newRig(t)
	r.call(nil, "GET", "/healthz", nil).is(200).says(`{"ok":true}`)
	r.call(nil, "HEAD", "/healthz", nil).is(200).says(``)
	r.call(nil, "GET", "/readyz", nil).is(200).says(`{"ok":true,"problems":[]}`)
	r.now.Add((3 * relay.BeatEvery).Milliseconds())
	r.call(nil, "GET", "/readyz", nil).is(503).says(`{"ok":false,"problems":["the store has not taken a heartbeat for a while"]}`)
	r.call(nil, "GET", "/healthz", nil).is(200)
	must(0, r.relay.Beat(t.Context()))
	r.call(nil, "GET", "/readyz?x=1", nil).is(200)
}

func TestClosedStore(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	must(0, r.store.Close())
	r.call(nil, "GET", "/readyz", nil).is(503).says(`{"ok":false,"problems":["the store does not answer"]}`)
	r.call(nil, "GET", "/healthz", nil).is(200)
	r.call(alpha, "GET", "/v2/relay/items?after=0", nil).is(503, "STOPPING")
	r.call(nil, "GET", "/v2/relay/info", nil).is(503, "STOPPING")
	r.reopen()
}
