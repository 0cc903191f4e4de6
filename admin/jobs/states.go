package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// Wait waits for a run of this process and calls each, which may be nil, as it
// moves on. ErrNoRun.
func (r *Runner) Wait(ctx context.Context, id int64, each func(Run)) (Run, error) {
	for {
		r.mu.Lock()
		l := r.live(id)
		if l == nil {
			r.mu.Unlock()
			return Run{}, fmt.Errorf("%w of this process: %d", ErrNoRun, id)
		}
		run, done := l.show(), l.done
		if l.changed == nil && !done {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		r.mu.Unlock()
		if each != nil {
			each(run)
		}
		if done {
			return run, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return run, ctx.Err()
		}
	}
}

// live finds a run of this process by the id it has or had. The caller has r.mu.
func (r *Runner) live(id int64) *live {
	for _, l := range r.lives {
		if l.run.ID == id || l.local == id {
			return l
		}
	}
	return nil
}

// Find answers a run as it stands. ErrNoRun.
func (r *Runner) Find(ctx context.Context, id int64) (Run, error) {
	r.mu.Lock()
	l := r.live(id)
	if l != nil {
		run := l.show()
		r.mu.Unlock()
		return run, nil
	}
	r.mu.Unlock()
	var row store.Run
	err := r.o.Store.View(ctx, func(rd store.Reader) (err error) { row, err = rd.Run(id); return err })
	if errors.Is(err, store.ErrNotFound) {
		return Run{}, fmt.Errorf("%w: %d", ErrNoRun, id)
	}
	if err != nil {
		return Run{}, err
	}
	return r.shown(row), nil
}

// Runs lists runs, newest first and before an id (0: from the newest); job ""
// means all.
func (r *Runner) Runs(ctx context.Context, job string, before int64, limit int) ([]Run, error) {
	var rows []store.Run
	err := r.o.Store.View(ctx, func(rd store.Reader) (err error) { rows, err = rd.Runs(job, before, max(0, limit)); return err })
	if err != nil {
		return nil, err
	}
	if job != "" && len(rows) == 0 && r.job(job) == nil {
		return nil, fmt.Errorf("%w: %.80q", ErrNoJob, job)
	}
	runs := make([]Run, len(rows))
	for i, row := range rows {
		runs[i] = r.shown(row)
	}
	return runs, nil
}

// shown is a row together with what this process knows of the run. Only one
// process writes to a store, so that a run without an end that is none of ours is
// one that a crash left.
func (r *Runner) shown(row store.Run) Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.live(row.ID); l != nil {
		return l.show()
	}
	run := Run{ID: row.ID, Job: row.Job, AskedBy: row.AskedBy, StartedAt: row.StartedAt,
		FinishedAt: row.FinishedAt, Outcome: row.Outcome, Detail: row.Detail}
	if run.Outcome == "" && row.Holder != r.holder {
		run.Outcome, run.Detail = store.OutcomeCrashed, crashedText
	}
	return run
}

// rows is what States reads of a job.
type rows struct {
	last, ok store.Run
	want     wanted
}

// States lists the jobs in the order of Options.Jobs. It reads a few rows of
// each, however many there are.
func (r *Runner) States(ctx context.Context) ([]State, error) {
	wall, mono := r.clocks.read()
	found := make([]rows, len(r.jobs))
	err := r.o.Store.View(ctx, func(rd store.Reader) error {
		if err := r.learn(rd, mono); err != nil {
			return err
		}
		for i, j := range r.jobs {
			var err error
			if found[i], err = readRows(rd, j.Name, r.holder); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	states := make([]State, len(r.jobs))
	for i, j := range r.jobs {
		states[i] = r.state(j, found[i], wall, mono)
	}
	return states, nil
}

func readRows(rd store.Reader, job, holder string) (found rows, err error) {
	for _, outcome := range []string{store.OutcomeOK, store.OutcomeFailed, store.OutcomeCrashed} {
		row, err := rd.LastRun(job, outcome)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return found, err
		}
		if outcome == store.OutcomeOK {
			found.ok = row
		}
		if row.ID > found.last.ID {
			found.last = row
		}
	}
	// A run that a crash left, as long as nobody took it over, is a crashed one.
	if left, err := rd.LastRun(job, ""); err == nil && left.Holder != holder {
		found.last = left
	} else if err != nil && !errors.Is(err, store.ErrNotFound) {
		return found, err
	}
	found.want, err = readWanted(rd, job)
	return found, err
}

// shownIf is a finished run as it is shown, nil for none.
func (r *Runner) shownIf(row store.Run) *Run {
	if row.ID == 0 {
		return nil
	}
	run := r.shown(row)
	return &run
}

func (r *Runner) state(j *job, found rows, wall time.Time, mono time.Duration) State {
	s := State{Name: j.Name, Schedule: j.Cron, Wanted: found.want.Why}
	if j.Every > 0 {
		s.Schedule = "every " + shortDuration(j.Every)
	}
	s.Last, s.LastOK = r.shownIf(found.last), r.shownIf(found.ok)
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.running != nil {
		run := j.running.show()
		s.Running = &run
	}
	s.Next = r.next(j, found.want, wall, mono)
	return s
}

// next is when a job will run by itself, as far as one can tell; zero when
// nothing would start it. The caller has r.mu.
func (r *Runner) next(j *job, w wanted, wall time.Time, mono time.Duration) time.Time {
	retry := wall
	if j.fails > 0 && j.retry > mono {
		retry = wall.Add(j.retry - mono)
	}
	var at []time.Time
	if j.cron != nil {
		if due := dueAt(j.cron, wall, j.oks, r.born); !due.IsZero() && due.Before(retry) && j.fails > 0 {
			at = append(at, retry)
		} else if !due.IsZero() {
			at = append(at, due)
		}
	}
	if j.Every > 0 && r.armed {
		at = append(at, wall.Add(j.next-mono))
	}
	if w.ID != "" && (w.Tried || w.ID == j.tried) {
		at = append(at, retry)
	} else if w.ID != "" || j.atStart {
		at = append(at, wall)
	}
	if len(at) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(at, time.Time.Compare).Truncate(time.Millisecond)
}

// shortDuration is a duration without the units that are zero: 10m, not 10m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if d%time.Minute == 0 && d >= time.Minute {
		s = s[:len(s)-len("0s")]
	}
	if d%time.Hour == 0 && d >= time.Hour {
		s = s[:len(s)-len("0m")]
	}
	return s
}
