package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// Status is how a relay is, and its periodic work.
type Status struct {
	relay.Status
	Jobs []jobs.State `json:"jobs"`
	// Backup is the newest verified backup in the folder, nil when there is none.
	Backup *backup.Entry `json:"backup"`
	// Issuer is how the keys of the accounts issuer stand, nil on a relay that has
	// none.
	Issuer *relay.IssuerState `json:"issuer,omitempty"`
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

// A job is overdue overdueAfter after the time at which its next success was due,
// and never before its last one is overdueAge old: a daily backup after 26 hours.
const (
	overdueAfter = 2 * time.Hour
	overdueAge   = 26 * time.Hour
)

// Status answers from counters, from the last rows of each job, and from the
// receipts in the folder of the backups.
func (l *Local) Status(ctx context.Context) (s Status, err error) {
	if s.Status, err = l.o.Relay.Status(ctx); err != nil {
		return s, err
	}
	if s.Jobs, err = l.jobs.States(ctx); err != nil {
		return s, err
	}
	list, bad, err := l.backups(ctx)
	if err != nil {
		bad = []string{err.Error()}
	}
	s.Backup, s.Problems = newest(list), append(s.Problems, bad...)
	var in store.Info
	if err := l.o.Store.View(ctx, func(r store.Reader) (err error) { in, err = r.Info(); return err }); err != nil {
		return s, err
	}
	s.Issuer = l.issuerState()
	accounts, _ := l.issuerProblems(s)
	s.Problems = slices.Concat(s.Problems, accounts, l.jobProblems(s, in.CreatedAt))
	return s, nil
}

// newest finds the newest verified backup, nil when there is none.
func newest(list []backup.Entry) *backup.Entry {
	for _, e := range list {
		if e.Verified {
			return &e
		}
	}
	return nil
}

// jobProblems says what of the periodic work needs a person.
func (l *Local) jobProblems(s Status, created time.Time) (list []string) {
	for _, j := range s.Jobs {
		if failed(j) {
			list = append(list, fmt.Sprintf("the last %s failed: %s", j.Name, j.Last.Detail))
		}
	}
	if b := s.Job(JobBackup); b != nil && b.LastOK != nil && strings.Contains(b.LastOK.Detail, troubled) {
		list = append(list, "the last backup: "+b.LastOK.Detail)
	}
	if b := s.Job(JobBackup); b != nil && b.LastOK != nil && s.Backup == nil {
		list = append(list, fmt.Sprintf("no verified backup stands in %s any more; run: agentmbx relay backup", l.o.Backups.Dir))
	}
	for _, name := range []string{JobBackup, JobDrill} {
		if j := s.Job(name); j != nil {
			if age, over := l.overdue(*j, created); over {
				what := fmt.Sprintf("the last good %s was %s ago", name, age.Round(time.Hour))
				if j.LastOK == nil {
					what = fmt.Sprintf("there was no good %s yet, and the store is %s old", name, age.Round(time.Hour))
				}
				list = append(list, fmt.Sprintf("%s; run: agentmbx relay %s", what, name))
			}
		}
	}
	return list
}

// overdue reports whether a job's last success, or the store's beginning where
// there is none, is older than its schedule allows.
func (l *Local) overdue(j jobs.State, created time.Time) (age time.Duration, over bool) {
	if j.Schedule == "" {
		return 0, false
	}
	now, since := l.o.Now(), created
	if j.LastOK != nil {
		since = j.LastOK.StartedAt
	}
	age = now.Sub(since)
	return age, age > overdueAge && now.After(jobs.NextAfter(j.Schedule, since).Add(overdueAfter))
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
	for _, name := range []string{JobBackup, JobDrill} {
		if j := s.Job(name); j != nil && j.LastOK != nil {
			if _, over := l.overdue(*j, time.Time{}); over {
				list = append(list, fmt.Sprintf("the last good %s is too long ago", name))
			}
		}
	}
	s.Issuer = l.issuerState()
	_, accounts := l.issuerProblems(s)
	return append(list, accounts...)
}

func failed(j jobs.State) bool {
	return j.Last != nil && j.Last.Outcome != store.OutcomeOK && watched(j.Name)
}

// watched names the jobs whose failure is a problem of its own. A held sweep and
// a full disk are told by the relay's status; a heartbeat by its age.
func watched(job string) bool {
	return job == JobBackup || job == JobDrill || job == JobCheckpoint
}
