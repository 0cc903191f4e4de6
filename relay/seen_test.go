package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// lastSeen is what the relay knows, and what the store alone does, as times since t0.
func (r *rig) lastSeen(h *wiretest.Host) (known, stored string) {
	r.t.Helper()
	since := func(at time.Time) string {
		if at.IsZero() {
			return "never"
		}
		return at.Sub(t0).String()
	}
	r.view(func(v store.Reader) error {
		at, err := r.relay.LastSeen(v, h.Pub())
		ok(r.t, "last seen", err)
		kept, err := v.Seen(h.Pub())
		known, stored = since(at), since(kept)
		return err
	})
	return known, stored
}

// A host is seen when its hop verifies: in memory at once, in the store at most
// hourly, with the heartbeat.
func TestLastSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	beta := r.enrol("beta")
	for _, tt := range []struct {
		name   string
		at     time.Duration
		do     func()
		known  string
		stored string
	}{
		{"enrolled only", 0, func() {}, "never", "never"},
		{"a hop", 0, func() { r.caller(beta) }, "0s", "never"},
		{"a heartbeat", time.Minute, func() {}, "0s", "0s"},
		{"a later hop", 59 * time.Minute, func() { r.caller(beta) }, "59m0s", "0s"},
		{"a clock set back", 30 * time.Minute, func() { r.caller(beta) }, "59m0s", "0s"},
		{"within the hour", 59 * time.Minute, func() {}, "59m0s", "0s"},
		{"a restart", 59 * time.Minute, func() { r.restart() }, "0s", "0s"},
		{"a hop after it", 59 * time.Minute, func() { r.caller(beta) }, "59m0s", "0s"},
		{"the heartbeat after it", 59 * time.Minute, func() {}, "59m0s", "0s"},
		{"an hour", time.Hour, func() { r.caller(beta) }, "1h0m0s", "0s"},
		{"its heartbeat", time.Hour, func() {}, "1h0m0s", "1h0m0s"},
		{"blocked, and there", 3 * time.Hour, func() {
			same(t, "block", r.block(beta.Pub(), time.Time{}, operator), true)
			_, err := r.hop(beta)
			refused(t, "hop", err, relay.Unauthorized, "DENIED")
		}, "3h0m0s", "1h0m0s"},
		{"a forged hop", 4 * time.Hour, func() {
			forged := *beta
			forged.Key = must(wire.GenerateKey())
			hop := relay.Hop{Host: beta.Name, Key: beta.Pub().String()}
			hop.TS, hop.Sig = wire.SignHop(forged.Key, "GET", "/", nil, r.clock.Now())
			list := must(r.relay.Candidates(t.Context(), hop))
			if _, err := r.relay.Verify(list, hop, "GET", "/", nil); err == nil {
				t.Error("a forged hop: got no error")
			}
		}, "3h0m0s", "3h0m0s"},
	} {
		r.clock.Set(t0.Add(tt.at))
		tt.do()
		known, kept := r.lastSeen(beta)
		if tt.name == "a heartbeat" || tt.name == "within the hour" || tt.name == "the heartbeat after it" || tt.name == "its heartbeat" || tt.name == "a forged hop" {
			ok(t, "beat", r.relay.Beat(t.Context()))
			known, kept = r.lastSeen(beta)
		}
		same(t, tt.name, known+" "+kept, tt.known+" "+tt.stored)
	}
}

// A heartbeat stores a bounded number of hosts; the next ones store the rest.
func TestLastSeenIsStoredInBatches(t *testing.T) {
	t.Parallel()
	if raceDetector {
		t.Skip("a thousand signatures from one goroutine: nothing to detect")
	}
	r := newRig(t)
	const n = 1007
	hosts := make([]*wiretest.Host, n)
	for i := range hosts {
		hosts[i] = wiretest.NewHost(fmt.Sprint("h", i))
	}
	ok(t, "enrol", r.store.Update(t.Context(), func(tx store.Tx) error {
		for _, h := range hosts {
			if err := tx.PutEnrolment(store.Enrolment{Key: h.Pub(), Name: h.Name, AuthorizedBy: "test", EnrolledAt: t0}); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, h := range hosts {
		r.caller(h)
	}
	for beat, want := range []int{1000, n, n} {
		ok(t, "beat", r.relay.Beat(t.Context()))
		kept := 0
		r.view(func(v store.Reader) error {
			for _, h := range hosts {
				at, err := v.Seen(h.Pub())
				if err != nil {
					return err
				}
				if !at.IsZero() {
					kept++
				}
			}
			return nil
		})
		same(t, fmt.Sprint("stored after heartbeat ", beat+1), kept, want)
	}
}
