package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay/store"
)

var ctx = context.Background()

// Jobs with an interval run by the monotonic clock, whatever the wall clock does.
func TestIntervals(t *testing.T) {
	t.Parallel()
	beat, sweep := &worker{}, &worker{}
	r := newRig(t,
		Job{Name: "beat", Every: 30 * time.Second, Do: beat.do},
		Job{Name: "sweep", Every: 10 * time.Minute, AtStart: true, Do: sweep.do},
		Job{Name: "by hand", Do: beat.do})
	beat.r, sweep.r = r, r
	r.see()
	same(t, "at the start", fmt.Sprint(len(beat.at), len(sweep.at)), "0 1")
	same(t, "next", r.stateOf("sweep").Next, t0.Add(10*time.Minute))
	same(t, "next of one on request", r.stateOf("by hand").Next.IsZero(), true)
	r.sit(10*time.Minute, lookEvery)
	same(t, "after ten minutes", fmt.Sprint(len(beat.at), len(sweep.at)), "20 2")
	for i, by := range []time.Duration{40 * day, -80 * day} {
		r.jump(by)
		r.see()
		same(t, "a jump starts nothing", fmt.Sprint(len(beat.at), len(sweep.at)), fmt.Sprint(20*(i+1), i+2))
		r.sit(10*time.Minute, lookEvery)
		same(t, "and stops nothing", fmt.Sprint(len(beat.at), len(sweep.at)), fmt.Sprint(20*(i+2), i+3))
	}
	r.mono.Add(int64(time.Hour)) // a look that came late
	r.see()
	r.see()
	same(t, "an hour's beats are not made up for", fmt.Sprint(len(beat.at), len(sweep.at)), "61 5")
	same(t, "schedules", r.stateOf("beat").Schedule+", "+r.stateOf("sweep").Schedule+", "+r.stateOf("by hand").Schedule, "every 30s, every 10m, ")
}

// Run looks by itself: at once, then every few seconds, and ends with its context.
func TestRunInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var beats, sweeps, stopped atomic.Int64
		r := newRig(t)
		count := func(n *atomic.Int64, err error) func(context.Context, *Task) (string, error) {
			return func(context.Context, *Task) (string, error) { n.Add(1); return "", err }
		}
		run, err := New(Options{Store: r.store, Jobs: []Job{
			{Name: "beat", Every: 30 * time.Second, Do: count(&beats, nil)},
			{Name: "sweep", Every: 10 * time.Minute, AtStart: true, Do: count(&sweeps, errors.New("the disk is slow"))},
			{Name: "long", Every: time.Hour, AtStart: true, Timeout: day, Do: func(ctx context.Context, _ *Task) (string, error) {
				<-ctx.Done()
				stopped.Add(1)
				return "", ctx.Err()
			}},
		}})
		ok(t, "new", err)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- run.Run(ctx) }()
		time.Sleep(time.Second) // moves the clock of the synctest bubble and costs nothing; the writer may wait for a moment of it
		synctest.Wait()
		same(t, "at once", fmt.Sprint(beats.Load(), sweeps.Load()), "0 1")
		time.Sleep(30 * time.Minute) // of the same clock
		synctest.Wait()
		same(t, "after half an hour", fmt.Sprint(beats.Load(), sweeps.Load()), "60 4")
		cancel()
		ok(t, "run", <-ended)
		same(t, "what ran was ended and waited for", stopped.Load(), 1)
		runs, err := run.Runs(t.Context(), "long", 0, 10)
		ok(t, "runs", err)
		same(t, "its row", brief(&runs[0]), `schedule failed "the relay stopped"`)
		_, err = run.Start(t.Context(), Request{Job: "beat", By: "op"})
		is(t, "a start after the stop", err, ErrStopped)
	})
}

func TestTwoOfOneJobNeverRun(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := newRig(t, Job{Name: "backup", Cron: "17 3 * * *", Do: g.do}, Job{Name: "sweep", Every: 10 * time.Minute, Do: g.do})
	byHand, err := r.Start(ctx, Request{Job: "backup", By: "op"})
	ok(t, "start", err)
	<-g.began
	_, err = r.Start(ctx, Request{Job: "backup", By: "another"})
	is(t, "a second request", err, store.ErrRunning)
	r.jump(day) // its schedule comes
	r.look(ctx)
	same(t, "rows while it runs", len(r.list("backup")), 1)
	same(t, "running", brief(r.stateOf("backup").Running), `op  ""`)
	_, err = r.Start(ctx, Request{Job: "no such", By: "op"})
	is(t, "an unknown job", err, ErrNoJob)
	r.mono.Add(int64(10 * time.Minute))
	r.look(ctx) // the other job is not kept from running
	<-g.began
	_, err = r.Start(ctx, Request{Job: "sweep", By: "op"})
	is(t, "a request while the schedule's runs", err, store.ErrRunning)
	g.free <- nil
	g.free <- nil
	run, err := r.Wait(ctx, byHand.ID, nil)
	ok(t, "wait", err)
	same(t, "its end", brief(&run), `op ok "through"`)
	r.runs.Wait()

	// Many at once: each that is let in is alone.
	var in, let, refused atomic.Int64
	r = newRig(t, Job{Name: "job", Do: func(context.Context, *Task) (string, error) {
		defer in.Add(-1)
		if in.Add(1) != 1 {
			return "", errors.New("two at once")
		}
		runtime.Gosched()
		return "", nil
	}})
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 20 {
				switch _, err := r.Start(ctx, Request{Job: "job", By: fmt.Sprint(n)}); {
				case err == nil:
					let.Add(1)
				case errors.Is(err, store.ErrRunning):
					refused.Add(1)
				default:
					t.Errorf("start: %v", err)
				}
			}
		})
	}
	all.Wait()
	r.runs.Wait()
	same(t, "answers", let.Load()+refused.Load(), 160)
	same(t, "rows", int64(len(r.list("job"))), let.Load())
	same(t, "failed", strings.Count(r.outcomes("job"), "failed"), 0)
}

// A panic is a failed run, and the next one begins as ever.
func TestAPanicIsAFailedRun(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	how := func() {}
	r := newRigWith(t, Options{
		Log:  slog.New(slog.NewTextHandler(&log, nil)),
		Jobs: []Job{{Name: "job", Cron: "* * * * *", Do: func(context.Context, *Task) (string, error) { how(); return "fine", nil }}},
	})
	for _, tt := range []struct {
		name string
		how  func()
		want string
	}{
		{"text", func() { panic("no such thing") }, "panic: no such thing"},
		{"an error of the runtime", func() { _ = []int{}[len(r.dir)] }, "panic: runtime error: index out of range"},
		{"Goexit", runtime.Goexit, "it ended without an answer"},
	} {
		how = tt.how
		run := r.started(Request{Job: "job", By: "op"})
		same(t, tt.name, run.Outcome, store.OutcomeFailed)
		contains(t, tt.name, run.Detail, tt.want)
		if strings.Contains(run.Detail, "goroutine") || strings.Contains(run.Detail, ".go:") {
			t.Errorf("%s: got %q; want no stack in it", tt.name, run.Detail)
		}
	}
	contains(t, "the log has the stack", log.String(), "runner_test.go")
	how = func() { panic("by schedule") }
	r.sit(time.Hour, time.Minute)
	same(t, "tried again", r.outcomes("job"), "failed failed failed failed")
	how = func() {}
	r.sit(2*time.Hour, time.Minute)
	contains(t, "the guard is not stuck", r.outcomes("job"), "failed ok ok ok")
}

// The row of a run that a crash left says so, and the next one takes over.
func TestAnotherHolderTakesOver(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := newRig(t, Job{Name: "backup", Cron: "17 3 * * *", Do: g.do}, Job{Name: "drill", Do: g.do})
	var left int64
	ok(t, "a run of another process", r.store.Update(ctx, func(tx store.Tx) (err error) {
		if _, err = tx.StartRun(store.Run{Job: "drill", AskedBy: "op", Holder: "another", StartedAt: t0}); err != nil {
			return err
		}
		left, err = tx.StartRun(store.Run{Job: "backup", AskedBy: "op", Holder: "another", StartedAt: t0})
		return err
	}))
	run, err := r.Find(ctx, left)
	ok(t, "find", err)
	same(t, "shown", brief(&run), `op crashed "its process ended before it did"`)
	same(t, "last", brief(r.stateOf("backup").Last), brief(&run))
	same(t, "running", brief(r.stateOf("backup").Running), "none")
	next, err := r.Start(ctx, Request{Job: "backup", By: "op"})
	ok(t, "start", err)
	<-g.began
	g.free <- nil
	_, err = r.Wait(ctx, next.ID, nil)
	ok(t, "wait", err)
	same(t, "rows", r.outcomes("backup"), "crashed ok")
	r.see()
	var row store.Run
	ok(t, "view", r.store.View(ctx, func(rd store.Reader) (err error) { row, err = rd.LastRun("drill", store.OutcomeCrashed); return err }))
	same(t, "what nobody took over is recorded by the scheduler", row.AskedBy, "op")
}

// What somebody wants is due at the next look, and cleared by the success of a
// run that began after it.
func TestWant(t *testing.T) {
	t.Parallel()
	r, w := daily(t)
	r.see()
	r.want("backup", "a restore")
	same(t, "shown", r.stateOf("backup").Wanted, "a restore")
	same(t, "next", r.stateOf("backup").Next, t0)
	r.see()
	same(t, "ran", w.times(), "27T12:00")
	same(t, "cleared", r.stateOf("backup").Wanted, "")
	r.see()
	same(t, "once", w.times(), "")

	w.fail = errors.New("no room")
	r.want("backup", "another")
	r.sit(4*time.Hour, time.Minute)
	same(t, "tried again with patience", w.times(), "27T12:01 27T12:06 27T12:21 27T13:21 27T14:21 27T15:21")
	r.restart(time.Minute)
	r.see()
	same(t, "after a restart too", w.times(), "")
	r.want("backup", "a newer wish")
	r.see()
	same(t, "a newer wish does not wait", w.times(), "27T16:01")
	w.fail = nil
	r.started(Request{Job: "backup", By: "op"})
	same(t, "a run on request grants it", r.stateOf("backup").Wanted, "")

	ok(t, "foreign words", r.store.Update(ctx, func(tx store.Tx) error { return tx.SetState("job-wanted:backup", []byte(`"?"`)) }))
	w.times()
	r.see()
	same(t, "ran", w.times(), "27T16:01")
	same(t, "cleared", r.stateOf("backup").Wanted, "")
}

func TestAWishDuringARunIsForTheNext(t *testing.T) {
	t.Parallel()
	for name, job := range map[string]Job{"with a lease": {Name: "job"}, "short": {Name: "job", Every: time.Minute}} {
		g := newGate()
		job.Do = g.do
		r := newRig(t, job)
		r.want("job", "first")
		r.look(ctx)
		<-g.began
		r.want("job", "second")
		g.free <- nil
		r.runs.Wait()
		same(t, name+": still wanted", r.stateOf("job").Wanted, "second")
		r.look(ctx)
		<-g.began
		g.free <- nil
		r.runs.Wait()
		same(t, name+": granted", r.stateOf("job").Wanted, "")
	}
}

// A job that runs all the time keeps one row and costs one commit a run; the
// others keep their last 200.
func TestRowsThatAreKept(t *testing.T) {
	t.Parallel()
	var commits atomic.Int64
	do := func(context.Context, *Task) (string, error) { return "", nil }
	f := &flaky{fail: func() error { commits.Add(1); return nil }, lose: func() error { return nil }}
	r := newRigWith(t, Options{Store: f, Jobs: []Job{{Name: "short", Every: time.Minute, Do: do}, {Name: "long", Every: 5 * time.Minute, Do: do}}})
	f.Store = r.store
	r.see()
	same(t, "commits at first", commits.Load(), 0)
	r.sit(4*time.Minute, 5*time.Second)
	same(t, "commits of four short runs", commits.Load(), 4)
	same(t, "rows", r.outcomes("short"), "ok")
	r.sit(20*time.Hour, time.Minute)
	same(t, "rows of the short", len(r.list("short")), 1)
	same(t, "rows of the long", len(r.list("long")), 200)
	last := r.stateOf("short").Last
	same(t, "the last run", last.StartedAt, t0.Add(20*time.Hour+4*time.Minute))
}

// A scheduled run needs no row to run: the sweep is what makes room. The row
// follows as soon as the store takes it.
func TestAFullStoreStopsNoRun(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	f := &flaky{lose: func() error { return nil }, fail: func() error {
		if full.Load() {
			return fmt.Errorf("start: %w", store.ErrFull)
		}
		return nil
	}}
	w := &worker{}
	r := newRigWith(t, Options{Store: f, Jobs: []Job{{Name: "sweep", Every: 10 * time.Minute, AtStart: true, Do: w.do}}})
	f.Store, w.r = r.store, r
	full.Store(true)
	r.see()
	same(t, "ran", w.times(), "27T12:00")
	same(t, "rows", len(r.list("sweep")), 0)
	r.sit(9*time.Minute, time.Minute)
	same(t, "not again before its time", w.times(), "")
	run := r.started(Request{Job: "sweep", By: "op"})
	same(t, "a request runs too", brief(&run), `op ok "done"`)
	same(t, "under an id of this process", run.ID < 0, true)
	full.Store(false)
	r.look(ctx)
	same(t, "rows once there is room", r.outcomes("sweep"), "ok ok")
	found, err := r.Find(ctx, run.ID)
	ok(t, "find under the first id", err)
	same(t, "its id now", found.ID > 0, true)
}

// Where nobody knows whether the store took a beginning or an end, there is one
// row of the run, and the job goes on.
func TestUnknownOutcomes(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{1, 2} {
		for _, ask := range []bool{false, true} {
			var n atomic.Int64
			f := &flaky{fail: func() error { return nil }, lose: func() error {
				if n.Add(1) == at {
					return store.ErrUnknownOutcome
				}
				return nil
			}}
			w := &worker{}
			r := newRigWith(t, Options{Store: f, Jobs: []Job{{Name: "job", Every: time.Hour, AtStart: !ask, Do: w.do}}})
			f.Store, w.r = r.store, r
			name := fmt.Sprintf("commit %d, on request %v", at, ask)
			if ask {
				_, err := r.Start(ctx, Request{Job: "job", By: "op"})
				if at == 1 {
					is(t, name, err, store.ErrUnknownOutcome)
				}
			} else {
				r.look(ctx)
			}
			r.runs.Wait()
			r.see()
			want := "ok"
			if ask && at == 1 {
				want = "" // it did not run: its row is ended by the next
			}
			same(t, name, r.outcomes("job"), want)
			r.started(Request{Job: "job", By: "op"})
			if want == "" {
				want = "failed"
			}
			same(t, name+": the next", r.outcomes("job"), want+" ok")
		}
	}
}

func TestATask(t *testing.T) {
	t.Parallel()
	steps := make(chan struct{})
	bad := errors.New("refused")
	r := newRigWith(t, Options{
		Code: func(err error) string {
			if errors.Is(err, bad) {
				return "REFUSED"
			}
			return ""
		},
		Jobs: []Job{{Name: "job", Do: func(_ context.Context, task *Task) (string, error) {
			var n int
			if err := json.Unmarshal(task.Args, &n); err != nil {
				return "", err
			}
			for i := range n {
				task.Progress("copy", int64(i+1), int64(n))
				<-steps
			}
			task.Result = map[string]any{"n": n, "confirm": task.Confirm, "by": task.AskedBy, "id": task.ID, "at": task.Started}
			if n == 0 {
				return "x", fmt.Errorf("none: %w", bad)
			}
			return "all\ncopied", nil
		}}},
	})
	asked, cancel := context.WithCancel(ctx)
	run, err := r.Start(asked, Request{Job: "job", By: "op", Args: json.RawMessage("2"), Confirm: true})
	ok(t, "start", err)
	cancel() // who asked has gone; the run goes on
	same(t, "begun", fmt.Sprint(run.Outcome, run.ID > 0, run.StartedAt.Equal(t0)), "true true")
	var seen []string
	run, err = r.Wait(ctx, run.ID, func(run Run) {
		if p := run.Progress; p != nil && run.Outcome == "" {
			seen = append(seen, fmt.Sprint(p.Stage, p.Done, p.Total))
			steps <- struct{}{}
		}
	})
	ok(t, "wait", err)
	same(t, "progress", strings.Join(seen, " "), "copy1 2 copy2 2")
	same(t, "end", brief(&run), `op ok "all; copied"`)
	same(t, "result", string(run.Result), fmt.Sprintf(`{"at":"2026-03-27T12:00:00Z","by":"op","confirm":true,"id":%d,"n":2}`, run.ID))

	run = r.started(Request{Job: "job", By: "op", Args: json.RawMessage("0")})
	same(t, "failed", brief(&run)+run.Code, `op failed "none: refused"REFUSED`)
	same(t, "a failed run may have a result", strings.Contains(string(run.Result), `"n":0`), true)

	late, cancel := context.WithCancel(ctx)
	cancel()
	run, err = r.Start(ctx, Request{Job: "job", By: "op", Args: json.RawMessage("1")})
	ok(t, "start", err)
	_, err = r.Wait(late, run.ID, nil)
	is(t, "a wait that is given up", err, context.Canceled)
	steps <- struct{}{}
	r.runs.Wait()
	_, err = r.Wait(ctx, 1_000_000, nil)
	is(t, "wait for no run", err, ErrNoRun)
	_, err = r.Find(ctx, 1_000_000)
	is(t, "find no run", err, ErrNoRun)
	_, err = r.Runs(ctx, "no such", 0, 10)
	is(t, "runs of no job", err, ErrNoJob)

	// What is remembered besides the row is bounded.
	for range maxLives {
		r.started(Request{Job: "job", By: "op", Args: json.RawMessage("0")})
	}
	found, err := r.Find(ctx, run.ID)
	ok(t, "find an old run", err)
	same(t, "an old run", brief(&found)+string(found.Result), `op ok "all; copied"`)
	same(t, "remembered", len(r.lives), maxLives)
}

func TestTimeoutsAndStops(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := newRig(t, Job{Name: "hasty", Timeout: time.Millisecond, Do: g.do}, Job{Name: "patient", Do: g.do})
	run := r.started(Request{Job: "hasty", By: "op"})
	same(t, "too long", brief(&run), `op failed "it took longer than 1ms"`)
	<-g.began
	run, err := r.Start(ctx, Request{Job: "patient", By: "op"})
	ok(t, "start", err)
	<-g.began
	ok(t, "close", r.Close())
	run, err = r.Find(ctx, run.ID)
	ok(t, "find", err)
	same(t, "stopped", brief(&run), `op failed "the relay stopped"`)
	same(t, "its row", r.outcomes("patient"), "failed")
	r.look(ctx) // starts nothing any more
	ok(t, "close again", r.Close())
}

func TestDetailsAreBounded(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "short", "a\n\nb\r\nc\x00d", strings.Repeat("é", 3000), "x" + strings.Repeat("é", 3000), "bad \xff bytes"} {
		got := bounded(s)
		if len(got) > maxDetail || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00") {
			t.Errorf("%.20q: got %.40q of %d bytes; want one valid line of at most %d", s, got, len(got), maxDetail)
		}
	}
	same(t, "lines", bounded("a\n\nb\r\nc"), "a; b; c")
	same(t, "a short one", bounded("short"), "short")
}

// States reads a few rows of each job and no more.
func TestStatesAreWholeAndFast(t *testing.T) {
	t.Parallel()
	r, w := daily(t)
	same(t, "of a new store", fmt.Sprintf("%+v", r.stateOf("backup")), fmt.Sprintf("%+v", State{Name: "backup", Schedule: "17 3 * * *", Next: time.Date(2026, 3, 28, 3, 17, 0, 0, time.UTC)}))
	r.started(Request{Job: "backup", By: "op"})
	w.fail = errors.New("no room")
	r.started(Request{Job: "backup", By: "op"})
	s := r.stateOf("backup")
	same(t, "last", brief(s.Last), `op failed "no room"`)
	same(t, "last that went well", brief(s.LastOK), `op ok "done"`)
	reads := 0
	ok(t, "view", r.store.View(ctx, func(rd store.Reader) error {
		_, err := readRows(&counting{rd, &reads}, "backup", "")
		return err
	}))
	same(t, "reads for a job", reads, 5)
	b, err := json.Marshal(s)
	ok(t, "marshal", err)
	contains(t, "JSON", string(b), `"next":"2026-03-28T03:17:00Z"`)
}

// counting counts the reads of a Reader, and refuses those that list.
type counting struct {
	store.Reader
	n *int
}

func (c *counting) Runs(string, int64, int) ([]store.Run, error) { return nil, errors.New("a list") }

func (c *counting) LastRun(job, outcome string) (store.Run, error) {
	*c.n++
	return c.Reader.LastRun(job, outcome)
}

func (c *counting) State(name string) ([]byte, error) { *c.n++; return c.Reader.State(name) }
