package host

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// A row leaves the outbox on the pinned relay's signed word about exactly these
// bytes, for this target, from this host, and on nothing else.
func TestAcceptMustBeAboutThisItem(t *testing.T) {
	stranger := must(wire.GenerateKey())
	sign := func(r *pushAnswered, key wire.PrivateKey, a wire.Accept) { r.Accept, r.Sig = wire.SignAccept(key, a) }
	for _, c := range []struct {
		name string
		lie  func(w *world, r *pushAnswered, a wire.Accept)
	}{
		{"for another target", func(w *world, r *pushAnswered, a wire.Accept) {
			a.Targets[0].HostPubkey = stranger.Public()
			sign(r, w.relay.key, a)
		}},
		{"from another sender", func(w *world, r *pushAnswered, a wire.Accept) {
			a.SenderPubkey = stranger.Public()
			sign(r, w.relay.key, a)
		}},
		{"about another item", func(w *world, r *pushAnswered, a wire.Accept) {
			a.ItemID = wire.NewID(t0)
			sign(r, w.relay.key, a)
		}},
		{"about other bytes", func(w *world, r *pushAnswered, a wire.Accept) {
			a.Targets[0].WireHash = wire.HashHex([]byte("other bytes"))
			sign(r, w.relay.key, a)
		}},
		{"the bytes under another target", func(w *world, r *pushAnswered, a wire.Accept) {
			other := a.Targets[0]
			a.Targets[0].WireHash, other.HostPubkey = wire.HashHex([]byte("other bytes")), stranger.Public()
			a.Targets = append(a.Targets, other)
			sign(r, w.relay.key, a)
		}},
		{"signed by another key", func(_ *world, r *pushAnswered, a wire.Accept) { sign(r, stranger, a) }},
		{"of another relay", func(_ *world, r *pushAnswered, a wire.Accept) {
			a.RelayPubkey = stranger.Public()
			sign(r, stranger, a)
		}},
		{"not signed", func(_ *world, r *pushAnswered, _ wire.Accept) { r.Sig = "" }},
		{"none", func(_ *world, r *pushAnswered, _ wire.Accept) { r.Accept, r.Sig = nil, "" }},
		{"under an unknown status", func(_ *world, r *pushAnswered, _ wire.Accept) { r.Status = "stored" }},
		{"in a result of another item", func(_ *world, r *pushAnswered, _ wire.Accept) { r.ItemID = wire.NewID(t0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			beta.tick()
			msg := alpha.send(beta, "hello")
			alpha.lanFailedTwice()

			w.relay.on("POST", itemsPath, lying(func(r *pushAnswered, a wire.Accept) { c.lie(w, r, a) }))
			r := alpha.relayOnly()
			same(t, "accepted", r.Accepted, 0)
			same(t, "failed", r.Failed, 1)
			same(t, "outbox", alpha.outbox(), 1)
			same(t, "relay_sent", alpha.count("relay_sent"), 0)
			same(t, "bytes kept", alpha.count("wires"), 1)
			same(t, "audit", alpha.audited("relay.bad_accept"), 1)
			same(t, "a reason", alpha.rowError(msg) != "", true)

			w.relay.intercept(nil)
			same(t, "honest: accepted", alpha.relayOnly().Accepted, 1)
			same(t, "honest: outbox", alpha.outbox(), 0)
			same(t, "honest: received", beta.tick().Relay.Received, 1)
		})
	}
}

// A 200 that says nothing about the items leaves them where they are.
func TestPushAnswerWithoutResults(t *testing.T) {
	for _, body := range []string{`{"results":[]}`, `{}`, `{"results":null}`, `[]`, ``, `<html>`} {
		t.Run(body, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			beta.tick()
			alpha.send(beta, "hello")
			alpha.lanFailedTwice()
			w.relay.on("POST", itemsPath, refusing(200, body))
			r := alpha.relayOnly()
			same(t, "accepted", r.Accepted, 0)
			same(t, "failed", r.Failed, 1)
			same(t, "outbox", alpha.outbox(), 1)
			same(t, "relay_sent", alpha.count("relay_sent"), 0)
		})
	}
}

// A relay that plays back an accept of an older epoch takes the mail and keeps
// none of it. The next look at its epoch brings the row back.
func TestAcceptOfAnOlderEpoch(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	var old []byte
	w.relay.on("POST", itemsPath, altering(func(body []byte) []byte { old = body; return body }))
	same(t, "accepted", alpha.relayOnly().Accepted, 1)

	w.relay.wipe()
	w.relay.on("POST", itemsPath, func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		refusing(200, string(old))(out, in, relay)
	})
	alpha.relayOnly()
	same(t, "state in the new epoch", alpha.sentState(msg), "repush")
	alpha.relayOnly() // the old accept
	w.relay.intercept(nil)
	beta.tick()
	same(t, "relay holds", w.relay.queued(beta), 0)

	alpha.relayOnly()
	same(t, "state after the lie", alpha.sentState(msg), "repush")
	same(t, "outbox after the lie", alpha.outbox(), 1)
	same(t, "accepted again", alpha.relayOnly().Accepted, 1)
	same(t, "epoch", ask[string](alpha, "SELECT epoch FROM relay_sent"), alpha.relayRow().epoch)
	beta.tick()
	beta.tick()
	alpha.tick()
	same(t, "inbox", beta.inbox(), 1)
	same(t, "state", alpha.sentState(msg), "settled")
}

// Deadlines hold whatever the relay says of times.
func TestAcceptTimesAreClamped(t *testing.T) {
	for _, c := range []struct {
		name       string
		at         string
		retention  string
		acceptedAt time.Time
		deadline   time.Duration // after that
	}{
		{"in the far future", "2036-01-01T00:00:00.000Z", "14", t0.Add(5 * time.Minute), 15 * day},
		{"before the first push", "1970-01-01T00:00:00.000Z", "14", t0, 15 * day},
		{"a retention of years", wire.FormatTime(t0), "10000", t0, 61 * day},
		{"a retention below zero", wire.FormatTime(t0), "-5", t0, 15 * day},
		{"a retention that is no number", wire.FormatTime(t0), `"x"`, t0, 15 * day},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			beta.tick()
			alpha.send(beta, "hello")
			alpha.lanFailedTwice()
			push := lying(func(r *pushAnswered, a wire.Accept) {
				a.At = c.at
				r.Accept, r.Sig = wire.SignAccept(w.relay.key, a)
			})
			info := altering(func(body []byte) []byte {
				var d map[string]json.RawMessage
				var limits map[string]json.RawMessage
				noError(t, json.Unmarshal(body, &d))
				noError(t, json.Unmarshal(d["limits"], &limits))
				limits["retention_days"] = json.RawMessage(c.retention)
				d["limits"] = must(json.Marshal(limits))
				return must(json.Marshal(d))
			})
			w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
				switch {
				case in.URL.Path == infoPath:
					info(out, in, relay)
				case in.URL.Path == itemsPath && in.Method == "POST":
					push(out, in, relay)
				default:
					relay.ServeHTTP(out, in)
				}
			})
			same(t, "accepted", alpha.relayOnly().Accepted, 1)
			same(t, "accepted at", ask[int64](alpha, "SELECT accepted_at FROM relay_sent"), c.acceptedAt.UnixMilli())
			same(t, "deadline", ask[int64](alpha, "SELECT deadline FROM relay_sent"), c.acceptedAt.Add(c.deadline).UnixMilli())
		})
	}
}

// The recipient may confirm before the sender has heard that the relay took the
// mail: then there is nothing left to wait for.
func TestReceiptOvertakesThePushAnswer(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()

	w.relay.on("POST", itemsPath, func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.Header.Get(wire.HeaderHost) != "alpha" {
			relay.ServeHTTP(out, in)
			return
		}
		altering(func(body []byte) []byte {
			same(t, "received", beta.relayOnly().Received, 1)
			receipt := ask[[]byte](beta, "SELECT wire FROM receipts_out")
			results, err := beta.lan.Receipts(in.Context(), beta.caller(), alpha.addr, [][]byte{receipt})
			noError(t, err)
			same(t, "receipt", results[0], resultAccepted)
			return body
		})(out, in, relay)
	})
	alpha.relayOnly()
	same(t, "outbox", alpha.outbox(), 0)
	same(t, "bytes kept", alpha.count("wires"), 0)
	same(t, "open at the relay", ask[int64](alpha, "SELECT count(*) FROM relay_sent WHERE state IN ('relay-accepted', 'repush')"), 0)
	same(t, "route", ask[string](alpha, "SELECT state FROM routes WHERE msg = ?", msg), "confirmed")

	w.relay.intercept(nil)
	w.pass(16 * day)
	r := alpha.tick()
	same(t, "unconfirmed", r.Unconfirmed+r.GivenUp, 0)
	same(t, "alerts", len(alpha.alerts("builder")), 0)
	same(t, "inbox", beta.inbox(), 1)
}
