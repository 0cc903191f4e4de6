package host

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// confirmation is what a host knows of a message at one recipient.
func (h *testHost) confirmation(msg, recipient string) (c Confirmation) {
	h.w.t.Helper()
	m, err := h.SentMail(context.Background(), msg)
	noError(h.w.t, err)
	for _, c := range m.Confirmations {
		if c.Recipient == recipient {
			return c
		}
	}
	return Confirmation{}
}

// routed is where a message stands on its way to a host.
func (h *testHost) routed(msg string) string {
	return ask[string](h, "SELECT state FROM routes WHERE msg = ?", msg)
}

// owed are the states of the receipts that wait, in their order.
func (h *testHost) owed() (states []string) {
	h.w.t.Helper()
	noError(h.w.t, h.db.read(context.Background(), func(t *tx) error {
		return t.each("SELECT wire FROM receipts_out ORDER BY seq", nil, func(scan func(...any) error) error {
			var b []byte
			err := scan(&b)
			if err == nil {
				var r wire.Receipt
				r, err = wire.CheckReceipt(b)
				states = append(states, r.State)
			}
			return err
		})
	}))
	return states
}

// oldPeer makes a host one that answers 404 to a call, as those do that are too old for it.
func (h *testHost) oldPeer(path string) {
	h.w.t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(must(url.Parse("http://" + h.addr)))
	front := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if in.URL.Path == path {
			http.NotFound(out, in)
			return
		}
		proxy.ServeHTTP(out, in)
	}))
	h.w.t.Cleanup(front.Close)
	h.addr = front.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(h.addr)
	h.setPort(port)
}

func TestH1_ReceiptsComeBack(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)

	s, err := alpha.Send(ctx, Draft{From: "builder", To: []string{"reviewer@beta"}, Subject: "look", Body: "at this", Kind: "task"})
	noError(t, err)
	r := alpha.tick()
	same(t, "(a) sent", r.LAN.Sent, 1)
	same(t, "(a) failed", r.LAN.Failed, 0)
	sameList(t, "(a) beta owes", beta.owed(), "delivered")
	same(t, "(a) alpha shows", alpha.routed(s.ID), "handed-over")

	rr := beta.tick().Receipts
	same(t, "(b) sent", rr.Sent, 1)
	same(t, "(b) deferred", rr.Deferred, 0)
	same(t, "(b) alpha shows", alpha.confirmation(s.ID, "reviewer@beta").State, "delivered")
	same(t, "(b) route", alpha.routed(s.ID), "confirmed")

	w.pass(time.Minute)
	m, err := beta.Read(ctx, "reviewer", s.ID)
	noError(t, err)
	same(t, "(c) body", m.Body, "at this")
	_, err = beta.Ack(ctx, "reviewer", s.ID, "fine", "merged it")
	noError(t, err)
	sameList(t, "(c) beta owes", beta.owed(), "read", "acked")
	same(t, "(c) sent", beta.tick().Receipts.Sent, 2)
	c := alpha.confirmation(s.ID, "reviewer@beta")
	same(t, "(c) alpha shows", c, Confirmation{Recipient: "reviewer@beta", State: "acked", At: w.clock(), Note: "fine", Did: "merged it"})
	kept := ask[[]byte](alpha, "SELECT receipt FROM confirmations WHERE msg = ?", s.ID)
	if signed, err := wire.CheckReceipt(kept); err != nil || !signed.SignedBy(beta.Key()) || signed.Did != "merged it" {
		t.Errorf("(c) kept: got %s, %v; want the record that beta signed", kept, err)
	}

	noError(t, beta.AddMailbox(ctx, "helper", nil))
	local, err := beta.Send(ctx, Draft{From: "reviewer", To: []string{"helper"}, Subject: "local"})
	noError(t, err)
	_, err = beta.Ack(ctx, "helper", local.ID, "", "")
	noError(t, err)
	sameList(t, "(d) beta owes for local mail", beta.owed())

	bare, err := alpha.Send(ctx, Draft{From: "builder", To: []string{"helper"}, Subject: "whoever"})
	noError(t, err)
	alpha.tick()
	same(t, "(e) before it reports", alpha.confirmation(bare.ID, "helper@beta").State, "")
	beta.tick()
	same(t, "(e) once it has reported", alpha.confirmation(bare.ID, "helper@beta").State, "delivered")
}

// sameList compares lists.
func sameList(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %v; want %v", what, got, want)
		return
	}
	for i := range got {
		same(t, what, got[i], want[i])
	}
}

func TestH2_JudgingReceipts(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	pair(alpha, beta, true)
	pair(alpha, gamma, true)
	msg := alpha.send(beta, "hello")
	mine := beta.send(alpha, "received here")
	alpha.tick()
	beta.tick()

	key := beta.keyring().key
	seq := ask[int64](alpha, "SELECT coalesce(max(seq), 0) FROM confirmations") + 100
	receipt := func(change func(r *wire.Receipt)) []byte {
		r := wire.Receipt{Msg: msg, Recipient: "reviewer@beta", State: "read", At: w.clock(), Seq: seq}
		change(&r)
		return wire.MakeReceipt(key, r)
	}
	good := receipt(func(*wire.Receipt) {})
	for _, tc := range []struct {
		name, want string
		raw        []byte
	}{
		{"good", "accepted", good},
		{"again", "duplicate", good},
		{"a lower state", "stale", receipt(func(r *wire.Receipt) { r.State, r.Seq = "delivered", seq+50 })},
		{"a lower seq", "stale", receipt(func(r *wire.Receipt) { r.Seq = seq - 1 })},
		{"a higher seq", "accepted", receipt(func(r *wire.Receipt) { r.Seq = seq + 1 })},
		{"altered", "rejected:bad signature", bytes.Replace(good, []byte(`"state":"read"`), []byte(`"state":"acked"`), 1)},
		{"signed by another host", "rejected:bad signature", wire.MakeReceipt(gamma.keyring().key, wire.Receipt{Msg: msg, Recipient: "reviewer@beta", State: "acked", At: w.clock(), Seq: seq + 2})},
		{"a recipient at another host", "rejected:recipient at another host", receipt(func(r *wire.Receipt) { r.Recipient = "reviewer@gamma" })},
		{"a recipient at a stranger", "rejected:host not paired", receipt(func(r *wire.Receipt) { r.Recipient = "reviewer@delta" })},
		{"an unknown message", "rejected:unknown message", receipt(func(r *wire.Receipt) { r.Msg = wire.NewID(w.clock()) })},
		{"an extra field", "rejected:invalid receipt", bytes.Replace(good, []byte(`{"rec":{`), []byte(`{"rec":{"x":1,`), 1)},
		{"not JSON", "rejected:invalid receipt", []byte(`{"rec":`)},
		{"a higher state", "accepted", receipt(func(r *wire.Receipt) { r.State, r.Seq, r.Note = "acked", seq-50, "done" })},
		{"a message received here", "rejected:unknown message", receipt(func(r *wire.Receipt) { r.Msg = mine })},
	} {
		results, err := alpha.Receipts(ctx, lan.Peer{Name: "beta", Key: beta.Key()}, [][]byte{tc.raw})
		noError(t, err)
		sameList(t, tc.name, results, tc.want)
	}
	c := alpha.confirmation(msg, "reviewer@beta")
	same(t, "in the end", c.State+" "+c.Note, "acked done")

	// Over a relay the host is the one that the receipt names: gamma, whom this
	// message never went to, has no say.
	noError(t, alpha.db.write(ctx, func(tx *tx) error {
		got, err := alpha.acceptReceipt(tx, wire.MakeReceipt(gamma.keyring().key, wire.Receipt{
			Msg: msg, Recipient: "reviewer@gamma", State: "acked", At: w.clock(), Seq: 1,
		}), "")
		same(t, "of a host it never went to", got, "rejected:unknown message")
		return err
	}))
}

func TestH3_APeerWithoutReceipts(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	alpha.oldPeer("/v1/receipts")
	pair(alpha, beta, true)
	msg := alpha.send(beta, "hello")
	same(t, "mail", alpha.tick().LAN.Sent, 1)

	r := beta.tick().Receipts
	same(t, "sent", r.Sent, 0)
	same(t, "deferred", r.Deferred, 1)
	hasPart(t, "note", ask[string](beta, "SELECT error FROM receipts_out"), "older peer")
	wait := time.Duration(ask[int64](beta, "SELECT next_at FROM receipts_out")-w.now.Load()) * time.Millisecond
	if wait < 55*time.Minute || wait > 65*time.Minute {
		t.Errorf("next try: got in %s; want in about an hour", wait)
	}
	w.pass(time.Minute)
	r = beta.tick().Receipts
	same(t, "after 60 s: sent", r.Sent, 0)
	same(t, "after 60 s: deferred", r.Deferred, 0)
	w.pass(73 * time.Hour)
	beta.tick()
	sameList(t, "after 73 h", beta.owed())
	same(t, "audited", beta.audited("receipt.expired"), 1)
	same(t, "alpha shows", alpha.routed(msg), "handed-over")
}

// States rise, skip what nobody did, and are reported once each.
func TestEveryStateIsReportedOnce(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	msg := alpha.send(beta, "hello")
	alpha.tick()
	beta.tick()
	step := func(what string, do func() error, owes []string, shows string) {
		t.Helper()
		noError(t, do())
		sameList(t, what+": owes", beta.owed(), owes...)
		beta.tick()
		same(t, what+": alpha shows", alpha.confirmation(msg, "reviewer@beta").State, shows)
	}
	notify := func() error { return beta.Notify(ctx, "reviewer", msg) }
	read := func() error { _, err := beta.Read(ctx, "reviewer", msg); return err }
	ack := func() error { _, err := beta.Ack(ctx, "reviewer", msg, "n", "d"); return err }
	step("notified", notify, []string{"notified"}, "notified")
	step("notified again", notify, nil, "notified")
	step("acked without being read", ack, []string{"acked"}, "acked")
	step("acked again", ack, nil, "acked")
	step("read after that", read, nil, "acked")
	step("notified after that", notify, nil, "acked")
	m, err := beta.Read(ctx, "reviewer", msg)
	noError(t, err)
	same(t, "beta's own state", m.State+" "+m.Note+" "+m.Did, "acked n d")
}

// Receipts that overtake each other end in the highest state.
func TestReceiptsOutOfOrder(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	msg := alpha.send(beta, "hello")
	alpha.tick()
	_, err := beta.Read(ctx, "reviewer", msg)
	noError(t, err)
	_, err = beta.Ack(ctx, "reviewer", msg, "", "done")
	noError(t, err)
	var all [][]byte
	noError(t, beta.db.read(ctx, func(t *tx) error {
		return t.each("SELECT wire FROM receipts_out ORDER BY seq DESC", nil, func(scan func(...any) error) error {
			var b []byte
			err := scan(&b)
			all = append(all, b)
			return err
		})
	}))
	results, err := alpha.Receipts(ctx, lan.Peer{Name: "beta", Key: beta.Key()}, all)
	noError(t, err)
	sameList(t, "results", results, "accepted", "stale", "stale")
	same(t, "alpha shows", alpha.confirmation(msg, "reviewer@beta").State, "acked")
	same(t, "beta sends them all the same", beta.tick().Receipts.Sent, 3)
	sameList(t, "beta owes", beta.owed())
}

// A sender that asks again gets the same bytes again, whatever the receiver's
// key is by then: what did arrive is a duplicate, and a relay has it already.
func TestAReceiptKeepsItsBytes(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	msg := alpha.sendByRelay(beta, "hello")
	beta.relayOnly()
	bytesOwed := func() []byte {
		t.Helper()
		same(t, "receipts owed", beta.count("receipts_out"), 1)
		return ask[[]byte](beta, "SELECT wire FROM receipts_out")
	}
	first := bytesOwed()
	same(t, "sent", beta.relayOnly().ReceiptsSent, 1)

	again := func(what string) {
		t.Helper()
		env := ask[[]byte](alpha, "SELECT wire FROM wires WHERE msg = ?", msg)
		noError(t, beta.db.write(ctx, func(tx *tx) error {
			_, result, err := beta.receiveEnvelope(tx, env, "", true)
			same(t, what, result, "duplicate")
			return err
		}))
		if got := bytesOwed(); !bytes.Equal(got, first) {
			t.Errorf("%s: got %s; want %s", what, got, first)
		}
	}
	w.pass(time.Hour)
	again("an hour later")
	must(beta.RotateKey(ctx))
	w.pass(time.Hour)
	again("after its own rotation")
	same(t, "the relay takes it", beta.relayOnly().ReceiptsSent, 1)
	r := alpha.relayOnly()
	same(t, "applied", r.Receipts, 1)
	same(t, "in quarantine", r.Quarantined, 0)
	same(t, "settled", alpha.sentState(msg), "settled")

	// And over the LAN to a host that took the rotation.
	noError(t, rotateAt(alpha, beta))
	alpha.sql("UPDATE peers SET lan_failures = 0, addr = ?", beta.addr)
	beta.sql("UPDATE peers SET lan_failures = 0, addr = ?", alpha.addr)
	noError(t, beta.db.write(ctx, func(tx *tx) error { return beta.oweAgain(tx, msg, false) }))
	if got := bytesOwed(); !bytes.Equal(got, first) {
		t.Errorf("for the LAN: got %s; want %s", got, first)
	}
	same(t, "sent over the LAN", beta.tick().Receipts.Sent, 1)
	same(t, "refused", beta.audited("receipt.rejected"), 0)
}

// The relay says duplicate when it has the mail already: the receiver is not
// asked, but what it owes is queued again when the relay brings it again.
func TestARelayDuplicateOwesReceiptsAgain(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.sendByRelay(beta, "hello")
	beta.receiveSilently() // its receipt is lost
	w.relay.wipe()
	beta.relayOnly()
	alpha.relayOnly()
	same(t, "pushed again", alpha.relayOnly().Accepted, 1)
	same(t, "a duplicate at beta", beta.relayOnly().Duplicates, 1)
	sameList(t, "beta owes", beta.owed(), "delivered")
	same(t, "sent", beta.relayOnly().ReceiptsSent, 1)
	alpha.relayOnly()
	same(t, "settled", alpha.sentState(msg), "settled")
}

// A recipient may read mail long after its sender has pruned it. Nothing is
// wrong then, and nothing belongs in quarantine.
func TestReceiptForPrunedMailIsStale(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	alpha.tick()
	beta.tick()
	beta.tick()
	alpha.tick()
	same(t, "state before", alpha.sentState(msg), "settled")
	w.pass(8 * 24 * time.Hour)
	pruned, err := alpha.Prune(t.Context(), 7*24*time.Hour)
	noError(t, err)
	same(t, "removed", pruned.Removed, 1)

	_, err = beta.Read(t.Context(), "reviewer", msg)
	noError(t, err)
	for range 4 { // the LAN is tried twice first
		w.pass(time.Minute)
		beta.tick()
	}
	r := alpha.tick()
	same(t, "receipts that arrived", r.Relay.Duplicates, 1)
	same(t, "quarantined", r.Relay.Quarantined, 0)
}
