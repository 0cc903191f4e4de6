package relay

import (
	"context"
	"encoding/json"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// EnrolmentAuthority decides whether a host key may enrol (seed 000 §8). The
// relay has already checked that the host holds the key and answered its
// challenge. An error means that it could not decide; the host is refused.
// Safe for concurrent use.
type EnrolmentAuthority interface {
	Authorize(ctx context.Context, a Applicant) (Grant, error)
}

// Applicant is a host that asks to enrol.
type Applicant struct {
	Name      string
	Key       wire.PublicKey
	OwnerFP   string
	Challenge string
	Proof     json.RawMessage // as sent, or nil
}

// Grant is an authority's answer. Account and Org are what it can prove; they
// are stored with the enrolment and decide quotas and name uniqueness.
type Grant struct {
	OK      bool
	By      string // the authority's name
	Account string
	Org     string
	Reason  string // of a refusal, for the host's owner
}
