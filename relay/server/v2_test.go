package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func escape(k wire.PublicKey) string { return url.QueryEscape(k.String()) }

func TestC13_TwoHostsNamedBeta(t *testing.T) {
	r := newRig(t)
	alpha, beta, other := r.enrol("alpha"), r.enrol("beta"), r.enrol("beta")
	r.pushed(alpha, mail(alpha, beta))

	_, w := alpha.Envelope(beta, "hello", "hi") // a
	r.call(alpha, "POST", "/v1/relay/messages", envelopes(w)).is(413).says(`{"stored":0,"error":"recipient host ambiguous"}`)

	info := r.call(nil, "GET", "/v2/relay/info", nil).is(200).json() // b
	same(t, "b: relay key", info["relay_pubkey"].(string), r.relay.Key().String())
	same(t, "b: retention", info["limits"].(m)["retention_days"].(float64), 14)
	if _, has := info["you"]; has {
		t.Error("b: an unsigned info has a you")
	}

	for _, h := range []*wiretest.Host{beta, other} { // c
		you := r.call(h, "GET", "/v2/relay/info", nil).is(200).json()["you"].(m)
		same(t, "c: pubkey", you["pubkey"].(string), h.Pub().String())
		same(t, "c: host", you["host"].(string), "beta")
	}

	for h, want := range map[*wiretest.Host]int{beta: 1, other: 0} { // d
		q := r.request(h, "GET", "/v1/relay/messages?after=0", nil)
		q.Header.Del(wire.HeaderKey)
		var p v1Page
		r.do(q).is(200).into(&p)
		same(t, "d: items", len(p.Items), want)
	}

	epoch := r.epoch() // e
	target := "/v2/relay/items?after=0&limit=10&epoch=" + epoch
	same(t, "e: items", len(r.call(beta, "GET", target, nil).page().Items), 1)

	q := r.request(beta, "GET", target, nil) // f
	q.URL.RawQuery = strings.Replace(q.URL.RawQuery, "after=0", "after=1", 1)
	r.do(q).is(401).says(`{"error":"bad relay hop"}`)

	r.call(beta, "GET", "/v2/relay/items?after=0&epoch=stale", nil).is(409). // g
											says(`{"error":"the epoch has changed","epoch":"%s"}`, epoch)

	q = r.request(beta, "GET", target, nil) // h
	q.Header.Set(wire.HeaderTS, "NaN")
	r.do(q).is(401).says(`{"error":"bad relay hop"}`)

	next := wiretest.NewHost("beta") // i
	doc := wire.MakeRotation(beta.Key, next.Key, "beta", next.Enc.Public(), r.clock())
	r.call(nil, "POST", "/v2/relay/rotate", m{"rotation": json.RawMessage(doc)}).is(200).says(`{"moved":1}`)

	same(t, "j: items of the new key", len(r.call(next, "GET", target, nil).page().Items), 1) // j
	r.call(beta, "GET", target, nil).is(401).says(`{"error":"bad relay hop"}`)
	r.call(nil, "POST", "/v2/relay/rotate", m{"rotation": json.RawMessage(doc)}).is(404, "NOT_ENROLLED")
}

func TestPushAnswers(t *testing.T) {
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxBatch, l.PushesPerMinute = 3, 4 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	id, w := alpha.Envelope(beta, "hello", "hi")
	bad := m{"kind": "letter", "item_id": "x\"\u2028", "targets": []any{}}
	good := item("envelope", id, w, beta)
	p := r.call(alpha, "POST", "/v2/relay/items", m{"items": []any{bad, good, m{"item_id": 7}}, "extra": 1}).is(200)
	res := p.results()
	same(t, "results", len(res), 3)
	same(t, "first", res[0].ItemID+" "+res[0].Status, "x\"\u2028 rejected:bad kind")
	same(t, "third", res[2].ItemID+" "+res[2].Status, " rejected:bad item id")
	if !strings.HasPrefix(string(p.body), `{"results":[{"item_id":"x\"`+"\u2028"+`","status":"rejected:bad kind","targets":[]},`) {
		t.Errorf("a rejected item: got %.200s; want no accept and no targets", p.body)
	}
	a, err := wire.VerifyAccept(res[1].Accept, res[1].Sig, r.relay.Key())
	if err != nil {
		t.Fatalf("accept: %v", err)
	}
	same(t, "accept", a.ItemID+" "+a.Targets[0].WireHash, fmt.Sprintf("%s %x", id, wire.Hash(w)))
	same(t, "target", res[1].Targets[0]["host_pubkey"].(string), beta.Pub().String())
	same(t, "canonical", string(res[1].Accept), string(must(wire.Canonical(res[1].Accept))))
	same(t, "again", r.push(alpha, good)[0].Status, "duplicate")

	for _, body := range []string{`{}`, `[]`, `{"items":{}}`, `{"items":null}`, `{"items":[1,2,3,4]}`, `null`} {
		r.call(alpha, "POST", "/v2/relay/items", body).is(400, "BAD_BATCH")
	}
	r.call(alpha, "POST", "/v2/relay/items", `{"items":[]}`).is(200).says(`{"results":[]}`)
	r.push(alpha, good)
	same(t, "over the rate", r.push(alpha, good)[0].Status, "rejected:rate")
}

func TestC5_PagesAndAcks(t *testing.T) {
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxPull = 2 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	for range 3 {
		r.pushed(alpha, mail(alpha, beta))
	}
	epoch := r.epoch()
	pull := func(query string) pulled { return r.call(beta, "GET", "/v2/relay/items?"+query, nil).page() }
	p := pull("after=0&limit=500&epoch=")
	same(t, "page 1", fmt.Sprint(len(p.Items), p.LastSeq, p.More, p.HeadSeq, p.Epoch), fmt.Sprint(2, 2, true, 3, epoch))
	p = pull("after=2")
	same(t, "page 2", fmt.Sprint(len(p.Items), p.LastSeq, p.More), "1 3 false")
	p = pull("after=3")
	same(t, "an empty page", fmt.Sprint(len(p.Items), p.LastSeq, p.More), "0 3 false")
	same(t, "an empty page's items", p.Items != nil, true)
	same(t, "limit 1", len(pull("after=0&limit=1").Items), 1)
	same(t, "limit 0", len(pull("after=0&limit=0").Items), 2)
	same(t, "nothing given", len(pull("").Items), 2)

	for _, q := range []string{"after=-1", "after=", "after=1.5", "after=+1", "after=%2B1", "after=1e3", "after=0x1", "after=9007199254740992",
		"after=99999999999999999999", "after=1&after=1", "after=0&%61fter=0", "limit=-1", "limit=x", "wait=-1", "wait=1&wait=1", "epoch=a&epoch=a", "epoch=%zz", "%zz=1"} {
		r.call(beta, "GET", "/v2/relay/items?"+q, nil).is(400, "BAD_QUERY")
	}
	same(t, "unknown parameters", len(pull("x=1&x=2&after=0&AFTER=9&after%20=7").Items), 2)

	at := fmt.Sprintf(`"epoch":"%s","head_seq":3}`, epoch)
	ack := func(e string, through any) *reply {
		return r.call(beta, "POST", "/v2/relay/ack", m{"epoch": e, "through": through})
	}
	for _, through := range []any{4, -1, 1.5, "2", nil, true, []int{1}, 1e300} {
		ack(epoch, through).is(400).says(`{"error":"through is no sequence number of this queue","code":"BAD_ACK",%s`, at)
	}
	r.call(beta, "POST", "/v2/relay/ack", m{"epoch": epoch}).is(400, "BAD_ACK")
	ack("stale", 2).is(409).says(`{"error":"the epoch has changed","code":"EPOCH",%s`, at)
	r.call(beta, "POST", "/v2/relay/ack", m{"epoch": 7, "through": 2}).is(409, "EPOCH")
	ack(epoch, json.RawMessage(`2e0`)).is(200).says(`{"acked_through":2,"deleted":2,"head_seq":3}`)
	p = pull("after=0")
	same(t, "left", fmt.Sprint(len(p.Items), p.Items[0].Seq), "1 3")
}

func TestPullServesTheExactBytes(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	var want [][]byte
	for i := range 6 { // enough for an answer in several pieces
		_, w := alpha.Envelope(beta, "hello", strings.Repeat("x", 15999*i+i%3))
		want = append(want, w)
		r.pushed(alpha, item("envelope", must(wire.ParseEnvelope(w)).ID, w, beta))
	}
	rid, rw := alpha.Receipt("01HZZZZZZZZZZZZZZZZZZZZZZZ", "read", 1)
	r.pushed(alpha, item("receipt", rid, rw, beta))
	p := r.call(beta, "GET", "/v2/relay/items?after=0", nil).page()
	same(t, "items", len(p.Items), 7)
	for i, w := range want {
		same(t, "bytes", string(p.Items[i].Wire), string(w))
	}
	same(t, "the receipt", p.Items[6].Kind+" "+p.Items[6].ItemID+" "+p.Items[6].Sender, "receipt "+rid+" "+alpha.Pub().String())
	v1 := r.call(beta, "GET", "/v1/relay/messages?after=0", nil).is(200)
	var pg v1Page
	v1.into(&pg)
	same(t, "v1 items", len(pg.Items), 6)
	same(t, "v1 cursor", pg.Cursor, 7)
	for i, w := range want {
		same(t, "v1 bytes", string(pg.Items[i].Envelope), string(w))
	}
	small := r.call(beta, "GET", "/v2/relay/items?after=6", nil)
	same(t, "a small page's length", small.header.Get("Content-Length"), fmt.Sprint(len(small.body)))
	same(t, "its wire", strings.Contains(string(small.body), `"wire_b64":"`+base64.StdEncoding.EncodeToString(rw)+`"`), true)
}

func TestJ1_SenderList(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	put := func(list []byte, sig string) *reply {
		return r.call(beta, "POST", "/v2/relay/senders", m{"list": json.RawMessage(list), "sig": sig})
	}
	made := func(by *wiretest.Host, keys int, iat time.Time) *reply {
		list := make([]wire.PublicKey, keys)
		for i := range list {
			list[i] = wire.PublicKey{1, byte(i), byte(i >> 8)}
		}
		return put(wire.MakeSenderList(by.Key, list, iat))
	}
	made(beta, 1, r.clock().Add(6*time.Minute)).is(400, "BAD_LIST")
	made(beta, 1025, r.clock()).is(400, "BAD_LIST")
	made(alpha, 1, r.clock()).is(400, "BAD_LIST") // for another host
	list, _ := wire.MakeSenderList(beta.Key, nil, r.clock())
	put(list, alpha.Key.Sign(list)).is(401, "BAD_SIGNATURE")
	made(beta, 1024, r.clock()).is(200)
	made(beta, 2, r.clock()).is(409, "NOT_NEWER")
	made(beta, 2, r.clock().Add(-time.Second)).is(409, "NOT_NEWER")
	made(beta, 2, r.clock().Add(time.Second)).is(200)
}

func TestJ11_InfoWithABadHop(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	for name, spoil := range map[string]func(h map[string][]string){
		"signature": func(h map[string][]string) { h["X-Mbx-Sig"] = []string{"x"} },
		"time":      func(h map[string][]string) { h["X-Mbx-Ts"] = []string{"1"} },
		"key":       func(h map[string][]string) { h["X-Mbx-Key"] = []string{wire.PublicKey{9}.String()} },
		"twice":     func(h map[string][]string) { h["X-Mbx-Sig"] = append(h["X-Mbx-Sig"], h["X-Mbx-Sig"]...) },
		"no sig":    func(h map[string][]string) { delete(h, "X-Mbx-Sig") },
	} {
		q := r.request(alpha, "GET", "/v2/relay/info", nil)
		spoil(q.Header)
		if _, has := r.do(q).is(200).json()["you"]; has {
			t.Errorf("%s: got a you; want none", name)
		}
	}
	// A body that nobody signed, and one that is too large to look at.
	q := r.request(alpha, "GET", "/v2/relay/info", nil)
	q.Body, q.ContentLength = r.request(nil, "GET", "/", strings.Repeat("x", 100)).Body, 100
	if _, has := r.do(q).is(200).json()["you"]; has {
		t.Error("unsigned body: got a you; want none")
	}
}

func TestInfo(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	info := r.call(nil, "GET", "/v2/relay/info", nil).is(200).json()
	same(t, "v", info["v"].(float64), 2)
	same(t, "version", info["version"].(string), "test")
	got := info["limits"].(m)
	want := m{"max_wait_s": 25.0}
	l := relay.DefaultLimits()
	for _, f := range relay.LimitFields(&l) {
		if f.Served {
			want[f.Name] = float64(*f.Value)
		}
	}
	same(t, "limits", fmt.Sprint(got), fmt.Sprint(want))

	you := func() string {
		return string(must(json.Marshal(r.call(alpha, "GET", "/v2/relay/info", nil).json()["you"].(m)["enc_ad"])))
	}
	same(t, "no ad", you(), `null`)
	sig := alpha.Key.Sign(wire.EncKeyV1Payload("alpha", alpha.Enc.Public()))
	r.call(alpha, "POST", "/v1/relay/enc-key", m{"enc_pub": alpha.Enc.Public(), "sig": sig}).is(200)
	enc := alpha.Enc.Public()
	same(t, "v1 alone", you(), fmt.Sprintf(`{"enc_pub":null,"exp":null,"v1":"%s"}`, enc))
	exp := r.clock().Add(wire.EncAdLifetime)
	ad, adSig := wire.MakeEncAd(alpha.Key, "alpha", enc, r.clock(), exp)
	r.call(alpha, "POST", "/v2/relay/enc-key", m{"ad": json.RawMessage(ad), "sig": adSig}).is(200)
	same(t, "both", you(), fmt.Sprintf(`{"enc_pub":"%s","exp":"%s","v1":"%s"}`, enc, wire.FormatTime(exp), enc))
}

func TestEncKey(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	enc := beta.Enc.Public()
	ad, sig := wire.MakeEncAd(beta.Key, "beta", enc, r.clock(), r.clock().Add(time.Hour))
	r.call(beta, "POST", "/v2/relay/enc-key", m{"ad": json.RawMessage(ad), "sig": alpha.Key.Sign(ad)}).is(400, "BAD_AD")
	r.call(beta, "POST", "/v2/relay/enc-key", m{"ad": json.RawMessage(ad)}).is(400, "BAD_AD")
	r.call(beta, "POST", "/v2/relay/enc-key", m{"ad": json.RawMessage(ad), "sig": sig}).is(200).says(`{"ok":true}`)
	get := "/v2/relay/enc-key?host=beta"
	r.call(alpha, "GET", get, nil).is(200).says(`{"host":"beta","host_pubkey":"%s","enc_pub":"%s","ad":%s,"ad_sig":"%s"}`, beta.Pub(), enc, ad, sig)
	r.call(alpha, "GET", get+"&host=beta", nil).is(400, "BAD_QUERY")

	other := wiretest.NewHost("x").Enc.Public()
	r.call(beta, "POST", "/v1/relay/enc-key", m{"enc_pub": other, "sig": sig}).is(401, "BAD_SIGNATURE")
	v1Sig := beta.Key.Sign(wire.EncKeyV1Payload("beta", other))
	r.call(beta, "POST", "/v1/relay/enc-key", m{"enc_pub": other, "sig": v1Sig}).is(200)
	r.call(alpha, "GET", get, nil).is(200).says(`{"host":"beta","host_pubkey":"%s","enc_pub":"%s","sig":"%s","ad":%s,"ad_sig":"%s"}`, beta.Pub(), other, v1Sig, ad, sig)
	r.now.Add(time.Hour.Milliseconds())
	r.call(alpha, "GET", get, nil).is(200).says(`{"host":"beta","host_pubkey":"%s","enc_pub":"%s","sig":"%s"}`, beta.Pub(), other, v1Sig)
}
