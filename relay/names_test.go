package relay_test

import (
	"encoding/binary"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// A hundred thousand hosts of one name, which is all a relay takes: the name
// authenticates and resolves to nobody, keys go on working, a new key is told
// that there is no room, a known one enrols again.
func TestHundredThousandOfOneName(t *testing.T) {
	t.Parallel()
	if raceDetector {
		t.Skip("100,000 rows from one goroutine: half a minute of nothing to detect")
	}
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	want := int(r.setup.Limits.Enrolments)
	for n := 2; n < want; {
		ok(t, "enrol a thousand", r.store.Update(t.Context(), func(tx store.Tx) error {
			for end := min(n+1000, want); n < end; n++ {
				var key wire.PublicKey
				binary.BigEndian.PutUint64(key[:], uint64(n))
				e := store.Enrolment{Key: key, Name: "Beta", AuthorizedBy: "host-key-challenge", EnrolledAt: t0}
				if err := tx.PutEnrolment(e); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	res, err := r.relay.PushV1(t.Context(), r.caller(alpha), [][]byte{wireOf(mail(alpha, beta))})
	ok(t, "v1 push", err)
	same(t, "v1 push by name", res.Error, "recipient host ambiguous")
	r.pushed(alpha, mail(alpha, beta), "accepted")
	if err := r.tryEnrol(alpha, ""); err != nil {
		t.Errorf("a known key: got %v; want it to enrol again", err)
	}
	refused(t, "a new key", r.tryEnrol(wiretest.NewHost("gamma"), ""), relay.Unavailable, "FULL")
}
