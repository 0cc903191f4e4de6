package server_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestC10_BoundsOfEnrolment(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.Limits.OpenChallenges, s.Limits.Enrolments, s.Limits.EnrolPerMinute, s.Life = 2, 2, 1000, 50*time.Millisecond
	})
	ask := func(h *wiretest.Host) *reply {
		return r.call(nil, "POST", "/v1/relay/challenge", m{"host": h.Name, "pubkey": h.Pub()})
	}
	for _, name := range []string{"my host", "host!", "", strings.Repeat("x", 64)} { // a
		ask(&wiretest.Host{Name: name, Key: wiretest.NewHost("x").Key}).is(400, "BAD_HOST")
	}
	r.call(nil, "POST", "/v1/relay/challenge", m{"host": "a", "pubkey": strings.Repeat("A", 5000)}).is(400, "BAD_KEY") // b

	a, b, c := wiretest.NewHost("a"), wiretest.NewHost("b"), wiretest.NewHost("c") // c
	challenge := r.challenge(a)
	ask(b).is(200)
	ask(c).is(503, "FULL")
	ask(b).is(200) // in place of its older one
	r.now.Add(51)
	ask(c).is(200)
	r.call(nil, "POST", "/v1/relay/enrol", enrolBody(a, challenge)).is(401, "BAD_CHALLENGE") // d

	r.now.Add(51) // e
	r.tryEnrol(a).is(200)
	r.tryEnrol(b).is(200)
	r.tryEnrol(c).is(503, "FULL")
	r.tryEnrol(b).is(200)

	long := enrolBody(b, r.challenge(b)) // f
	long["owner_fp"] = strings.Repeat("f", 65)
	r.call(nil, "POST", "/v1/relay/enrol", long).is(400, "BAD_OWNER")

	for _, path := range []string{"/v1/relay/enrol", "/v1/relay/challenge", "/v2/relay/rotate"} { // h
		r.call(nil, "POST", path, `{"proof":"`+strings.Repeat("x", 20_000)+`"}`).is(413, "TOO_LARGE")
	}
}

func TestC10g_RateOfAnAddress(t *testing.T) {
	r := newRig(t, limits(func(l *relay.Limits) { l.EnrolPerMinute = 3 }), func(s *setup) { s.Server.Trust = server.TrustXFF })
	ask := func(path, xff string) *reply {
		q := r.request(nil, "POST", path, `{"host":"a"}`)
		q.Header["X-Forwarded-For"] = []string{xff}
		return r.do(q)
	}
	ask("/v1/relay/challenge", "9.9.9.9, 1.2.3.4").is(400)
	ask("/v1/relay/enrol", "8.8.8.8, 1.2.3.4").is(400)
	ask("/v2/relay/rotate", "1.2.3.4").is(400)
	ask("/v1/relay/challenge", "1.2.3.4").is(429, "RATE") // counted before it is read
	ask("/v1/relay/challenge", "1.2.3.5").is(400)
	r.now.Add(time.Minute.Milliseconds())
	ask("/v1/relay/challenge", "1.2.3.4").is(400)
}

func TestTenThousandOpenChallenges(t *testing.T) {
	r := newRig(t, noRates)
	r.direct = true
	var workers sync.WaitGroup
	key := func(i int) string {
		var k [32]byte
		binary.LittleEndian.PutUint32(k[:], uint32(i))
		return base64.StdEncoding.EncodeToString(k[:])
	}
	ask := func(i int) *reply {
		return r.call(nil, "POST", "/v1/relay/challenge", m{"host": "h", "pubkey": key(i)})
	}
	const all, n = 10_000, 4
	for w := range n {
		workers.Go(func() {
			for i := w; i < all; i += n {
				if p := ask(i); p.status != 200 {
					t.Errorf("challenge %d: got %d %s; want 200", i, p.status, p.body)
				}
			}
		})
	}
	workers.Wait()
	ask(all).is(503, "FULL")
	ask(0).is(200)
	r.now.Add((5 * time.Minute).Milliseconds())
	ask(all).is(200)
}

// authorityFunc decides by a function.
type authorityFunc func(relay.Applicant) (relay.Grant, error)

func (f authorityFunc) Authorize(_ context.Context, a relay.Applicant) (relay.Grant, error) {
	return f(a)
}

func TestG8_AuthorityOverHTTP(t *testing.T) {
	var proof string
	r := newRig(t, func(s *setup) {
		s.Authority = authorityFunc(func(a relay.Applicant) (relay.Grant, error) {
			switch proof = string(a.Proof); proof {
			case `{"n":1.50, "x":[]}`:
				return relay.Grant{OK: true, By: "stub", Account: "acc"}, nil
			case `"throw"`:
				return relay.Grant{}, errors.New("no answer")
			}
			return relay.Grant{Reason: strings.Repeat("no ", 100)}, nil
		})
	})
	enrol := func(h *wiretest.Host, proof string) *reply {
		sig := h.Key.Sign(wire.EnrolPayload(r.challenge(h), h.Name, h.Pub(), ""))
		return r.call(nil, "POST", "/v1/relay/enrol",
			fmt.Sprintf(`{"host":"%s","pubkey":"%s","sig":"%s","proof":%s}`, h.Name, h.Pub(), sig, proof)) // without owner_fp
	}
	alpha := wiretest.NewHost("alpha")
	p := enrol(alpha, `7`).is(403, "DENIED")
	same(t, "reason", len(p.error()), 200)
	enrol(alpha, `"throw"`).is(403, "DENIED")
	enrol(alpha, `{"n":1.50, "x":[]}`).is(200)
	same(t, "the proof as sent", proof, `{"n":1.50, "x":[]}`)
	enrol(wiretest.NewHost("Alpha"), `{"n":1.50, "x":[]}`).is(409, "NAME_TAKEN")
	must(r.relay.RevokeHost(t.Context(), alpha.Pub(), relay.Deed{Actor: "test"}))
	enrol(alpha, `7`).is(403, "REVOKED")
}
