package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func envelopes(wires ...[]byte) []byte {
	return append(append([]byte(`{"envelopes":[`), bytes.Join(wires, []byte(","))...), `]}`...)
}

type v1Page struct {
	Items []struct {
		Seq      int64           `json:"seq"`
		Envelope json.RawMessage `json:"envelope"`
		From     string          `json:"from"`
	} `json:"items"`
	Cursor int64 `json:"cursor"`
}

func TestA5_V1MailOverHTTP(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	const plain = "The build is green."
	_, w := alpha.Envelope(beta, "hello", plain)
	r.call(alpha, "POST", "/v1/relay/messages", envelopes(w)).is(200).says(`{"stored":1}`)

	p := r.call(beta, "GET", "/v1/relay/messages?after=0", nil).is(200)
	var page v1Page
	p.into(&page)
	if len(page.Items) != 1 {
		t.Fatalf("pull: got %d items; want 1", len(page.Items))
	}
	got := page.Items[0]
	same(t, "from", got.From, "alpha")
	same(t, "cursor", page.Cursor, got.Seq)
	if !bytes.Contains(p.body, append([]byte(`"envelope":`), w...)) {
		t.Error("the envelope is not the bytes that were pushed")
	}
	body, err := wire.Open(got.Envelope, beta.Enc)
	same(t, "open", fmt.Sprint(string(body), err), plain+"<nil>")
	if _, err := wire.Open(got.Envelope, alpha.Enc); err == nil {
		t.Error("alpha opened mail for beta")
	}

	r.call(beta, "POST", "/v1/relay/ack", m{"cursor": page.Cursor}).is(200).says(`{"ok":true}`)
	r.call(beta, "GET", "/v1/relay/messages?after=0", nil).is(200).says(`{"items":[],"cursor":%d}`, page.Cursor)
	same(t, "items left", must(r.relay.Status(t.Context())).Totals.Items, 0)
}

func TestA6_EnrolmentIsProven(t *testing.T) {
	r := newRig(t)
	alpha, mallory := wiretest.NewHost("alpha"), wiretest.NewHost("alpha")
	r.call(nil, "POST", "/v1/relay/enrol", enrolBody(alpha, "made up")).is(401, "BAD_CHALLENGE")
	challenge := r.challenge(alpha)
	r.call(nil, "POST", "/v1/relay/enrol", enrolBody(mallory, challenge)).is(401, "BAD_CHALLENGE")
	forged := enrolBody(alpha, challenge)
	forged["sig"] = mallory.Key.Sign(wire.EnrolPayload(challenge, "alpha", alpha.Pub(), ""))
	r.call(nil, "POST", "/v1/relay/enrol", forged).is(401, "BAD_CHALLENGE")

	_, w := mallory.Envelope(alpha, "hello", "hi")
	r.call(mallory, "POST", "/v1/relay/messages", envelopes(w)).is(401).says(`{"error":"bad relay hop"}`)
	r.call(nil, "POST", "/v1/relay/enrol", enrolBody(alpha, challenge)).is(200) // what failed used nothing up
	r.call(nil, "POST", "/v1/relay/enrol", enrolBody(alpha, challenge)).is(401, "BAD_CHALLENGE")
}

func TestA4_V1Refusals(t *testing.T) {
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems, l.MaxBatch = 2, 3 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	var w [][]byte
	for range 4 {
		_, e := alpha.Envelope(beta, "hello", "hi")
		w = append(w, e)
	}
	r.call(alpha, "POST", "/v1/relay/messages", envelopes(w...)).is(413).
		says(`{"stored":0,"error":"more than 3 envelopes in a batch"}`)
	p := r.call(alpha, "POST", "/v1/relay/messages", envelopes(w[:3]...)).is(200)
	same(t, "stored", p.json()["stored"].(float64), 2)
	if !strings.Contains(p.error(), "queue depth") {
		t.Errorf("error: got %q; want one about the queue depth", p.error())
	}
	p = r.call(alpha, "POST", "/v1/relay/messages", envelopes(w[2])).is(413)
	same(t, "stored", p.json()["stored"].(float64), 0)
	for _, body := range []string{`{}`, `{"envelopes":{}}`, `{"envelopes":null}`, `[]`, `7`} {
		r.call(alpha, "POST", "/v1/relay/messages", body).is(400, "BAD_BATCH")
	}
	r.call(alpha, "POST", "/v1/relay/messages", `{"envelopes":[`).is(400, "BAD_JSON")
	r.call(alpha, "POST", "/v1/relay/messages", envelopes()).is(200).says(`{"stored":0}`)
}

func TestV1AckNeverPassesTheHead(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	_, w := alpha.Envelope(beta, "hello", "hi")
	r.call(alpha, "POST", "/v1/relay/messages", envelopes(w)).is(200)
	for _, cursor := range []string{`-1`, `"1"`, `null`, `[1]`} {
		r.call(beta, "POST", "/v1/relay/ack", `{"cursor":`+cursor+`}`).is(400, "BAD_ACK")
	}
	r.call(beta, "POST", "/v1/relay/ack", `{}`).is(400, "BAD_ACK")
	r.call(beta, "POST", "/v1/relay/ack", `{"cursor":1e300}`).is(200)
	you := r.call(beta, "GET", "/v2/relay/info", nil).json()["you"].(m)
	same(t, "acked through", you["acked_through"].(float64), 1)
}

func TestJ2_SenderListHoldsForV1AndV2(t *testing.T) {
	r := newRig(t)
	alpha, beta, mallory := r.enrol("alpha"), r.enrol("beta"), r.enrol("mallory")
	r.pushed(mallory, mail(mallory, beta)) // no list: everybody who is enrolled
	list, sig := wire.MakeSenderList(beta.Key, []wire.PublicKey{alpha.Pub()}, r.clock())
	r.call(beta, "POST", "/v2/relay/senders", m{"list": json.RawMessage(list), "sig": sig}).is(200).says(`{"ok":true}`)

	before := r.snapshot(beta)
	_, w := mallory.Envelope(beta, "hello", "hi")
	r.call(mallory, "POST", "/v1/relay/messages", envelopes(w)).is(413).
		says(`{"stored":0,"error":"sender not accepted by target"}`)
	res := r.push(mallory, mail(mallory, beta))[0]
	same(t, "v2 status", res.Status, "rejected:sender not accepted by target")
	same(t, "the store", r.snapshot(beta), before)
	r.pushed(alpha, mail(alpha, beta))
}

func TestJ3_CrowdedName(t *testing.T) {
	r := newRig(t, noRates)
	alpha := r.enrol("alpha")
	var betas []*wiretest.Host
	for range 17 {
		betas = append(betas, r.enrol("beta"))
	}
	_, w := alpha.Envelope(betas[0], "hello", "hi")
	r.call(alpha, "POST", "/v1/relay/messages", envelopes(w)).is(413).
		says(`{"stored":0,"error":"recipient host ambiguous"}`)
	byName := r.request(betas[3], "GET", "/v1/relay/messages?after=0", nil)
	byName.Header.Del(wire.HeaderKey)
	r.do(byName).is(401).says(`{"error":"bad relay hop"}`)
	r.call(betas[3], "GET", "/v1/relay/messages?after=0", nil).is(200)
	r.pushed(alpha, mail(alpha, betas[3]))
	r.call(betas[3], "GET", "/v2/relay/items?after=0", nil).is(200)
	r.enrol("beta")
}

func TestJ4_AmbiguousName(t *testing.T) {
	r := newRig(t)
	alpha, beta, _ := r.enrol("alpha"), r.enrol("beta"), r.enrol("BETA")
	_, w := alpha.Envelope(beta, "hello", "hi")
	r.call(alpha, "POST", "/v1/relay/messages", envelopes(w)).is(413).
		says(`{"stored":0,"error":"recipient host ambiguous"}`)
	sig := beta.Key.Sign(wire.EncKeyV1Payload("beta", beta.Enc.Public()))
	r.call(beta, "POST", "/v1/relay/enc-key", m{"enc_pub": beta.Enc.Public(), "sig": sig}).is(200)
	for _, v := range []string{"/v1", "/v2"} {
		r.call(alpha, "GET", v+"/relay/enc-key?host=beta", nil).is(404, "NOT_FOUND")
		r.call(alpha, "GET", v+"/relay/enc-key?host=nobody", nil).is(404, "NOT_FOUND")
		r.call(alpha, "GET", v+"/relay/enc-key", nil).is(404, "NOT_FOUND")
		r.call(alpha, "GET", v+"/relay/enc-key?pubkey="+escape(beta.Pub()), nil).is(200).
			says(`{"host":"beta","host_pubkey":"%s","enc_pub":"%s","sig":"%s"}`, beta.Pub(), beta.Enc.Public(), sig)
	}
}
