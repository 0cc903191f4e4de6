package drill

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// BenchmarkDrill drills a backup of MBX_BENCH_MIB (64) in a process of its own and
// reports its time, the time until the restored relay answered, and the most
// memory that it held.
func BenchmarkDrill(b *testing.B) {
	mib := 64
	if n, err := strconv.Atoi(os.Getenv("MBX_BENCH_MIB")); err == nil && n > 0 {
		mib = n
	}
	s := bigSite(b, int64(mib)<<20)
	began := time.Now()
	file := s.backup()
	b.Logf("the backup took %s", time.Since(began).Round(time.Millisecond))
	s.close()
	var rto, took, rss float64
	b.ResetTimer()
	for range b.N {
		lines := child(b, s.key, file, "", "")
		var r, k, m float64
		if _, err := fmt.Sscanf(lines[len(lines)-1], "done %g %g %g", &r, &k, &m); err != nil {
			b.Fatal(err)
		}
		rto, took, rss = rto+r, took+k, max(rss, m)
	}
	b.ReportMetric(took/float64(b.N), "s/drill")
	b.ReportMetric(rto/float64(b.N), "s-to-serve")
	b.ReportMetric(rss, "peak-MiB")
	b.ReportMetric(0, "ns/op")
	if st, err := os.Stat(file); err == nil {
		b.ReportMetric(float64(st.Size()>>20), "backup-MiB")
	}
}

// bigSite is a store of a size: envelopes of three KiB between a thousand hosts,
// in the order in which they would come.
func bigSite(b *testing.B, size int64) *site {
	s := &site{t: b, now: t0, key: must(wire.GenerateKey()), dir: filepath.Join(b.TempDir(), "store")}
	s.open()
	b.Cleanup(s.close)
	s.write(func(tx store.Tx) error {
		for i := range 1000 {
			s.hosts = append(s.hosts, wiretest.NewHost(fmt.Sprintf("host-%d", i)))
			if err := s.enrol(tx, s.hosts[i]); err != nil {
				return err
			}
		}
		return nil
	})
	rnd := rand.New(rand.NewPCG(1, 2))
	_, w := s.hosts[0].Envelope(s.hosts[1], "hello", strings.Repeat("the build is green ", 90))
	for done := int64(0); done < size; {
		s.write(func(tx store.Tx) error {
			for range 500 {
				// One sealed body for all, each with bytes of its own.
				body := append([]byte(nil), w...)
				id := wire.NewID(s.now)
				copy(body[len(body)-len(id):], id)
				from, to := s.hosts[rnd.IntN(len(s.hosts))], s.hosts[rnd.IntN(len(s.hosts))]
				if _, err := tx.Insert(store.Item{
					Target: to.Pub(), Sender: from.Pub(), SenderHost: from.Name, Kind: store.KindEnvelope, ID: id, Hash: wire.Hash(body),
					Size: int64(len(body)), AcceptedAt: s.now, ExpiresAt: s.now.Add(time.Hour), Wire: body,
				}); err != nil {
					return err
				}
			}
			return nil
		})
		done = fileSize(b, filepath.Join(s.dir, sqlite.FileName))
	}
	return s
}

func fileSize(b *testing.B, path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	return st.Size()
}
