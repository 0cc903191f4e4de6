package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// BenchmarkAccountsHop verifies hops of a host: at a relay of one's own, at a hosted
// one, and at a hosted one with many denials. They take turns, so that whatever else
// the machine does meets all three alike, and the ratios are of one run.
func BenchmarkAccountsHop(b *testing.B) {
	kinds := []struct {
		unit    string
		hosted  bool
		denials int
		hop     func()
		took    time.Duration
	}{{unit: "host-key", denials: 10}, {unit: "account", hosted: true, denials: 10}, {unit: "account-100000-denials", hosted: true, denials: 100_000}}
	for i := range kinds {
		k := &kinds[i]
		r := newRig(b, func(s *setup) {
			if k.hosted {
				hosted(s)
			}
		})
		h := r.enrol("beta", session{Account: "acme", Client: "c-1", For: time.Hour}.proof())
		r.denyOthers(k.denials)
		hop := relay.Hop{Host: h.Name, Key: h.Pub().String()}
		const path = "/v2/relay/items?after=0"
		hop.TS, hop.Sig = wire.SignHop(h.Key, "GET", path, nil, r.clock.Now())
		k.hop = func() {
			list, err := r.relay.Candidates(b.Context(), hop)
			if err == nil {
				_, err = r.relay.Verify(list, hop, "GET", path, nil)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	n := 0
	for b.Loop() {
		for i := range kinds {
			began := time.Now()
			kinds[i].hop()
			kinds[i].took += time.Since(began)
		}
		n++
	}
	for _, k := range kinds {
		b.ReportMetric(float64(k.took.Nanoseconds())/float64(n), "ns/"+k.unit)
		b.ReportMetric(float64(k.took)/float64(kinds[0].took), "x/"+k.unit)
	}
	b.ReportMetric(0, "ns/op")
}

// denyOthers adds denials of others, by key and by credential in turn.
func (r *rig) denyOthers(n int) {
	r.t.Helper()
	for from := 0; from < n; from += 10_000 {
		ok(r.t, "denials", r.store.Update(r.t.Context(), func(tx store.Tx) error {
			for i := from; i < min(from+10_000, n); i++ {
				d := store.Denial{HostFP: fmt.Sprintf("%04x-0000-0000-%04x", i>>16, i&0xffff), Reason: "gone", Source: relay.SourceIssuer, AddedAt: t0}
				if i%2 == 0 {
					d.HostFP, d.ClientID = "", fmt.Sprintf("gone-%d", i)
				}
				if err := tx.AddDenial(d); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}
