package sqlite

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

// BenchmarkDenied asks whether a host is denied, which every call of it does, with
// few and with many denials: of others, and of the host and its credential itself
// that are over.
func BenchmarkDenied(b *testing.B) {
	fp, now := storetest.Key("host").Fingerprint(), time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	for _, many := range []struct {
		name string
		n    int
		of   func(i int) store.Denial
	}{
		{"10 of others", 10, func(i int) store.Denial { return store.Denial{HostFP: fmt.Sprint("fp-", i)} }},
		{"100000 of others", 100_000, func(i int) store.Denial { return store.Denial{HostFP: fmt.Sprint("fp-", i), ClientID: "client"} }},
		{"100000 of it, over", 100_000, func(i int) store.Denial {
			return []store.Denial{
				{HostFP: fp, Until: now.Add(-time.Minute)}, {ClientID: "client", Until: now.Add(-time.Minute)},
				{HostFP: fp, ClientID: "client", Until: now.Add(-time.Minute)}, {HostFP: fp, ClientID: "another"},
			}[i%4]
		}},
	} {
		o := testOptions(b.TempDir())
		s, err := Open(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Update(b.Context(), func(tx store.Tx) error {
			for i := range many.n {
				d := many.of(i)
				d.AddedAt = now
				if err := tx.AddDenial(d); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		for _, client := range []string{"", "client"} {
			b.Run(fmt.Sprintf("%s, credential %q", many.name, client), func(b *testing.B) {
				if err := s.View(b.Context(), func(r store.Reader) error {
					for b.Loop() {
						if _, err := r.Denied(fp, client, now); err != store.ErrNotFound {
							return fmt.Errorf("got %v; want it denied by nobody", err)
						}
					}
					return nil
				}); err != nil {
					b.Fatal(err)
				}
			})
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
