package host

import "testing"

// A row goes to the relay once its host's address is known to reach nobody
// (seed 000 §10). On a host whose LAN is switched off that holds for every
// address, so neither mail nor receipts wait for attempts that can't be made.
func TestLANOffGivesMailToTheRelayAtOnce(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true) // each knows where the other is served
	alpha.SwitchLANOff()
	beta.SwitchLANOff()
	beta.tick() // enrols

	msg := alpha.send(beta, "hello")
	r := alpha.tick()
	same(t, "accepted", r.Relay.Accepted, 1)
	same(t, "over the LAN", r.LAN, LANReport{})
	same(t, "outbox", alpha.outbox(), 0)
	same(t, "state", alpha.sentState(msg), "relay-accepted")

	same(t, "received", beta.tick().Relay.Received, 1)
	same(t, "receipts of what came over the relay", beta.tick().Relay.ReceiptsSent, 1)
	same(t, "receipts applied", alpha.tick().Relay.Receipts, 1)
	same(t, "state", alpha.sentState(msg), "settled")

	// The receipt of mail that came over the LAN, before it was switched off.
	alpha.lanOff = false
	msg = alpha.send(beta, "over the LAN")
	beta.lanOff = false
	same(t, "handed over", alpha.tick().LAN.Sent, 1)
	beta.SwitchLANOff()
	alpha.SwitchLANOff()
	r = beta.tick()
	same(t, "receipts given to the relay", r.Relay.ReceiptsSent, 1)
	same(t, "receipts over the LAN", r.Receipts, ReceiptReport{})
	same(t, "receipts applied", alpha.tick().Relay.Receipts, 1)
	same(t, "confirmations", ask[int64](alpha, "SELECT count(*) FROM confirmations WHERE msg = ?", msg), 1)
}

// With the LAN off a row that the relay could not take waits under the same
// backoff as any other, and goes when that is over.
func TestLANOffKeepsTheBackoff(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	alpha.SwitchLANOff()
	beta.tick()

	w.relay.stop()
	alpha.send(beta, "hello")
	same(t, "failed attempts", alpha.tick().LAN.Failed, 1)
	w.relay.start()
	same(t, "accepted before its time", alpha.tick().Relay.Accepted, 0)
	w.pass(firstBackoff)
	same(t, "accepted at its time", alpha.tick().Relay.Accepted, 1)
}
