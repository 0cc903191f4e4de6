package host

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// rogue is a paired host of the LAN that does what it likes, and keeps every
// byte it is sent.
type rogue struct {
	*wiretest.Host
	w    *world
	addr string

	mu     sync.Mutex
	seen   strings.Builder
	answer http.HandlerFunc
}

// rogue pairs a host with one that answers envelopes and receipts as it likes,
// and otherwise as the protocol has it.
func (w *world) rogue(name string, victims ...*testHost) *rogue {
	w.t.Helper()
	r := &rogue{Host: wiretest.NewHost(name), w: w}
	srv := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		body, _ := io.ReadAll(in.Body)
		r.mu.Lock()
		fmt.Fprintln(&r.seen, in.Method, in.URL, in.Header, string(body))
		answer := r.answer
		r.mu.Unlock()
		in.Body = io.NopCloser(strings.NewReader(string(body)))
		switch {
		case answer != nil:
			answer(out, in)
		default:
			r.behave(out, in)
		}
	}))
	w.t.Cleanup(srv.Close)
	r.addr = srv.Listener.Addr().String()
	for _, h := range victims {
		noError(w.t, h.db.write(context.Background(), func(t *tx) error { return h.addPeer(t, name, r.Pub(), "", r.addr) }))
	}
	return r
}

// behave answers as an honest host would that keeps nothing.
func (r *rogue) behave(out http.ResponseWriter, in *http.Request) {
	switch in.URL.Path {
	case "/v1/enc-key":
		pub := r.Enc.Public()
		answerJSON(out, map[string]any{"v": 1, "host": r.Name, "enc_pub": pub.String(), "sig": r.Key.Sign(wire.EncKeyV1Payload(r.Name, pub))})
	case "/v2/envelopes":
		answerJSON(out, map[string]any{"results": r.results(in, "accepted")})
	case "/v1/receipts":
		answerJSON(out, map[string]any{"results": []string{}})
	default:
		http.NotFound(out, in)
	}
}

// results are one for each envelope of a request.
func (r *rogue) results(in *http.Request, word string) (list []map[string]any) {
	var m struct {
		Envelopes []struct {
			ID string `json:"id"`
		} `json:"envelopes"`
	}
	_ = json.NewDecoder(in.Body).Decode(&m)
	for _, e := range m.Envelopes {
		list = append(list, map[string]any{"id": e.ID, "result": word})
	}
	return list
}

// answers sets what it says to one path; nil ends that.
func (r *rogue) answers(path string, fn http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = nil
	if fn != nil {
		r.answer = func(out http.ResponseWriter, in *http.Request) {
			if in.URL.Path == path {
				fn(out, in)
			} else {
				r.behave(out, in)
			}
		}
	}
}

func (r *rogue) sawNoBody() {
	r.w.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	sawNoBody(r.w.t, r.Name, []byte(r.seen.String()))
}

// mails has it hand envelopes to a host over the LAN and returns what came of
// each.
func (r *rogue) mails(to *testHost, envelopes ...[]byte) (results []string) {
	r.w.t.Helper()
	c := lan.NewClient(r.w.clock)
	defer c.Close()
	got, err := c.Envelopes(context.Background(), lan.Caller{Host: r.Name, Key: r.Key}, to.addr, envelopes)
	noError(r.w.t, err)
	for _, one := range got {
		results = append(results, one.Result)
	}
	return results
}

// reports has it bring receipts.
func (r *rogue) reports(to *testHost, receipts ...[]byte) []string {
	r.w.t.Helper()
	c := lan.NewClient(r.w.clock)
	defer c.Close()
	got, err := c.Receipts(context.Background(), lan.Caller{Host: r.Name, Key: r.Key}, to.addr, receipts)
	noError(r.w.t, err)
	return got
}

// side is a host of the test as somebody who makes mail by hand.
func side(h *testHost) *wiretest.Host {
	return &wiretest.Host{Name: h.Name(), Key: h.keyring().key, Enc: h.keyring().enc}
}

// receiptOf makes a receipt.
func receiptOf(key wire.PrivateKey, msg, recipient, state string, seq int64) []byte {
	return wire.MakeReceipt(key, wire.Receipt{Msg: msg, Recipient: recipient, State: state, At: t0, Seq: seq})
}

// TestAnswersOfPeers: what a peer answers instead of its results either ends a
// row, and the sender hears of it, or leaves it for another try; it never
// touches another host's mail.
func TestAnswersOfPeers(t *testing.T) {
	type outcome struct {
		row   int    // rows that are left
		route string // where the sender sees the mail
		alert int
	}
	waits, ended, taken := outcome{1, "queued", 0}, outcome{0, "undelivered", 1}, outcome{0, "handed-over", 0}
	body := func(text string) func(r *rogue) http.HandlerFunc {
		return func(*rogue) http.HandlerFunc {
			return func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write([]byte(text)) }
		}
	}
	status := func(code int, head ...string) func(r *rogue) http.HandlerFunc {
		return func(*rogue) http.HandlerFunc {
			return func(out http.ResponseWriter, _ *http.Request) {
				for i := 0; i+1 < len(head); i += 2 {
					out.Header().Set(head[i], head[i+1])
				}
				out.WriteHeader(code)
				if code >= 200 && code != 204 && code != 304 {
					_, _ = out.Write([]byte(`{"error":"\u001b[2Jno"}`))
				}
			}
		}
	}
	list := func(edit func(l []map[string]any) []map[string]any) func(r *rogue) http.HandlerFunc {
		return func(r *rogue) http.HandlerFunc {
			return func(out http.ResponseWriter, in *http.Request) {
				answerJSON(out, map[string]any{"results": edit(r.results(in, "accepted"))})
			}
		}
	}
	word := func(w string) func(r *rogue) http.HandlerFunc {
		return list(func(l []map[string]any) []map[string]any { l[0]["result"] = w; return l })
	}
	for name, c := range map[string]struct {
		answer func(r *rogue) http.HandlerFunc
		want   outcome
	}{
		"a short list":       {list(func(l []map[string]any) []map[string]any { return l[:0] }), ended},
		"a long list":        {list(func(l []map[string]any) []map[string]any { return append(l, l[0], l[0], l[0]) }), taken},
		"another id":         {list(func(l []map[string]any) []map[string]any { l[0]["id"] = wire.NewID(t0); return l }), ended},
		"no id":              {list(func(l []map[string]any) []map[string]any { delete(l[0], "id"); return l }), ended},
		"an id of a number":  {list(func(l []map[string]any) []map[string]any { l[0]["id"] = 7; return l }), waits},
		"results of null":    {body(`{"results":[null]}`), ended},
		"accepted":           {word("accepted"), taken},
		"duplicate":          {word("duplicate"), taken},
		"no word":            {word(""), ended},
		"another word":       {word("ACCEPTED"), ended},
		"a word of controls": {word("rejected:\x1b[2J\u2028" + strings.Repeat("x", 5000)), ended},
		"junk":               {body("<html>"), waits},
		"nothing":            {body(""), waits},
		"no list":            {body(`{}`), waits},
		"a list of words":    {body(`{"results":["accepted"]}`), waits},
		"a member twice":     {body(`{"results":[],"results":[]}`), waits},
		"5 MB":               {body(`{"results":[],"x":"` + strings.Repeat("x", 5<<20) + `"}`), waits},
		"a redirect":         {status(307, "Location", "/v1/elsewhere"), waits},
		"204":                {status(204), waits},
		"401":                {status(401), waits},
		"404":                {status(404), waits},
		"413":                {status(413), waits},
		"429":                {status(429, "Retry-After", "99999999"), waits},
		"500":                {status(500), waits},
		"no answer":          {func(*rogue) http.HandlerFunc { return func(out http.ResponseWriter, _ *http.Request) { hangUp(out) } }, waits},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, true)
			mallory := w.rogue("aaa-mallory", alpha) // before beta
			mallory.answers("/v2/envelopes", c.answer(mallory))
			subject := strings.Repeat("s", 200)
			sent, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@aaa-mallory"}, Subject: subject, Body: "the body of evil"})
			noError(t, err)
			good := alpha.send(beta, "good")
			alpha.tick()
			same(t, "the other host's mail in the same tick", beta.arrived(good), 1)
			same(t, "rows left", int(ask[int64](alpha, "SELECT count(*) FROM outbox WHERE msg = ?", sent.ID)), c.want.row)
			same(t, "route", ask[string](alpha, "SELECT state FROM routes WHERE msg = ?", sent.ID), c.want.route)
			alerts := alpha.alerts("builder")
			same(t, "alerts", len(alerts), c.want.alert)
			for _, a := range alerts {
				hasPart(t, "alert", a, "Undelivered to aaa-mallory")
				same(t, "printable", printable(a), a)
			}
			if c.want.row == 1 {
				if text := alpha.rowError(sent.ID); text == "" || text != printable(text) || len(text) > 1000 {
					t.Errorf("got %q as the row's error; want a short printable reason", text)
				}
				due := ask[int64](alpha, "SELECT next_at FROM outbox WHERE msg = ?", sent.ID) - w.now.Load()
				same(t, "waits", due, int64(5000))
				mallory.answers("", nil)
				w.pass(time.Minute)
				alpha.tick()
				same(t, "route after an honest answer", ask[string](alpha, "SELECT state FROM routes WHERE msg = ?", sent.ID), "handed-over")
			}
			mallory.sawNoBody()
		})
	}
}

// TestPeerThatAcceptsAndForgets: the host's word is all there is over the LAN.
// The mail stays handed over, and the sender can see that nothing confirms it.
func TestPeerThatAcceptsAndForgets(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	mallory := w.rogue("mallory", alpha)
	sent, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@mallory"}, Subject: "hello", Body: "the body of hello"})
	noError(t, err)
	for range 5 {
		alpha.tick()
		w.pass(30 * 24 * time.Hour)
	}
	m := must(alpha.SentMail(context.Background(), sent.ID))
	same(t, "route", m.Routes[0].State, "handed-over")
	same(t, "confirmations", len(m.Confirmations), 0)
	same(t, "outbox", alpha.outbox(), 0)
	mallory.sawNoBody()
}

// TestSealingKeysOfOthers: a sealing key counts only when the paired host
// signed it as its own. Until then nothing is sealed.
func TestSealingKeysOfOthers(t *testing.T) {
	stranger := wiretest.NewHost("stranger")
	pub := stranger.Enc.Public()
	for name, answer := range map[string]func(r *rogue) map[string]any{
		"signed by another": func(r *rogue) map[string]any {
			return map[string]any{"v": 1, "host": r.Name, "enc_pub": pub.String(), "sig": stranger.Key.Sign(wire.EncKeyV1Payload(r.Name, pub))}
		},
		"another host's": func(r *rogue) map[string]any {
			return map[string]any{"v": 1, "host": "stranger", "enc_pub": pub.String(), "sig": r.Key.Sign(wire.EncKeyV1Payload("stranger", pub))}
		},
		"signed for another name": func(r *rogue) map[string]any {
			return map[string]any{"v": 1, "host": r.Name, "enc_pub": pub.String(), "sig": r.Key.Sign(wire.EncKeyV1Payload("stranger", pub))}
		},
		"a zero key": func(r *rogue) map[string]any {
			return map[string]any{"v": 1, "host": r.Name, "enc_pub": wire.EncPublicKey{}.String(), "sig": r.Key.Sign(wire.EncKeyV1Payload(r.Name, wire.EncPublicKey{}))}
		},
		"a short key": func(r *rogue) map[string]any {
			return map[string]any{"v": 1, "host": r.Name, "enc_pub": "AAAA", "sig": r.Key.Sign(nil)}
		},
		"no signature": func(r *rogue) map[string]any {
			return map[string]any{"v": 1, "host": r.Name, "enc_pub": pub.String(), "sig": ""}
		},
		"another version": func(r *rogue) map[string]any {
			return map[string]any{"v": 2, "host": r.Name, "enc_pub": pub.String(), "sig": r.Key.Sign(wire.EncKeyV1Payload(r.Name, pub))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha := w.host("alpha")
			mallory := w.rogue("mallory", alpha)
			mallory.answers("/v1/enc-key", func(out http.ResponseWriter, _ *http.Request) { answerJSON(out, answer(mallory)) })
			_, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@mallory"}, Subject: "hello", Body: "the body of hello"})
			noError(t, err)
			r := alpha.tick()
			same(t, "sent", r.LAN.Sent, 0)
			same(t, "failed", r.LAN.Failed, 1)
			same(t, "outbox", alpha.outbox(), 1)
			same(t, "pinned", ask[int64](alpha, "SELECT count(*) FROM peers WHERE enc_key IS NOT NULL"), int64(0))
			if strings.Contains(mallory.seen.String(), "/v2/envelopes") {
				t.Error("mail was sent without a sealing key of the host")
			}
			mallory.sawNoBody()
			mallory.answers("", nil)
			w.pass(time.Minute)
			same(t, "sent with its own key", alpha.tick().LAN.Sent, 1)
			mallory.sawNoBody()
		})
	}
}

// TestReceiptsOfPeers: a peer confirms what was sent to it, and nothing else.
func TestReceiptsOfPeers(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	mallory := w.rogue("mallory", alpha)
	stranger := wiretest.NewHost("stranger")
	toBeta := alpha.send(beta, "for beta") // waits: beta can't be reached
	sent, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@mallory"}, Subject: "hello", Body: "the body of hello"})
	noError(t, err)
	alpha.tick()
	got := must(alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@alpha"}, Subject: "hi", Body: "local"}))
	var changed map[string]any
	_ = json.Unmarshal(receiptOf(mallory.Key, sent.ID, "reviewer@mallory", "read", 5), &changed)
	changed["rec"].(map[string]any)["state"] = "acked"
	altered := must(json.Marshal(changed))

	for _, c := range []struct {
		what    string
		receipt []byte
		want    string
	}{
		{"mail to another host, in its own name", receiptOf(mallory.Key, toBeta, "reviewer@mallory", "acked", 1), "rejected:unknown message"},
		{"mail to another host, in that host's name", receiptOf(mallory.Key, toBeta, "reviewer@beta", "acked", 1), "rejected:recipient at another host"},
		{"the other host's own receipt", receiptOf(side(beta).Key, toBeta, "reviewer@beta", "acked", 1), "rejected:recipient at another host"},
		{"mail never sent", receiptOf(mallory.Key, wire.NewID(t0), "reviewer@mallory", "acked", 1), "rejected:unknown message"},
		{"mail that stayed here", receiptOf(mallory.Key, got.ID, "reviewer@mallory", "acked", 1), "rejected:unknown message"},
		{"a host that is not paired", receiptOf(stranger.Key, sent.ID, "reviewer@stranger", "acked", 1), "rejected:host not paired"},
		{"this host itself", receiptOf(mallory.Key, sent.ID, "reviewer@alpha", "acked", 1), "rejected:host not paired"},
		{"signed by another", receiptOf(stranger.Key, sent.ID, "reviewer@mallory", "acked", 1), "rejected:bad signature"},
		{"altered", altered, "rejected:bad signature"},
		{"a state that is none", receiptOf(mallory.Key, sent.ID, "reviewer@mallory", "eaten", 1), "rejected:invalid receipt"},
		{"a sequence of nought", receiptOf(mallory.Key, sent.ID, "reviewer@mallory", "read", 0), "rejected:invalid receipt"},
		{"no receipt", []byte(`{"a":1}`), "rejected:invalid receipt"},
	} {
		if result := mallory.reports(alpha, c.receipt)[0]; result != c.want {
			t.Errorf("%s: got %q; want %q", c.what, result, c.want)
		}
	}
	same(t, "confirmations", alpha.count("confirmations"), 0)
	same(t, "beta's mail", alpha.outbox(), 1)
	same(t, "mallory's mail", ask[string](alpha, "SELECT state FROM routes WHERE msg = ?", sent.ID), "handed-over")
	same(t, "its own receipt", mallory.reports(alpha, receiptOf(mallory.Key, sent.ID, "reviewer@mallory", "read", 1<<52))[0], "accepted")
	same(t, "again", mallory.reports(alpha, receiptOf(mallory.Key, sent.ID, "reviewer@mallory", "read", 1<<52))[0], "duplicate")
	noError(t, beta.db.write(context.Background(), func(t *tx) error { _, err := t.exec("UPDATE peers SET addr = ?", alpha.addr); return err }))
	noError(t, alpha.db.write(context.Background(), func(t *tx) error {
		_, err := t.exec("UPDATE peers SET addr = ?, lan_failures = 0 WHERE fold = 'beta'", beta.addr)
		return err
	}))
	settle(alpha, beta)
	same(t, "beta has its mail", beta.arrived(toBeta), 1)
}

// TestEnvelopesOfPeers: what a peer can't prove to be its own is refused and
// leaves nothing; what it may say is made harmless.
func TestEnvelopesOfPeers(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	pair(alpha, beta, true)
	pair(alpha, gamma, true)
	mallory := w.rogue("mallory", alpha)
	a, b := side(alpha), side(beta)
	draft := func(edit func(e *wire.Envelope)) []byte {
		e := mallory.Draft(a, "crafted", "crafted")
		edit(&e)
		return must(wire.Seal(e, a.Enc.Public(), mallory.Key, mallory.Name))
	}
	// retold is a draft whose JSON is changed after it was signed.
	retold := func(from, to string) []byte {
		return []byte(strings.Replace(string(draft(func(*wire.Envelope) {})), from, to, 1))
	}
	_, betas := b.Envelope(a, "beta's own", "beta's own")
	_, forGamma := mallory.Seal(mallory.Draft(side(gamma), "for gamma", "x"), side(gamma))
	_, open := mallory.PlainEnvelope(a, "open", "open")

	for _, c := range []struct {
		what string
		raw  []byte
		want string
	}{
		{"a third host's, well signed by it", betas, "rejected:sender host mismatch"},
		{"as a third host's, signed by itself", draft(func(e *wire.Envelope) { e.From = "builder@beta" }), "rejected:sender host mismatch"},
		{"as this host's own", draft(func(e *wire.Envelope) { e.From = "owner@alpha" }), "rejected:sender host mismatch"},
		{"sig of a third host", must(wire.Seal(mallory.Draft(a, "x", "x"), a.Enc.Public(), mallory.Key, "beta")), "rejected:sender host mismatch"},
		{"signed by another key", must(wire.Seal(mallory.Draft(a, "x", "x"), a.Enc.Public(), b.Key, mallory.Name)), "rejected:bad signature"},
		{"changed after signing", retold(`"subject":"crafted"`, `"subject":"changed"`), "rejected:bad signature"},
		{"a sender of controls", draft(func(e *wire.Envelope) { e.From = "Ev\x1b[2Jil@mallory" }), "rejected:bad sender address"},
		{"a sender of capitals", draft(func(e *wire.Envelope) { e.From = "OWNER@mallory" }), "rejected:bad sender address"},
		{"sealed for another", forGamma, "rejected:undecryptable body"},
		{"not sealed", open, "rejected:envelope body is not sealed"},
		{"a subject of controls", retold(`"subject":"crafted"`, `"subject":"\u001b[2J"`), "rejected:bad envelope"},
		{"a huge subject", retold(`"subject":"crafted"`, `"subject":"`+strings.Repeat("s", 100_000)+`"`), "rejected:bad envelope"},
		{"no recipients", retold(`"to":[`, `"to":[],"was":[`), "rejected:bad envelope"},
		{"an empty object", []byte(`{}`), "rejected:bad envelope"},
	} {
		if result := mallory.mails(alpha, c.raw)[0]; !strings.HasPrefix(result, c.want) {
			t.Errorf("%s: got %q; want %q", c.what, result, c.want)
		}
	}
	for _, table := range []string{"messages", "deliveries", "receipts_out", "pruned_ids"} {
		same(t, "left in "+table, alpha.count(table), 0)
	}
	same(t, "mailboxes", alpha.count("mailboxes"), 1)

	// Names with controls reach nobody, and no mailbox is made for them.
	odd := draft(func(e *wire.Envelope) {
		e.To = []string{"\x1b[2J@alpha", "A B@alpha", "..@alpha", "reviewer@alpha", "x@nowhere"}
		e.Thread = "\x1b[2J"
	})
	same(t, "odd recipients", mallory.mails(alpha, odd)[0], "accepted")
	same(t, "mailboxes", alpha.count("mailboxes"), 2)
	same(t, "in reviewer", alpha.inbox(), 1)

	// The same envelope again, by its owner and by another.
	same(t, "again", mallory.mails(alpha, odd)[0], "duplicate")
	other := w.rogue("oscar", alpha)
	same(t, "brought by another", other.mails(alpha, odd)[0], "rejected:sender host mismatch")
	same(t, "in reviewer", alpha.inbox(), 1)
	same(t, "messages", alpha.count("messages"), 1)
}

// TestMuchFromAPeer: mail up to the protocol's bounds arrives, more is refused
// whole, and the bounds of one call never lose a message.
func TestMuchFromAPeer(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	mallory := w.rogue("mallory", alpha)
	a := side(alpha)
	raw := func(n, size int) (list [][]byte) {
		for range n {
			_, e := mallory.Envelope(a, "much", strings.Repeat("x", size))
			list = append(list, e)
		}
		return list
	}
	accepted := 0
	for _, r := range mallory.mails(alpha, raw(200, 10)...) {
		if r == resultAccepted {
			accepted++
		}
	}
	same(t, "200 small ones", accepted, 200)
	large := raw(1, 100<<10)
	for len(large) < 200 {
		large = append(large, large[0])
	}
	for what, list := range map[string][][]byte{"201 envelopes": raw(201, 10), "200 of 100 KB": large} {
		body := []byte(`{"envelopes":[` + strings.Join(texts(list), ",") + `]}`)
		in := must(http.NewRequest("POST", "http://"+alpha.addr+"/v2/envelopes", strings.NewReader(string(body))))
		ts, sig := wire.SignLANHop(mallory.Key, "POST", "/v2/envelopes", body, w.clock())
		in.Header.Set(wire.HeaderHost, mallory.Name)
		in.Header.Set(wire.HeaderTS, ts)
		in.Header.Set(wire.HeaderSig, sig)
		res, err := http.DefaultClient.Do(in)
		if err == nil {
			res.Body.Close()
			if res.StatusCode != 400 && res.StatusCode != 413 {
				t.Errorf("%s: got %d; want a refusal", what, res.StatusCode)
			}
		}
		same(t, what+": messages", alpha.count("messages"), 200)
	}
	// An honest host cuts it up.
	var msgs []string
	for i := range 16 { // more than fits in a call
		s, err := beta.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@alpha"}, Subject: fmt.Sprint("large ", i), Body: "the body of " + strings.Repeat("x", 100<<10)})
		noError(t, err)
		msgs = append(msgs, s.ID)
	}
	same(t, "sent in a tick", beta.tick().LAN.Sent, 16)
	for _, m := range msgs {
		same(t, m, alpha.arrived(m), 1)
	}
	same(t, "outbox", beta.outbox(), 0)
}

func texts(list [][]byte) (s []string) {
	for _, b := range list {
		s = append(s, string(b))
	}
	return s
}

// TestPeersThatHang: hosts that never answer keep nobody else's mail waiting.
func TestPeersThatHang(t *testing.T) {
	w := newWorld(t)
	alpha, zeta := w.host("alpha"), w.host("zeta")
	pair(alpha, zeta, true)
	over := make(chan struct{})
	var names []string
	for i := range maxLANCalls - 1 {
		r := w.rogue(fmt.Sprintf("hang%d", i), alpha)
		path := "/v2/envelopes"
		if i%2 == 1 {
			path = "/v1/enc-key"
		}
		r.answers(path, func(out http.ResponseWriter, _ *http.Request) {
			<-over
			hangUp(out)
		})
		names = append(names, "reviewer@"+r.Name)
	}
	sent, err := alpha.Send(context.Background(), Draft{From: "builder", To: names, Subject: "hello", Body: "the body of hello"})
	noError(t, err)
	good := alpha.send(zeta, "good")
	var ended sync.WaitGroup
	ended.Go(func() { alpha.tick() })
	select {
	case <-zeta.woken: // it has stored mail
	case <-time.After(20 * time.Second):
		t.Fatal("the other host's mail waits for the ones that hang")
	}
	same(t, "the other host's mail", zeta.arrived(good), 1)
	same(t, "hosts that hang still do", int(ask[int64](alpha, "SELECT count(*) FROM outbox WHERE msg = ? AND attempts = 0", sent.ID)), len(names))
	close(over)
	ended.Wait()
	same(t, "rows that wait", alpha.outbox(), len(names))
	same(t, "attempts", int(ask[int64](alpha, "SELECT count(*) FROM outbox WHERE attempts = 1")), len(names))
}

// TestSlowPeer: a host that takes its time with each call is left for the next
// tick, with all of its mail.
func TestSlowPeer(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	mallory := w.rogue("mallory", alpha)
	calls := 0
	mallory.answers("/v2/envelopes", func(out http.ResponseWriter, in *http.Request) {
		calls++
		w.pass(14 * time.Second)
		mallory.behave(out, in)
	})
	for i := range 12 {
		_, err := alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@mallory"}, Subject: fmt.Sprint(i), Body: "the body of " + strings.Repeat("x", 200<<10)})
		noError(t, err)
	}
	sent := alpha.tick().LAN.Sent
	same(t, "calls in a tick", calls, 2)
	same(t, "rows left", alpha.outbox(), 12-sent)
	same(t, "attempts", ask[int64](alpha, "SELECT sum(attempts) FROM outbox"), int64(0))
	for range 5 {
		sent += alpha.tick().LAN.Sent
	}
	same(t, "sent in the end", sent, 12)
}
