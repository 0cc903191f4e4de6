package server_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// endpoint is one that takes a body, with a body that is good.
type endpoint struct {
	name, target string
	from         *wiretest.Host
	good         func() m
	codes        []string // of what is wrong with a field
	ok           string   // what a harmless change may be answered with
}

func badInputRig(t testing.TB, change ...func(*setup)) (*rig, []*wiretest.Host, []endpoint) {
	r := newRig(t, append(change, noRates)...)
	alpha, beta, next := r.enrol("alpha"), r.enrol("beta"), wiretest.NewHost("alpha")
	newcomer := wiretest.NewHost("newcomer")
	r.pushed(alpha, mail(alpha, beta))
	_, w := alpha.Envelope(beta, "hello", "hi")
	list, listSig := wire.MakeSenderList(beta.Key, []wire.PublicKey{alpha.Pub()}, r.clock())
	ad, adSig := wire.MakeEncAd(beta.Key, "beta", beta.Enc.Public(), r.clock(), r.clock().Add(time.Hour))
	v1Sig := beta.Key.Sign(wire.EncKeyV1Payload("beta", beta.Enc.Public()))
	rotation := wire.MakeRotation(alpha.Key, next.Key, "alpha", next.Enc.Public(), r.clock())
	tree := func(doc []byte) (v m) { must(0, json.Unmarshal(doc, &v)); return v }
	epoch := r.epoch()
	return r, []*wiretest.Host{alpha, beta, next, newcomer}, []endpoint{
		{"challenge", "/v1/relay/challenge", nil, func() m { return m{"host": "newcomer", "pubkey": newcomer.Pub().String()} },
			[]string{"BAD_HOST", "BAD_KEY"}, ""},
		{"enrol", "/v1/relay/enrol", nil, func() m {
			const owner = "1f3a-09bc"
			sig := newcomer.Key.Sign(wire.EnrolPayload(r.challenge(newcomer), "newcomer", newcomer.Pub(), owner))
			return m{"host": "newcomer", "pubkey": newcomer.Pub().String(), "owner_fp": owner, "sig": sig, "proof": m{}}
		},
			[]string{"BAD_HOST", "BAD_KEY", "BAD_OWNER", "BAD_SIGNATURE", "BAD_CHALLENGE"}, "proof"},
		{"rotate", "/v2/relay/rotate", nil, func() m { return m{"rotation": tree(rotation)} },
			[]string{"BAD_ROTATION"}, ""},
		{"push", "/v2/relay/items", alpha, func() m {
			var v m
			must(0, json.Unmarshal(encode(m{"items": []any{mail(alpha, beta)}}), &v))
			return v
		}, []string{"BAD_BATCH"}, ""},
		{"ack", "/v2/relay/ack", beta, func() m { return m{"epoch": epoch, "through": 1.0} },
			[]string{"BAD_ACK", "EPOCH"}, "through"},
		{"senders", "/v2/relay/senders", beta, func() m { return m{"list": tree(list), "sig": listSig} },
			[]string{"BAD_LIST", "BAD_SIGNATURE"}, ""},
		{"enc ad", "/v2/relay/enc-key", beta, func() m { return m{"ad": tree(ad), "sig": adSig} },
			[]string{"BAD_AD"}, ""},
		{"v1 enc key", "/v1/relay/enc-key", beta, func() m { return m{"enc_pub": beta.Enc.Public().String(), "sig": v1Sig} },
			[]string{"BAD_KEY", "BAD_SIGNATURE"}, ""},
		{"v1 push", "/v1/relay/messages", alpha, func() m { return m{"envelopes": []any{tree(w)}} },
			[]string{"BAD_BATCH"}, ""},
		{"v1 ack", "/v1/relay/ack", beta, func() m { return m{"cursor": 1.0} },
			[]string{"BAD_ACK"}, "cursor"},
	}
}

var absent = new(int)

// wrongs are what a field is replaced by.
func wrongs() []any {
	deep := func(n int) json.RawMessage {
		return json.RawMessage(strings.Repeat("[", n) + strings.Repeat("]", n))
	}
	key := wire.PublicKey{1}.String()
	return []any{
		absent, nil, true, false, -1, 1.5, 1e300, 9007199254740993, json.RawMessage("-0"), "", "x", "\x00", "é\u2028\U0001F600", strings.Repeat("x", 5000),
		[]any{}, []any{nil}, []any{[]any{}}, m{}, m{"x": 1}, deep(40), key, strings.TrimRight(key, "="), key[:43] + "*", strings.ReplaceAll(key, "A", "-"), key + "\n",
		" " + key, strings.Repeat("A", 88), "2026-10-02T12:00:00.000Z", "2026-10-02", "__proto__", "../../etc/passwd", "' OR 1=1 --",
	}
}

// fields lists every place in a body, by its path.
func fields(v any, at []string) (paths [][]string) {
	switch v := v.(type) {
	case m:
		for k, x := range v {
			p := append(slices.Clone(at), k)
			paths = append(append(paths, p), fields(x, p)...)
		}
	case []any:
		for i, x := range v {
			p := append(slices.Clone(at), fmt.Sprint(i))
			paths = append(append(paths, p), fields(x, p)...)
		}
	}
	return paths
}

// replace answers a copy of v with another value at a path.
func replace(v any, path []string, with any) any {
	if len(path) == 0 {
		return with
	}
	switch v := v.(type) {
	case m:
		c := m{}
		for k, x := range v {
			if k == path[0] {
				if x = replace(x, path[1:], with); x == any(absent) {
					continue
				}
			}
			c[k] = x
		}
		return c
	case []any:
		var c []any
		for i, x := range v {
			if fmt.Sprint(i) == path[0] {
				if x = replace(x, path[1:], with); x == any(absent) {
					continue
				}
			}
			c = append(c, x)
		}
		return c
	}
	return v
}

// refusedRightly checks that an answer is a refusal with a stable code, or a
// success that changed nothing.
func refusedRightly(e endpoint, field string, p *reply) (fault string) {
	switch {
	case p.status == 200 && e.name == "push":
		for _, res := range p.results() {
			if !strings.HasPrefix(res.Status, "rejected:") {
				return "an item is not rejected"
			}
		}
		return ""
	case p.status == 200:
		if e.ok != field && e.name != "challenge" && !(e.name == "v1 push" && string(p.body) == `{"stored":0}`) {
			return "it was done"
		}
		return ""
	case p.status == 413 && e.name == "v1 push":
		if !strings.HasPrefix(string(p.body), `{"stored":0,"error":"`) {
			return "a v1 refusal in another form"
		}
		return ""
	case p.status < 400 || p.status >= 500:
		return "neither refused nor done"
	case p.error() == "" || !slices.Contains(append(e.codes, "BAD_JSON"), p.code()):
		return "no known code"
	}
	return ""
}

func TestBadInput(t *testing.T) {
	r, hosts, endpoints := badInputRig(t)
	r.direct = true
	before := r.snapshot(hosts...)
	tried := 0
	for _, e := range endpoints {
		good := e.good()
		for _, path := range fields(good, nil) {
			if e.name == "v1 push" && (len(path) > 3 || len(path) == 3 && !slices.Contains([]string{"v", "id", "from", "to", "kind", "enc"}, path[2])) {
				continue // a sealed envelope's other members may hold what their hosts like (§5 has its own tests)
			}
			for _, wrong := range wrongs() {
				body := encode(replace(good, path, wrong))
				if string(body) == string(encode(good)) {
					continue
				}
				tried++
				name := strings.Join(path, ".")
				p := r.call(e.from, "POST", e.target, body)
				fault := refusedRightly(e, path[0], p)
				if fault == "" {
					// Enrolling and acking are done with some changes; look what became of it.
					if p.status == 200 && (e.name == "enrol" || e.name == "ack" || e.name == "v1 ack") {
						before = r.snapshot(hosts...)
						good = e.good() // with a challenge that is open
					}
					continue
				}
				t.Errorf("%s, %s = %.60v: %s: got %d %.200s", e.name, name, show(wrong), fault, p.status, p.body)
			}
		}
		if now := r.snapshot(hosts...); now != before {
			t.Errorf("%s changed the store:\ngot %s\nwant %s", e.name, now, before)
			before = now
		}
	}
	t.Logf("%d bodies", tried)
}

func show(v any) any {
	if v == any(absent) {
		return "nothing"
	}
	return v
}

func TestBadDocuments(t *testing.T) {
	r, hosts, endpoints := badInputRig(t)
	before := r.snapshot(hosts...)
	for _, e := range endpoints {
		good := string(encode(e.good()))
		first := good[1:strings.Index(good, ":")]
		for name, doc := range map[string]string{
			"empty":             ``,
			"cut":               good[:len(good)-1],
			"two":               good + good,
			"trailing":          good + "x",
			"byte order mark":   "\ufeff" + good,
			"duplicated member": `{` + first + `:1,` + good[1:],
			"escaped duplicate": `{"\u00` + fmt.Sprintf("%02x", first[1]) + first[2:] + `:1,` + good[1:],
			"inner duplicate":   `{"x":{"a":1,"a":1},` + good[1:],
			"lone surrogate":    `{"x":"\ud800",` + good[1:],
			"not UTF-8":         "{\"x\":\"\xff\"," + good[1:],
			"surrogate bytes":   "{\"x\":\"\xed\xa0\x80\"," + good[1:],
			"control character": "{\"x\":\"\x01\"," + good[1:],
			"too deep":          `{"x":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `,` + good[1:],
			"very deep":         strings.Repeat(`{"x":[`, 1000),
			"huge number":       `{"x":1e999,` + good[1:],
			"odd number":        `{"x":01,` + good[1:],
			"comma":             good[:len(good)-1] + `,}`,
			"comment":           `/**/` + good,
			"single quotes":     strings.ReplaceAll(good, `"`, `'`),
			"NaN":               `NaN`,
			"form":              `host=a&pubkey=b`,
		} {
			p := r.call(e.from, "POST", e.target, []byte(doc))
			if p.status != 400 || string(p.body) != `{"error":"bad json","code":"BAD_JSON"}` {
				t.Errorf("%s, %s: got %d %s; want 400 bad json", e.name, name, p.status, p.body)
			}
		}
		for _, doc := range []string{`null`, `true`, `7`, `"x"`, `[]`, `[{}]`} {
			p := r.call(e.from, "POST", e.target, []byte(doc))
			if p.status != 400 || p.code() == "" {
				t.Errorf("%s, %s: got %d %s; want 400 with a code", e.name, doc, p.status, p.body)
			}
		}
	}
	same(t, "the store", r.snapshot(hosts...), before)
	// Members of another case are other members, and other members do no harm.
	for _, e := range endpoints {
		body := e.good()
		body["HOST"], body["Sig"], body["ITEMS"], body["x"] = 1, 2, 3, m{"y": nil}
		if e.from != hosts[0] { // who was rotated away on the way
			r.call(e.from, "POST", e.target, body).is(200)
		}
	}
}
