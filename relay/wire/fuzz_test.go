package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// documents is every string and every object in the vector files, decoded or
// not: enough of each kind for any parser to start from.
func documents(f *testing.F) [][]byte {
	f.Helper()
	files, err := filepath.Glob("testdata/vectors/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	var docs [][]byte
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			docs = append(docs, []byte(v))
			if b, err := wire.DecodeBase64(v); err == nil && len(b) > 64 {
				docs = append(docs, b)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			b, err := json.Marshal(v)
			if err != nil {
				f.Fatal(err)
			}
			docs = append(docs, b)
			for _, e := range v {
				walk(e)
			}
		}
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			f.Fatal(err)
		}
		walk(v)
	}
	if len(docs) < 50 {
		f.Fatalf("got %d seeds; want at least 50", len(docs))
	}
	return docs
}

func seed(f *testing.F) {
	for _, d := range documents(f) {
		f.Add(d)
	}
}

func FuzzParsePublicKey(f *testing.F) {
	for _, d := range documents(f) {
		f.Add(string(d))
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := wire.ParsePublicKey(s)
		if err != nil {
			return
		}
		if k.String() != s {
			t.Errorf("got %q; want %q", k, s)
		}
		if fp, err := wire.ParseFingerprint(k.Fingerprint()); err != nil || fp != k.Fingerprint() {
			t.Errorf("got %q, %v", fp, err)
		}
	})
}

func FuzzParseFingerprint(f *testing.F) {
	for _, d := range documents(f) {
		f.Add(string(d))
	}
	f.Fuzz(func(t *testing.T, s string) {
		fp, err := wire.ParseFingerprint(s)
		if err != nil {
			return
		}
		if again, err := wire.ParseFingerprint(fp); err != nil || again != fp {
			t.Errorf("got %q, %v; want %q", again, err, fp)
		}
	})
}

func FuzzParseKeyFile(f *testing.F) {
	for _, k := range wiretest.Keys(f) {
		f.Add(wire.FormatKeyFile(k))
		f.Add([]byte(k.Seed()))
	}
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := wire.ParseKeyFile(data)
		if err != nil {
			return
		}
		again, err := wire.ParseKeyFile(wire.FormatKeyFile(k))
		if err != nil || again.Seed() != k.Seed() {
			t.Errorf("the key does not come back: %v", err)
		}
	})
}

func FuzzDecodeBase64(f *testing.F) {
	for _, d := range documents(f) {
		f.Add(string(d))
	}
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := wire.DecodeBase64(s); err == nil && wire.EncodeBase64(b) != s {
			t.Errorf("got %q; want %q", wire.EncodeBase64(b), s)
		}
	})
}

// CheckJSON accepts what jsontext accepts, but for MaxDepth, MaxMembers and numbers beyond float64.
func FuzzCheckJSON(f *testing.F) {
	seed(f)
	for _, s := range []string{
		`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `"\ud83d\ude00"`, `"\udc00\ud800"`, "\"\xff\"", `[1,]`,
		`01`, `-`, `-0`, `1.`, `1e`, `1e5`, `1e400`, `tru`, `nullx`, `{}x`, "\ufeff{}", `{"a"}`, `[`, `"`, `"\`, `"\u12`, ` [ ] `,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		err := wire.CheckJSON(doc)
		want := jsontext.Value(doc).IsValid()
		if err == nil && !want {
			t.Errorf("accepted %q", doc)
		}
		if err != nil && want {
			switch err.Error() {
			case "not JSON: nested too deep", "not JSON: number out of range", "not JSON: too many members":
			default:
				t.Errorf("refused %q: %v", doc, err)
			}
		}
		if err != nil && !errors.Is(err, wire.ErrNotJSON) {
			t.Errorf("got %v; want ErrNotJSON", err)
		}
	})
}

func FuzzCanonical(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, doc []byte) {
		before := bytes.Clone(doc)
		c, err := wire.Canonical(doc)
		if !bytes.Equal(doc, before) {
			t.Fatal("the document was changed")
		}
		if err != nil {
			return
		}
		again, err := wire.Canonical(c)
		if err != nil || !bytes.Equal(again, c) {
			t.Errorf("got %s, %v; want %s", again, err, c)
		}
	})
}

// AppendString is the canonical form of the text it is given.
func FuzzAppendString(f *testing.F) {
	for _, d := range documents(f) {
		f.Add(string(d))
	}
	for _, s := range []string{"\x00\x1f\b\f\"\\/\u007f\u2028", "\xe2\x82", "\xed\xa0\x80", "\xf0\x9f\x98\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := wire.AppendString(nil, s)
		c, err := wire.Canonical(got)
		if err != nil || !bytes.Equal(c, got) {
			t.Errorf("%q: got %s, %v; want %s", s, c, err, got)
		}
	})
}

func FuzzHopTime(f *testing.F) {
	now := time.UnixMilli(1790000000000)
	for _, s := range []string{"1790000000000", "1790000300000", "1790000300001", "NaN", "1e3", "+1", "-1", "0", "01", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ts string) {
		if wire.CheckHopTime(ts, now) != nil {
			return
		}
		ms, err := strconv.ParseInt(ts, 10, 64)
		if err != nil || strconv.FormatInt(ms, 10) != ts {
			t.Errorf("accepted %q", ts)
		}
	})
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"2026-10-02T12:34:56.789Z", "2026-10-02T12:34:56Z", "2026-10-02T12:34:56.789+00:00", "2026-10-02"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		at, err := wire.ParseTime(s)
		if err != nil {
			return
		}
		again, err := wire.ParseTime(wire.FormatTime(at))
		if err != nil || !again.Equal(at.Truncate(time.Millisecond)) {
			t.Errorf("%q: got %v, %v", s, again, err)
		}
	})
}

func FuzzCheckEnvelope(f *testing.F) {
	f.Add([]byte(loadEnvelope(f).WireB64))
	seed(f)
	f.Fuzz(func(t *testing.T, w []byte) {
		head, err := wire.CheckEnvelope(w)
		notJSON := errors.Is(err, wire.ErrNotJSON)
		if notJSON != (wire.CheckJSON(w) != nil) {
			t.Errorf("got %v; CheckJSON disagrees", err)
		}
		var shape *wire.ShapeError
		if err != nil {
			if !notJSON && !errors.As(err, &shape) {
				t.Errorf("got %v", err)
			}
			return
		}
		env, err := wire.ParseEnvelope(w)
		if err != nil || env.ID != head.ID || env.From != head.From || len(env.To) != len(head.To) || (env.Enc != nil) != head.Sealed {
			t.Errorf("got %+v, %v; want %+v", env, err, head)
		}
		_ = wire.VerifyEnvelope(w, wire.PublicKey{})
	})
}

func FuzzVerifyEnvelope(f *testing.F) {
	v := loadEnvelope(f)
	work := wiretest.Keys(f)["work"].Public()
	f.Add([]byte(v.WireB64))
	seed(f)
	want, err := wire.Canonical(v.WireB64)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, w []byte) {
		if wire.VerifyEnvelope(w, work) != nil {
			return
		}
		// Only the example verifies, opened or not, however it is spaced.
		got, err := wire.SignedPayload(w)
		if err != nil || string(got) != v.SignedPayload {
			t.Errorf("verified %s; want %s", w, want)
		}
	})
}

func FuzzOpen(f *testing.F) {
	v := loadEnvelope(f)
	enc, err := wire.ParseEncPrivateKey(v.RecipientEncPrivate)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(v.WireB64))
	seed(f)
	f.Fuzz(func(t *testing.T, w []byte) {
		body, err := wire.Open(w, enc)
		if err == nil && string(body) == "" {
			t.Errorf("opened nothing from %s", w)
		}
		if opened, err := wire.OpenedForm(w, []byte("x\xff")); err == nil && wire.CheckJSON(opened) != nil {
			t.Errorf("got %s", opened)
		}
	})
}

func FuzzCheckReceipt(f *testing.F) {
	f.Add([]byte(recordVectors(f)["receipt"].Wire))
	seed(f)
	f.Fuzz(func(t *testing.T, w []byte) {
		r, err := wire.CheckReceipt(w)
		if err != nil {
			if !errors.Is(err, wire.ErrNotJSON) && err != wire.ErrBadReceipt {
				t.Errorf("got %v", err)
			}
			return
		}
		if r.Rank() == 0 || !wire.ValidItemID(r.ID()) {
			t.Errorf("got %+v", r)
		}
	})
}

func FuzzCheckItem(f *testing.F) {
	f.Add("receipt", "x", []byte(recordVectors(f)["receipt"].Wire))
	for _, d := range documents(f) {
		f.Add("envelope", "01JB2Q3R4S5T6V7W8X9YZABCDE", d)
	}
	f.Fuzz(func(t *testing.T, kind, id string, w []byte) {
		r, refusal := wire.CheckItem(kind, id, w, wire.PublicKey{})
		if (r != nil) != (kind == wire.KindReceipt && refusal == "") {
			t.Errorf("got %v, %q", r, refusal)
		}
	})
}

func FuzzParsePush(f *testing.F) {
	for _, d := range documents(f) {
		f.Add([]byte(`{"items":[{"kind":"envelope","item_id":"x","targets":[{"host_pubkey":"` +
			wiretest.Keys(f)["home"].Public().String() + `","wire_b64":"` + wire.EncodeBase64(d) + `"}]}]}`))
		break
	}
	seed(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		items, err := wire.ParsePush(body, 4, 3)
		strict := wire.CheckJSON(body) == nil
		if err == nil != (items != nil) && err != nil {
			t.Errorf("got items and %v", err)
		}
		if err == wire.ErrBadJSON && strict || err == nil && !strict {
			t.Errorf("got %v; CheckJSON says %v", err, strict)
		}
		if len(items) > 4 {
			t.Errorf("got %d items", len(items))
		}
		for _, it := range items {
			if it.TargetsOK && (len(it.Targets) < 1 || len(it.Targets) > 3) || !it.TargetsOK && len(it.Targets) > 0 {
				t.Errorf("got %+v", it)
			}
			for _, tg := range it.Targets {
				if tg.WireOK != (len(tg.Wire) > 0) || !tg.KeyOK && !tg.Key.IsZero() {
					t.Errorf("got %+v", tg)
				}
			}
		}
	})
}

func FuzzParseV1Push(f *testing.F) {
	f.Add([]byte(`{"envelopes":[` + string(loadEnvelope(f).WireB64) + `, {} ]}`))
	seed(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		wires, err := wire.ParseV1Push(body, 4)
		if err == wire.ErrBadJSON && wire.CheckJSON(body) == nil {
			t.Errorf("refused %q", body)
		}
		for _, w := range wires {
			if wire.CheckJSON(w) != nil || !bytes.Contains(body, w) {
				t.Errorf("got %q", w)
			}
		}
	})
}

func FuzzSenderList(f *testing.F) {
	e := recordVectors(f)["sender-list"]
	home := wiretest.Keys(f)["home"].Public()
	f.Add([]byte(e.Record), e.Sig)
	for _, d := range documents(f) {
		f.Add(d, e.Sig)
	}
	f.Fuzz(func(t *testing.T, list []byte, sig string) {
		l, err := wire.ParseSenderList(list, sig, home, day)
		checkRecordError(t, err)
		if err == nil && string(l.Canonical) != e.Canonical {
			t.Errorf("verified %s", list)
		}
	})
}

func FuzzRotation(f *testing.F) {
	e := recordVectors(f)["rotation"]
	f.Add([]byte(e.Signed))
	seed(f)
	f.Fuzz(func(t *testing.T, doc []byte) {
		r, err := wire.ParseRotation(doc)
		checkRecordError(t, err)
		if err != nil {
			return
		}
		if again, err := wire.ParseRotation(r.Doc); err != nil || !bytes.Equal(again.Doc, r.Doc) {
			t.Errorf("got %s, %v; want %s", again.Doc, err, r.Doc)
		}
	})
}

func FuzzEncAd(f *testing.F) {
	e := recordVectors(f)["enc-ad"]
	home := wiretest.Keys(f)["home"].Public()
	f.Add([]byte(e.Record), e.Sig)
	for _, d := range documents(f) {
		f.Add(d, e.Sig)
	}
	f.Fuzz(func(t *testing.T, ad []byte, sig string) {
		a, err := wire.ParseEncAd(ad, sig, "home", home, day)
		var refused *wire.AdError
		if err != nil && !errors.As(err, &refused) {
			t.Errorf("got %v; want an AdError", err)
		}
		if err == nil && string(a.Canonical) != e.Canonical {
			t.Errorf("verified %s", ad)
		}
	})
}

func FuzzNotice(f *testing.F) {
	f.Add([]byte(recordVectors(f)["expiry-notice"].Wire))
	seed(f)
	relay := wiretest.Keys(f)["relay"].Public()
	f.Fuzz(func(t *testing.T, w []byte) {
		n, err := wire.ParseExpiryNotice(w, relay)
		checkRecordError(t, err)
		if err == nil && n.ItemID != "01JB2Q3R4S5T6V7W8X9YZABCDE" {
			t.Errorf("verified %s", w)
		}
	})
}

func FuzzAccept(f *testing.F) {
	e := recordVectors(f)["accept"]
	relay := wiretest.Keys(f)["relay"].Public()
	f.Add([]byte(e.Record), e.Sig)
	for _, d := range documents(f) {
		f.Add(d, e.Sig)
	}
	f.Fuzz(func(t *testing.T, raw []byte, sig string) {
		a, err := wire.VerifyAccept(raw, sig, relay)
		checkRecordError(t, err)
		if err == nil && string(a.Canonical()) != e.Canonical {
			t.Errorf("verified %s", raw)
		}
	})
}

func FuzzCloudCertificate(f *testing.F) {
	e := recordVectors(f)["cloud-certificate"]
	home := wiretest.Keys(f)["home"].Public()
	f.Add([]byte(e.Record), e.Sig)
	for _, d := range documents(f) {
		f.Add(d, e.Sig)
	}
	f.Fuzz(func(t *testing.T, payload []byte, sig string) {
		c, err := wire.VerifyCloudCertificate(payload, sig, home)
		checkRecordError(t, err)
		if err == nil && string(c.Canonical) != e.Canonical {
			t.Errorf("verified %s", payload)
		}
	})
}

func FuzzNormalizeToken(f *testing.F) {
	f.Add("7K3M-QX9D-4HTR")
	f.Add("ilo 0000-0000o")
	f.Fuzz(func(t *testing.T, typed string) {
		token, err := wire.NormalizeToken(typed)
		if err != nil {
			return
		}
		if again, err := wire.NormalizeToken(token); err != nil || again != token {
			t.Errorf("got %q, %v; want %q", again, err, token)
		}
	})
}

func checkRecordError(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, wire.ErrMalformed) && !errors.Is(err, wire.ErrBadSignature) {
		t.Errorf("got %v; want ErrMalformed or ErrBadSignature", err)
	}
}

// FuzzHopPayload: what is signed is canonical, and as long as it was said to be.
func FuzzHopPayload(f *testing.F) {
	for _, doc := range documents(f) {
		f.Add("POST", "/v2/relay/items", "1790000000000", doc)
	}
	f.Add("POST", "/v2/relay/items", "1", []byte("\x00\x01\t\"\\\xff\xed\xa0\x80é\u2028"))
	f.Fuzz(func(t *testing.T, method, path, ts string, body []byte) {
		p := wire.HopPayload(method, path, ts, body)
		if n := wire.HopPayloadSize(method, path, ts, body); n != len(p) {
			t.Errorf("size: got %d; want %d", n, len(p))
		}
		if c, err := wire.Canonical(p); err != nil || string(c) != string(p) {
			t.Errorf("got %q, canonical %q, %v; want it canonical", p, c, err)
		}
	})
}
