package relay_test

import (
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// A full disk refuses new mail and new hosts, and nothing else; it ends without
// a restart.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), wiretest.NewHost("gamma")
	known := mail(alpha, beta)
	r.pushed(alpha, known, "accepted")
	r.full.Store(true)

	_, err := r.relay.Push(t.Context(), r.caller(alpha), []wire.PushItem{known, mail(alpha, beta)})
	refused(t, "push", err, relay.Unavailable, "STORE_FULL")
	_, err = r.relay.PushV1(t.Context(), r.caller(alpha), [][]byte{wireOf(mail(alpha, beta))})
	refused(t, "v1 push", err, relay.Unavailable, "STORE_FULL")
	refused(t, "a new host", r.tryEnrol(gamma, ""), relay.Unavailable, "STORE_FULL")
	s, err := r.relay.Status(t.Context())
	ok(t, "status", err)
	same(t, "problems", len(s.Problems), 1)

	r.pushed(alpha, known, "duplicate")
	ok(t, "a known host", r.tryEnrol(alpha, "again"))
	same(t, "pull", seqs(r.pull(beta, relay.PullQuery{}).Items), "1:"+known.ID)
	next := r.rotated(beta)
	same(t, "ack", r.ack(next, 1).Deleted, 1)
	ok(t, "list", r.publish(next, t0, alpha))
	ok(t, "beat", r.relay.Beat(t.Context()))

	r.full.Store(false)
	r.pushed(alpha, mail(alpha, next), "accepted")
	ok(t, "a new host, later", r.tryEnrol(gamma, ""))
}

// Expiry makes room on a full disk, and still tells the sender.
func TestSweepOfAFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	r.full.Store(true)
	r.clock.Add(14 * day)
	s := r.sweep()
	same(t, "expired", s.Expired, relay.ExpiredCounts{Envelopes: 1})
	same(t, "queues", r.queued(beta)+" "+r.queued(alpha), " 1:expired:"+it.ID+":"+beta.Pub().String())
}
