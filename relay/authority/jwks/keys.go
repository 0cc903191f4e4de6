package jwks

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Bounds of a key set.
const (
	largestSet = 256 << 10
	mostKeys   = 100
)

// trouble is what is wrong with an answer. It is the same text for the same
// trouble, however often one tries, and holds nothing of the answer.
type trouble string

func (t trouble) Error() string { return string(t) }

const (
	notJSON   = trouble("the answer is not JSON")
	notASet   = trouble("the answer is not a key set")
	tooMany   = trouble("the key set has over 100 keys")
	noKey     = trouble("the key set has no Ed25519 or P-256 key for signatures")
	twice     = trouble("the key set has one key id twice")
	notPublic = trouble("the key set shows a private key")
)

// verifiers are the algorithms that are taken.
var verifiers = map[string]jws.Verifier{
	"EdDSA": verifierOf(jwa.EdDSA),
	"ES256": verifierOf(jwa.ES256),
}

func verifierOf(alg jwa.SignatureAlgorithm) jws.Verifier {
	v, err := jws.NewVerifier(alg)
	if err != nil {
		panic(err) // the library lacks what it was chosen for
	}
	return v
}

// publicKey is a key of the issuer's, for one algorithm only.
type publicKey struct {
	alg string
	jwk publicJWK
	key any // ed25519.PublicKey or *ecdsa.PublicKey
}

// publicJWK is what is kept of a key: nothing that is not public.
type publicJWK struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	Kid string `json:"kid"`
	X   string `json:"x"`
	Y   string `json:"y,omitempty"`
}

// verify reports whether the key signed these bytes.
func (k publicKey) verify(signed, sig []byte) bool {
	v, ok := verifiers[k.alg]
	return ok && len(sig) == 64 && v.Verify(signed, sig, k.key) == nil
}

// same reports whether two keys are one, save for their id.
func (k publicKey) same(other publicKey) bool {
	return k.alg == other.alg && k.jwk.X == other.jwk.X && k.jwk.Y == other.jwk.Y
}

// readKeySet reads a key set. Keys that no token may be signed with are left out
// (RFC 7517 §5); a set that cannot be told apart from a broken or dangerous one is
// refused whole. Its errors are troubles.
func readKeySet(doc []byte) (map[string]publicKey, error) {
	if wire.CheckJSON(doc) != nil {
		return nil, notJSON
	}
	var set struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if !decodeObject(doc, &set) || set.Keys == nil {
		return nil, notASet
	}
	if len(set.Keys) > mostKeys {
		return nil, tooMany
	}
	usable := map[string]publicKey{}
	named := map[string]int{}
	for _, raw := range set.Keys {
		var k jwkMembers
		if !decodeObject(raw, &k) {
			return nil, notASet
		}
		kid := textOf(k.Kid)
		named[kid.s]++
		if !k.forTokens() || !validKid(kid) {
			continue
		}
		if k.D != nil {
			return nil, notPublic
		}
		if key, ok := k.public(); ok {
			usable[kid.s] = key
		}
	}
	for kid := range usable {
		if named[kid] > 1 { // by whatever else: an RSA or a shared key, too
			return nil, twice
		}
	}
	if len(usable) == 0 {
		return nil, noKey
	}
	return usable, nil
}

// jwkMembers are the members of a JWK that decide anything.
type jwkMembers struct {
	Kty    jsontext.Value `json:"kty"`
	Crv    jsontext.Value `json:"crv"`
	Kid    jsontext.Value `json:"kid"`
	Use    jsontext.Value `json:"use"`
	KeyOps jsontext.Value `json:"key_ops"`
	Alg    jsontext.Value `json:"alg"`
	X      jsontext.Value `json:"x"`
	Y      jsontext.Value `json:"y"`
	D      jsontext.Value `json:"d"`
}

// algorithm is the one that a key of this kind is for, "" for none.
func (k jwkMembers) algorithm() string {
	switch textOf(k.Kty).s + " " + textOf(k.Crv).s {
	case "OKP Ed25519":
		return "EdDSA"
	case "EC P-256":
		return "ES256"
	}
	return ""
}

// forTokens reports whether a key is of a kind, and meant, for signatures of
// tokens. A key set that limits its key to anything else is believed.
func (k jwkMembers) forTokens() bool {
	alg := k.algorithm()
	return alg != "" &&
		(k.Use == nil || textOf(k.Use).s == "sig") &&
		(k.Alg == nil || textOf(k.Alg).s == alg) &&
		(k.KeyOps == nil || allowsVerify(k.KeyOps))
}

func allowsVerify(ops jsontext.Value) bool {
	var all []jsontext.Value
	if wire.Decode(ops, &all) != nil {
		return false
	}
	for _, op := range all {
		if textOf(op).s == "verify" {
			return true
		}
	}
	return false
}

// public is the key itself. ok is false when its numbers are no key.
func (k jwkMembers) public() (_ publicKey, ok bool) {
	p := publicKey{alg: k.algorithm(), jwk: publicJWK{
		Kty: textOf(k.Kty).s, Crv: textOf(k.Crv).s, Kid: textOf(k.Kid).s, X: textOf(k.X).s,
	}}
	if p.alg == "ES256" {
		p.jwk.Y = textOf(k.Y).s
	}
	// The library gets these members and no other: no certificates to read, no use
	// to interpret.
	doc, err := json.Marshal(p.jwk)
	if err != nil {
		return publicKey{}, false
	}
	parsed, err := jwk.ParseKey(doc)
	if err != nil || !coordinate(p.jwk.X) {
		return publicKey{}, false
	}
	switch p.alg {
	case "EdDSA":
		var key ed25519.PublicKey
		ok = parsed.Raw(&key) == nil && len(key) == ed25519.PublicKeySize
		p.key = key
	case "ES256":
		var key ecdsa.PublicKey
		ok = coordinate(p.jwk.Y) && parsed.Raw(&key) == nil && onCurve(&key)
		p.key = &key
	}
	return p, ok
}

// coordinate reports whether a member is 32 bytes in their one spelling.
func coordinate(s string) bool {
	b, ok := decodeURL(s)
	return ok && len(b) == 32
}

// onCurve reports whether a key is a point of its curve; the library does not ask.
func onCurve(key *ecdsa.PublicKey) bool {
	_, err := key.ECDH()
	return err == nil
}
