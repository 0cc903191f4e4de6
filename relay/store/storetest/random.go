package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var modelTests = []subtest{
	{"hundreds of random writes leave what a plain model has", randomWrites},
}

// SeedVariable names the environment variable that repeats a random test.
const SeedVariable = "MBX_STORETEST_SEED"

// Seed is the logged seed of a random test.
func Seed(h interface{ Logf(string, ...any) }) uint64 {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv(SeedVariable), 10, 64); err == nil {
		seed = s
	}
	h.Logf("seed: %s=%d", SeedVariable, seed)
	return seed
}

// world is where random writes come from: few hosts, ids and accounts, so that
// they meet often.
type world struct {
	rnd   *rand.Rand
	floor *atomic.Int64
	keys  []wire.PublicKey
	scope Scope
	clock time.Time
	log   []string // what was done
}

func randomWrites(h *Harness) {
	seed := Seed(h)
	w := &world{rnd: rand.New(rand.NewPCG(seed, 1)), floor: &h.floor, clock: epoch0}
	w.scope = Scope{Hosts: map[string]wire.PublicKey{}, Accounts: []string{"acme", "zeta"}, Names: []string{"alpha", "beta", "gamma"},
		Ops: []string{"", "restore", "sweep"}, Jobs: []string{"", "sweep", "backup"}, States: []string{"s1", "s2"}, Denied: []string{"fp-0", "fp-1", "fp-2"},
		Clients: []string{"client-0", "client-1", "client-2"}, DenyLists: []string{"list-0", "list-1", "list-2", "list-3"}, Sources: []string{"issuer", "issuer-list"}, Global: true}
	for i := range 8 {
		label := fmt.Sprint("h", i)
		w.scope.Hosts[label] = Key(label)
		w.keys = append(w.keys, Key(label))
	}
	for i := range 12 {
		w.scope.Items = append(w.scope.Items, fmt.Sprint("id-", i))
	}
	m := newModel(h.info(), h.floor.Load)
	writes := 400
	if RaceDetector {
		writes = 100
	}
	for i := range writes {
		w.clock = w.clock.Add(time.Duration(w.rnd.IntN(5000)) * time.Millisecond)
		var steps []step
		for range 1 + w.rnd.IntN(5) {
			steps = append(steps, w.step(m))
		}
		fails := w.rnd.IntN(4) == 0
		panics := fails && w.rnd.IntN(3) == 0
		run := func(tx store.Tx) (answers []string, err error) {
			for _, s := range steps {
				a, err := s.do(tx)
				answers = append(answers, s.what+" -> "+a)
				if err != nil {
					return answers, err
				}
			}
			if fails {
				return answers, errBoom
			}
			return answers, nil
		}
		next := m.clone()
		expected, expectedErr := run(next)
		var got []string
		err := h.Update(h.Context(), func(tx store.Tx) (err error) {
			got, err = run(tx)
			if panics && errors.Is(err, errBoom) {
				panic(err)
			}
			return err
		})
		w.log = append(append(w.log, expected...), fmt.Sprintf("%d: %v", i, expectedErr))
		if expectedErr == nil {
			m = next
		}
		if !slices.Equal(got, expected) || (err == nil) != (expectedErr == nil) || err != nil && !panics && !errors.Is(err, expectedErr) {
			h.Fatalf("write %d: got %q, %v; want %q, %v\n%s", i, got, err, expected, expectedErr, w.history())
		}
		if i%100 == 57 {
			h.Reopen()
		}
		if i%20 == 19 {
			w.compare(h, m, i)
		}
	}
	w.compare(h, m, writes)
	h.Reopen()
	w.compare(h, m, writes)
}

func (w *world) history() string { return strings.Join(w.log[max(0, len(w.log)-60):], "\n") }

func (w *world) compare(h *Harness, m *model, i int) {
	h.Helper()
	expected, err := Facts(m, w.scope)
	if err != nil {
		h.Fatal(err)
	}
	paged := w.scope
	paged.Page = w.rnd.IntN(4) // the model reads all at once
	if d := FirstDifference(h.Facts(paged), expected); d != "" {
		h.Fatalf("after write %d, pages of %d: %s\n%s", i, paged.Page, d, w.history())
	}
	expected, _ = w.lists(m)
	if d := FirstDifference(get(h, w.lists), expected); d != "" {
		h.Fatalf("after write %d: %s\n%s", i, d, w.history())
	}
}

// lists are the answers that stand in no order.
func (w *world) lists(r store.Reader) (string, error) {
	expired, err1 := r.Expired(epoch0.Add(time.Minute), w.clock, 1000)
	prunable, err2 := r.Prunable(w.clock, 1000)
	n, err3 := r.CountExpired(epoch0.Add(time.Minute), w.clock)
	out := []string{fmt.Sprint("expired in all ", n)}
	for _, it := range expired {
		out = append(out, fmt.Sprintf("expired h%d %d %s held %v", slices.Index(w.keys, it.Target), it.Seq, it.ID, it.Held))
	}
	for _, k := range prunable {
		out = append(out, fmt.Sprintf("prunable %s of h%d from h%d", k.ItemID, slices.Index(w.keys, k.Target), slices.Index(w.keys, k.Sender)))
	}
	for _, fp := range append(w.scope.Denied, "") {
		for _, client := range append(w.scope.Clients, "") {
			_, err := r.Denied(fp, client, w.clock)
			out = append(out, fmt.Sprintf("denied %s %s %v", fp, client, err == nil))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n"), errors.Join(err1, err2, err3)
}

// step is one call that answers the same of a store and of the model.
type step struct {
	what string
	do   func(tx store.Tx) (answer string, err error)
}

func pick[T any](w *world, list []T) T { return list[w.rnd.IntN(len(list))] }

// step chooses a call. It may look at the model, which is where the store is
// before the transaction at hand.
func (w *world) step(m *model) step {
	a, b := pick(w, w.keys), pick(w, w.keys)
	id, name := pick(w, w.scope.Items), pick(w, w.scope.Names)
	account := pick(w, []string{"", "acme", "zeta"})
	w.clock = w.clock.Add(time.Millisecond) // no two at one time: ties have no order
	now := w.clock
	// A clock that jumps to and fro, so far that no two queues share a seq.
	floor := w.rnd.Int64N(1 << 40)
	say := func(format string, args ...any) string {
		for i, x := range args {
			if k, ok := x.(wire.PublicKey); ok {
				args[i] = fmt.Sprint("h", slices.Index(w.keys, k))
			}
		}
		return fmt.Sprintf(format, args...)
	}
	ok := func(err error) (string, error) { return "", err }
	switch n := w.rnd.IntN(146); {
	case n < 40: // a push, as the relay does it: a duplicate is no insert
		size := 1 + w.rnd.IntN(3) // often the same bytes
		if w.rnd.IntN(40) == 0 {
			size += 1<<20 - 4 // with a small one more it is a MiB
		}
		it := mailOf(a, b, id, strings.Repeat("x", size))
		it.AcceptedAt = now
		if w.rnd.IntN(2) == 0 {
			it.ExpiresAt = now.Add(time.Duration(w.rnd.IntN(600)) * time.Second)
		}
		return step{say("push %s to %v from %v", id, a, b), func(tx store.Tx) (string, error) {
			w.floor.Store(floor)
			d, err := tx.Dedup(b, id, a)
			if err == nil {
				return fmt.Sprint("duplicate ", d.Seq), nil
			}
			if !errors.Is(err, store.ErrNotFound) {
				return "", err
			}
			seq, err := tx.Insert(it)
			u, err2 := tx.QueueUsage(a)
			return fmt.Sprint(seq, u), errors.Join(err, err2)
		}}
	case n < 55:
		back := w.rnd.Int64N(4)
		return step{say("ack %v but %d", a, back), func(tx store.Tx) (string, error) {
			head, err := tx.Head(a)
			if err != nil {
				return "", err
			}
			gone, err := tx.AckThrough(a, max(head-back, 0))
			return fmt.Sprint(gone), err
		}}
	case n < 60:
		q := m.queue(a)
		if len(q) == 0 {
			return w.step(m)
		}
		it := pick(w, q).Item
		it.Wire = nil
		return step{say("drop %d of %v", it.Seq, a), func(tx store.Tx) (string, error) {
			err := tx.Drop(it)
			if errors.Is(err, store.ErrNotFound) { // a step before took it
				return "gone", nil
			}
			return ok(err)
		}}
	case n < 70:
		e := host(a, name, account)
		e.EnrolledAt = now
		if w.rnd.IntN(2) == 0 {
			e.ClientID, e.SessionEnds = pick(w, w.scope.Clients), now.Add(time.Minute)
		}
		return step{say("enrol %v as %s in %q", a, name, account), func(tx store.Tx) (string, error) {
			err := tx.PutEnrolment(e)
			if errors.Is(err, store.ErrNameTaken) {
				return "taken", nil
			}
			return ok(err)
		}}
	case n < 72:
		return step{say("revoke %v", a), func(tx store.Tx) (string, error) {
			was, err := tx.Revoke(a, now)
			return fmt.Sprint(was), err
		}}
	case n < 76:
		if a == b {
			return w.step(m)
		}
		return step{say("rotate %v to %v", a, b), func(tx store.Tx) (string, error) {
			if _, err := tx.Enrolment(a); errors.Is(err, store.ErrNotFound) {
				return "unknown", nil
			}
			w.floor.Store(floor)
			moved, err := tx.Rotate(store.Rotation{Old: a, New: b, Name: name, Record: []byte("{}"), At: now})
			return fmt.Sprint(moved), err
		}}
	case n < 81:
		l := store.SenderList{Target: a, IAT: now, Record: []byte(id), Sig: id}
		for _, k := range w.keys {
			if w.rnd.IntN(3) == 0 {
				l.Senders = append(l.Senders, k)
			}
		}
		return step{say("list of %v: %d", a, len(l.Senders)), func(tx store.Tx) (string, error) { return ok(tx.PutSenderList(l)) }}
	case n < 84:
		return step{say("enc of %v", a), func(tx store.Tx) (string, error) {
			return ok(errors.Join(tx.PutEncKey(a, name, store.EncKey{EncPub: id, Sig: name, At: now}), tx.PutEncAd(a, store.EncAd{Record: []byte(id), Sig: id, At: now})))
		}}
	case n < 88:
		before := now.Add(-time.Duration(w.rnd.IntN(300)) * time.Second)
		return step{say("prune"), func(tx store.Tx) (string, error) {
			rows, err := tx.Prunable(before, 1000)
			if err != nil {
				return "", err
			}
			rows = append(rows, store.DedupKey{Sender: b, ItemID: id, Target: a})
			n, err := tx.Forget(rows, before)
			return fmt.Sprint(n), err
		}}
	case n < 91:
		return step{say("log"), func(tx store.Tx) (string, error) {
			return ok(tx.AppendLog(now, "restore", fmt.Appendf(nil, `{"at":%d}`, now.UnixMilli())))
		}}
	case n < 93:
		return step{say("epoch"), func(tx store.Tx) (string, error) {
			return ok(errors.Join(tx.SetEpoch("e-"+id), tx.SetHeartbeat(now)))
		}}
	case n < 95, n >= 140:
		d := store.Denial{HostFP: pick(w, w.scope.Denied), ClientID: pick(w, w.scope.Clients), AddedAt: now}
		switch w.rnd.IntN(3) {
		case 0:
			d.HostFP = ""
		case 1:
			d.ClientID = ""
		}
		if w.rnd.IntN(8) > 0 {
			d.Until = now.Add(time.Duration(w.rnd.IntN(60)) * time.Second)
		}
		return step{say("deny %s %s", d.HostFP, d.ClientID), func(tx store.Tx) (string, error) { return ok(tx.AddDenial(d)) }}
	case n < 102:
		q := m.queue(a)
		if len(q) == 0 {
			return w.step(m)
		}
		seq := pick(w, q).Seq // it may be held already
		return step{say("hold %d of %v", seq, a), func(tx store.Tx) (string, error) {
			err := tx.Hold(a, seq, now, "actor "+name, "reason "+id)
			if errors.Is(err, store.ErrNotFound) {
				return "gone", nil
			}
			return ok(err)
		}}
	case n < 105:
		r := store.Run{Job: pick(w, []string{"sweep", "backup"}), AskedBy: name, Holder: pick(w, []string{"p1", "p2"}), StartedAt: now, Detail: id}
		return step{say("start %s by %s", r.Job, r.Holder), func(tx store.Tx) (string, error) {
			_, err := tx.StartRun(r)
			if errors.Is(err, store.ErrRunning) {
				return "running", nil
			}
			return ok(err)
		}}
	case n < 108:
		job, outcome := pick(w, []string{"sweep", "backup"}), pick(w, []string{store.OutcomeOK, store.OutcomeFailed})
		keep := w.rnd.IntN(4)
		return step{say("finish %s, keep %d", job, keep), func(tx store.Tx) (string, error) {
			r, err := tx.LastRun(job, "")
			if errors.Is(err, store.ErrNotFound) {
				return "none", nil
			}
			if err != nil {
				return "", err
			}
			r.FinishedAt, r.Outcome, r.Detail = now, outcome, "done "+id
			return ok(tx.FinishRun(r, keep))
		}}
	case n < 111:
		var value []byte
		if w.rnd.IntN(3) > 0 {
			value = fmt.Appendf(nil, `{"at": %d}`, now.UnixMilli())
		}
		which := pick(w, w.scope.States)
		return step{say("state %s %s", which, value), func(tx store.Tx) (string, error) { return ok(tx.SetState(which, value)) }}
	case n < 118:
		q := slices.DeleteFunc(m.queue(a), func(it *mailed) bool { return !it.Held })
		if len(q) == 0 {
			return w.step(m)
		}
		seq := pick(w, q).Seq
		return step{say("release %d of %v", seq, a), func(tx store.Tx) (string, error) {
			w.floor.Store(floor)
			n, err := tx.Release(a, seq)
			if errors.Is(err, store.ErrNotFound) { // a step before took it
				return "gone", nil
			}
			return fmt.Sprint(n), err
		}}
	case n < 120:
		which := w.rnd.IntN(4)
		return step{say("undeny %d", which), func(tx store.Tx) (string, error) {
			var list []store.Denial
			if err := tx.Denials("", 0, func(d store.Denial) bool { list = append(list, d); return len(list) <= which }); err != nil {
				return "", err
			}
			if len(list) <= which {
				return "none", nil
			}
			return ok(tx.RemoveDenial(list[which].ID))
		}}
	case n < 122:
		at := epoch0.Add(time.Duration(w.rnd.IntN(1000)) * time.Second) // to and fro
		return step{say("see %v", a), func(tx store.Tx) (string, error) { return ok(tx.SetSeen(a, at)) }}
	case n < 127: // lists of what was written so far, in the midst of it
		by, size := pick(w, []store.QueueOrder{store.ByDepth, store.ByBytes, store.ByOldest}), w.rnd.IntN(3)
		return step{say("queues by %s", by), func(tx store.Tx) (answer string, err error) {
			list := func(after *store.Queue, each func(store.Queue) bool) error { return tx.Queues(by, after, each) }
			err = walk(size, store.Queue{}, first(list, func(q store.Queue) bool { return q.Items == 0 }), func(q store.Queue) {
				answer += fmt.Sprint(q, " ")
			})
			q, err2 := tx.Queue(a)
			err3 := tx.Shares(a, wire.PublicKey{}, func(k wire.PublicKey, u store.Usage) bool { answer += fmt.Sprint(k, u, " "); return true })
			err4 := tx.SharesOf(a, wire.PublicKey{}, func(k wire.PublicKey, u store.Usage) bool { answer += fmt.Sprint(k, u, " "); return true })
			return answer + fmt.Sprint(q), errors.Join(err, err2, err3, err4)
		}}
	case n < 132:
		ended, added, limit := now.Add(-time.Duration(w.rnd.IntN(30))*time.Second), now.Add(-time.Duration(w.rnd.IntN(30))*time.Second), w.rnd.IntN(4)
		return step{say("prune denials, %d", limit), func(tx store.Tx) (string, error) {
			n, err := tx.PruneDenials(ended, added, limit)
			return fmt.Sprint(n), err
		}}
	case n < 135:
		l := store.DenyList{ID: pick(w, w.scope.DenyLists), Source: pick(w, w.scope.Sources), IAT: now, Expires: now.Add(time.Duration(w.rnd.IntN(60)) * time.Second)}
		if w.rnd.IntN(2) == 0 {
			l.IAT = now.Add(-time.Hour) // of no other list either
		}
		return step{say("deny list %s of %s", l.ID, l.Source), func(tx store.Tx) (string, error) { return ok(tx.PutDenyList(l)) }}
	case n < 136:
		return step{say("forget deny lists"), func(tx store.Tx) (string, error) {
			n, err := tx.ForgetDenyLists(now)
			return fmt.Sprint(n), err
		}}
	default: // a read of what was written so far, in the midst of it
		return step{say("totals"), func(tx store.Tx) (string, error) {
			t, err := tx.Totals()
			u, err2 := tx.AccountUsage("acme")
			return fmt.Sprint(t, u), errors.Join(err, err2)
		}}
	}
}
