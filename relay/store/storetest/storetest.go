// Package storetest is the contract of package store as tests: what every
// backend has to pass. It knows the interfaces and nothing of any database.
package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Config is what the suite gives a new store.
type Config struct {
	Key      wire.PublicKey   // the relay key that the store is bound to
	Now      func() time.Time // the clock
	SeqFloor func() int64     // no seq is allocated below it
}

// An Opener makes room for one fresh store and returns what opens it. The
// suite calls open again after a Close, to find the same store as it was left.
type Opener func(t *testing.T, c Config) (open func() (store.Store, error))

// Run tests the stores that open opens.
func Run(t *testing.T, open Opener) {
	for _, area := range []struct {
		name  string
		tests []subtest
	}{
		{"updates", updateTests},
		{"life", lifeTests},
		{"hosts", hostTests},
		{"accounts", accountTests},
		{"queues", queueTests},
		{"counters", counterTests},
		{"sweeps", sweepTests},
		{"rotation", rotationTests},
		{"held", heldTests},
		{"released", releaseTests},
		{"lists", listTests},
		{"runs", runTests},
		{"meta", metaTests},
		{"model", modelTests},
	} {
		t.Run(area.name, func(t *testing.T) {
			for _, st := range area.tests {
				t.Run(st.name, func(t *testing.T) {
					t.Parallel()
					st.run(Start(t, open))
				})
			}
		})
	}
}

type subtest struct {
	name string
	run  func(h *Harness)
}

// epoch0 is when the suite's clock starts.
var epoch0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// RelayKey is the key that the suite's stores are bound to.
var RelayKey = Key("relay")

// Harness is an open store under test, its clock and its sequence floor. The
// test's end checks the store against itself before it closes it.
type Harness struct {
	*testing.T
	store.Store
	open  func() (store.Store, error)
	now   atomic.Int64 // ms
	floor atomic.Int64
	gone  bool
}

// Start opens a fresh store whose clock stands still and whose sequence floor
// is 0, so that seqs begin at 1.
func Start(t *testing.T, open Opener) *Harness {
	t.Helper()
	h := &Harness{T: t}
	h.now.Store(epoch0.UnixMilli())
	h.open = open(t, Config{Key: RelayKey, Now: h.Now, SeqFloor: h.floor.Load})
	h.mustOpen()
	t.Cleanup(func() {
		if !h.gone {
			h.checkedClose()
		}
	})
	return h
}

// Now is the time of the test's clock.
func (h *Harness) Now() time.Time { return time.UnixMilli(h.now.Load()).UTC() }

func (h *Harness) mustOpen() {
	h.Helper()
	s, err := h.open()
	if err != nil {
		h.Fatalf("open: %v", err)
	}
	h.Store, h.gone = s, false
}

// checkedClose closes the store, and fails the test unless its integrity, its
// references and its counters are right.
func (h *Harness) checkedClose() {
	h.Helper()
	h.gone = true
	if err := h.Check(context.Background()); err != nil {
		h.Errorf("check before close: got %v; want a store that agrees with itself", err)
	}
	if err := h.Close(); err != nil {
		h.Errorf("close: got %v; want nil", err)
	}
}

// Reopen closes the store and opens it again.
func (h *Harness) Reopen() {
	h.Helper()
	h.checkedClose()
	h.mustOpen()
}

// Write runs fn in an Update that must succeed.
func (h *Harness) Write(fn func(tx store.Tx) error) {
	h.Helper()
	if err := h.Update(h.Context(), fn); err != nil {
		h.Fatalf("update: %v", err)
	}
}

// Read runs fn in a View that must succeed.
func (h *Harness) Read(fn func(r store.Reader) error) {
	h.Helper()
	if err := h.View(h.Context(), fn); err != nil {
		h.Fatalf("view: %v", err)
	}
}

// get answers what a read of one value finds.
func get[T any](h *Harness, read func(r store.Reader) (T, error)) T {
	h.Helper()
	var v T
	h.Read(func(r store.Reader) (err error) {
		v, err = read(r)
		return err
	})
	return v
}

// want compares two values that print as they are.
func want[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: got %s; want %s", what, g, w)
	}
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v; want %v", what, got, want)
	}
}

// Key is a public key by label: the same label is the same key.
func Key(label string) wire.PublicKey { return sha256.Sum256([]byte("storetest key " + label)) }

// Mail is an item of size bytes from sender to target, with bytes of its own
// by id and target, accepted at the start of the suite's clock.
func Mail(target, sender wire.PublicKey, id string, size int) store.Item {
	seed := id + string(target[:4])
	return mailOf(target, sender, id, strings.Repeat(seed, size/len(seed)+1)[:size])
}

func mailOf(target, sender wire.PublicKey, id, text string) store.Item {
	return store.Item{
		Target: target, Kind: store.KindEnvelope, ID: id, Sender: sender, SenderHost: "sender-host",
		Hash: sha256.Sum256([]byte(text)), Size: int64(len(text)), AcceptedAt: epoch0, Wire: []byte(text),
	}
}

// insert queues an item of 100 bytes and answers its seq.
func insert(tx store.Tx, target, sender wire.PublicKey, id string) (int64, error) {
	return tx.Insert(Mail(target, sender, id, 100))
}

// queue inserts items, one transaction for all.
func (h *Harness) queue(target, sender wire.PublicKey, ids ...string) (seqs []int64) {
	h.Helper()
	h.Write(func(tx store.Tx) error {
		seqs = nil
		for _, id := range ids {
			seq, err := insert(tx, target, sender, id)
			if err != nil {
				return err
			}
			seqs = append(seqs, seq)
		}
		return nil
	})
	return seqs
}

func (h *Harness) ack(target wire.PublicKey, through int64) (deleted int64) {
	h.Helper()
	h.Write(func(tx store.Tx) (err error) {
		deleted, err = tx.AckThrough(target, through)
		return err
	})
	return deleted
}

// host is a live enrolment.
func host(key wire.PublicKey, name, account string) store.Enrolment {
	e := store.Enrolment{Key: key, Name: name, OwnerFP: "own-" + name, AuthorizedBy: "host-key", EnrolledAt: epoch0}
	if account != "" {
		e.Account, e.Org, e.AuthorizedBy = account, "org-"+account, "jwks"
	}
	return e
}

func (h *Harness) enrol(e store.Enrolment) {
	h.Helper()
	h.Write(func(tx store.Tx) error { return tx.PutEnrolment(e) })
}

// ids lists what a queue holds, in the order of Page.
func ids(r store.Reader, target wire.PublicKey) (list []string, err error) {
	err = r.Page(target, 0, 1<<30, func(it store.Item) bool {
		list = append(list, it.ID)
		return true
	})
	return list, err
}

func (h *Harness) ids(target wire.PublicKey) []string {
	h.Helper()
	return get(h, func(r store.Reader) ([]string, error) { return ids(r, target) })
}

func (h *Harness) dedup(sender wire.PublicKey, id string, target wire.PublicKey) (store.Dedup, error) {
	h.Helper()
	var d store.Dedup
	var miss error
	h.Read(func(r store.Reader) (err error) {
		d, err = r.Dedup(sender, id, target)
		if errors.Is(err, store.ErrNotFound) {
			miss, err = err, nil
		}
		return err
	})
	return d, miss
}
