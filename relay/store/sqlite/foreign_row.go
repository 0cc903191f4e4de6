package sqlite

import (
	"database/sql/driver"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// A tsRow is one row of a foreign table. Its accessors note the first value that
// is not what it should be and answer zero from then on.
type tsRow struct {
	f   *foreign
	t   *tsTable
	n   int64 // of the row, from 1
	v   row
	err error
}

// bad notes that a column's value is not what it should be.
func (r *tsRow) bad(column, what string) error {
	if r.err == nil {
		where := fmt.Sprintf("%s: %v: table %s, row %d", r.f.path, ErrForeign, r.t.name, r.n)
		var names []string
		for i, c := range r.t.columns { // the short texts of its key, to find it by
			if s, ok := r.v[i].(string); ok && len(names) < 3 && strings.Contains(","+r.t.key+",", ","+c.name+",") {
				names = append(names, fmt.Sprintf("%s %.60q", c.name, s))
			} else if n, ok := r.v[i].(int64); ok && c.name == "seq" {
				names = append(names, fmt.Sprintf("seq %d", n))
			}
		}
		if len(names) > 0 {
			where += " (" + strings.Join(names, ", ") + ")"
		}
		r.err = &rowError{fmt.Sprintf("%s: %s: %s", where, column, what)}
	}
	return r.err
}

// rowError is an ErrForeign that names its table and row.
type rowError struct{ text string }

func (e *rowError) Error() string { return e.text }
func (e *rowError) Unwrap() error { return ErrForeign }

func (r *tsRow) value(column string) driver.Value {
	for i, c := range r.t.columns {
		if c.name == column {
			return r.v[i]
		}
	}
	return nil
}

// text is a column that must hold text.
func (r *tsRow) text(column string) string {
	s, ok := r.value(column).(string)
	switch {
	case !ok:
		_ = r.bad(column, "it is not text")
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		_ = r.bad(column, "it is not valid UTF-8")
	default:
		return s
	}
	return ""
}

// optional is a column that may be missing, NULL or empty.
func (r *tsRow) optional(column string) string {
	if r.value(column) == nil {
		return ""
	}
	return r.text(column)
}

// label is an optional short text of one line.
func (r *tsRow) label(column string) string {
	s := r.optional(column)
	if len(s) > 256 || !shown(s) {
		_ = r.bad(column, "it is not a short line of text")
	}
	return s
}

// blob is a column of bytes, as SQLite's blob or text.
func (r *tsRow) blob(column string) []byte {
	switch v := r.value(column).(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	_ = r.bad(column, "it holds no bytes")
	return nil
}

// number is a whole number that JavaScript can hold.
func (r *tsRow) number(column string, least int64) int64 {
	n, ok := r.value(column).(int64)
	switch {
	case !ok:
		_ = r.bad(column, "it is not a whole number")
	case n < least || n > 1<<53-1:
		_ = r.bad(column, fmt.Sprintf("it is %d, which is out of range", n))
	default:
		return n
	}
	return 0
}

// key is a public key in base64.
func (r *tsRow) key(column string) wire.PublicKey {
	k, err := wire.ParsePublicKey(r.text(column))
	if err != nil {
		_ = r.bad(column, "it is no key: want 44 characters of base64")
	}
	return k
}

// hash is a SHA-256 in lowercase hex.
func (r *tsRow) hash(column string) (h [32]byte) {
	s := r.text(column)
	if len(s) != 64 {
		_ = r.bad(column, "it is no hash: want 64 hex digits")
		return h
	}
	for i := range h {
		hi, lo := strings.IndexByte("0123456789abcdef", s[2*i]), strings.IndexByte("0123456789abcdef", s[2*i+1])
		if hi < 0 || lo < 0 {
			_ = r.bad(column, "it is no hash: want 64 hex digits")
			return h
		}
		h[i] = byte(hi<<4 | lo)
	}
	return h
}

// sig is a signature in base64.
func (r *tsRow) sig(column string) string {
	s := r.text(column)
	if b, err := wire.DecodeBase64(s); err != nil || len(b) != 64 {
		_ = r.bad(column, "it is no signature: want 88 characters of base64")
	}
	return s
}

// record is a signed record: strict JSON, kept byte for byte.
func (r *tsRow) record(column string) []byte {
	b := r.blob(column)
	if r.err == nil && wire.CheckJSON(b) != nil {
		_ = r.bad(column, "it is not JSON")
	}
	return b
}

// time is an ISO time in UTC; what is finer than a millisecond is cut off.
func (r *tsRow) time(column string) time.Time {
	t, err := wire.ParseTime(r.text(column))
	if err == nil && t.UnixMilli() > 0 {
		return t.Truncate(time.Millisecond)
	}
	_ = r.bad(column, "it is no time: want one like 2026-11-20T08:00:00.000Z")
	return time.Time{}
}

// optionalTime is a time or NULL.
func (r *tsRow) optionalTime(column string) time.Time {
	if r.value(column) == nil {
		return time.Time{}
	}
	return r.time(column)
}
