package devissuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// The algorithms of an issuer's keys.
const (
	algEdDSA = "EdDSA"
	algES256 = "ES256"
)

// keyRow is a key as it is stored.
type keyRow struct {
	JWK    json.RawMessage `json:"jwk"` // the private key
	MadeAt time.Time       `json:"made_at"`
}

// signingKey is a key in use.
type signingKey struct {
	id     string
	alg    jwa.SignatureAlgorithm
	priv   jwk.Key
	pub    jwk.Key
	madeAt time.Time
}

// Key is a key as people see it.
type Key struct {
	ID     string    `json:"kid"`
	Alg    string    `json:"alg"`
	MadeAt time.Time `json:"made_at"`
	Signs  bool      `json:"signs"`
}

// makeKey makes a key whose id is its RFC 7638 thumbprint.
func makeKey(alg string, now time.Time) (signingKey, keyRow, error) {
	var raw any
	var err error
	switch alg {
	case algES256:
		raw, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		_, raw, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		return signingKey{}, keyRow{}, err
	}
	priv, err := jwk.FromRaw(raw)
	if err != nil {
		return signingKey{}, keyRow{}, err
	}
	print, err := priv.Thumbprint(crypto.SHA256)
	if err != nil {
		return signingKey{}, keyRow{}, err
	}
	for name, v := range map[string]any{jwk.KeyIDKey: base64.RawURLEncoding.EncodeToString(print), jwk.AlgorithmKey: alg, jwk.KeyUsageKey: "sig"} {
		if err := priv.Set(name, v); err != nil {
			return signingKey{}, keyRow{}, err
		}
	}
	doc, err := json.Marshal(priv)
	if err != nil {
		return signingKey{}, keyRow{}, err
	}
	row := keyRow{JWK: doc, MadeAt: now.UTC()}
	k, err := readKey(row)
	return k, row, err
}

var errBadKeyRow = errors.New("it has a key that can't be used") // the library's text may quote it

func readKey(row keyRow) (signingKey, error) {
	priv, err := jwk.ParseKey(row.JWK)
	if err != nil {
		return signingKey{}, errBadKeyRow
	}
	pub, err := priv.PublicKey()
	alg, known := priv.Algorithm().(jwa.SignatureAlgorithm)
	if err != nil || !known || priv.KeyID() == "" || alg != jwa.EdDSA && alg != jwa.ES256 {
		return signingKey{}, errBadKeyRow
	}
	return signingKey{id: priv.KeyID(), alg: alg, priv: priv, pub: pub, madeAt: row.MadeAt}, nil
}

func readKeys(rows []keyRow) (keys []signingKey, err error) {
	for _, r := range rows {
		k, err := readKey(r)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// ed25519Key is a key as the library takes it.
func ed25519Key(k wire.PublicKey) ed25519.PublicKey { return k[:] }

// addKey gives a state a new key that signs from now on.
func (i *Issuer) addKey(s *state) error {
	k, row, err := makeKey(i.o.Alg, i.o.Now())
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	s.Keys = append([]keyRow{row}, s.Keys...)
	i.keys = append([]signingKey{k}, i.keys...)
	return nil
}

// Rotated says what a rotation left.
type Rotated struct {
	Keys    []Key `json:"keys"`    // the first one signs
	Dropped int   `json:"dropped"` // old keys that left the set
}

// Rotate makes a new key that signs from now on; the old ones stay in the set, so
// that what they signed goes on being good. With drop it makes none, and takes the
// old ones out of the set.
func (i *Issuer) Rotate(drop bool) (r Rotated, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.keys
	err = i.change(func(s *state) error {
		switch {
		case drop:
			r.Dropped = len(s.Keys) - 1
			s.Keys, i.keys = s.Keys[:1], i.keys[:1]
			return nil
		case len(s.Keys) >= maxKeys:
			return refusal{ErrRefused, fmt.Sprintf("the set has %d keys: drop the old ones first, with --drop", len(s.Keys))}
		}
		return i.addKey(s)
	})
	if err != nil {
		i.keys = before
		return Rotated{}, err
	}
	i.denyToken = signedDenials{} // signed anew by the key that signs now
	r.Keys = i.publicKeys()
	i.o.Log.Info("keys rotated", "keys", len(r.Keys), "dropped", r.Dropped, "signing", r.Keys[0].ID)
	return r, nil
}

func (i *Issuer) publicKeys() (keys []Key) {
	for n, k := range i.keys {
		keys = append(keys, Key{ID: k.id, Alg: k.alg.String(), MadeAt: k.madeAt, Signs: n == 0})
	}
	return keys
}

// keySet is the JWKS: public keys and nothing else.
func (i *Issuer) keySet() ([]byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	set := jwk.NewSet()
	for _, k := range i.keys {
		if err := set.AddKey(k.pub); err != nil {
			return nil, err
		}
	}
	return json.Marshal(set)
}

// sign makes a compact JWS of claims. Under mu.
func (i *Issuer) sign(typ string, claims any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	h := jws.NewHeaders()
	if err := h.Set(jws.TypeKey, typ); err != nil {
		return "", err
	}
	k := i.keys[0] // its id goes into the header
	token, err := jws.Sign(payload, jws.WithKey(k.alg, k.priv, jws.WithProtectedHeaders(h)))
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return string(token), nil
}
