package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// The values no member takes unless its rule says so.
var anyTypes = map[string]any{
	"null": nil, "true": true, "number": 7, "fraction": 1.5, "string": "x", "array": []any{}, "object": map[string]any{},
	"array of null": []any{nil}, "array of arrays": []any{[]any{}},
}

// with returns doc with the value at a path of member names changed; the value
// absent removes it.
func with(t *testing.T, doc []byte, path string, value any) []byte {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal(doc, &root); err != nil {
		t.Fatal(err)
	}
	names := strings.Split(path, ".")
	at := root
	for _, n := range names[:len(names)-1] {
		at = at[n].(map[string]any)
	}
	last := names[len(names)-1]
	if value == absent {
		delete(at, last)
	} else {
		at[last] = value
	}
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type absence struct{}

var absent = absence{}

func granted(t *testing.T, doc []byte) []byte {
	return with(t, doc, "authority", map[string]any{"session_sig": "s", "grant": map[string]any{
		"v": 2, "id": "i", "iss": "i", "sub": "s", "agent": "a", "host": "h", "caps": []string{"c"},
		"iat": "t", "exp": "t", "nonce": "n", "sig": "s",
	}})
}

func TestEnvelopeWrongTypes(t *testing.T) {
	base := []byte(loadEnvelope(t).WireB64)
	owned := with(t, base, "authority", map[string]any{"owner_sig": "s", "owner_fp": "f"})
	full := with(t, base, "meta", map[string]any{
		"mentions": []string{}, "directives": []string{}, "tags": []string{}, "task_refs": []string{}, "hop": 0,
		"origin": "agent", "project": "", "project_key": "", "sender_verification": "leased", "local_names": []string{"owner"},
	})
	for _, doc := range [][]byte{base, owned, full, granted(t, base)} {
		if _, err := wire.CheckEnvelope(doc); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
	}
	tests := []struct {
		doc      []byte
		path     string
		allowed  string // types that pass
		optional bool
	}{
		{base, "v", "", false}, {base, "id", "", false}, {base, "ts", "", false}, {base, "from", "", false},
		{base, "to", "", false}, {base, "thread", "null,string", false}, {base, "reply_to", "null,string", false},
		{base, "kind", "", false}, {base, "subject", "string", false}, {base, "body", "", false},
		{base, "needs_reply", "true", false}, {base, "refs", "array", false}, {base, "meta", "", false},
		{base, "meta.mentions", "array", false}, {base, "meta.directives", "array", false},
		{base, "meta.tags", "array", false}, {base, "meta.task_refs", "array", false},
		{full, "meta.hop", "number", true}, {full, "meta.origin", "", true}, {full, "meta.project", "string", true},
		{full, "meta.project_key", "string", true}, {full, "meta.sender_verification", "", true},
		{full, "meta.local_names", "array", true},
		{base, "authority", "null", false},
		{owned, "authority.owner_sig", "string", false}, {owned, "authority.owner_fp", "string", false},
		{owned, "authority.grant", "", true}, {owned, "authority.session_sig", "", true},
		{granted(t, base), "authority.session_sig", "string", false}, {granted(t, base), "authority.owner_fp", "", true},
		{granted(t, base), "authority.grant", "", false}, {granted(t, base), "authority.grant.v", "", false},
		{granted(t, base), "authority.grant.id", "string", false}, {granted(t, base), "authority.grant.iss", "string", false},
		{granted(t, base), "authority.grant.sub", "string", false}, {granted(t, base), "authority.grant.agent", "string", false},
		{granted(t, base), "authority.grant.host", "string", false}, {granted(t, base), "authority.grant.caps", "array", false},
		{granted(t, base), "authority.grant.iat", "string", false}, {granted(t, base), "authority.grant.exp", "string", false},
		{granted(t, base), "authority.grant.nonce", "string", false}, {granted(t, base), "authority.grant.sig", "string", false},
		{base, "enc.v", "", false}, {base, "enc.alg", "", false}, {base, "enc.epk", "", false},
		{base, "enc.nonce", "", false}, {base, "enc.body", "", false},
		{base, "sig", "", true}, {base, "sig.alg", "string", false}, {base, "sig.host", "string", false},
		{base, "sig.key", "string", false}, {base, "sig.value", "string", false},
		{base, "unknown", "null,true,number,fraction,string,array,object,array of null,array of arrays", true},
		{base, "V", "null,true,number,fraction,string,array,object,array of null,array of arrays", true},
	}
	for _, tt := range tests {
		for typ, value := range anyTypes {
			_, err := wire.CheckEnvelope(with(t, tt.doc, tt.path, value))
			want := contains(tt.allowed, typ)
			var shape *wire.ShapeError
			if (err == nil) != want || err != nil && !errors.As(err, &shape) {
				t.Errorf("%s as %s: got %v; want accepted %v", tt.path, typ, err, want)
			}
		}
		if _, err := wire.CheckEnvelope(with(t, tt.doc, tt.path, absent)); (err == nil) != tt.optional {
			t.Errorf("without %s: got %v; want accepted %v", tt.path, err, tt.optional)
		}
	}
}

func contains(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

func repeat(s string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = s
	}
	return list
}

func TestEnvelopeBounds(t *testing.T) {
	v := loadEnvelope(t)
	sealed := []byte(v.WireB64)
	plain := []byte(v.Plain)
	astral := "\U0001F600" // two UTF-16 units
	key33 := wire.EncodeBase64(make([]byte, 33))
	tests := []struct {
		name string
		doc  []byte
		path string
		val  any
		ok   bool
	}{
		{"v as 3.0", sealed, "v", json.Number("3.0"), true},
		{"v 4", sealed, "v", 4, false},
		{"id with I", sealed, "id", "01JB2Q3R4S5T6V7W8X9YZABCDI", false},
		{"id of 25", sealed, "id", "01JB2Q3R4S5T6V7W8X9YZABCD", false},
		{"ts a day", sealed, "ts", "2026-10-02", true},
		{"ts with offset", sealed, "ts", "2026-10-02T12:34:56.1+02:00", true},
		{"ts month 13", sealed, "ts", "2026-13-02T00:00:00Z", false},
		{"ts empty", sealed, "ts", "", false},
		{"from of 300", sealed, "from", strings.Repeat("a", 299) + "@", true},
		{"from of 301", sealed, "from", strings.Repeat("a", 300) + "@", false},
		{"to of 100", sealed, "to", repeat("a@b", 100), true},
		{"to of 101", sealed, "to", repeat("a@b", 101), false},
		{"to long", sealed, "to", []string{strings.Repeat("a", 301)}, false},
		{"to astral 300", sealed, "to", []string{strings.Repeat(astral, 150)}, true},
		{"to astral 302", sealed, "to", []string{strings.Repeat(astral, 151)}, false},
		{"to a number among strings", sealed, "to", []any{"a@b", 1}, false},
		{"thread of 300", sealed, "thread", strings.Repeat("é", 300), true},
		{"thread of 301", sealed, "thread", strings.Repeat("é", 301), false},
		{"reply_to of 301", sealed, "reply_to", strings.Repeat("x", 301), false},
		{"subject of 200", sealed, "subject", strings.Repeat("€", 200), true},
		{"subject of 201", sealed, "subject", strings.Repeat("€", 201), false},
		{"subject astral 100", sealed, "subject", strings.Repeat(astral, 100), true},
		{"subject astral 101", sealed, "subject", strings.Repeat(astral, 101), false},
		{"subject tab", sealed, "subject", "a\tb", false},
		{"subject NUL", sealed, "subject", "a\x00", false},
		{"subject DEL", sealed, "subject", "a\x7f", false},
		{"subject U+0085", sealed, "subject", "a\u0085", false},
		{"subject U+2029", sealed, "subject", "\u2029", false},
		{"subject U+0084", sealed, "subject", "a\u0084", true},
		{"subject U+2027", sealed, "subject", "\u2027", true},
		{"refs of 100", sealed, "refs", repeat(strings.Repeat("r", 2048), 100), true},
		{"refs of 101", sealed, "refs", repeat("r", 101), false},
		{"ref of 2049", sealed, "refs", []string{strings.Repeat("r", 2049)}, false},
		{"plain 256 KiB", plain, "body", strings.Repeat("x", wire.MaxPlainBody), true},
		{"plain over", plain, "body", strings.Repeat("x", wire.MaxPlainBody+1), false},
		{"plain over in bytes", plain, "body", strings.Repeat("é", wire.MaxPlainBody/2+1), false},
		{"sealed is another body", sealed, "body", "AAAA", false},
		{"hop 1000", sealed, "meta.hop", 1000, true},
		{"hop -1", sealed, "meta.hop", -1, false},
		{"hop 1e3", sealed, "meta.hop", json.Number("1e3"), true},
		{"origin external", sealed, "meta.origin", "external", true},
		{"origin other", sealed, "meta.origin", "owner", false},
		{"project of 301", sealed, "meta.project", strings.Repeat("p", 301), false},
		{"verification other", sealed, "meta.sender_verification", "x", false},
		{"local names of 100", sealed, "meta.local_names", repeat("builder", 100), true},
		{"local names of 101", sealed, "meta.local_names", repeat("builder", 101), false},
		{"local name upper", sealed, "meta.local_names", []string{"Builder"}, false},
		{"epk of 33 bytes", sealed, "enc.epk", key33, false},
		{"epk loose bits", sealed, "enc.epk", strings.Repeat("A", 42) + "B=", false},
		{"epk unpadded", sealed, "enc.epk", strings.Repeat("A", 43), false},
		{"nonce of 23 bytes", sealed, "enc.nonce", wire.EncodeBase64(make([]byte, 23)), false},
		{"nonce of 25 bytes", sealed, "enc.nonce", wire.EncodeBase64(make([]byte, 25)), false},
		{"empty authority", sealed, "authority", map[string]any{}, false},
		{"half an authority", sealed, "authority", map[string]any{"owner_sig": "x"}, false},
		{"both authorities", granted(t, sealed), "authority.owner_fp", "x", false},
		{"authority with more", granted(t, sealed), "authority.more", "x", true},
		{"grant of version 1", granted(t, sealed), "authority.grant.v", 1, false},
		{"grant with a number in caps", granted(t, sealed), "authority.grant.caps", []any{1}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := wire.CheckEnvelope(with(t, tt.doc, tt.path, tt.val))
			if (err == nil) != tt.ok {
				t.Errorf("got %v; want accepted %v", err, tt.ok)
			}
		})
	}
	for size, ok := range map[int]bool{wire.MaxSealedBody: true, wire.MaxSealedBody + 4: false} {
		body := strings.Repeat("A", size)
		_, err := wire.CheckEnvelope(with(t, with(t, sealed, "body", body), "enc.body", body))
		if (err == nil) != ok {
			t.Errorf("sealed body of %d: got %v; want accepted %v", size, err, ok)
		}
	}
}

// What is no JSON is told from a bad shape, wherever it stands.
func TestEnvelopeNotJSON(t *testing.T) {
	good := string(loadEnvelope(t).WireB64)
	bad := strings.Replace(good, `"v":3`, `"v":2`, 1)
	deep := strings.Repeat("[", wire.MaxDepth) + strings.Repeat("]", wire.MaxDepth)
	tests := []struct{ name, doc string }{
		{"empty", ""}, {"cut short", bad[:len(bad)-1]}, {"trailing", bad + "x"}, {"two", bad + bad},
		{"duplicate", strings.Replace(bad, `"v":2`, `"v":2,"v":3`, 1)},
		{"duplicate by escape", strings.Replace(bad, `"v":2`, `"v":2,"\u0076":3`, 1)},
		{"duplicate in an unknown member", strings.Replace(bad, `"v":2`, `"v":2,"x":[{"a":1,"a":1}]`, 1)},
		{"lone surrogate", strings.Replace(bad, "Build", `\ud800`, 1)},
		{"invalid UTF-8", strings.Replace(bad, "Build", "\xff", 1)},
		{"encoded surrogate", strings.Replace(bad, "Build", "\xed\xa0\x80", 1)},
		{"too deep", strings.Replace(bad, `"v":2`, `"v":2,"x":`+deep, 1)},
		{"number out of range", strings.Replace(bad, `"v":2`, `"v":2,"x":1e400`, 1)},
		{"line break in a string", strings.Replace(bad, "Build", "\n", 1)},
		{"comma at the end", strings.Replace(bad, `}`, `,}`, 1)},
		{"BOM", "\ufeff" + bad},
	}
	for _, tt := range tests {
		_, err := wire.CheckEnvelope([]byte(tt.doc))
		if !errors.Is(err, wire.ErrNotJSON) {
			t.Errorf("%s: got %v; want ErrNotJSON", tt.name, err)
		}
		if _, refusal := wire.CheckItem("envelope", "x", []byte(tt.doc), wire.PublicKey{}); refusal != "bad wire" {
			t.Errorf("%s: got %q; want bad wire", tt.name, refusal)
		}
	}
	shallow := strings.Replace(good, `"v":3`, `"v":3,"x":`+deep[1:len(deep)-1], 1)
	if _, err := wire.CheckEnvelope([]byte(shallow)); err != nil {
		t.Errorf("nested to the limit: %v", err)
	}
	for _, hostile := range []string{strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, 1<<20)} {
		if err := wire.CheckJSON([]byte(hostile)); !errors.Is(err, wire.ErrNotJSON) {
			t.Errorf("got %v for deep nesting", err)
		}
	}
}

func TestReceiptShape(t *testing.T) {
	doc := []byte(recordVectors(t)["receipt"].Wire)
	full := with(t, doc, "rec.did", "did")
	if _, err := wire.CheckReceipt(full); err != nil {
		t.Fatal(err)
	}
	members := []struct {
		path, allowed string
		optional      bool
	}{
		{"rec", "", false}, {"sig", "string", false}, {"rec.v", "", false}, {"rec.type", "", false}, {"rec.msg", "", false},
		{"rec.recipient", "", false}, {"rec.state", "", false}, {"rec.at", "", false}, {"rec.seq", "number", false},
		{"rec.note", "string", true}, {"rec.did", "string", true}, {"extra", "", true}, {"rec.extra", "", true},
	}
	for _, m := range members {
		for typ, value := range anyTypes {
			_, err := wire.CheckReceipt(with(t, full, m.path, value))
			if want := contains(m.allowed, typ); (err == nil) != want {
				t.Errorf("%s as %s: got %v; want accepted %v", m.path, typ, err, want)
			}
		}
		if _, err := wire.CheckReceipt(with(t, full, m.path, absent)); (err == nil) != m.optional {
			t.Errorf("without %s: got %v; want accepted %v", m.path, err, m.optional)
		}
	}
	bounds := []struct {
		path string
		val  any
		ok   bool
	}{
		{"rec.v", 2, false}, {"rec.type", "Receipt", false}, {"rec.state", "sent", false}, {"rec.state", "notified", true},
		{"rec.msg", strings.Repeat("m", 9), false}, {"rec.msg", strings.Repeat("m", 10), true},
		{"rec.msg", strings.Repeat("m", 40), true}, {"rec.msg", strings.Repeat("m", 41), false},
		{"rec.recipient", strings.Repeat("a", 40) + "@" + strings.Repeat("h", 63), true},
		{"rec.recipient", strings.Repeat("a", 40) + "@" + strings.Repeat("h", 64), false},
		{"rec.recipient", "reviewer", false}, {"rec.recipient", "@home", false}, {"rec.recipient", "reviewer@", false},
		{"rec.recipient", "a@b@home", false}, {"rec.recipient", "owner@home", true},
		{"rec.note", strings.Repeat("é", 500), true}, {"rec.note", strings.Repeat("é", 501), false}, {"rec.note", "", true},
		{"rec.did", strings.Repeat("\U0001F600", 100), true}, {"rec.did", strings.Repeat("\U0001F600", 101), false},
		{"rec.at", "2026-10-02T12:34:57+00:00", false}, {"rec.at", "2026-10-02T12:34:57Z", true}, {"rec.at", "2026-10-02", false},
		{"rec.at", "2026-02-30T12:34:57Z", false},
		{"rec.seq", 0, false}, {"rec.seq", -1, false}, {"rec.seq", json.Number("9007199254740991"), true},
		{"rec.seq", json.Number("9007199254740992"), false}, {"rec.seq", json.Number("9007199254740993"), false},
	}
	for _, b := range bounds {
		if _, err := wire.CheckReceipt(with(t, full, b.path, b.val)); (err == nil) != b.ok {
			t.Errorf("%s = %v: got %v; want accepted %v", b.path, b.val, err, b.ok)
		}
	}
	if _, err := wire.CheckReceipt(bytes.Replace(doc, []byte(`"v":1`), []byte(`"v":1,"v":1`), 1)); !errors.Is(err, wire.ErrNotJSON) {
		t.Errorf("got %v; want ErrNotJSON", err)
	}
}
