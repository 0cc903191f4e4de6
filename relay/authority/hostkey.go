// Package authority holds the relay's enrolment authorities.
package authority

import (
	"context"

	"github.com/agentmbx/agentmbx/relay"
)

// HostKey lets every host enrol that holds its key, and proves nothing about
// whose it is: the authority of a relay of one's own (seed 000 §8).
type HostKey struct{}

var _ relay.EnrolmentAuthority = HostKey{}

// Authorize grants without an account.
func (HostKey) Authorize(context.Context, relay.Applicant) (relay.Grant, error) {
	return relay.Grant{OK: true, By: "host-key-challenge"}, nil
}
