package jobs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// How runs get into the store, and what is done when it does not take them.

const (
	crashedText = "its process ended before it did"
	finishWait  = 10 * time.Second
)

// begin records the beginning of a run: its lease.
func (r *Runner) begin(ctx context.Context, l *live) error {
	var id int64
	var want string
	row := r.row(l)
	err := r.o.Store.Update(ctx, func(tx store.Tx) (err error) {
		id, want = 0, ""
		// A row of ours without an end is one whose end the store never took, or
		// whose beginning we were not told of: the guard says that nothing runs.
		left, err := tx.LastRun(l.job.Name, "")
		if err == nil && left.Holder == r.holder {
			left.FinishedAt, left.Outcome, left.Detail = row.StartedAt, store.OutcomeFailed, "its end was not recorded"
			err = tx.FinishRun(left, l.job.keep())
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if id, err = tx.StartRun(row); err != nil {
			return err
		}
		if want, err = tryWanted(tx, l.job.Name); err != nil || r.o.Asked == nil || row.AskedBy == BySchedule {
			return err
		}
		return r.o.Asked(tx, Run{ID: id, Job: row.Job, AskedBy: row.AskedBy, StartedAt: row.StartedAt},
			Request{Job: row.Job, By: row.AskedBy, Args: l.task.Args, Confirm: l.task.Confirm})
	})
	if err != nil {
		return err
	}
	l.task.ID, l.want = id, want
	r.change(l, func() { l.run.ID = id })
	return nil
}

// row is a run as the store keeps it.
func (r *Runner) row(l *live) store.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := store.Run{Job: l.run.Job, AskedBy: l.run.AskedBy, Holder: r.holder, StartedAt: l.run.StartedAt,
		FinishedAt: l.run.FinishedAt, Outcome: l.run.Outcome, Detail: l.run.Detail}
	if l.run.ID > 0 {
		s.ID = l.run.ID
	}
	return s
}

// finish records the end of a run, also while the relay stops.
func (r *Runner) finish(l *live) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.base), finishWait)
	defer cancel()
	row := r.row(l)
	var id int64
	err := r.o.Store.Update(ctx, func(tx store.Tx) (err error) { id, err = record(tx, row, l.want, l.job.keep()); return err })
	if err == nil {
		r.change(l, func() { l.run.ID = id })
	}
	return err
}

// record writes the end of a run into its row, and makes the row when there is
// none. It may be called again when nobody knows whether it was stored.
func record(tx store.Tx, row store.Run, want string, keep int) (id int64, err error) {
	if row.ID == 0 {
		for _, outcome := range []string{row.Outcome, ""} {
			was, err := tx.LastRun(row.Job, outcome)
			if err == nil && was.Holder == row.Holder && was.StartedAt.Equal(row.StartedAt) {
				row.ID = was.ID // the store took it, and could not tell us
			} else if err != nil && !errors.Is(err, store.ErrNotFound) {
				return 0, err
			}
		}
	}
	if row.ID == 0 {
		begun := row
		begun.FinishedAt, begun.Outcome, begun.Detail = time.Time{}, "", ""
		if row.ID, err = tx.StartRun(begun); err != nil {
			return 0, err
		}
	}
	if err := tx.FinishRun(row, keep); err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, err
	}
	return row.ID, endWanted(tx, row.Job, want, row.Outcome == store.OutcomeOK)
}

// settle tries again to record the ends that the store did not take.
func (r *Runner) settle(ctx context.Context) {
	r.mu.Lock()
	owed := slices.Clone(r.owed)
	r.mu.Unlock()
	for _, l := range owed {
		if ctx.Err() != nil || r.finish(l) != nil {
			return // it was said when it happened
		}
		r.mu.Lock()
		r.owed = slices.DeleteFunc(r.owed, func(o *live) bool { return o == l })
		r.mu.Unlock()
	}
}
