package storetest

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

var queueTests = []subtest{
	{"an item is kept whole", func(h *Harness) {
		for i, kind := range []string{store.KindEnvelope, store.KindReceipt, store.KindExpired} {
			it := store.Item{Target: Key("a"), Kind: kind, ID: "id:" + kind, Sender: Key("b"), SenderHost: "box",
				Size: 5, AcceptedAt: epoch0.Add(7 * time.Millisecond), Wire: []byte{0, 0xff, '{', 0x80, '\n'}}
			if i == 0 {
				it.ExpiresAt = epoch0.Add(14 * 24 * time.Hour)
			}
			it.Hash = sha256.Sum256(it.Wire)
			h.Write(func(tx store.Tx) (err error) { it.Seq, err = tx.Insert(it); return err })
			var got []store.Item
			h.Read(func(r store.Reader) error {
				got = nil
				return r.Page(Key("a"), it.Seq-1, 10, func(it store.Item) bool { got = append(got, it); return true })
			})
			want(h, "item", got, []store.Item{it})
			d, _ := h.dedup(Key("b"), it.ID, Key("a"))
			want(h, "dedup", d, store.Dedup{Hash: it.Hash, Seq: it.Seq, AcceptedAt: it.AcceptedAt})
		}
	}},
	{"a page goes in order, to its limit, and stops when told", func(h *Harness) {
		a := Key("a")
		seqs := h.queue(a, Key("b"), "1", "2", "3", "4", "5")
		h.queue(Key("other"), Key("b"), "1", "2")
		tests := []struct {
			name        string
			after       int64
			limit, stop int
			want        []string
		}{
			{"all", 0, 100, 100, []string{"1", "2", "3", "4", "5"}},
			{"below all", -7, 100, 100, []string{"1", "2", "3", "4", "5"}},
			{"limit", 0, 2, 100, []string{"1", "2"}},
			{"after", seqs[1], 2, 100, []string{"3", "4"}},
			{"after the last", seqs[4], 10, 100, nil},
			{"stopped", 0, 100, 3, []string{"1", "2", "3"}},
			{"stopped at once", 0, 100, 1, []string{"1"}},
		}
		for _, tt := range tests {
			var got []string
			last := tt.after
			h.Read(func(r store.Reader) error {
				return r.Page(a, tt.after, tt.limit, func(it store.Item) bool {
					if it.Seq <= last || it.Size != int64(len(it.Wire)) || sha256.Sum256(it.Wire) != it.Hash {
						h.Errorf("%s: got seq %d after %d, size %d, %d bytes; want it above, and its own bytes",
							tt.name, it.Seq, last, it.Size, len(it.Wire))
					}
					last, got = it.Seq, append(got, it.ID)
					return len(got) < tt.stop
				})
			})
			want(h, tt.name, got, tt.want)
		}
		// A page that was stopped leaves nothing behind.
		want(h, "the whole queue", len(h.ids(a)), 5)
	}},
	{"seqs count up from 1 under a clock of 0", func(h *Harness) {
		want(h, "seqs", h.queue(Key("a"), Key("b"), "1", "2", "3"), []int64{1, 2, 3})
		want(h, "another queue", h.queue(Key("c"), Key("b"), "1"), []int64{1})
		want(h, "head", h.head("a"), 3)
	}},
	{"a seq is never below the clock, and a clock set back changes nothing", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.floor.Store(1_000_000)
		want(h, "at the clock", h.queue(a, b, "1", "2"), []int64{1_000_000, 1_000_001})
		h.floor.Store(1_000_002) // as far as the seqs are
		want(h, "level with the clock", h.queue(a, b, "3"), []int64{1_000_002})
		h.floor.Store(500)
		want(h, "clock set back", h.queue(a, b, "4", "5"), []int64{1_000_003, 1_000_004})
		h.Reopen()
		want(h, "and reopened", h.queue(a, b, "6"), []int64{1_000_005})
		h.floor.Store(-5)
		want(h, "a clock before 1970", h.queue(Key("c"), b, "1"), []int64{1})
		h.floor.Store(2_000_000)
		want(h, "clock set on", h.queue(a, b, "7"), []int64{2_000_000})
	}},
	{"a seq is never given again, after an ack of all and a reopen", func(h *Harness) {
		a, b := Key("a"), Key("b")
		for i := range 3 {
			seqs := h.queue(a, b, fmt.Sprint(i, "-1"), fmt.Sprint(i, "-2"))
			first := int64(2*i + 1)
			want(h, "seqs", seqs, []int64{first, first + 1})
			want(h, "deleted", h.ack(a, seqs[1]), 2)
			h.Reopen()
			want(h, "head", h.head("a"), first+1)
		}
	}},
	{"the seq of a failed insert may be given again, and never twice", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.queue(a, b, "1")
		wantErr(h, "update", h.Update(h.Context(), func(tx store.Tx) error {
			if _, err := insert(tx, a, b, "2"); err != nil {
				return err
			}
			return errBoom
		}), errBoom)
		want(h, "head", h.head("a"), 1)
		if seq := h.queue(a, b, "3")[0]; seq < 2 {
			h.Errorf("seq: got %d; want above 1", seq)
		}
	}},
	{"an ack drops what is at or below it, and only once", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.queue(a, b, "1", "2", "3", "4")
		h.queue(Key("c"), b, "1")
		for _, tt := range []struct {
			name            string
			through, gone   int64
			acked           int64
			left, leftOther int
		}{
			{"nothing yet", 0, 0, 0, 4, 1},
			{"two", 2, 2, 2, 2, 1},
			{"the same again", 2, 0, 2, 2, 1},
			{"an older one", 1, 0, 2, 2, 1},
			{"all", 4, 2, 4, 0, 1},
			{"none again", 0, 0, 4, 0, 1},
		} {
			want(h, tt.name+": deleted", h.ack(a, tt.through), tt.gone)
			want(h, tt.name+": acked", get(h, func(r store.Reader) (int64, error) { return r.Acked(a) }), tt.acked)
			want(h, tt.name+": left", len(h.ids(a)), tt.left)
			want(h, tt.name+": left in another queue", len(h.ids(Key("c"))), tt.leftOther)
		}
	}},
	{"the dedup row outlives an ack and a drop", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.queue(a, b, "acked", "dropped", "queued")
		h.ack(a, 1)
		it := Mail(a, b, "dropped", 100)
		it.Seq = 2
		h.Write(func(tx store.Tx) error { return tx.Drop(it) })
		want(h, "queue", h.ids(a), []string{"queued"})
		wantErr(h, "a second drop", h.Update(h.Context(), func(tx store.Tx) error { return tx.Drop(it) }), store.ErrNotFound)
		h.Reopen()
		for i, id := range []string{"acked", "dropped", "queued"} {
			d, err := h.dedup(b, id, a)
			if err != nil || d.Seq != int64(i+1) || d.Hash != Mail(a, b, id, 100).Hash || !d.AcceptedAt.Equal(epoch0) {
				h.Errorf("dedup of %s: got %+v, %v; want seq %d and its hash", id, d, err, i+1)
			}
		}
		for _, other := range []struct{ s, t, id string }{{"a", "b", "acked"}, {"b", "x", "acked"}, {"x", "a", "acked"}, {"b", "a", "other"}} {
			_, err := h.dedup(Key(other.s), other.id, Key(other.t))
			wantErr(h, fmt.Sprint("dedup of ", other), err, store.ErrNotFound)
		}
	}},
	{"one id of two senders or for two targets is two items", func(h *Harness) {
		h.queue(Key("a"), Key("b"), "id")
		h.queue(Key("a"), Key("c"), "id")
		h.queue(Key("d"), Key("b"), "id")
		want(h, "queue", h.ids(Key("a")), []string{"id", "id"})
		want(h, "totals", h.totals().Items, 3)
	}},
}

func (h *Harness) head(label string) int64 {
	h.Helper()
	return get(h, func(r store.Reader) (int64, error) { return r.Head(Key(label)) })
}
