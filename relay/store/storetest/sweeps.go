package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const day = 24 * time.Hour

var sweepTests = []subtest{
	{"what has expired is listed, and what never expires is not", func(h *Harness) {
		from := epoch0.Add(-time.Hour) // when the store first enforced expiry
		put := func(id string, accepted, expires time.Time) {
			it := Mail(Key("a"), Key("s"), id, 50)
			it.AcceptedAt, it.ExpiresAt = accepted, expires
			h.Write(func(tx store.Tx) error { _, err := tx.Insert(it); return err })
		}
		put("never", epoch0, time.Time{})
		put("from an older store", from.Add(-time.Millisecond), epoch0)
		put("accepted as it began", from, epoch0)
		put("old", epoch0, epoch0.Add(day))
		put("older", epoch0, epoch0.Add(time.Hour))
		put("young", epoch0, epoch0.Add(14*day))
		for _, tt := range []struct {
			name  string
			now   time.Time
			limit int
			want  []string
		}{
			{"none yet", epoch0.Add(-time.Millisecond), 10, nil},
			{"at its time", epoch0, 10, []string{"accepted as it began"}},
			{"some", epoch0.Add(day), 10, []string{"accepted as it began", "old", "older"}},
			{"all", epoch0.Add(1000 * day), 10, []string{"accepted as it began", "old", "older", "young"}},
		} {
			list := get(h, func(r store.Reader) ([]store.Item, error) { return r.Expired(from, tt.now, tt.limit) })
			var got []string
			for _, it := range list {
				got = append(got, it.ID)
				if it.Wire != nil || it.Size != 50 || it.Target != Key("a") || it.Sender != Key("s") || it.Seq == 0 {
					h.Errorf("%s: got %+v; want all but the wire", tt.name, it)
				}
			}
			slices.Sort(got)
			want(h, tt.name, got, tt.want)
		}
		want(h, "limit", len(get(h, func(r store.Reader) ([]store.Item, error) { return r.Expired(from, epoch0.Add(100*day), 2) })), 2)
		// What was listed can be dropped as it is.
		for _, it := range get(h, func(r store.Reader) ([]store.Item, error) { return r.Expired(from, epoch0.Add(100*day), 10) }) {
			h.Write(func(tx store.Tx) error { return tx.Drop(it) })
		}
		want(h, "left", h.ids(Key("a")), []string{"never", "from an older store"})
		h.wantUsage("swept", []charge{{"queue a", 2, 100}, {"share a s", 2, 100}, {"total", 2, 100}})
	}},
	{"what has expired is counted as it is listed", func(h *Harness) {
		const hours = 6
		n := 0
		for accepted := range hours {
			for lives := range 4 {
				it := Mail(Key(fmt.Sprint("t", n%3)), Key("s"), fmt.Sprint("item-", n), 50)
				it.AcceptedAt = epoch0.Add(time.Duration(accepted) * time.Hour)
				if lives > 0 {
					it.ExpiresAt = it.AcceptedAt.Add(time.Duration(lives) * time.Hour)
				}
				held := n%5 < 2
				h.Write(func(tx store.Tx) error {
					seq, err := tx.Insert(it)
					if err != nil || !held {
						return err
					}
					return tx.Hold(it.Target, seq, epoch0, "op", "")
				})
				n++
			}
		}
		var most, held int64
		for from := -1; from <= hours; from++ {
			for now := range hours + 4 {
				for _, ms := range []time.Duration{-time.Millisecond, 0, time.Millisecond} { // about each bound
					from, now := epoch0.Add(time.Duration(from)*time.Hour-ms), epoch0.Add(time.Duration(now)*time.Hour+ms)
					var count int64
					var list []store.Item
					h.Read(func(r store.Reader) (err error) {
						if count, err = r.CountExpired(from, now); err != nil {
							return err
						}
						list, err = r.Expired(from, now, 1000)
						return err
					})
					want(h, fmt.Sprint("from ", from, " at ", now), count, int64(len(list)))
					most = max(most, count)
					for _, it := range list {
						if it.Held {
							held++
						}
						if it.AcceptedAt.Before(from) || it.ExpiresAt.IsZero() || it.ExpiresAt.After(now) {
							h.Errorf("from %s at %s: got %+v; want none such", from, now, it)
						}
					}
				}
			}
		}
		want(h, "at most", most, 3*hours)
		if held == 0 {
			h.Error("got none that was held; want some")
		}
	}},
	{"dedup rows are forgotten after their time, but not those of queued items", func(h *Harness) {
		a, s := Key("a"), Key("s")
		for i, id := range []string{"acked", "dropped", "queued", "young"} {
			it := Mail(a, s, id, 50)
			it.AcceptedAt = epoch0.Add(time.Duration(i) * time.Second)
			if id == "young" {
				it.AcceptedAt = epoch0.Add(30 * day)
			}
			h.Write(func(tx store.Tx) error { _, err := tx.Insert(it); return err })
		}
		h.ack(a, 1)
		h.Write(func(tx store.Tx) error {
			return tx.Drop(store.Item{Target: a, Seq: 2, Sender: s, ID: "dropped", Size: 50})
		})
		before := epoch0.Add(21 * day)
		prunable := func(before time.Time, limit int) []string {
			list := get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(before, limit) })
			return keyNames(list)
		}
		want(h, "nothing is old enough", prunable(epoch0, 10), []string(nil))
		want(h, "the first alone", prunable(epoch0.Add(1), 10), []string(nil))
		want(h, "up to a time", prunable(epoch0.Add(time.Second), 10), []string{"acked"})
		want(h, "all", prunable(before, 10), []string{"acked", "dropped"})
		want(h, "limit", len(prunable(before, 1)), 1)

		rows := []store.DedupKey{}
		for _, id := range []string{"acked", "dropped", "queued", "young", "unknown"} {
			rows = append(rows, store.DedupKey{Sender: s, ItemID: id, Target: a})
		}
		var n int64
		forget := func(before time.Time) int64 {
			h.Write(func(tx store.Tx) (err error) { n, err = tx.Forget(rows, before); return err })
			return n
		}
		want(h, "forgotten too early", forget(epoch0), 0)
		want(h, "forgotten", forget(before), 2)
		want(h, "forgotten again", forget(before), 0)
		for id, there := range map[string]bool{"acked": false, "dropped": false, "queued": true, "young": true} {
			_, err := h.dedup(s, id, a)
			want(h, "dedup row of "+id+" is kept", err == nil, there)
		}
		// Its sender may push it once more: it is mail again.
		want(h, "seq", h.queue(a, s, "acked"), []int64{5})
	}},
	{"an item that was queued again keeps its row from a list made before", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.queue(a, s, "1")
		h.ack(a, 1)
		before := epoch0.Add(21 * day)
		rows := get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(before, 10) })
		want(h, "prunable", keyNames(rows), []string{"1"})
		h.Write(func(tx store.Tx) error { _, err := tx.Forget(rows, before); return err })
		h.queue(a, s, "1")
		var n int64
		h.Write(func(tx store.Tx) (err error) { n, err = tx.Forget(rows, before); return err })
		want(h, "forgotten", n, 0)
	}},
	{"a row that moved in is judged by its own item", func(h *Harness) {
		// A tombstone that a rotation brings along has a seq of another queue:
		// an item that happens to have the same seq here is not its item.
		old, a, s := Key("old"), Key("a"), Key("s")
		h.enrol(host(old, "alpha", ""))
		h.queue(old, s, "gone")
		h.ack(old, 1)
		h.queue(a, s, "other")
		h.rotate("old", "a", "alpha")
		rows := get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(epoch0.Add(21*day), 10) })
		want(h, "prunable", keyNames(rows), []string{"gone"})
	}},
	{"a sweep of many rows goes on in batches", func(h *Harness) {
		a, s := Key("a"), Key("s")
		const n = 50
		var list []string
		for i := range n {
			list = append(list, fmt.Sprint("item-", i))
		}
		h.queue(a, s, list...)
		h.ack(a, n)
		before := epoch0.Add(21 * day)
		var rounds, pruned int64
		for ; rounds < 100; rounds++ {
			rows := get(h, func(r store.Reader) ([]store.DedupKey, error) { return r.Prunable(before, 20) })
			if len(rows) == 0 {
				break
			}
			h.Write(func(tx store.Tx) error {
				k, err := tx.Forget(rows, before)
				pruned += k
				return err
			})
		}
		want(h, "rounds", rounds, 3)
		want(h, "pruned", pruned, n)
	}},
}

func keyNames(rows []store.DedupKey) (list []string) {
	slices.SortFunc(rows, func(a, b store.DedupKey) int { return cmp.Compare(a.ItemID, b.ItemID) })
	for _, r := range rows {
		list = append(list, r.ItemID)
	}
	return list
}

// rotate makes one labelled key the successor of another.
func (h *Harness) rotate(from, to, name string) (moved int64) {
	h.Helper()
	return h.rotateKeys(Key(from), Key(to), name)
}

func (h *Harness) rotateKeys(from, to wire.PublicKey, name string) (moved int64) {
	h.Helper()
	h.Write(func(tx store.Tx) (err error) {
		moved, err = tx.Rotate(store.Rotation{Old: from, New: to, Name: name, Record: []byte(`{"rec":{}}`), At: h.Now()})
		return err
	})
	return moved
}
