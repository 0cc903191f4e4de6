package host

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
)

// Several recipients on one host are one item with one target, and one delivery each.
func TestOneItemForSeveralRecipientsOnAHost(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	to := []string{"reviewer@beta", "tester@beta", "reviewer@BETA", "reviewer@beta"}
	s := must(alpha.Send(context.Background(), Draft{From: "builder", To: to, Subject: "both"}))
	same(t, "outbox", alpha.outbox(), 1)
	alpha.lanFailedTwice()
	pushed := w.relay.pushes()
	same(t, "accepted", alpha.relayOnly().Accepted, 1)
	same(t, "items", len(pushed()), 1)
	same(t, "targets", strings.Join(pushed()[s.ID], " "), beta.Key().String())
	same(t, "relay holds", w.relay.queued(beta), 1)

	same(t, "received", beta.tick().Relay.Received, 1)
	same(t, "deliveries", ask[string](beta, "SELECT group_concat(mailbox, ' ') FROM (SELECT mailbox FROM deliveries WHERE msg = ? ORDER BY mailbox)", s.ID), "reviewer tester")
	same(t, "receipts", beta.tick().Relay.ReceiptsSent, 2)
	same(t, "receipts applied", alpha.tick().Relay.Receipts, 2)
	same(t, "state", alpha.sentState(s.ID), "settled")
	same(t, "confirmations", alpha.count("confirmations"), 2)
}

// Whatever mail is for, a relay sees host keys that this host has pinned.
func TestRelayIsAskedForPinnedKeysOnly(t *testing.T) {
	for _, c := range []struct {
		name  string
		to    []string
		local string // mailboxes at alpha
		hosts string // hosts that it is pushed for
		beta  string // mailboxes that have it
		gamma string
	}{
		{"everyone", []string{"*"}, "helper owner reviewer", "beta gamma", "owner reviewer tester", "owner tester"},
		{"a role", []string{"role:checks"}, "helper", "beta gamma", "tester", ""},
		{"a bare name that is here", []string{"reviewer"}, "reviewer", "", "", ""},
		{"a bare name that is not here", []string{"tester"}, "", "beta gamma", "tester", "tester"},
		{"a bare name that is here, and an address", []string{"reviewer", "tester@beta"}, "reviewer", "beta", "tester", ""},
		{"an address here, and one there", []string{"tester@alpha", "tester@gamma"}, "tester", "gamma", "", "tester"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			w := newWorld(t)
			alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
			pair(alpha, beta, false)
			pair(alpha, gamma, false)
			noError(t, alpha.AddMailbox(ctx, "reviewer", nil))
			noError(t, alpha.AddMailbox(ctx, "helper", []string{"checks", "builds"}))
			noError(t, beta.AddMailbox(ctx, "reviewer", []string{"builds"}))
			noError(t, beta.AddMailbox(ctx, "tester", []string{"checks"}))
			noError(t, gamma.AddMailbox(ctx, "tester", nil))
			beta.tick()
			gamma.tick()

			s := must(alpha.Send(ctx, Draft{From: "builder", To: c.to, Subject: "hello"}))
			slices.Sort(s.Local)
			same(t, "local", strings.Join(s.Local, " "), c.local)
			same(t, "hosts", strings.Join(s.Hosts, " "), c.hosts)
			alpha.lanFailedTwice()
			pushed := w.relay.pushes()
			alpha.relayOnly()

			names := map[string]string{beta.Key().String(): "beta", gamma.Key().String(): "gamma"}
			var targets []string
			for id, keys := range pushed() {
				same(t, "item", id, s.ID)
				for _, k := range keys {
					if names[k] == "" {
						t.Errorf("got a push for %s; want pinned keys only", k)
					}
					targets = append(targets, names[k])
				}
			}
			slices.Sort(targets)
			same(t, "targets", strings.Join(targets, " "), c.hosts)
			same(t, "outbox", alpha.outbox(), 0)

			beta.tick()
			gamma.tick()
			const boxes = "SELECT coalesce(group_concat(mailbox, ' '), '') FROM (SELECT mailbox FROM deliveries WHERE msg = ? ORDER BY mailbox)"
			same(t, "at beta", ask[string](beta, boxes, s.ID), c.beta)
			same(t, "at gamma", ask[string](gamma, boxes, s.ID), c.gamma)
			same(t, "in quarantine", beta.count("quarantine")+gamma.count("quarantine"), 0)
		})
	}
}

// A peer that changed its keys after its mail was sealed gets it under the new
// ones: the bytes never got to the relay, so they are made again.
func TestPeerRotatesBeforeThePush(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	w.relay.on("POST", itemsPath, requestLost)
	alpha.relayOnly()
	first := ask[string](alpha, "SELECT hash FROM wires")
	w.relay.intercept(nil)

	rotate(t, beta, alpha)
	pushed := w.relay.pushes()
	same(t, "accepted", alpha.relayOnly().Accepted, 1)
	same(t, "targets", strings.Join(pushed()[msg], " "), beta.Key().String())
	same(t, "sealed again", ask[string](alpha, "SELECT hash FROM relay_sent") != first, true)
	same(t, "received", beta.tick().Relay.Received, 1)
	same(t, "in quarantine", beta.count("quarantine"), 0)
	beta.tick()
	alpha.tick()
	same(t, "state", alpha.sentState(msg), "settled")
}

// When the relay did take the bytes, and only its answer was lost, it holds them
// under the peer's new key: what was sealed again conflicts with them, and the
// bytes of before are pushed once more. One copy is delivered.
func TestPeerRotatesBetweenThePushAndItsAnswer(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	w.relay.on("POST", itemsPath, answerLost)
	alpha.relayOnly()
	first := ask[string](alpha, "SELECT hash FROM wires")
	w.relay.intercept(nil)

	rotate(t, beta, alpha)
	r := alpha.relayOnly()
	same(t, "sealed again: accepted", r.Accepted, 0)
	same(t, "sealed again: rejected", r.Rejected, 1)
	hasPart(t, "sealed again: reason", alpha.rowError(msg), "conflict")
	same(t, "the bytes of before: accepted", alpha.relayOnly().Accepted, 1)
	same(t, "the bytes of before: hash", ask[string](alpha, "SELECT hash FROM relay_sent"), first)
	same(t, "outbox", alpha.outbox(), 0)

	for range 3 {
		beta.tick()
		alpha.tick()
	}
	same(t, "inbox", beta.inbox(), 1)
	same(t, "in quarantine", beta.count("quarantine"), 0)
	same(t, "state", alpha.sentState(msg), "settled")
}

// rotate gives a host new keys, tells the relay, and brings the record to a peer.
func rotate(t *testing.T, h, peer *testHost) {
	t.Helper()
	must(h.RotateKey(context.Background()))
	h.tick()
	results := must(peer.Rotate(context.Background(), h.keyring().rotations))
	same(t, "rotation at the peer", strings.Join(results, " "), "rotated")
}

// Mail over the relay's limit waits for the LAN and says so, whatever the LAN
// says of the same tick.
func TestMailOverTheRelaysLimitWaitsForTheLAN(t *testing.T) {
	w := newWorld(t, func(l *relay.Limits) { l.MaxItemBytes = 2000 })
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	s := must(alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@beta"}, Subject: "large", Body: strings.Repeat("x", 2000)}))
	small := alpha.send(beta, "small")
	alpha.lanFailedTwice()

	pushed := w.relay.pushes()
	r := alpha.tick()
	same(t, "accepted", r.Relay.Accepted, 1)
	same(t, "failed", r.Relay.Failed, 1)
	same(t, "pushed", len(pushed()[s.ID])+10*len(pushed()[small]), 10)
	same(t, "outbox", alpha.outbox(), 1)
	reason := must(alpha.SentMail(context.Background(), s.ID)).Routes[0].Error
	hasPart(t, "reason", reason, "over the relay's limit of 2000 bytes")
	hasPart(t, "reason", reason, "can't be reached on the LAN")

	alpha.sql("UPDATE peers SET addr = ?", beta.addr)
	w.pass(maxBackoff)
	same(t, "sent over the LAN", alpha.tick().LAN.Sent, 1)
	beta.tick()
	same(t, "inbox", beta.inbox(), 2)
	same(t, "bytes kept", ask[int64](alpha, "SELECT count(*) FROM wires WHERE msg = ?", s.ID), 0)
}
