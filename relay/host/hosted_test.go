package host

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The session with a hosted relay is renewed before it ends: nothing is
// published anew, and no call is refused on the way.
func TestSessionIsRenewedBeforeItsEnd(t *testing.T) {
	w := newHosted(t)
	alpha := w.member("alpha")
	calls := w.relay.listen(nil)
	same(t, "state", alpha.tick().Relay.State, relayOK)
	row := alpha.sessionRow()
	same(t, "ends", row.ends, t0.Add(10*time.Minute).UnixMilli())
	same(t, "renewed at", row.renewAt, t0.Add(8*time.Minute).UnixMilli())

	w.pass(8*time.Minute - time.Second)
	alpha.tick()
	same(t, "enrolments before it is time", calls.count("POST /v1/relay/enrol"), 1)
	w.pass(time.Second)
	alpha.tick()
	same(t, "the same token: enrolments", calls.count("POST /v1/relay/enrol"), 1)
	hasPart(t, "why", alpha.sessionRow().trouble, "MBX_ACCOUNT_TOKEN_FILE still gives the token that ends at 2026-10-02T12:10:00.000Z")
	w.pass(30 * time.Second)
	alpha.give(nil)
	same(t, "state", alpha.tick().Relay.State, relayOK)
	same(t, "enrolments", calls.count("POST /v1/relay/enrol"), 2)
	row = alpha.sessionRow()
	same(t, "ends", row.ends, w.clock().Add(10*time.Minute).UnixMilli())
	same(t, "trouble", row.trouble, "")
	w.pass(5 * time.Minute) // past the end of the first
	same(t, "state", alpha.tick().Relay.State, relayOK)
	same(t, "sealing keys published", calls.count("POST /v2/relay/enc-key"), 1)
	same(t, "noted", alpha.audited("relay.enrolled")+alpha.audited("relay.enrolment_lost"), 1)

	e := Options{Home: alpha.opts.Home}
	if data := string(must(os.ReadFile(e.Home + "/host.db"))); strings.Contains(data, strings.TrimSpace(string(must(os.ReadFile(alpha.opts.TokenFile))))) {
		t.Error("the database holds a token")
	}
}

// A daemon's tick that would leave the relay alone looks when it is time.
func TestQuietTicksRenewTheSession(t *testing.T) {
	w := newHosted(t)
	alpha := w.member("alpha")
	alpha.tick()
	same(t, "fresh", alpha.fresh(alpha.sessionNow()), true)
	alpha.give(jwkstest.JSON{"exp": w.clock().Add(20 * time.Second).Unix()})
	w.pass(9*time.Minute + 50*time.Second)
	alpha.give(jwkstest.JSON{"exp": w.clock().Add(25 * time.Second).Unix()})
	alpha.tick() // renews for 25 s: at 20 s the next one is due
	w.pass(9 * time.Second)
	same(t, "fresh before", alpha.fresh(alpha.sessionNow()), true)
	alpha.tick()
	w.pass(9 * time.Second)
	alpha.tick()
	w.pass(2 * time.Second)
	same(t, "fresh when it is time", alpha.fresh(alpha.sessionNow()), false)
}

// The end of a session in the middle of anything loses nothing and doubles
// nothing: the next pass enrols again, without a wait, and goes on.
func TestSessionEndsInMidCall(t *testing.T) {
	for _, call := range []string{
		"GET /v2/relay/enc-key", "POST /v2/relay/items", "GET /v2/relay/items", "POST /v2/relay/ack",
		"POST /v2/relay/items answered", "GET /v2/relay/items answered", "POST /v2/relay/ack answered",
	} {
		t.Run(call, func(t *testing.T) {
			w := newHosted(t)
			alpha, beta := w.member("alpha"), w.member("beta")
			pair(alpha.testHost, beta.testHost, false)
			beta.tick()
			alpha.give(jwkstest.JSON{"exp": w.clock().Add(time.Minute).Unix()})
			alpha.tick()
			// Something has been taken and acked before, so that a position matters.
			first := beta.sendByRelay(alpha.testHost, "earlier")
			same(t, "received", alpha.tick().Relay.Received, 1)
			in := beta.sendByRelay(alpha.testHost, "in")
			alpha.send(beta.testHost, "out")
			alpha.lanFailedTwice()

			what, answered := strings.CutSuffix(call, " answered")
			over := false
			w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
				out.Header().Set("Date", w.clock().Format(http.TimeFormat))
				hit := !over && in.Header.Get(wire.HeaderHost) == "alpha" && in.Method+" "+in.URL.Path == what
				if hit && !answered {
					over = true
					w.pass(time.Minute)
				}
				relay.ServeHTTP(out, in)
				if hit && answered { // the next call finds it over
					over = true
					w.pass(time.Minute)
				}
			})
			r := alpha.relayOnly()
			if !over {
				t.Fatal("no such call was made")
			}
			if r.State != relayOver && !(answered && r.State == relayOK) {
				t.Errorf("state: got %s; want %s", r.State, relayOver)
			}
			for _, m := range []*member{alpha, beta} {
				m.give(nil)
				same(t, m.Name()+"'s state then", m.tick().Relay.State, relayOK)
			}
			for range 3 {
				w.pass(30 * time.Second)
				alpha.lanFailedTwice()
				alpha.tick()
				beta.tick()
			}
			same(t, "alpha's inbox", alpha.inbox(), 2)
			same(t, "beta's inbox", beta.inbox(), 1)
			same(t, "outbox", alpha.outbox()+beta.outbox(), 0)
			for _, msg := range []string{first, in} {
				same(t, "beta's mail", beta.sentState(msg), "settled")
			}
			same(t, "alpha's mail", ask[string](alpha.testHost, "SELECT group_concat(DISTINCT state) FROM relay_sent"), "settled")
			same(t, "quarantined", ask[int64](alpha.testHost, "SELECT count(*) FROM quarantine"), 0)
			same(t, "went back in time", alpha.audited("relay.rewind")+alpha.audited("relay.epoch_changed"), 0)
			same(t, "lost enrolments", alpha.audited("relay.enrolment_lost"), 0)
		})
	}
}

// A long poll that waits ends with the session, and what comes then is received
// in the next one.
func TestSessionEndsWhileALongPollWaits(t *testing.T) {
	w := newHosted(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	pair(alpha.testHost, beta.testHost, false)
	beta.tick()
	alpha.give(jwkstest.JSON{"exp": w.clock().Add(time.Second).Unix()})
	alpha.tick()
	s := *alpha.sessionNow()
	s.enrolled = false // a later pass than the one that enrolled
	ended := make(chan error)
	go func() {
		var report RelayReport
		_, err := alpha.receive(context.Background(), &s, 25*time.Second, &report)
		ended <- err
	}()
	for look := time.NewTicker(10 * time.Millisecond); must(w.relay.relay.Status(context.Background())).LongPolls == 0; <-look.C {
	}
	w.pass(time.Second)
	if tr, is := (<-ended).(*trouble); !is || tr.state != relayOver {
		t.Fatalf("got %v; want the session over", tr)
	}
	beta.sendByRelay(alpha.testHost, "late")
	alpha.give(nil)
	r := alpha.tick().Relay
	same(t, "state", r.State, relayOK)
	same(t, "received", r.Received, 1)
}

// What a relay says of a token decides how soon it is asked again.
func TestRefusedTokens(t *testing.T) {
	for _, tt := range []struct {
		name, reason, state string
		prepare             func(m *member)
		waits               []time.Duration // of one refusal after the other
	}{
		{"none", "PROOF_MISSING", relayEnrolFailed, func(m *member) { m.opts.TokenFile = ""; m.reopen() }, []time.Duration{time.Minute, 2 * time.Minute}},
		{"of another relay", "TOKEN_AUDIENCE", relayEnrolFailed, func(m *member) { m.give(jwkstest.JSON{"aud": "https://api.example"}) }, []time.Duration{time.Minute, 2 * time.Minute}},
		{"too old", "TOKEN_EXPIRED", relayEnrolFailed, func(m *member) {
			m.give(jwkstest.JSON{"iat": t0.Add(-time.Hour).Unix(), "exp": t0.Add(-50 * time.Minute).Unix()})
		}, []time.Duration{time.Minute, 2 * time.Minute}},
		{"of another cloud key", "TOKEN_BINDING", relayEnrolFailed, func(m *member) { m.cloud = must(wire.GenerateKey()); m.give(nil) }, []time.Duration{time.Minute, 2 * time.Minute}},
		{"no keys", "KEYS_UNAVAILABLE", relayKeyless, func(m *member) { m.hosted.issuer.Serve(jwkstest.Status(500)) }, []time.Duration{time.Minute, time.Minute, time.Minute}},
		{"denied", "", relayDenied, func(m *member) { deny(m) }, []time.Duration{time.Minute, 2 * time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newHosted(t)
			alpha := w.member("alpha")
			tt.prepare(alpha)
			for i, wait := range tt.waits {
				before := w.clock()
				r := alpha.tick().Relay
				same(t, fmt.Sprint(i, ": state"), r.State, tt.state)
				hasPart(t, "detail", r.Detail, tt.reason)
				same(t, "reason", alpha.sessionRow().reason, tt.reason)
				same(t, "left alone for", time.UnixMilli(alpha.relayRow().holdUntil).Sub(before), wait)
				w.pass(wait)
			}
		})
	}
}

// deny puts a host on the relay's deny list.
func deny(m *member) {
	m.w.t.Helper()
	m.w.relay.change(func(tx store.Tx) error {
		return tx.AddDenial(store.Denial{HostFP: m.Key().Fingerprint(), Reason: "left the company", Source: "test", AddedAt: m.w.clock()})
	})
}

// A host that is denied while it is in use hears why, and the LAN goes on.
func TestDeniedWhileInUse(t *testing.T) {
	w := newHosted(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	pair(alpha.testHost, beta.testHost, true)
	alpha.tick()
	beta.tick()
	s := alpha.sessionNow()
	deny(alpha)
	var report RelayReport
	_, err := alpha.receive(context.Background(), s, 0, &report)
	if tr, is := err.(*trouble); !is || tr.state != relayDenied || !tr.hold || !strings.Contains(tr.detail, "left the company") {
		t.Errorf("got %v; want denied with the reason, and a hold", err)
	}
	r := alpha.tick()
	same(t, "state", r.Relay.State, relayDenied)
	hasPart(t, "detail", r.Relay.Detail, "left the company")
	alpha.send(beta.testHost, "hello")
	same(t, "over the LAN", alpha.tick().LAN.Sent, 1)
}

// A source that fails costs the session nothing while it lasts, and afterwards
// is asked every 30 seconds.
func TestTheSourceFails(t *testing.T) {
	w := newHosted(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	pair(alpha.testHost, beta.testHost, false)
	beta.tick()
	alpha.tick()
	noError(t, os.Remove(alpha.opts.TokenFile))
	w.pass(9 * time.Minute)
	beta.give(nil)
	beta.sendByRelay(alpha.testHost, "hello")
	r := alpha.tick().Relay
	same(t, "state", r.State, relayOK)
	same(t, "received", r.Received, 1)
	hasPart(t, "why", alpha.sessionRow().trouble, "MBX_ACCOUNT_TOKEN_FILE: ")

	w.pass(2 * time.Minute)
	calls := w.relay.listen(nil)
	r = alpha.tick().Relay
	same(t, "state", r.State, relayNoToken)
	same(t, "left alone for", time.UnixMilli(alpha.relayRow().holdUntil).Sub(w.clock()), 30*time.Second)
	alpha.tick()
	same(t, "calls meanwhile", calls.count("GET /v2/relay/info"), 1)
	same(t, "enrolments", calls.count("POST /v1/relay/enrol"), 0)
	alpha.give(nil)
	w.pass(30 * time.Second)
	same(t, "state", alpha.tick().Relay.State, relayOK)
}

// The old token of a session that is over is not shown again.
func TestTheEndedTokenIsNotShownAgain(t *testing.T) {
	w := newHosted(t)
	alpha := w.member("alpha")
	alpha.tick()
	w.pass(11 * time.Minute)
	calls := w.relay.listen(nil)
	r := alpha.tick().Relay
	same(t, "state", r.State, relayNoToken)
	hasPart(t, "detail", r.Detail, "still gives the token that ended at 2026-10-02T12:10:00.000Z")
	same(t, "enrolments", calls.count("POST /v1/relay/enrol"), 0)
}

// A session that was just made and is refused at once is left alone for a while.
func TestSessionOverRightAfterEnrolling(t *testing.T) {
	w := newHosted(t)
	alpha := w.member("alpha")
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.URL.Path == "/v2/relay/enc-key" {
			out.Header().Set("Date", w.clock().Format(http.TimeFormat))
			out.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(out, `{"error":"over","code":"SESSION_EXPIRED"}`)
			return
		}
		relay.ServeHTTP(out, in)
	})
	same(t, "state", alpha.tick().Relay.State, relayRefused)
	same(t, "left alone for", time.UnixMilli(alpha.relayRow().holdUntil).Sub(w.clock()), time.Minute)
}

// A relay that takes host keys gets no token, and no session is kept for it.
func TestNoTokenForAHostKeyRelay(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	var enrolled []string
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.URL.Path == "/v1/relay/enrol" {
			body := must(io.ReadAll(in.Body))
			enrolled = append(enrolled, string(body))
			in.Body = io.NopCloser(bytes.NewReader(body))
		}
		relay.ServeHTTP(out, in)
	})
	same(t, "state", alpha.tick().Relay.State, relayOK)
	if len(enrolled) != 1 || strings.Contains(enrolled[0], "proof") {
		t.Errorf("got %q; want one enrolment without a proof", enrolled)
	}
	same(t, "sessions that end", ask[int64](alpha, "SELECT count(*) FROM sessions WHERE ends + renew_at > 0"), 0)
}
