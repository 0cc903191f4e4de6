package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

var runTests = []subtest{
	{"a run is kept whole, running and finished", func(h *Harness) {
		r := store.Run{Job: "sweep", AskedBy: "schedule", Holder: "p1", StartedAt: epoch0.Add(7 * time.Millisecond), Detail: "begun"}
		r.ID = h.start(r)
		for _, when := range []string{"running", "running and reopened"} {
			want(h, when, h.run(r.ID), r)
			want(h, when+": the one that runs", h.lastRun("sweep", ""), r)
			want(h, when+": list", h.runs("sweep", 10), []store.Run{r})
			h.Reopen()
		}
		r.FinishedAt, r.Outcome, r.Detail = epoch0.Add(time.Second), store.OutcomeFailed, "no room"
		h.finish(r, 10)
		for _, when := range []string{"finished", "finished and reopened"} {
			want(h, when, h.run(r.ID), r)
			want(h, when+": the last that failed", h.lastRun("sweep", store.OutcomeFailed), r)
			want(h, when+": all jobs", h.runs("", 10), []store.Run{r})
			for _, outcome := range []string{"", store.OutcomeOK, store.OutcomeCrashed} {
				_, err := h.tryLastRun("sweep", outcome)
				wantErr(h, when+": last with outcome "+outcome, err, store.ErrNotFound)
			}
			h.Reopen()
		}
		_, err := h.tryLastRun("backup", store.OutcomeFailed)
		wantErr(h, "of another job", err, store.ErrNotFound)
	}},
	{"the end is what is told of the run, not of its beginning", func(h *Harness) {
		r := store.Run{Job: "sweep", AskedBy: "schedule", Holder: "p1", StartedAt: epoch0}
		r.ID = h.start(r)
		other := h.begin("backup", "p1", 0)
		h.end(other, store.OutcomeFailed, 10)
		// The id names the run: what else is in the record does not change it,
		// nor whose runs may go.
		h.finish(store.Run{ID: r.ID, Job: "backup", AskedBy: "x", Holder: "x", StartedAt: epoch0.Add(day), FinishedAt: epoch0.Add(time.Second),
			Outcome: store.OutcomeOK, Detail: "3 items"}, 0)
		r.FinishedAt, r.Outcome, r.Detail = epoch0.Add(time.Second), store.OutcomeOK, "3 items"
		want(h, "run", h.run(r.ID), r)
		want(h, "runs of another job", len(h.runs("backup", 10)), 1)
	}},
	{"a job runs once at a time", func(h *Harness) {
		first := h.begin("sweep", "p1", 0)
		_, err := h.tryStart(store.Run{Job: "sweep", Holder: "p1", StartedAt: epoch0.Add(time.Hour)})
		wantErr(h, "a second start", err, store.ErrRunning)
		want(h, "runs", h.runs("sweep", 10), []store.Run{first})
		h.Reopen()
		_, err = h.tryStart(store.Run{Job: "sweep", Holder: "p1", StartedAt: epoch0.Add(time.Hour)})
		wantErr(h, "a second start after a reopen", err, store.ErrRunning)
		h.end(first, store.OutcomeOK, 10)
		second := h.begin("sweep", "p1", 2)
		want(h, "after its end", h.runs("sweep", 10), []store.Run{second, h.run(first.ID)})
		wantErr(h, "twice in one transaction", h.Update(h.Context(), func(tx store.Tx) error {
			if _, err := tx.StartRun(store.Run{Job: "other", Holder: "p1", StartedAt: epoch0}); err != nil {
				return err
			}
			_, err := tx.StartRun(store.Run{Job: "other", Holder: "p1", StartedAt: epoch0})
			return err
		}), store.ErrRunning)
		want(h, "runs of the other", len(h.runs("other", 10)), 0)
	}},
	{"another process takes over what a crash left", func(h *Harness) {
		left := h.begin("sweep", "p1", 0)
		h.begin("backup", "p1", 1)
		h.Reopen()
		next := h.begin("sweep", "p2", 60)
		if next.ID <= left.ID {
			h.Errorf("id: got %d; want above %d", next.ID, left.ID)
		}
		was := h.run(left.ID)
		if was.Outcome != store.OutcomeCrashed || !was.FinishedAt.Equal(next.StartedAt) || was.Holder != "p1" || !was.StartedAt.Equal(left.StartedAt) {
			h.Errorf("the run that was left: got %+v; want it crashed, over when the next began", was)
		}
		want(h, "the last that crashed", h.lastRun("sweep", store.OutcomeCrashed), was)
		want(h, "the one that runs", h.lastRun("sweep", ""), next)
		want(h, "runs", h.runs("sweep", 10), []store.Run{next, was})
		want(h, "another job's run", h.lastRun("backup", "").Holder, "p1")
		// The first process may have been slow and not dead: its end is not taken.
		left.FinishedAt, left.Outcome = epoch0.Add(time.Hour), store.OutcomeOK
		wantErr(h, "an end after the crash", h.tryFinish(left, 10), store.ErrNotFound)
		want(h, "the run that was left, still", h.run(left.ID), was)
		_, err := h.tryStart(store.Run{Job: "sweep", Holder: "p2", StartedAt: epoch0})
		wantErr(h, "a second start by the one that took over", err, store.ErrRunning)
		h.end(next, store.OutcomeOK, 10)
	}},
	{"only a run that is not finished ends", func(h *Harness) {
		r := h.begin("sweep", "p1", 0)
		wantErr(h, "an unknown run", h.tryFinish(store.Run{ID: r.ID + 1, Job: "sweep", FinishedAt: epoch0, Outcome: store.OutcomeOK}, 10), store.ErrNotFound)
		wantErr(h, "none at all", h.tryFinish(store.Run{Job: "sweep", FinishedAt: epoch0, Outcome: store.OutcomeOK}, 10), store.ErrNotFound)
		want(h, "the one that runs", h.lastRun("sweep", ""), r)
		h.end(r, store.OutcomeOK, 10)
		was := h.run(r.ID)
		r.FinishedAt, r.Outcome = epoch0.Add(time.Hour), store.OutcomeFailed
		wantErr(h, "a finished run", h.tryFinish(r, 0), store.ErrNotFound)
		want(h, "the run", h.run(r.ID), was)
		var err error
		h.Read(func(rd store.Reader) error { _, err = rd.Run(r.ID + 1); return nil })
		wantErr(h, "an unknown id", err, store.ErrNotFound)
	}},
	{"runs are listed the newest first, of one job or all, up to a limit", func(h *Harness) {
		var all []store.Run
		for i, job := range []string{"sweep", "backup", "sweep", "drill", "sweep"} {
			r := h.begin(job, "p1", i)
			h.end(r, store.OutcomeOK, 10)
			all = append([]store.Run{h.run(r.ID)}, all...)
		}
		sweeps := []store.Run{all[0], all[2], all[4]}
		want(h, "all", h.runs("", 10), all)
		want(h, "some", h.runs("", 2), all[:2])
		want(h, "a job", h.runs("sweep", 10), sweeps)
		want(h, "the last of a job", h.runs("sweep", 1), sweeps[:1])
		want(h, "no such job", len(h.runs("prune", 10)), 0)
		for i := range all[1:] {
			if all[i].ID <= all[i+1].ID {
				h.Errorf("ids: got %d before %d; want them going down", all[i].ID, all[i+1].ID)
			}
		}
	}},
	{"of a job the last runs stay, and the last that went well", func(h *Harness) {
		do := func(job, outcome string, keep int) int64 {
			r := h.begin(job, "p1", 0)
			h.end(r, outcome, keep)
			return r.ID
		}
		outcomes := func(job string) (list []string) {
			for _, r := range h.runs(job, 100) {
				list = append(list, r.Outcome)
			}
			return list
		}
		const ok, failed = store.OutcomeOK, store.OutcomeFailed
		for range 3 {
			do("other", failed, 10)
		}
		running := h.begin("third", "p1", 0)
		do("sweep", ok, 3)
		good := do("sweep", ok, 3)
		do("sweep", failed, 3)
		want(h, "as many as may stay", outcomes("sweep"), []string{failed, ok, ok})
		do("sweep", failed, 3)
		want(h, "one more", outcomes("sweep"), []string{failed, failed, ok})
		do("other", ok, 10)
		do("sweep", failed, 3)
		want(h, "one more, after another job's", outcomes("sweep"), []string{failed, failed, failed, ok})
		for range 5 {
			do("sweep", failed, 3)
		}
		want(h, "long since one went well", outcomes("sweep"), []string{failed, failed, failed, ok})
		want(h, "the last that went well", h.lastRun("sweep", ok).ID, good)
		h.Reopen()
		good = do("sweep", ok, 3)
		want(h, "one went well again", outcomes("sweep"), []string{ok, failed, failed})
		want(h, "the last that went well now", h.lastRun("sweep", ok).ID, good)
		bad := do("sweep", failed, 0)
		want(h, "none to stay", outcomes("sweep"), []string{ok})
		if next := do("sweep", failed, 1); next <= bad {
			h.Errorf("id after one that did not stay: got %d; want above %d", next, bad)
		}
		want(h, "one to stay", outcomes("sweep"), []string{failed, ok})
		want(h, "another job", outcomes("other"), []string{ok, failed, failed, failed})
		want(h, "a job that runs", h.runs("third", 10), []store.Run{running})
	}},
	{"crashed runs count among those that stay", func(h *Harness) {
		for i := range 5 {
			h.begin("sweep", fmt.Sprint("p", i), i)
		}
		want(h, "runs", len(h.runs("sweep", 100)), 5)
		h.end(h.lastRun("sweep", ""), store.OutcomeFailed, 2)
		var list []string
		for _, r := range h.runs("sweep", 100) {
			list = append(list, r.Outcome)
		}
		want(h, "after an end", list, []string{store.OutcomeFailed, store.OutcomeCrashed})
	}},
	{"a failing update leaves no run", func(h *Harness) {
		left := h.begin("sweep", "p1", 0)
		wantErr(h, "start and take over", h.Update(h.Context(), func(tx store.Tx) error {
			if _, err := tx.StartRun(store.Run{Job: "sweep", Holder: "p2", StartedAt: epoch0}); err != nil {
				return err
			}
			if _, err := tx.StartRun(store.Run{Job: "backup", Holder: "p2", StartedAt: epoch0}); err != nil {
				return err
			}
			return errBoom
		}), errBoom)
		want(h, "runs", h.runs("", 10), []store.Run{left})
		wantErr(h, "finish", h.Update(h.Context(), func(tx store.Tx) error {
			r := left
			r.FinishedAt, r.Outcome = epoch0, store.OutcomeOK
			if err := tx.FinishRun(r, 0); err != nil {
				return err
			}
			return errBoom
		}), errBoom)
		want(h, "runs", h.runs("", 10), []store.Run{left})
		h.end(left, store.OutcomeOK, 10)
	}},
	{"a run without an outcome does not end", func(h *Harness) {
		r := h.begin("sweep", "p1", 0)
		for _, outcome := range []string{"", "fine"} {
			end := r
			end.FinishedAt, end.Outcome = epoch0, outcome
			if err := h.tryFinish(end, 10); err == nil {
				h.Errorf("outcome %q: got nil; want an error", outcome)
			}
		}
		want(h, "the one that runs", h.lastRun("sweep", ""), r)
	}},
	{"a run may start and end in one transaction", func(h *Harness) {
		h.Write(func(tx store.Tx) error {
			id, err := tx.StartRun(store.Run{Job: "sweep", Holder: "p1", StartedAt: epoch0})
			if err != nil {
				return err
			}
			last, err := tx.LastRun("sweep", "")
			want(h, "seen by the transaction", last.ID, id)
			last.FinishedAt, last.Outcome = epoch0, store.OutcomeOK
			return errors.Join(err, tx.FinishRun(last, 1))
		})
		want(h, "outcome", h.lastRun("sweep", store.OutcomeOK).Outcome, store.OutcomeOK)
	}},
	{"state is remembered by its name", func(h *Harness) {
		wantState := func(when, name, value string) {
			h.Helper()
			got, err := h.state(name)
			if value == "" {
				wantErr(h, when+": "+name, err, store.ErrNotFound)
				return
			}
			want(h, when+": "+name, string(got), value)
			wantErr(h, when+": "+name, err, nil)
		}
		set := func(name, value string) {
			h.Helper()
			var b []byte
			if value != "" {
				b = []byte(value)
			}
			h.Write(func(tx store.Tx) error { return tx.SetState(name, b) })
		}
		wantState("a new store", "a", "")
		set("a", "") // forgets nothing
		set("a", `{"n": 1}`)
		set("b", `[2, "zwei"]`)
		for _, when := range []string{"set", "reopened"} {
			wantState(when, "a", `{"n": 1}`) // byte for byte
			wantState(when, "b", `[2, "zwei"]`)
			wantState(when, "A", "")
			h.Reopen()
		}
		set("a", "null")
		wantState("replaced", "a", "null")
		wantState("replaced", "b", `[2, "zwei"]`)
		set("a", "")
		wantState("forgotten", "a", "")
		h.Reopen()
		wantState("forgotten and reopened", "a", "")
		wantState("forgotten and reopened", "b", `[2, "zwei"]`)
	}},
	{"state that is no JSON is refused, and what was there stays", func(h *Harness) {
		h.Write(func(tx store.Tx) error { return tx.SetState("a", []byte("1")) })
		for _, bad := range []string{"", "{", "nul", `{"a": 1} x`, "{'a': 1}", "{a: 1}", "[1,]", "{}\x00x"} {
			if err := h.Update(h.Context(), func(tx store.Tx) error { return tx.SetState("a", []byte(bad)) }); err == nil {
				h.Errorf("%q: got nil; want an error", bad)
			}
		}
		got, err := h.state("a")
		want(h, "state", string(got), "1")
		wantErr(h, "state", err, nil)
	}},
	{"a failing update leaves the state as it was", func(h *Harness) {
		h.Write(func(tx store.Tx) error { return tx.SetState("a", []byte("1")) })
		wantErr(h, "update", h.Update(h.Context(), func(tx store.Tx) error {
			err := errors.Join(tx.SetState("a", nil), tx.SetState("b", []byte("2")))
			got, err2 := tx.State("b")
			want(h, "seen by the transaction", string(got), "2")
			return errors.Join(errBoom, err, err2)
		}), errBoom)
		got, err := h.state("a")
		want(h, "state", string(got), "1")
		wantErr(h, "state", err, nil)
		_, err = h.state("b")
		wantErr(h, "the other", err, store.ErrNotFound)
	}},
}

func (h *Harness) tryStart(r store.Run) (id int64, err error) {
	h.Helper()
	err = h.Update(h.Context(), func(tx store.Tx) (err error) { id, err = tx.StartRun(r); return err })
	return id, err
}

func (h *Harness) start(r store.Run) int64 {
	h.Helper()
	id, err := h.tryStart(r)
	if err != nil {
		h.Fatalf("start %s: %v", r.Job, err)
	}
	return id
}

// begin starts a run some seconds after the start of the clock.
func (h *Harness) begin(job, holder string, after int) store.Run {
	h.Helper()
	r := store.Run{Job: job, AskedBy: "schedule", Holder: holder, StartedAt: epoch0.Add(time.Duration(after) * time.Second)}
	r.ID = h.start(r)
	return r
}

func (h *Harness) tryFinish(r store.Run, keep int) error {
	h.Helper()
	return h.Update(h.Context(), func(tx store.Tx) error { return tx.FinishRun(r, keep) })
}

func (h *Harness) finish(r store.Run, keep int) {
	h.Helper()
	if err := h.tryFinish(r, keep); err != nil {
		h.Fatalf("finish %s: %v", r.Job, err)
	}
}

// end finishes a run a second after it began.
func (h *Harness) end(r store.Run, outcome string, keep int) {
	h.Helper()
	r.FinishedAt, r.Outcome, r.Detail = r.StartedAt.Add(time.Second), outcome, "it "+outcome
	h.finish(r, keep)
}

func (h *Harness) run(id int64) store.Run {
	h.Helper()
	return get(h, func(r store.Reader) (store.Run, error) { return r.Run(id) })
}

func (h *Harness) runs(job string, limit int) []store.Run {
	h.Helper()
	return get(h, func(r store.Reader) ([]store.Run, error) { return r.Runs(job, 0, limit) })
}

func (h *Harness) tryLastRun(job, outcome string) (last store.Run, miss error) {
	h.Helper()
	h.Read(func(r store.Reader) error { last, miss = r.LastRun(job, outcome); return nil })
	return last, miss
}

func (h *Harness) lastRun(job, outcome string) store.Run {
	h.Helper()
	return get(h, func(r store.Reader) (store.Run, error) { return r.LastRun(job, outcome) })
}

func (h *Harness) state(name string) (value []byte, miss error) {
	h.Helper()
	h.Read(func(r store.Reader) error { value, miss = r.State(name); return nil })
	return value, miss
}
