package host

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// A relay that went back in time is noticed wherever it shows, with one
// consequence: the position goes back to 0, what nobody confirmed is pushed
// again, and nothing is lost or doubled.
func TestTimeTravelIsSeenEverywhere(t *testing.T) {
	const badAck = `{"error":"through is no sequence number of this queue","code":"BAD_ACK","head_seq":1}`
	for _, c := range []struct {
		name         string
		method, path string
		act          func(w *world) func(http.ResponseWriter, *http.Request, http.Handler)
		lostAck      bool // the one before
		rewind       bool
	}{
		{name: "a push answer", method: "POST", path: itemsPath, act: rotatesFirst},
		{name: "a pull's 409", method: "GET", path: itemsPath, act: rotatesFirst},
		{name: "an ack's 409", method: "POST", path: ackPath, act: rotatesFirst},
		{name: "an ack's BAD_ACK", method: "POST", path: ackPath, rewind: true,
			act: func(*world) func(http.ResponseWriter, *http.Request, http.Handler) { return refusing(400, badAck) }},
		{name: "a repeated ack's 409", method: "POST", path: ackPath, lostAck: true, act: rotatesFirst},
		{name: "a repeated ack's BAD_ACK", method: "POST", path: ackPath, lostAck: true, rewind: true,
			act: func(*world) func(http.ResponseWriter, *http.Request, http.Handler) { return refusing(400, badAck) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			beta.tick()
			alpha.tick()
			m1 := alpha.sendByRelay(beta, "m1") // delivered, not confirmed
			same(t, "m1 received", beta.relayOnly().Received, 1)
			hold := func(h *testHost, until int64) { h.sql("UPDATE receipts_out SET next_at = ?", until) }
			hold(beta, w.clock().Add(time.Minute).UnixMilli())
			beta.sendByRelay(alpha, "b1")
			if c.lostAck {
				w.relay.on("POST", ackPath, requestLost)
			}
			same(t, "b1 received", alpha.relayOnly().Received, 1)
			hold(alpha, w.clock().Add(time.Minute).UnixMilli())
			w.relay.intercept(nil)
			beta.sendByRelay(alpha, "b2")
			alpha.send(beta, "m2")
			alpha.lanFailedTwice()
			epoch := alpha.relayRow().epoch

			done := false
			act := c.act(w)
			w.relay.on(c.method, c.path, func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
				if done {
					relay.ServeHTTP(out, in)
					return
				}
				done = true
				act(out, in, relay)
			})
			r := alpha.relayOnly()
			w.relay.intercept(nil)
			same(t, "m2 accepted", r.Accepted, 1)
			same(t, "m1 state", alpha.sentState(m1), "repush")
			same(t, "m1 row", ask[string](alpha, "SELECT state FROM outbox WHERE msg = ?", m1), "repush")
			same(t, "m1 due", ask[int64](alpha, "SELECT next_at <= ? FROM outbox WHERE msg = ?", w.now.Load(), m1), 1)
			changed, rewound := 1, 0
			if c.rewind {
				changed, rewound = 0, 1
			} else {
				same(t, "position", alpha.relayRow().position, 0)
			}
			same(t, "epoch changes", alpha.audited("relay.epoch_changed"), changed)
			same(t, "rewinds", alpha.audited("relay.rewind"), rewound)
			same(t, "another epoch", alpha.relayRow().epoch != epoch, !c.rewind)

			hold(alpha, w.now.Load())
			hold(beta, w.now.Load())
			for range 4 {
				alpha.tick()
				beta.tick()
			}
			same(t, "alpha's inbox", alpha.inbox(), 2)
			same(t, "beta's inbox", beta.inbox(), 2)
			same(t, "alpha's position", alpha.relayRow().position >= 2, true)
			same(t, "settled", ask[int64](alpha, "SELECT count(*) FROM relay_sent WHERE state = 'settled'"), 2)
			same(t, "outbox", alpha.outbox(), 0)
			same(t, "relay holds", w.relay.queued(alpha)+w.relay.queued(beta), 0)
			same(t, "later epoch changes", alpha.audited("relay.epoch_changed"), changed)
			same(t, "later rewinds", alpha.audited("relay.rewind"), rewound)
		})
	}
}

// rotatesFirst gives the relay a new epoch before it hears the call.
func rotatesFirst(w *world) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		w.relay.newEpoch()
		relay.ServeHTTP(out, in)
	}
}

// After its own rotation a host's items have other sequence numbers: it reads
// its queue from the start.
func TestOwnRotationStartsTheQueueOver(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.sendByRelay(beta, "one")
	alpha.sendByRelay(beta, "two")
	same(t, "received before", beta.relayOnly().Received, 2)
	same(t, "position before", beta.relayRow().position, 2)
	alpha.sendByRelay(beta, "three")

	must(beta.RotateKey(context.Background()))
	r := beta.relayOnly()
	same(t, "received after", r.Received, 1)
	same(t, "position after", beta.relayRow().position, 1)
	same(t, "audit", beta.audited("relay.rotated"), 1)
	same(t, "taken for a rewind", beta.audited("relay.rewind")+beta.audited("relay.epoch_changed"), 0)
	same(t, "inbox", beta.inbox(), 3)
	same(t, "relay holds", w.relay.queued(beta), 0)
}

// A place in a queue is not for ever one item's: after a rotation, or a rewind,
// another one may have its sequence number. Both stay in quarantine.
func TestQuarantineOfTwoItemsAtOnePlace(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	wrong := must(wire.GenerateEncKey()).Public()
	alpha.sql("UPDATE peers SET enc_key = ?", wrong[:])
	alpha.sendByRelay(beta, "one")
	same(t, "quarantined before", beta.relayOnly().Quarantined, 1)
	alpha.sendByRelay(beta, "two")

	must(beta.RotateKey(context.Background()))
	same(t, "quarantined after", beta.relayOnly().Quarantined, 1)
	list := must(beta.Quarantine(context.Background(), 0, 10))
	same(t, "in quarantine", len(list), 2)
	same(t, "at the same place", list[0].Seq == list[len(list)-1].Seq, true)

}

// An item that is read again, because its position or its ack was lost, is in
// quarantine once.
func TestQuarantineOfOneItemReadTwice(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	wrong := must(wire.GenerateEncKey()).Public()
	alpha.sql("UPDATE peers SET enc_key = ?", wrong[:])
	alpha.sendByRelay(beta, "one")
	w.relay.on("POST", ackPath, requestLost)
	for range 3 {
		beta.relayOnly()
		beta.sql("UPDATE relays SET position = 0, acked = 0")
	}
	same(t, "in quarantine", beta.count("quarantine"), 1)
}

// What a relay can't take now (its disk is full, it is over a rate) keeps no
// host from what it holds: fetching is what makes room there.
func TestRelayThatTakesNothingStillGives(t *testing.T) {
	for _, status := range []int{503, 500, 413, 429} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			alpha.tick()
			beta.tick()
			beta.sendByRelay(alpha, "for alpha")
			alpha.send(beta, "for beta")
			alpha.lanFailedTwice()

			w.relay.on("POST", itemsPath, refusing(status, `{"error":"the relay's disk is full; try again later","code":"STORE_FULL"}`))
			r := alpha.relayOnly()
			same(t, "accepted", r.Accepted, 0)
			same(t, "failed", r.Failed, 1)
			same(t, "state", r.State, relayUnavailable)
			same(t, "received", r.Received, 1)
			same(t, "relay holds", w.relay.queued(alpha), 0)
			same(t, "outbox", alpha.outbox(), 1)

			w.relay.intercept(nil)
			same(t, "accepted later", alpha.relayOnly().Accepted, 1)
		})
	}
}
