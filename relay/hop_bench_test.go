package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// BenchmarkAccountsHop verifies the hop of a host: of a relay of one's own beside a
// hosted one, and with few denials beside many.
func BenchmarkAccountsHop(b *testing.B) {
	for _, tt := range []struct {
		name    string
		hosted  bool
		denials int
	}{{"host-key", false, 10}, {"account", true, 10}, {"account-100000-denials", true, 100_000}} {
		b.Run(tt.name, func(b *testing.B) {
			r := newRig(b, func(s *setup) {
				if tt.hosted {
					hosted(s)
				}
			})
			h := r.enrol("beta", session{Account: "acme", Client: "c-1", For: time.Hour}.proof())
			for from := 0; from < tt.denials; from += 10_000 {
				ok(b, "denials", r.store.Update(b.Context(), func(tx store.Tx) error {
					for i := from; i < min(from+10_000, tt.denials); i++ {
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
			hop := relay.Hop{Host: h.Name, Key: h.Pub().String()}
			const path = "/v2/relay/items?after=0"
			hop.TS, hop.Sig = wire.SignHop(h.Key, "GET", path, nil, r.clock.Now())
			for b.Loop() {
				list, err := r.relay.Candidates(b.Context(), hop)
				if err == nil {
					_, err = r.relay.Verify(list, hop, "GET", path, nil)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
