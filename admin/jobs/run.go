package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay/store"
)

const (
	maxDetail = 2000 // bytes of a run's detail
	maxLives  = 32   // finished runs that are remembered with their result
)

// live is a run of this process.
type live struct {
	job   *job
	task  *Task
	local int64  // its id until the store gave it one
	want  string // the wish it is for

	// Guarded by Runner.mu.
	run     Run
	changed chan struct{} // closed at the next change; nil while nobody waits
	over    bool          // its job has answered
	done    bool          // and its end was written, or could not be
}

// take makes a run of a job that has none, which keeps others from starting.
// The caller has r.mu, and must see to it that execute or drop is called.
func (r *Runner) take(j *job, q Request, wall time.Time) (*live, error) {
	if r.stopped {
		return nil, ErrStopped
	}
	if j.running != nil {
		return nil, fmt.Errorf("%w: %s, since %s", store.ErrRunning, j.Name, j.running.run.StartedAt.Format(time.RFC3339))
	}
	r.locals--
	l := &live{job: j, local: r.locals, run: Run{ID: r.locals, Job: j.Name, AskedBy: q.By, StartedAt: wall}}
	l.task = &Task{ID: l.local, AskedBy: q.By, Args: q.Args, Confirm: q.Confirm, Started: wall,
		progress: func(p Progress) { r.moved(l, p) }}
	j.running = l
	r.lives = append(r.lives, l)
	r.runs.Add(1)
	return l, nil
}

// drop forgets a run that never began.
func (r *Runner) drop(l *live) {
	r.mu.Lock()
	l.job.running = nil
	r.lives = slices.DeleteFunc(r.lives, func(o *live) bool { return o == l })
	r.mu.Unlock()
	r.runs.Done()
}

// change changes a run and tells those who wait.
func (r *Runner) change(l *live, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// moved notes how far a run is, unless it is over: a job may leave something
// behind that still counts.
func (r *Runner) moved(l *live, p Progress) {
	r.change(l, func() {
		if !l.over {
			l.run.Progress = &p
		}
	})
}

// Start begins a run that somebody asks for and returns it once it is recorded;
// on a store that is full it runs without a row until there is room. It goes on
// when ctx ends; Wait waits for it. store.ErrRunning, ErrNoJob, ErrStopped.
func (r *Runner) Start(ctx context.Context, q Request) (Run, error) {
	j := r.job(q.Job)
	if j == nil {
		return Run{}, fmt.Errorf("%w: %.80q", ErrNoJob, q.Job)
	}
	wall, _ := r.watch(ctx)
	r.settle(ctx)
	r.mu.Lock()
	l, err := r.take(j, q, wall)
	r.mu.Unlock()
	if err != nil {
		return Run{}, err
	}
	if err := r.begin(ctx, l); errors.Is(err, store.ErrFull) {
		r.log.Error("the beginning of a run could not be recorded; it runs all the same", "job", j.Name, "err", err)
	} else if err != nil {
		r.drop(l)
		return Run{}, fmt.Errorf("start %s: %w", j.Name, err)
	}
	run := r.snapshot(l)
	go r.execute(l)
	return run, nil
}

func (r *Runner) snapshot(l *live) Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.show()
}

// show is the run as others see it: running until its end was written. The caller
// has Runner.mu.
func (l *live) show() Run {
	run := l.run
	if !l.done {
		run.FinishedAt, run.Outcome, run.Detail, run.Result, run.Code = time.Time{}, "", "", nil, ""
	}
	return run
}

// execute does the work of a run and records its end.
func (r *Runner) execute(l *live) {
	defer r.runs.Done()
	detail, err := r.do(l)
	result, bad := marshalResult(l.task.Result)
	if bad != nil {
		r.log.Error("the result of a run cannot be kept", "job", l.job.Name, "err", bad)
	}
	code := ""
	if err != nil && r.o.Code != nil {
		code = r.o.Code(err)
	}
	wall, mono := r.clocks.read()
	end := r.snapshot(l)
	end.FinishedAt, end.Outcome, end.Detail, end.Result, end.Code = wall, store.OutcomeOK, detail, result, code
	if err != nil {
		end.Outcome, end.Detail = store.OutcomeFailed, failure(err)
	}
	end.Detail = bounded(end.Detail)
	r.report(l, end, err)
	r.mu.Lock()
	l.run, l.over = end, true
	r.mu.Unlock()
	// The row first: whoever is let in by the guard finds the store as it is.
	if err := r.finish(l); err != nil {
		r.log.Error("the end of a run could not be recorded; it is tried again", "job", l.job.Name, "outcome", end.Outcome, "err", err)
		r.mu.Lock()
		r.owed = append(r.owed, l)
		r.owed = r.owed[max(0, len(r.owed)-maxLives):]
		r.mu.Unlock()
	}
	r.change(l, func() {
		l.done = true
		l.job.ended(l, mono)
		r.forget()
	})
}

// ended takes the end of a run into what is known of its job.
func (j *job) ended(l *live, mono time.Duration) {
	j.running, j.tried = nil, l.want
	if l.run.Outcome != store.OutcomeOK {
		j.fails++
		j.retry = mono + retryAfter(j.fails)
		return
	}
	j.fails = 0
	j.oks = slices.Insert(j.oks, 0, l.run.StartedAt)
	j.oks = j.oks[:min(len(j.oks), j.keep())]
}

// forget drops the oldest finished runs beyond those that are remembered. The
// runs of short jobs must not push out what somebody waits for.
func (r *Runner) forget() {
	var finished []*live
	for _, l := range r.lives {
		if l.done {
			finished = append(finished, l)
		}
	}
	if len(finished) <= maxLives {
		return
	}
	old := finished[0]
	if i := slices.IndexFunc(finished, func(l *live) bool { return l.job.short() && l.run.AskedBy == BySchedule }); i >= 0 {
		old = finished[i]
	}
	r.lives = slices.DeleteFunc(r.lives, func(l *live) bool { return l == old })
}

// do calls the job. Whatever happens in there is its result.
func (r *Runner) do(l *live) (detail string, err error) {
	if r.base.Err() != nil { // stopped while its beginning was written
		return "", ErrStopped
	}
	timeout := l.job.Timeout
	if timeout <= 0 {
		timeout = noTimeout
	}
	ctx, cancel := context.WithTimeoutCause(r.base, timeout, fmt.Errorf("it took longer than %s", timeout))
	defer cancel()
	type outcome struct {
		detail string
		err    error
	}
	ended := make(chan outcome, 1)
	go func() { // its own, so that even runtime.Goexit ends no more than the run
		o := outcome{err: errors.New("it ended without an answer")}
		defer func() {
			if p := recover(); p != nil {
				o = outcome{err: fmt.Errorf("panic: %v", p)}
				r.log.Error("a job panicked", "job", l.job.Name, "panic", p, "stack", string(debug.Stack()))
			}
			ended <- o
		}()
		detail, err := l.job.Do(ctx, l.task)
		o = outcome{detail, err}
	}()
	o := <-ended
	if o.err != nil && ctx.Err() != nil {
		o.err = &endedError{context.Cause(ctx), o.err}
	}
	return o.detail, o.err
}

// endedError is the failure of a run whose context had ended.
type endedError struct{ cause, err error }

func (e *endedError) Error() string {
	if errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded) || errors.Is(e.err, e.cause) {
		return e.cause.Error()
	}
	return e.cause.Error() + ": " + e.err.Error()
}

func (e *endedError) Unwrap() []error { return []error{e.cause, e.err} }

// failure is why a run failed, for its row.
func failure(err error) string {
	if text := err.Error(); text != "" {
		return text
	}
	return "it failed without saying why"
}

// report logs the end of a run. What runs all the time says only what went wrong.
func (r *Runner) report(l *live, end Run, err error) {
	facts := []any{"job", end.Job, "asked_by", end.AskedBy, "took", end.FinishedAt.Sub(end.StartedAt).String()}
	switch {
	case errors.Is(err, ErrStopped):
		r.log.Info("job ended by the stop", append(facts, "err", err)...)
	case err != nil:
		r.log.Error("job failed", append(facts, "err", err)...)
	case end.AskedBy == BySchedule && (l.job.short() || end.Detail == ""):
		r.log.Debug("job done", append(facts, "detail", end.Detail)...)
	default:
		r.log.Info("job done", append(facts, "detail", end.Detail)...)
	}
}

func marshalResult(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}

// bounded makes a detail one line of a bounded length.
func bounded(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(c rune) bool { return c == '\n' || c == '\r' || c == 0 }), "; ")
	if len(s) <= maxDetail {
		return s
	}
	const more = " …"
	cut := maxDetail - len(more)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + more
}
