package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var rotationTests = []subtest{
	{"the name and the account go to the new key, the old one is revoked", func(h *Harness) {
		at := epoch0.Add(time.Hour)
		h.now.Store(at.UnixMilli())
		old := host(Key("old"), "Alpha", "acme")
		h.enrol(old)
		h.Write(func(tx store.Tx) error {
			if err := tx.PutEncKey(Key("old"), "Alpha", store.EncKey{EncPub: "p", Sig: "s", At: epoch0}); err != nil {
				return err
			}
			return tx.PutEncAd(Key("old"), store.EncAd{Record: []byte("{}"), Sig: "s", At: epoch0})
		})
		want(h, "moved", h.rotate("old", "new", "Alpha"), 0)
		was := h.enrolment(Key("old"))
		want(h, "old key revoked at", was.RevokedAt, at)
		e := h.enrolment(Key("new"))
		if !e.Live() || e.Name != "Alpha" || e.Account != "acme" || e.Org != "org-acme" || e.AuthorizedBy != "jwks" || e.OwnerFP != old.OwnerFP {
			h.Errorf("new key: got %+v; want what %+v was", e, old)
		}
		in := get(h, func(r store.Reader) (store.Enrolment, error) { return r.LiveInAccount("acme", "alpha") })
		want(h, "live in account", in.Key, Key("new"))
		for _, label := range []string{"old", "new"} {
			_, err := encKey(h, Key(label))
			wantErr(h, "enc key of "+label, err, store.ErrNotFound)
		}
		want(h, "live", h.totals().Enrolments, 1)
	}},
	{"a new key that is enrolled already takes over name and account", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", "acme"))
		h.enrol(host(Key("new"), "scratch", ""))
		h.queue(Key("old"), Key("s"), "1")
		h.queue(Key("new"), Key("s"), "2")
		h.rotate("old", "new", "alpha")
		e := h.enrolment(Key("new"))
		want(h, "name", e.Name, "alpha")
		want(h, "account", e.Account, "acme")
		h.wantUsage("after", []charge{{"account acme", 2, 200}, {"queue new", 2, 200}, {"queue old", 0, 0}})
	}},
	{"a proven account of the new key is not lost to an unproven old one", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		h.enrol(host(Key("new"), "scratch", "acme"))
		h.queue(Key("old"), Key("s"), "1")
		h.rotate("old", "new", "alpha")
		e := h.enrolment(Key("new"))
		want(h, "account", e.Account, "acme")
		want(h, "authorized by", e.AuthorizedBy, "jwks")
		h.wantUsage("after", []charge{{"account acme", 1, 100}})
	}},
	{"a queue moves to an empty one, in order", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", "acme"))
		h.queue(Key("old"), Key("s"), "1", "2", "3")
		h.ack(Key("old"), 1)
		want(h, "moved", h.rotate("old", "new", "alpha"), 2)
		want(h, "new queue", h.ids(Key("new")), []string{"2", "3"})
		want(h, "old queue", h.ids(Key("old")), []string(nil))
		want(h, "head", h.head("new"), 2)
		h.wantUsage("after", []charge{{"queue old", 0, 0}, {"share old s", 0, 0}, {"queue new", 2, 200}, {"share new s", 2, 200}, {"account acme", 2, 200}})
		for i, id := range []string{"2", "3"} {
			d, err := h.dedup(Key("s"), id, Key("new"))
			if err != nil || d.Seq != int64(i+1) || d.Hash != Mail(Key("old"), Key("s"), id, 100).Hash {
				h.Errorf("dedup of %s: got %+v, %v; want its new seq %d and its hash", id, d, err, i+1)
			}
			_, err = h.dedup(Key("s"), id, Key("old"))
			wantErr(h, "dedup under the old key", err, store.ErrNotFound)
		}
		d, err := h.dedup(Key("s"), "1", Key("new"))
		if err != nil || d.Hash != Mail(Key("old"), Key("s"), "1", 100).Hash {
			h.Errorf("tombstone: got %+v, %v; want it under the new key", d, err)
		}
	}},
	{"a queue is appended after the new key's own, above its head", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		h.floor.Store(1000)
		h.queue(Key("old"), Key("s"), "1", "2")
		h.floor.Store(5000)
		own := h.queue(Key("new"), Key("s"), "own-1", "own-2")
		h.ack(Key("new"), own[0])
		h.floor.Store(10)
		want(h, "moved", h.rotate("old", "new", "alpha"), 2)
		want(h, "queue", h.ids(Key("new")), []string{"own-2", "1", "2"})
		want(h, "head", h.head("new"), 5003)
		want(h, "acked", get(h, func(r store.Reader) (int64, error) { return r.Acked(Key("new")) }), own[0])
		h.floor.Store(9000)
		want(h, "next", h.queue(Key("new"), Key("s"), "3"), []int64{9000})
	}},
	{"an item moves whole", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		it := Mail(Key("old"), Key("s"), "1", 3000)
		it.Kind, it.AcceptedAt, it.ExpiresAt = store.KindReceipt, epoch0.Add(time.Second), epoch0.Add(day)
		h.Write(func(tx store.Tx) error { _, err := tx.Insert(it); return err })
		h.floor.Store(77)
		h.rotate("old", "new", "alpha")
		it.Target, it.Seq = Key("new"), 77
		var got []store.Item
		h.Read(func(r store.Reader) error {
			got = nil
			return r.Page(Key("new"), 0, 10, func(it store.Item) bool {
				it.Wire = slices.Clone(it.Wire)
				got = append(got, it)
				return true
			})
		})
		want(h, "item", got, []store.Item{it})
	}},
	{"an item that both keys hold with one hash is kept once", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", "acme"))
		h.enrol(host(Key("new"), "scratch", ""))
		h.same(Key("old"), Key("s"), "both", "bytes")
		h.queue(Key("old"), Key("s"), "mine")
		h.queue(Key("new"), Key("s"), "theirs")
		h.same(Key("new"), Key("s"), "both", "bytes")
		h.same(Key("old"), Key("other"), "both", "bytes") // of another sender: another item
		want(h, "moved", h.rotate("old", "new", "alpha"), 2)
		want(h, "queue", h.ids(Key("new")), []string{"theirs", "both", "mine", "both"})
		d, _ := h.dedup(Key("s"), "both", Key("new"))
		want(h, "dedup seq", d.Seq, 2)
		h.wantUsage("after", []charge{{"queue new", 4, 210}, {"queue old", 0, 0}, {"share old s", 0, 0}, {"account acme", 4, 210}, {"total", 4, 210}})
	}},
	{"an item that the new key has had already does not come again", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		h.same(Key("old"), Key("s"), "both", "bytes")
		h.same(Key("new"), Key("s"), "both", "bytes")
		h.ack(Key("new"), 1)
		want(h, "moved", h.rotate("old", "new", "alpha"), 0)
		want(h, "queue", h.ids(Key("new")), []string(nil))
		d, err := h.dedup(Key("s"), "both", Key("new"))
		if err != nil || d.Seq != 1 {
			h.Errorf("dedup: got %+v, %v; want the new key's row, seq 1", d, err)
		}
	}},
	{"an item that both keys hold with two hashes stays twice, and the new key's dedup row stands", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		h.same(Key("old"), Key("s"), "both", "old bytes")
		h.same(Key("new"), Key("s"), "both", "new bytes")
		want(h, "moved", h.rotate("old", "new", "alpha"), 1)
		want(h, "queue", h.ids(Key("new")), []string{"both", "both"})
		d, _ := h.dedup(Key("s"), "both", Key("new"))
		want(h, "dedup seq", d.Seq, 1)
		h.wantUsage("after", []charge{{"queue new", 2, 18}, {"share new s", 2, 18}})
		h.ack(Key("new"), 2)
	}},
	{"a retry of a rotated sender is a duplicate", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		h.queue(Key("t"), Key("old"), "1", "2")
		h.queue(Key("t"), Key("new"), "2") // the new key sent this one itself
		h.ack(Key("t"), 1)
		h.rotate("old", "new", "alpha")
		for id, seq := range map[string]int64{"1": 1, "2": 3} {
			d, err := h.dedup(Key("new"), id, Key("t"))
			if err != nil || d.Seq != seq {
				h.Errorf("dedup of %s: got %+v, %v; want seq %d", id, d, err, seq)
			}
		}
		want(h, "queue", h.ids(Key("t")), []string{"2", "2"})
	}},
	{"what a sender sent before it rotated follows its target's rotation", func(h *Harness) {
		h.enrol(host(Key("s1"), "sender", ""))
		h.enrol(host(Key("t1"), "target", ""))
		h.queue(Key("t1"), Key("s1"), "acked", "queued")
		h.same(Key("t1"), Key("s1"), "both", "bytes")
		h.ack(Key("t1"), 1)
		h.rotate("s1", "s2", "sender")
		h.floor.Store(500)
		h.same(Key("t2"), Key("s2"), "both", "bytes") // a retry that reached the target's new key
		want(h, "moved", h.rotate("t1", "t2", "target"), 1)
		want(h, "queue", h.ids(Key("t2")), []string{"both", "queued"})
		d, err := h.dedup(Key("s2"), "queued", Key("t2"))
		if err != nil || d.Seq != 501 {
			h.Errorf("dedup: got %+v, %v; want the new seq 501", d, err)
		}
		rows := get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(epoch0.Add(100*day), 10) })
		want(h, "prunable", keyNames(rows), []string{"acked"})
	}},
	{"mail of a host to itself follows both ways", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		h.queue(Key("old"), Key("old"), "1")
		want(h, "moved", h.rotate("old", "new", "alpha"), 1)
		d, err := h.dedup(Key("new"), "1", Key("new"))
		if err != nil || d.Seq != 1 {
			h.Errorf("dedup: got %+v, %v; want seq 1 under the new key both ways", d, err)
		}
		h.ack(Key("new"), 1)
	}},
	{"of two sender lists the newer stays", func(h *Harness) {
		for _, tt := range []struct {
			name     string
			old, own time.Duration // iat after epoch0; -1: no list
			want     string
		}{
			{"only the old key's", 1, -1, "old"},
			{"only the new key's", -1, 1, "own"},
			{"the old key's is newer", 2, 1, "old"},
			{"the new key's is newer", 1, 2, "own"},
			{"of one age, the new key's", 1, 1, "own"},
			{"none", -1, -1, ""},
		} {
			from, to := Key("old "+tt.name), Key("new "+tt.name)
			h.enrol(host(from, "alpha", ""))
			put := func(target wire.PublicKey, label string, iat time.Duration) {
				if iat < 0 {
					return
				}
				h.Write(func(tx store.Tx) error {
					return tx.PutSenderList(store.SenderList{Target: target, Senders: []wire.PublicKey{Key("friend of " + label)},
						IAT: epoch0.Add(iat * time.Hour), Record: []byte(label), Sig: "sig " + label})
				})
			}
			put(from, "old", tt.old)
			put(to, "own", tt.own)
			h.rotateKeys(from, to, "alpha")
			_, err := list(h, from)
			wantErr(h, tt.name+": list of the old key", err, store.ErrNotFound)
			l, err := list(h, to)
			if tt.want == "" {
				wantErr(h, tt.name, err, store.ErrNotFound)
				continue
			}
			if err != nil || string(l.Record) != tt.want || l.Sig != "sig "+tt.want || len(l.Senders) != 1 || l.Senders[0] != Key("friend of "+tt.want) {
				h.Errorf("%s: got %+v, %v; want the list %q", tt.name, l, err, tt.want)
			}
		}
	}},
	{"others' lists name the new key", func(h *Harness) {
		h.enrol(host(Key("old"), "alpha", ""))
		put := func(target string, senders ...string) {
			l := store.SenderList{Target: Key(target), IAT: epoch0, Record: []byte("{}"), Sig: "sig"}
			for _, s := range senders {
				l.Senders = append(l.Senders, Key(s))
			}
			h.Write(func(tx store.Tx) error { return tx.PutSenderList(l) })
		}
		put("t1", "x", "old", "y")
		put("t2", "old", "new") // both: named once
		put("t3", "x")
		put("old", "old", "x") // itself too
		h.rotate("old", "new", "alpha")
		for target, senders := range map[string][]string{"t1": {"new", "x", "y"}, "t2": {"new"}, "t3": {"x"}, "new": {"new", "x"}} {
			l, err := list(h, Key(target))
			var got []string
			for _, k := range l.Senders {
				for _, label := range []string{"old", "new", "x", "y"} {
					if k == Key(label) {
						got = append(got, label)
					}
				}
			}
			slices.Sort(got)
			want(h, "list of "+target, got, senders)
			wantErr(h, "list of "+target, err, nil)
			if string(l.Record) != "{}" || l.Sig != "sig" {
				h.Errorf("list of %s: got record %q, sig %q; want them as they were", target, l.Record, l.Sig)
			}
			want(h, target+" accepts", accepts(h, Key(target), Key("old")), false)
		}
		h.rotate("new", "newer", "alpha") // and again
		want(h, "t1 accepts the newest", accepts(h, Key("t1"), Key("newer")), true)
		want(h, "t1 accepts the one between", accepts(h, Key("t1"), Key("new")), false)
	}},
	{"the keys before are listed, the nearest first, up to a limit, round a cycle", func(h *Harness) {
		h.enrol(host(Key("k0"), "alpha", ""))
		for i := range 4 {
			h.now.Add(1000)
			h.rotate(fmt.Sprint("k", i), fmt.Sprint("k", i+1), "alpha")
		}
		from := func(label string, limit int) (got []string) {
			for _, k := range get(h, func(r store.Reader) ([]wire.PublicKey, error) { return r.RotatedFrom(Key(label), limit) }) {
				for i := range 6 {
					if l := fmt.Sprint("k", i); k == Key(l) {
						got = append(got, l)
					}
				}
			}
			return got
		}
		want(h, "all", from("k4", 10), []string{"k3", "k2", "k1", "k0"})
		want(h, "limit", from("k4", 2), []string{"k3", "k2"})
		want(h, "limit 0", from("k4", 0), []string(nil))
		want(h, "of one between", from("k2", 10), []string{"k1", "k0"})
		want(h, "of the first", from("k0", 10), []string(nil))
		h.enrol(host(Key("k5"), "beta", "")) // a second line into k4
		h.rotate("k5", "k4", "beta")
		got := from("k4", 10)
		slices.Sort(got[:2])
		want(h, "two lines", got, []string{"k3", "k5", "k2", "k1", "k0"})
		h.rotate("k4", "k0", "alpha") // a cycle: no caller does it, and it ends
		want(h, "cycle", len(from("k0", 100)), 5)
		h.Reopen()
		want(h, "reopened", from("k3", 1), []string{"k2"})
	}},
	{"a rotation that fails leaves all as it was", func(h *Harness) {
		sc, before := everything(h)
		wantErr(h, "update", h.Update(h.Context(), func(tx store.Tx) error {
			if _, err := tx.Rotate(store.Rotation{Old: Key("a"), New: Key("c2"), Name: "alpha", Record: []byte("{}"), At: epoch0}); err != nil {
				return err
			}
			if _, err := insert(tx, Key("c2"), Key("d1"), "one2"); err != nil {
				return err
			}
			return errBoom
		}), errBoom)
		if d := FirstDifference(h.Facts(sc), before); d != "" {
			h.Errorf("after: %s", d)
		}
	}},
}

// same queues an item of given bytes, which Mail would make the target's own.
func (h *Harness) same(target, sender wire.PublicKey, id, text string) {
	h.Helper()
	h.Write(func(tx store.Tx) error { _, err := tx.Insert(mailOf(target, sender, id, text)); return err })
}

func encKey(h *Harness, k wire.PublicKey) (e store.EncKey, miss error) {
	h.Helper()
	h.Read(func(r store.Reader) error { e, miss = r.EncKey(k); return nil })
	return e, miss
}

func list(h *Harness, target wire.PublicKey) (l store.SenderList, miss error) {
	h.Helper()
	h.Read(func(r store.Reader) error { l, miss = r.SenderList(target); return nil })
	return l, miss
}

func accepts(h *Harness, target, sender wire.PublicKey) (named bool) {
	h.Helper()
	h.Read(func(r store.Reader) (err error) { _, named, err = r.Accepts(target, sender); return err })
	return named
}
