package wire

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/crypto/chacha20poly1305"
)

// Errors of sealing and opening.
var (
	ErrNotSealed     = errors.New("envelope body is not sealed")
	ErrUndecryptable = errors.New("undecryptable body")
	ErrBodyTooLarge  = errors.New("body over 256 KiB")
)

// Envelope is an envelope as its sender builds it. Its plain JSON encoding,
// members in this order, is the wire form.
type Envelope struct {
	V          int            `json:"v"`
	ID         string         `json:"id"`
	TS         string         `json:"ts"`
	From       string         `json:"from"`
	To         []string       `json:"to"`
	Thread     string         `json:"thread"`
	ReplyTo    *string        `json:"reply_to"`
	Kind       string         `json:"kind"`
	Subject    string         `json:"subject"`
	Body       string         `json:"body"`
	NeedsReply bool           `json:"needs_reply"`
	Refs       []string       `json:"refs"`
	Meta       Meta           `json:"meta"`
	Authority  jsontext.Value `json:"authority"` // nil is null
	Enc        *SealedBody    `json:"enc"`
	Sig        *EnvelopeSig   `json:"sig,omitzero"`
}

// Meta is the meta member of an envelope.
type Meta struct {
	Mentions           []string `json:"mentions"`
	Directives         []string `json:"directives"`
	Tags               []string `json:"tags"`
	TaskRefs           []string `json:"task_refs"`
	Hop                *int     `json:"hop,omitzero"`
	Origin             string   `json:"origin,omitzero"`
	Project            string   `json:"project,omitzero"`
	ProjectKey         string   `json:"project_key,omitzero"`
	SenderVerification string   `json:"sender_verification,omitzero"`
	LocalNames         []string `json:"local_names,omitzero"`
}

// SealedBody is the enc member of an envelope.
type SealedBody struct {
	V     int    `json:"v"`
	Alg   string `json:"alg"`
	EPK   string `json:"epk"`
	Nonce string `json:"nonce"`
	Body  string `json:"body"`
}

// EnvelopeSig is the sig member of an envelope.
type EnvelopeSig struct {
	Alg   string `json:"alg"`
	Host  string `json:"host"`
	Key   string `json:"key"` // fingerprint
	Value string `json:"value"`
}

// ParseEnvelope reads an envelope that passes CheckEnvelope, whose errors it
// returns. Members it has no field for are dropped: what is verified, stored or
// passed on is the wire itself.
func ParseEnvelope(wire []byte) (Envelope, error) {
	if _, err := CheckEnvelope(wire); err != nil {
		return Envelope{}, err
	}
	var env Envelope
	if err := Decode(wire, &env); err != nil {
		return Envelope{}, err
	}
	return env, nil
}

// Seal seals env.Body for the recipient host, signs the envelope with the
// sending host's key and returns its wire form. It returns ErrBodyTooLarge for
// a body over MaxPlainBody, and a *ShapeError when the result is no envelope.
func Seal(env Envelope, recipient EncPublicKey, hostKey PrivateKey, hostName string) (wire []byte, err error) {
	ephemeral, err := GenerateEncKey()
	if err != nil {
		return nil, err
	}
	var nonce [chacha20poly1305.NonceSizeX]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return SealWith(env, recipient, hostKey, hostName, ephemeral, nonce)
}

// SealWith is Seal with a chosen ephemeral key and nonce. Neither may ever be
// used for a second body.
func SealWith(env Envelope, recipient EncPublicKey, hostKey PrivateKey, hostName string, ephemeral EncPrivateKey, nonce [24]byte) (wire []byte, err error) {
	if len(env.Body) > MaxPlainBody {
		return nil, ErrBodyTooLarge
	}
	if !utf8.ValidString(env.Body) {
		return nil, fmt.Errorf("seal: %w", &ShapeError{"body"})
	}
	epk := ephemeral.Public()
	aead, err := sealCipher(ephemeral, recipient, epk, env.ID)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	body := base64.StdEncoding.EncodeToString(aead.Seal(nil, nonce[:], []byte(env.Body), nil))
	env.V = 3
	env.Body = body
	env.Enc = &SealedBody{V: 1, Alg: SealAlg, EPK: epk.String(), Nonce: base64.StdEncoding.EncodeToString(nonce[:]), Body: body}
	return SignEnvelope(env, hostKey, hostName)
}

// SignEnvelope signs an envelope as it is, open or sealed, and returns its wire
// form. It returns a *ShapeError when the result is no envelope.
func SignEnvelope(env Envelope, hostKey PrivateKey, hostName string) (wire []byte, err error) {
	env.Sig = nil
	signed, err := Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("sign envelope: %w", err)
	}
	env.Sig = &EnvelopeSig{Alg: SigAlg, Host: hostName, Key: hostKey.Public().Fingerprint(), Value: hostKey.Sign(signed)}
	wire, err = json.Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("sign envelope: %w", err)
	}
	if _, err := CheckEnvelope(wire); err != nil {
		return nil, fmt.Errorf("sign envelope: %w", err)
	}
	return wire, nil
}

// Open opens the sealed body of an envelope. It returns ErrNotSealed for an
// open one, ErrUndecryptable when the key does not open it, and CheckEnvelope's
// errors for anything that is no envelope.
func Open(wire []byte, enc EncPrivateKey) (body []byte, err error) {
	env, err := ParseEnvelope(wire)
	if err != nil {
		return nil, err
	}
	if env.Enc == nil {
		return nil, ErrNotSealed
	}
	epk, err := ParseEncPublicKey(env.Enc.EPK)
	if err != nil {
		return nil, ErrUndecryptable
	}
	nonce, ok := decodeNonce(env.Enc.Nonce)
	if !ok {
		return nil, ErrUndecryptable
	}
	sealed, err := DecodeBase64(env.Enc.Body)
	if err != nil {
		return nil, ErrUndecryptable
	}
	aead, err := sealCipher(enc, epk, epk, env.ID)
	if err != nil {
		return nil, ErrUndecryptable
	}
	body, err = aead.Open(nil, nonce[:], sealed, nil)
	if err != nil || !utf8.Valid(body) || len(body) > MaxPlainBody {
		return nil, ErrUndecryptable
	}
	return body, nil
}

// sealCipher derives the cipher that one body of one envelope is sealed with.
func sealCipher(own EncPrivateKey, other, epk EncPublicKey, id string) (aead interface {
	Seal(dst, nonce, plain, extra []byte) []byte
	Open(dst, nonce, sealed, extra []byte) ([]byte, error)
}, err error) {
	pub, err := ecdh.X25519().NewPublicKey(other[:])
	if err != nil {
		return nil, ErrBadKey
	}
	if own.IsZero() {
		return nil, ErrBadKey
	}
	shared, err := (*own.k).ECDH(pub)
	if err != nil { // a key of low order: everybody would know the secret
		return nil, ErrBadKey
	}
	key, err := hkdf.Key(sha256.New, shared, epk[:], "agentmbx-enc-1:"+id, chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	return chacha20poly1305.NewX(key)
}

// decodeNonce decodes the one spelling of a 24-byte nonce.
func decodeNonce[T string | []byte](s T) (nonce [24]byte, ok bool) {
	if len(s) != 32 {
		return nonce, false
	}
	var src [32]byte
	copy(src[:], s)
	n, err := base64.StdEncoding.Strict().Decode(nonce[:], src[:])
	return nonce, err == nil && n == len(nonce)
}
