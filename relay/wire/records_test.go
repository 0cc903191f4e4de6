package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// resign changes a record and signs it again, so that only the rule under test can refuse it.
func resign(t *testing.T, rec []byte, path string, value any, key wire.PrivateKey) ([]byte, string) {
	t.Helper()
	c, err := wire.Canonical(with(t, rec, path, value))
	if err != nil {
		t.Fatal(err)
	}
	return c, key.Sign(c)
}

func TestSenderListRefusals(t *testing.T) { // scenario J1
	home, work := wiretest.NewHost("home"), wiretest.NewHost("work")
	list, sig := wire.MakeSenderList(home.Key, []wire.PublicKey{work.Pub(), work.Pub()}, day)
	l, err := wire.ParseSenderList(list, sig, home.Pub(), day)
	if err != nil || len(l.Senders) != 1 || !bytes.Equal(l.Canonical, list) {
		t.Fatalf("got %+v, %v", l, err)
	}
	if _, err := wire.ParseSenderList(list, work.Key.Sign(list), home.Pub(), day); !errors.Is(err, wire.ErrBadSignature) {
		t.Errorf("another signer: got %v; want ErrBadSignature", err)
	}
	if _, err := wire.ParseSenderList(list, sig, work.Pub(), day); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("another host: got %v; want ErrMalformed", err)
	}
	keys := make([]string, wire.MaxSenders+1)
	for i := range keys {
		var k wire.PublicKey
		k[0], k[1] = byte(i), byte(i>>8)
		keys[i] = k.String()
	}
	tests := []struct {
		path string
		val  any
		ok   bool
	}{
		{"senders", keys, false}, {"senders", keys[1:], true}, {"senders", []string{}, true}, {"senders", nil, false},
		{"senders", absent, false}, {"senders", []string{"x"}, false}, {"senders", []any{1}, false}, {"senders", "x", false},
		{"iat", wire.FormatTime(day.Add(5 * time.Minute)), true}, {"iat", wire.FormatTime(day.Add(5*time.Minute + time.Millisecond)), false},
		{"iat", "2020-01-01T00:00:00.000Z", true}, {"iat", 1790000000, false}, {"iat", absent, false}, {"iat", "", false},
		{"v", 2, false}, {"v", "1", false}, {"type", "relay-accept", false}, {"type", absent, false}, {"host_pubkey", 7, false},
		{"note", "an unknown member is signed too", true},
	}
	for _, tt := range tests {
		rec, sig := resign(t, list, tt.path, tt.val, home.Key)
		l, err := wire.ParseSenderList(rec, sig, home.Pub(), day)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s = %.40v: got %v; want accepted %v", tt.path, tt.val, err, tt.ok)
		}
		if err == nil && !bytes.Equal(l.Canonical, rec) {
			t.Errorf("%s: the record is not kept as signed", tt.path)
		}
	}
	for _, doc := range []string{"", "null", "[]", "7", `"x"`, "{", `{"v":1,"v":1}`} {
		if _, err := wire.ParseSenderList([]byte(doc), sig, home.Pub(), day); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%q: got %v; want ErrMalformed", doc, err)
		}
	}
}

func TestRotationRefusals(t *testing.T) {
	work, next := wiretest.NewHost("work"), wiretest.NewHost("work")
	doc := wire.MakeRotation(work.Key, next.Key, "work", next.Enc.Public(), day)
	if r, err := wire.ParseRotation(doc); err != nil || !bytes.Equal(r.Doc, doc) {
		t.Fatalf("got %+v, %v", r, err)
	}
	sign := func(path string, val any) []byte {
		var d struct{ Rec json.RawMessage }
		if err := json.Unmarshal(doc, &d); err != nil {
			t.Fatal(err)
		}
		rec, oldSig := resign(t, d.Rec, path, val, work.Key)
		return []byte(`{"rec":` + string(rec) + `,"old_sig":"` + oldSig + `","new_sig":"` + next.Key.Sign(rec) + `"}`)
	}
	r, err := wire.ParseRotation(sign("reason", "moved"))
	if err != nil || !strings.Contains(string(r.Doc), `"reason":"moved"`) {
		t.Errorf("got %s, %v; want the unknown member kept", r.Doc, err)
	}
	for _, tt := range []struct {
		path string
		val  any
	}{
		{"v", 2}, {"type", "x"}, {"host", "a b!"}, {"host", absent}, {"old_pub", "x"}, {"new_pub", work.Pub().String()},
		{"new_enc_pub", "AAAA"}, {"new_enc_pub", absent}, {"iat", 1}, {"iat", "yesterday"},
	} {
		if _, err := wire.ParseRotation(sign(tt.path, tt.val)); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s = %v: got %v; want ErrMalformed", tt.path, tt.val, err)
		}
	}
	for _, path := range []string{"old_sig", "new_sig"} {
		for _, val := range []any{absent, "", "x", work.Key.Sign([]byte("other")), next.Key.Sign([]byte("other"))} {
			if _, err := wire.ParseRotation(with(t, doc, path, val)); !errors.Is(err, wire.ErrBadSignature) {
				t.Errorf("%s = %v: got %v; want ErrBadSignature", path, val, err)
			}
		}
	}
	if _, err := wire.ParseRotation(with(t, doc, "rec.host", "other")); !errors.Is(err, wire.ErrBadSignature) {
		t.Errorf("altered: got %v; want ErrBadSignature", err)
	}
	for _, d := range []string{"", "null", "{}", `{"rec":null}`, `{"rec":[]}`, "[]"} {
		if _, err := wire.ParseRotation([]byte(d)); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%q: got %v; want ErrMalformed", d, err)
		}
	}
}

func TestEncAd(t *testing.T) { // scenario G1
	home, other := wiretest.NewHost("home"), wiretest.NewHost("other")
	const days = 24 * time.Hour
	ad := func(iat, exp time.Time) ([]byte, string) {
		return wire.MakeEncAd(home.Key, "home", home.Enc.Public(), iat, exp)
	}
	good, sig := ad(day, day.Add(30*days))
	a, err := wire.ParseEncAd(good, sig, "HOME", home.Pub(), day)
	if err != nil || a.EncPub != home.Enc.Public() || !a.IAT.Equal(day) || !bytes.Equal(a.Canonical, good) {
		t.Fatalf("got %+v, %v", a, err)
	}
	type try struct {
		name     string
		rec      []byte
		sig      string
		host     string
		key      wire.PublicKey
		now      time.Time
		expected string
	}
	tries := []try{
		{"no signature", good, "", "home", home.Pub(), day, wire.AdUnsigned},
		{"no record", nil, sig, "home", home.Pub(), day, wire.AdUnsigned},
		{"null record", []byte(" null "), sig, "home", home.Pub(), day, wire.AdUnsigned},
		{"not JSON", []byte("{"), sig, "home", home.Pub(), day, wire.AdMalformed},
		{"array", []byte("[]"), sig, "home", home.Pub(), day, wire.AdMalformed},
		{"short key", with(t, good, "enc_pub", "AAAA"), sig, "home", home.Pub(), day, wire.AdMalformed},
		{"version 1", with(t, good, "v", 1), sig, "home", home.Pub(), day, wire.AdMalformed},
		{"no exp", with(t, good, "exp", absent), sig, "home", home.Pub(), day, wire.AdMalformed},
		{"other key", with(t, good, "enc_pub", other.Enc.Public().String()), sig, "home", home.Pub(), day, wire.AdBadSignature},
		{"extra field", with(t, good, "x", 1), sig, "home", home.Pub(), day, wire.AdBadSignature},
		{"other host's", good, sig, "home", other.Pub(), day, wire.AdWrongPeer},
		{"other name", good, sig, "work", home.Pub(), day, wire.AdWrongPeer},
		{"older than 30 days", good, sig, "home", home.Pub(), day.Add(30 * days), wire.AdExpired},
		{"last moment", good, sig, "home", home.Pub(), day.Add(30*days - time.Millisecond), ""},
	}
	add := func(name string, iat, exp time.Time, expected string) {
		rec, sig := ad(iat, exp)
		tries = append(tries, try{name, rec, sig, "home", home.Pub(), day, expected})
	}
	add("an hour ahead", day.Add(time.Hour), day.Add(30*days), wire.AdNotYetValid)
	add("five minutes ahead", day.Add(5*time.Minute), day.Add(30*days), "")
	add("365 days", day, day.Add(365*days), wire.AdTooLong)
	add("90 days", day, day.Add(90*days), "")
	add("a moment over 90 days", day, day.Add(90*days+time.Millisecond), wire.AdTooLong)
	add("exp before iat", day.Add(time.Minute), day.Add(time.Second), wire.AdMalformed)
	add("exp long past", day, day.Add(-days), wire.AdExpired)
	for _, tt := range tries {
		_, err := wire.ParseEncAd(tt.rec, tt.sig, tt.host, tt.key, tt.now)
		var refused *wire.AdError
		got := ""
		if errors.As(err, &refused) {
			got = refused.Reason
		}
		if got != tt.expected || (err == nil) != (tt.expected == "") {
			t.Errorf("%s: got %v; want %q", tt.name, err, tt.expected)
		}
	}
}

func TestAcceptAndNoticeRefusals(t *testing.T) {
	relay, home, work := wiretest.NewHost("relay"), wiretest.NewHost("home"), wiretest.NewHost("work")
	a := wire.NewAccept(relay.Pub(), "epoch", work.Pub(), "id \"é\"", []wire.AcceptTarget{
		{HostPubkey: home.Pub(), Seq: 1, WireHash: wire.HashHex([]byte("w"))}, {HostPubkey: work.Pub(), Seq: 2, WireHash: wire.HashHex(nil)},
	}, day)
	canonical, sig := wire.SignAccept(relay.Key, a)
	if again, err := wire.Marshal(a); err != nil || !bytes.Equal(again, canonical) {
		t.Fatalf("got %s, %v; want %s", again, err, canonical)
	}
	if _, err := wire.VerifyAccept(canonical, sig, relay.Pub()); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.VerifyAccept(canonical, sig, home.Pub()); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("another relay: got %v", err)
	}
	if _, err := wire.VerifyAccept(canonical, home.Key.Sign(canonical), relay.Pub()); !errors.Is(err, wire.ErrBadSignature) {
		t.Errorf("another signer: got %v", err)
	}
	altered := bytes.Replace(canonical, []byte(wire.HashHex([]byte("w"))), []byte(wire.HashHex([]byte("x"))), 1)
	if _, err := wire.VerifyAccept(altered, sig, relay.Pub()); !errors.Is(err, wire.ErrBadSignature) {
		t.Errorf("altered hash: got %v", err)
	}
	for _, tt := range []struct {
		path string
		val  any
	}{
		{"targets", []any{}}, {"targets", nil}, {"at", "x"}, {"item_id", ""}, {"type", "x"}, {"v", 2}, {"sender_pubkey", absent}, {"epoch", 7},
		{"targets", []any{map[string]any{"host_pubkey": home.Pub().String(), "seq": 1, "wire_hash": "AA"}}},
		{"targets", []any{map[string]any{"host_pubkey": home.Pub().String(), "seq": 1.5, "wire_hash": wire.HashHex(nil)}}},
	} {
		rec, sig := resign(t, canonical, tt.path, tt.val, relay.Key)
		if _, err := wire.VerifyAccept(rec, sig, relay.Pub()); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s = %v: got %v; want ErrMalformed", tt.path, tt.val, err)
		}
	}

	id, w := wire.MakeExpiryNotice(relay.Key, "m1", home.Pub(), day, day.Add(time.Hour))
	if n, err := wire.ParseExpiryNotice(w, relay.Pub()); err != nil || n.ID() != id || !n.AcceptedAt.Equal(day) || !n.ExpiredAt.Equal(day.Add(time.Hour)) {
		t.Errorf("got %+v, %v", n, err)
	}
	if _, err := wire.ParseExpiryNotice(w, home.Pub()); !errors.Is(err, wire.ErrBadSignature) {
		t.Errorf("another relay: got %v; want ErrBadSignature", err)
	}
	for _, path := range []string{"notice", "notice.item_id", "notice.target_pubkey", "notice.accepted_at", "notice.expired_at", "notice.type"} {
		if _, err := wire.ParseExpiryNotice(with(t, w, path, absent), relay.Pub()); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("without %s: got %v; want ErrMalformed", path, err)
		}
	}
}

func TestReceiptSignature(t *testing.T) {
	home := wiretest.NewHost("home")
	full := wire.Receipt{Msg: "0123456789", Recipient: "owner@home", State: "read", At: day, Note: "n \u2028", Did: "<d>", Seq: 3}
	r, err := wire.CheckReceipt(wire.MakeReceipt(home.Key, full))
	if err != nil || !r.SignedBy(home.Pub()) || r.Note != full.Note || r.Did != full.Did || r.ID() != full.ID() || r.Rank() != 3 {
		t.Errorf("got %+v, %v", r, err)
	}
	if full.SignedBy(home.Pub()) {
		t.Error("a receipt that nobody signed says it is signed")
	}
	// An empty note is part of what was signed.
	rec := []byte(`{"at":"2026-10-02T12:34:57.000Z","msg":"0123456789","note":"","recipient":"owner@home","seq":3,"state":"read","type":"receipt","v":1}`)
	r, err = wire.CheckReceipt([]byte(`{ "sig":"` + home.Key.Sign(rec) + `", "rec": ` + string(rec) + `}`))
	if err != nil || !r.SignedBy(home.Pub()) {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestSealRefusals(t *testing.T) {
	home, work := wiretest.NewHost("home"), wiretest.NewHost("work")
	if _, err := wire.Seal(work.Draft(home, "s", strings.Repeat("x", wire.MaxPlainBody+1)), home.Enc.Public(), work.Key, "work"); !errors.Is(err, wire.ErrBodyTooLarge) {
		t.Errorf("got %v; want ErrBodyTooLarge", err)
	}
	if _, err := wire.Seal(work.Draft(home, "s", "x"), wire.EncPublicKey{}, work.Key, "work"); !errors.Is(err, wire.ErrBadKey) {
		t.Errorf("a key of low order: got %v; want ErrBadKey", err)
	}
	var shape *wire.ShapeError
	if _, err := wire.Seal(work.Draft(home, "a\nb", "x"), home.Enc.Public(), work.Key, "work"); !errors.As(err, &shape) {
		t.Errorf("a line break in the subject: got %v; want a ShapeError", err)
	}
	for _, body := range []string{"", "x", strings.Repeat("x", wire.MaxPlainBody)} {
		_, w := work.Envelope(home, "s", body)
		if got, err := wire.Open(w, home.Enc); err != nil || string(got) != body {
			t.Errorf("body of %d: got %d bytes, %v", len(body), len(got), err)
		}
		if err := wire.VerifyEnvelope(w, work.Pub()); err != nil {
			t.Errorf("body of %d: %v", len(body), err)
		}
	}
	id, w := work.PlainEnvelope(home, "s", "open")
	if err := wire.VerifyEnvelope(w, work.Pub()); err != nil {
		t.Error(err)
	}
	if _, refusal := wire.CheckItem(wire.KindEnvelope, id, w, work.Pub()); refusal != "envelope body is not sealed" {
		t.Errorf("got %q", refusal)
	}
	a, b := home.Enc, work.Enc
	id, w = work.Envelope(home, "s", "x")
	if _, err := wire.Open(w, b); err != wire.ErrUndecryptable {
		t.Errorf("got %v; want ErrUndecryptable", err)
	}
	if _, err := wire.Open(bytes.Replace(w, []byte(id), []byte(wire.NewID(day)), 1), a); err != wire.ErrUndecryptable {
		t.Errorf("another id: got %v; want ErrUndecryptable", err)
	}
}

func TestTokens(t *testing.T) {
	token, err := wire.NewToken()
	if err != nil || len(token) != 14 {
		t.Fatalf("got %q, %v", token, err)
	}
	if n, err := wire.NormalizeToken(token); err != nil || n != strings.ReplaceAll(token, "-", "") {
		t.Errorf("%q: got %q, %v", token, n, err)
	}
	if n, err := wire.NormalizeToken("ilo0-ILO1-aaaa"); err != nil || n != "11001101AAAA" {
		t.Errorf("got %q, %v", n, err)
	}
	for _, s := range []string{"", "7K3M-QX9D", "7K3M-QX9D-4HTRX", "7K3M-QX9D-4HTU", "7K3M_QX9D_4HTR", "é", strings.Repeat("-", 100)} {
		if _, err := wire.NormalizeToken(s); !errors.Is(err, wire.ErrBadToken) {
			t.Errorf("%q: got %v; want ErrBadToken", s, err)
		}
	}
}
