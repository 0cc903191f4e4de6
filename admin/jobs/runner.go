package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/robfig/cron/v3"

	"github.com/agentmbx/agentmbx/relay/store"
)

const (
	lookEvery = 5 * time.Second
	lookSlack = lookEvery / 10 // a tick that comes a moment early is not a whole tick early
	noTimeout = time.Hour

	// A job more often than shortEvery keeps its last run only and writes it once,
	// at the end: the guard in this process is its lease.
	shortEvery = 5 * time.Minute
	keepRuns   = 200
)

// Runner runs jobs. Safe for concurrent use.
type Runner struct {
	o      Options
	log    *slog.Logger
	clocks *clocks
	holder string // names this process in the rows of runs
	jobs   []*job

	base context.Context // of every run
	stop context.CancelCauseFunc
	runs sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	armed   bool        // the scheduler has looked once
	known   bool        // what ran before this process was read
	born    time.Time   // when the store was made, once that is known
	lives   []*live     // the runs of this process, the last ones
	owed    []*live     // finished runs that the store has not taken
	left    []store.Run // runs of another process, to be recorded as crashed
	locals  int64       // the last id given to a run without a row
	trouble string      // what the last look could not read
}

// job is a job with what is known of its runs, guarded by Runner.mu.
type job struct {
	Job
	cron *cron.SpecSchedule

	running *live
	oks     []time.Time   // when its successes began, the newest run first
	fails   int           // failures since the last success
	retry   time.Duration // when it may be tried again after them, by the monotonic clock
	next    time.Duration // when it is due by its interval, by the monotonic clock
	atStart bool          // it has yet to run at the start
	tried   string        // the wish that its last run was for
}

func (j *job) short() bool { return j.Every > 0 && j.Every < shortEvery }

func (j *job) keep() int {
	if j.short() {
		return 1
	}
	return keepRuns
}

// New makes a runner. It refuses two jobs of one name, and a schedule that is
// none.
func New(o Options) (*Runner, error) {
	r := &Runner{o: o, log: o.Log, clocks: newClocks(o.Now, o.Since), holder: uuid.NewString()}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	for _, spec := range o.Jobs {
		j := &job{Job: spec}
		switch {
		case j.Name == "" || j.Do == nil:
			return nil, fmt.Errorf("job %q: a job needs a name and something to do", j.Name)
		case r.job(j.Name) != nil:
			return nil, fmt.Errorf("job %q: there are two of that name", j.Name)
		case j.Cron != "" && j.Every != 0 || j.Every < 0:
			return nil, fmt.Errorf("job %q: want a schedule or an interval", j.Name)
		case j.Cron != "":
			var err error
			if j.cron, err = parseSchedule(j.Cron); err != nil {
				return nil, fmt.Errorf("job %s: %w", j.Name, err)
			}
		}
		r.jobs = append(r.jobs, j)
	}
	r.base, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

func (r *Runner) job(name string) *job {
	for _, j := range r.jobs {
		if j.Name == name {
			return j
		}
	}
	return nil
}

// Run starts what is due until ctx ends, then cancels what still runs and waits
// for it.
func (r *Runner) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil && r.base.Err() == nil {
		r.look(ctx)
		select {
		case <-ctx.Done():
		case <-r.base.Done():
		case <-tick.C:
		}
	}
	return r.Close()
}

// Close cancels the runs of this process and waits for them.
func (r *Runner) Close() error {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.stop(ErrStopped)
	r.runs.Wait()
	return nil
}

// look starts what is due. It waits for no run.
func (r *Runner) look(ctx context.Context) {
	wall, mono := r.watch(ctx)
	r.settle(ctx)
	wishes, err := r.read(ctx, mono)
	r.complain(err)
	var due []*live
	r.mu.Lock()
	r.arm(mono)
	for _, j := range r.jobs {
		w := wishes[j.Name]
		if j.running != nil || !r.isDue(j, wall, mono, w) {
			continue
		}
		l, err := r.take(j, Request{By: BySchedule}, wall)
		if err != nil { // stopped
			break
		}
		l.want = w.ID
		j.atStart = false
		j.passed(mono)
		due = append(due, l)
	}
	r.mu.Unlock()
	for _, l := range due {
		go func() {
			if !l.job.short() {
				if err := r.begin(r.base, l); err != nil && r.base.Err() == nil {
					r.log.Error("the beginning of a run could not be recorded; it runs all the same", "job", l.job.Name, "err", err)
				}
			}
			r.execute(l)
		}()
	}
}

// arm notes when the scheduler first looked: intervals count from there.
func (r *Runner) arm(mono time.Duration) {
	if r.armed {
		return
	}
	r.armed = true
	for _, j := range r.jobs {
		j.atStart, j.next = j.AtStart, mono+j.Every
	}
}

// passed moves the next time of an interval on, and keeps its beat unless a whole
// one was missed.
func (j *job) passed(mono time.Duration) {
	if j.Every == 0 || j.next > mono+lookSlack {
		return
	}
	if j.next += j.Every; j.next <= mono {
		j.next = mono + j.Every
	}
}

// isDue decides from what is known whether a job is to run now.
func (r *Runner) isDue(j *job, wall time.Time, mono time.Duration, w wanted) bool {
	retry := j.fails == 0 || mono >= j.retry
	switch {
	case j.atStart, w.ID != "" && (retry || !w.Tried && w.ID != j.tried):
		return true
	case j.Every > 0:
		return mono+lookSlack >= j.next
	case j.cron == nil || !r.known || !retry:
		return false
	}
	at := dueAt(j.cron, wall, j.oks, r.born)
	return !at.IsZero() && !at.After(wall)
}

// complain logs what a look could not read, once.
func (r *Runner) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != r.trouble && text != "" {
		r.log.Error("the scheduler cannot read the store; it tries again", "err", err)
	}
	r.trouble = text
}

// read answers the wishes for runs. The first time it also learns what ran before.
func (r *Runner) read(ctx context.Context, mono time.Duration) (map[string]wanted, error) {
	wishes := map[string]wanted{}
	err := r.o.Store.View(ctx, func(rd store.Reader) error {
		for _, j := range r.jobs {
			if w, err := readWanted(rd, j.Name); err != nil {
				return err
			} else if w.ID != "" {
				wishes[j.Name] = w
			}
		}
		return r.learn(rd, mono)
	})
	if err == nil {
		r.bury(ctx)
	}
	return wishes, err
}

// bury records the end of the runs that a crash left. They read as crashed all
// the same, and the next run of each job would do it.
func (r *Runner) bury(ctx context.Context) {
	r.mu.Lock()
	left := r.left
	r.left = nil
	r.mu.Unlock()
	if len(left) == 0 {
		return
	}
	wall, _ := r.clocks.read()
	err := r.o.Store.Update(ctx, func(tx store.Tx) error {
		for _, l := range left {
			l.FinishedAt, l.Outcome, l.Detail = wall, store.OutcomeCrashed, crashedText
			if err := tx.FinishRun(l, r.job(l.Job).keep()); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.log.Error("the end of runs that a crash left could not be recorded", "err", err)
	}
}

// learn reads once what ran before this process.
func (r *Runner) learn(rd store.Reader, mono time.Duration) error {
	wall, _ := r.clocks.read()
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	if known {
		return nil
	}
	in, err := rd.Info()
	if err != nil {
		return err
	}
	past := make([][]store.Run, len(r.jobs))
	for i, j := range r.jobs {
		if past[i], err = rd.Runs(j.Name, 0, keepRuns); err != nil {
			return err
		}
		if ok, err := rd.LastRun(j.Name, store.OutcomeOK); err == nil {
			past[i] = append(past[i], ok) // the failures since may fill the list
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known { // two looked at once
		return nil
	}
	r.known, r.born = true, in.CreatedAt
	for i, j := range r.jobs {
		r.left = append(r.left, j.learn(past[i], r.holder, wall, mono)...)
	}
	return nil
}

// learn takes rows, the newest first, into what is known of a job.
func (j *job) learn(rows []store.Run, holder string, wall time.Time, mono time.Duration) (left []store.Run) {
	fails, last := 0, time.Time{}
	counting := len(j.oks) == 0 && j.fails == 0 // nothing ran here yet
	for _, row := range rows {
		if row.Outcome == "" && row.Holder == holder {
			continue
		}
		if row.Outcome == "" {
			left = append(left, row)
		}
		if row.Outcome == store.OutcomeOK {
			j.oks, counting = append(j.oks, row.StartedAt), false
		}
		if !counting {
			continue
		}
		if fails++; fails == 1 {
			// When a crash was noticed says nothing of when it was.
			if last = row.FinishedAt; row.Outcome != store.OutcomeFailed {
				last = row.StartedAt
			}
		}
	}
	if fails > 0 {
		// A failure dated in the future counts as one of now: the wait is bounded.
		j.fails, j.retry = fails, mono+retryAfter(fails)-max(0, wall.Sub(last))
	}
	return left
}
