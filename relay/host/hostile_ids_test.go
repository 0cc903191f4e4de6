package host

import (
	"context"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// TestIDsOfOthersMail: a host that got a copy of another's message knows its id.
// Whatever it sends under that id, before or after, the other's message is
// delivered, confirmed and pruned as if it had not.
func TestIDsOfOthersMail(t *testing.T) {
	for name, c := range map[string]struct {
		overRelay bool
		first     bool   // the rogue is faster
		to        string // whom its own message is for
		kept      int    // how often that one is stored
	}{
		"faster, to the same mailbox": {false, true, "reviewer@beta", 1},
		"faster, to nobody":           {false, true, "nobody-here", 0},
		"later":                       {false, false, "reviewer@beta", 1},
		"later, to nobody":            {false, false, "nobody-here", 0},
		"faster, to the same mailbox, over the relay": {true, true, "reviewer@beta", 1},
		"faster, to nobody, over the relay":           {true, true, "nobody-here", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, !c.overRelay)
			mallory := w.rogue("mallory", alpha, beta)
			beta.tick()
			alpha.tick()
			// To both: mallory has the id before beta has the message.
			s, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@beta", "reviewer@mallory"}, Subject: "real", Body: "the body of real"})
			noError(t, err)
			e := mallory.Draft(side(beta), "squatted", "squatted")
			e.ID, e.Thread, e.To = s.ID, s.ID, []string{c.to}
			squatted := must(wire.Seal(e, side(beta).Enc.Public(), mallory.Key, mallory.Name))
			squat := func() {
				same(t, "mallory's own", mallory.mails(beta, squatted)[0], "accepted")
				same(t, "mallory's own again", mallory.mails(beta, squatted)[0], "duplicate")
			}
			if c.first {
				squat()
			}
			for range 3 {
				alpha.lanFailedTwice()
				alpha.tick()
				beta.tick()
			}
			if !c.first {
				squat()
			}
			real := "m.origin = 'alpha' AND d.mailbox = 'reviewer'"
			same(t, "alpha's message", int(ask[int64](beta, "SELECT count(*) FROM deliveries d JOIN messages m ON m.id = d.msg WHERE "+real)), 1)
			same(t, "mallory's", int(ask[int64](beta, "SELECT count(*) FROM messages WHERE origin = 'mallory'")), c.kept)
			same(t, "quarantine", beta.count("quarantine"), 0)

			// Each can be read and acked by the id that the inbox shows, and the
			// receipts name the message as its sender knows it.
			inbox := must(beta.Inbox(context.Background(), "reviewer", "", false, 10))
			same(t, "inbox", len(inbox), 1+c.kept)
			for _, m := range inbox {
				full := must(beta.Read(context.Background(), "reviewer", m.ID))
				same(t, "from and body", full.From == "builder@alpha", full.Body == "the body of real")
				must(beta.Ack(context.Background(), "reviewer", m.ID, "", ""))
				if full.From == "builder@alpha" {
					answer, err := beta.Send(context.Background(), Draft{From: "reviewer", To: []string{"builder@alpha"}, Subject: "re", Body: "the body of re", ReplyTo: m.ID})
					noError(t, err)
					same(t, "thread of the answer", must(beta.SentMail(context.Background(), answer.ID)).Thread, s.ID)
					same(t, "what it answers", must(beta.SentMail(context.Background(), answer.ID)).ReplyTo, s.ID)
				}
			}
			for range 4 {
				beta.sql("UPDATE receipts_out SET attempts = 2, next_at = 0 WHERE fold = 'alpha'")
				beta.tick()
				alpha.tick()
			}
			same(t, "alpha sees", ask[string](alpha, "SELECT state FROM confirmations WHERE msg = ? AND fold = 'beta'", s.ID), "acked")
			same(t, "alerts", len(alpha.alerts("builder")), 0)

			// Pruned, it is still known, to each host for its own.
			w.pass(10 * 24 * time.Hour)
			beta.sql("DELETE FROM outbox") // the answers: not the matter here
			same(t, "pruned", must(beta.Prune(context.Background(), 24*time.Hour)).Kept.Open, int64(0))
			same(t, "mallory's own after that", mallory.mails(beta, squatted)[0], "duplicate")
			again := ask[[]byte](alpha, "SELECT envelope FROM messages WHERE id = ?", s.ID)
			resealed := must(wire.Seal(must(wire.ParseEnvelope(again)), side(beta).Enc.Public(), side(alpha).Key, "alpha"))
			noError(t, beta.db.write(context.Background(), func(t2 *tx) error {
				_, result, err := beta.receiveEnvelope(t2, resealed, "alpha", false)
				same(t, "alpha's after that", result, "duplicate")
				return err
			}))
		})
	}
}

// TestOwnIDComesBack: a host that answers under the id of what it was sent takes
// nothing away from it.
func TestOwnIDComesBack(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	mallory := w.rogue("mallory", alpha)
	s, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@mallory", "builder@alpha"}, Subject: "real", Body: "the body of real"})
	noError(t, err)
	alpha.tick()
	e := mallory.Draft(side(alpha), "echo", "echo")
	e.ID, e.To = s.ID, []string{"builder@alpha"}
	same(t, "result", mallory.mails(alpha, must(wire.Seal(e, side(alpha).Enc.Public(), mallory.Key, mallory.Name)))[0], "accepted")
	inbox := must(alpha.Inbox(context.Background(), "builder", "", true, 10))
	same(t, "both are there", len(inbox), 2)
	same(t, "its own is as it was", must(alpha.SentMail(context.Background(), s.ID)).Subject, "real")
	same(t, "the local copy", must(alpha.Read(context.Background(), "builder", s.ID)).Subject, "real")
	same(t, "confirmed by it", mallory.reports(alpha, receiptOf(mallory.Key, s.ID, "reviewer@mallory", "read", 9))[0], "accepted")
}
