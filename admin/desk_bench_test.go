package admin_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// BenchmarkDesk asks for what each screen shows first: of a store with 1,000
// items in 100 queues, and of one with a million in 100,000. The times are
// medians; "x" is how many times the small store's the large one's is.
func BenchmarkDesk(b *testing.B) {
	small := benchDesk(b, 100, 1000)
	large := benchDesk(b, 100_000, 1_000_000)
	page := admin.Paging{Limit: 50}
	for _, call := range []struct {
		name string
		ask  func(ctx context.Context, l *admin.Local) error
	}{
		{"overview", func(ctx context.Context, l *admin.Local) error { _, err := l.Overview(ctx); return err }},
		{"queues-depth", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.Queue], error) {
			return l.Queues(ctx, admin.QueueFilter{Paging: page, Sort: store.ByDepth})
		})},
		{"queues-bytes", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.Queue], error) {
			return l.Queues(ctx, admin.QueueFilter{Paging: page, Sort: store.ByBytes})
		})},
		{"queues-oldest", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.Queue], error) {
			return l.Queues(ctx, admin.QueueFilter{Paging: page, Sort: store.ByOldest})
		})},
		{"items", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.Item], error) {
			return l.Items(ctx, admin.ItemFilter{Paging: page})
		})},
		{"enrolments", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.Enrolment], error) {
			return l.Enrolments(ctx, admin.EnrolmentFilter{Paging: page})
		})},
		{"senders", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.SenderList], error) {
			return l.SenderLists(ctx, page)
		})},
		{"quarantine", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.Quarantined], error) {
			return l.Quarantine(ctx, admin.QuarantineFilter{Paging: page})
		})},
		{"denials", first(func(ctx context.Context, l *admin.Local) (admin.Page[admin.Denial], error) {
			return l.Denials(ctx, admin.DenialFilter{Paging: page})
		})},
		{"jobs", func(ctx context.Context, l *admin.Local) error { _, err := l.Jobs(ctx); return err }},
		{"log", func(ctx context.Context, l *admin.Local) error {
			_, err := l.Log(ctx, admin.LogFilter{Limit: 50})
			return err
		}},
	} {
		b.Run(call.name, func(b *testing.B) {
			var of [2][]time.Duration
			for range max(b.N, 100) {
				for i, l := range []*admin.Local{small, large} { // in turn: what else the machine does meets both
					began := time.Now()
					if err := call.ask(b.Context(), l); err != nil {
						b.Fatal(err)
					}
					of[i] = append(of[i], time.Since(began))
				}
			}
			few, many := median(of[0]), median(of[1])
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ms(few), "ms-1k")
			b.ReportMetric(ms(many), "ms-1M")
			b.ReportMetric(float64(many)/float64(few), "x")
		})
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// first asks for a first page and wants it full.
func first[T any](ask func(context.Context, *admin.Local) (admin.Page[T], error)) func(context.Context, *admin.Local) error {
	return func(ctx context.Context, l *admin.Local) error {
		p, err := ask(ctx, l)
		if err == nil && len(p.Items) != 50 {
			err = fmt.Errorf("got a page of %d rows; want 50", len(p.Items))
		}
		return err
	}
}

// benchDesk is the desk of a store with these many hosts and items.
func benchDesk(b *testing.B, hosts, items int) *admin.Local {
	b.Helper()
	dir := b.TempDir()
	key, err := wire.GenerateKey()
	if err != nil {
		b.Fatal(err)
	}
	s, err := sqlite.Open(b.Context(), sqlite.Options{Dir: dir, Key: key.Public()})
	if err != nil {
		b.Fatal(err)
	}
	if err := fillStore(b.Context(), s, hosts, items); err != nil {
		b.Fatal(err)
	}
	r, err := relay.New(b.Context(), relay.Options{Store: s, Key: key, Version: "bench", Limits: relay.DefaultLimits(), Authority: authority.HostKey{}})
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	l, err := admin.NewLocal(admin.Options{Relay: r, Store: s, Key: key, Version: "bench", BackupSchedule: "17 3 * * *", DrillSchedule: "43 4 * * 0",
		Backups: &backup.Folder{Dir: filepath.Join(dir, "backups"), StoreDir: dir, Key: key.Public(), Keep: 7, Version: "bench", Log: log, Now: time.Now}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(l.Close(), s.Close()); err != nil {
			b.Error(err)
		}
	})
	return l
}

// fillStore enrols hosts with sender lists, gives each queue the same number of
// items and 60 of them one of a MiB, holds 60 items and adds 60 denials.
func fillStore(ctx context.Context, s *sqlite.Store, hosts, items int) error {
	now := time.Now().UTC().Truncate(time.Millisecond)
	keys := make([]wire.PublicKey, hosts)
	for i := range keys {
		if _, err := rand.Read(keys[i][:]); err != nil { // nobody will sign with these
			return err
		}
	}
	body := make([]byte, 1200)
	for at := 0; at < hosts; at += 50 {
		if err := s.Update(ctx, func(tx store.Tx) error {
			for i := at; i < min(at+50, hosts); i++ {
				if err := tx.PutEnrolment(store.Enrolment{Key: keys[i], Name: fmt.Sprintf("host-%06d", i), AuthorizedBy: "host-key", EnrolledAt: now}); err != nil {
					return err
				}
				sender := keys[(i+1)%hosts]
				if err := tx.PutSenderList(store.SenderList{Target: keys[i], Senders: []wire.PublicKey{sender}, IAT: now, Record: []byte("{}"), Sig: "s"}); err != nil {
					return err
				}
				for n := range items / hosts {
					it := store.Item{Target: keys[i], Kind: store.KindEnvelope, ID: fmt.Sprintf("%d-%d", i, n), Sender: sender, SenderHost: "sender",
						AcceptedAt: now.Add(time.Duration(i%5000) * time.Second), ExpiresAt: now.Add(300 * time.Hour), Wire: body}
					if i < 60 && n == 0 {
						it.Wire = make([]byte, 1<<20)
					}
					if _, err := tx.Insert(it); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return s.Update(ctx, func(tx store.Tx) error {
		var refs []store.Item
		if err := tx.Items(store.ItemMark{}, func(it store.Item) bool { refs = append(refs, it); return len(refs) < 60 }); err != nil {
			return err
		}
		for i, it := range refs {
			if err := errors.Join(tx.Hold(it.Target, it.Seq, now, "bench", "bench"),
				tx.AddDenial(store.Denial{HostFP: keys[i].Fingerprint(), Reason: "bench", Source: "operator", AddedAt: now})); err != nil {
				return err
			}
		}
		for range 60 {
			if err := tx.AppendLog(now, "sweep", []byte(`{"bench":true}`)); err != nil {
				return err
			}
		}
		return nil
	})
}
