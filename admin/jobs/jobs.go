// Package jobs runs a relay's periodic work: by a schedule in UTC, or when
// somebody asks. Every run is a row in the store, and the row of a run that has
// not finished is its job's lease, so that no two of one job run at once, whoever
// asks for them, and a crash is seen by whoever comes next.
package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// Errors a caller may test for, besides store.ErrRunning.
var (
	ErrNoJob   = errors.New("no such job")
	ErrNoRun   = errors.New("no such run")
	ErrStopped = errors.New("the relay stopped")
)

// Job is a kind of work.
type Job struct {
	Name string
	// Cron is its schedule in five fields, UTC. It is due by its last success in
	// the store, so that a run that was missed while nothing ran is caught up at
	// the next start, and one that fails is tried again before its next day.
	Cron string
	// Every is its interval instead. A job with neither runs only on request.
	Every time.Duration
	// AtStart has it run once when the scheduler starts.
	AtStart bool
	// Timeout ends a run's context; zero means an hour.
	Timeout time.Duration
	// Do does the work and answers one line for people. What it shows while it
	// works, and answers besides, goes through the task. A panic is a failed run.
	Do func(ctx context.Context, t *Task) (detail string, err error)
}

// Task is one run as its job sees it.
type Task struct {
	ID      int64
	AskedBy string          // BySchedule, or who
	Args    json.RawMessage // of a request, or nil
	Confirm bool            // of a request: do what would otherwise be held
	Started time.Time

	Result any // what the run answers besides its detail; JSON

	progress func(Progress)
}

// BySchedule is who asks for a run that nobody else asked for.
const BySchedule = "schedule"

// Progress tells how far the run is: done of total, in bytes or steps; total 0
// means that nobody knows.
func (t *Task) Progress(stage string, done, total int64) {
	if t.progress != nil {
		t.progress(Progress{stage, done, total})
	}
}

// Progress is how far a run is.
type Progress struct {
	Stage string `json:"stage"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
}

// Run is a run, finished or not. What is not in the store (Progress, Result,
// Code) is known for the last runs of this process only. An ID below zero is one
// of this process: the store has not taken the run yet.
type Run struct {
	ID         int64           `json:"id"`
	Job        string          `json:"job"`
	AskedBy    string          `json:"asked_by"`
	StartedAt  time.Time       `json:"started_at"`
	FinishedAt time.Time       `json:"finished_at,omitzero"`
	Outcome    string          `json:"outcome,omitempty"` // "" while it runs
	Detail     string          `json:"detail,omitempty"`  // of a failed run: why
	Progress   *Progress       `json:"progress,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Code       string          `json:"code,omitempty"` // of a failed run: what Options.Code says
}

// State is how a job stands.
type State struct {
	Name     string    `json:"name"`
	Schedule string    `json:"schedule"` // in UTC, or an interval; "" only on request
	Next     time.Time `json:"next,omitzero"`
	Running  *Run      `json:"running,omitempty"`
	Last     *Run      `json:"last,omitempty"`    // the last that finished
	LastOK   *Run      `json:"last_ok,omitempty"` // the last that went well
	Wanted   string    `json:"wanted,omitempty"`  // why it is due now, whatever its schedule says
}

// Request asks for a run now.
type Request struct {
	Job     string          `json:"job"`
	By      string          `json:"by"`
	Args    json.RawMessage `json:"args,omitempty"`
	Confirm bool            `json:"confirm,omitempty"`
}

// Store is what the runner needs of a store.
type Store interface {
	Update(ctx context.Context, fn func(tx store.Tx) error) error
	View(ctx context.Context, fn func(r store.Reader) error) error
}

// Options are what a runner is made of.
type Options struct {
	Store Store
	Jobs  []Job
	// Code names what kind of error ended a run, for a caller far away; may be nil.
	Code func(error) string
	// Asked is told in the transaction that records the beginning of a run that
	// somebody asked for; may be nil.
	Asked func(tx store.Tx, run Run, q Request) error
	// Jumped is told when the wall clock has moved against the monotonic one by
	// more than JumpOver, before anything is started at the new time; may be nil.
	// It must not call the runner.
	Jumped func(ctx context.Context, by time.Duration)
	Log    *slog.Logger
	Now    func() time.Time     // the wall clock; nil means time.Now
	Since  func() time.Duration // the monotonic clock; nil means the system's
}

// JumpOver is how far the clocks may part before it is a jump.
const JumpOver = 10 * time.Minute
