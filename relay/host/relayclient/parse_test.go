package relayclient

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

var testKey = func() wire.PrivateKey {
	k, err := wire.ParsePrivateKey(wire.PublicKey{7}.String())
	if err != nil {
		panic(err)
	}
	return k
}()

func infoWith(limits, you string) []byte {
	return fmt.Appendf(nil, `{"v":2,"relay_pubkey":"%s","epoch":"e","version":"1","limits":%s%s}`, testKey.Public(), limits, you)
}

func TestParseInfo(t *testing.T) {
	key := testKey.Public()
	you := func(rest string) string {
		return `,"you":{"host":"alpha","pubkey":"` + key.String() + `",` + rest + `}`
	}
	me := &Caller{Host: "alpha", Key: testKey}
	for _, tc := range []struct {
		name   string
		body   string
		caller *Caller
		ok     bool
	}{
		{"unsigned", string(infoWith(`{}`, "")), nil, true},
		{"you is null", string(infoWith(`{}`, `,"you":null`)), me, true},
		{"you", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":null`))), me, true},
		{"you, unasked", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":null`))), nil, false},
		{"you of another key", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":null`))), &Caller{Host: "alpha"}, false},
		{"no enc_ad", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0`))), me, false},
		{"an enc_ad of nothing", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":{"enc_pub":null,"exp":null,"v1":null}`))), me, true},
		{"an enc_ad without end", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":{"enc_pub":"`+key.String()+`","exp":null,"v1":null}`))), me, false},
		{"an enc_ad with a bad end", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":{"enc_pub":"`+key.String()+`","exp":"soon"}`))), me, false},
		{"an enc_ad of a bad key", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":{"v1":"x"}`))), me, false},
		{"an enc_ad of another type", string(infoWith(`{}`, you(`"head_seq":0,"acked_through":0,"enc_ad":[]`))), me, false},
		{"a negative head", string(infoWith(`{}`, you(`"head_seq":-1,"acked_through":0,"enc_ad":null`))), me, false},
		{"a fraction", string(infoWith(`{}`, you(`"head_seq":1.5,"acked_through":0,"enc_ad":null`))), me, false},
		{"a head beyond", string(infoWith(`{}`, you(`"head_seq":9007199254740992,"acked_through":0,"enc_ad":null`))), me, false},
		{"no limits", string(infoWith(`null`, "")), nil, false},
		{"limits of another type", string(infoWith(`[]`, "")), nil, false},
		{"v 1", strings.Replace(string(infoWith(`{}`, "")), `"v":2`, `"v":1`, 1), nil, false},
		{"a bad key", strings.Replace(string(infoWith(`{}`, "")), "=", "", 1), nil, false},
		{"no epoch", strings.Replace(string(infoWith(`{}`, "")), `"e"`, `""`, 1), nil, false},
		{"an epoch to clear the screen", strings.Replace(string(infoWith(`{}`, "")), `"e"`, `"\u001b[2J"`, 1), nil, false},
		{"a long epoch", strings.Replace(string(infoWith(`{}`, "")), `"e"`, `"`+strings.Repeat("e", 201)+`"`, 1), nil, false},
	} {
		in, err := parseInfo([]byte(tc.body), tc.caller)
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrBadAnswer) {
			t.Errorf("%s: got %+v, %v; want ok %v", tc.name, in, err, tc.ok)
		}
	}
}

func TestParseLimits(t *testing.T) {
	const all = `{"max_item_bytes":%[1]s,"max_batch":%[1]s,"max_pull":%[1]s,"max_pull_bytes":%[1]s,"max_targets":%[1]s,"retention_days":%[1]s,"max_wait_s":%[1]s}`
	def := Limits{512 << 10, 200, 500, 8 << 20, 64, 14, 0}
	most := Limits{4 << 20, 10_000, 3, 64 << 20, 1024, math.MaxInt32, 25}
	zero, some, day := def, Limits{7, 7, 7, 7, 7, 7, 7}, def
	zero.RetentionDays, day.RetentionDays = 0, 0
	for value, want := range map[string]Limits{
		"null": def, `"7"`: def, "7.5": def, "[]": def, "true": def,
		"0": zero, "-7": day, "-1e300": day,
		"7": some, "7.0": some, "0.7e1": some,
		"1e300": most, "9007199254740993": most, "99999999999999999999": most,
	} {
		in, err := parseInfo(infoWith(fmt.Sprintf(all, value), ""), nil)
		if err != nil || in.Limits != want {
			t.Errorf("%s: got %+v, %v; want %+v", value, in.Limits, err, want)
		}
	}
	in, err := parseInfo(infoWith(`{}`, ""), nil)
	if err != nil || in.Limits != def {
		t.Errorf("none: got %+v, %v; want %+v", in.Limits, err, def)
	}
}

func TestParseResults(t *testing.T) {
	items := []Item{{ID: "a"}, {ID: "b"}, {ID: "a"}}
	res := func(id string) string { return `{"item_id":"` + id + `","status":"` + id + `","targets":[]}` }
	for _, tc := range []struct{ name, body, want string }{
		{"all", res("a") + "," + res("b") + "," + res("a"), "a b a"},
		{"too few", res("a"), "a - -"},
		{"none", "", "- - -"},
		{"too many", res("a") + "," + res("b") + "," + res("a") + "," + res("c") + ",7", "a b a"},
		{"reordered", res("b") + "," + res("a") + "," + res("a"), "- - a"},
		{"others", res("x") + "," + res("b") + "," + res("A"), "- b -"},
		{"no object", res("a") + ",7", "error"},
		{"a null", res("a") + ",null", "error"},
		{"no status", `{"item_id":"a","targets":[]}`, "error"},
		{"no id", `{"status":"a","targets":[]}`, "error"},
		{"an id of another type", `{"item_id":7,"status":"a","targets":[]}`, "error"},
		{"no targets", `{"item_id":"a","status":"a"}`, "error"},
		{"targets of another type", `{"item_id":"a","status":"a","targets":{}}`, "error"},
		{"a sig of another type", `{"item_id":"a","status":"a","targets":[],"sig":[]}`, "error"},
		{"a status to clear the screen", `{"item_id":"a","status":"rejected:\u001b[2J` + strings.Repeat("x", 300) + `","targets":[]}`, "rejected:\ufffd[2J" + strings.Repeat("x", 187) + " - -"},
	} {
		got, err := parseResults([]byte(`{"results":[`+tc.body+`]}`), items)
		var texts []string
		for _, r := range got {
			if r.Status == "" {
				r.Status = "-"
			}
			texts = append(texts, r.Status)
		}
		text := strings.Join(texts, " ")
		if errors.Is(err, ErrBadAnswer) {
			text = "error"
		}
		if text != tc.want {
			t.Errorf("%s: got %q, %v; want %q", tc.name, text, err, tc.want)
		}
	}
	got, err := parseResults([]byte(`{"results":[{"item_id":"a","status":"accepted","targets":[],"accept":{"v": 1,"x":[]},"sig":"s"},{"item_id":"b","status":"rejected:x","targets":[],"accept":null,"sig":null}]}`), items)
	if err != nil || string(got[0].Accept) != `{"v": 1,"x":[]}` || got[0].Sig != "s" || got[1].Accept != nil {
		t.Errorf("accepts: got %+v, %v; want the first as received and none", got, err)
	}
}

func TestParsePage(t *testing.T) {
	item := func(wireB64 string) string {
		return `{"seq":1,"kind":"envelope","item_id":"a","sender_pubkey":"k","wire_b64":` + wireB64 + `}`
	}
	page := func(items string) []byte {
		return []byte(`{"epoch":"e","head_seq":1,"items":[` + items + `],"last_seq":1,"more":false}`)
	}
	long := strings.Repeat("*", 2<<20)
	for _, tc := range []struct{ in, wire, raw string }{
		{`"eA=="`, "x", ""},
		{`"e\u0041=="`, "x", ""},
		{`"\/\/\/\/"`, "\xff\xff\xff", ""},
		{`""`, "", ""},
		{`"eA="`, "", "eA="},
		{`"eA"`, "", "eA"},
		{`"eB=="`, "", "eB=="},
		{`"eA==\n"`, "", "eA==\n"},
		{`"eA=\n="`, "", "eA=\n="},
		{`"e-_="`, "", "e-_="},
		{`"` + long + `"`, "", long[:1<<20]},
	} {
		p, err := parsePage(page(item(tc.in)+","+item(`"eQ=="`)), 2)
		if err != nil || len(p.Items) != 2 || string(p.Items[1].Wire) != "y" {
			t.Errorf("%.40s: got %v, %v; want two items", tc.in, p.Items, err)
			continue
		}
		it := p.Items[0]
		if string(it.Wire) != tc.wire || it.WireOK != (tc.wire != "") || !it.WireOK && it.Wire != nil || string(it.Raw) != tc.raw {
			t.Errorf("%.40s: got %q %v %.40q; want %q %.40q", tc.in, it.Wire, it.WireOK, it.Raw, tc.wire, tc.raw)
		}
	}
	good := item(`"eA=="`)
	for name, items := range map[string]string{
		"too many":      good + "," + good + "," + good,
		"no wire":       `{"seq":1,"kind":"envelope","item_id":"a","sender_pubkey":"k"}`,
		"a null wire":   item("null"),
		"a wire of 7":   item("7"),
		"a wire twice":  strings.Replace(good, "}", `,"wire_b64":""}`, 1),
		"a fraction":    strings.Replace(good, "1", "1.5", 1),
		"an exponent":   strings.Replace(good, "1", "1e0", 1),
		"a text as seq": strings.Replace(good, "1", `"1"`, 1),
		"seq below 0":   strings.Replace(good, "1", "-1", 1),
		"seq beyond":    strings.Replace(good, "1", "9007199254740992", 1),
		"no seq":        strings.Replace(good, `"seq"`, `"SEQ"`, 1),
		"no kind":       strings.Replace(good, `"envelope"`, `null`, 1),
		"no id":         strings.Replace(good, `"a"`, `[]`, 1),
		"no sender":     strings.Replace(good, `"k"`, `7`, 1),
		"a null":        "null",
		"an array":      "[]",
	} {
		if p, err := parsePage(page(items), 2); !errors.Is(err, ErrBadAnswer) {
			t.Errorf("%s: got %+v, %v; want ErrBadAnswer", name, p, err)
		}
	}
	for name, body := range map[string]string{
		"no items":   `{"epoch":"e","head_seq":1,"last_seq":1,"more":false}`,
		"null items": `{"epoch":"e","head_seq":1,"items":null,"last_seq":1,"more":false}`,
		"items {}":   `{"epoch":"e","head_seq":1,"items":{},"last_seq":1,"more":false}`,
		"no more":    `{"epoch":"e","head_seq":1,"items":[],"last_seq":1}`,
		"more of 1":  `{"epoch":"e","head_seq":1,"items":[],"last_seq":1,"more":1}`,
		"no head":    `{"epoch":"e","items":[],"last_seq":1,"more":false}`,
		"no last":    `{"epoch":"e","head_seq":1,"items":[],"last_seq":null,"more":false}`,
		"no epoch":   `{"epoch":null,"head_seq":1,"items":[],"last_seq":1,"more":false}`,
		"deep":       `{"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `,"epoch":"e","head_seq":1,"items":[],"last_seq":1,"more":false}`,
	} {
		if p, err := parsePage([]byte(body), 2); !errors.Is(err, ErrBadAnswer) {
			t.Errorf("%s: got %+v, %v; want ErrBadAnswer", name, p, err)
		}
	}
}

// One bad envelope must not hold up the rest of a queue.
func TestV1PageWithABadEnvelope(t *testing.T) {
	for _, env := range []string{`{"x":1,"x":2}`, `"\ud800"`, `null`, `7`, "{\"x\":\"\xff\"}", strings.Repeat("[", 500) + strings.Repeat("]", 500), `{ "a" : 1e999 }`} {
		items, cursor, err := parseV1Page([]byte(`{"items":[{"seq":1,"envelope":` + env + `,"from":"a"},{"from":"b","envelope":{},"seq":2}],"cursor":2}`))
		if err != nil || cursor != 2 || len(items) != 2 || string(items[0].Envelope) != env || string(items[1].Envelope) != "{}" {
			t.Errorf("%.40s: got %v %d, %v; want it as it is, and the next", env, items, cursor, err)
		}
	}
	for name, body := range map[string]string{
		"a member twice":         `{"items":[{"seq":1,"seq":1,"envelope":{"x":1,"x":1},"from":"a"}],"cursor":2}`,
		"a member twice, after":  `{"items":[{"seq":1,"envelope":{"x":1,"x":1},"from":"a","from":"a"}],"cursor":2}`,
		"an envelope twice":      `{"items":[{"seq":1,"envelope":{},"from":"a","envelope":{}}],"cursor":2}`,
		"no envelope":            `{"items":[{"seq":1,"from":"a"}],"cursor":2}`,
		"no from":                `{"items":[{"seq":1,"envelope":{}}],"cursor":2}`,
		"no cursor":              `{"items":[]}`,
		"no items":               `{"cursor":1}`,
		"null items":             `{"items":null,"cursor":1}`,
		"bad text":               `{"items":[{"seq":1,"envelope":{},"from":"\ud800"}],"cursor":2}`,
		"an unfinished envelope": `{"items":[{"seq":1,"envelope":{,"from":"a"}],"cursor":2}`,
		"a cut":                  `{"items":[{"seq":1,"envelope":{}`,
		"trailing":               `{"items":[],"cursor":2}{}`,
		"too many":               `{"items":[` + strings.Repeat(`{"seq":1,"envelope":1,"from":"a"},`, maxPull) + `{"seq":1,"envelope":1,"from":"a"}],"cursor":2}`,
	} {
		if items, _, err := parseV1Page([]byte(body)); !errors.Is(err, ErrBadAnswer) {
			t.Errorf("%s: got %v, %v; want ErrBadAnswer", name, items, err)
		}
	}
}

func TestParseStored(t *testing.T) {
	for body, want := range map[string]string{
		`{"stored":2}`:               `2 ""`,
		`{"stored":0,"error":"x\n"}`: `0 "x` + "\ufffd" + `"`,
		`{"stored":1,"error":null}`:  `1 ""`,
		`{"stored":3}`:               "bad",
		`{"stored":-1}`:              "bad",
		`{"stored":null}`:            "bad",
		`{"stored":1,"error":7}`:     "bad",
	} {
		n, reason, err := parseStored([]byte(body), 2)
		got := fmt.Sprintf("%d %q", n, reason)
		if errors.Is(err, ErrBadAnswer) {
			got = "bad"
		}
		if got != want {
			t.Errorf("%s: got %s, %v; want %s", body, got, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	at := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	for body, want := range map[string]StatusError{
		`{"error":"no","code":"BAD_ACK","epoch":"e","head_seq":7}`:       {Code: "BAD_ACK", Reason: "no", Epoch: "e", Head: 7},
		`{"error":"TOKEN_KEY: no","code":"DENIED","reason":"TOKEN_KEY"}`: {Code: "DENIED", Reason: "TOKEN_KEY: no", ReasonCode: "TOKEN_KEY"},
		`{"error":"no","reason":"go away"}`:                              {Reason: "no"},
		`{"error":"no","code":"<b>","epoch":"\n","head_seq":-7}`:         {Reason: "no"},
		`{"error":"no","head_seq":"7","code":null}`:                      {Reason: "no"},
		`{"error":"` + strings.Repeat("\U0001F600", 150) + `"}`:          {Reason: strings.Repeat("\U0001F600", 100)},
		`{"error":"a\u0000\u202eb"}`:                                     {Reason: "a\ufffd\ufffdb"},
		`{"error":"no","error":"yes"}`:                                   {},
		`<html>`:                                                         {},
		``:                                                               {},
		`{"code":"` + strings.Repeat("A", 65) + `","head_seq":1e30}`:     {Head: maxInteger},
	} {
		want.Status, want.Date = 409, at
		err := (&call{what: "ack"}).refused(answer{status: 409, date: at, body: []byte(body)})
		var e *StatusError
		if !errors.As(err, &e) || *e != want {
			t.Errorf("%.60s: got %v; want %+v", body, err, want)
		}
	}
	for e, want := range map[StatusError]string{
		{Status: 404}:                 "relay answered 404: Not Found",
		{Status: 777}:                 "relay answered 777",
		{Status: 308}:                 "relay answered 308: a redirect, which is not followed",
		{Status: 401, Code: "DENIED"}: "relay answered 401 DENIED: Unauthorized",
		{Status: 409, Code: "EPOCH", Reason: "old"}: "relay answered 409 EPOCH: old",
	} {
		if got := e.Error(); got != want {
			t.Errorf("error: got %q; want %q", got, want)
		}
	}
}

func TestProxySettingIsNotRepeated(t *testing.T) {
	proxy := quietly(func(*http.Request) (*url.URL, error) { return nil, errors.New("bad proxy me:hunter2@proxy") })
	if u, err := proxy(nil); u != nil || err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a bad setting: got %v, %v; want an error without it", u, err)
	}
	want := &url.URL{Host: "proxy"}
	proxy = quietly(func(*http.Request) (*url.URL, error) { return want, nil })
	if u, err := proxy(nil); u != want || err != nil {
		t.Errorf("a good setting: got %v, %v; want it", u, err)
	}
}

func TestPageBound(t *testing.T) {
	for limit, want := range map[int]int64{1: 5_662_036, 2: 11_258_536, 3: 16_848_896, 500: 17_866_752} {
		if got := pageBound(limit); got != want {
			t.Errorf("limit %d: got %d; want %d", limit, got, want)
		}
	}
}
