package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// folder is where a relay's backups are kept.
func (r *testRelay) folder() *backup.Folder {
	return &backup.Folder{Dir: filepath.Join(r.dir, "backups"), StoreDir: r.dir, Key: r.key.Public(), Keep: 7, Version: "test", Now: r.w.clock}
}

// backup takes a backup from the serving relay, to file or to the folder, and
// logs it as the job does.
func (r *testRelay) backup(file string) backup.Receipt {
	r.w.t.Helper()
	receipt := must(r.folder().Create(context.Background(), r.store, file, nil))
	line := must(json.Marshal(receipt))
	noError(r.w.t, r.store.Update(context.Background(), func(tx store.Tx) error {
		return tx.AppendLog(r.w.clock(), "backup", line)
	}))
	return receipt
}

// restoreFile restores a backup while the relay is stopped.
func (r *testRelay) restoreFile(file string) backup.RestoreReceipt {
	r.w.t.Helper()
	lock := must(sqlite.AcquireLock(context.Background(), r.dir, 0, nil))
	receipt, err := backup.Restore(context.Background(), backup.RestoreOptions{
		File: file, StoreDir: r.dir, Key: r.key.Public(), Lock: lock, HadLock: true, Actor: "test", Version: "test", Now: r.w.clock,
	})
	noError(r.w.t, err)
	noError(r.w.t, lock.Release())
	return receipt
}

// log lists the kinds of the relay log, newest first.
func (r *testRelay) log() (ops []string) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) error {
		lines, err := v.Log("", 0, 100)
		ops = nil
		for _, l := range lines {
			ops = append(ops, l.Op)
		}
		return err
	}))
	return ops
}

// revoke ends a host's enrolment for ever.
func (r *testRelay) revoke(h *testHost) {
	r.w.t.Helper()
	r.change(func(t store.Tx) error {
		_, err := t.Revoke(h.Key(), r.w.clock())
		return err
	})
}

// head is the last number in a host's queue.
func (r *testRelay) head(h *testHost) (head int64) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) (err error) {
		head, err = v.Head(h.Key())
		return err
	}))
	return head
}

// adRecord is a host's advertisement as the relay has it.
func (r *testRelay) adRecord(h *testHost) string {
	r.w.t.Helper()
	var ad store.EncAd
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) (err error) {
		ad, err = v.EncAd(h.Key())
		return err
	}))
	return string(ad.Record)
}

// holdLast takes the last item that waits for a host out of its queue.
func (r *testRelay) holdLast(h *testHost) {
	r.w.t.Helper()
	var seq int64
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) error {
		return v.Page(h.Key(), 0, 100, func(it store.Item) bool { seq = it.Seq; return true })
	}))
	r.change(func(tx store.Tx) error { return tx.Hold(h.Key(), seq, r.w.clock(), "operator", "it looks odd") })
}

// aside lists what is held.
func (r *testRelay) aside() (list []store.HeldItem) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) error {
		return v.Held(func(it store.HeldItem) bool { list = append(list, it); return true })
	}))
	return list
}

// intoSession has a host make its affairs with the relay current, and no more:
// the relay refuses it its mail.
func (h *testHost) intoSession() {
	h.w.t.Helper()
	h.w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if strings.HasPrefix(in.URL.Path, "/v2/relay/items") {
			http.Error(out, "{}", http.StatusServiceUnavailable)
			return
		}
		relay.ServeHTTP(out, in)
	})
	_ = h.relayOnly()
	h.w.relay.intercept(nil)
}

// messages counts the messages from other hosts that a host has, by subject.
func (h *testHost) messages() map[string]int {
	h.w.t.Helper()
	n := map[string]int{}
	for _, m := range must(h.Inbox(context.Background(), "reviewer", "", true, 1000)) {
		if m.Kind != "alert" {
			n[m.Subject]++
		}
	}
	return n
}

// once checks that a host has each of the messages once, and no other.
func (h *testHost) once(t *testing.T, what string, subjects ...string) {
	t.Helper()
	got := h.messages()
	for _, s := range subjects {
		if got[s] != 1 {
			t.Errorf("%s: got %q %d times; want once", what, s, got[s])
		}
	}
	if len(got) != len(subjects) {
		t.Errorf("%s: got %v; want %q", what, got, subjects)
	}
}

func sha256Of(t *testing.T, path string) string {
	t.Helper()
	sum := sha256.Sum256(must(os.ReadFile(path)))
	return hex.EncodeToString(sum[:])
}

func TestE1_RestoreDrill(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma, delta := w.host("alpha"), w.host("beta"), w.host("gamma"), w.host("delta")
	pair(alpha, beta, false)
	for _, h := range []*testHost{alpha, beta, gamma} {
		h.tick()
	}
	epoch := w.relay.epoch()

	// (a) before the backup
	m1 := alpha.sendByRelay(beta, "m1")
	beta.tick()
	beta.tick() // its receipt
	alpha.tick()
	same(t, "(a) m1", alpha.sentState(m1), "settled")
	m2 := alpha.sendByRelay(beta, "m2")
	same(t, "(a) m2 delivered", beta.receiveSilently().Received, 1)
	m3 := alpha.sendByRelay(beta, "m3")
	file := filepath.Join(t.TempDir(), "backup.db")
	b := w.relay.backup(file)
	same(t, "(a) hash", b.SHA256, sha256Of(t, file))
	same(t, "(a) epoch", b.Epoch, epoch)
	same(t, "(a) items", b.Items, 1)
	same(t, "(a) enrolments", b.Enrolments, 3)
	hasPart(t, "(a) restore command", b.Restore, "agentmbx relay restore")
	hasPart(t, "(a) restore command", b.Restore, file)
	if _, err := w.relay.folder().Create(context.Background(), w.relay.store, file, nil); err == nil {
		t.Error("(a) a second backup to the same file: got nil; want a refusal")
	}

	// (b) after it
	w.pass(time.Minute)
	m5 := alpha.sendByRelay(beta, "m5")
	same(t, "(b) m3 and m5 delivered", beta.receiveSilently().Received, 2)
	m4 := alpha.sendByRelay(beta, "m4")
	w.relay.revoke(gamma)
	pair(beta, delta, false)
	beta.intoSession() // publishes its list, and takes nothing
	head := w.relay.head(beta)

	// (c)
	if _, err := sqlite.AcquireLock(context.Background(), w.relay.dir, 0, nil); err == nil {
		t.Error("(c) the lock of a running relay: got nil; want it held")
	}
	w.relay.stop()

	// (d)
	r := w.relay.restoreFile(file)
	if r.From != epoch || r.To == epoch || r.To == "" {
		t.Errorf("(d) got epochs %q to %q; want %q and a new one", r.From, r.To, epoch)
	}
	want := sqlite.Carried{Revocations: 1, SenderLists: 1, SeqFloors: 1}
	got := r.Carried
	got.After, got.NewerMail, got.LogLines = want.After, want.NewerMail, 0
	if !reflect.DeepEqual(got, want) {
		t.Errorf("(d) carried: got %+v; want %+v", got, want)
	}
	same(t, "(d) rollback copy", r.RollbackSHA, sha256Of(t, r.Rollback))

	// (e)
	w.relay.start()
	same(t, "(e) epoch", w.relay.epoch(), r.To)
	same(t, "(e) gamma", w.relay.live(gamma.Key()), false)
	same(t, "(e) gamma's pass", gamma.relayOnly().State, relayEnrolFailed)
	if _, named := w.relay.accepts(beta, delta); !named {
		t.Error("(e) delta is not in beta's list")
	}
	same(t, "(e) queue of beta", w.relay.queued(beta), 1)

	// (f)
	alpha.relayOnly() // notices the epoch
	for _, m := range []string{m2, m3, m4, m5} {
		same(t, "(f) row", alpha.sentState(m), "repush")
	}
	same(t, "(f) m1", alpha.sentState(m1), "settled")
	push := alpha.relayOnly()
	same(t, "(f) accepted", push.Accepted, 4)
	same(t, "(f) rejected", push.Rejected, 0)
	if now := w.relay.head(beta); now <= head {
		t.Errorf("(f) got a head of %d; want it above %d", now, head)
	}

	// (g)
	beta.relayOnly()
	beta.once(t, "(g)", "m1", "m2", "m3", "m4", "m5")
	same(t, "(g) queue of beta", w.relay.queued(beta), 0)

	// (h)
	beta.tick()
	alpha.tick()
	for _, m := range []string{m3, m4, m5} {
		same(t, "(h) row", alpha.sentState(m), "settled")
	}
	same(t, "(h) m2", alpha.sentState(m2), "relay-accepted")

	// (i)
	same(t, "(i) log", strings.Join(w.relay.log()[:2], " "), "restore backup")

	// (j) the rollback copy, restored in its turn
	between := w.relay.epoch()
	w.relay.stop()
	back := w.relay.restoreFile(r.Rollback)
	same(t, "(j) from", back.From, between)
	same(t, "(j) revocations", back.Carried.Revocations, 0)
	w.relay.start()
	alpha.relayOnly()
	alpha.send(beta, "m6")
	alpha.lanFailedTwice()
	same(t, "(j) m6 and m2 accepted", alpha.relayOnly().Accepted, 2)
	beta.relayOnly()
	beta.once(t, "(j)", "m1", "m2", "m3", "m4", "m5", "m6")
	same(t, "(j) gamma", w.relay.live(gamma.Key()), false)
	same(t, "(j) log", strings.Join(w.relay.log()[:3], " "), "restore restore backup")
}

func TestG19_RestoreAndEncAds(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	alpha.sendByRelay(beta, "m1")
	b := w.relay.backup("")
	alpha.sendByRelay(beta, "m2")
	same(t, "delivered", beta.receiveSilently().Received, 2)
	w.pass(time.Minute)
	first := w.relay.adRecord(beta)
	key := beta.Key()
	w.relay.sql("DELETE FROM enc_ad_records WHERE host_pubkey = x'" + hexOf(key[:]) + "'")
	beta.relayOnly() // misses its ad and publishes a second one
	second := w.relay.adRecord(beta)
	if second == first || second == "" {
		t.Fatalf("got %q; want another ad than %q", second, first)
	}
	alpha.sendByRelay(beta, "m3")

	w.relay.stop()
	r := w.relay.restoreFile(b.File)
	same(t, "carried", r.Carried.EncAdRecords, 1)
	w.relay.start()
	same(t, "the restored relay's ad", w.relay.adRecord(beta), second)

	alpha.relayOnly() // notices the epoch
	push := alpha.relayOnly()
	same(t, "accepted", push.Accepted, 3)
	same(t, "rejected", push.Rejected, 0)
	beta.relayOnly()
	beta.once(t, "after the restore", "m1", "m2", "m3")
	beta.tick()
	alpha.tick()
	same(t, "outbox", alpha.outbox(), 0)
}

// The whole story of a relay's bad day: what was taken away stays taken away,
// what moved has moved, what was put aside is still aside, and every message
// comes once; and all of that again when the restore is taken back.
func TestRecoveryStory(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma, delta := w.host("alpha"), w.host("beta"), w.host("gamma"), w.host("delta")
	pair(alpha, beta, false)
	pair(alpha, gamma, false)
	for _, h := range []*testHost{alpha, beta, gamma} {
		h.tick()
	}
	alpha.sendByRelay(beta, "delivered before")
	beta.receiveSilently()
	alpha.sendByRelay(beta, "queued in the backup")
	alpha.sendByRelay(beta, "to be held")
	b := w.relay.backup("")

	// After the backup: an item is held, mail goes on, beta takes a new key, a
	// longer list and another advertisement, gamma is revoked.
	w.pass(time.Minute)
	w.relay.holdLast(beta)
	alpha.sendByRelay(beta, "delivered after")
	same(t, "received", beta.receiveSilently().Received, 2)
	alpha.sendByRelay(beta, "queued after")
	old := beta.Key()
	must(beta.RotateKey(context.Background()))
	pair(beta, delta, false)
	beta.intoSession() // tells the relay of the key and the list
	results, err := alpha.Rotate(context.Background(), beta.records())
	noError(t, err)
	sameList(t, "the LAN record", results, "rotated")
	first, key := w.relay.adRecord(beta), beta.Key()
	w.relay.sql("DELETE FROM enc_ad_records WHERE host_pubkey = x'" + hexOf(key[:]) + "'")
	w.pass(time.Second)
	beta.intoSession()
	second := w.relay.adRecord(beta)
	if first == "" || second == "" || first == second {
		t.Fatalf("got ads %q and %q; want two", first, second)
	}
	w.relay.revoke(gamma)

	stands := func(when string) {
		t.Helper()
		same(t, when+": the old key", w.relay.live(old), false)
		same(t, when+": the new key", w.relay.live(beta.Key()), true)
		same(t, when+": gamma", w.relay.live(gamma.Key()), false)
		same(t, when+": gamma's pass", gamma.relayOnly().State, relayEnrolFailed)
		if _, named := w.relay.accepts(beta, delta); !named {
			t.Errorf("%s: delta is not in beta's list", when)
		}
		same(t, when+": beta's ad", w.relay.adRecord(beta), second)
		aside := w.relay.aside()
		if len(aside) != 1 || aside[0].Target != beta.Key() || aside[0].Actor != "operator" {
			t.Errorf("%s: got %v held; want the one item, for beta's new key", when, aside)
		}
	}
	w.relay.stop()
	r := w.relay.restoreFile(b.File)
	same(t, "rotations", r.Carried.Rotations, 1)
	same(t, "revocations", r.Carried.Revocations, 1)
	same(t, "held", r.Carried.Held, 1)
	same(t, "lists", r.Carried.SenderLists, 1)
	same(t, "ads", r.Carried.EncAdRecords, 1)
	w.relay.start()
	stands("restored")
	for range 3 {
		alpha.tick()
		beta.tick()
	}
	all := []string{"delivered before", "queued in the backup", "delivered after", "queued after"}
	beta.once(t, "restored", all...)
	same(t, "queue", w.relay.queued(beta), 1) // the held one is charged to it
	stands("at rest")

	w.relay.stop()
	w.relay.restoreFile(r.Rollback)
	w.relay.start()
	stands("rolled back")
	alpha.send(beta, "after the rollback")
	alpha.lanFailedTwice()
	for range 3 {
		alpha.tick()
		beta.tick()
	}
	beta.once(t, "rolled back", append(all, "after the rollback")...)
	stands("at rest again")
}

// A store that was lost together with a rotation learns it again from the host:
// the old key does not stay enrolled, and its queue follows.
func TestRotationIsToldAgainAfterALostStore(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.sendByRelay(beta, "before")
	b := w.relay.backup("")
	old := beta.Key()
	must(beta.RotateKey(context.Background()))
	must(beta.RotateKey(context.Background())) // twice: the second follows the first
	beta.intoSession()
	same(t, "the old key", w.relay.live(old), false)

	w.relay.stop()
	noError(t, os.Remove(filepath.Join(w.relay.dir, sqlite.FileName)))
	w.relay.restoreFile(b.File)
	w.relay.start()
	same(t, "the old key in the restored store", w.relay.live(old), true)
	beta.tick()
	same(t, "the old key", w.relay.live(old), false)
	same(t, "the new key", w.relay.live(beta.Key()), true)
	beta.tick()
	beta.once(t, "after the restore", "before")
	same(t, "queue", w.relay.queued(beta), 0)
	same(t, "rotations refused", beta.audited("relay.rotation_refused"), 0)
}
