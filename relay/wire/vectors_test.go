package wire_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

var day = time.Date(2026, 10, 2, 12, 34, 57, 0, time.UTC)

func TestKeyVectors(t *testing.T) {
	var list []struct {
		Name        string `json:"name"`
		PrivateKey  string `json:"private_key"`
		PublicKey   string `json:"public_key"`
		Fingerprint string `json:"fingerprint"`
		JKT         string `json:"jkt"`
	}
	wiretest.LoadVector(t, "keys.json", &list)
	for _, e := range list {
		t.Run(e.Name, func(t *testing.T) {
			k, err := wire.ParsePrivateKey(e.PrivateKey)
			if err != nil {
				t.Fatal(err)
			}
			p, err := wire.ParsePublicKey(e.PublicKey)
			if err != nil {
				t.Fatal(err)
			}
			if k.Public() != p || k.Seed() != e.PrivateKey || p.String() != e.PublicKey {
				t.Error("keys do not come back as they went in")
			}
			if got := p.Fingerprint(); got != e.Fingerprint {
				t.Errorf("got fingerprint %s; want %s", got, e.Fingerprint)
			}
			if got := p.Thumbprint(); got != e.JKT {
				t.Errorf("got thumbprint %s; want %s", got, e.JKT)
			}
		})
	}
}

func TestCanonicalVectors(t *testing.T) {
	var list []struct{ JSON, Canonical string }
	wiretest.LoadVector(t, "canonical.json", &list)
	for _, e := range list {
		got, err := wire.Canonical([]byte(e.JSON))
		if err != nil || string(got) != e.Canonical {
			t.Errorf("%s: got %s, %v; want %s", e.JSON, got, err, e.Canonical)
		}
	}
}

func TestHopVectors(t *testing.T) {
	keys := wiretest.Keys(t)
	var list []struct{ Key, Method, Path, TS, Body, Payload, Sig string }
	wiretest.LoadVector(t, "hop.json", &list)
	for _, e := range list {
		if got := wire.HopPayload(e.Method, e.Path, e.TS, []byte(e.Body)); string(got) != e.Payload {
			t.Errorf("%s %s: got payload %s; want %s", e.Method, e.Path, got, e.Payload)
		}
		ts, sig := wire.SignHop(keys[e.Key], e.Method, e.Path, []byte(e.Body), time.UnixMilli(1790000000000))
		if ts != e.TS || sig != e.Sig {
			t.Errorf("%s %s: got %s, %s; want %s, %s", e.Method, e.Path, ts, sig, e.TS, e.Sig)
		}
		if !wire.VerifyHop(keys[e.Key].Public(), e.Sig, e.Method, e.Path, e.TS, []byte(e.Body)) {
			t.Errorf("%s %s: the signature does not verify", e.Method, e.Path)
		}
		if wire.VerifyHop(keys[e.Key].Public(), e.Sig, e.Method, e.Path+"x", e.TS, []byte(e.Body)) {
			t.Errorf("%s %s: verified for another path", e.Method, e.Path)
		}
	}
}

func TestLANHopVectors(t *testing.T) {
	keys := wiretest.Keys(t)
	var list []struct{ Key, Method, Path, TS, Body, Payload, Sig string }
	wiretest.LoadVector(t, "lan-hop.json", &list)
	for _, e := range list {
		if got := wire.LANHopPayload(e.Method, e.Path+"?q=1", e.TS, []byte(e.Body)); string(got) != e.Payload {
			t.Errorf("%s: got payload %q; want %q", e.Path, got, e.Payload)
		}
		ts, sig := wire.SignLANHop(keys[e.Key], e.Method, e.Path, []byte(e.Body), day)
		if ts != e.TS || sig != e.Sig {
			t.Errorf("%s: got %s, %s; want %s, %s", e.Path, ts, sig, e.TS, e.Sig)
		}
		if !wire.VerifyLANHop(keys[e.Key].Public(), e.Sig, e.Method, e.Path, e.TS, []byte(e.Body)) {
			t.Errorf("%s: the signature does not verify", e.Path)
		}
	}
}

func TestPairingVector(t *testing.T) {
	keys := wiretest.Keys(t)
	var v struct {
		Token      string   `json:"token"`
		TypedAs    []string `json:"typed_as"`
		Normalized string   `json:"normalized"`
		KeyHex     string   `json:"key_hex"`
		Transcript string   `json:"transcript"`
		JoinMAC    string   `json:"join_mac"`
		AcceptMAC  string   `json:"accept_mac"`
	}
	wiretest.LoadVector(t, "pairing.json", &v)
	for _, typed := range append(v.TypedAs, v.Token) {
		if got, err := wire.NormalizeToken(typed); err != nil || got != v.Normalized {
			t.Errorf("%q: got %q, %v; want %q", typed, got, err, v.Normalized)
		}
	}
	key := wire.PairingKey(v.Normalized)
	if got := hex.EncodeToString(key[:]); got != v.KeyHex {
		t.Fatalf("got key %s; want %s", got, v.KeyHex)
	}
	transcript := wire.Transcript(
		wire.PairSide{Host: "home", HostKey: keys["home"].Public(), Nonce: "bm9uY2UtYS1ub25jZS1h"},
		wire.PairSide{Host: "work", HostKey: keys["work"].Public(), Nonce: "bm9uY2UtYi1ub25jZS1i", Addr: "192.0.2.7:7373"},
	)
	if string(transcript) != v.Transcript {
		t.Fatalf("got transcript %s; want %s", transcript, v.Transcript)
	}
	for label, want := range map[string]string{wire.PairJoin: v.JoinMAC, wire.PairAccept: v.AcceptMAC} {
		if got := wire.PairingMAC(key, label, transcript); got != want {
			t.Errorf("%s: got %s; want %s", label, got, want)
		}
		if !wire.CheckPairingMAC(key, label, transcript, want) || wire.CheckPairingMAC(key, label, transcript, want+"x") {
			t.Errorf("%s: the comparison is wrong", label)
		}
	}
}

type recordVector struct {
	Name      string          `json:"name"`
	Signer    string          `json:"signer"`
	Record    json.RawMessage `json:"record"`
	Canonical string          `json:"canonical"`
	Sig       string          `json:"sig"`
	Signed    json.RawMessage `json:"signed"`
	ItemID    string          `json:"item_id"`
	Wire      string          `json:"wire"`
	WireHash  string          `json:"wire_hash"`
	CloudPop  string          `json:"cloud_pop"`
	CloudSig  string          `json:"cloud_sig"`
}

func recordVectors(t testing.TB) map[string]recordVector {
	t.Helper()
	var list []recordVector
	wiretest.LoadVector(t, "records.json", &list)
	m := make(map[string]recordVector)
	for _, e := range list {
		m[e.Name] = e
	}
	return m
}

// Every record verifies and is made again to the byte.
func TestRecordVectors(t *testing.T) {
	keys := wiretest.Keys(t)
	home, work, relay := keys["home"], keys["work"], keys["relay"]
	homeEnc, _ := wire.ParseEncPublicKey("u7II+UVSif3nm6E0SapmyhB0gmjkvk9G9s/qKyIBPUg=")
	const epoch, item = "6e1f0c1e-6f0c-4f8e-9a39-6a4a34a1f5f0", "01JB2Q3R4S5T6V7W8X9YZABCDE"
	same := func(t *testing.T, what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %s; want %s", what, got, want)
		}
	}
	checks := map[string]func(*testing.T, recordVector){
		"enrol": func(t *testing.T, e recordVector) {
			p := wire.EnrolPayload("dGVzdC1jaGFsbGVuZ2U", "home", home.Public(), "")
			same(t, "payload", string(p), e.Canonical)
			same(t, "sig", home.Sign(p), e.Sig)
		},
		"accept": func(t *testing.T, e recordVector) {
			a, err := wire.VerifyAccept(e.Record, e.Sig, relay.Public())
			if err != nil {
				t.Fatal(err)
			}
			made := wire.NewAccept(relay.Public(), epoch, work.Public(), item, a.Targets, day)
			canonical, sig := wire.SignAccept(relay, made)
			same(t, "canonical", string(canonical), e.Canonical)
			same(t, "sig", sig, e.Sig)
		},
		"sender-list": func(t *testing.T, e recordVector) {
			l, err := wire.ParseSenderList(e.Record, e.Sig, home.Public(), day)
			if err != nil || len(l.Senders) != 1 || l.Senders[0] != work.Public() || !l.IAT.Equal(day) {
				t.Fatalf("got %+v, %v", l, err)
			}
			same(t, "kept", string(l.Canonical), e.Canonical)
			list, sig := wire.MakeSenderList(home, []wire.PublicKey{work.Public()}, day)
			same(t, "list", string(list), e.Canonical)
			same(t, "sig", sig, e.Sig)
		},
		"rotation": func(t *testing.T, e recordVector) {
			r, err := wire.ParseRotation(e.Signed)
			if err != nil || r.OldPub != work.Public() || r.NewPub != keys["work-next"].Public() || r.Host != "work" {
				t.Fatalf("got %+v, %v", r, err)
			}
			doc := wire.MakeRotation(work, keys["work-next"], "work", r.NewEncPub, day)
			want, err := wire.Canonical(e.Signed)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "made", string(doc), string(want))
			same(t, "kept", string(r.Doc), string(want))
			same(t, "rec", string(r.Rec), e.Canonical)
		},
		"enc-ad": func(t *testing.T, e recordVector) {
			a, err := wire.ParseEncAd(e.Record, e.Sig, "HOME", home.Public(), day)
			if err != nil || a.EncPub != homeEnc || !a.IAT.Equal(day) {
				t.Fatalf("got %+v, %v", a, err)
			}
			ad, sig := wire.MakeEncAd(home, "home", homeEnc, day, day.Add(wire.EncAdLifetime))
			same(t, "ad", string(ad), e.Canonical)
			same(t, "sig", sig, e.Sig)
		},
		"enc-key-v1": func(t *testing.T, e recordVector) {
			p := wire.EncKeyV1Payload("home", homeEnc)
			same(t, "payload", string(p), e.Canonical)
			same(t, "sig", home.Sign(p), e.Sig)
		},
		"expiry-notice": func(t *testing.T, e recordVector) {
			n, err := wire.ParseExpiryNotice([]byte(e.Wire), relay.Public())
			if err != nil || n.ItemID != item || n.Target != home.Public() || n.ID() != e.ItemID {
				t.Fatalf("got %+v, %v", n, err)
			}
			id, w := wire.MakeExpiryNotice(relay, item, home.Public(), day, day.Add(14*24*time.Hour))
			same(t, "id", id, e.ItemID)
			same(t, "wire", string(w), e.Wire)
			same(t, "hash", wire.HashHex(w), e.WireHash)
		},
		"receipt": func(t *testing.T, e recordVector) {
			r, err := wire.CheckReceipt([]byte(e.Wire))
			if err != nil {
				t.Fatal(err)
			}
			if !r.SignedBy(home.Public()) || r.SignedBy(work.Public()) {
				t.Error("the signature is not told right")
			}
			same(t, "id", r.ID(), e.ItemID)
			w := wire.MakeReceipt(home, wire.Receipt{Msg: item, Recipient: "reviewer@home", State: "acked", At: day, Note: "done", Seq: 7})
			same(t, "wire", string(w), e.Wire)
			same(t, "hash", wire.HashHex(w), e.WireHash)
			if _, refusal := wire.CheckItem(wire.KindReceipt, e.ItemID, w, home.Public()); refusal != "" {
				t.Errorf("got refusal %q; want none", refusal)
			}
			if _, refusal := wire.CheckItem(wire.KindReceipt, "x", w, home.Public()); refusal != "item id is not the receipt id" {
				t.Errorf("got refusal %q", refusal)
			}
		},
		"cloud-certificate": func(t *testing.T, e recordVector) {
			const aud = "https://relay.example.test"
			cloud := keys["cloud"]
			c, err := wire.VerifyCloudCertificate(e.Record, e.Sig, home.Public())
			if err != nil || c.CloudPub != cloud.Public() || c.Aud != aud || c.IAT.Unix() != 1790000000 {
				t.Fatalf("got %+v, %v", c, err)
			}
			payload, sig := wire.MakeCloudCertificate(home, cloud.Public(), aud, time.Unix(1790000000, 0))
			same(t, "payload", string(payload), e.Canonical)
			same(t, "sig", sig, e.Sig)
			same(t, "pop", string(wire.CloudProofPayload("dGVzdC1jaGFsbGVuZ2U", home.Public(), cloud.Public(), aud)), e.CloudPop)
			same(t, "cloud sig", wire.SignCloudProof(cloud, "dGVzdC1jaGFsbGVuZ2U", home.Public(), aud), e.CloudSig)
			if !wire.VerifyCloudProof(cloud.Public(), e.CloudSig, "dGVzdC1jaGFsbGVuZ2U", home.Public(), aud) {
				t.Error("the proof does not verify")
			}
			if wire.VerifyCloudProof(cloud.Public(), e.CloudSig, "dGVzdC1jaGFsbGVuZ2U", work.Public(), aud) {
				t.Error("the proof verifies for another host")
			}
		},
	}
	vectors := recordVectors(t)
	for name, e := range vectors {
		check := checks[name]
		if check == nil {
			t.Errorf("no check for the record %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			canonical, err := wire.Canonical(e.Record)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "canonical", string(canonical), e.Canonical)
			if !keys[e.Signer].Public().Verify(canonical, e.Sig) {
				t.Error("the signature does not verify")
			}
			check(t, e)
		})
	}
	if len(vectors) != len(checks) {
		t.Errorf("got %d records; want %d", len(vectors), len(checks))
	}
}

type envelopeVector struct {
	RecipientEncPrivate string          `json:"recipient_enc_private"`
	RecipientEncPublic  string          `json:"recipient_enc_public"`
	EphemeralPrivate    string          `json:"ephemeral_private"`
	Nonce               string          `json:"nonce"`
	Plain               json.RawMessage `json:"plain"`
	Sealed              json.RawMessage `json:"sealed"`
	SignedPayload       string          `json:"signed_payload"`
	WireB64             []byte          `json:"wire_b64"`
	WireHash            string          `json:"wire_hash"`
}

func loadEnvelope(t testing.TB) envelopeVector {
	t.Helper()
	var v envelopeVector
	wiretest.LoadVector(t, "envelope.json", &v)
	if len(v.WireB64) == 0 {
		t.Fatal("no envelope in envelope.json")
	}
	return v
}

func TestEnvelopeVector(t *testing.T) {
	v, keys := loadEnvelope(t), wiretest.Keys(t)
	work := keys["work"]
	enc, err := wire.ParseEncPrivateKey(v.RecipientEncPrivate)
	if err != nil || enc.Public().String() != v.RecipientEncPublic {
		t.Fatalf("got %s, %v; want %s", enc.Public(), err, v.RecipientEncPublic)
	}
	ephemeral, err := wire.ParseEncPrivateKey(v.EphemeralPrivate)
	if err != nil {
		t.Fatal(err)
	}
	nonce, err := base64.StdEncoding.DecodeString(v.Nonce)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := wire.ParseEnvelope(v.Plain)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.SealWith(plain, enc.Public(), work, "work", ephemeral, [24]byte(nonce))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, v.WireB64) || wire.HashHex(got) != v.WireHash {
		t.Errorf("got wire %s; want %s", got, v.WireB64)
	}
	if p, err := wire.SignedPayload(got); err != nil || string(p) != v.SignedPayload {
		t.Errorf("got payload %s, %v; want %s", p, err, v.SignedPayload)
	}
	body, err := wire.Open(got, enc)
	if err != nil || string(body) != plain.Body {
		t.Fatalf("got body %q, %v; want %q", body, err, plain.Body)
	}
	opened, err := wire.OpenedForm(got, body)
	if err != nil || !strings.Contains(string(opened), "Größe") {
		t.Fatalf("got %s, %v", opened, err)
	}
	for name, form := range map[string][]byte{"wire": got, "opened": opened} {
		if err := wire.VerifyEnvelope(form, work.Public()); err != nil {
			t.Errorf("%s form: %v", name, err)
		}
		if err := wire.VerifyEnvelope(form, keys["home"].Public()); err == nil {
			t.Errorf("%s form: verified for another key", name)
		}
		altered := bytes.Replace(form, []byte("reviewer@home"), []byte("attacker@home"), 1)
		if err := wire.VerifyEnvelope(altered, work.Public()); err == nil {
			t.Errorf("%s form: verified with another recipient", name)
		}
		added := bytes.Replace(form, []byte(`{"v":3`), []byte(`{"x":1,"v":3`), 1)
		if err := wire.VerifyEnvelope(added, work.Public()); err == nil {
			t.Errorf("%s form: verified with a member added", name)
		}
	}
	stranger, _ := wire.GenerateEncKey()
	if _, err := wire.Open(got, stranger); err != wire.ErrUndecryptable {
		t.Errorf("got %v; want ErrUndecryptable", err)
	}
	if _, err := wire.Open(v.Plain, enc); err != wire.ErrNotSealed {
		t.Errorf("got %v; want ErrNotSealed", err)
	}
	otherID := bytes.Replace(got, []byte("01JB2Q3R4S5T6V7W8X9YZABCDE"), []byte("01JB2Q3R4S5T6V7W8X9YZABCDF"), 1)
	if _, err := wire.Open(otherID, enc); err != wire.ErrUndecryptable {
		t.Errorf("got %v for another id; want ErrUndecryptable", err)
	}
}

func TestRefusedVectors(t *testing.T) {
	var list []struct {
		Why     string `json:"why"`
		WireB64 []byte `json:"wire_b64"`
		ItemID  string `json:"item_id"`
		Status  string `json:"status"`
	}
	wiretest.LoadVector(t, "refused.json", &list)
	for _, e := range list {
		_, refusal := wire.CheckItem(wire.KindEnvelope, e.ItemID, e.WireB64, wire.PublicKey{})
		if refusal == "" || !strings.HasPrefix("rejected:"+refusal, e.Status) {
			t.Errorf("%s: got rejected:%s; want %s", e.Why, refusal, e.Status)
		}
	}
}
