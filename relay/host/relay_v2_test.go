package host

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestD1_MailOverTheRelayEndToEnd(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick() // enrols
	msg := alpha.send(beta, "hello")

	same(t, "(a) a fresh row stays: accepted", alpha.relayOnly().Accepted, 0)
	same(t, "(a) outbox", alpha.outbox(), 1)

	alpha.lanFailedTwice()
	same(t, "(b) accepted", alpha.relayOnly().Accepted, 1)
	same(t, "(b) outbox", alpha.outbox(), 0)
	same(t, "(b) state", alpha.sentState(msg), "relay-accepted")

	r := beta.tick()
	same(t, "(c) received", r.Relay.Received, 1)
	same(t, "(c) inbox", beta.inbox(), 1)
	same(t, "(c) queue after the ack", w.relay.queued(beta), 0)

	same(t, "(d) receipts over the relay", beta.tick().Relay.ReceiptsSent, 1)

	r = alpha.tick()
	same(t, "(e) receipts applied", r.Relay.Receipts, 1)
	same(t, "(e) confirmations", ask[int64](alpha, "SELECT count(*) FROM confirmations"), 1)
	same(t, "(e) state", alpha.sentState(msg), "settled")
	same(t, "(e) unconfirmed", r.Unconfirmed, 0)
	same(t, "(e) bytes kept", ask[int64](alpha, "SELECT count(*) FROM wires"), 0)
}

func TestD2_PushAnswerLostAfterTheCommit(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()

	w.relay.on("POST", itemsPath, answerLost)
	same(t, "accepted", alpha.relayOnly().Accepted, 0)
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "bytes stored", alpha.count("wires"), 1)
	same(t, "relay holds", w.relay.queued(beta), 1)
	hash := ask[string](alpha, "SELECT hash FROM wires WHERE msg = ?", msg)

	w.relay.intercept(nil)
	same(t, "retry accepted", alpha.relayOnly().Accepted, 1)
	same(t, "hash", ask[string](alpha, "SELECT hash FROM relay_sent WHERE msg = ?", msg), hash)
	same(t, "outbox after the retry", alpha.outbox(), 0)
	same(t, "relay holds after the retry", w.relay.queued(beta), 1)
	same(t, "received", beta.tick().Relay.Received, 1)
}

func TestD3_AcceptThatDoesNotHoldAndRefusal(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()

	w.relay.on("POST", itemsPath, lying(func(r *pushAnswered, a wire.Accept) {
		r.Accept = []byte(strings.ReplaceAll(string(r.Accept), a.Targets[0].WireHash, wire.HashHex([]byte("other bytes"))))
	}))
	same(t, "(a) accepted", alpha.relayOnly().Accepted, 0)
	same(t, "(a) outbox", alpha.outbox(), 1)
	same(t, "(a) relay_sent", alpha.count("relay_sent"), 0)

	w.relay.intercept(nil)
	must(w.relay.relay.RevokeHost(context.Background(), beta.Key(), relay.Deed{Actor: "test"}))
	r := alpha.relayOnly()
	same(t, "(b) accepted", r.Accepted, 0)
	same(t, "(b) rejected", r.Rejected, 1)
	same(t, "(b) outbox", alpha.outbox(), 1)
	same(t, "(b) audit", alpha.audited("relay.push_rejected"), 1)
	hasPart(t, "(b) reason", alpha.rowError(msg), "target not enrolled")
}

func TestD4_AnotherRelayKeyIsPinned(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	other := must(wire.GenerateKey()).Public()
	alpha.sql("UPDATE relays SET key = ?", other[:])
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()

	for range 2 {
		same(t, "state", alpha.relayOnly().State, relayMismatch)
		same(t, "a session", alpha.sessionNow() != nil, false)
	}
	same(t, "audit, once", alpha.audited("relay.key_changed"), 1)
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "relay holds", w.relay.queued(beta), 0)
}

func TestD5_RowsThatAreNotForTheRelayYet(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.send(beta, "hello")
	for _, c := range []struct {
		name     string
		attempts int
		in       time.Duration
		accepted int
	}{
		{"one attempt, due", 1, -time.Second, 0},
		{"five attempts, due in 60 s", 5, time.Minute, 0},
		{"two attempts, due in a millisecond", 2, time.Millisecond, 0},
		{"two attempts, due now", 2, 0, 1},
	} {
		alpha.sql("UPDATE outbox SET attempts = ?, next_at = ?", c.attempts, w.clock().Add(c.in).UnixMilli())
		same(t, c.name+": pushed", alpha.relayOnly().Accepted, c.accepted)
		same(t, c.name+": relay holds", w.relay.queued(beta), c.accepted)
	}
}

func TestD6_BadItemAndLostAck(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.sendByRelay(beta, "good")
	wrong := must(wire.GenerateEncKey()).Public()
	alpha.sql("UPDATE peers SET enc_key = ?", wrong[:])
	alpha.sendByRelay(beta, "sealed for another key")

	w.relay.on("POST", ackPath, requestLost)
	r := beta.relayOnly()
	same(t, "(a) accepted", r.Received, 1)
	same(t, "(a) quarantined", r.Quarantined, 1)
	same(t, "(a) quarantine", beta.count("quarantine"), 1)
	same(t, "(a) reason", beta.reason(), "rejected:undecryptable body")
	same(t, "(b) position", beta.relayRow().position, 2)
	same(t, "(c) relay holds", w.relay.queued(beta), 2)

	w.relay.intercept(nil)
	r = beta.relayOnly()
	same(t, "(d) relay holds", w.relay.queued(beta), 0)
	same(t, "(d) received", r.Received+r.Duplicates+r.Quarantined, 0)
	same(t, "(d) acked", beta.relayRow().acked, 2)
	same(t, "(d) inbox", beta.inbox(), 1)
}

func TestD7_RelayStoreEmptiedInANewEpoch(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.sendByRelay(beta, "hello")
	same(t, "delivered", beta.receiveSilently().Received, 1)
	same(t, "acked", w.relay.queued(beta), 0)
	hash := ask[string](alpha, "SELECT hash FROM wires")

	w.relay.wipe()
	same(t, "pushed in the pass that notices", alpha.relayOnly().Accepted, 0)
	same(t, "(a) outbox", alpha.outbox(), 1)
	same(t, "(a) row", ask[string](alpha, "SELECT state FROM outbox WHERE msg = ?", msg), "repush")
	same(t, "(a) state", alpha.sentState(msg), "repush")

	r := beta.tick() // enrols again
	same(t, "received from the empty store", r.Relay.Received, 0)
	same(t, "(b) re-push accepted", alpha.relayOnly().Accepted, 1)
	same(t, "(b) state", alpha.sentState(msg), "relay-accepted")
	same(t, "(b) same bytes", ask[string](alpha, "SELECT hash FROM relay_sent"), hash)

	r = beta.tick()
	same(t, "(c) accepted", r.Relay.Received, 0)
	same(t, "(c) duplicates", r.Relay.Duplicates, 1)
	same(t, "(c) inbox", beta.inbox(), 1)
	same(t, "(c) audit at beta", beta.audited("relay.epoch_changed"), 1)
	same(t, "(c) audit at alpha", alpha.audited("relay.epoch_changed"), 1)

	// The duplicate made beta confirm once more.
	same(t, "receipts", beta.tick().Relay.ReceiptsSent, 1)
	alpha.tick()
	same(t, "state", alpha.sentState(msg), "settled")
}

func TestD8_PositionAboveTheHead(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.sendByRelay(beta, "one")
	alpha.sendByRelay(beta, "two")
	same(t, "received", beta.relayOnly().Received, 2)
	head := beta.relayRow().position
	beta.sql("UPDATE relays SET position = ?", head+50)

	alpha.sendByRelay(beta, "three")
	same(t, "the new item", beta.relayOnly().Received, 1)
	same(t, "messages", beta.inbox(), 3)
	same(t, "rewinds", beta.audited("relay.rewind"), 1)
	same(t, "position", beta.relayRow().position, head+1)
	same(t, "relay holds", w.relay.queued(beta), 0)
}

func TestD9_DeadlineWithoutAnyNotice(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	sent := w.clock()
	msg := alpha.sendByRelay(beta, "hello")
	deadline := time.UnixMilli(ask[int64](alpha, "SELECT deadline FROM relay_sent"))
	if least := sent.Add(14*day + 24*time.Hour - time.Minute); deadline.Before(least) {
		t.Errorf("deadline: got %s; want at least %s", deadline, least)
	}

	w.now.Store(deadline.UnixMilli() - 1)
	same(t, "1 ms before: unconfirmed", alpha.tick().Unconfirmed, 0)
	same(t, "1 ms before: alerts", len(alpha.alerts("builder")), 0)
	same(t, "1 ms before: state", alpha.sentState(msg), "relay-accepted")

	w.now.Store(deadline.UnixMilli() + 1)
	same(t, "1 ms after: unconfirmed", alpha.tick().Unconfirmed, 1)
	same(t, "1 ms after: state", alpha.sentState(msg), "unconfirmed")
	same(t, "1 ms after: bytes kept", alpha.count("wires"), 0)
	same(t, "alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered/unconfirmed to beta: hello")
	hasPart(t, "alert", alpha.alertText("builder"), "older than 0.5.3")

	for range 3 {
		w.pass(day)
		same(t, "later: unconfirmed", alpha.tick().Unconfirmed, 0)
	}
	same(t, "later: alerts", len(alpha.alerts("builder")), 1)
}

// A host that has confirmed mail before is no older one: what it does not
// confirm may be lost, and the alert says so.
func TestD9_DeadlineOfAHostThatConfirms(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.sendByRelay(beta, "confirmed")
	beta.tick()
	beta.tick()
	alpha.tick()
	alpha.sendByRelay(beta, "never fetched")

	w.pass(15*24*time.Hour + time.Millisecond)
	same(t, "unconfirmed", alpha.tick().Unconfirmed, 1)
	same(t, "alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered/unconfirmed to beta: never fetched")
	hasPart(t, "alert", alpha.alertText("builder"), "may be lost")
	if text := alpha.alertText("builder"); strings.Contains(text, "0.5.3") {
		t.Errorf("alert: got %q; want nothing about an older peer", text)
	}
}

func TestD10_RelayWithoutV2(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.tick() // pins the relay's key
	beta.tick()
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	fresh := w.host("fresh")

	w.relay.on("GET", infoPath, refusing(404, `{"error":"not found"}`))
	same(t, "a pinned relay: state", alpha.relayOnly().State, relayUnavailable)
	same(t, "a pinned relay: a session", alpha.sessionNow() != nil, false)
	same(t, "a pinned relay: outbox", alpha.outbox(), 1)
	same(t, "a pinned relay: holds", w.relay.queued(beta), 0)

	same(t, "an unknown relay: state", fresh.relayOnly().State, relayV1)
	same(t, "an unknown relay: v1", fresh.sessionNow().v1, true)
	same(t, "an unknown relay: pinned", fresh.relayRow().key.IsZero(), true)
}

func TestD12_SenderList(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	pair(alpha, beta, false)
	beta.tick()
	var list store.SenderList
	noError(t, w.relay.store.View(context.Background(), func(v store.Reader) (err error) {
		list, err = v.SenderList(beta.Key())
		return err
	}))
	same(t, "senders", len(list.Senders), 1)
	same(t, "the sender", list.Senders[0], alpha.Key())

	gamma.pin(beta, deadAddr)
	msg := gamma.send(beta, "from a stranger")
	gamma.lanFailedTwice()
	r := gamma.relayOnly()
	same(t, "enrolled", r.State, relayOK)
	same(t, "rejected", r.Rejected, 1)
	hasPart(t, "reason", gamma.rowError(msg), "sender not accepted by target")
	same(t, "outbox", gamma.outbox(), 1)
	same(t, "relay holds", w.relay.queued(beta), 0)
}
