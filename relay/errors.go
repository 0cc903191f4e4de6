package relay

import (
	"errors"

	"github.com/agentmbx/agentmbx/relay/store"
)

// Kind says what sort of refusal an Error is; a transport maps it to its own.
type Kind int

// Kinds of refusal.
const (
	BadRequest   Kind = iota // the request is malformed
	Unauthorized             // no valid proof of who asks
	Forbidden                // known, and refused
	NotFound
	Conflict    // the state is another one
	TooMany     // over a rate
	Unavailable // no capacity now; worth a retry
)

// Error is a refusal with a stable code. Text is for people.
type Error struct {
	Kind Kind
	Code string
	Text string
	// Reason says more exactly what a code that the protocol fixes is about; stable,
	// too. Mostly "".
	Reason string
	// At is set where the caller must learn where the store stands.
	At *Position
}

// Position is where a target's queue stands in an epoch.
type Position struct {
	Epoch string
	Head  int64
}

func (e *Error) Error() string { return e.Text }

func refuse(k Kind, code, text string) *Error { return &Error{Kind: k, Code: code, Text: text} }

// storeError turns what a store answers into a refusal where it is one.
func storeError(err error) error {
	switch {
	case errors.Is(err, store.ErrFull):
		return refuse(Unavailable, "STORE_FULL", "the relay's disk is full; try again later")
	case errors.Is(err, store.ErrUnknownOutcome):
		return refuse(Unavailable, "UNKNOWN_OUTCOME", "the relay cannot tell whether this was stored; send it again")
	case errors.Is(err, store.ErrGone):
		return refuse(Unavailable, "STORE_GONE", "the relay has lost its store; try again later")
	case errors.Is(err, store.ErrClosed):
		return refuse(Unavailable, "STOPPING", "the relay is stopping; try again later")
	}
	return err
}
