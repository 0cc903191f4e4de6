package wire

import (
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// text reads a string. The result is part of the document unless it held an escape.
func (c *cursor) text() ([]byte, error) {
	raw, escaped, err := c.rawText()
	if err != nil || !escaped {
		return raw, err
	}
	return unescape(raw), nil
}

// rawText reads a string and returns what stands between its quotes, which is
// valid UTF-8 with valid escapes and no lone surrogate.
func (c *cursor) rawText() (raw []byte, escaped bool, err error) {
	if c.peek() != '"' {
		return nil, false, c.wrongType()
	}
	b := c.buf
	start := c.pos + 1
	i := start
	for {
		i += plainPrefix(b[i:])
		if i >= len(b) {
			return nil, false, ErrNotJSON
		}
		switch ch := b[i]; {
		case ch == '"':
			c.pos = i + 1
			return b[start:i:i], escaped, nil
		case ch < 0x20:
			return nil, false, ErrNotJSON
		case ch == '\\':
			escaped = true
			n, err := escapeLen(b[i:])
			if err != nil {
				return nil, false, err
			}
			i += n
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n <= 1 {
				return nil, false, errText
			}
			i += n
		}
	}
}

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plainPrefix counts the leading bytes that need no look: ASCII without
// control characters, quotes and backslashes. Eight bytes at a time; a borrow
// between lanes needs a hit below it, so it can only point at a true hit.
func plainPrefix(b []byte) int {
	i := 0
	for ; len(b)-i >= 8; i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		if (x|(x-0x20*lows)|((x^0x22*lows)-lows)|((x^0x5c*lows)-lows))&highs != 0 {
			break
		}
	}
	for i < len(b) && b[i] >= 0x20 && b[i] < 0x80 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// escapeLen is the length of the escape at the start of b: two bytes, six, or
// twelve for a surrogate pair.
func escapeLen(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, ErrNotJSON
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, nil
	case 'u':
		r, ok := hex4(b[2:])
		if !ok {
			return 0, ErrNotJSON
		}
		if !utf16.IsSurrogate(r) {
			return 6, nil
		}
		if len(b) < 12 || b[6] != '\\' || b[7] != 'u' {
			return 0, errText
		}
		low, ok := hex4(b[8:])
		if !ok {
			return 0, ErrNotJSON
		}
		if utf16.DecodeRune(r, low) == utf8.RuneError {
			return 0, errText
		}
		return 12, nil
	}
	return 0, ErrNotJSON
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, ch := range b[:4] {
		switch {
		case '0' <= ch && ch <= '9':
			ch -= '0'
		case 'a' <= ch && ch <= 'f':
			ch -= 'a' - 10
		case 'A' <= ch && ch <= 'F':
			ch -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(ch)
	}
	return r, true
}

// unescape undoes the escapes of what rawText has checked.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		ch := raw[i]
		if ch != '\\' {
			out = append(out, ch)
			i++
			continue
		}
		switch ch = raw[i+1]; ch {
		case 'b':
			ch = '\b'
		case 'f':
			ch = '\f'
		case 'n':
			ch = '\n'
		case 'r':
			ch = '\r'
		case 't':
			ch = '\t'
		case 'u':
			r, _ := hex4(raw[i+2:])
			i += 6
			if utf16.IsSurrogate(r) {
				low, _ := hex4(raw[i+2:])
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			out = utf8.AppendRune(out, r)
			continue
		}
		out = append(out, ch)
		i += 2
	}
	return out
}

// number reads a number and returns its text.
func (c *cursor) number() ([]byte, error) {
	if c.peek() != '0' {
		return nil, c.wrongType()
	}
	b := c.buf
	start, i := c.pos, c.pos
	digits := func() bool {
		from := i
		for i < len(b) && '0' <= b[i] && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return nil, ErrNotJSON
	}
	if i < len(b) && b[i] == '.' {
		i++
		if !digits() {
			return nil, ErrNotJSON
		}
	}
	exponent := false
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		exponent = true
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return nil, ErrNotJSON
		}
	}
	c.pos = i
	raw := b[start:i:i]
	if exponent || len(raw) > 300 {
		if _, err := strconv.ParseFloat(string(raw), 64); err != nil {
			return nil, errNumber
		}
	}
	return raw, nil
}

// integer is the value of a number when it is a whole one that float64 holds
// exactly, however it is written: 7, 7.0 and 70e-1 are one number.
func integer(raw []byte) (int64, bool) {
	if len(raw) <= 15 {
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			return n, true
		}
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53-1 {
		return 0, false
	}
	return int64(f), true
}
