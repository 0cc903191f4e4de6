package host

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// After 72 hours a row that no relay has held ends, and its sender hears.
func TestOutboxGivesUpAfter72Hours(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false) // beta is nowhere: not on the LAN, not at the relay
	msg := alpha.send(beta, "hello")
	queued := w.clock()
	for range 10 {
		alpha.tick()
		w.pass(maxBackoff)
	}

	w.now.Store(queued.Add(72 * time.Hour).UnixMilli())
	same(t, "at 72 h: given up", alpha.tick().GivenUp, 0)
	same(t, "at 72 h: outbox", alpha.outbox(), 1)
	w.pass(time.Millisecond)
	same(t, "after it: given up", alpha.tick().GivenUp, 1)
	same(t, "after it: outbox", alpha.outbox(), 0)
	same(t, "after it: route", must(alpha.SentMail(context.Background(), msg)).Routes[0].State, "undelivered")
	same(t, "alerts", strings.Join(alpha.alerts("builder"), "; "), "Undelivered to beta: hello")
	hasPart(t, "alert", alpha.alertText("builder"), "72 hours")

	w.pass(day)
	same(t, "later: given up", alpha.tick().GivenUp, 0)
	same(t, "later: alerts", len(alpha.alerts("builder")), 1)
}

// The wait doubles from 5 s to an hour. A tick that fails over the relay and over
// the LAN is one attempt.
func TestBackoffTable(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.send(beta, "hello")
	want := []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600}
	for i, wait := range want {
		alpha.tick()
		name := fmt.Sprintf("attempt %d", i+1)
		same(t, name+": attempts", ask[int64](alpha, "SELECT attempts FROM outbox"), int64(i+1))
		same(t, name+": wait", ask[int64](alpha, "SELECT next_at FROM outbox")-w.now.Load(), (wait * time.Second).Milliseconds())

		w.pass(wait*time.Second - time.Millisecond)
		r := alpha.tick()
		same(t, name+": tried too early", r.LAN.Failed+r.Relay.Failed, 0)
		w.pass(time.Millisecond)
	}
}

// One host's backlog keeps nobody else's mail waiting, on either way.
func TestDeadHostHoldsNobodyBack(t *testing.T) {
	muchWork(t)
	for _, overLAN := range []bool{true, false} {
		t.Run(map[bool]string{true: "LAN", false: "relay"}[overLAN], func(t *testing.T) {
			w := newWorld(t)
			alpha, beta, dead := w.host("alpha"), w.host("beta"), w.host("dead")
			pair(alpha, beta, overLAN)
			pair(alpha, dead, false) // nowhere
			beta.tick()
			alpha.tick()
			backlog(alpha, alpha.send(dead, "first of many"), 1000)
			msg := alpha.send(beta, "hello")
			if !overLAN {
				alpha.lanFailedTwice()
			}

			r := alpha.tick()
			same(t, "sent in the first tick", r.LAN.Sent+r.Relay.Accepted, 1)
			same(t, "waits for beta", ask[int64](alpha, "SELECT count(*) FROM outbox WHERE msg = ?", msg), 0)
			same(t, "waits for the dead host", ask[int64](alpha, "SELECT count(*) FROM outbox WHERE fold = 'dead'"), 1000)
			beta.tick()
			same(t, "inbox", beta.inbox(), 1)

			// Nor do receipts for a dead host.
			alpha.sql(`INSERT INTO receipts_out (msg, recipient, seq, fold, wire, queued_at, next_at)
				SELECT msg, 'builder@alpha', 1, fold, x'00', 0, 0 FROM outbox WHERE fold = 'dead'`)
			alpha.sql("UPDATE receipts_out SET queued_at = ?1, next_at = ?1", w.now.Load())
			beta.send(alpha, "back")
			if overLAN {
				same(t, "sent back", beta.tick().LAN.Sent, 1)
			} else {
				beta.lanFailedTwice()
				same(t, "sent back", beta.tick().Relay.Accepted, 1)
				alpha.tick()
			}
			r = alpha.tick()
			same(t, "receipts for beta in the first tick", r.Receipts.Sent+r.Relay.ReceiptsSent, 1)
		})
	}
}

// backlog makes n rows of the first.
func backlog(h *testHost, first string, n int) {
	h.w.t.Helper()
	const copies = "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
	h.sql(copies+`INSERT INTO messages (id, origin, sender, subject, kind, at, envelope)
		SELECT printf('%026d', i), origin, sender, subject, kind, at, envelope FROM n, messages WHERE id = ?`, n, first)
	for _, q := range []string{
		"INSERT INTO routes (msg, fold, recipients, state, at) SELECT m.id, r.fold, r.recipients, r.state, r.at FROM messages m, routes r WHERE r.msg = ? AND m.id GLOB '0000*'",
		"INSERT INTO outbox (msg, fold, queued_at, next_at) SELECT m.id, o.fold, o.queued_at, o.next_at FROM messages m, outbox o WHERE o.msg = ? AND m.id GLOB '0000*'",
	} {
		h.sql(q, first)
	}
}

// Prune leaves what is on its way or still open, and says how much that was.
func TestPruneKeepsWhatIsNotDone(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	local := func(subject string) string {
		return must(alpha.Send(ctx, Draft{From: "builder", To: []string{"reviewer@alpha"}, Subject: subject})).ID
	}

	settled := alpha.sendByRelay(beta, "settled")
	beta.tick()
	beta.tick()
	alpha.tick()
	accepted := alpha.sendByRelay(beta, "held by the relay")
	repushed := alpha.sendByRelay(beta, "to be pushed again")
	alpha.sql("UPDATE relay_sent SET state = 'repush' WHERE msg = ?", repushed)
	queued := alpha.send(beta, "queued")
	open := local("open")
	done := local("done")
	must(alpha.Ack(ctx, "reviewer", done, "", ""))
	half := must(alpha.Send(ctx, Draft{From: "builder", To: []string{"reviewer@alpha", "tester@alpha"}, Subject: "half"})).ID
	must(alpha.Ack(ctx, "reviewer", half, "", ""))
	edge := w.clock()
	w.pass(time.Millisecond)
	young := local("young")
	must(alpha.Ack(ctx, "reviewer", young, "", ""))

	w.now.Store(edge.Add(day).UnixMilli())
	p := alpha.prune(day)
	same(t, "at its age: removed", p.Removed, 0)
	w.pass(time.Millisecond)
	p = alpha.prune(day)
	same(t, "removed", p.Removed, 2)
	same(t, "kept, outbox", p.Kept.Outbox, 3)
	same(t, "kept, open", p.Kept.Open, 2)
	for _, c := range []struct {
		id   string
		kept int64
	}{{settled, 0}, {done, 0}, {accepted, 1}, {repushed, 1}, {queued, 1}, {open, 1}, {half, 1}, {young, 1}} {
		same(t, "message "+c.id, ask[int64](alpha, "SELECT count(*) FROM messages WHERE id = ?", c.id), c.kept)
	}
	same(t, "what hung on them", ask[int64](alpha, "SELECT count(*) FROM routes WHERE msg = ?1", settled)+
		ask[int64](alpha, "SELECT count(*) FROM relay_sent WHERE msg = ?1", settled)+
		ask[int64](alpha, "SELECT count(*) FROM confirmations WHERE msg = ?1", settled), 0)
	same(t, "tombstones, for receipts that come late", alpha.count("pruned_ids"), 2)
	same(t, "a second time", alpha.prune(day).Removed, 0)
}

// The ids of received mail outlive it by 21 days: until then it is a duplicate.
func TestPrunedIDsAreKept21Days(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.sendByRelay(beta, "hello")
	raw := ask[[]byte](alpha, "SELECT wire FROM wires")
	beta.tick()
	must(beta.Ack(context.Background(), "reviewer", msg, "", ""))
	w.pass(time.Millisecond)
	same(t, "pruned", beta.prune(0).Removed, 1)
	pruned := w.clock()

	again := func() (result string) {
		noError(t, beta.db.write(context.Background(), func(t *tx) (err error) {
			_, result, err = beta.receiveEnvelope(t, raw, "alpha", false)
			return err
		}))
		return result
	}
	same(t, "at once", again(), resultDuplicate)
	same(t, "inbox", beta.inbox(), 0)
	w.now.Store(pruned.Add(21 * day).UnixMilli())
	beta.tick()
	same(t, "at 21 days", again(), resultDuplicate)
	w.pass(time.Millisecond)
	beta.tick()
	same(t, "after 21 days: tombstones", beta.count("pruned_ids"), 0)
	same(t, "after 21 days", again(), resultAccepted)
	same(t, "inbox after 21 days", beta.inbox(), 1)
}

// Bytes are made once: a retry pushes those of before, even when the peer's
// sealing key is another one by now.
func TestRetryPushesTheSameBytes(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	w.relay.on("POST", itemsPath, answerLost)
	alpha.relayOnly()
	hash := ask[string](alpha, "SELECT hash FROM wires")

	other := must(wire.GenerateEncKey()).Public()
	alpha.sql("UPDATE peers SET enc_key = ?", other[:])
	alpha.reopen()
	w.relay.intercept(nil)
	same(t, "accepted", alpha.relayOnly().Accepted, 1)
	same(t, "hash", ask[string](alpha, "SELECT hash FROM relay_sent"), hash)
	same(t, "received", beta.tick().Relay.Received, 1)
}

// The relay is the second way. A host whose address reaches nobody gets its mail
// over it at once; when the LAN is back, new mail goes there, and what the relay
// holds is left to it.
func TestLANComesFirstAgainWhenItIsBack(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.send(beta, "one")
	r := alpha.tick() // over the LAN first
	same(t, "one, first tick", r.Relay.Accepted, 0)
	w.pass(5 * time.Second)
	same(t, "one, when its address has reached nobody", alpha.tick().Relay.Accepted, 1)
	two := alpha.send(beta, "two")
	same(t, "two, to an address that reaches nobody", alpha.tick().Relay.Accepted, 1)

	alpha.sql("UPDATE peers SET addr = ?", beta.addr)
	noError(t, alpha.probe(context.Background()))
	three := alpha.send(beta, "three")
	r = alpha.tick()
	same(t, "three: accepted by the relay", r.Relay.Accepted, 0)
	same(t, "three: sent over the LAN", r.LAN.Sent, 1)
	same(t, "three: at the relay", alpha.sentState(three), "")
	same(t, "two: at the relay", alpha.sentState(two), "relay-accepted")
	same(t, "inbox", beta.inbox(), 1)
	same(t, "relay holds", w.relay.queued(beta), 2)
	same(t, "received", beta.tick().Relay.Received, 2)
}

// A stored message that can't be read is its own trouble: everything else goes
// on, and it ends like mail that can't be delivered.
func TestUnreadableMessageStopsNothingElse(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	pair(alpha, beta, false)
	pair(alpha, gamma, true)
	beta.tick()
	bad := alpha.send(beta, "bad")
	bad2 := alpha.send(gamma, "bad over the LAN")
	good := alpha.send(beta, "good")
	alpha.send(gamma, "good over the LAN")
	alpha.sql("UPDATE messages SET envelope = x'00' WHERE id IN (?, ?)", bad, bad2)
	alpha.sql("UPDATE outbox SET attempts = 2 WHERE fold = 'beta'")
	r := alpha.tick()
	same(t, "accepted by the relay", r.Relay.Accepted, 1)
	same(t, "sent over the LAN", r.LAN.Sent, 1)
	same(t, "good", alpha.sentState(good), "relay-accepted")
	same(t, "outbox", alpha.outbox(), 2)
	list, err := alpha.SentMails(context.Background(), 10)
	noError(t, err)
	same(t, "listed", len(list), 4)
	w.pass(outboxLife + time.Second)
	alpha.tick()
	same(t, "outbox in the end", alpha.outbox(), 0)
	same(t, "alerts", len(alpha.alerts("builder")), 2)
}

// A receipt may come while the bytes for the relay are made: they are not kept
// for a message that nothing will end any more.
func TestNoBytesAreKeptOfWhatWasConfirmedMeanwhile(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	w.relay.on("GET", "/v2/relay/enc-key", func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		noError(t, alpha.db.write(context.Background(), func(tx *tx) error {
			return end(tx, msg, "beta", "settled", "confirmed")
		}))
		relay.ServeHTTP(out, in)
	})
	alpha.relayOnly()
	same(t, "outbox", alpha.outbox(), 0)
	same(t, "bytes kept", alpha.count("wires"), 0)
	same(t, "route", must(alpha.SentMail(context.Background(), msg)).Routes[0].State, "confirmed")
}
