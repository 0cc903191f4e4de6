// Package admin is what an operator may see and do, for the command line, the
// terminal screens and the socket alike.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay"
)

// Service is the operator's desk. What changes something is one transaction,
// and is written to the relay log with who did it and why.
type Service interface {
	Status(ctx context.Context) (relay.Status, error)
	Log(ctx context.Context, f LogFilter) ([]LogEntry, error)
	RotateEpoch(ctx context.Context, a Action) (epoch string, err error)
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

// ErrBadRequest is wrapped by errors about a call's own arguments.
var ErrBadRequest = errors.New("bad request")

// Local is the Service in the process that has the store.
type Local struct{ Relay *relay.Relay }

var _ Service = Local{}

// Status answers from counters.
func (l Local) Status(ctx context.Context) (relay.Status, error) { return l.Relay.Status(ctx) }

// Log lists the relay log, newest first.
func (l Local) Log(ctx context.Context, f LogFilter) ([]LogEntry, error) {
	if f.Limit < 1 || f.Limit > MaxLog {
		return nil, fmt.Errorf("%w: limit: want 1 to %d", ErrBadRequest, MaxLog)
	}
	ops, err := l.Relay.Log(ctx, f.Op, f.Limit)
	if err != nil {
		return nil, err
	}
	entries := make([]LogEntry, len(ops))
	for i, o := range ops {
		entries[i] = LogEntry{ID: o.ID, At: o.At, Op: o.Op, Receipt: o.Receipt}
	}
	return entries, nil
}

// RotateEpoch gives the store a new epoch.
func (l Local) RotateEpoch(ctx context.Context, a Action) (string, error) {
	if strings.TrimSpace(a.Actor) == "" || len(a.Actor) > 200 || len(a.Reason) > 1000 {
		return "", fmt.Errorf("%w: want an actor of at most 200 and a reason of at most 1000 bytes", ErrBadRequest)
	}
	return l.Relay.RotateEpoch(ctx, a.Actor, a.Reason)
}
