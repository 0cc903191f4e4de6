package server_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
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

// faulty is a bug in whatever runs inside a transaction.
type faulty struct{}

func (faulty) Observe(_ store.Tx, e relay.Effect) error {
	if e.Kind == relay.Accepted {
		return errors.New("no such table: secrets")
	}
	return nil
}

func TestBugsAreAnsweredAndLogged(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.Observers = []relay.Observer{faulty{}}
		s.Limits.BodyBytesInFlight = 8 << 10 // two small bodies
		s.Authority = authorityFunc(func(a relay.Applicant) (relay.Grant, error) {
			if a.Name == "bug" {
				panic("a bug")
			}
			return relay.Grant{OK: true, By: "test"}, nil
		})
	}, times(server.Times{Share: time.Millisecond}))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	for msg, p := range map[string]*reply{
		"request panicked": r.tryEnrol(wiretest.NewHost("bug")),
		"request failed":   r.call(alpha, "POST", "/v2/relay/items", m{"items": []any{mail(alpha, beta)}}),
	} {
		id := p.header.Get("X-Request-Id")
		p.is(500).says(`{"error":"internal error, request %s","code":"INTERNAL"}`, id)
		same(t, msg, len(r.logs.find(map[string]string{"msg": msg, "level": "ERROR", "id": id})), 1)
	}
	for range 4 { // a bug keeps nothing of the memory for bodies
		r.tryEnrol(wiretest.NewHost("bug")).is(500)
	}
	same(t, "items", must(r.relay.Status(t.Context())).Totals.Items, 0)
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
