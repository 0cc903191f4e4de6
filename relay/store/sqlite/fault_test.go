package sqlite

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// memDir is a folder in memory where there is one: for tests that are about
// order, not about disks.
func memDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "mbx-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// openStill opens a store whose writer does not run: the test itself serves
// groups of its own making, on its own goroutine.
func openStill(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	s.closed.Store(true) // only the writer is stopped, nothing is closed
	close(s.closing)
	<-s.written
	still := &Store{
		dir: s.dir, path: s.path, lock: s.lock, log: s.log, space: s.space, seqNow: s.seqNow, fault: s.fault,
		calls: make(chan *call, 64), closing: make(chan struct{}), written: make(chan struct{}),
		w: s.w, tx: s.tx, readers: s.readers, opened: s.opened, file: s.file,
	}
	close(still.written)
	t.Cleanup(func() { checkedClose(t, still) })
	return still
}

// serveAll serves calls that wait together, and answers what each was told.
func (s *Store) serveAll(fns ...func(store.Tx) error) (errs []error) {
	var calls []*call
	for _, fn := range fns {
		c := &call{fn: fn, done: make(chan struct{})}
		calls = append(calls, c)
		s.calls <- c
	}
	for len(s.calls) > 0 {
		s.serve(<-s.calls)
	}
	for _, c := range calls {
		<-c.done
		errs = append(errs, c.err)
	}
	return errs
}

var errInjected = errors.New("injected fault")

// injector fails statements of the writer.
type injector struct {
	armed   bool
	record  []string // the statements since it was armed
	at      int      // the one to fail
	applied bool     // whether it takes place before it fails
	also    string   // a further statement to fail, by its beginning
	fired   bool
	current int
}

func (f *injector) hook(query string, done bool) error {
	if !f.armed {
		return nil
	}
	if !done {
		f.current = len(f.record)
		f.record = append(f.record, query)
	}
	hit := f.current == f.at || f.also != "" && f.fired && strings.HasPrefix(query, f.also)
	if hit && done == f.applied {
		f.fired = true
		return errInjected
	}
	return nil
}

func (f *injector) arm(at int, applied bool, also string) {
	*f = injector{armed: true, at: at, applied: applied, also: also}
}

// faultCase is one run of an operation on keys of its own, so that one store
// serves many.
type faultCase struct{ n int }

func (c faultCase) key(label string) wire.PublicKey { return storetest.Key(c.tag(label)) }
func (c faultCase) tag(label string) string         { return fmt.Sprintf("%s-case%d", label, c.n) }

func (c faultCase) item(target, sender, id string) store.Item {
	w := []byte("wire of " + id)
	return store.Item{Target: c.key(target), Sender: c.key(sender), ID: id, Kind: store.KindEnvelope, SenderHost: "box",
		Hash: sha256.Sum256(w), Size: int64(len(w)), AcceptedAt: faultTime, ExpiresAt: faultTime.Add(time.Hour), Wire: w}
}

var faultTime = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

func (c faultCase) host(label, account string) store.Enrolment {
	return store.Enrolment{Key: c.key(label), Name: c.tag(label), Account: account, AuthorizedBy: "jwks", EnrolledAt: faultTime}
}

// seed is what stands before an operation: a host with mail, some of it held,
// and a list; a run of another process and some state.
func (c faultCase) seed(tx store.Tx) error {
	if err := errors.Join(tx.PutEnrolment(c.host("t", c.tag("acme"))), tx.PutEnrolment(c.host("s", ""))); err != nil {
		return err
	}
	for _, id := range []string{"seed-1", "seed-2", "seed-3"} {
		if _, err := tx.Insert(c.item("t", "s", id)); err != nil {
			return err
		}
	}
	if _, err := tx.Insert(c.item("n", "s", "seed-2")); err != nil { // the next key has one of them too
		return err
	}
	seq, err := tx.Insert(c.item("t", "s", "seed-4"))
	if err == nil {
		err = tx.Hold(c.key("t"), seq, faultTime, "operator", "reason")
	}
	_, err2 := tx.StartRun(store.Run{Job: c.tag("job"), Holder: "before", StartedAt: faultTime})
	_, err3 := tx.AckThrough(c.key("t"), 1)
	return errors.Join(err, err2, err3, tx.SetState(c.tag("state"), []byte("1")), tx.PutSenderList(store.SenderList{Target: c.key("t"), Senders: []wire.PublicKey{c.key("s")},
		IAT: faultTime, Record: []byte("{}")}))
}

// mate is a push into the queue that the operation works on, wherever that is.
func (c faultCase) mate(id string) func(store.Tx) error {
	return func(tx store.Tx) error {
		e, err := tx.Enrolment(c.key("t"))
		if err != nil {
			return err
		}
		if !e.Live() {
			return push(tx, c.item("n", "s", id))
		}
		return push(tx, c.item("t", "s", id))
	}
}

// facts tells the state of a case in words that are the same for every case.
func (c faultCase) facts(t *testing.T, s *Store) string {
	t.Helper()
	sc := storetest.Scope{Hosts: map[string]wire.PublicKey{}, Accounts: []string{c.tag("acme"), c.tag("zeta")},
		Items: []string{"seed-1", "seed-2", "seed-3", "seed-4", "mate-1", "mate-2", "op-1", "op-2"}, Ops: []string{c.tag("op")},
		Jobs: []string{c.tag("job")}, States: []string{c.tag("state"), c.tag("state 2")}, Denied: []string{c.tag("fp")},
		Clients: []string{c.tag("client")}, DenyLists: []string{c.tag("jti"), c.tag("jti 2")}, Sources: []string{c.tag("issuer")}}
	for _, l := range []string{"t", "s", "n"} {
		sc.Hosts[l] = c.key(l)
		sc.Names = append(sc.Names, c.tag(l))
	}
	var text string
	if err := s.View(context.Background(), func(r store.Reader) (err error) {
		in, err := r.Info()
		if err != nil {
			return err
		}
		text, err = storetest.Facts(r, sc)
		text += fmt.Sprintf("epoch is the case's: %v\n", in.Epoch == c.tag("epoch"))
		return err
	}); err != nil {
		t.Fatalf("facts: %v", err)
	}
	return strings.ReplaceAll(text, c.tag(""), "")
}

var faultOps = []struct {
	name  string
	run   func(c faultCase, tx store.Tx) error
	fails bool
}{
	{"insert a batch", func(c faultCase, tx store.Tx) error {
		return errors.Join(push(tx, c.item("t", "s", "op-1")), push(tx, c.item("n", "t", "op-2")))
	}, false},
	{"ack", func(c faultCase, tx store.Tx) error {
		_, err := tx.AckThrough(c.key("t"), 2)
		return err
	}, false},
	{"rotate", func(c faultCase, tx store.Tx) error {
		_, err := tx.Rotate(store.Rotation{Old: c.key("t"), New: c.key("n"), Name: c.tag("t"), Record: []byte("{}"), At: faultTime})
		return err
	}, false},
	{"enrol into another account", func(c faultCase, tx store.Tx) error { return tx.PutEnrolment(c.host("t", c.tag("zeta"))) }, false},
	{"replace a list", func(c faultCase, tx store.Tx) error {
		return tx.PutSenderList(store.SenderList{Target: c.key("t"), Senders: []wire.PublicKey{c.key("n")}, IAT: faultTime, Record: []byte("{}")})
	}, false},
	{"sweep", func(c faultCase, tx store.Tx) error {
		it := c.item("t", "s", "seed-2")
		it.Seq, it.Wire = 2, nil
		if err := gone(tx.Drop(it)); err != nil {
			return err
		}
		notice := c.item("s", "t", "op-1")
		notice.Kind = store.KindExpired
		return push(tx, notice)
	}, false},
	{"forget", func(c faultCase, tx store.Tx) error {
		_, err := tx.Forget([]store.DedupKey{{Sender: c.key("s"), ItemID: "seed-1", Target: c.key("t")}}, faultTime.Add(time.Hour))
		return err
	}, false},
	{"log, epoch and revoke", func(c faultCase, tx store.Tx) error {
		_, err := tx.Revoke(c.key("s"), faultTime)
		return errors.Join(err, tx.SetEpoch(c.tag("epoch")), tx.AppendLog(faultTime, c.tag("op"), []byte("{}")))
	}, false},
	{"enrol a new host and publish its keys", func(c faultCase, tx store.Tx) error {
		return errors.Join(tx.PutEnrolment(c.host("fresh", c.tag("acme"))),
			tx.PutEncKey(c.key("fresh"), c.tag("fresh"), store.EncKey{EncPub: "k", Sig: "s", At: faultTime}),
			tx.PutEncAd(c.key("fresh"), store.EncAd{Record: []byte("{}"), Sig: "s", At: faultTime}))
	}, false},
	{"deny and beat", func(c faultCase, tx store.Tx) error {
		return errors.Join(tx.AddDenial(store.Denial{HostFP: c.tag("fp"), Reason: "r", Source: "test", AddedAt: faultTime}),
			tx.SetHeartbeat(faultTime.Add(time.Second)))
	}, false},
	{"hold", func(c faultCase, tx store.Tx) error {
		return gone(tx.Hold(c.key("t"), 3, faultTime, "operator", "reason"))
	}, false},
	{"release", func(c faultCase, tx store.Tx) error {
		_, err := tx.Release(c.key("t"), 4)
		return gone(err)
	}, false},
	{"hold, list, release and list again", func(c faultCase, tx store.Tx) error {
		list := func() error {
			_, err := tx.Queue(c.key("t"))
			return errors.Join(err, tx.Queues(store.ByOldest, nil, func(store.Queue) bool { return false }))
		}
		if err := tx.Hold(c.key("t"), 2, faultTime, "operator", "reason"); err != nil {
			return gone(err)
		}
		err := list()
		_, err2 := tx.Release(c.key("t"), 2)
		return errors.Join(err, err2, list())
	}, false},
	{"a closure that fails after it listed", func(c faultCase, tx store.Tx) error {
		_, err := tx.Release(c.key("t"), 4)
		err2 := tx.Shares(c.key("t"), wire.PublicKey{}, func(wire.PublicKey, store.Usage) bool { return true })
		_, err3 := tx.AckThrough(c.key("t"), 2)
		_, err4 := tx.Queue(c.key("t"))
		return errors.Join(errOwn, gone(err), err2, err3, err4)
	}, true},
	{"see hosts and take a denial back", func(c faultCase, tx store.Tx) error {
		last := int64(0)
		err := errors.Join(tx.SetSeen(c.key("t"), faultTime), tx.SetSeen(c.key("s"), faultTime.Add(time.Hour)),
			tx.AddDenial(store.Denial{HostFP: c.tag("fp"), Reason: "r", Source: "test", AddedAt: faultTime}),
			tx.AddDenial(store.Denial{HostFP: c.tag("fp"), Reason: "r 2", Source: "test", AddedAt: faultTime}),
			tx.Denials(c.tag("fp"), 0, func(d store.Denial) bool { last = d.ID; return false }))
		return errors.Join(err, tx.RemoveDenial(last))
	}, false},
	{"take a deny list in place of one that is too old", func(c faultCase, tx store.Tx) error {
		l := store.DenyList{ID: c.tag("jti"), Source: c.tag("issuer"), IAT: faultTime, Expires: faultTime}
		err := tx.PutDenyList(l)
		l.ID, l.IAT = c.tag("jti 2"), faultTime.Add(time.Second)
		err2 := tx.PutDenyList(l)
		_, err3 := tx.ForgetDenyLists(faultTime.Add(time.Second))
		return errors.Join(err, err2, err3, tx.AddDenial(store.Denial{HostFP: c.tag("fp"), ClientID: c.tag("client"), Reason: "r", Source: "issuer", AddedAt: faultTime}))
	}, false},
	{"prune denials", func(c faultCase, tx store.Tx) error {
		d := store.Denial{ClientID: c.tag("client"), Reason: "over", Source: "issuer", AddedAt: faultTime, Until: faultTime}
		err := tx.AddDenial(d)
		d.Reason, d.Until = "in force", faultTime.Add(time.Hour)
		err2 := tx.AddDenial(d)
		_, err3 := tx.PruneDenials(faultTime.Add(time.Second), faultTime.Add(time.Second), 1000)
		return errors.Join(err, err2, err3)
	}, false},
	{"begin a session and find it", func(c faultCase, tx store.Tx) error {
		e := c.host("t", c.tag("acme"))
		e.ClientID, e.SessionEnds = c.tag("client"), faultTime.Add(time.Minute)
		err := tx.PutEnrolment(e)
		_, err2 := tx.ByClientID(e.ClientID, 9)
		return errors.Join(err, err2)
	}, false},
	{"drop what is held", func(c faultCase, tx store.Tx) error {
		it := c.item("t", "s", "seed-4")
		it.Seq, it.Held = 4, true
		return gone(tx.Drop(it))
	}, false},
	{"start a run where one was left", func(c faultCase, tx store.Tx) error {
		_, err := tx.StartRun(store.Run{Job: c.tag("job"), Holder: "after", StartedAt: faultTime.Add(time.Second)})
		if errors.Is(err, store.ErrRunning) { // it was stored after all
			return nil
		}
		return err
	}, false},
	{"finish a run", func(c faultCase, tx store.Tx) error {
		r, err := tx.LastRun(c.tag("job"), "")
		if err != nil {
			return gone(err)
		}
		r.FinishedAt, r.Outcome, r.Detail = faultTime.Add(time.Second), store.OutcomeFailed, "detail"
		return tx.FinishRun(r, 0)
	}, false},
	{"replace a state and forget it", func(c faultCase, tx store.Tx) error {
		return errors.Join(tx.SetState(c.tag("state"), []byte("2")), tx.SetState(c.tag("state 2"), []byte("3")), tx.SetState(c.tag("state"), nil))
	}, false},
	{"totals midway", func(c faultCase, tx store.Tx) error {
		if err := push(tx, c.item("t", "s", "op-1")); err != nil {
			return err
		}
		if _, err := tx.Totals(); err != nil {
			return err
		}
		return push(tx, c.item("n", "t", "op-2"))
	}, false},
	{"a closure that fails", func(c faultCase, tx store.Tx) error {
		if err := push(tx, c.item("t", "s", "op-1")); err != nil {
			return err
		}
		_, err := tx.Totals()
		return errors.Join(errOwn, err)
	}, true},
}

// gone looks away from what a first try has taken away already.
func gone(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

var errOwn = errors.New("the closure's own error")

// TestFaults fails every statement of every kind of write, once so that it
// does not take place and once so that it does and is reported failed, with
// other callers in the same transaction. What was answered nil is stored, what
// was answered an error is not, and nothing ever is half stored.
func TestFaults(t *testing.T) {
	t.Parallel()
	for i, op := range faultOps {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			f := &injector{}
			o := testOptions(memDir(t))
			o.fault = f.hook
			table := faultTable{t: t, s: openStill(t, o), f: f, op: op.run, fails: op.fails, offset: i % 10, expected: map[string]string{}}
			table.run(i == 0)
		})
	}
}

type faultTable struct {
	t        *testing.T
	s        *Store
	f        *injector
	op       func(c faultCase, tx store.Tx) error
	fails    bool // the operation itself answers errOwn
	cases    int
	offset   int               // which statements are taken where not all are
	expected map[string]string // what a clean run of some of the callers leaves
}

// prepare is the next case, seeded, and its three callers.
func (x *faultTable) prepare() (c faultCase, callers []func(store.Tx) error) {
	x.t.Helper()
	x.cases++
	c = faultCase{x.cases}
	x.f.armed = false
	if err := x.s.serveAll(c.seed)[0]; err != nil {
		x.t.Fatalf("seed: %v", err)
	}
	return c, []func(store.Tx) error{c.mate("mate-1"), func(tx store.Tx) error { return x.op(c, tx) }, c.mate("mate-2")}
}

// clean is the state after some of the callers alone, without a fault.
func (x *faultTable) clean(answered []bool) string {
	x.t.Helper()
	k := fmt.Sprint(answered)
	if _, ok := x.expected[k]; !ok {
		c, callers := x.prepare()
		for i, fn := range callers {
			if answered[i] {
				if err := x.s.serveAll(fn)[0]; err != nil {
					x.t.Fatalf("clean run of %v: %v", answered, err)
				}
			}
		}
		x.expected[k] = c.facts(x.t, x.s)
	}
	return x.expected[k]
}

// tries is how often a run is repeated that did not come out as one group: a
// slow machine splits groups by their time, and a map changes its order.
func (x *faultTable) tries() int {
	if storetest.RaceDetector {
		return 3
	}
	return 30
}

// statements are those of a group of all three callers. The order of some is
// that of a map, so they are named again for each run.
func (x *faultTable) statements() []string {
	for range x.tries() {
		_, callers := x.prepare()
		x.f.arm(-1, false, "")
		x.s.serveAll(callers...)
		if count(x.f.record, "COMMIT") == 1 {
			return x.f.record
		}
	}
	return nil // each try was split
}

// run fails each statement; of the callers before and after the operation only
// when all is true.
func (x *faultTable) run(all bool) {
	list := x.statements()
	failed := 0
	savepoints := 0
	for at, query := range list {
		if strings.HasPrefix(query, "SAVEPOINT") {
			savepoints++
		}
		if !all && !control(query) && savepoints != 2 {
			continue
		}
		if storetest.RaceDetector && at%10 != x.offset && query != "COMMIT" {
			continue // the table is about order; without the detector it is whole
		}
		for _, applied := range []bool{false, true} {
			if applied && strings.HasPrefix(query, "SELECT") {
				continue // a read takes no place
			}
			if x.one(at, query, applied, savepoints-1, "") {
				failed++
			}
			if strings.HasPrefix(query, "RELEASE") || strings.HasPrefix(query, "ROLLBACK TO") {
				x.one(at, query, applied, savepoints-1, "ROLLBACK") // and the way out fails too
			}
		}
	}
	x.t.Logf("%d statements, %d faults", len(list), failed)
	if failed < 12 && !storetest.RaceDetector {
		x.t.Errorf("got %d faults; want a table of them", failed)
	}
}

func control(query string) bool {
	for _, p := range []string{"BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT", "INSERT INTO seqs", "UPDATE seqs", oldestQuery, "INSERT INTO shares", "INSERT INTO accounts",
		"DELETE FROM shares", "DELETE FROM accounts", "UPDATE totals"} {
		if strings.HasPrefix(query, p) {
			return true
		}
	}
	return false
}

// one fails one statement of one group, in the closure of caller `inside` if
// in any.
func (x *faultTable) one(at int, query string, applied bool, inside int, also string) bool {
	t := x.t
	t.Helper()
	what := fmt.Sprintf("statement %d (applied %v, then %q) %.60q", at, applied, also, strings.Join(strings.Fields(query), " "))
	var c faultCase
	var callers []func(store.Tx) error
	var errs []error
	var before string
	var w *conn
	for try := 0; ; try++ {
		c, callers = x.prepare()
		before = c.facts(t, x.s)
		w = x.s.w
		x.f.arm(at, applied, also)
		errs = x.s.serveAll(callers...)
		x.f.armed = false
		if x.f.fired && x.f.record[at] == query && count(x.f.record[:at], "COMMIT") == 0 {
			break
		}
		if try == x.tries() {
			if !storetest.RaceDetector {
				t.Errorf("%s: never reached", what)
			}
			return false
		}
	}
	after := c.facts(t, x.s)
	if query == "COMMIT" && x.s.w == w {
		t.Errorf("%s: the connection is the same; want it opened anew, whatever it still holds", what)
	}
	x.judge(what, query, applied, inside, errs, before, after)

	// Those who were told an error try again, and the store goes on.
	again := []func(store.Tx) error{c.mate("later")}
	for i, err := range errs {
		if err != nil && !(i == 1 && x.fails) {
			again = append(again, callers[i])
		}
	}
	for i, err := range x.s.serveAll(again...) {
		if err != nil {
			t.Errorf("%s: a later call %d: got %v; want nil", what, i, err)
		}
	}
	ids := append(queued(t, x.s, c.tag("t")), queued(t, x.s, c.tag("n"))...)
	for _, id := range []string{"mate-1", "mate-2", "later"} {
		if n := count(ids, id); n != 1 {
			t.Errorf("%s: tried again, %s is queued %d times in %v; want once", what, id, n, ids)
		}
	}
	if err := x.s.Check(context.Background()); err != nil {
		t.Errorf("%s: check: %v", what, err)
	}
	return true
}

// judge compares what the callers were told with what is stored.
func (x *faultTable) judge(what, query string, applied bool, inside int, errs []error, before, after string) {
	t := x.t
	t.Helper()
	answered := make([]bool, len(errs))
	var unknown, told int
	for i, err := range errs {
		answered[i] = err == nil
		if errors.Is(err, store.ErrUnknownOutcome) {
			unknown++
		}
		if err != nil && !errors.Is(err, errOwn) {
			told++
		}
	}
	want := before
	switch {
	case query == "COMMIT":
		if unknown != len(errs) {
			t.Errorf("%s: got %v; want all told that the outcome is unknown", what, errs)
		}
		if applied {
			want = x.clean([]bool{true, !x.fails, true})
		}
	case unknown > 0 || told == 0 && !(x.fails && inside == 1):
		t.Errorf("%s: got %v; want the fault answered, and its outcome known", what, errs)
	default:
		want = x.clean(answered)
	}
	if d := storetest.FirstDifference(after, want); d != "" {
		t.Errorf("%s: answered %v: %s", what, errs, d)
	}
	if control(query) {
		return
	}
	for i, ok := range answered { // a closure fails alone
		if !ok && i != inside && !(i == 1 && x.fails) {
			t.Errorf("%s: caller %d got %v; want only caller %d to fail", what, i, errs[i], inside)
		}
	}
}

func count(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}
