package relay

import (
	"context"
	"encoding/json"
	"time"

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
	OK          bool
	By          string // the authority's name
	Account     string
	Org         string
	ClientID    string    // of the account's credential; denials may name it
	SessionEnds time.Time // when the host must enrol again; zero: never
	Code        string    // of a refusal, stable
	Reason      string    // of a refusal, for the host's owner
}

// Issuer vouches for the accounts of a hosted relay. A relay that has one serves
// only hosts that have a session: whose enrolment it granted, until that ends.
type Issuer interface {
	EnrolmentAuthority
	// VerifyDenials reads a deny list of the issuer's, a signed token. An *Error is
	// what is wrong with it.
	VerifyDenials(ctx context.Context, token string) (DenyList, error)
}

// DenyList is what an issuer's deny token says.
type DenyList struct {
	ID      string // its jti
	IAT     time.Time
	Expires time.Time
	Deny    []DenyEntry
}

// DenyEntry refuses whoever is all that it names.
type DenyEntry struct {
	HostFP   string    // as wire writes fingerprints, or "" for any
	ClientID string    // or "" for any
	Reason   string    //
	Until    time.Time // zero: until an operator removes it
}

// LongestSession is how long a session may last: the longest life of an account's
// token. Whoever is denied stays so for longer.
const LongestSession = 15 * time.Minute

// IssuerState tells how the keys of an issuer stand, for the operator.
type IssuerState struct {
	Issuer    string    `json:"issuer"`
	URL       string    `json:"jwks_url"`
	Keys      []string  `json:"keys"`                // key ids, as the issuer names them
	FetchedAt time.Time `json:"fetched_at,omitzero"` // the last good answer
	Usable    bool      `json:"usable"`              // false: new enrolments are refused
	Trouble   string    `json:"trouble,omitempty"`   // what was wrong with the last answer
	TroubleAt time.Time `json:"trouble_at,omitzero"` // since when
}
