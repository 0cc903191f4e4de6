package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// TestMain lets the test binary be the relays that the bench runs itself as.
func TestMain(m *testing.M) {
	if kind := os.Getenv(childEnv); kind != "" {
		exit(child(kind))
	}
	os.Exit(m.Run())
}

// TestSmoke runs every row with tiny numbers: what it proves is that no relay
// loses, doubles or forges an item, not how fast it is.
func TestSmoke(t *testing.T) {
	var out, talk bytes.Buffer
	o := config{out: &out, talk: &talk, senders: 4, targets: 4, plain: 840, dir: t.TempDir()}
	o.small()
	o.quick, o.window, o.idle = true, 50*time.Millisecond, 100*time.Millisecond
	if d, err := diskOf(o.dir); err == nil && d.memory {
		o.dir = "" // the test's folder is in memory; the bench finds a disk
	}
	if err := run(context.Background(), o); err != nil {
		t.Fatalf("%v\n%s", err, talk.String())
	}
	for _, want := range []string{"push, 1 item", "push, 20 items", "at depth", "items stored", "pull of", "long poll", "processor", "memory"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table has no row %q:\n%s", want, out.String())
		}
	}
	t.Log(talk.String(), out.String())
}

func TestUnknownRow(t *testing.T) {
	if err := run(t.Context(), config{only: "nonsense"}); err == nil {
		t.Error("got no error for a row that does not exist")
	}
}

// BenchmarkStore is the writer alone: what the relay asks of the store for each
// item of a push, with some items in a closure and 16 closures at a time. It
// reports processor time too, which a busy machine changes less.
func BenchmarkStore(b *testing.B) {
	for _, each := range []int{1, 16, 100} {
		b.Run(fmt.Sprintf("items=%d", each), func(b *testing.B) { benchStore(b, each) })
	}
}

func benchStore(b *testing.B, each int) {
	parent := &bench{config: config{senders: 16, targets: 16, plain: 840}, dir: benchDir(b)}
	if err := parent.begin(); err != nil {
		b.Fatal(err)
	}
	dir, err := parent.newStore(b.Context(), "store", slices.Concat(parent.senderHosts, parent.targetHosts), nil)
	if err != nil {
		b.Fatal(err)
	}
	st, err := sqlite.Open(b.Context(), sqlite.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	now := time.Now().UTC().Truncate(time.Millisecond)
	measureStore(b, st, each, func(i int) store.Item {
		id, w := parent.mail.next()
		return store.Item{
			Target: parent.targetHosts[i/each%16].pub, Sender: parent.senderHosts[i/each/16%16].pub, SenderHost: "sender", Kind: store.KindEnvelope,
			ID: id, Hash: [32]byte{1}, Size: int64(len(w)), AcceptedAt: now, ExpiresAt: now.Add(time.Hour), Wire: w,
		}
	})
}

// measureStore stores b.N items, so many in a closure, from 16 goroutines.
func measureStore(b *testing.B, st *sqlite.Store, each int, item func(i int) store.Item) {
	var was, is syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &was)
	work := make(chan []store.Item, 16)
	ended := make(chan error, 16)
	for range 16 {
		go func() {
			for items := range work {
				if err := st.Update(b.Context(), func(tx store.Tx) error { return pushItems(tx, items) }); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	n := 0
	b.ResetTimer()
	for n < b.N {
		items := make([]store.Item, each)
		for j := range items {
			items[j] = item(n + j)
		}
		n += each
		work <- items
	}
	close(work)
	for range 16 {
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &is)
	cpu := time.Duration(is.Utime.Nano() - was.Utime.Nano() + is.Stime.Nano() - was.Stime.Nano())
	b.ReportMetric(float64(cpu.Nanoseconds())/1000/float64(n), "cpu-µs/item")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1000/float64(n), "µs/item")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStoreScattered is the store under mail between everybody: no two
// items of a group touch the same pages. It is what page size and the number of
// indexes cost at most.
func BenchmarkStoreScattered(b *testing.B) {
	const hosts, before = 20_000, 60_000
	parent := &bench{config: config{senders: 1, targets: 1, plain: 840}, dir: benchDir(b)}
	if err := parent.begin(); err != nil {
		b.Fatal(err)
	}
	keys := make([]wire.PublicKey, hosts)
	for i := range keys {
		_, _ = rand.Read(keys[i][:])
	}
	dir, err := parent.newStore(b.Context(), "store", nil, func(st *sqlite.Store) error {
		return st.Update(b.Context(), func(tx store.Tx) error {
			for i, k := range keys {
				if err := enrol(tx, k, fmt.Sprintf("host-%d", i)); err != nil {
					return err
				}
			}
			for i := range before {
				if err := parent.insert(tx, keys[i%hosts], keys[(i*7919+1)%hosts], time.Now()); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		b.Fatal(err)
	}
	st, err := sqlite.Open(b.Context(), sqlite.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	measureStore(b, st, 1, func(i int) store.Item {
		id, w := parent.mail.next()
		now := time.Now()
		return store.Item{
			Target: keys[i*104729%hosts], Sender: keys[(i*1299709+3)%hosts], SenderHost: "sender", Kind: store.KindEnvelope,
			ID: id, Hash: [32]byte{1}, Size: int64(len(w)), AcceptedAt: now, ExpiresAt: now.Add(time.Hour), Wire: w,
		}
	})
}

// benchDir is a folder on a disk.
func benchDir(b *testing.B) string {
	dir, err := workFolder("")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// pushItems asks what a push asks.
func pushItems(tx store.Tx, items []store.Item) error {
	if _, err := tx.Info(); err != nil {
		return err
	}
	if _, err := tx.Enrolment(items[0].Sender); err != nil {
		return err
	}
	if _, err := tx.Enrolment(items[0].Target); err != nil {
		return err
	}
	if _, _, err := tx.Accepts(items[0].Target, items[0].Sender); err != nil {
		return err
	}
	for _, it := range items {
		if _, err := tx.Dedup(it.Sender, it.ID, it.Target); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("known before it was stored: %w", err)
		}
		if _, err := tx.QueueUsage(it.Target); err != nil {
			return err
		}
		if _, err := tx.ShareUsage(it.Target, it.Sender); err != nil {
			return err
		}
		if _, err := tx.Insert(it); err != nil {
			return err
		}
	}
	return nil
}
