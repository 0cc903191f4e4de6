package jwks_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
)

// forge makes a token with a header of its own, signed by sign over what a JWS signs.
func forge(head obj, claims obj, sign func([]byte) []byte) string {
	signed := jwkstest.B64(jwkstest.Marshal(head)) + "." + jwkstest.B64(jwkstest.Marshal(claims))
	return signed + "." + jwkstest.B64(sign([]byte(signed)))
}

func hmacOf(secret []byte) func([]byte) []byte {
	return func(b []byte) []byte {
		h := hmac.New(sha256.New, secret)
		h.Write(b)
		return h.Sum(nil)
	}
}

// pemOf is the public key as people paste it, what a careless verifier takes for a secret.
func pemOf(t *testing.T, key any) []byte {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestAlgorithmConfusion(t *testing.T) {
	r := newFreshRig(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	edPub := r.ed.Public().(ed25519.PublicKey)
	esPub, err := r.es.Public().(*ecdsa.PublicKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	none := func([]byte) []byte { return nil }
	// A key of the attacker's, which the token brings along.
	own := jwkstest.NewKey("EdDSA", "ed-1")
	ownES := jwkstest.NewKey("ES256", "es-1")
	for _, c := range []struct {
		name  string
		token string
		want  string
	}{
		{"none", forge(obj{"alg": "none", "kid": "ed-1"}, r.claims(), none), "TOKEN_ALG"},
		{"None", forge(obj{"alg": "None", "kid": "ed-1"}, r.claims(), none), "TOKEN_ALG"},
		{"EdDSA without a signature", forge(obj{"alg": "EdDSA", "kid": "ed-1"}, r.claims(), none), "TOKEN_SIGNATURE"},
		{"ES256 of zeros", forge(obj{"alg": "ES256", "kid": "es-1"}, r.claims(), func([]byte) []byte { return make([]byte, 64) }), "TOKEN_SIGNATURE"},
		{"HS256 with the Ed25519 key", forge(obj{"alg": "HS256", "kid": "ed-1"}, r.claims(), hmacOf(edPub)), "TOKEN_ALG"},
		{"HS256 with the P-256 key", forge(obj{"alg": "HS256", "kid": "es-1"}, r.claims(), hmacOf(esPub)), "TOKEN_ALG"},
		{"HS256 with the PEM", forge(obj{"alg": "HS256", "kid": "es-1"}, r.claims(), hmacOf(pemOf(t, r.es.Public()))), "TOKEN_ALG"},
		{"RS256", forge(obj{"alg": "RS256", "kid": "ed-1"}, r.claims(), func(b []byte) []byte {
			sum := sha256.Sum256(b)
			sig, err := rsa.SignPKCS1v15(rand.Reader, rsaKey, crypto.SHA256, sum[:])
			if err != nil {
				t.Fatal(err)
			}
			return sig
		}), "TOKEN_ALG"},
		{"ES384", forge(obj{"alg": "ES384", "kid": "es-1"}, r.claims(), r.es.SignBytes), "TOKEN_ALG"},
		{"ES256 with an Ed25519 key", forge(obj{"alg": "ES256", "kid": "ed-1"}, r.claims(), r.ed.SignBytes), "TOKEN_KEY"},
		{"EdDSA with a P-256 key", forge(obj{"alg": "EdDSA", "kid": "es-1"}, r.claims(), r.es.SignBytes), "TOKEN_KEY"},
		{"jwk", own.Sign(obj{"jwk": own.JWK()}, r.claims()), "TOKEN_SIGNATURE"},
		{"jwk of P-256", ownES.Sign(obj{"jwk": ownES.JWK()}, r.claims()), "TOKEN_SIGNATURE"},
		{"b64 false", r.ed.Sign(obj{"b64": false}, r.claims()), "TOKEN_CRIT"},
		{"b64 false and crit", r.ed.Sign(obj{"b64": false, "crit": []string{"b64"}}, r.claims()), "TOKEN_CRIT"},
	} {
		if got := r.code(r.applicant(r.proof(c.token))); got != c.want {
			t.Errorf("%s: got %q; want %q", c.name, got, c.want)
		}
	}
}

// TestForeignKeysAreNotFetched: a header may name addresses; nobody goes there, and
// a good token with them stays a good one.
func TestForeignKeysAreNotFetched(t *testing.T) {
	r := newFreshRig(t)
	var asked atomic.Int64
	own := jwkstest.NewKey("EdDSA", "ed-1")
	theirs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write(jwkstest.Set(own))
	}))
	t.Cleanup(theirs.Close)
	for _, name := range []string{"jku", "x5u"} {
		if got := r.code(r.applicant(r.proof(own.Sign(obj{name: theirs.URL}, r.claims())))); got != "TOKEN_SIGNATURE" {
			t.Errorf("%s: got %q; want TOKEN_SIGNATURE", name, got)
		}
		if got := r.code(r.applicant(r.proof(r.ed.Sign(obj{name: theirs.URL, "jwk": own.JWK()}, r.claims())))); got != "" {
			t.Errorf("%s beside a good signature: got %q; want a grant", name, got)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("got %d requests at an address in a header; want none", n)
	}
}

func TestFormsOfATokenThatAreNone(t *testing.T) {
	r := newFreshRig(t)
	good := r.ed.Sign(nil, r.claims())
	head, rest, _ := strings.Cut(good, ".")
	body, sig, _ := strings.Cut(rest, ".")
	full := jwkstest.Marshal(obj{"payload": body, "signatures": []obj{{"protected": head, "signature": sig}}})
	flat := jwkstest.Marshal(obj{"payload": body, "protected": head, "signature": sig})
	// The last letter of a signature of 64 bytes carries two bits that count for nothing.
	letters := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	stray := sig[:len(sig)-1] + string(letters[strings.IndexByte(letters, sig[len(sig)-1])^1])
	for name, token := range map[string]string{
		"JSON":                string(full),
		"flattened JSON":      string(flat),
		"one part":            head,
		"two parts":           head + "." + body,
		"four parts":          good + "." + sig,
		"five parts, as JWE":  good + ".." + sig,
		"an empty header":     "." + body + "." + sig,
		"an empty payload":    head + ".." + sig,
		"only dots":           "..",
		"a space before":      " " + good,
		"a line break after":  good + "\n",
		"a break in the body": head + "." + body[:8] + "\r\n" + body[8:] + "." + sig,
		"padding":             head + "." + body + "." + sig + "==",
		"standard base64":     head + "." + body + "." + strings.Repeat("+/", 43),
		"stray bits":          head + "." + body + "." + stray,
		"Bearer":              "Bearer " + good,
		"a NUL":               good + "\x00",
	} {
		if got := r.code(r.applicant(r.proof(token))); got != "TOKEN_FORM" {
			t.Errorf("%s: got %q; want TOKEN_FORM", name, got)
		}
	}
	if got := r.code(r.applicant(r.proof(good))); got != "" {
		t.Errorf("the token itself: got %q; want a grant", got)
	}
}
