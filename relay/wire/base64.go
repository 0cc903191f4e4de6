package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
)

// ErrBase64 is returned for anything but standard padded base64 in its one
// spelling: no line breaks, no stray bits after the last byte.
var ErrBase64 = errors.New("not standard base64")

// DecodeBase64 decodes standard padded base64 in its one spelling. It returns
// ErrBase64 for anything else.
func DecodeBase64(s string) ([]byte, error) {
	// The standard decoder skips line breaks, which would give one value many spellings.
	if len(s)%4 != 0 || strings.IndexByte(s, '\r') >= 0 || strings.IndexByte(s, '\n') >= 0 {
		return nil, ErrBase64
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, ErrBase64
	}
	return b, nil
}

// EncodeBase64 is standard padded base64.
func EncodeBase64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// decodeBase64Raw is DecodeBase64 for text that is still in the document it came from.
func decodeBase64Raw(s []byte) ([]byte, bool) {
	if len(s)%4 != 0 {
		return nil, false
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Strict().Decode(out, s)
	if err != nil {
		return nil, false
	}
	// Skipped line breaks show as a length that does not fit the text.
	pad := 0
	for pad < 2 && pad < len(s) && s[len(s)-1-pad] == '=' {
		pad++
	}
	if n != len(s)/4*3-pad {
		return nil, false
	}
	return out[:n], true
}

// decode32 decodes the one spelling of a 32-byte key into dst.
func decode32[T string | []byte](dst *[32]byte, s T) bool {
	if len(s) != 44 || s[43] != '=' || s[42] == '=' {
		return false
	}
	var src [44]byte
	copy(src[:], s)
	var out [33]byte
	n, err := base64.StdEncoding.Strict().Decode(out[:], src[:])
	if err != nil || n != 32 {
		return false
	}
	copy(dst[:], out[:32])
	return true
}

// Hash is the SHA-256 of b.
func Hash(b []byte) [32]byte { return sha256.Sum256(b) }

// HashHex is the lowercase hex SHA-256 of b: the wire_hash of an item.
func HashHex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
