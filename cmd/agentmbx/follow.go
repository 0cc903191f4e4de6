package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/admin/jobs"
)

// followEvery is how often a run is looked at.
const followEvery = 100 * time.Millisecond

// followJob has a job run and waits for its end, with a bar that shows how far it
// is. A run that failed is an error with the exit code of its kind. When ctx ends
// the run goes on where it is, unless that is in this process.
func followJob(ctx context.Context, e env, svc admin.Service, q jobs.Request) (jobs.Run, error) {
	q.By = actor()
	run, err := svc.StartJob(ctx, q)
	if err != nil {
		return run, deskError(err)
	}
	show, finish := progressBar(e, strings.TrimSuffix(q.Job, "-file"))
	defer finish()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for run.Outcome == "" {
		if p := run.Progress; p != nil {
			show(p.Stage, p.Done, p.Total)
		}
		select {
		case <-ctx.Done():
			if _, far := svc.(*api.Client); far {
				return run, fmt.Errorf("interrupted: the %s goes on in the relay; see: agentmbx relay admin jobs", q.Job)
			}
			return run, fmt.Errorf("interrupted: the %s is ended and leaves nothing behind", q.Job)
		case <-tick.C:
		}
		if run, err = svc.Run(ctx, run.ID); err != nil {
			return run, deskError(err)
		}
	}
	finish()
	if run.Outcome != "ok" {
		return run, deskError(admin.OfKind(run.Code, run.Detail))
	}
	return run, nil
}

// deskError gives what the desk answered the exit code of its kind.
func deskError(err error) error {
	switch {
	case errors.Is(err, admin.ErrBadRequest):
		return usage(err)
	case admin.Kind(err) == "REFUSED":
		return refused(err)
	case admin.Kind(err) == "NOT_FOUND":
		return notFound(err)
	case admin.Kind(err) == "UNHEALTHY":
		return unhealthy(err)
	}
	return err
}

// barAfter is how long work goes on before it shows a bar: what is done at once
// needs none.
const barAfter = time.Second

// progressBar shows how far a piece of work is, on a terminal; elsewhere it shows
// nothing. finish takes the bar away and may be called twice.
func progressBar(e env, title string) (show func(stage string, done, total int64), finish func()) {
	if !isTerminal(e.errw) {
		return func(string, int64, int64) {}, func() {}
	}
	var bar *progressbar.ProgressBar
	began := time.Now()
	show = func(stage string, done, total int64) {
		if bar == nil {
			if time.Since(began) < barAfter {
				return
			}
			bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(e.errw), progressbar.OptionSetWidth(30),
				progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish())
		}
		bar.Describe(title + ": " + stage)
		if total != bar.GetMax64() {
			bar.ChangeMax64(max(total, 1))
		}
		_ = bar.Set64(min(done, max(total, 1)-1)) // full is said by finish; what it cannot write nobody sees
	}
	finish = func() {
		if bar != nil {
			_ = bar.Clear()
			bar = nil
			began = time.Now().Add(time.Hour)
		}
	}
	return show, finish
}
