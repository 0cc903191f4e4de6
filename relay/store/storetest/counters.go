package storetest

import (
	"strings"

	"github.com/agentmbx/agentmbx/relay/store"
)

var counterTests = []subtest{
	{"what is queued is charged to queue, share, account and totals", func(h *Harness) {
		a, a2, s := Key("a"), Key("a2"), Key("s")
		h.enrol(host(a, "alpha", "acme"))
		h.enrol(host(a2, "alpha-2", "acme"))
		put := func(target, sender string, id string, size int) {
			h.Write(func(tx store.Tx) error { _, err := tx.Insert(Mail(Key(target), Key(sender), id, size)); return err })
		}
		put("a", "s", "1", 10)
		put("a", "s2", "2", 200)
		put("a", "s", "3", 3000)
		put("a2", "s", "4", 40000)
		put("nobody", "s", "5", 500000)
		h.wantUsage("inserted", []charge{
			{"queue a", 3, 3210}, {"queue a2", 1, 40000}, {"queue nobody", 1, 500000},
			{"share a s", 2, 3010}, {"share a s2", 1, 200}, {"account acme", 4, 43210}, {"total", 5, 543210},
		})
		h.ack(a, 1)
		h.wantUsage("acked", []charge{
			{"queue a", 2, 3200}, {"share a s", 1, 3000}, {"share a s2", 1, 200}, {"account acme", 3, 43200}, {"total", 4, 543200},
		})
		drop := Mail(a, s, "3", 3000)
		drop.Seq = 3
		h.Write(func(tx store.Tx) error { return tx.Drop(drop) })
		h.wantUsage("dropped", []charge{
			{"queue a", 1, 200}, {"share a s", 0, 0}, {"share a s2", 1, 200}, {"account acme", 2, 40200}, {"total", 3, 540200},
		})
		h.Reopen()
		h.wantUsage("reopened", []charge{
			{"queue a", 1, 200}, {"share a s", 0, 0}, {"share a s2", 1, 200}, {"account acme", 2, 40200}, {"total", 3, 540200},
		})
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(a, epoch0); return err })
		h.wantUsage("revoked", []charge{{"queue a", 1, 200}, {"account acme", 2, 40200}, {"total", 3, 540200}})
		h.ack(a, 2)
		h.ack(a2, 1)
		h.wantUsage("acked all", []charge{
			{"queue a", 0, 0}, {"queue a2", 0, 0}, {"share a s2", 0, 0}, {"share a2 s", 0, 0}, {"account acme", 0, 0}, {"total", 1, 500000},
		})
	}},
	{"a queue's charge follows its host's account", func(h *Harness) {
		a := Key("a")
		h.queue(a, Key("s"), "before") // charged to nobody
		steps := []struct {
			name, account string
			want          []charge
		}{
			{"enrolled in an account", "acme", []charge{{"account acme", 2, 200}, {"account zeta", 0, 0}}},
			{"moved", "zeta", []charge{{"account acme", 0, 0}, {"account zeta", 2, 200}}},
			{"the same again", "zeta", []charge{{"account acme", 0, 0}, {"account zeta", 2, 200}}},
			{"out of any", "", []charge{{"account acme", 0, 0}, {"account zeta", 0, 0}}},
			{"back in", "acme", []charge{{"account acme", 2, 200}, {"account zeta", 0, 0}}},
		}
		h.queue(a, Key("s"), "too")
		for _, st := range steps {
			h.enrol(host(a, "alpha", st.account))
			h.wantUsage(st.name, append(st.want, charge{"queue a", 2, 200}, charge{"total", 2, 200}))
			if err := h.Check(h.Context()); err != nil {
				h.Errorf("%s: check: %v", st.name, err)
			}
		}
		h.ack(a, 2)
		h.wantUsage("acked", []charge{{"account acme", 0, 0}, {"account zeta", 0, 0}, {"total", 0, 0}})
	}},
	{"an insert, a move of account and an ack in one transaction agree", func(h *Harness) {
		a := Key("a")
		h.enrol(host(a, "alpha", "acme"))
		h.Write(func(tx store.Tx) error {
			for _, f := range []func() error{
				func() error { _, err := insert(tx, a, Key("s"), "1"); return err },
				func() error { return tx.PutEnrolment(host(a, "alpha", "zeta")) },
				func() error { _, err := insert(tx, a, Key("s"), "2"); return err },
				func() error { _, err := tx.Totals(); return err },
				func() error { _, err := tx.AckThrough(a, 1); return err },
				func() error { return tx.PutEnrolment(host(a, "alpha", "eta")) },
			} {
				if err := f(); err != nil {
					return err
				}
			}
			return nil
		})
		h.wantUsage("after", []charge{{"account acme", 0, 0}, {"account zeta", 0, 0}, {"account eta", 1, 100}, {"queue a", 1, 100}})
	}},
	{"live enrolments are counted", func(h *Harness) {
		for i, l := range []string{"a", "b", "c"} {
			h.enrol(host(Key(l), l, ""))
			want(h, "live", h.totals().Enrolments, int64(i+1))
		}
		h.Write(func(tx store.Tx) error { _, err := tx.Revoke(Key("a"), epoch0); return err })
		want(h, "one revoked", h.totals().Enrolments, 2)
		h.Write(func(tx store.Tx) error {
			_, err := tx.Rotate(store.Rotation{Old: Key("b"), New: Key("d"), Name: "b", Record: []byte("{}"), At: epoch0})
			return err
		})
		want(h, "one rotated", h.totals().Enrolments, 2)
		h.Write(func(tx store.Tx) error {
			_, err := tx.Rotate(store.Rotation{Old: Key("d"), New: Key("c"), Name: "b", Record: []byte("{}"), At: epoch0})
			return err
		})
		want(h, "two become one", h.totals().Enrolments, 1)
	}},
}

// charge is what something holds: "queue HOST", "share HOST SENDER",
// "account NAME" or "total".
type charge struct {
	what         string
	items, bytes int64
}

func (h *Harness) wantUsage(when string, list []charge) {
	h.Helper()
	h.Read(func(r store.Reader) error {
		for _, c := range list {
			var u store.Usage
			var err error
			switch f := strings.Fields(c.what); f[0] {
			case "queue":
				u, err = r.QueueUsage(Key(f[1]))
			case "share":
				u, err = r.ShareUsage(Key(f[1]), Key(f[2]))
			case "account":
				u, err = r.AccountUsage(f[1])
			case "total":
				var t store.Totals
				t, err = r.Totals()
				u = store.Usage{Items: t.Items, Bytes: t.Bytes}
			}
			if err != nil {
				return err
			}
			want(h, when+": "+c.what, u, store.Usage{Items: c.items, Bytes: c.bytes})
		}
		return nil
	})
}
