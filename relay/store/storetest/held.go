package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var heldTests = []subtest{
	{"a held item leaves its queue and keeps all else", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.enrol(host(a, "alpha", "acme"))
		h.queue(a, s, "1")
		it := Mail(a, s, "2", 3000)
		it.AcceptedAt, it.ExpiresAt = epoch0.Add(7*time.Millisecond), epoch0.Add(day)
		h.Write(func(tx store.Tx) (err error) { it.Seq, err = tx.Insert(it); return err })
		h.queue(a, s, "3")
		charged := []charge{{"queue a", 3, 3200}, {"share a s", 3, 3200}, {"account acme", 3, 3200}, {"total", 3, 3200}}
		at := epoch0.Add(time.Hour)
		h.hold(a, 2, at, "operator", "looks like spam")
		it.Held = true
		whole := []store.HeldItem{{Item: it, HeldAt: at, Actor: "operator", Reason: "looks like spam"}}
		for _, when := range []string{"held", "reopened"} {
			want(h, when+": queue", h.ids(a), []string{"1", "3"})
			want(h, when+": quarantine", h.held(), whole)
			want(h, when+": head", h.head("a"), 3)
			d, err := h.dedup(s, "2", a)
			want(h, when+": dedup", d, store.Dedup{Hash: it.Hash, Seq: 2, AcceptedAt: it.AcceptedAt})
			wantErr(h, when+": dedup", err, nil)
			h.wantUsage(when, charged)
			h.Reopen()
		}
		want(h, "deleted by an ack past it", h.ack(a, 3), 2)
		want(h, "deleted by the same again", h.ack(a, 3), 0)
		want(h, "quarantine after an ack", h.held(), whole)
		h.wantUsage("after an ack", []charge{{"queue a", 1, 3000}, {"share a s", 1, 3000}, {"account acme", 1, 3000}, {"total", 1, 3000}})
		want(h, "next", h.queue(a, s, "4"), []int64{4})
	}},
	{"a page goes over held items as over none", func(h *Harness) {
		a := Key("a")
		h.queue(a, Key("s"), "1", "2", "3", "4", "5")
		h.hold(a, 1, epoch0, "op", "")
		h.hold(a, 3, epoch0, "op", "")
		page := func(after int64, limit int) (got []string) {
			h.Read(func(r store.Reader) error {
				got = nil
				return r.Page(a, after, limit, func(it store.Item) bool {
					if it.Held {
						h.Errorf("item %s: got held; want none such in a page", it.ID)
					}
					got = append(got, it.ID)
					return true
				})
			})
			return got
		}
		want(h, "all", page(0, 10), []string{"2", "4", "5"})
		want(h, "limit", page(0, 2), []string{"2", "4"})
		want(h, "after one that is held", page(3, 10), []string{"4", "5"})
	}},
	{"only what is queued can be held, and once", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.queue(a, s, "acked", "dropped", "held", "queued")
		h.ack(a, 1)
		h.Write(func(tx store.Tx) error { return tx.Drop(store.Item{Target: a, Seq: 2}) })
		h.hold(a, 3, epoch0, "first", "reason")
		for _, tt := range []struct {
			name   string
			target string
			seq    int64
		}{
			{"acked", "a", 1}, {"dropped", "a", 2}, {"held already", "a", 3}, {"beyond the head", "a", 5},
			{"seq 0", "a", 0}, {"another queue", "b", 4}, {"a key that is the sender's", "s", 4},
		} {
			wantErr(h, tt.name, h.tryHold(Key(tt.target), tt.seq, epoch0.Add(time.Hour), "second", "other"), store.ErrNotFound)
		}
		want(h, "queue", h.ids(a), []string{"queued"})
		held := h.held()
		if len(held) != 1 || held[0].ID != "held" || held[0].Actor != "first" || !held[0].HeldAt.Equal(epoch0) {
			h.Errorf("quarantine: got %+v; want the first hold as it was", held)
		}
		h.wantUsage("after", []charge{{"queue a", 2, 200}, {"share a s", 2, 200}, {"total", 2, 200}})
	}},
	{"a hold that fails leaves the item in its queue", func(h *Harness) {
		a := Key("a")
		h.queue(a, Key("s"), "1", "2")
		wantErr(h, "update", h.Update(h.Context(), func(tx store.Tx) error {
			if err := tx.Hold(a, 1, epoch0, "op", ""); err != nil {
				return err
			}
			list, err := ids(tx, a)
			want(h, "queue, seen by the transaction", list, []string{"2"})
			held, err2 := heldIn(tx)
			want(h, "held, seen by the transaction", len(held), 1)
			return errors.Join(errBoom, err, err2)
		}), errBoom)
		want(h, "queue", h.ids(a), []string{"1", "2"})
		want(h, "held", len(h.held()), 0)
	}},
	{"held items are listed by target and seq, until told to stop", func(h *Harness) {
		targets := []wire.PublicKey{Key("a"), Key("b"), Key("c"), Key("d")}
		slices.SortFunc(targets, func(x, y wire.PublicKey) int { return bytes.Compare(x[:], y[:]) })
		var all []string
		for i, t := range targets {
			for seq := range 3 {
				all = append(all, fmt.Sprint(i, "-", seq+1))
			}
			h.queue(t, Key("s"), all[3*i:]...)
		}
		for _, t := range slices.Backward(targets) {
			for _, seq := range []int64{2, 3, 1} {
				h.hold(t, seq, epoch0, "op", "")
			}
		}
		for _, stop := range []int{1, 5, len(all), len(all) + 1} {
			var got []string
			h.Read(func(r store.Reader) error {
				got = nil
				return r.Held(func(it store.HeldItem) bool {
					got = append(got, it.ID)
					return len(got) < stop
				})
			})
			want(h, fmt.Sprint("stopped at ", stop), got, all[:min(stop, len(all))])
		}
	}},
	{"a dropped item gives its charge back from where it stands", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.enrol(host(a, "alpha", "acme"))
		h.queue(a, s, "held", "queued")
		h.hold(a, 1, epoch0, "op", "")
		drop := func(seq int64, held bool) error {
			return h.Update(h.Context(), func(tx store.Tx) error { return tx.Drop(store.Item{Target: a, Seq: seq, Held: held}) })
		}
		wantErr(h, "a held one from the queue", drop(1, false), store.ErrNotFound)
		wantErr(h, "a queued one from the quarantine", drop(2, true), store.ErrNotFound)
		h.wantUsage("nothing dropped", []charge{{"queue a", 2, 200}, {"account acme", 2, 200}, {"total", 2, 200}})
		wantErr(h, "a held one", drop(1, true), nil)
		wantErr(h, "a held one again", drop(1, true), store.ErrNotFound)
		want(h, "held", len(h.held()), 0)
		want(h, "queue", h.ids(a), []string{"queued"})
		h.wantUsage("dropped", []charge{{"queue a", 1, 100}, {"share a s", 1, 100}, {"account acme", 1, 100}, {"total", 1, 100}})
		d, err := h.dedup(s, "held", a)
		if err != nil || d.Seq != 1 {
			h.Errorf("dedup: got %+v, %v; want the row of seq 1", d, err)
		}
		h.Write(func(tx store.Tx) error { return tx.Drop(store.Item{Target: a, Seq: 2}) })
		h.wantUsage("all dropped", []charge{{"queue a", 0, 0}, {"share a s", 0, 0}, {"account acme", 0, 0}, {"total", 0, 0}})
	}},
	{"a retry of a held item is known for as long as it is held", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.enrol(host(s, "sender", ""))
		h.queue(a, s, "held", "acked")
		h.hold(a, 1, epoch0, "op", "")
		h.ack(a, 2)
		before := epoch0.Add(1000 * day)
		rows := func() []store.DedupKey {
			return get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(before, 10) })
		}
		forget := func() (n int64) {
			h.Write(func(tx store.Tx) (err error) {
				n, err = tx.Forget([]store.DedupKey{{Sender: s, ItemID: "held", Target: a}, {Sender: s, ItemID: "acked", Target: a}}, before)
				return err
			})
			return n
		}
		want(h, "prunable", keyNames(rows()), []string{"acked"})
		want(h, "forgotten", forget(), 1)
		h.rotate("s", "s2", "sender")
		for _, sender := range []string{"s", "s2"} {
			d, err := h.dedup(Key(sender), "held", a)
			if err != nil || d.Seq != 1 || d.Hash != Mail(a, s, "held", 100).Hash {
				h.Errorf("a retry of %s: got %+v, %v; want the row of seq 1", sender, d, err)
			}
		}
		h.Write(func(tx store.Tx) error { return tx.Drop(store.Item{Target: a, Seq: 1, Held: true}) })
		want(h, "prunable once dropped", keyNames(rows()), []string{"held"})
		want(h, "forgotten once dropped", forget(), 1)
	}},
	{"held items follow a rotation of their target, in order, and stay held", func(h *Harness) {
		old, s := Key("old"), Key("s")
		h.enrol(host(old, "alpha", "acme"))
		h.queue(old, s, "1", "2", "3", "4", "5")
		h.hold(old, 2, epoch0.Add(time.Minute), "op", "why")
		h.hold(old, 5, epoch0.Add(time.Hour), "op 2", "why not")
		h.ack(old, 1)
		h.floor.Store(70)
		want(h, "moved", h.rotate("old", "new", "alpha"), 4)
		for _, label := range []string{"new", "newer"} {
			k, first := Key(label), int64(70)
			if label == "newer" {
				h.floor.Store(0)
				want(h, "moved again", h.rotate("new", "newer", "alpha"), 4)
				first = 1
			}
			want(h, label+": queue", h.ids(k), []string{"3", "4"})
			var held []store.HeldItem
			for _, w := range []store.HeldItem{
				{Item: Mail(old, s, "2", 100), HeldAt: epoch0.Add(time.Minute), Actor: "op", Reason: "why"},
				{Item: Mail(old, s, "5", 100), HeldAt: epoch0.Add(time.Hour), Actor: "op 2", Reason: "why not"},
			} {
				w.Target, w.Seq, w.Item.Held = k, first+3*int64(len(held)), true
				held = append(held, w)
			}
			want(h, label+": held", h.held(), held)
			want(h, label+": head", h.head(label), first+3)
			for i, id := range []string{"2", "3", "4", "5"} {
				d, err := h.dedup(s, id, k)
				if err != nil || d.Seq != first+int64(i) || d.Hash != Mail(old, s, id, 100).Hash {
					h.Errorf("%s: dedup of %s: got %+v, %v; want its new seq %d and its hash", label, id, d, err, first+int64(i))
				}
			}
			h.wantUsage(label, []charge{{"queue old", 0, 0}, {"share old s", 0, 0}, {"queue " + label, 4, 400}, {"share " + label + " s", 4, 400},
				{"account acme", 4, 400}, {"total", 4, 400}})
			rows := get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(epoch0.Add(1000*day), 10) })
			want(h, label+": prunable", keyNames(rows), []string{"1"})
		}
		want(h, "acked", h.ack(Key("newer"), 4), 2)
		want(h, "held after the ack", len(h.held()), 2)
	}},
	{"an item that both keys of a rotation have, held or not", func(h *Harness) {
		for _, tt := range []struct {
			name             string
			oldHeld, newHeld bool
			oldText          string // the new key's is "new"
			moved            int64
			queue, held      []string // texts
		}{
			{"same bytes, the old key's held", true, false, "new", 0, nil, []string{"new"}},
			{"same bytes, the new key's held", false, true, "new", 0, nil, []string{"new"}},
			{"same bytes, both held", true, true, "new", 0, nil, []string{"new"}},
			{"other bytes, the old key's held", true, false, "old", 1, []string{"new"}, []string{"old"}},
			{"other bytes, the new key's held", false, true, "old", 1, []string{"old"}, []string{"new"}},
			{"other bytes, both held", true, true, "old", 1, nil, []string{"new", "old"}},
		} {
			from, to, s := Key("old "+tt.name), Key("new "+tt.name), Key("s "+tt.name)
			h.enrol(host(from, "alpha", ""))
			h.same(from, s, "both", tt.oldText)
			h.same(to, s, "both", "new")
			if tt.oldHeld {
				h.hold(from, 1, epoch0, "op", "old")
			}
			if tt.newHeld {
				h.hold(to, 1, epoch0, "op", "new")
			}
			want(h, tt.name+": moved", h.rotateKeys(from, to, "alpha"), tt.moved)
			var queue, held []string
			h.Read(func(r store.Reader) error {
				queue, held = nil, nil
				if err := r.Page(to, 0, 10, func(it store.Item) bool { queue = append(queue, string(it.Wire)); return true }); err != nil {
					return err
				}
				return r.Held(func(it store.HeldItem) bool {
					if it.Target == from {
						h.Errorf("%s: got %+v under the old key; want none", tt.name, it)
					}
					if it.Target == to {
						held = append(held, string(it.Wire))
						why := "new"
						if tt.oldHeld && (!tt.newHeld || it.Seq > 1) {
							why = "old"
						}
						want(h, tt.name+": held because", it.Reason, why)
					}
					return true
				})
			})
			want(h, tt.name+": queue", queue, tt.queue)
			want(h, tt.name+": held", held, tt.held)
			d, err := h.dedup(s, "both", to)
			if err != nil || d.Seq != 1 {
				h.Errorf("%s: dedup: got %+v, %v; want the new key's own row, seq 1", tt.name, d, err)
			}
			n := int64(len(tt.queue) + len(tt.held))
			u := get(h, func(r store.Reader) (store.Usage, error) { return r.ShareUsage(to, s) })
			want(h, tt.name+": share", u, store.Usage{Items: n, Bytes: 3 * n})
			q := get(h, func(r store.Reader) (store.Queue, error) { return r.Queue(to) })
			want(h, tt.name+": charged as held", q.Held, store.Usage{Items: int64(len(tt.held)), Bytes: 3 * int64(len(tt.held))})
			want(h, tt.name+": oldest queued", q.Oldest.IsZero(), len(tt.queue) == 0)
			prunable := func() []string {
				return keyNames(get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(epoch0.Add(1000*day), 10) }))
			}
			want(h, tt.name+": prunable", prunable(), []string(nil))
			rowHeld := tt.newHeld || tt.oldHeld && tt.oldText == "new"
			h.Write(func(tx store.Tx) error { return tx.Drop(store.Item{Target: to, Seq: 1, Held: rowHeld}) })
			want(h, tt.name+": prunable without the row's item", prunable(), []string{"both"})
			h.Write(func(tx store.Tx) error {
				_, err := tx.Forget([]store.DedupKey{{Sender: s, ItemID: "both", Target: to}}, epoch0.Add(1000*day))
				return err
			})
		}
	}},
	{"what only the new key holds stays held by whom it was, through rotations of both ends", func(h *Harness) {
		old, next, s := Key("old"), Key("new"), Key("s")
		h.enrol(host(old, "alpha", "acme"))
		h.enrol(host(s, "sender", ""))
		h.same(old, s, "both", "bytes")
		h.rotate("s", "s2", "sender")
		h.same(next, Key("s2"), "both", "bytes") // sent again, by the sender's new key
		h.queue(next, Key("s2"), "other")
		h.hold(old, 1, epoch0.Add(time.Hour), "op", "why")
		h.rotate("old", "new", "alpha")
		want(h, "queue", h.ids(next), []string{"other"})
		held := h.held()
		if len(held) != 1 || held[0].Target != next || held[0].Seq != 1 || held[0].Actor != "op" || !held[0].HeldAt.Equal(epoch0.Add(time.Hour)) {
			h.Errorf("held: got %+v; want the new key's own, held as the old key's was", held)
		}
		h.wantUsage("after", []charge{{"queue old", 0, 0}, {"queue new", 2, 105}, {"account acme", 2, 105}, {"total", 2, 105}})
		h.Write(func(tx store.Tx) error { _, err := tx.Release(next, 1); return err })
		want(h, "released", h.ids(next), []string{"other", "both"})
	}},
	{"what the new key of a rotation had already does not come again, held or not", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", "acme"))
		h.same(Key("old"), Key("s"), "both", "bytes")
		h.same(Key("new"), Key("s"), "both", "bytes")
		h.hold(Key("old"), 1, epoch0, "op", "")
		h.ack(Key("new"), 1)
		want(h, "moved", h.rotate("old", "new", "alpha"), 0)
		want(h, "held", len(h.held()), 0)
		h.wantUsage("after", []charge{{"queue old", 0, 0}, {"queue new", 0, 0}, {"account acme", 0, 0}, {"total", 0, 0}})
	}},
	{"a held item expires like any other", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.enrol(host(a, "alpha", "acme"))
		for _, id := range []string{"queued", "held", "held for ever"} {
			it := Mail(a, s, id, 50)
			if id != "held for ever" {
				it.ExpiresAt = epoch0.Add(day)
			}
			h.Write(func(tx store.Tx) error { _, err := tx.Insert(it); return err })
		}
		h.hold(a, 2, epoch0, "op", "")
		h.hold(a, 3, epoch0, "op", "")
		expired := func(now time.Time) []store.Item {
			list := get(h, func(r store.Reader) ([]store.Item, error) { return r.Expired(epoch0, now, 10) })
			slices.SortFunc(list, func(x, y store.Item) int { return int(x.Seq - y.Seq) })
			return list
		}
		want(h, "too early", len(expired(epoch0.Add(day-time.Millisecond))), 0)
		list := expired(epoch0.Add(day))
		var wanted []store.Item
		for i, id := range []string{"queued", "held"} {
			it := Mail(a, s, id, 50)
			it.Seq, it.ExpiresAt, it.Held, it.Wire = int64(i+1), epoch0.Add(day), id == "held", nil
			wanted = append(wanted, it)
		}
		want(h, "expired", list, wanted)
		h.Write(func(tx store.Tx) error { // what was listed can be dropped as it is
			for _, it := range list {
				if err := tx.Drop(it); err != nil {
					return err
				}
			}
			return nil
		})
		want(h, "expired once dropped", len(expired(epoch0.Add(1000*day))), 0)
		want(h, "held", len(h.held()), 1)
		h.wantUsage("swept", []charge{{"queue a", 1, 50}, {"share a s", 1, 50}, {"account acme", 1, 50}, {"total", 1, 50}})
		_, err := h.dedup(s, "held", a)
		wantErr(h, "dedup", err, nil)
	}},
	{"held items of a queue whose host is gone, or never was", func(h *Harness) {
		gone, s := Key("gone"), Key("s")
		h.enrol(host(gone, "alpha", "acme"))
		for _, label := range []string{"gone", "nobody"} {
			h.queue(Key(label), s, "1", "2")
			h.hold(Key(label), 1, epoch0, "op", "before")
		}
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(gone, epoch0); return err })
		for _, label := range []string{"gone", "nobody"} {
			h.hold(Key(label), 2, epoch0, "op", "after")
			want(h, label+": queue", h.ids(Key(label)), []string(nil))
			h.wantUsage(label, []charge{{"queue " + label, 2, 200}, {"share " + label + " s", 2, 200}})
		}
		want(h, "held", len(h.held()), 4)
		h.wantUsage("held", []charge{{"account acme", 2, 200}, {"total", 4, 400}})
		h.Write(func(tx store.Tx) error {
			list, err := heldIn(tx)
			for _, it := range list {
				err = errors.Join(err, tx.Drop(it.Item))
			}
			return err
		})
		h.wantUsage("dropped", []charge{{"queue gone", 0, 0}, {"queue nobody", 0, 0}, {"account acme", 0, 0}, {"total", 0, 0}})
	}},
	{"what is held is charged to the account that its host comes to", func(h *Harness) {
		a := Key("a")
		h.queue(a, Key("s"), "1", "2")
		h.hold(a, 1, epoch0, "op", "")
		for _, account := range []string{"acme", "zeta", "", "acme"} {
			h.enrol(host(a, "alpha", account))
			for _, other := range []string{"acme", "zeta"} {
				c := charge{"account " + other, 0, 0}
				if other == account {
					c.items, c.bytes = 2, 200
				}
				h.wantUsage("in "+account, []charge{c})
			}
		}
		h.ack(a, 2)
		h.wantUsage("acked", []charge{{"account acme", 1, 100}})
	}},
}

func (h *Harness) tryHold(target wire.PublicKey, seq int64, at time.Time, actor, reason string) error {
	h.Helper()
	return h.Update(h.Context(), func(tx store.Tx) error { return tx.Hold(target, seq, at, actor, reason) })
}

func (h *Harness) hold(target wire.PublicKey, seq int64, at time.Time, actor, reason string) {
	h.Helper()
	if err := h.tryHold(target, seq, at, actor, reason); err != nil {
		h.Fatalf("hold %d: %v", seq, err)
	}
}

func heldIn(r store.Reader) (list []store.HeldItem, err error) {
	err = r.Held(func(it store.HeldItem) bool {
		list = append(list, it)
		return true
	})
	return list, err
}

func (h *Harness) held() []store.HeldItem {
	h.Helper()
	return get(h, heldIn)
}

// insertHeld is insert and Hold.
func insertHeld(tx store.Tx, target, sender wire.PublicKey, id string) error {
	seq, err := insert(tx, target, sender, id)
	if err != nil {
		return err
	}
	return tx.Hold(target, seq, epoch0, "operator", "reason of "+id)
}
