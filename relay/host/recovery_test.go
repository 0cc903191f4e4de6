package host

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const day = 24 * time.Hour

func TestE4_ExpiryNotices(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	m1 := alpha.sendByRelay(beta, "m1")

	// (a) The relay's own sweep.
	w.pass(14*day + time.Second)
	same(t, "(a) notices of the sweep", must(w.relay.relay.Sweep(context.Background())).Notices, 1)
	same(t, "(a) notices taken", alpha.tick().Relay.Notices, 1)
	same(t, "(a) state", alpha.sentState(m1), "expired")
	same(t, "(a) alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered to beta: m1")
	same(t, "(a) bytes kept", alpha.count("wires"), 0)
	same(t, "(a) quarantine", alpha.count("quarantine"), 0)
	same(t, "(a) route", must(alpha.SentMail(context.Background(), m1)).Routes[0].State, "undelivered")
	same(t, "(a) received later", beta.tick().Relay.Received, 0)
	w.pass(3 * day) // past the deadline
	same(t, "(a) unconfirmed later", alpha.tick().Unconfirmed, 0)
	same(t, "(a) inbox later", beta.inbox(), 0)

	// (b) A notice for mail that was confirmed.
	m2 := alpha.sendByRelay(beta, "m2")
	beta.tick()
	beta.tick()
	alpha.tick()
	same(t, "(b) state before", alpha.sentState(m2), "settled")
	w.relay.plantNotice(w.relay.key, alpha, m2, beta.Key())
	same(t, "(b) notices taken", alpha.tick().Relay.Notices, 1)
	same(t, "(b) state", alpha.sentState(m2), "settled")
	same(t, "(b) alerts", len(alpha.alerts("builder")), 1)
	same(t, "(b) quarantine", alpha.count("quarantine"), 0)

	// (c) A notice that another key signed.
	m3 := alpha.sendByRelay(beta, "m3")
	w.relay.plantNotice(must(wire.GenerateKey()), alpha, m3, beta.Key())
	same(t, "(c) quarantined", alpha.tick().Relay.Quarantined, 1)
	same(t, "(c) reason", alpha.reason(), "rejected:bad expiry notice")
	same(t, "(c) state", alpha.sentState(m3), "relay-accepted")
	same(t, "(c) bytes kept", alpha.count("wires"), 1)
	same(t, "(c) alerts", len(alpha.alerts("builder")), 1)

	// (d) A notice for a row that waits to be pushed again.
	m4 := alpha.sendByRelay(beta, "m4")
	w.relay.newEpoch()
	alpha.tick()
	alpha.sql("UPDATE outbox SET next_at = ?", w.clock().Add(time.Hour).UnixMilli())
	same(t, "(d) state before", alpha.sentState(m4), "repush")
	same(t, "(d) outbox before", alpha.outbox(), 2)
	w.relay.plantNotice(w.relay.key, alpha, m4, beta.Key())
	alpha.tick()
	same(t, "(d) state", alpha.sentState(m4), "expired")
	same(t, "(d) outbox", ask[string](alpha, "SELECT group_concat(msg) FROM outbox"), m3)
	same(t, "(d) alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered to beta: m1; Undelivered to beta: m4")
}

// A notice ends one row: the one with its message and its target.
func TestNoticeForAnotherTarget(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	pair(alpha, beta, false)
	pair(alpha, gamma, false)
	beta.tick()
	gamma.tick()
	s := must(alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@beta", "reviewer@gamma"}, Subject: "both"}))
	alpha.lanFailedTwice()
	same(t, "accepted", alpha.relayOnly().Accepted, 2)

	w.relay.plantNotice(w.relay.key, alpha, s.ID, must(wire.GenerateKey()).Public())
	same(t, "for nobody's key: notices", alpha.relayOnly().Notices, 1)
	same(t, "for nobody's key: open rows", ask[int64](alpha, "SELECT count(*) FROM relay_sent WHERE state = 'relay-accepted'"), 2)

	w.relay.plantNotice(w.relay.key, alpha, s.ID, gamma.Key())
	same(t, "for gamma: notices", alpha.relayOnly().Notices, 1)
	same(t, "for gamma: state", ask[string](alpha, "SELECT state FROM relay_sent WHERE fold = 'gamma'"), "expired")
	same(t, "for gamma: beta's state", ask[string](alpha, "SELECT state FROM relay_sent WHERE fold = 'beta'"), "relay-accepted")
	same(t, "alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered to gamma: both")
	same(t, "beta received", beta.tick().Relay.Received, 1)
}

func TestE5_LocalRules(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.sendByRelay(beta, "hello")

	// (a) The relay may hold mail longer than a person keeps it.
	alpha.sql("UPDATE messages SET at = ?", w.clock().Add(-30*day).UnixMilli())
	p := alpha.prune(7 * day)
	same(t, "(a) removed", p.Removed, 0)
	same(t, "(a) kept, outbox", p.Kept.Outbox, 1)

	// (b) Neither the LAN nor the relay is there for four days: what a relay has
	// held is not given up after 72 hours.
	beta.receiveSilently()
	w.relay.wipe()
	alpha.relayOnly()
	w.relay.stop()
	beta.lanUp.Store(false)
	alpha.tick() // tried, and put off
	alpha.sql("UPDATE outbox SET queued_at = ?", w.clock().Add(-4*day).UnixMilli())
	r := alpha.tick()
	same(t, "(b) sent", r.LAN.Sent, 0)
	same(t, "(b) failed", r.LAN.Failed+r.LAN.Rejected+r.GivenUp+r.Relay.Failed, 0)
	same(t, "(b) outbox", alpha.outbox(), 1)
	same(t, "(b) row", ask[string](alpha, "SELECT state FROM outbox"), "repush")
	same(t, "(b) alerts", len(alpha.alerts("builder")), 0)
	p = alpha.prune(day)
	same(t, "(b) pruned", p.Removed, 0)
	same(t, "(b) kept, outbox", p.Kept.Outbox, 1)

	// (c) It has the deadline that it got when the relay took it.
	deadline := ask[int64](alpha, "SELECT deadline FROM relay_sent")
	if most := w.clock().Add(14*day + 24*time.Hour + time.Minute).UnixMilli(); deadline > most {
		t.Errorf("(c) deadline: got %d; want at most %d", deadline, most)
	}
	w.now.Store(deadline - 1)
	r = alpha.tick()
	same(t, "(c) before: unconfirmed", r.Unconfirmed, 0)
	same(t, "(c) before: outbox", alpha.outbox(), 1)
	same(t, "(c) before: alerts", len(alpha.alerts("builder")), 0)
	w.now.Store(deadline + 1)
	same(t, "(c) after: unconfirmed", alpha.tick().Unconfirmed, 1)
	same(t, "(c) after: state", alpha.sentState(msg), "unconfirmed")
	same(t, "(c) after: outbox", alpha.outbox(), 0)
	same(t, "(c) after: alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered/unconfirmed to beta: hello")

	// It is over now: nothing keeps it.
	same(t, "(c) pruned later", alpha.prune(day).Removed, 1)
}

func TestE5_RepushConfirmedByAReceipt(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.sendByRelay(beta, "hello")
	beta.relayOnly() // owes a receipt
	w.relay.newEpoch()
	alpha.relayOnly()
	same(t, "state before", alpha.sentState(msg), "repush")
	alpha.sql("UPDATE outbox SET next_at = ?", w.clock().Add(time.Hour).UnixMilli())

	same(t, "receipts sent", beta.relayOnly().ReceiptsSent, 1)
	same(t, "receipts applied", alpha.relayOnly().Receipts, 1)
	same(t, "(d) state", alpha.sentState(msg), "settled")
	same(t, "(d) outbox", alpha.outbox(), 0)
	same(t, "(d) bytes kept", alpha.count("wires"), 0)
	same(t, "(d) unconfirmed", alpha.tick().Unconfirmed, 0)
}

func TestE7_PrunedMailComesOnceMore(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.sendByRelay(beta, "hello")
	b := w.relay.backup("")

	same(t, "received", beta.relayOnly().Received, 1)
	beta.relayOnly() // its receipt goes
	must(beta.Ack(context.Background(), "reviewer", msg, "", ""))
	w.pass(time.Second)
	same(t, "pruned", beta.prune(0).Removed, 1)
	pruned := w.clock()

	w.relay.stop()
	w.relay.restoreFile(b.File)
	w.relay.start()
	same(t, "relay holds it again", w.relay.queued(beta), 1)
	r := beta.tick()
	same(t, "stored", r.Relay.Received, 0)
	same(t, "duplicates", r.Relay.Duplicates, 1)
	same(t, "messages", ask[int64](beta, "SELECT count(*) FROM messages WHERE origin <> ''"), 0)
	same(t, "inbox", beta.inbox(), 0)
	same(t, "relay holds", w.relay.queued(beta), 0)

	for _, c := range []struct {
		name string
		age  time.Duration
		kept int
	}{
		{"20 days", 20 * day, 1},
		{"21 days", 21 * day, 1},
		{"22 days", 22 * day, 0},
	} {
		w.now.Store(pruned.Add(c.age).UnixMilli())
		beta.tick()
		same(t, c.name+": tombstones", beta.count("pruned_ids"), c.kept)
	}
}

func TestE9_RepushRowsOnTheLAN(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	beta.lanUp.Store(false)
	beta.tick()
	wrong := alpha.sendByRelay(beta, "wrong key")
	right := alpha.sendByRelay(beta, "right key")
	w.relay.wipe() // neither was fetched
	alpha.relayOnly()
	w.relay.stop()
	beta.lanUp.Store(true)
	same(t, "rows to push again", ask[int64](alpha, "SELECT count(*) FROM outbox WHERE state = 'repush'"), 2)

	other := must(wire.GenerateEncKey()).Public()
	alpha.sql("UPDATE peers SET enc_key = ?", other[:])
	alpha.sql("UPDATE outbox SET next_at = ? WHERE msg = ?", w.clock().Add(time.Hour).UnixMilli(), right)
	same(t, "(a) rejected", alpha.tick().LAN.Rejected, 1)
	same(t, "(a) state", alpha.sentState(wrong), "rejected")
	same(t, "(a) outbox", ask[int64](alpha, "SELECT count(*) FROM outbox WHERE msg = ?", wrong), 0)
	same(t, "(a) alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered to beta: wrong key")
	hasPart(t, "(a) alert", alpha.alertText("builder"), "undecryptable body")
	same(t, "(a) inbox", beta.inbox(), 0)

	noError(t, alpha.RefreshEncKey(context.Background(), "beta"))
	w.pass(time.Hour)
	same(t, "(b) sent", alpha.tick().LAN.Sent, 1)
	same(t, "(b) state", alpha.sentState(right), "settled")
	same(t, "(b) outbox", alpha.outbox(), 0)
	same(t, "(b) inbox", beta.inbox(), 1)
	same(t, "(b) bytes kept", alpha.count("wires"), 0)
	same(t, "(b) alerts", len(alpha.alerts("builder")), 1)

	var warned []string
	for _, c := range Doctor(context.Background(), alpha.opts).Checks {
		if c.Level == LevelWarn && strings.Contains(c.Text, "1 rejected re-push") {
			warned = append(warned, c.Fix)
		}
	}
	same(t, "(c) warnings about it", len(warned), 1)
	same(t, "(c) each with a fix", strings.Join(warned, "") != "", true)
}
