package wire

import (
	"crypto/rand"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
)

// MaxItemID is how long an item id may be, in UTF-16 units.
const MaxItemID = 300

// ValidHostName reports whether s is a host name: ^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$.
func ValidHostName[T string | []byte](s T) bool {
	return len(s) >= 1 && len(s) <= 63 && alnum(s[0]) && hostChars(s)
}

// ValidAgentName reports whether s is an agent: ^[a-z0-9][a-z0-9-]{1,39}$. The
// name owner is one too.
func ValidAgentName[T string | []byte](s T) bool {
	if len(s) < 2 || len(s) > 40 || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if ch := s[i]; ch != '-' && (ch < 'a' || ch > 'z') && (ch < '0' || ch > '9') {
			return false
		}
	}
	return true
}

// ValidOwnerFP reports whether s is an owner fingerprint: ^[A-Za-z0-9._-]{0,64}$.
func ValidOwnerFP(s string) bool { return len(s) <= 64 && hostChars(s) }

// ValidItemID reports whether s is an item id: 1 to MaxItemID characters of valid UTF-8.
func ValidItemID(s string) bool {
	return s != "" && len(s) <= 3*MaxItemID && utf8.ValidString(s) && UTF16Len(s) <= MaxItemID
}

// UTF16Len counts UTF-16 code units: the length of s in JavaScript.
func UTF16Len[T string | []byte](s T) int {
	n := 0
	for i := range len(s) {
		switch b := s[i]; {
		case b >= 0xF0: // four bytes, a surrogate pair
			n += 2
		case b < 0x80 || b >= 0xC0:
			n++
		}
	}
	return n
}

// Cut shortens a text to at most so many UTF-16 code units, between two characters.
func Cut(s string, most int) string {
	for i, r := range s {
		if most -= utf16.RuneLen(r); most < 0 {
			return s[:i]
		}
	}
	return s
}

// FoldName brings a host name to the form names are compared in: ASCII lower case.
func FoldName(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return strings.Map(func(r rune) rune {
				if 'A' <= r && r <= 'Z' {
					return r + 'a' - 'A'
				}
				return r
			}, s)
		}
	}
	return s
}

// SplitAddress cuts name@host at its last @. ok is false without one.
func SplitAddress(addr string) (name, host string, ok bool) {
	i := strings.LastIndexByte(addr, '@')
	if i < 0 {
		return addr, "", false
	}
	return addr[:i], addr[i+1:], true
}

// NewID makes an envelope id: a ULID for the time now.
func NewID(now time.Time) string {
	return ulid.MustNew(ulid.Timestamp(now), rand.Reader).String()
}

// ValidID reports whether s is an envelope id: 26 upper-case Crockford digits.
func ValidID[T string | []byte](s T) bool {
	if len(s) != 26 {
		return false
	}
	for i := range len(s) {
		if !crockford(s[i]) {
			return false
		}
	}
	return true
}

func crockford(ch byte) bool {
	return '0' <= ch && ch <= '9' ||
		'A' <= ch && ch <= 'Z' && ch != 'I' && ch != 'L' && ch != 'O' && ch != 'U'
}

func alnum(ch byte) bool {
	return '0' <= ch && ch <= '9' || 'a' <= ch && ch <= 'z' || 'A' <= ch && ch <= 'Z'
}

func hostChars[T string | []byte](s T) bool {
	for i := range len(s) {
		if ch := s[i]; !alnum(ch) && ch != '.' && ch != '_' && ch != '-' {
			return false
		}
	}
	return true
}
