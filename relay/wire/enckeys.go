package wire

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
)

// EncPublicKey is an X25519 key that bodies are sealed for.
type EncPublicKey [32]byte

// ParseEncPublicKey reads a key in its one spelling. Anything else is ErrBadKey.
func ParseEncPublicKey(s string) (EncPublicKey, error) {
	var k EncPublicKey
	if !decode32((*[32]byte)(&k), s) {
		return EncPublicKey{}, ErrBadKey
	}
	return k, nil
}

// String is the one spelling of the key.
func (k EncPublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// IsZero reports whether k is no key at all.
func (k EncPublicKey) IsZero() bool { return k == EncPublicKey{} }

// MarshalText makes the key a JSON string.
func (k EncPublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText accepts what ParseEncPublicKey accepts.
func (k *EncPublicKey) UnmarshalText(b []byte) error {
	p, err := ParseEncPublicKey(string(b))
	if err == nil {
		*k = p
	}
	return err
}

// EncPrivateKey opens what was sealed for its public key. Like PrivateKey it
// shows itself only through Seed.
type EncPrivateKey struct {
	k **ecdh.PrivateKey // two pointers for PrivateKey's reason
}

// ParseEncPrivateKey reads the base64 of the 32 private bytes. Anything else is ErrBadKey.
func ParseEncPrivateKey(s string) (EncPrivateKey, error) {
	var raw [32]byte
	if !decode32(&raw, s) {
		return EncPrivateKey{}, ErrBadKey
	}
	k, err := ecdh.X25519().NewPrivateKey(raw[:])
	if err != nil {
		return EncPrivateKey{}, ErrBadKey
	}
	return EncPrivateKey{&k}, nil
}

// GenerateEncKey makes a new sealing key.
func GenerateEncKey() (EncPrivateKey, error) {
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return EncPrivateKey{}, fmt.Errorf("generate sealing key: %w", err)
	}
	return EncPrivateKey{&k}, nil
}

// IsZero reports whether k is no key at all.
func (k EncPrivateKey) IsZero() bool { return k.k == nil }

// Public is the key to seal for; the zero key for the zero value.
func (k EncPrivateKey) Public() EncPublicKey {
	if k.k == nil {
		return EncPublicKey{}
	}
	return EncPublicKey((*k.k).PublicKey().Bytes())
}

// Seed exports the key as ParseEncPrivateKey reads it. Nothing else does.
func (k EncPrivateKey) Seed() string {
	if k.k == nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString((*k.k).Bytes())
}

// String, GoString, Format, LogValue and MarshalText never reveal the key.
func (k EncPrivateKey) String() string               { return hidden }
func (k EncPrivateKey) GoString() string             { return hidden }
func (k EncPrivateKey) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(hidden)) }
func (k EncPrivateKey) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (k EncPrivateKey) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON never reveals the key.
func (k EncPrivateKey) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }
