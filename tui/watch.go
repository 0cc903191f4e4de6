package tui

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/relay/store"
)

// watch follows a run that was started from a screen until it has ended.
type watch struct {
	run jobs.Run // ID 0: none
	err error    // of the last look; the next one may find it
}

// runMsg is how a run that a screen follows stands.
type runMsg struct {
	run   jobs.Run
	id    int64 // of the run that was asked for, 0 when it was to be started
	err   error
	fresh bool // it was started just now
}

func (m runMsg) failed() error { return m.err }

// kindNotFound is admin.Kind of what is not there, near and far.
var kindNotFound = admin.Kind(admin.ErrNotFound)

// watchEvery is how often a run is looked at.
const watchEvery = 400 * time.Millisecond

// startJob begins a run. args may be nil. Its answer is a runMsg.
func (d desk) startJob(job string, args any, confirm bool) tea.Cmd {
	return ask(func(ctx context.Context) (jobs.Run, error) {
		q := jobs.Request{Job: job, By: d.actor, Confirm: confirm}
		if args != nil {
			b, err := json.Marshal(args)
			if err != nil {
				return jobs.Run{}, err
			}
			q.Args = b
		}
		return d.svc.StartJob(ctx, q)
	}, func(r jobs.Run, err error) tea.Msg { return runMsg{run: r, err: err, fresh: err == nil} })
}

// lookAt asks how a run stands, a moment later.
func (d desk) lookAt(id int64) tea.Cmd {
	after := d.after
	if after == nil {
		after = tea.Tick
	}
	return after(watchEvery, func(time.Time) tea.Msg {
		return ask(func(ctx context.Context) (jobs.Run, error) { return d.svc.Run(ctx, id) },
			func(r jobs.Run, err error) tea.Msg { return runMsg{run: r, id: id, err: err} })()
	})
}

// take takes an answer: cmd looks again, or says how the run ended and has the
// screen load anew.
func (w watch) take(d desk, m runMsg) (watch, tea.Cmd) {
	switch {
	case m.fresh:
		w = watch{run: m.run}
	case m.id == 0 || m.id != w.run.ID: // it did not start, or another is followed now
		return w, nil
	case m.err != nil && admin.Kind(m.err) != kindNotFound: // the relay may come back
		w.err = m.err
		return w, d.lookAt(w.run.ID)
	case m.err != nil:
		w.run.Outcome, w.run.Detail = store.OutcomeCrashed, "the relay does not know the run any more: see the runs of the job"
	default:
		w = watch{run: m.run}
	}
	if w.run.Outcome == "" {
		return w, d.lookAt(w.run.ID)
	}
	return w, tell(runText(w.run), runError(w.run))
}

// on reports whether a run is followed that has not ended.
func (w watch) on() bool { return w.run.ID != 0 && w.run.Outcome == "" }

// view is the run in one line, "" when there is none.
func (w watch) view(l *look, now time.Time, width int) string {
	switch {
	case w.run.ID == 0:
		return ""
	case w.run.Outcome == "":
		return l.strong(cut(fmt.Sprintf("%s: run %d for %s · %s", w.run.Job, w.run.ID, age(now, w.run.StartedAt), progressText(w.run.Progress)), width))
	case runError(w.run) != nil:
		return l.alarm(cut("✗ "+runText(w.run)+": "+w.run.Detail, width))
	}
	return l.good(cut("✓ "+runText(w.run), width))
}

// runText says how a run ended.
func runText(r jobs.Run) string {
	s := fmt.Sprintf("%s: run %d %s", r.Job, r.ID, r.Outcome)
	if r.Outcome == store.OutcomeOK && r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}

func runError(r jobs.Run) error {
	if r.Outcome == store.OutcomeOK || r.Outcome == "" {
		return nil
	}
	return fmt.Errorf("%s: run %d %s: %s", r.Job, r.ID, r.Outcome, r.Detail)
}

// progressText is how far a run is, with a bar where that is known.
func progressText(p *jobs.Progress) string {
	switch {
	case p == nil:
		return "running"
	case p.Total <= 0 && p.Done <= 0:
		return p.Stage
	case p.Total <= 0:
		return fmt.Sprintf("%s: %s", p.Stage, count(p.Done))
	}
	const cells = 20
	part := max(0, min(1, float64(p.Done)/float64(p.Total)))
	full := int(part * cells)
	return fmt.Sprintf("%s%s %3.0f%% %s", strings.Repeat("█", full), strings.Repeat("░", cells-full), part*100, p.Stage)
}
