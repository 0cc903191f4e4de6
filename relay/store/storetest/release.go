package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var releaseTests = []subtest{
	{"a released item stands at the tail of its queue, under a new number", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.enrol(host(a, "alpha", "acme"))
		it := Mail(a, s, "1", 3000)
		it.AcceptedAt, it.ExpiresAt = epoch0.Add(7*time.Millisecond), epoch0.Add(day)
		h.Write(func(tx store.Tx) (err error) { it.Seq, err = tx.Insert(it); return err })
		h.queue(a, s, "2", "3")
		h.hold(a, 1, epoch0, "op", "why")
		h.ack(a, 3)
		h.floor.Store(50)
		want(h, "new seq", h.release(a, 1), 50)
		it.Seq = 50
		for _, when := range []string{"released", "reopened"} {
			page := get(h, func(r store.Reader) (list []store.Item, err error) {
				return list, r.Page(a, 3, 10, func(it store.Item) bool { list = append(list, it); return true })
			})
			want(h, when+": queue", page, []store.Item{it})
			want(h, when+": held", len(h.held()), 0)
			want(h, when+": head", h.head("a"), 50)
			d, err := h.dedup(s, "1", a)
			want(h, when+": dedup", d, store.Dedup{Hash: it.Hash, Seq: 50, AcceptedAt: it.AcceptedAt})
			wantErr(h, when+": dedup", err, nil)
			h.wantUsage(when, []charge{{"queue a", 1, 3000}, {"share a s", 1, 3000}, {"account acme", 1, 3000}, {"total", 1, 3000}})
			h.wantQueue(when, store.Queue{Target: a, Usage: store.Usage{Items: 1, Bytes: 3000}, Oldest: it.AcceptedAt, Head: 50, Acked: 3})
			want(h, when+": totals", h.totals(), store.Totals{Enrolments: 1, Items: 1, Bytes: 3000})
			h.Reopen()
		}
		want(h, "next", h.queue(a, s, "4"), []int64{51})
		want(h, "acked", h.ack(a, 50), 1)
		want(h, "queue", h.ids(a), []string{"4"})
	}},
	{"only what is held can be released, and once", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.queue(a, s, "queued", "held", "dropped")
		h.hold(a, 2, epoch0, "op", "")
		h.hold(a, 3, epoch0, "op", "")
		h.Write(func(tx store.Tx) error { return tx.Drop(store.Item{Target: a, Seq: 3, Held: true}) })
		for _, tt := range []struct {
			name, target string
			seq          int64
		}{{"queued", "a", 1}, {"dropped", "a", 3}, {"beyond the head", "a", 4}, {"seq 0", "a", 0}, {"another queue", "b", 2}, {"the sender's", "s", 2}} {
			_, err := h.tryRelease(Key(tt.target), tt.seq)
			wantErr(h, tt.name, err, store.ErrNotFound)
		}
		want(h, "head after refusals", h.head("a"), 3)
		want(h, "released", h.release(a, 2), 4)
		_, err := h.tryRelease(a, 2)
		wantErr(h, "again", err, store.ErrNotFound)
		_, err = h.tryRelease(a, 4)
		wantErr(h, "under its new number", err, store.ErrNotFound)
		want(h, "queue", h.ids(a), []string{"queued", "held"})
	}},
	{"a release that fails leaves the item held, under its number", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.queue(a, s, "1", "2")
		h.hold(a, 1, epoch0, "op", "why")
		wantErr(h, "update", h.Update(h.Context(), func(tx store.Tx) error {
			seq, err := tx.Release(a, 1)
			want(h, "seq", seq, 3)
			list, err2 := ids(tx, a)
			want(h, "queue, seen by the transaction", list, []string{"2", "1"})
			q, err3 := tx.Queue(a)
			want(h, "counted by the transaction", q, store.Queue{Target: a, Usage: store.Usage{Items: 2, Bytes: 200}, Oldest: epoch0, Head: 3})
			return errors.Join(errBoom, err, err2, err3)
		}), errBoom)
		want(h, "queue", h.ids(a), []string{"2"})
		want(h, "held", len(h.held()), 1)
		d, err := h.dedup(s, "1", a)
		if err != nil || d.Seq != 1 {
			h.Errorf("dedup: got %+v, %v; want seq 1", d, err)
		}
		want(h, "next", h.queue(a, s, "3"), []int64{3})
	}},
	{"hold and release to and fro", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.queue(a, s, "1", "2")
		seq := int64(1)
		for n := range int64(4) {
			h.hold(a, seq, epoch0, "op", "")
			want(h, "queue", h.ids(a), []string{"2"})
			seq = h.release(a, seq)
			want(h, "released", seq, 3+n)
			want(h, "queue", h.ids(a), []string{"2", "1"})
		}
		h.Write(func(tx store.Tx) error { // in one transaction, too
			err := tx.Hold(a, seq, epoch0, "op", "")
			n, err2 := tx.Release(a, seq)
			want(h, "in one transaction", n, seq+1)
			return errors.Join(err, err2)
		})
		h.wantUsage("after", []charge{{"queue a", 2, 200}, {"share a s", 2, 200}, {"total", 2, 200}})
	}},
	{"a retry of a released item is known for as long as it is queued", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.enrol(host(s, "sender", ""))
		h.queue(a, s, "1")
		h.hold(a, 1, epoch0, "op", "")
		h.release(a, 1)
		before := epoch0.Add(1000 * day)
		prunable := func() []string {
			return keyNames(get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(before, 10) }))
		}
		forget := func() (n int64) {
			h.Write(func(tx store.Tx) (err error) {
				n, err = tx.Forget([]store.DedupKey{{Sender: s, ItemID: "1", Target: a}}, before)
				return err
			})
			return n
		}
		want(h, "prunable", prunable(), []string(nil))
		want(h, "forgotten", forget(), 0)
		h.rotate("s", "s2", "sender")
		for _, sender := range []string{"s", "s2"} {
			if d, err := h.dedup(Key(sender), "1", a); err != nil || d.Seq != 2 {
				h.Errorf("a retry of %s: got %+v, %v; want seq 2", sender, d, err)
			}
		}
		h.ack(a, 2)
		want(h, "prunable once acked", prunable(), []string{"1"})
		want(h, "forgotten once acked", forget(), 1)
	}},
	{"a released item expires at its time", func(h *Harness) {
		a := Key("a")
		it := Mail(a, Key("s"), "1", 50)
		it.ExpiresAt = epoch0.Add(day)
		h.Write(func(tx store.Tx) error { _, err := tx.Insert(it); return err })
		h.hold(a, 1, epoch0, "op", "")
		h.release(a, 1)
		it.Seq, it.Wire = 2, nil
		list := get(h, func(r store.Reader) ([]store.Item, error) { return r.Expired(epoch0, epoch0.Add(day), 10) })
		want(h, "expired", list, []store.Item{it})
		h.Write(func(tx store.Tx) error { return tx.Drop(list[0]) })
		h.wantQueue("dropped", store.Queue{Target: a, Head: 2})
	}},
	{"what followed a rotation is released to the new key", func(h *Harness) {
		old, now, s := Key("old"), Key("new"), Key("s")
		h.enrol(host(old, "alpha", "acme"))
		h.enrol(host(s, "sender", ""))
		h.queue(old, s, "1", "2", "3")
		h.hold(old, 2, epoch0, "op", "")
		h.rotate("old", "new", "alpha")
		h.rotate("s", "s2", "sender")
		_, err := h.tryRelease(old, 2)
		wantErr(h, "of the old key", err, store.ErrNotFound)
		want(h, "released", h.release(now, 2), 4)
		want(h, "queue", h.ids(now), []string{"1", "3", "2"})
		for _, sender := range []string{"s", "s2"} {
			if d, err := h.dedup(Key(sender), "2", now); err != nil || d.Seq != 4 {
				h.Errorf("a retry of %s: got %+v, %v; want seq 4", sender, d, err)
			}
		}
		h.wantUsage("after", []charge{{"queue old", 0, 0}, {"queue new", 3, 300}, {"account acme", 3, 300}})
		h.rotate("new", "newer", "alpha") // what was released moves like any other
		want(h, "moved on", h.ids(Key("newer")), []string{"1", "3", "2"})
	}},
	{"of two items with one id the other's row stays", func(h *Harness) {
		old, now, s := Key("old"), Key("new"), Key("s")
		h.enrol(host(old, "alpha", ""))
		h.same(old, s, "both", "old")
		h.same(now, s, "both", "new")
		h.hold(old, 1, epoch0, "op", "")
		h.rotate("old", "new", "alpha")
		want(h, "released", h.release(now, 2), 3)
		if d, err := h.dedup(s, "both", now); err != nil || d.Seq != 1 {
			h.Errorf("dedup: got %+v, %v; want the new key's own row, seq 1", d, err)
		}
		want(h, "queue", h.ids(now), []string{"both", "both"})
	}},
	{"items of a queue whose host is gone can be released", func(h *Harness) {
		h.enrol(host(Key("gone"), "alpha", "acme"))
		h.queue(Key("gone"), Key("s"), "1")
		h.hold(Key("gone"), 1, epoch0, "op", "")
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(Key("gone"), epoch0); return err })
		want(h, "released", h.release(Key("gone"), 1), 2)
		h.wantUsage("after", []charge{{"queue gone", 1, 100}, {"account acme", 1, 100}})
	}},
	{"oldest is when the first of the queued items was accepted", func(h *Harness) {
		a, s := Key("a"), Key("s")
		at := func(n int) time.Time { return epoch0.Add(time.Duration(n) * time.Minute) }
		for i, minute := range []int{5, 3, 9, 1} { // a clock that went to and fro
			it := Mail(a, s, string(rune('1'+i)), 100)
			it.AcceptedAt = at(minute)
			h.Write(func(tx store.Tx) error { _, err := tx.Insert(it); return err })
		}
		oldest := func(what string, want time.Time) {
			h.Helper()
			if q := h.queueOf(a); !q.Oldest.Equal(want) {
				h.Errorf("%s: got %s; want %s", what, q.Oldest, want)
			}
		}
		oldest("queued", at(5))
		h.hold(a, 1, epoch0, "op", "")
		oldest("the first is held", at(3))
		h.hold(a, 3, epoch0, "op", "")
		oldest("one in the middle is held", at(3))
		h.ack(a, 2)
		oldest("acked", at(1))
		h.release(a, 1) // 5
		oldest("released behind", at(1))
		h.Write(func(tx store.Tx) error { return tx.Drop(store.Item{Target: a, Seq: 4}) })
		oldest("dropped", at(5))
		h.hold(a, 5, epoch0, "op", "")
		oldest("only held ones", time.Time{})
		h.release(a, 3)
		oldest("one of them released", at(9))
		h.enrolAndRotate(a, Key("b"))
		oldest("rotated away", time.Time{})
		if q := h.queueOf(Key("b")); !q.Oldest.Equal(at(9)) || q.Held.Items != 1 || q.Items != 2 {
			h.Errorf("the new key: got %+v; want what the old one had", q)
		}
		h.Reopen()
		if q := h.queueOf(Key("b")); !q.Oldest.Equal(at(9)) {
			h.Errorf("reopened: got %+v", q)
		}
	}},
}

func (h *Harness) tryRelease(target wire.PublicKey, seq int64) (newSeq int64, err error) {
	h.Helper()
	err = h.Update(h.Context(), func(tx store.Tx) (err error) { newSeq, err = tx.Release(target, seq); return err })
	return newSeq, err
}

func (h *Harness) release(target wire.PublicKey, seq int64) (newSeq int64) {
	h.Helper()
	newSeq, err := h.tryRelease(target, seq)
	if err != nil {
		h.Fatalf("release %d: %v", seq, err)
	}
	return newSeq
}

func (h *Harness) enrolAndRotate(from, to wire.PublicKey) {
	h.Helper()
	h.enrol(host(from, "rotated", ""))
	h.rotateKeys(from, to, "rotated")
}

func (h *Harness) queueOf(target wire.PublicKey) store.Queue {
	h.Helper()
	q := get(h, func(r store.Reader) (store.Queue, error) { return r.Queue(target) })
	h.Write(func(tx store.Tx) error { // a transaction says the same
		in, err := tx.Queue(target)
		want(h, "seen by a transaction", in, q)
		return err
	})
	return q
}

func (h *Harness) wantQueue(what string, q store.Queue) {
	h.Helper()
	want(h, what+": queue", h.queueOf(q.Target), q)
}

// sorted are the keys of labels in their order.
func sorted(labels ...string) (keys []wire.PublicKey) {
	for _, l := range labels {
		keys = append(keys, Key(l))
	}
	slices.SortFunc(keys, byKey)
	return keys
}
