package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// Status is how a relay is, and its periodic work.
type Status struct {
	relay.Status
	Jobs []jobs.State `json:"jobs"`
}

// Job finds a job's state, nil when there is none.
func (s Status) Job(name string) *jobs.State {
	for i := range s.Jobs {
		if s.Jobs[i].Name == name {
			return &s.Jobs[i]
		}
	}
	return nil
}

// backupOverdue is how old the last verified backup of a daily schedule may be.
const backupOverdue = 26 * time.Hour

// Status answers from counters and from the last row of each job.
func (l *Local) Status(ctx context.Context) (s Status, err error) {
	if s.Status, err = l.o.Relay.Status(ctx); err != nil {
		return s, err
	}
	if s.Jobs, err = l.jobs.States(ctx); err != nil {
		return s, err
	}
	var in store.Info
	if err := l.o.Store.View(ctx, func(r store.Reader) (err error) { in, err = r.Info(); return err }); err != nil {
		return s, err
	}
	s.Problems = append(s.Problems, jobProblems(s, in.CreatedAt, l.o.Now())...)
	return s, nil
}

// jobProblems says what of the periodic work needs a person.
func jobProblems(s Status, created, now time.Time) (list []string) {
	for _, j := range s.Jobs {
		if failed(j) {
			list = append(list, fmt.Sprintf("the last %s failed: %s", j.Name, j.Last.Detail))
		}
	}
	if b := s.Job(JobBackup); b != nil && b.Schedule != "" {
		since, what := created, "the store has no verified backup yet and is %s old"
		if b.LastOK != nil {
			since, what = b.LastOK.StartedAt, "the last verified backup is %s old"
		}
		if age := now.Sub(since); age > backupOverdue {
			list = append(list, fmt.Sprintf(what+"; run: agentmbx relay backup", age.Round(time.Hour)))
		}
	}
	return list
}

// Problems says what of the periodic work is wrong, in words fit for anyone: no
// path and no command.
func (l *Local) Problems(ctx context.Context) (list []string) {
	s := Status{}
	var err error
	if s.Jobs, err = l.jobs.States(ctx); err != nil {
		return []string{"the jobs do not answer"}
	}
	for _, j := range s.Jobs {
		if failed(j) {
			list = append(list, fmt.Sprintf("the last %s failed", j.Name))
		}
	}
	if b := s.Job(JobBackup); b != nil && b.Schedule != "" && b.LastOK != nil && l.o.Now().Sub(b.LastOK.StartedAt) > backupOverdue {
		list = append(list, "the last verified backup is over 26 hours old")
	}
	return list
}

func failed(j jobs.State) bool {
	return j.Last != nil && j.Last.Outcome != store.OutcomeOK && watched(j.Name)
}

// watched names the jobs whose failure is a problem of its own. A held sweep and
// a full disk are told by the relay's status; a heartbeat by its age.
func watched(job string) bool {
	return job == JobBackup || job == JobDrill || job == JobCheckpoint
}
