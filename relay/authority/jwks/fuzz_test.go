package jwks

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const (
	fuzzIss = "https://accounts.example.test"
	fuzzAud = "https://relay.example.test"
)

var fuzzNow = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

// noStore keeps nothing: these targets are about what is sent.
type noStore struct{ store.Store }

func (noStore) View(context.Context, func(store.Reader) error) error { return store.ErrNotFound }
func (noStore) Update(context.Context, func(store.Tx) error) error   { return nil }

// withKeys is an authority that has these keys.
func withKeys(f testing.TB, keys ...jwkstest.Key) *Authority {
	f.Helper()
	issuer := &jwkstest.Issuer{URL: fuzzIss}
	issuer.Publish(keys...)
	a, err := New(context.Background(), Options{
		Issuer: fuzzIss, Audience: fuzzAud, URL: fuzzIss + jwkstest.JWKSPath,
		Store: noStore{}, Transport: issuer, Now: func() time.Time { return fuzzNow }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := a.Refresh(context.Background()); err != nil {
		f.Fatal(err)
	}
	return a
}

func codesOf(checks []check) (codes []string) {
	for _, c := range checks {
		codes = append(codes, c.code)
	}
	return codes
}

// sameAsTheLibrary fails when we take a text for a token and the library does not,
// or reads another algorithm, key id or payload in it.
func sameAsTheLibrary(t *testing.T, s string) {
	tok, ok := readToken(s)
	if !ok {
		return
	}
	if s != string(tok.signed)+"."+jwkstest.B64(tok.sig) {
		t.Fatalf("token %q has another spelling", s)
	}
	if tok.header.extended || len(tok.sig) == 0 || !tok.header.alg.is || !tok.header.kid.is {
		return // refused after this, whatever the library thinks
	}
	if _, taken := verifiers[tok.header.alg.s]; !taken {
		return
	}
	msg, err := jws.ParseString(s)
	if err != nil {
		return // it reads more of a header than we do
	}
	got := msg.Signatures()[0].ProtectedHeaders()
	if got.Algorithm().String() != tok.header.alg.s || got.KeyID() != tok.header.kid.s {
		t.Fatalf("token %q: we read %q and %q, the library %q and %q",
			s, tok.header.alg.s, tok.header.kid.s, got.Algorithm(), got.KeyID())
	}
	_, body, _ := bytes.Cut(tok.signed, []byte("."))
	if want := jwkstest.B64(msg.Payload()); want != string(body) {
		t.Fatalf("token %q: the library reads another payload", s)
	}
}

// tokens are good ones and some that nearly are.
func tokens(h jwkstest.Host, keys ...jwkstest.Key) (all []string) {
	for _, k := range keys {
		claims := h.Claims(fuzzIss, fuzzAud, fuzzNow)
		all = append(all, k.Sign(nil, claims), k.Sign(jwkstest.JSON{"typ": "JWT"}, claims), k.Sign(jwkstest.JSON{"crit": []string{"b64"}, "b64": false}, claims),
			k.Sign(jwkstest.JSON{"alg": "none"}, claims), k.Sign(jwkstest.JSON{"kid": "x\n"}, claims),
			k.DenyToken(fuzzIss, fuzzAud, "list-1", fuzzNow, jwkstest.JSON{"host_fp": "1f3a-09bc-77d0-e214", "until": 1790000000, "reason": "left"}))
	}
	return append(all, "", "..", "a.b.c", `{"payload":"","signatures":[]}`)
}

// FuzzToken: of all texts only those that the issuer signed get a host in.
func FuzzToken(f *testing.F) {
	host := jwkstest.NewHost()
	ed, es := jwkstest.NewKey("EdDSA", "ed-1"), jwkstest.NewKey("ES256", "es-1")
	a := withKeys(f, ed, es)
	seeds := tokens(host, ed, es)
	for _, s := range seeds {
		f.Add(s)
	}
	known := codesOf(accountChecks)
	f.Fuzz(func(t *testing.T, s string) {
		sameAsTheLibrary(t, s)
		g, _ := a.Authorize(context.Background(), relay.Applicant{
			Key: host.Key.Public(), Challenge: "c", Proof: host.Proof(s, fuzzAud, "c", fuzzNow),
		})
		if g.OK && !slices.Contains(seeds, s) {
			t.Fatalf("granted by %q", s)
		}
		if !g.OK && !slices.Contains(known, g.Code) {
			t.Fatalf("got code %q for %q", g.Code, s)
		}
	})
}

// FuzzDenyToken signs any claims: what is then taken names somebody in each entry.
func FuzzDenyToken(f *testing.F) {
	ed := jwkstest.NewKey("EdDSA", "ed-1")
	a := withKeys(f, ed)
	frame := `{"iss":"` + fuzzIss + `","aud":"` + fuzzAud + `","jti":"j","iat":1790942400,"exp":1790943000,"deny":`
	for _, deny := range []string{
		`[]}`, `[{"host_fp":"1f3a-09bc-77d0-e214"}]}`, `[{"client_id":"c","until":1790942400,"reason":"r"}]}`,
		`[{"client_id":"c","until":"2026-10-03T12:00:00.000Z"},{}]}`, `null}`, `[{"host_fp":""}]}`, `[{"client_id":"\ud800"}]}`,
	} {
		f.Add([]byte(frame+deny), "")
	}
	f.Add([]byte(`{}`), "a.b.c")
	known := codesOf(denyChecks)
	f.Fuzz(func(t *testing.T, claims []byte, s string) {
		if _, err := a.VerifyDenials(context.Background(), s); err == nil {
			t.Fatalf("%q was taken", s)
		}
		list, err := a.VerifyDenials(context.Background(), ed.SignText([]byte(`{"alg":"EdDSA","kid":"ed-1","typ":"mbx-deny+jwt"}`), claims))
		if err != nil {
			if e, ok := err.(*relay.Error); !ok || !slices.Contains(known, e.Code) {
				t.Fatalf("got %#v for %q", err, claims)
			}
			return
		}
		if list.ID == "" || list.IAT.IsZero() || !list.Expires.After(fuzzNow) {
			t.Fatalf("got %+v of %q", list, claims)
		}
		for _, e := range list.Deny {
			if e.HostFP == "" && e.ClientID == "" || e.HostFP != "" && !isFingerprint(e.HostFP) ||
				wire.UTF16Len(e.ClientID) > 200 || wire.UTF16Len(e.Reason) > 200 {
				t.Fatalf("got entry %+v of %q", e, claims)
			}
		}
	})
}

// FuzzProof has a good token in a proof that is anything, and any certificate that
// the host signs.
func FuzzProof(f *testing.F) {
	host := jwkstest.NewHost()
	ed := jwkstest.NewKey("EdDSA", "ed-1")
	a := withKeys(f, ed)
	token := ed.Sign(nil, host.Claims(fuzzIss, fuzzAud, fuzzNow))
	good := host.Proof(token, fuzzAud, "c", fuzzNow)
	payload, _ := wire.MakeCloudCertificate(host.Key, host.Cloud.Public(), fuzzAud, fuzzNow)
	f.Add([]byte(good), payload)
	f.Add([]byte(`{"token":"","certificate":{"payload":null,"sig":""},"cloud_sig":""}`), []byte(`{"v":1,"type":"cloud-key"}`))
	f.Add([]byte(`null`), bytes.Replace(payload, []byte(`"v":1`), []byte(`"note":"\ud83d\ude00","v":1`), 1))
	f.Add([]byte(`[]`), bytes.Replace(payload, []byte(`"v":1`), []byte(`"v":1,"v":1`), 1))
	known := codesOf(accountChecks)
	f.Fuzz(func(t *testing.T, proof, cert []byte) {
		try := func(proof []byte) bool {
			g, _ := a.Authorize(context.Background(), relay.Applicant{Key: host.Key.Public(), Challenge: "c", Proof: proof})
			if !g.OK && !slices.Contains(known, g.Code) {
				t.Fatalf("got code %q for %q", g.Code, proof)
			}
			return g.OK
		}
		if try(proof) {
			got, ok := readProof(proof)
			want, _ := readProof([]byte(good))
			if !ok || got.token != want.token || got.sig != want.sig || got.cloudSig != want.cloudSig {
				t.Fatalf("granted by %q", proof)
			}
		}
		canonical, err := wire.Canonical(cert)
		if err != nil {
			return
		}
		granted := try(jwkstest.Marshal(jwkstest.JSON{
			"token": token, "certificate": jwkstest.JSON{"payload": json.RawMessage(cert), "sig": host.Key.Sign(canonical)},
			"cloud_sig": wire.SignCloudProof(host.Cloud, "c", host.Key.Public(), fuzzAud),
		}))
		c, err := wire.VerifyCloudCertificate(cert, host.Key.Sign(canonical), host.Key.Public())
		if want := err == nil && c.Aud == fuzzAud && c.CloudPub == host.Cloud.Public(); granted != want {
			t.Fatalf("certificate %q: granted %v; want %v (%v)", cert, granted, want, err)
		}
	})
}

// FuzzKeySet: what is read is saved and read again as the same keys, and the
// library knows each of them.
func FuzzKeySet(f *testing.F) {
	ed, es := jwkstest.NewKey("EdDSA", "ed-1"), jwkstest.NewKey("ES256", "es-1")
	f.Add(jwkstest.Set(ed, es))
	f.Add(jwkstest.Set(ed, ed))
	f.Add([]byte(`{"keys":[{"kty":"oct","kid":"o","k":"c2VjcmV0"},{"kty":"RSA","kid":"r","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"AAAA","d":"AAAA","use":"sig","key_ops":["verify"]}]}`))
	f.Add([]byte(`<!doctype html>`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		keys, err := readKeySet(doc)
		if err != nil {
			if _, ok := err.(trouble); !ok || keys != nil {
				t.Fatalf("got %v, %#v for %q", keys, err, doc)
			}
			return
		}
		var again struct {
			Keys []publicJWK `json:"keys"`
		}
		for kid, k := range keys {
			if kid != k.jwk.Kid || kid == "" || verifiers[k.alg] == nil || k.verify([]byte("m"), make([]byte, 64)) && k.alg == "ES256" {
				t.Fatalf("got key %+v under %q of %q", k, kid, doc)
			}
			if _, err := jwk.ParseKey(jwkstest.Marshal(k.jwk)); err != nil {
				t.Fatalf("key %+v: %v", k.jwk, err)
			}
			again.Keys = append(again.Keys, k.jwk)
		}
		saved, err := readKeySet(jwkstest.Marshal(again))
		if err != nil || len(saved) != len(keys) {
			t.Fatalf("saved and read: got %v, %v; want %v", saved, err, keys)
		}
		for kid, k := range keys {
			if !k.same(saved[kid]) {
				t.Fatalf("key %q changed by saving: %+v", kid, saved[kid])
			}
		}
	})
}

// TestOwnTransport: the environment has no say in who is asked.
func TestOwnTransport(t *testing.T) {
	if tr, ok := newWeb(nil).client.Transport.(*http.Transport); !ok || tr.Proxy != nil || !tr.DisableCompression {
		t.Errorf("got transport %+v; want one without a proxy and without compression", tr)
	}
}
