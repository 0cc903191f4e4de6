package wire

import (
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// CheckJSON reports whether doc is one strict JSON value. Its errors match ErrNotJSON.
func CheckJSON(doc []byte) error {
	c := newCursor(doc)
	return c.document(c.skip)
}

// Canonical returns doc in the canonical form of RFC 8785: the bytes that are
// signed. doc itself is not changed. A document that is not strict JSON is
// refused with an error that matches ErrNotJSON.
func Canonical(doc []byte) ([]byte, error) {
	if err := CheckJSON(doc); err != nil {
		return nil, err
	}
	v := jsontext.Value(doc).Clone()
	if err := v.Canonicalize(); err != nil {
		return nil, ErrNotJSON // not reached: the cursor is at least as strict
	}
	return v, nil
}

// Marshal encodes a Go value canonically. Members tagged omitzero or omitempty
// are left out when they have no value; a nil pointer without the tag is null.
func Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("marshal: %w", err)
	}
	return Canonical(b)
}

// Decode reads a strict document into v. Member names match by case and unknown
// members are ignored. A document that is not strict JSON gives an error that
// matches ErrNotJSON; one that does not fit v, another error.
func Decode(doc []byte, v any) error {
	if err := CheckJSON(doc); err != nil {
		return err
	}
	if err := json.Unmarshal(doc, v); err != nil {
		return fmt.Errorf("decode: %w", errType) // the library's text may quote the document
	}
	return nil
}

// AppendString appends s as a JSON string in canonical form. Each maximal piece
// of invalid UTF-8 becomes U+FFFD, as a JavaScript text decoder has it.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = appendEscaped(dst, []byte(s)) // not copied: the compiler sees that it is only read
	return append(dst, '"')
}

// appendEscaped is AppendString without the quotes.
func appendEscaped(dst, s []byte) []byte {
	const hexDigits = "0123456789abcdef"
	for i := 0; i < len(s); {
		n := plainPrefix(s[i:])
		dst = append(dst, s[i:i+n]...)
		if i += n; i == len(s) {
			break
		}
		switch ch := s[i]; {
		case ch >= 0x80:
			size, ok := runeAt(s[i:])
			if ok {
				dst = append(dst, s[i:i+size]...)
			} else {
				dst = append(dst, "\uFFFD"...)
			}
			i += size
			continue
		case ch == '"' || ch == '\\':
			dst = append(dst, '\\', ch)
		case ch == '\b':
			dst = append(dst, `\b`...)
		case ch == '\t':
			dst = append(dst, `\t`...)
		case ch == '\n':
			dst = append(dst, `\n`...)
		case ch == '\f':
			dst = append(dst, `\f`...)
		case ch == '\r':
			dst = append(dst, `\r`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[ch>>4], hexDigits[ch&15])
		}
		i++
	}
	return dst
}

// escapedLen is how much appendEscaped appends.
func escapedLen(s []byte) (n int) {
	for i := 0; i < len(s); {
		plain := plainPrefix(s[i:])
		n += plain
		if i += plain; i == len(s) {
			break
		}
		switch ch := s[i]; {
		case ch >= 0x80:
			size, ok := runeAt(s[i:])
			if i += size; !ok {
				size = len("\uFFFD")
			}
			n += size
			continue
		case ch == '"' || ch == '\\' || ch == '\b' || ch == '\t' || ch == '\n' || ch == '\f' || ch == '\r':
			n += 2
		default:
			n += 6
		}
		i++
	}
	return n
}

// runeAt measures the rune at the start of s, which does not begin with ASCII.
// Where there is none, size is that of the maximal subpart (Unicode §3.9): the
// bytes that began a valid sequence, at least one.
func runeAt(s []byte) (size int, ok bool) {
	if r, size := utf8.DecodeRune(s); r != utf8.RuneError || size > 1 {
		return size, true
	}
	want, lo, hi := 0, byte(0x80), byte(0xBF)
	switch b := s[0]; {
	case b >= 0xC2 && b <= 0xDF:
		want = 2
	case b >= 0xE0 && b <= 0xEF:
		want = 3
		if b == 0xE0 {
			lo = 0xA0
		} else if b == 0xED {
			hi = 0x9F
		}
	case b >= 0xF0 && b <= 0xF4:
		want = 4
		if b == 0xF0 {
			lo = 0x90
		} else if b == 0xF4 {
			hi = 0x8F
		}
	}
	size = 1
	for size < want && size < len(s) && s[size] >= lo && s[size] <= hi {
		lo, hi = 0x80, 0xBF
		size++
	}
	return size, false
}
