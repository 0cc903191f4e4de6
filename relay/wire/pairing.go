package wire

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/crypto/scrypt"
)

const pairProto = "agentmbx-pair-token-v1"

// Labels of the two pairing MACs.
const (
	PairJoin   = "join"   // of the request
	PairAccept = "accept" // of the answer
)

// ErrBadToken is returned for text that cannot be a pairing token.
var ErrBadToken = errors.New("not a pairing token: want XXXX-XXXX-XXXX")

// NewToken makes a pairing token of 60 random bits, as it is shown to people.
func NewToken() (string, error) {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("new pairing token: %w", err)
	}
	for i := range b {
		b[i] = digits[b[i]&31]
	}
	return string(b[:4]) + "-" + string(b[4:8]) + "-" + string(b[8:]), nil
}

// NormalizeToken brings a token as typed to the form that PairingKey takes:
// upper case, no dashes or spaces, I and L as 1, O as 0. Anything that then is
// not 12 Crockford digits is ErrBadToken.
func NormalizeToken(typed string) (string, error) {
	if len(typed) > 64 {
		return "", ErrBadToken
	}
	out := make([]byte, 0, 12)
	for i := range len(typed) {
		ch := typed[i]
		if 'a' <= ch && ch <= 'z' {
			ch -= 'a' - 'A'
		}
		switch ch {
		case '-', ' ', '\t', '\r', '\n':
			continue
		case 'I', 'L':
			ch = '1'
		case 'O':
			ch = '0'
		}
		if !crockford(ch) {
			return "", ErrBadToken
		}
		out = append(out, ch)
	}
	if len(out) != 12 {
		return "", ErrBadToken
	}
	return string(out), nil
}

// PairingKey stretches a normalised token. It takes a tenth of a second and 32 MiB on purpose.
func PairingKey(token string) [32]byte {
	k, err := scrypt.Key([]byte(token), []byte(pairProto), 1<<15, 8, 1, 32)
	if err != nil {
		panic("wire: scrypt: " + err.Error()) // only for parameters it does not allow
	}
	return [32]byte(k)
}

// PairSide is one host in a pairing. Addr is the joining side's alone.
type PairSide struct {
	Host     string
	HostKey  PublicKey
	OwnerKey string // empty when the host has none
	Nonce    string
	Addr     string
}

// Transcript is what both MACs cover: canonical JSON of the host that printed
// the token (a) and the one that typed it (b).
func Transcript(a, b PairSide) []byte {
	out := make([]byte, 0, 512)
	out = append(out, `{"a":{`...)
	out = a.append(out)
	out = append(out, `},"b":{"addr":`...)
	out = AppendString(out, b.Addr)
	out = append(out, ',')
	out = b.append(out)
	return append(out, `},"proto":"`+pairProto+`"}`...)
}

func (s PairSide) append(out []byte) []byte {
	out = append(out, `"host":`...)
	out = AppendString(out, s.Host)
	out = append(out, `,"host_pubkey":"`...)
	out = append(out, s.HostKey.String()...)
	out = append(out, `","nonce":`...)
	out = AppendString(out, s.Nonce)
	out = append(out, `,"owner_pubkey":`...)
	if s.OwnerKey == "" {
		return append(out, `null`...)
	}
	return AppendString(out, s.OwnerKey)
}

// PairingMAC is the unpadded base64url MAC of a transcript under one of the two labels.
func PairingMAC(key [32]byte, label string, transcript []byte) string {
	k, err := hkdf.Key(sha256.New, key[:], []byte(pairProto), "mac:"+label, 32)
	if err != nil {
		panic("wire: hkdf: " + err.Error()) // only for lengths it does not allow
	}
	m := hmac.New(sha256.New, k)
	m.Write([]byte(label + "\n"))
	m.Write(transcript)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// CheckPairingMAC compares a MAC in constant time.
func CheckPairingMAC(key [32]byte, label string, transcript []byte, mac string) bool {
	return hmac.Equal([]byte(PairingMAC(key, label, transcript)), []byte(mac))
}
