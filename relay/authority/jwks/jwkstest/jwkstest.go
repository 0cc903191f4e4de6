// Package jwkstest is an accounts issuer for tests: keys, key sets, tokens, and a
// server that counts who asks. Only tests import it; what cannot fail on sane
// input panics.
package jwkstest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// JSON is an object.
type JSON = map[string]any

// Key is a signing key of an issuer.
type Key struct {
	Kid string
	Alg string // EdDSA or ES256
	ed  ed25519.PrivateKey
	ec  *ecdsa.PrivateKey
}

// NewKey makes a key for EdDSA or ES256.
func NewKey(alg, kid string) Key {
	k := Key{Kid: kid, Alg: alg}
	var err error
	switch alg {
	case "EdDSA":
		_, k.ed, err = ed25519.GenerateKey(rand.Reader)
	case "ES256":
		k.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		panic("no key for " + alg)
	}
	check(err)
	return k
}

// JWK is the public key as a key set has it.
func (k Key) JWK() JSON {
	j := JSON{"kid": k.Kid, "use": "sig", "alg": k.Alg}
	if k.ec != nil {
		point, err := k.ec.PublicKey.Bytes()
		check(err)
		j["kty"], j["crv"], j["x"], j["y"] = "EC", "P-256", B64(point[1:33]), B64(point[33:])
	} else {
		j["kty"], j["crv"], j["x"] = "OKP", "Ed25519", B64(k.ed.Public().(ed25519.PublicKey))
	}
	return j
}

// Public is the public key as the standard library has it.
func (k Key) Public() any {
	if k.ec != nil {
		return &k.ec.PublicKey
	}
	return k.ed.Public()
}

// SignBytes is the signature of a JWS over these bytes.
func (k Key) SignBytes(b []byte) []byte {
	if k.ec == nil {
		return ed25519.Sign(k.ed, b)
	}
	sum := sha256.Sum256(b)
	r, s, err := ecdsa.Sign(rand.Reader, k.ec, sum[:])
	check(err)
	return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
}

// Sign makes a token. The header names the algorithm and the key unless it says
// otherwise itself; a nil member is left out.
func (k Key) Sign(header, claims JSON) string {
	h := JSON{"alg": k.Alg, "kid": k.Kid, "typ": "at+jwt"}
	maps.Copy(h, header)
	maps.DeleteFunc(h, func(_ string, v any) bool { return v == nil })
	return k.SignText(Marshal(h), Marshal(claims))
}

// SignText makes a token of a header and claims that may be anything.
func (k Key) SignText(header, claims []byte) string {
	signed := B64(header) + "." + B64(claims)
	return signed + "." + B64(k.SignBytes([]byte(signed)))
}

// Set is a key set.
func Set(keys ...Key) []byte {
	all := []JSON{}
	for _, k := range keys {
		all = append(all, k.JWK())
	}
	return Marshal(JSON{"keys": all})
}

// B64 is base64url without padding.
func B64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Marshal is v in JSON.
func Marshal(v any) []byte {
	b, err := json.Marshal(v)
	check(err)
	return b
}

// Host is a host with an account.
type Host struct {
	Key   wire.PrivateKey
	Cloud wire.PrivateKey
}

// NewHost makes a host with fresh keys.
func NewHost() Host {
	key, err := wire.GenerateKey()
	check(err)
	cloud, err := wire.GenerateKey()
	check(err)
	return Host{key, cloud}
}

// Claims are those of a good token for this host, of ten minutes from now.
func (h Host) Claims(iss, aud string, now time.Time) JSON {
	return JSON{
		"iss": iss, "aud": aud, "sub": "host-1", "account": "acc-1", "org": "org-1",
		"client_id": "client-1", "jti": "token-1",
		"iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(),
		"cnf": JSON{"jkt": h.Cloud.Public().Thumbprint()},
	}
}

// Proof is what the host shows with a token at a relay that sent a challenge.
func (h Host) Proof(token, aud, challenge string, now time.Time) json.RawMessage {
	payload, sig := wire.MakeCloudCertificate(h.Key, h.Cloud.Public(), aud, now)
	return Marshal(JSON{
		"token":       token,
		"certificate": JSON{"payload": json.RawMessage(payload), "sig": sig},
		"cloud_sig":   wire.SignCloudProof(h.Cloud, challenge, h.Key.Public(), aud),
	})
}

// DenyToken is a deny token that this key signs, good for ten minutes.
func (k Key) DenyToken(iss, aud, jti string, now time.Time, deny ...JSON) string {
	if deny == nil {
		deny = []JSON{}
	}
	return k.Sign(JSON{"typ": "mbx-deny+jwt"}, JSON{
		"iss": iss, "aud": aud, "jti": jti, "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(), "deny": deny,
	})
}

// Issuer serves a key set at /.well-known/jwks.json and a deny list at /deny, and
// counts the requests for each. Its URL is its iss. NewIssuer starts one; one that
// is made without it listens nowhere, and is a handler and a transport.
type Issuer struct {
	URL string

	mu     sync.Mutex
	answer http.Handler
	deny   http.Handler
	sets   int
	lists  int
}

// JWKSPath is where the key set is.
const JWKSPath = "/.well-known/jwks.json"

// NewIssuer starts an issuer that publishes these keys.
func NewIssuer(t testing.TB, keys ...Key) *Issuer {
	i := &Issuer{}
	i.Publish(keys...)
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	i.URL = server.URL
	return i
}

// Publish makes these the keys of the set.
func (i *Issuer) Publish(keys ...Key) { i.Serve(Text("application/jwk-set+json", Set(keys...))) }

// Serve makes h answer for the key set.
func (i *Issuer) Serve(h http.Handler) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = h
}

// ServeDenials makes h answer for the deny list.
func (i *Issuer) ServeDenials(h http.Handler) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.deny = h
}

// Fetches is how often the key set was asked for.
func (i *Issuer) Fetches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sets
}

// DenyFetches is how often the deny list was asked for.
func (i *Issuer) DenyFetches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lists
}

func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	var h http.Handler
	switch r.URL.Path {
	case JWKSPath:
		i.sets++
		h = i.answer
	case "/deny":
		i.lists++
		h = i.deny
	}
	i.mu.Unlock()
	if h == nil {
		h = http.NotFoundHandler()
	}
	h.ServeHTTP(w, r)
}

// RoundTrip answers without a network, for tests whose time does not pass while
// one is waited for.
func (i *Issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	res := w.Result()
	res.Request = r
	return res, nil
}

// Text answers everybody with the same.
func Text(contentType string, body []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
	})
}

// Status answers everybody with a status and no more.
func Status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) })
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
