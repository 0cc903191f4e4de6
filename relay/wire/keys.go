package wire

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// Errors of the key parsers. None of them repeats any of its input.
var (
	ErrBadKey         = errors.New("not a key: want 44 characters of base64")
	ErrBadFingerprint = errors.New("not a fingerprint: want 16 hex digits")
)

// PublicKey is an Ed25519 public key: what a host or a relay is known by.
type PublicKey [32]byte

// ParsePublicKey reads a key in its one spelling, 44 characters of padded
// base64. Anything else is ErrBadKey.
func ParsePublicKey(s string) (PublicKey, error) {
	var k PublicKey
	if !decode32((*[32]byte)(&k), s) {
		return PublicKey{}, ErrBadKey
	}
	return k, nil
}

// String is the one spelling of the key.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// IsZero reports whether k is no key at all.
func (k PublicKey) IsZero() bool { return k == PublicKey{} }

// MarshalText makes the key a JSON string.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText accepts what ParsePublicKey accepts.
func (k *PublicKey) UnmarshalText(b []byte) error {
	p, err := ParsePublicKey(string(b))
	if err == nil {
		*k = p
	}
	return err
}

// Fingerprint is what people compare: the first 16 hex digits of the key's
// SHA-256, in groups of four.
func (k PublicKey) Fingerprint() string {
	sum := sha256.Sum256(k[:])
	return groupFingerprint(hex.EncodeToString(sum[:8]))
}

// Thumbprint is the RFC 7638 thumbprint of the key as an OKP/Ed25519 JWK, the
// jkt of an account token.
func (k PublicKey) Thumbprint() string {
	jwk := `{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(k[:]) + `"}`
	sum := sha256.Sum256([]byte(jwk))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Verify reports whether sig is the base64 signature of msg by this key. A
// signature in any other spelling is no signature.
func (k PublicKey) Verify(msg []byte, sig string) bool {
	if len(sig) != 88 {
		return false
	}
	b, err := DecodeBase64(sig)
	return err == nil && len(b) == ed25519.SignatureSize && ed25519.Verify(k[:], msg, b)
}

// ParseFingerprint reads a fingerprint as people type it (either case, with or
// without dashes, colons and spaces) and returns it as Fingerprint writes it.
// Anything else is ErrBadFingerprint.
func ParseFingerprint(s string) (string, error) {
	if len(s) > 64 {
		return "", ErrBadFingerprint
	}
	digits := strings.NewReplacer("-", "", ":", "", " ", "").Replace(strings.ToLower(strings.TrimSpace(s)))
	if len(digits) != 16 {
		return "", ErrBadFingerprint
	}
	if _, err := hex.DecodeString(digits); err != nil {
		return "", ErrBadFingerprint
	}
	return groupFingerprint(digits), nil
}

func groupFingerprint(hex16 string) string {
	return hex16[:4] + "-" + hex16[4:8] + "-" + hex16[8:12] + "-" + hex16[12:]
}

// hidden is what a private key prints as.
const hidden = "[private key]"

// PrivateKey is an Ed25519 signing key. Only Seed exports it: printing, logging
// or encoding one, even inside another struct, shows nothing of it. The zero
// value is no key; signing with it panics.
type PrivateKey struct {
	// Behind two pointers, because fmt calls no methods on an unexported field: it
	// prints what the field holds, and follows one pointer when the verb is wrong.
	s **signer
}

type signer struct {
	key ed25519.PrivateKey
	pub PublicKey
}

func newPrivateKey(seed []byte) PrivateKey {
	key := ed25519.NewKeyFromSeed(seed)
	s := &signer{key: key, pub: PublicKey(key[32:])}
	return PrivateKey{&s}
}

// ParsePrivateKey reads a base64 seed of 32 bytes. Anything else is ErrBadKey.
func ParsePrivateKey(s string) (PrivateKey, error) {
	var seed [32]byte
	if !decode32(&seed, s) {
		return PrivateKey{}, ErrBadKey
	}
	return newPrivateKey(seed[:]), nil
}

// GenerateKey makes a new signing key.
func GenerateKey() (PrivateKey, error) {
	var seed [32]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return PrivateKey{}, fmt.Errorf("generate key: %w", err)
	}
	return newPrivateKey(seed[:]), nil
}

// IsZero reports whether k is no key at all.
func (k PrivateKey) IsZero() bool { return k.s == nil }

// Public is the key others know this one by; the zero key for the zero value.
func (k PrivateKey) Public() PublicKey {
	if k.s == nil {
		return PublicKey{}
	}
	return (*k.s).pub
}

// Sign returns the base64 signature of msg.
func (k PrivateKey) Sign(msg []byte) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign((*k.s).key, msg))
}

// Seed exports the key as ParsePrivateKey reads it. Nothing else does.
func (k PrivateKey) Seed() string {
	if k.s == nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString((*k.s).key.Seed())
}

// String, GoString, Format, LogValue and MarshalText never reveal the key.
func (k PrivateKey) String() string               { return hidden }
func (k PrivateKey) GoString() string             { return hidden }
func (k PrivateKey) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(hidden)) }
func (k PrivateKey) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (k PrivateKey) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON never reveals the key.
func (k PrivateKey) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }
