package backup

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// benchMiB is how large the store of a benchmark is.
func benchMiB() int {
	if n, err := strconv.Atoi(os.Getenv("MBX_BENCH_MIB")); err == nil && n > 0 {
		return n
	}
	return 64
}

const (
	benchItem    = 3700 // bytes, two to a page
	benchQueues  = 500
	benchWriters = 8
)

// mail is an item that nobody else has.
func mail(queue, n int) store.Item {
	body := bytes.Repeat([]byte(fmt.Sprintf("%08d ", n)), benchItem/9+1)[:benchItem]
	return store.Item{Target: secret(fmt.Sprint("queue ", queue%benchQueues)).Public(), Kind: store.KindEnvelope, ID: fmt.Sprint("bench-", n),
		Sender: secret("alpha").Public(), SenderHost: "alpha", Hash: wire.Hash(body), AcceptedAt: day0, ExpiresAt: day0.AddDate(0, 0, 14), Wire: body}
}

// bigStore is a store of about so many MiB; n is how many items it has.
func bigStore(b *testing.B, dir string, mib int) (s *sqlite.Store, n int) {
	b.Helper()
	s, err := sqlite.Open(b.Context(), sqlite.Options{Dir: dir, Key: relayKey})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	for total := mib << 20 / 8192 * 2; n < total; {
		first := n
		if err := s.Update(b.Context(), func(tx store.Tx) error {
			for n = first; n < min(first+1000, total); n++ {
				if _, err := tx.Insert(mail(n, n)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	return s, n
}

// load writes to a store as hosts do that push and pull, until ctx ends, and
// answers how long each write took.
func load(ctx context.Context, b *testing.B, s *sqlite.Store, first int) (took []time.Duration, n int) {
	var mu sync.Mutex
	var writers sync.WaitGroup
	n = first
	for range benchWriters {
		writers.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				it := mail(n, n)
				n++
				mu.Unlock()
				began := time.Now()
				err := s.Update(context.Background(), func(tx store.Tx) error {
					if _, err := tx.Insert(it); err != nil {
						return err
					}
					acked, err := tx.Acked(it.Target)
					if err != nil {
						return err
					}
					return tx.Page(it.Target, acked, 1, func(old store.Item) bool {
						_, err = tx.AckThrough(it.Target, old.Seq) // the store stays as large as it is
						return false
					})
				})
				if err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	return took, n
}

func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

// BenchmarkBackupOnline takes backups of a big store while hosts write to it: how
// long one takes, and what it does to the writers.
func BenchmarkBackupOnline(b *testing.B) {
	s, n := bigStore(b, b.TempDir(), benchMiB())
	f := &Folder{Dir: b.TempDir(), StoreDir: s.Dir(), Key: relayKey, Keep: 1, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	var alone, during []time.Duration
	var backups time.Duration
	count := 0
	for b.Loop() {
		began := time.Now()
		ctx, stop := context.WithCancel(b.Context())
		var err error
		var done sync.WaitGroup
		done.Go(func() {
			defer stop()
			_, err = f.Create(ctx, s, "", nil)
		})
		var took []time.Duration
		took, n = load(ctx, b, s, n)
		done.Wait()
		if err != nil {
			b.Fatal(err)
		}
		backups += time.Since(began)
		during = append(during, took...)
		// As long without one: the same disk, the same store.
		b.StopTimer()
		ctx, stop = context.WithTimeout(b.Context(), min(max(time.Since(began), 2*time.Second), 20*time.Second))
		took, n = load(ctx, b, s, n)
		stop()
		alone = append(alone, took...)
		if _, err := f.Prune(b.Context()); err != nil {
			b.Fatal(err)
		}
		count++
		b.StartTimer()
	}
	with, without := p99(during), p99(alone)
	b.ReportMetric(backups.Seconds()/float64(count), "s/backup")
	b.ReportMetric(float64(without.Microseconds())/1000, "p99-alone-ms")
	b.ReportMetric(float64(with.Microseconds())/1000, "p99-during-ms")
	b.ReportMetric(float64(with)/float64(without), "p99-ratio")
	b.ReportMetric(float64(len(during))/backups.Seconds(), "writes/s")
}

// BenchmarkBackupVerify verifies a big backup in a process of its own and tells
// the most memory that took.
func BenchmarkBackupVerify(b *testing.B) {
	dir := b.TempDir()
	s, _ := bigStore(b, dir, benchMiB())
	path := filepath.Join(b.TempDir(), "big.db")
	if err := s.Copy(b.Context(), path, nil); err != nil {
		b.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(st.Size())
	peak := 0
	for b.Loop() {
		child := exec.CommandContext(b.Context(), os.Args[0])
		child.Env = append(os.Environ(), childVar+"=verify and measure\n"+path)
		out, err := child.CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		kib, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			b.Skip("the peak of a process's memory is read from /proc")
		}
		peak = max(peak, kib)
	}
	b.ReportMetric(float64(peak)/1024, "peak-RSS-MiB")
}

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// measureChild verifies a file and prints the most memory this process had, in KiB.
func measureChild(args []string) error {
	r, err := Verify(context.Background(), args[0], Want{Key: relayKey})
	if err != nil || !r.Good {
		return fmt.Errorf("%w: %s", err, r.Fault())
	}
	status, _ := os.ReadFile("/proc/self/status") // elsewhere there is none
	if m := highWater.FindSubmatch(status); m != nil {
		fmt.Printf("%s\n", m[1])
	}
	return nil
}
