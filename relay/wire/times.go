package wire

import (
	"errors"
	"time"
)

// ErrTime is returned for a time that is not RFC 3339 in UTC.
var ErrTime = errors.New("not a UTC time")

// FormatTime writes t as records carry it: UTC, milliseconds, Z.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// ParseTime reads a record's time: RFC 3339 with an upper-case T and Z and at
// most nine digits of fraction. Anything else is ErrTime.
func ParseTime(s string) (time.Time, error) {
	if len(s) < 20 || len(s) > 30 || s[10] != 'T' || s[len(s)-1] != 'Z' {
		return time.Time{}, ErrTime
	}
	if !digitsAt(s, "0000-00-00T00:00:00") {
		return time.Time{}, ErrTime
	}
	if frac := s[19 : len(s)-1]; frac != "" && (frac[0] != '.' || len(frac) < 2 || !allDigits(frac[1:])) {
		return time.Time{}, ErrTime
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, ErrTime
	}
	return t.UTC(), nil
}

// digitsAt reports whether s begins as the pattern does, any digit for a 0.
func digitsAt[T string | []byte](s T, pattern string) bool {
	if len(s) < len(pattern) {
		return false
	}
	for i := range len(pattern) {
		if pattern[i] == '0' {
			if s[i] < '0' || s[i] > '9' {
				return false
			}
		} else if s[i] != pattern[i] {
			return false
		}
	}
	return true
}

func allDigits[T string | []byte](s T) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) > 0
}

// isDate reports whether JavaScript's Date reads s in its ISO form: a year, a
// month or a day, the last with a time that may carry Z or an offset. A day
// that its month lacks is a date there, and so it is here.
func isDate(s []byte) bool {
	if !digitsAt(s, "0000") {
		return false
	}
	if s = s[4:]; len(s) == 0 {
		return true
	}
	if !digitsAt(s, "-00") || !between(s[1:3], 1, 12) {
		return false
	}
	if s = s[3:]; len(s) == 0 {
		return true
	}
	if !digitsAt(s, "-00") || !between(s[1:3], 1, 31) {
		return false
	}
	if s = s[3:]; len(s) == 0 {
		return true
	}
	if !digitsAt(s, "T00:00") || !between(s[1:3], 0, 24) || !between(s[4:6], 0, 59) {
		return false
	}
	midnight := s[1] == '2' && s[2] == '4' // 24:00 is the only time with that hour
	zero := s[4] == '0' && s[5] == '0'
	if s = s[6:]; digitsAt(s, ":00") {
		if !between(s[1:3], 0, 59) {
			return false
		}
		zero = zero && s[1] == '0' && s[2] == '0'
		if s = s[3:]; len(s) > 1 && s[0] == '.' {
			i := 1
			for i < len(s) && s[i] >= '0' && s[i] <= '9' {
				zero = zero && s[i] == '0'
				i++
			}
			if i == 1 {
				return false
			}
			s = s[i:]
		}
	}
	if midnight && !zero {
		return false
	}
	switch {
	case len(s) == 0:
		return true
	case len(s) == 1:
		return s[0] == 'Z'
	case len(s) == 6 && (s[0] == '+' || s[0] == '-'):
		return digitsAt(s[1:], "00:00") && between(s[1:3], 0, 23) && between(s[4:6], 0, 59)
	}
	return false
}

func between(two []byte, lo, hi int) bool {
	n := int(two[0]-'0')*10 + int(two[1]-'0')
	return lo <= n && n <= hi
}
