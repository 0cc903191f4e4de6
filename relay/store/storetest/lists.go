package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var listTests = []subtest{
	{"queues by depth, size and age, the equal ones by key", func(h *Harness) {
		keys := sorted("a", "b", "c", "d", "e", "f")
		const mib = 1 << 20
		sizes := [][]int{{mib + 10}, {mib - 1}, {mib - 10, 10}, {2 * mib}, {10, 10}, {mib + 20}} // by key: items of so many bytes
		minutes := []int{3, 3, 1, 2, 3, 9}
		for i, k := range keys {
			for j, size := range sizes[i] {
				it := Mail(k, Key("s"), fmt.Sprint("id", j), size)
				it.AcceptedAt = epoch0.Add(time.Duration(minutes[i]+100*j) * time.Minute)
				h.Write(func(tx store.Tx) error { _, err := tx.Insert(it); return err })
			}
		}
		h.queue(Key("emptied"), Key("s"), "1")
		h.ack(Key("emptied"), 1)
		h.hold(keys[5], 1, epoch0, "op", "") // nothing of it waits
		for by, order := range map[store.QueueOrder][]int{
			store.ByDepth: {2, 4, 0, 1, 3, 5}, store.ByBytes: {3, 0, 2, 5}, store.ByOldest: {2, 3, 0, 1, 4},
		} {
			for page := range 8 {
				var got []int
				h.Read(func(r store.Reader) error {
					got = nil
					list := func(after *store.Queue, each func(store.Queue) bool) error { return r.Queues(by, after, each) }
					return walk(page, store.Queue{}, first(list, func(q store.Queue) bool { return q.Items == 0 }), func(q store.Queue) {
						got = append(got, slices.Index(keys, q.Target))
						whole, err := r.Queue(q.Target)
						if err != nil || whole != q {
							h.Errorf("%s: got %+v listed and %+v, %v alone; want the same", by, q, whole, err)
						}
					})
				})
				want(h, fmt.Sprint("by ", by, " in pages of ", page), got, order)
			}
		}
		if err := h.View(h.Context(), func(r store.Reader) error {
			return r.Queues("name", nil, func(store.Queue) bool { return true })
		}); err == nil {
			h.Error("an order that there is not: got nil; want an error")
		}
	}},
	{"a queue is listed by size while it holds a MiB", func(h *Harness) {
		const mib = 1 << 20
		a, b, s := Key("a"), Key("b"), Key("s")
		put := func(id string, size int) func(tx store.Tx) error {
			return func(tx store.Tx) error { _, err := tx.Insert(Mail(a, s, id, size)); return err }
		}
		for _, step := range []struct {
			name string
			do   func(tx store.Tx) error
			want []wire.PublicKey
		}{
			{"a byte too few", put("1", mib-1), nil},
			{"a MiB", put("2", 1), []wire.PublicKey{a}},
			{"more", put("3", 10), []wire.PublicKey{a}},
			{"held", func(tx store.Tx) error { return tx.Hold(a, 1, epoch0, "op", "") }, []wire.PublicKey{a}},
			{"another one acked", func(tx store.Tx) error { _, err := tx.AckThrough(a, 2); return err }, []wire.PublicKey{a}},
			{"all acked but what is held", func(tx store.Tx) error { _, err := tx.AckThrough(a, 3); return err }, nil},
			{"again", put("4", 1), []wire.PublicKey{a}},
			{"rotated", func(tx store.Tx) error {
				_, err := tx.Rotate(store.Rotation{Old: a, New: b, Name: "b", Record: []byte("{}"), At: epoch0})
				return err
			}, []wire.PublicKey{b}},
			{"dropped", func(tx store.Tx) error {
				var held store.Item
				err := tx.Held(func(it store.HeldItem) bool { held = it.Item; return true })
				return errors.Join(err, tx.Drop(held))
			}, nil},
		} {
			if step.name == "rotated" {
				h.enrol(host(a, "a", ""))
			}
			h.Write(step.do)
			var got []wire.PublicKey
			h.Read(func(r store.Reader) error {
				got = nil
				return r.Queues(store.ByBytes, nil, func(q store.Queue) bool { got = append(got, q.Target); return true })
			})
			want(h, step.name, got, step.want)
		}
	}},
	{"a list goes on from a row that is gone meanwhile", func(h *Harness) {
		keys := sorted("a", "b", "c", "d")
		for _, k := range keys {
			h.queue(k, Key("s"), "1", "2")
			h.hold(k, 2, epoch0, "op", "")
			h.enrol(host(k, "same", ""))
			h.Write(func(tx store.Tx) error {
				return errors.Join(tx.PutSenderList(store.SenderList{Target: k, IAT: epoch0, Record: []byte("{}")}),
					tx.AddDenial(store.Denial{HostFP: "fp", AddedAt: epoch0}))
			})
		}
		var gone struct {
			queue  store.Queue
			held   store.HeldItem
			denial store.Denial
		}
		h.Read(func(r store.Reader) error {
			n := 0
			second := func() bool { n++; return n%2 != 0 } // stops at the second of each list
			return errors.Join(
				r.Queues(store.ByDepth, nil, func(q store.Queue) bool { gone.queue = q; return second() }),
				r.Quarantine(nil, func(it store.HeldItem) bool { gone.held = it; return second() }),
				r.Denials("", 0, func(d store.Denial) bool { gone.denial = d; return second() }))
		})
		want(h, "the second", []wire.PublicKey{gone.queue.Target, gone.held.Target}, []wire.PublicKey{keys[1], keys[1]})
		h.ack(keys[1], 1)
		h.Write(func(tx store.Tx) error {
			return errors.Join(tx.Drop(store.Item{Target: keys[1], Seq: 2, Held: true}), tx.RemoveDenial(gone.denial.ID))
		})
		h.Read(func(r store.Reader) error {
			var queues, shares, items, held []int
			denials := 0
			at := func(k wire.PublicKey) int { return slices.Index(keys, k) }
			err := errors.Join(
				r.Queues(store.ByDepth, &gone.queue, func(q store.Queue) bool { queues = append(queues, at(q.Target)); return true }),
				r.SharesOf(Key("s"), keys[1], func(k wire.PublicKey, _ store.Usage) bool { shares = append(shares, at(k)); return true }),
				r.Items(store.ItemMark{Target: keys[1], Seq: 1}, func(it store.Item) bool { items = append(items, at(it.Target)); return true }),
				r.Quarantine(&gone.held, func(it store.HeldItem) bool { held = append(held, at(it.Target)); return true }),
				r.Denials("", gone.denial.ID, func(store.Denial) bool { denials++; return true }))
			for what, got := range map[string][]int{"queues": queues, "shares": shares, "items": items, "held": held} {
				want(h, what, got, []int{2, 3})
			}
			want(h, "denials", denials, 2)
			return err
		})
	}},
	{"what is listed is the caller's to keep, without its bytes", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.queue(a, s, "1", "2", "3", "4")
		h.hold(a, 3, epoch0, "first", "one")
		h.hold(a, 4, epoch0.Add(time.Minute), "second", "two")
		item := func(id string, seq int64) store.Item {
			it := Mail(a, s, id, 100)
			it.Seq, it.Held, it.Wire = seq, seq > 2, nil
			return it
		}
		h.Read(func(r store.Reader) error {
			var items []store.Item
			var held []store.HeldItem
			err := errors.Join(
				r.Items(store.ItemMark{}, func(it store.Item) bool { items = append(items, it); return true }),
				r.Quarantine(nil, func(it store.HeldItem) bool { held = append(held, it); return true }))
			want(h, "items", items, []store.Item{item("1", 1), item("2", 2)})
			want(h, "held, the last first", held, []store.HeldItem{
				{Item: item("4", 4), HeldAt: epoch0.Add(time.Minute), Actor: "second", Reason: "two"},
				{Item: item("3", 3), HeldAt: epoch0, Actor: "first", Reason: "one"},
			})
			one, err2 := r.Item(a, 2)
			want(h, "one", one, items[1])
			heldOne, err3 := r.HeldItem(a, 3)
			want(h, "one held", heldOne, held[1])
			_, err4 := r.Item(a, 3)
			wantErr(h, "a held one as queued", err4, store.ErrNotFound)
			_, err5 := r.HeldItem(a, 2)
			wantErr(h, "a queued one as held", err5, store.ErrNotFound)
			return errors.Join(err, err2, err3)
		})
	}},
	{"enrolments are listed by name without case, revoked ones too, and found by fingerprint", func(h *Harness) {
		keys := sorted("1", "2", "3", "4", "5")
		for i, name := range []string{"beta", "Alpha", "BETA", "alpha-2", "beta"} {
			e := host(keys[i], name, "")
			h.enrol(e)
		}
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(keys[2], epoch0); return err })
		for page := range 7 {
			var got []string
			h.Read(func(r store.Reader) error {
				got = nil
				return walk(page, store.Enrolment{}, first(r.Enrolments, func(e store.Enrolment) bool { return e.Key.IsZero() }), func(e store.Enrolment) {
					got = append(got, fmt.Sprint(slices.Index(keys, e.Key), " ", e.Name, " ", e.Live()))
				})
			})
			want(h, fmt.Sprint("in pages of ", page), got, []string{"1 Alpha true", "3 alpha-2 true", "0 beta true", "2 BETA false", "4 beta true"})
		}
		h.rotateKeys(keys[0], Key("6"), "beta")
		for what, k := range map[string]wire.PublicKey{"live": keys[1], "revoked": keys[2], "rotated away": keys[0], "rotated to": Key("6")} {
			list := get(h, func(r store.Reader) ([]store.Enrolment, error) { return r.ByFingerprint(k.Fingerprint(), 5) })
			if len(list) != 1 || list[0].Key != k {
				h.Errorf("%s: got %+v; want the one", what, list)
			}
		}
		for what, fp := range map[string]string{"a stranger's": Key("x").Fingerprint(), "none": "", "another case": strings.ToUpper(keys[1].Fingerprint()) + "x"} {
			if list := get(h, func(r store.Reader) ([]store.Enrolment, error) { return r.ByFingerprint(fp, 5) }); len(list) != 0 {
				h.Errorf("%s: got %+v; want none", what, list)
			}
		}
	}},
	{"denials are listed and removed by an id that no other gets", func(h *Harness) {
		add := func(fp, client string) {
			h.Write(func(tx store.Tx) error {
				return tx.AddDenial(store.Denial{HostFP: fp, ClientID: client, Reason: "of " + fp + client, Source: "operator", AddedAt: epoch0, Until: epoch0.Add(time.Second)})
			})
		}
		list := func(fp string) (all []store.Denial) {
			h.Read(func(r store.Reader) error {
				all = nil
				return r.Denials(fp, 0, func(d store.Denial) bool { all = append(all, d); return true })
			})
			return all
		}
		remove := func(id int64) error {
			return h.Update(h.Context(), func(tx store.Tx) error { return tx.RemoveDenial(id) })
		}
		add("fp-1", "")
		add("fp-2", "client")
		add("", "client")
		add("fp-1", "")
		all := list("")
		var got []string
		for _, d := range all {
			got = append(got, d.HostFP+"/"+d.ClientID)
		}
		want(h, "the last first", got, []string{"fp-1/", "/client", "fp-2/client", "fp-1/"})
		want(h, "of a host", len(list("fp-1")), 2)
		want(h, "of nobody", len(list("fp-9")), 0)
		d := get(h, func(r store.Reader) (store.Denial, error) { return r.Denied("fp-2", "client", epoch0) })
		if !slices.Contains(all, d) {
			h.Errorf("in force: got %+v; want one of the list, with its id", d)
		}
		last := all[0].ID
		wantErr(h, "removed", remove(last), nil)
		wantErr(h, "removed again", remove(last), store.ErrNotFound)
		wantErr(h, "no id", remove(0), store.ErrNotFound)
		h.Reopen()
		add("fp-3", "")
		if id := list("")[0].ID; id <= last {
			h.Errorf("a new one: got id %d; want one above %d, which somebody may still mean", id, last)
		}
		want(h, "left", len(list("")), 4)
	}},
	{"when a host was seen never goes back", func(h *Harness) {
		a := Key("a")
		seen := func() time.Time {
			return get(h, func(r store.Reader) (time.Time, error) { return r.Seen(a) })
		}
		want(h, "never", seen().IsZero(), true)
		for _, tt := range []struct{ at, want int }{{5, 5}, {9, 9}, {7, 9}, {9, 9}, {10, 10}} {
			h.Write(func(tx store.Tx) error { return tx.SetSeen(a, epoch0.Add(time.Duration(tt.at)*time.Minute)) })
			want(h, fmt.Sprint("seen at ", tt.at), seen(), epoch0.Add(time.Duration(tt.want)*time.Minute))
		}
		h.Reopen()
		want(h, "reopened", seen(), epoch0.Add(10*time.Minute))
	}},
	{"sender lists and shares are listed in the order of keys", func(h *Harness) {
		keys := sorted("a", "b", "c")
		for i, k := range keys {
			h.Write(func(tx store.Tx) error {
				return tx.PutSenderList(store.SenderList{Target: k, Senders: keys[:i], IAT: epoch0.Add(time.Duration(i)), Record: []byte("{}"), Sig: "sig"})
			})
			for _, s := range slices.Backward(keys[i:]) {
				h.queue(k, s, "1")
			}
		}
		h.hold(keys[0], 1, epoch0, "op", "") // held ones count
		for page := range 5 {
			sc := Scope{Hosts: map[string]wire.PublicKey{}, Global: true, Page: page}
			for i, k := range keys {
				sc.Hosts[fmt.Sprint("k", i)] = k
			}
			text := h.Facts(sc)
			for _, line := range []string{
				`k0 holds from ["k0 {Items:1 Bytes:100}" "k1 {Items:1 Bytes:100}" "k2 {Items:1 Bytes:100}"]`,
				`k2 has in the queue of ["k0 {Items:1 Bytes:100}" "k1 {Items:1 Bytes:100}" "k2 {Items:1 Bytes:100}"]`,
				`k0 has in the queue of ["k0 {Items:1 Bytes:100}"]`,
				fmt.Sprintf("list of k0: [] iat %[1]d record \"\" sig \"\"\nlist of k1: [k0] iat %[1]d record \"\" sig \"\"\nlist of k2: [k0 k1] iat %[1]d record \"\" sig \"\"", epoch0.UnixMilli()),
			} {
				if !strings.Contains(text, line+"\n") {
					h.Errorf("in pages of %d: got no %s in\n%s", page, line, text)
				}
			}
		}
	}},
	{"a transaction that failed after it listed leaves the lists as they were", func(h *Harness) {
		a, s := Key("a"), Key("s")
		h.queue(a, s, "1", "2")
		for range 2 {
			wantErr(h, "update", h.Update(h.Context(), func(tx store.Tx) error {
				list := func(want int64) error {
					var got int64
					err := tx.Queues(store.ByDepth, nil, func(q store.Queue) bool { got = q.Items; return true })
					err2 := tx.Shares(a, wire.PublicKey{}, func(_ wire.PublicKey, u store.Usage) bool { got += u.Items; return true })
					if got != 2*want {
						h.Errorf("got %d items in both lists; want %d", got, 2*want)
					}
					return errors.Join(err, err2)
				}
				_, err := insert(tx, a, s, "3")
				err2 := list(3)
				_, err3 := tx.AckThrough(a, 2)
				return errors.Join(errBoom, err, err2, err3, list(1))
			}), errBoom)
			h.wantQueue("failed", store.Queue{Target: a, Usage: store.Usage{Items: 2, Bytes: 200}, Oldest: epoch0, Head: 2})
		}
		want(h, "next", h.queue(a, s, "3"), []int64{3})
	}},
}
