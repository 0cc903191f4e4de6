package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// The benchmarks drive a host against a real relay in the same process, over
// loopback and real files: both share the processor, as on a small machine.
// Each has a naive variant beside it, so that a ratio can be read off one run.
// None of them passes or fails by time; they fail when mail is lost or doubled.

func BenchmarkHostSeal(b *testing.B) {
	for _, size := range []int{2 << 10, 256 << 10} {
		b.Run(kib(size), func(b *testing.B) {
			home, work := wiretest.NewHost("home"), wiretest.NewHost("work")
			env := home.Draft(work, "report", strings.Repeat("x", size))
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := wire.Seal(env, work.Enc.Public(), home.Key, home.Name); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHostOpen(b *testing.B) {
	for _, size := range []int{2 << 10, 256 << 10} {
		b.Run(kib(size), func(b *testing.B) {
			home, work := wiretest.NewHost("home"), wiretest.NewHost("work")
			_, sealed := home.Envelope(work, "report", strings.Repeat("x", size))
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := wire.VerifyEnvelope(sealed, home.Pub()); err != nil {
					b.Fatal(err)
				}
				if _, err := wire.Open(sealed, work.Enc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func kib(n int) string { return fmt.Sprintf("%dKiB", n>>10) }

// benchBody is the text of a message: sealed, encoded and signed it is 3 KiB.
var benchBody = strings.Repeat("The build is green. ", 42)

// waiting writes n messages for beta into alpha's outbox, ready for the relay.
func waiting(b *testing.B, alpha, beta *testHost, n int) {
	b.Helper()
	err := alpha.db.write(context.Background(), func(t *tx) error {
		for i := range n {
			t.now++ // ids begin with the time: mail of one moment would stand in random order
			d := Draft{From: "builder", To: []string{"reviewer@" + beta.Name()}, Subject: fmt.Sprint("report ", i), Body: benchBody}
			if _, err := alpha.Host.send(t, d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	alpha.w.pass(time.Duration(n) * time.Millisecond)
}

func roomy(l *relay.Limits) {
	l.MaxQueueItems, l.MaxSenderItems, l.MaxOwnerItems = 1e6, 1e6, 1e6
	l.MaxQueueBytes, l.MaxSenderBytes, l.MaxOwnerBytes = 1<<40, 1<<40, 1<<40
}

// untilDone ticks while there is more to do.
func untilDone(h *testHost) {
	for h.tick().More {
	}
}

const many = 10_000

// BenchmarkHostPush gives a relay 10,000 waiting rows; naive is one a request.
func BenchmarkHostPush(b *testing.B) {
	for _, v := range []struct {
		name  string
		batch int64
		rows  int
	}{{"batches", 200, many}, {"naive", 1, many / 20}} {
		b.Run(v.name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				w := newWorld(b, roomy, func(l *relay.Limits) { l.MaxBatch = v.batch })
				alpha, beta := w.host("alpha"), w.host("beta")
				pair(alpha, beta, false)
				beta.tick()
				alpha.tick()
				waiting(b, alpha, beta, v.rows)
				alpha.lanFailedTwice()
				b.StartTimer()
				untilDone(alpha)
				b.StopTimer()
				if n := w.relay.queued(beta); n != v.rows || alpha.outbox() != 0 {
					b.Fatalf("got %d items at the relay and %d rows in the outbox; want %d and none", n, alpha.outbox(), v.rows)
				}
			}
			b.ReportMetric(float64(v.rows*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkHostDrain takes in a queue of 10,000, one ack a page; naive is a
// transaction an item.
func BenchmarkHostDrain(b *testing.B) {
	for _, v := range []struct {
		name        string
		group, rows int
	}{{"pages", 100, many}, {"naive", 1, many / 10}} {
		b.Run(v.name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				w := newWorld(b, roomy)
				alpha, beta := w.host("alpha"), w.host("beta")
				pair(alpha, beta, false)
				beta.tick()
				alpha.tick()
				waiting(b, alpha, beta, v.rows)
				alpha.lanFailedTwice()
				untilDone(alpha)
				beta.group = v.group
				acks := 0
				beta.at = func(point string) {
					if point == "receive:acked" {
						acks++
					}
				}
				b.StartTimer()
				for beta.inbox() < v.rows {
					if _, _, err := beta.relayPass(context.Background(), nil, nil, true); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				if n := beta.inbox(); n != v.rows {
					b.Fatalf("got %d messages; want %d", n, v.rows)
				}
				if pages := (v.rows + 499) / 500; acks != pages {
					b.Fatalf("got %d acks; want %d, one a page", acks, pages)
				}
			}
			b.ReportMetric(float64(v.rows*b.N)/b.Elapsed().Seconds(), "items/s")
		})
	}
}

// BenchmarkHostRow is what one row costs beside 10 and beside 100,000 others
// that wait: to send it, to find it due, to postpone it.
func BenchmarkHostRow(b *testing.B) {
	for _, depth := range []int{10, 100_000} {
		b.Run(fmt.Sprintf("beside%d", depth), func(b *testing.B) {
			w := newWorld(b)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			waiting(b, alpha, beta, depth)
			alpha.sql("UPDATE outbox SET next_at = ?", w.now.Load()+time.Hour.Milliseconds()/2)
			noError(b, alpha.db.pool.QueryRow("PRAGMA wal_checkpoint(TRUNCATE)").Err()) // what was just written is not the row's cost
			b.ResetTimer()
			before := processorTime()
			for b.Loop() {
				w.pass(time.Millisecond)
				alpha.send(beta, "one more")
				err := alpha.db.write(context.Background(), func(t *tx) error {
					rows, _, err := due(t)
					if err == nil && len(rows) != 1 {
						return fmt.Errorf("got %d rows due; want 1", len(rows))
					}
					if err != nil {
						return err
					}
					return postpone(t, rows[0], "the bench says so")
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processorTime()-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// processorTime is what this process has used of the processor: beside the wait
// for the disk, which is most of a small write, it shows what a row itself costs.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakMemory is the most memory that a process has used so far, 0 where the
// system does not say. (What rusage says of a child begins with its parent's.)
func peakMemory(pid int) (bytes int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 10, 64)
			return n << 10
		}
	}
	return 0
}

// BenchmarkHostMemory is the most memory that a host's process has used after
// it took in a queue of 1,000 and one of 10,000. The queue is pushed by another
// host; the process is the real binary.
func BenchmarkHostMemory(b *testing.B) {
	bin := filepath.Join(b.TempDir(), "agentmbx")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/agentmbx/agentmbx/cmd/agentmbx").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	for _, depth := range []int{1000, many} {
		b.Run(fmt.Sprintf("queue%d", depth), func(b *testing.B) {
			most := int64(0)
			for range b.N {
				b.StopTimer()
				w := newWorld(b, roomy)
				w.now.Store(time.Now().UnixMilli()) // the process has a clock of its own
				alpha, beta := w.host("alpha"), w.host("beta")
				pair(alpha, beta, false)
				beta.tick()
				alpha.tick()
				waiting(b, alpha, beta, depth)
				alpha.lanFailedTwice()
				untilDone(alpha)
				w.now.Store(time.Now().UnixMilli())
				cmd := exec.Command(bin, "daemon", "--once", "--no-lan")
				cmd.Env = append(os.Environ(), "MBX_HOME="+beta.opts.Home, "MBX_RELAY_URL="+w.relay.url)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				b.StartTimer()
				noError(b, cmd.Start())
				done := make(chan error, 1)
				go func() { done <- cmd.Wait() }()
				err := error(nil)
				for running := true; running; {
					most = max(most, peakMemory(cmd.Process.Pid))
					select {
					case err = <-done:
						running = false
					case <-time.After(5 * time.Millisecond):
					}
				}
				b.StopTimer()
				if err != nil {
					b.Fatalf("daemon --once: %v\n%s", err, out.String())
				}
				if n := beta.inbox(); n != depth {
					b.Fatalf("got %d messages; want %d\n%s", n, depth, out.String())
				}
			}
			b.ReportMetric(float64(most)/(1<<20), "MiB-peak")
		})
	}
}
