package host

import (
	"context"
	"fmt"
	"testing"
)

// A peer that goes takes its mail off the way, and every sender hears of it.
func TestRemovedPeerLeavesNothingWaiting(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	held := alpha.send(beta, "held")
	alpha.lanFailedTwice()
	same(t, "accepted", alpha.tick().Relay.Accepted, 1)
	for i := range maxAlerts + 1 {
		alpha.send(beta, fmt.Sprint("waiting ", i))
	}
	n, err := alpha.RemovePeer(context.Background(), "beta")
	noError(t, err)
	same(t, "undelivered", n, maxAlerts+1)
	same(t, "outbox", alpha.outbox(), 0)
	same(t, "held: state", alpha.sentState(held), "unconfirmed")
	same(t, "bytes kept", ask[int64](alpha, "SELECT count(*) FROM wires"), 0)
	alerts := alpha.alerts("builder")
	same(t, "alerts", len(alerts), 2)
	same(t, "about what waited", alerts[0], fmt.Sprintf("Undelivered to beta: %d messages", maxAlerts+1))
	same(t, "about what a relay holds", alerts[1], "Undelivered/unconfirmed to beta: 1 message")

	w.relay.wipe() // another epoch
	alpha.tick()
	same(t, "outbox after another epoch", alpha.outbox(), 0)
}
