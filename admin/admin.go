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
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Service is the operator's desk. What changes something is one transaction,
// and is written to the relay log with who did it and why. Lists come in pages
// that cost the same in any store. No call answers the body of an item.
type Service interface {
	Status(ctx context.Context) (Status, error)
	Overview(ctx context.Context) (Overview, error)
	// Log lists lines of the relay log, newest first. One that is shorter than asked
	// need not be the end: an answer ends once its receipts hold over MaxLogBytes.
	// One without lines is. See LogPage.
	Log(ctx context.Context, f LogFilter) ([]LogEntry, error)
	RotateEpoch(ctx context.Context, a Action) (epoch string, err error)

	Queues(ctx context.Context, f QueueFilter) (Page[Queue], error)
	Shares(ctx context.Context, f ShareFilter) (Page[Share], error)
	Items(ctx context.Context, f ItemFilter) (Page[Item], error)
	// Item finds an item, queued or held, by where it stands; ID may be "".
	Item(ctx context.Context, ref relay.ItemRef) (Item, error)
	Enrolments(ctx context.Context, f EnrolmentFilter) (Page[Enrolment], error)
	Enrolment(ctx context.Context, key wire.PublicKey) (Enrolment, error)
	// Resolve lists who a person may mean by a text: a key, a fingerprint or a
	// name; live hosts first, at most MaxResolved.
	Resolve(ctx context.Context, text string) ([]Enrolment, error)
	SenderLists(ctx context.Context, p Paging) (Page[SenderList], error)
	SenderList(ctx context.Context, key wire.PublicKey) (SenderList, error)
	Denials(ctx context.Context, f DenialFilter) (Page[Denial], error)
	Quarantine(ctx context.Context, f QuarantineFilter) (Page[Quarantined], error)

	// Hold takes queued items out of their queues; Release puts held ones back at
	// the tail; Discard drops held ones and tells their senders. Hold, Discard,
	// Revoke, Block and Deny want a reason.
	Hold(ctx context.Context, a ItemAction) (ItemResult, error)
	Release(ctx context.Context, a ItemAction) (ItemResult, error)
	Discard(ctx context.Context, a ItemAction) (ItemResult, error)
	// Dismiss takes refused pushes out of the quarantine's sample.
	Dismiss(ctx context.Context, a DismissAction) (DismissResult, error)
	// Revoke ends an enrolment for ever. Block refuses a host for a time; Deny
	// refuses whoever is all that it names, a host's fingerprint or an account's
	// credential; Unblock removes a denial.
	Revoke(ctx context.Context, a HostAction) (HostResult, error)
	Block(ctx context.Context, a BlockAction) (HostResult, error)
	Deny(ctx context.Context, a DenyAction) (DenyResult, error)
	Unblock(ctx context.Context, a UnblockAction) (Denial, error)

	// Jobs lists the jobs and how each stands, Runs the runs, newest first.
	Jobs(ctx context.Context) ([]jobs.State, error)
	Runs(ctx context.Context, f RunFilter) ([]jobs.Run, error)
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
	Op     string `json:"op,omitempty"`     // a kind, or "" for all
	Text   string `json:"text,omitempty"`   // part of the kind or of the receipt as it stands there, without case; the last MaxLook lines are looked at
	Before int64  `json:"before,omitempty"` // only those with a lower id; 0 from the newest
	Limit  int    `json:"limit,omitempty"`  // 1 to MaxLog
}

// RunFilter selects runs of jobs.
type RunFilter struct {
	Job    string `json:"job,omitempty"`    // "" means all
	Before int64  `json:"before,omitempty"` // only those with a lower id; 0 from the newest
	Limit  int    `json:"limit,omitempty"`  // 1 to MaxLog
}

// MaxResolved is the most hosts that Resolve answers.
const MaxResolved = 20

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
	{"BAD_REQUEST", []error{ErrBadRequest, relay.ErrBadDeed, backup.ErrEncrypted}},
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
