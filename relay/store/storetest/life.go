package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

var lifeTests = []subtest{
	{"a closed store says so", func(h *Harness) {
		s := h.Store
		h.checkedClose()
		wantErr(h, "update", s.Update(h.Context(), func(store.Tx) error { return nil }), store.ErrClosed)
		wantErr(h, "view", s.View(h.Context(), func(store.Reader) error { return nil }), store.ErrClosed)
		wantErr(h, "check", s.Check(h.Context()), store.ErrClosed)
		wantErr(h, "second close", s.Close(), store.ErrClosed)
		h.mustOpen()
	}},
	{"many closes at once close it once", func(h *Harness) {
		s := h.Store
		h.gone = true
		const n = 8
		var wg sync.WaitGroup
		errs := make([]error, n)
		gate := make(chan struct{})
		for i := range n {
			wg.Go(func() { <-gate; errs[i] = s.Close() })
		}
		close(gate)
		wg.Wait()
		closed := 0
		for _, err := range errs {
			switch {
			case err == nil:
				closed++
			case !errors.Is(err, store.ErrClosed):
				h.Errorf("close: got %v; want nil or ErrClosed", err)
			}
		}
		want(h, "closes that did it", closed, 1)
		h.mustOpen()
	}},
	{"a close while views and updates run loses nothing that was answered", func(h *Harness) {
		const writers, readers = 8, 6
		var wg sync.WaitGroup
		stored := make([][]string, writers)
		some := make(chan struct{}, 1000)
		for w := range writers {
			wg.Go(func() {
				for i := 0; ; i++ {
					id := fmt.Sprintf("%d-%d", w, i)
					err := h.Update(h.Context(), func(tx store.Tx) error {
						_, err := insert(tx, Key("a"), Key("b"), id)
						return err
					})
					if errors.Is(err, store.ErrClosed) {
						return
					}
					if err != nil {
						h.Errorf("update: got %v; want nil or ErrClosed", err)
						return
					}
					stored[w] = append(stored[w], id)
					select {
					case some <- struct{}{}:
					default:
					}
				}
			})
		}
		for range readers {
			wg.Go(func() {
				for {
					err := h.View(h.Context(), func(r store.Reader) error {
						_, err := ids(r, Key("a"))
						return err
					})
					if errors.Is(err, store.ErrClosed) {
						return
					}
					if err != nil {
						h.Errorf("view: got %v; want nil or ErrClosed", err)
						return
					}
				}
			})
		}
		for range 20 {
			<-some
		}
		h.gone = true
		wantErr(h, "close", h.Close(), nil)
		wg.Wait()
		h.mustOpen()
		held := map[string]bool{}
		for _, id := range h.ids(Key("a")) {
			held[id] = true
		}
		n := 0
		for _, list := range stored {
			for _, id := range list {
				n++
				if !held[id] {
					h.Errorf("item %s was answered and is not stored", id)
				}
			}
		}
		want(h, "items", len(held), n)
	}},
	{"a close waits for a view that runs", func(h *Harness) {
		h.queue(Key("a"), Key("b"), "one")
		closeDuring(h, func(s store.Store, inside func()) error {
			return s.View(h.Context(), func(r store.Reader) error {
				inside()
				list, err := ids(r, Key("a"))
				want(h, "queue", list, []string{"one"})
				return err
			})
		})
	}},
	{"a close waits for an update that runs", func(h *Harness) {
		closeDuring(h, func(s store.Store, inside func()) error {
			return s.Update(h.Context(), func(tx store.Tx) error {
				inside()
				_, err := insert(tx, Key("a"), Key("b"), "one")
				return err
			})
		})
		want(h, "queue", h.ids(Key("a")), []string{"one"})
	}},
	{"a view is one snapshot while writes go on", snapshots},
	{"a long view does not hold up writers, nor see them", func(h *Harness) {
		h.queue(Key("a"), Key("b"), "one")
		h.Read(func(r store.Reader) error {
			first, err := ids(r, Key("a"))
			if err != nil {
				return err
			}
			for i := range 5 { // would wait for ever if the view held them up
				h.queue(Key("a"), Key("b"), fmt.Sprint("later-", i))
			}
			want(h, "another view", len(h.ids(Key("a"))), 6)
			again, err := ids(r, Key("a"))
			want(h, "the same view", again, first)
			return err
		})
	}},
	{"a view sees every commit answered before it", func(h *Harness) {
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 15 {
					id := fmt.Sprintf("%d-%d", w, i)
					h.queue(Key("a"), Key("b"), id)
					if _, missing := h.dedup(Key("b"), id, Key("a")); missing != nil {
						h.Errorf("item %s: got %v right after the answer; want it seen", id, missing)
					}
				}
			})
		}
		wg.Wait()
	}},
	{"an error of a view is its caller's, and the next view works", func(h *Harness) {
		for range 10 {
			wantErr(h, "view", h.View(h.Context(), func(store.Reader) error { return errBoom }), errBoom)
		}
		h.Read(func(r store.Reader) error { _, err := r.Info(); return err })
	}},
	{"a view whose context has ended says so or runs whole", func(h *Harness) {
		ctx, cancel := context.WithCancel(h.Context())
		cancel()
		for range 20 {
			ran := false
			err := h.View(ctx, func(r store.Reader) error { ran = true; _, err := r.Info(); return err })
			if err != nil && (ran || !errors.Is(err, context.Canceled)) {
				h.Errorf("view: got %v, run %v; want nil, or context.Canceled and not run", err, ran)
			}
		}
	}},
	{"the size is told", func(h *Harness) {
		h.queue(Key("a"), Key("b"), "one")
		z, err := h.Size(h.Context())
		if err != nil || z.Data+z.Log <= 0 || z.Free < 0 || z.Low {
			h.Errorf("size: got %+v, %v; want bytes in use and room left", z, err)
		}
	}},
}

// closeDuring closes the store while a call is inside its closure: the call is
// served, and the close returns after it.
func closeDuring(h *Harness, run func(s store.Store, inside func()) error) {
	s := h.Store
	running, release := make(chan struct{}), make(chan struct{})
	done, closed := make(chan error, 1), make(chan error, 1)
	var once sync.Once
	go func() {
		done <- run(s, func() {
			once.Do(func() { close(running) })
			<-release
		})
	}()
	<-running
	h.gone = true
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		h.Errorf("close: got %v while the call ran; want it to wait", err)
		closed <- err
	case <-time.After(30 * time.Millisecond): // as long as it would take to go wrong
	}
	close(release)
	wantErr(h, "the call", <-done, nil)
	wantErr(h, "close", <-closed, nil)
	h.mustOpen()
}

// snapshots moves an item back and forth between two hosts in every write: a
// view that sees none or two of it, or totals of another moment, is torn.
func snapshots(h *Harness) {
	a, b := Key("a"), Key("b")
	const rounds = 40
	h.queue(a, b, "0")
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		from, to := a, b
		for i := range rounds {
			err := h.Update(h.Context(), func(tx store.Tx) error {
				head, err := tx.Head(from)
				if err != nil {
					return err
				}
				if _, err := tx.AckThrough(from, head); err != nil {
					return err
				}
				_, err = insert(tx, to, Key("s"), fmt.Sprint(i+1))
				return err
			})
			if err != nil {
				h.Errorf("update: %v", err)
				return
			}
			from, to = to, from
		}
	})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				err := h.View(h.Context(), func(r store.Reader) error {
					x, err1 := ids(r, a)
					ub, err2 := r.QueueUsage(b)
					y, err3 := ids(r, b)
					ua, err4 := r.QueueUsage(a)
					tot, err5 := r.Totals()
					if len(x)+len(y) != 1 || int(ua.Items) != len(x) || int(ub.Items) != len(y) || tot.Items != 1 {
						h.Errorf("torn view: got %v (%+v) and %v (%+v), totals %+v; want one item in all", x, ua, y, ub, tot)
					}
					return errors.Join(err1, err2, err3, err4, err5)
				})
				if err != nil {
					h.Errorf("view: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}
