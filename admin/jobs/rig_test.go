package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The tests of this package run over a real store and move both clocks by hand:
// a look is called, and nothing sleeps.

var t0 = time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC) // a Friday, two days before summer time begins in Europe

const day = 24 * time.Hour

// rig is a runner with its store and clocks.
type rig struct {
	t     testing.TB
	dir   string
	key   wire.PublicKey
	zone  *time.Location
	wall  atomic.Int64 // Unix milliseconds
	mono  atomic.Int64 // nanoseconds
	store *sqlite.Store
	o     Options
	*Runner
}

// smallDevice spares each store the writing of its reserve file.
func smallDevice(string) (free, size int64, err error) { return 1 << 30, 1 << 20, nil }

func newRig(t testing.TB, list ...Job) *rig { return newRigWith(t, Options{Jobs: list}) }

func newRigWith(t testing.TB, o Options) *rig {
	t.Helper()
	key, err := wire.GenerateKey()
	ok(t, "key", err)
	r := &rig{t: t, dir: t.TempDir(), key: key.Public(), zone: time.UTC, o: o}
	r.wall.Store(t0.UnixMilli())
	r.openStore()
	r.boot()
	t.Cleanup(func() {
		ok(t, "close the runner", r.Close())
		ok(t, "close the store", r.store.Close())
	})
	return r
}

func (r *rig) now() time.Time { return time.UnixMilli(r.wall.Load()).In(r.zone) }

func (r *rig) openStore() {
	r.t.Helper()
	st, err := sqlite.Open(context.Background(), sqlite.Options{Dir: r.dir, Key: r.key, Now: r.now, Free: smallDevice})
	ok(r.t, "open the store", err)
	r.store = st
}

// boot makes a runner, as a start of the relay does; the monotonic clock begins
// anew with it.
func (r *rig) boot() {
	r.t.Helper()
	r.mono.Store(0)
	o := r.o
	if o.Store == nil {
		o.Store = r.store
	}
	o.Now, o.Since = r.now, func() time.Duration { return time.Duration(r.mono.Load()) }
	var err error
	r.Runner, err = New(o)
	ok(r.t, "make a runner", err)
}

// restart is a stop and a start after a while.
func (r *rig) restart(away time.Duration) {
	r.t.Helper()
	ok(r.t, "close", r.Close())
	r.wall.Add(away.Milliseconds())
	r.boot()
}

// sit looks every step until by is over.
func (r *rig) sit(by, step time.Duration) {
	for range by / step {
		r.wall.Add(step.Milliseconds())
		r.mono.Add(int64(step))
		r.see()
	}
}

// see looks once and waits for what that started.
func (r *rig) see() {
	r.look(context.Background())
	r.runs.Wait()
}

func (r *rig) jump(by time.Duration) { r.wall.Add(by.Milliseconds()) }

func (r *rig) stateOf(job string) State {
	r.t.Helper()
	list, err := r.States(context.Background())
	ok(r.t, "states", err)
	for _, s := range list {
		if s.Name == job {
			return s
		}
	}
	r.t.Fatalf("states: got %+v; want %s among them", list, job)
	return State{}
}

func (r *rig) list(job string) []Run {
	r.t.Helper()
	runs, err := r.Runs(context.Background(), job, 0, 1000)
	ok(r.t, "runs", err)
	return runs
}

// outcomes are those of a job's runs, oldest first.
func (r *rig) outcomes(job string) string {
	r.t.Helper()
	var s []string
	for _, run := range r.list(job) {
		s = append([]string{run.Outcome}, s...)
	}
	return strings.Join(s, " ")
}

// started runs a job on request and waits for it.
func (r *rig) started(q Request) Run {
	r.t.Helper()
	run, err := r.Start(context.Background(), q)
	ok(r.t, "start "+q.Job, err)
	run, err = r.Wait(context.Background(), run.ID, nil)
	ok(r.t, "wait for "+q.Job, err)
	return run
}

func (r *rig) want(job, why string) {
	r.t.Helper()
	ok(r.t, "want", r.store.Update(context.Background(), func(tx store.Tx) error { return Want(tx, job, why) }))
}

// worker is a job that notes when it ran, and fails on demand.
type worker struct {
	r    *rig
	mu   sync.Mutex
	at   []time.Time
	fail error
}

func (w *worker) do(context.Context, *Task) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = append(w.at, w.r.now().UTC())
	return "done", w.fail
}

// times are those of the runs so far, forgotten.
func (w *worker) times() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s []string
	for _, at := range w.at {
		s = append(s, at.Format("02T15:04"))
	}
	w.at = nil
	return strings.Join(s, " ")
}

// daily is a rig with one job at 03:17.
func daily(t testing.TB) (*rig, *worker) {
	t.Helper()
	w := &worker{}
	w.r = newRig(t, Job{Name: "backup", Cron: "17 3 * * *", Do: w.do})
	return w.r, w
}

// gate is a job that runs until it is let go.
type gate struct {
	began chan *Task
	free  chan error
}

func newGate() *gate { return &gate{make(chan *Task, 100), make(chan error, 100)} }

func (g *gate) do(ctx context.Context, t *Task) (string, error) {
	g.began <- t
	select {
	case err := <-g.free:
		return "through", err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// flaky is a store that fails on demand.
type flaky struct {
	Store
	fail func() error // of an Update; nil, or what it answers
	lose func() error // the same, after the commit
}

func (f *flaky) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := f.fail(); err != nil {
		return err
	}
	if err := f.Store.Update(ctx, fn); err != nil {
		return err
	}
	return f.lose()
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v; want %v", what, got, want)
	}
}

func ok(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func is(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v; want %v", what, got, want)
	}
}

func contains(t testing.TB, what, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s: got %q; want it to contain %q", what, got, want)
	}
}

func brief(r *Run) string {
	if r == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %q", r.AskedBy, r.Outcome, r.Detail)
}
