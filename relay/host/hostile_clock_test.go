package host

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const year = 365 * 24 * time.Hour

// off puts a host's clock off by so much.
func (h *testHost) off(d time.Duration) { h.ahead.Store(d.Milliseconds()) }

// TestClocksApart: while clocks are too far apart nothing is delivered, nothing
// is lost and it is said why. Once they agree, everything arrives, once, within
// the longest backoff: nothing waits for the time that was wrong.
func TestClocksApart(t *testing.T) {
	for _, skew := range []time.Duration{10 * time.Minute, -10 * time.Minute, year, -year} {
		for _, who := range []string{"alpha", "beta", "both hosts"} {
			for _, overLAN := range []bool{false, true} {
				t.Run(fmt.Sprint(skew, " ", who, " LAN ", overLAN), func(t *testing.T) {
					w := newWorld(t)
					relay := w.lies() // for its Date only
					alpha, beta := w.host("alpha"), w.host("beta")
					pair(alpha, beta, overLAN)
					if overLAN {
						alpha.opts.RelayURL, beta.opts.RelayURL = "", ""
						alpha.reopen()
						beta.reopen()
					}
					for _, h := range []*testHost{alpha, beta} {
						if who == h.Name() || who == "both hosts" {
							h.off(skew)
						}
					}
					msg := alpha.send(beta, "hello")
					states := map[string]bool{}
					for range 5 {
						for _, h := range []*testHost{alpha, beta} {
							states[h.tick().Relay.State] = true
						}
						w.pass(20 * time.Second)
						kept(alpha, beta, msg)
					}
					if !overLAN && !states[relaySkew] {
						t.Errorf("got the states %v; want one of them to be %s", states, relaySkew)
					}
					if overLAN && who == "both hosts" {
						same(t, "between hosts that agree", beta.arrived(msg), 1)
					} else if n := beta.arrived(msg); n != 0 && (overLAN || who != "both hosts") {
						t.Errorf("got %d copies while the clocks are apart", n)
					}
					same(t, "alerts meanwhile", len(alpha.alerts("builder")), 0)

					alpha.off(0)
					beta.off(0)
					w.pass(61 * time.Minute) // the longest backoff, or hold
					for range 12 {
						alpha.tick()
						beta.tick()
						w.pass(10 * time.Minute)
					}
					same(t, "outbox", alpha.outbox(), 0)
					same(t, "receipts owed", beta.count("receipts_out"), 0)
					if skew == -year && who == "both hosts" && !overLAN {
						// By the clock it was tried for a year, and beta can't be reached in
						// the first tick: the sender is told.
						same(t, "given back", len(alpha.alerts("builder")), 1)
						same(t, "copies", beta.arrived(msg), 0)
					} else {
						same(t, "copies", beta.arrived(msg), 1)
						same(t, "confirmed", ask[string](alpha, "SELECT state FROM routes"), "confirmed")
						same(t, "alerts", len(alpha.alerts("builder")), 0)
					}
					if !overLAN {
						relay.sawNoBody()
					}
				})
			}
		}
	}
}

// TestRelayClockApart: a relay whose clock is wrong refuses every signed call.
// The mail waits, and goes when the clock is right.
func TestRelayClockApart(t *testing.T) {
	for _, skew := range []time.Duration{10 * time.Minute, -10 * time.Minute, year, -year} {
		t.Run(skew.String(), func(t *testing.T) {
			w := newWorld(t)
			w.lies()
			alpha, beta, msgs := twoOverRelay(w, "hello")
			w.pass(skew) // everybody's clock, and the hosts' back
			alpha.off(-skew)
			beta.off(-skew)
			for range 5 {
				state := alpha.tick().Relay.State
				oneState(t, "state", state, relaySkew, relayUnavailable)
				w.pass(20 * time.Second)
			}
			hasPart(t, "what to do", alpha.relayRow().detail, "clock")
			kept(alpha, beta, msgs...)
			w.pass(-skew)
			alpha.off(0)
			beta.off(0)
			arriveOnce(alpha, beta, msgs...)
			same(t, "state", alpha.relayRow().state, relayOK)
		})
	}
}

// TestRefusedAfterEnrolling: a relay that takes a host and then refuses it, with
// a clock that is right, is left alone for an hour at most.
func TestRefusedAfterEnrolling(t *testing.T) {
	w := newWorld(t)
	alpha, beta, msgs := twoOverRelay(w, "hello")
	relay := w.lies()
	relay.says(func(c *passing) bool {
		if c.call == callAsk || c.call == callEnrol || c.call == callInfo {
			return false
		}
		c.status, c.answer = 401, []byte(`{"error":"bad relay hop"}`)
		return true
	}, lieOn(callInfo, func(c *passing) { c.change(func(m map[string]any) { delete(m, "you") }) }))
	hold := int64(0)
	for i := range 12 {
		same(t, "state", alpha.tick().Relay.State, relayRefused)
		before := relay.count("")
		same(t, "state while it is left alone", alpha.tick().Relay.State, relayRefused)
		same(t, "calls then", relay.count("")-before, 0)
		next := alpha.relayRow().holdUntil - w.now.Load()
		if next < hold || next > time.Hour.Milliseconds() {
			t.Errorf("hold %d: got %d ms after %d; want it to grow to an hour", i, next, hold)
		}
		hold = next
		w.pass(time.Duration(next+1) * time.Millisecond)
	}
	same(t, "the longest", hold, time.Hour.Milliseconds())
	kept(alpha, beta, msgs...)
	relay.honest()
	arriveOnce(alpha, beta, msgs...)
}

// TestClockSetBack: what was written while the clock was a year ahead is not
// kept for that year.
func TestClockSetBack(t *testing.T) {
	t.Run("what waits is due", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, true)
		w.pass(year)
		got := beta.send(alpha, "to alpha") // alpha will owe receipts for it
		beta.tick()
		beta.lanUp.Store(false)
		w.relay.intercept(refusing(503, ""))
		msg := alpha.send(beta, "to beta")
		for range 3 {
			alpha.tick()
			w.pass(time.Hour)
		}
		w.pass(-year - 3*time.Hour)
		beta.lanUp.Store(true)
		r := alpha.tick()
		same(t, "sent at once", r.LAN.Sent, 1)
		same(t, "receipts sent at once", r.Receipts.Sent > 0, true)
		same(t, "arrived", beta.arrived(msg), 1)
		same(t, "confirmed", ask[string](beta, "SELECT state FROM confirmations WHERE msg = ?", got), "delivered")
	})
	t.Run("what nobody takes ends", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, false)
		w.relay.intercept(refusing(503, ""))
		w.pass(year)
		msg := alpha.send(beta, "to nobody")
		alpha.tick()
		w.pass(-year)
		alpha.tick()
		w.pass(outboxLife)
		same(t, "given up before its time", alpha.tick().GivenUp, 0)
		w.pass(time.Millisecond)
		same(t, "given up", alpha.tick().GivenUp, 1)
		same(t, "route", ask[string](alpha, "SELECT state FROM routes WHERE msg = ?", msg), "undelivered")
		same(t, "alerts", len(alpha.alerts("builder")), 1)
	})
	t.Run("receipts that nobody takes end", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, true)
		alpha.opts.RelayURL, beta.opts.RelayURL = "", ""
		alpha.reopen()
		beta.reopen()
		w.pass(year)
		beta.send(alpha, "to alpha")
		beta.tick()
		beta.lanUp.Store(false)
		alpha.tick()
		w.pass(-year)
		alpha.tick()
		same(t, "owed", alpha.count("receipts_out"), 1)
		w.pass(receiptLife + time.Millisecond)
		alpha.tick()
		same(t, "owed after 72 hours", alpha.count("receipts_out"), 0)
		same(t, "audited", alpha.audited("receipt.expired"), 1)
	})
	t.Run("a relay's copy ends", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, false)
		w.pass(year)
		beta.tick()
		msg := alpha.sendByRelay(beta, "hello")
		w.pass(-year)
		alpha.relayOnly()
		alpha.tick()
		left := ask[int64](alpha, "SELECT deadline FROM relay_sent WHERE msg = ?", msg) - w.now.Load()
		if want := (15 * 24 * time.Hour).Milliseconds(); left < want-60_000 || left > want+60_000 {
			t.Errorf("got a deadline in %d ms; want the %d it had", left, want)
		}
	})
	t.Run("bytes sealed before it", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, false)
		beta.tick()
		alpha.tick()
		relay := w.lies()
		msg := alpha.send(beta, "hello")
		alpha.lanFailedTwice()
		relay.says(func(c *passing) bool { return c.call == callPush }, nil) // never arrives
		alpha.relayOnly()
		alpha.sql("UPDATE wires SET sealed_at = sealed_at + ?", year.Milliseconds()) // as a clock a year ahead has it
		relay.honest()
		alpha.lanFailedTwice()
		same(t, "accepted", alpha.relayOnly().Accepted, 1)
		left := ask[int64](alpha, "SELECT deadline FROM relay_sent WHERE msg = ?", msg) - w.now.Load()
		if most := (15*24*time.Hour + 5*time.Minute).Milliseconds(); left > most {
			t.Errorf("got a deadline in %d ms; want %d at most", left, most)
		}
		arriveOnce(alpha, beta, msg)
	})
	t.Run("tokens", func(t *testing.T) {
		w := newWorld(t)
		alpha := w.host("alpha")
		w.pass(year)
		token := must(alpha.NewPairToken(context.Background(), time.Hour))
		w.pass(-year)
		if token == "" {
			t.Error("no token")
		}
		must(alpha.NewPairToken(context.Background(), time.Hour))
		same(t, "tokens that pair", alpha.count("pair_tokens"), 1)
	})
	t.Run("receipts count on", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, true)
		w.pass(year)
		msg := alpha.send(beta, "hello")
		alpha.tick()
		beta.tick()
		w.pass(-year)
		must(beta.Read(context.Background(), "reviewer", msg))
		must(beta.Ack(context.Background(), "reviewer", msg, "", ""))
		beta.tick()
		same(t, "state", ask[string](alpha, "SELECT state FROM confirmations"), "acked")
		same(t, "owed", beta.count("receipts_out"), 0)
	})
	t.Run("rotations are told", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, true)
		beta.lanUp.Store(false)
		w.pass(year)
		must(alpha.RotateKey(context.Background()))
		alpha.tick()
		w.pass(-year)
		beta.lanUp.Store(true)
		alpha.tick()
		same(t, "still owed", alpha.count("rotation_peers"), 0)
		key := alpha.Key()
		same(t, "the key that beta knows", hexOf(ask[[]byte](beta, "SELECT key FROM peers")), hexOf(key[:]))
	})
	t.Run("seen and sessions", func(t *testing.T) {
		w := newWorld(t)
		alpha, beta := w.host("alpha"), w.host("beta")
		pair(alpha, beta, true)
		w.pass(year)
		alpha.send(beta, "one")
		alpha.tick()
		beta.tick()
		w.pass(-year)
		msg := alpha.send(beta, "two")
		alpha.tick()
		beta.tick()
		alpha.tick()
		same(t, "arrived", beta.arrived(msg), 1)
		for _, h := range []*testHost{alpha, beta} {
			same(t, "seen lately", ask[int64](h, "SELECT seen_at FROM peers"), w.now.Load())
			same(t, "relay ok lately", h.relayRow().okAt, w.now.Load())
			same(t, "sealing key published lately", h.relayRow().adAt, w.now.Load())
		}
		same(t, "session", alpha.fresh(alpha.sessionNow()), true)
	})
	t.Run("pruned ids", func(t *testing.T) {
		w := newWorld(t)
		alpha := w.host("alpha")
		alpha.sql("INSERT INTO pruned_ids (id, origin, at) VALUES (?, 'x', ?)", wire.NewID(t0), w.now.Load()+year.Milliseconds())
		alpha.tick()
		w.pass(prunedLife + time.Millisecond)
		alpha.tick()
		same(t, "remembered", alpha.count("pruned_ids"), 0)
	})
}
