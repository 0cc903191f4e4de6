// Package admin is what an operator may see and do, for the command line, the
// terminal screens and the socket alike.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// Service is the operator's desk. What changes something is one transaction,
// and is written to the relay log with who did it and why.
type Service interface {
	Status(ctx context.Context) (Status, error)
	Log(ctx context.Context, f LogFilter) ([]LogEntry, error)
	RotateEpoch(ctx context.Context, a Action) (epoch string, err error)

	// Jobs lists the jobs and how each stands, Runs the runs, newest first;
	// job "" means all.
	Jobs(ctx context.Context) ([]jobs.State, error)
	Runs(ctx context.Context, job string, limit int) ([]jobs.Run, error)
	// StartJob begins a run and answers at once; Run tells how it stands.
	StartJob(ctx context.Context, q jobs.Request) (jobs.Run, error)
	Run(ctx context.Context, id int64) (jobs.Run, error)

	// Backups lists the backups in the folder, newest first. PruneBackups
	// removes those that are not to be kept, or only says which.
	Backups(ctx context.Context) ([]backup.Entry, error)
	PruneBackups(ctx context.Context, dryRun bool, a Action) ([]backup.Decision, error)
}

// Action says who does something, and why.
type Action struct {
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

// LogFilter selects lines of the relay log.
type LogFilter struct {
	Op    string // a kind, or "" for all
	Limit int    // 1 to MaxLog
}

// MaxLog is the most lines one call answers.
const MaxLog = 10_000

// LogEntry is one line of the relay log.
type LogEntry struct {
	ID      int64           `json:"id"`
	At      time.Time       `json:"at"`
	Op      string          `json:"op"`
	Receipt json.RawMessage `json:"receipt"`
}

// Kinds of error that a caller may test for, near and far. Any other is a
// failure.
var (
	ErrBadRequest = errors.New("bad request")     // about a call's own arguments
	ErrRefused    = errors.New("refused")         // to protect something
	ErrNotFound   = errors.New("not found")       //
	ErrUnhealthy  = errors.New("found unhealthy") // the work was done, and what it looked at is not well
)

// Kind is the kind of an error as one word that travels, "" for a failure.
func Kind(err error) string {
	for _, k := range kinds {
		for _, is := range k.errs {
			if errors.Is(err, is) {
				return k.word
			}
		}
	}
	return ""
}

// OfKind gives an error that came as text its kind back.
func OfKind(word, text string) error {
	for _, k := range kinds {
		if k.word == word {
			return &kindError{k.errs[0], text}
		}
	}
	return errors.New(text)
}

var kinds = []struct {
	word string
	errs []error // the first is the kind itself
}{
	{"BAD_REQUEST", []error{ErrBadRequest, backup.ErrEncrypted}},
	{"REFUSED", []error{ErrRefused, store.ErrRunning, relay.ErrDetached, backup.ErrExists, backup.ErrRefused}},
	{"NOT_FOUND", []error{ErrNotFound, jobs.ErrNoJob, jobs.ErrNoRun, fs.ErrNotExist}},
	{"UNHEALTHY", []error{ErrUnhealthy, backup.ErrBad}},
}

// kindError is an error whose text says all there is.
type kindError struct {
	kind error
	text string
}

func (e *kindError) Error() string { return e.text }
func (e *kindError) Unwrap() error { return e.kind }
