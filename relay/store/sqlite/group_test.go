package sqlite

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

func TestCallsThatWaitShareACommit(t *testing.T) {
	t.Parallel()
	f := &injector{}
	o := testOptions(memDir(t))
	o.fault = f.hook
	s := openStill(t, o)
	var calls []func(store.Tx) error
	for i := range 5 {
		calls = append(calls, inserting("a", fmt.Sprint(i)))
	}
	for try := 0; ; try++ {
		f.arm(-1, false, "")
		for i, err := range s.serveAll(calls...) {
			if err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		n := count(f.record, "COMMIT")
		if n == 1 {
			break
		}
		if try == 20 { // a slow machine may split some, by their time
			t.Fatalf("got %d commits; want one for all %d calls", n, len(calls))
		}
	}
	if got := queued(t, s, "a"); len(got) != len(calls) {
		t.Errorf("got %v; want each once", got)
	}
}

// A group keeps rows in memory while it runs. What a failing closure left
// there must not reach those that share its transaction.
func TestFailedClosureLeavesNothingInMemory(t *testing.T) {
	t.Parallel()
	boom := func(fns ...func(store.Tx) error) func(store.Tx) error {
		return func(tx store.Tx) error {
			for _, fn := range fns {
				if err := fn(tx); err != nil {
					return fmt.Errorf("before the failure: %w", err)
				}
			}
			return errOwn
		}
	}
	enrol := func(account string) func(store.Tx) error {
		return func(tx store.Tx) error {
			return tx.PutEnrolment(store.Enrolment{Key: storetest.Key("a"), Name: "alpha", Account: account, AuthorizedBy: "jwks", EnrolledAt: faultTime})
		}
	}
	totals := func(tx store.Tx) error { _, err := tx.Totals(); return err }
	epoch := func(tx store.Tx) error {
		err := errors.Join(tx.SetEpoch("stray"), tx.SetHeartbeat(faultTime.AddDate(1, 0, 0)))
		in, err2 := tx.Info()
		if in.Epoch != "stray" {
			return fmt.Errorf("got epoch %s; want the one just set", in.Epoch)
		}
		return errors.Join(err, err2)
	}
	noEpoch := func(tx store.Tx) error {
		if in, err := tx.Info(); err != nil || in.Epoch == "stray" || !in.Heartbeat.Equal(faultTime) {
			return fmt.Errorf("got %+v, %v; want what stood before", in, err)
		}
		return nil
	}
	headIs := func(target string, want int64) func(store.Tx) error {
		return func(tx store.Tx) error {
			if got, err := tx.Head(storetest.Key(target)); err != nil || got != want {
				return fmt.Errorf("head of %s: got %d, %v; want %d", target, got, err, want)
			}
			return nil
		}
	}
	holding := func(target string, seq int64) func(store.Tx) error {
		return func(tx store.Tx) error { return tx.Hold(storetest.Key(target), seq, faultTime, "operator", "reason") }
	}
	releasing := func(target string, seq int64) func(store.Tx) error {
		return func(tx store.Tx) error { _, err := tx.Release(storetest.Key(target), seq); return err }
	}
	queues := func(tx store.Tx) error { // they are written where they are listed
		return tx.Queues(store.ByDepth, nil, func(store.Queue) bool { return true })
	}
	mib := func(tx store.Tx) error { // it is pushed, and the queue listed by size
		err := push(tx, storetest.Mail(storetest.Key("a"), storetest.Key("s"), "large", 1<<20))
		return errors.Join(err, tx.Queues(store.ByBytes, nil, func(store.Queue) bool { return true }))
	}
	oldest := func(target string, queued int64) func(store.Tx) error {
		return func(tx store.Tx) error {
			q, err := tx.Queue(storetest.Key(target))
			if n := q.Items - q.Held.Items; n != queued || q.Oldest.IsZero() != (n == 0) {
				return fmt.Errorf("got %+v, %v; want %d queued", q, err, queued)
			}
			return err
		}
	}
	tests := []struct {
		name   string
		group  []func(store.Tx) error
		items  []string // of queue a
		charge int64    // items of account acme
	}{
		{"counters, read midway", []func(store.Tx) error{inserting("a", "1"), boom(inserting("a", "2"), totals)}, []string{"1"}, 1},
		{"counters, read midway alone", []func(store.Tx) error{inserting("a", "1"), boom(totals)}, []string{"1"}, 1},
		{"a new queue", []func(store.Tx) error{boom(inserting("new", "1"), inserting("a", "1")), headIs("new", 0), headIs("a", 0), inserting("a", "1")}, []string{"1"}, 1},
		{"an account", []func(store.Tx) error{boom(enrol("zeta"), inserting("a", "1")), inserting("a", "2")}, []string{"2"}, 1},
		{"an account, and its queue", []func(store.Tx) error{inserting("a", "1"), boom(enrol("")), inserting("a", "2"), boom(enrol("zeta"))}, []string{"1", "2"}, 2},
		{"an ack", []func(store.Tx) error{inserting("a", "1"), boom(acking("a", 1)), headIs("a", 1)}, []string{"1"}, 1},
		{"info", []func(store.Tx) error{boom(epoch), noEpoch, boom(epoch), inserting("a", "1"), noEpoch}, []string{"1"}, 1},
		{"a hold, listed", []func(store.Tx) error{inserting("a", "1"), inserting("a", "2"), boom(holding("a", 1), oldest("a", 1), queues), oldest("a", 2), inserting("a", "3"),
			boom(queues, holding("a", 2), queues), queues}, []string{"1", "2", "3"}, 3},
		{"a new queue, listed", []func(store.Tx) error{boom(inserting("a", "1"), inserting("new", "1"), queues), queues, oldest("new", 0), inserting("a", "2")}, []string{"2"}, 1},
		{"a MiB, listed", []func(store.Tx) error{boom(mib), inserting("a", "1"), boom(mib), queues, mib}, []string{"1", "large"}, 2},
		{"a release", []func(store.Tx) error{inserting("a", "1"), holding("a", 1), boom(releasing("a", 1), queues), headIs("a", 1), oldest("a", 0), releasing("a", 1)},
			[]string{"1"}, 1},
		{"two failures at once", []func(store.Tx) error{boom(inserting("a", "1")), boom(inserting("a", "1"), totals), inserting("a", "2")}, []string{"2"}, 1},
		{"a panic", []func(store.Tx) error{inserting("a", "1"), func(tx store.Tx) error { _ = inserting("a", "2")(tx); panic("boom") }}, []string{"1"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := openStill(t, testOptions(memDir(t)))
			if err := s.serveAll(enrol("acme"))[0]; err != nil {
				t.Fatal(err)
			}
			for i, err := range s.serveAll(tt.group...) {
				if err != nil && !errors.Is(err, errOwn) && !strings.HasPrefix(err.Error(), "panic") {
					t.Errorf("call %d: got %v; want nil, or its own error", i, err)
				}
			}
			if got := queued(t, s, "a"); !slices.Equal(got, tt.items) {
				t.Errorf("queue: got %v; want %v", got, tt.items)
			}
			if err := s.View(t.Context(), func(r store.Reader) error {
				u, err := r.AccountUsage("acme")
				if u.Items != tt.charge {
					t.Errorf("account: got %+v; want %d items", u, tt.charge)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// When the outcome of a commit is unknown and the database cannot even be
// opened again, callers are told so until it can.
func TestStoreThatCannotBeReopened(t *testing.T) {
	t.Parallel()
	o := testOptions(memDir(t))
	var s *Store
	away := false
	o.fault = func(query string, done bool) error {
		if query != "COMMIT" || done || !away {
			return nil
		}
		away = false
		if err := os.Rename(s.path, s.path+".away"); err != nil {
			t.Error(err)
		}
		return errInjected
	}
	s = openStill(t, o)
	if err := s.serveAll(inserting("a", "before"))[0]; err != nil {
		t.Fatal(err)
	}
	away = true
	for i, err := range s.serveAll(inserting("a", "1"), acking("a", 1)) {
		if !errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("call %d: got %v; want ErrUnknownOutcome", i, err)
		}
	}
	for range 2 {
		if err := s.serveAll(inserting("a", "2"))[0]; err == nil || !strings.Contains(err.Error(), s.path) {
			t.Errorf("without a database: got %v; want an error that names it", err)
		}
	}
	if err := os.Rename(s.path+".away", s.path); err != nil {
		t.Fatal(err)
	}
	if err := s.serveAll(inserting("a", "3"))[0]; err != nil {
		t.Errorf("with the database again: got %v; want nil", err)
	}
	if got := queued(t, s, "a"); !slices.Equal(got, []string{"before", "3"}) {
		t.Errorf("got %v; want nothing of the transaction that was lost", got)
	}
}

func TestPanicInAViewIsItsCallers(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testOptions(t.TempDir()))
	mustInsert(t, s, "a", "1")
	for range 2 * readerConns {
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("got panic %v; want boom", p)
				}
			}()
			_ = s.View(t.Context(), func(r store.Reader) error {
				return r.Page(storetest.Key("a"), 0, 10, func(store.Item) bool { panic("boom") })
			})
		}()
	}
	if got := queued(t, s, "a"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("got %v; want the item", got)
	}
}

// The room that a group may take is not used up by closures that failed.
func TestFailedClosureGivesItsRoomBack(t *testing.T) {
	t.Parallel()
	o := testOptions(memDir(t))
	o.Free = func(string) (free, size int64, err error) { return 150 << 10, 1 << 20, nil } // 98 KiB for new mail, its log included
	s := openStill(t, o)
	mail := func(id string, err error) func(store.Tx) error {
		return func(tx store.Tx) error {
			return errors.Join(push(tx, storetest.Mail(storetest.Key("a"), storetest.Key("s"), id, 20<<10)), err)
		}
	}
	three := func(tx store.Tx) error {
		return errors.Join(mail("1", nil)(tx), mail("2", nil)(tx), mail("3", nil)(tx))
	}
	if err := s.serveAll(three)[0]; !errors.Is(err, store.ErrFull) {
		t.Fatalf("three at once: got %v; want no room for them", err)
	}
	for i, err := range s.serveAll(mail("1", errOwn), mail("2", errOwn), mail("3", nil)) {
		want := errOwn
		if i == 2 {
			want = nil
		}
		if !errors.Is(err, want) || errors.Is(err, store.ErrFull) {
			t.Errorf("call %d: got %v; want %v", i, err, want)
		}
	}
}
