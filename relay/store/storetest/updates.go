package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var errBoom = errors.New("boom")

var updateTests = []subtest{
	{"an update is seen by the next view and after a reopen", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.enrol(host(a, "alpha", "acme"))
		h.queue(a, b, "one", "two")
		sc := Scope{Hosts: map[string]wire.PublicKey{"a": a, "b": b}, Accounts: []string{"acme"}, Items: []string{"one", "two"},
			Names: []string{"alpha"}, Global: true}
		want(h, "queue", h.ids(a), []string{"one", "two"})
		before := h.Facts(sc)
		h.Reopen()
		if d := FirstDifference(h.Facts(sc), before); d != "" {
			h.Errorf("after a reopen: %s", d)
		}
	}},
	{"a transaction sees its own writes", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.Write(func(tx store.Tx) error {
			if err := tx.PutEnrolment(host(a, "alpha", "acme")); err != nil {
				return err
			}
			seq, err := insert(tx, a, b, "one")
			if err != nil {
				return err
			}
			head, err1 := tx.Head(a)
			q, err2 := tx.QueueUsage(a)
			s, err3 := tx.ShareUsage(a, b)
			acc, err4 := tx.AccountUsage("acme")
			tot, err5 := tx.Totals()
			d, err6 := tx.Dedup(b, "one", a)
			e, err7 := tx.LiveInAccount("acme", "ALPHA")
			list, err8 := ids(tx, a)
			if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8); err != nil {
				return err
			}
			one := store.Usage{Items: 1, Bytes: 100}
			want(h, "head", head, seq)
			want(h, "queue", q, one)
			want(h, "share", s, one)
			want(h, "account", acc, one)
			want(h, "totals", tot, store.Totals{Enrolments: 1, Items: 1, Bytes: 100})
			want(h, "dedup seq", d.Seq, seq)
			want(h, "enrolment", e.Key, a)
			want(h, "items", list, []string{"one"})
			return nil
		})
	}},
	{"a failing closure stores nothing", func(h *Harness) {
		sc, before := everything(h)
		err := h.Update(h.Context(), func(tx store.Tx) error {
			if err := writeEverything(tx, "2"); err != nil {
				return err
			}
			return errBoom
		})
		wantErr(h, "update", err, errBoom)
		if d := FirstDifference(h.Facts(sc), before); d != "" {
			h.Errorf("after a failed update: %s", d)
		}
	}},
	{"a panicking closure is an error and stores nothing", func(h *Harness) {
		sc, before := everything(h)
		err := h.Update(h.Context(), func(tx store.Tx) error {
			if err := writeEverything(tx, "2"); err != nil {
				return err
			}
			panic("boom")
		})
		if err == nil {
			h.Error("update: got nil; want an error")
		}
		if d := FirstDifference(h.Facts(sc), before); d != "" {
			h.Errorf("after a panic: %s", d)
		}
		h.queue(Key("a"), Key("b"), "next") // the store goes on
	}},
	{"a write that the store refuses fails its closure, looked at or not", func(h *Harness) {
		a, b := Key("a"), Key("b")
		h.queue(a, b, "one")
		err := h.Update(h.Context(), func(tx store.Tx) error {
			_, _ = insert(tx, a, b, "two")
			_, _ = insert(tx, a, b, "one") // it has a dedup row
			return nil
		})
		if err == nil {
			h.Error("an item inserted twice: got nil; want an error")
		}
		want(h, "queue", h.ids(a), []string{"one"})
	}},
	{"failing closures undo only their own work", groupMates},
	{"callers of one queue get seqs of their own", func(h *Harness) {
		a := Key("a")
		const callers, each = 16, 8
		var wg sync.WaitGroup
		seqs := make(chan int64, callers*each)
		for c := range callers {
			wg.Go(func() {
				for i := range each {
					var seq int64
					if err := h.Update(h.Context(), func(tx store.Tx) (err error) {
						seq, err = insert(tx, a, Key(fmt.Sprint(c)), fmt.Sprint(i))
						return err
					}); err != nil {
						h.Errorf("insert: %v", err)
					}
					seqs <- seq
				}
			})
		}
		wg.Wait()
		close(seqs)
		seen := map[int64]bool{}
		for s := range seqs {
			if s < 1 || s > callers*each || seen[s] {
				h.Errorf("seq %d: out of 1..%d or given twice", s, callers*each)
			}
			seen[s] = true
		}
		want(h, "items", len(h.ids(a)), callers*each)
	}},
	{"a context that ended before its turn runs nothing", func(h *Harness) {
		running, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		first := make(chan error, 1)
		go func() {
			first <- h.Update(h.Context(), func(tx store.Tx) error {
				once.Do(func() { close(running) })
				<-release
				_, err := insert(tx, Key("a"), Key("b"), "first")
				return err
			})
		}()
		<-running
		ctx, cancel := context.WithCancel(h.Context())
		second := make(chan error, 1)
		ran := false
		go func() {
			second <- h.Update(ctx, func(tx store.Tx) error {
				ran = true
				_, err := insert(tx, Key("a"), Key("b"), "second")
				return err
			})
		}()
		cancel()
		// A store that runs both at once may have taken the second up in time.
		err, stored := <-second, 2
		if err != nil {
			stored = 1
			wantErr(h, "second update", err, context.Canceled)
			want(h, "the second closure has run", ran, false)
		}
		close(release)
		wantErr(h, "first update", <-first, nil)
		want(h, "items", len(h.ids(Key("a"))), stored)
	}},
}

// groupMates has many callers at once, of which some fail after writes to rows
// that the others write too.
func groupMates(h *Harness) {
	const callers = 60
	queues := []wire.PublicKey{Key("q0"), Key("q1"), Key("q2")}
	h.Write(func(tx store.Tx) error {
		for i, q := range queues {
			if err := tx.PutEnrolment(host(q, fmt.Sprint("host-", i), "acme")); err != nil {
				return err
			}
		}
		return nil
	})
	gate := make(chan struct{})
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range callers {
		wg.Go(func() {
			<-gate
			target, id := queues[i%3], fmt.Sprint("item-", i)
			errs[i] = h.Update(h.Context(), func(tx store.Tx) error {
				if _, err := insert(tx, target, Key("s"), id); err != nil {
					return err
				}
				if err := tx.PutEncKey(target, "n", store.EncKey{EncPub: id, At: epoch0}); err != nil {
					return err
				}
				switch i % 6 {
				case 1:
					return errBoom
				case 2:
					if _, err := tx.Totals(); err != nil { // a read of all that the group changed so far
						return err
					}
					return errBoom
				case 3:
					panic("boom")
				case 4:
					// a refused write, after one more that must go with it
					if _, err := tx.AckThrough(target, 1); err != nil {
						return err
					}
					_, err := insert(tx, target, Key("s"), id)
					return err
				}
				return nil
			})
		})
	}
	close(gate)
	wg.Wait()
	for i, err := range errs {
		_, missing := h.dedup(Key("s"), fmt.Sprint("item-", i), queues[i%3])
		if fails := i%6 >= 1 && i%6 <= 4; fails != (err != nil) || fails != (missing != nil) {
			h.Errorf("caller %d: got answer %v, stored %v; want a failure to be %v", i, err, missing == nil, fails)
		}
	}
	if err := h.Check(h.Context()); err != nil {
		h.Errorf("check: %v", err)
	}
	want(h, "account", get(h, func(r store.Reader) (store.Usage, error) { return r.AccountUsage("acme") }),
		store.Usage{Items: callers / 3, Bytes: 100 * callers / 3})
}

// everything writes a row of each kind and tells the facts of it.
func everything(h *Harness) (Scope, string) {
	h.Write(func(tx store.Tx) error { return writeEverything(tx, "1") })
	sc := Scope{
		Hosts:    map[string]wire.PublicKey{"a": Key("a"), "b": Key("b"), "c1": Key("c1"), "d1": Key("d1"), "c2": Key("c2"), "d2": Key("d2")},
		Accounts: []string{"acme"}, Items: []string{"one1", "two1", "held1", "released1", "one2", "two2", "held2", "released2"}, Names: []string{"alpha"}, Ops: []string{"", "sweep"},
		Jobs: []string{"", "sweep", "backup"}, States: []string{"state"}, Denied: []string{"fp1", "fp2", "over"}, Global: true,
		Clients: []string{"client", "client 2"}, DenyLists: []string{"jti1", "jti2", "jti"}, Sources: []string{"issuer"},
	}
	return sc, h.Facts(sc)
}

// writeEverything uses every method that writes.
func writeEverything(tx store.Tx, n string) error {
	a, b, c, d := Key("a"), Key("b"), Key("c"+n), Key("d"+n)
	for _, f := range []func() error{
		func() error { return tx.PutEnrolment(host(a, "alpha", "acme")) },
		func() error { return tx.PutEnrolment(host(b, "beta"+n, "")) },
		func() error { return tx.PutEnrolment(session(c, "gamma"+n, "client", time.Duration(len(n))*time.Hour)) },
		func() error { _, err := insert(tx, a, b, "one"+n); return err },
		func() error { return insertHeld(tx, a, c, "held"+n) },
		func() error { _, err := insert(tx, a, c, "two"+n); return err },
		func() error { _, err := insert(tx, c, b, "one"+n); return err },
		func() error { return insertHeld(tx, c, b, "held"+n) },
		func() error { head, _ := tx.Head(a); _, err := tx.AckThrough(a, head-1); return err },
		func() error {
			return tx.PutSenderList(store.SenderList{Target: a, Senders: []wire.PublicKey{b, c}, IAT: epoch0, Record: []byte("{}"), Sig: n})
		},
		func() error { return tx.PutEncKey(a, "alpha", store.EncKey{EncPub: n, Sig: n, At: epoch0}) },
		func() error { return tx.PutEncAd(a, store.EncAd{Record: []byte(n), Sig: n, At: epoch0}) },
		func() error { return tx.AddDenial(store.Denial{HostFP: "fp" + n, AddedAt: epoch0}) },
		func() error { // what stood before goes, too
			if _, err := tx.PruneDenials(epoch0, epoch0.Add(time.Second), 1); err != nil {
				return err
			}
			return tx.AddDenial(store.Denial{HostFP: "over", ClientID: "client", AddedAt: epoch0, Until: epoch0.Add(-time.Minute)})
		},
		func() error {
			i := time.Duration(n[0]) * time.Second
			_, err := tx.ForgetDenyLists(epoch0.Add(time.Second))
			return errors.Join(err, tx.PutDenyList(store.DenyList{ID: "jti" + n, Source: "issuer", IAT: epoch0.Add(i), Expires: epoch0}),
				tx.PutDenyList(store.DenyList{ID: "jti", Source: "issuer", IAT: epoch0.Add(i - time.Hour), Expires: epoch0.Add(i)}))
		},
		func() error { return tx.SetEpoch("epoch-" + n) },
		func() error { return tx.AppendLog(epoch0, "sweep", []byte(`{"n":`+n+`}`)) },
		func() error {
			_, err := tx.Rotate(store.Rotation{Old: c, New: d, Name: "gamma" + n, Record: []byte("{}"), At: epoch0})
			return err
		},
		func() error { _, err := tx.Revoke(b, epoch0); return err },
		func() error { // a crash leaves it running; the next one takes over
			_, err := tx.StartRun(store.Run{Job: "backup", Holder: "process " + n, StartedAt: epoch0})
			return err
		},
		func() error {
			id, err := tx.StartRun(store.Run{Job: "sweep", Holder: "process " + n, StartedAt: epoch0})
			if err != nil {
				return err
			}
			return tx.FinishRun(store.Run{ID: id, Job: "sweep", FinishedAt: epoch0, Outcome: store.OutcomeOK, Detail: n}, 1)
		},
		func() error { return tx.SetState("state", []byte(n)) },
		func() error {
			if err := insertHeld(tx, a, c, "released"+n); err != nil {
				return err
			}
			head, err := tx.Head(a)
			if err != nil {
				return err
			}
			_, err = tx.Release(a, head)
			return err
		},
		func() error { return tx.SetSeen(a, epoch0.Add(time.Duration(len(n))*time.Minute)) },
		func() error { return tx.SetSeen(d, epoch0) },
		func() error {
			last := int64(0)
			err := tx.Denials("", 0, func(x store.Denial) bool { last = x.ID; return false })
			if n != "1" { // what stood before goes, too
				err = errors.Join(err, tx.RemoveDenial(last))
			}
			return err
		},
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}
