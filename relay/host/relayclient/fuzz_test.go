package relayclient

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// The targets of this file read anything as an answer: no panic, ErrBadAnswer
// or something that keeps the parser's promises, and only of strict JSON.

func seeds(f *testing.F, docs ...string) {
	for _, d := range append(docs, "", "null", "[]", "{}", `{"error":"no","code":"X"}`, "<html>", strings.Repeat("[", 100), `{"a":1,"a":1}`) {
		f.Add([]byte(d))
	}
}

// taken checks what came of a document, and reports whether it was taken.
func taken(t *testing.T, doc []byte, err error) bool {
	t.Helper()
	if err != nil {
		if s := err.Error(); !errors.Is(err, ErrBadAnswer) || s != printable(s) {
			t.Fatalf("got the error %q; want ErrBadAnswer", s)
		}
		return false
	}
	if err := wire.CheckJSON(doc); err != nil {
		t.Fatalf("took a document that is not strict JSON: %v", err)
	}
	return true
}

func FuzzParseInfo(f *testing.F) {
	ad := `{"enc_pub":"` + testKey.Public().String() + `","exp":"2026-10-02T12:34:56.789Z","v1":null}`
	seeds(f, string(infoWith(`{"max_batch":200,"max_wait_s":25}`, "")), string(infoWith(`{}`,
		`,"you":{"host":"alpha","pubkey":"`+testKey.Public().String()+`","head_seq":7,"acked_through":1,"enc_ad":`+ad+`}`)))
	me := &Caller{Host: "alpha", Key: testKey}
	f.Fuzz(func(t *testing.T, doc []byte) {
		in, err := parseInfo(doc, me)
		if !taken(t, doc, err) {
			return
		}
		l := in.Limits
		if l.MaxItemBytes < 1 || l.MaxBatch < 1 || l.MaxBatch > 10_000 || l.MaxPull < 1 || l.MaxPull > 10_000 ||
			l.MaxPullBytes < 1 || l.MaxTargets < 1 || l.RetentionDays < 0 || l.MaxWaitS < 0 || l.MaxWaitS > 25 {
			t.Errorf("limits out of bounds: %+v", l)
		}
		if !label(&in.Epoch) || in.Version != printable(in.Version) || in.You != nil && in.You.Key != testKey.Public() {
			t.Errorf("took %+v", in)
		}
	})
}

func FuzzParseChallenge(f *testing.F) {
	seeds(f, `{"challenge":"abc"}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		s, err := parseChallenge(doc)
		if taken(t, doc, err) && !label(&s) {
			t.Errorf("took %q", s)
		}
	})
}

func FuzzParseOK(f *testing.F) {
	seeds(f, `{"ok":true}`, `{"ok":false}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		if taken(t, doc, parseOK(doc)) && !bytes.Contains(doc, []byte("true")) {
			t.Errorf("took %q", doc)
		}
	})
}

func FuzzParseMoved(f *testing.F) {
	seeds(f, `{"moved":7}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		n, err := parseMoved(doc)
		if taken(t, doc, err) && !counts(&n) {
			t.Errorf("took %d", n)
		}
	})
}

func FuzzParseResults(f *testing.F) {
	seeds(f, `{"results":[{"item_id":"a","status":"accepted","targets":[{"host_pubkey":"k","seq":1}],"accept":{"v":1},"sig":"s"},{"item_id":"b","status":"rejected:rate","targets":[]}]}`)
	items := []Item{{ID: "a"}, {ID: "b"}}
	f.Fuzz(func(t *testing.T, doc []byte) {
		res, err := parseResults(doc, items)
		if !taken(t, doc, err) {
			return
		}
		if len(res) != len(items) {
			t.Fatalf("got %d results; want %d", len(res), len(items))
		}
		for i, r := range res {
			if r.ItemID != items[i].ID && (r.ItemID != "" || r.Status != "" || r.Accept != nil || r.Sig != "") {
				t.Errorf("result %d: got %+v", i, r)
			}
			if r.Accept != nil && !bytes.Contains(doc, r.Accept) {
				t.Errorf("accept %d is not as received: %s", i, r.Accept)
			}
		}
	})
}

func FuzzParsePage(f *testing.F) {
	seeds(f, `{"epoch":"e","head_seq":2,"items":[{"seq":1,"kind":"envelope","item_id":"a","sender_pubkey":"k","wire_b64":"eA=="},{"seq":2,"kind":"receipt","item_id":"b","sender_pubkey":"k","wire_b64":"\/=\n"}],"last_seq":2,"more":true}`,
		`{"epoch":"e","head_seq":0,"items":[],"last_seq":0,"more":false}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := parsePage(doc, 3)
		if !taken(t, doc, err) {
			return
		}
		if len(p.Items) > 3 || !label(&p.Epoch) || !counts(&p.HeadSeq, &p.LastSeq) {
			t.Errorf("took %+v", p)
		}
		for _, it := range p.Items {
			if it.WireOK != (len(it.Wire) > 0) || it.WireOK && it.Raw != nil || len(it.Raw) > maxRaw || !counts(&it.Seq) {
				t.Errorf("took %+v", it)
			}
			if b, err := wire.DecodeBase64(string(it.Raw)); err == nil && len(b) > 0 {
				t.Errorf("refused %q", it.Raw)
			}
		}
	})
}

func FuzzParseAcked(f *testing.F) {
	seeds(f, `{"acked_through":1,"deleted":2,"head_seq":3}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		a, err := parseAcked(doc)
		if taken(t, doc, err) && !counts(&a.AckedThrough, &a.Deleted, &a.HeadSeq) {
			t.Errorf("took %+v", a)
		}
	})
}

func FuzzParseEncKey(f *testing.F) {
	seeds(f, `{"host":"a","host_pubkey":"k","enc_pub":"e","sig":"s","ad":{"v":2, "x":[1e0]},"ad_sig":"t"}`, `{"host":"a","host_pubkey":"k","enc_pub":"e","ad":null}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		k, err := parseEncKey(doc)
		if taken(t, doc, err) && k.Ad != nil && !bytes.Contains(doc, k.Ad) {
			t.Errorf("the ad is not as received: %s", k.Ad)
		}
	})
}

func FuzzParseStored(f *testing.F) {
	seeds(f, `{"stored":1}`, `{"stored":0,"error":"recipient host ambiguous"}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		n, reason, err := parseStored(doc, 2)
		if taken(t, doc, err) && (n < 0 || n > 2 || reason != printable(reason)) {
			t.Errorf("took %d %q", n, reason)
		}
	})
}

// A v1 page may hold an envelope that is not strict JSON.
func FuzzParseV1Page(f *testing.F) {
	seeds(f, `{"items":[{"seq":1,"envelope":{"v":3,"x":[1e0]},"from":"alpha"}],"cursor":1}`, `{"items":[{"seq":1,"envelope":{"x":1,"x":"\ud800"},"from":"a"}],"cursor":1}`)
	f.Fuzz(func(t *testing.T, doc []byte) {
		items, cursor, err := parseV1Page(doc)
		if err != nil {
			taken(t, doc, err)
			return
		}
		if !counts(&cursor) {
			t.Errorf("took the cursor %d", cursor)
		}
		for _, it := range items {
			if !counts(&it.Seq) || len(it.Envelope) == 0 || !bytes.Contains(doc, it.Envelope) {
				t.Errorf("took %+v", it)
			}
		}
	})
}

func FuzzRefused(f *testing.F) {
	seeds(f, `{"error":"the epoch has changed","code":"EPOCH","epoch":"e","head_seq":7}`, `{"error":"repeats the-secret-of-ours","code":"THE_SECRET_OF_OURS"}`)
	q := call{what: "x", secret: []byte(`{"token":"the-secret-of-ours"}`)}
	f.Fuzz(func(t *testing.T, doc []byte) {
		var e *StatusError
		if err := q.refused(answer{status: 409, body: doc}); !errors.As(err, &e) || e.Status != 409 {
			t.Fatalf("got %v; want a StatusError", err)
		}
		for _, s := range []string{e.Reason, e.Code, e.Epoch} {
			if s != printable(s) || strings.Contains(s, "the-secret-of-ours") {
				t.Errorf("took %+v", e)
			}
		}
		if e.Head < 0 || e.Head > maxInteger {
			t.Errorf("took the head %d", e.Head)
		}
	})
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"https://relay.example.com/", "http://[::1]:7374", "http://a:b@c", "http://[fe80::1%25en0]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURL(s)
		if err != nil {
			return
		}
		if again, err := ParseURL(u); again != u || err != nil {
			t.Errorf("%q gave %q, which gives %q, %v", s, u, again, err)
		}
	})
}
