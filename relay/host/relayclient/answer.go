package relayclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// bad is an answer that the protocol does not allow. why is a fixed text.
func bad(why string) error { return fmt.Errorf("%w: %s", ErrBadAnswer, why) }

var (
	errOverBound = bad("it is too large")
	errMembers   = bad("a member is missing or of another type")
)

// named puts the call's name before an error.
func (q *call) named(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", q.what, err)
	}
	return nil
}

// decode reads a strict document. Unknown members are ignored.
func decode(body []byte, into any) error {
	switch err := wire.Decode(body, into); {
	case errors.Is(err, wire.ErrNotJSON):
		return fmt.Errorf("%w: %w", ErrBadAnswer, err) // holds nothing of the body
	case err != nil:
		return errMembers
	}
	return nil
}

// maxInteger is the largest integer that every JSON reader reads exactly.
const maxInteger = 1<<53 - 1

// counts reports whether each is there and is a count or a sequence number.
func counts(ns ...*int64) bool {
	for _, n := range ns {
		if n == nil || *n < 0 || *n > maxInteger {
			return false
		}
	}
	return true
}

// label reports whether s is a name that an answer may carry: kept, compared,
// sent back, and shown to people.
func label(s *string) bool {
	return s != nil && *s != "" && *s == printable(*s)
}

// orNone is a member that may be absent.
func orNone(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// valueOrNone is a member that may be absent or null.
func valueOrNone(v jsontext.Value) jsontext.Value {
	if string(v) == "null" {
		return nil
	}
	return v
}

// parseOK reads {"ok":true}.
func parseOK(body []byte) error {
	var a struct {
		OK *bool `json:"ok"`
	}
	if err := decode(body, &a); err != nil {
		return err
	}
	if a.OK == nil || !*a.OK {
		return errMembers
	}
	return nil
}

// Error is a line for people.
func (e *StatusError) Error() string {
	b := append([]byte("relay answered "), strconv.Itoa(e.Status)...)
	if e.Code != "" {
		b = append(append(b, ' '), e.Code...)
	}
	switch text := http.StatusText(e.Status); {
	case e.Reason != "":
		b = append(append(b, ": "...), e.Reason...)
	case e.Status/100 == 3:
		b = append(b, ": a redirect, which is not followed"...)
	case text != "":
		b = append(append(b, ": "...), text...)
	}
	return string(b)
}

// refused is the error of an answer with another status. Its body is read for
// what it may say, member by member: a proxy's page has nothing to say.
func (q *call) refused(a answer) error {
	e := &StatusError{Status: a.status, Date: a.date}
	var m struct {
		Error jsontext.Value `json:"error"`
		Code  jsontext.Value `json:"code"`
		Check jsontext.Value `json:"reason"`
		Epoch jsontext.Value `json:"epoch"`
		Head  jsontext.Value `json:"head_seq"`
	}
	if wire.Decode(a.body, &m) == nil {
		e.Reason = q.quiet(printable(text(m.Error)))
		if s := text(m.Code); validCode(s) && q.quiet(s) == s {
			e.Code = s
		}
		if s := text(m.Check); validCode(s) && q.quiet(s) == s {
			e.ReasonCode = s
		}
		if s := text(m.Epoch); label(&s) && q.quiet(s) == s {
			e.Epoch = s
		}
		if n, ok := integer(m.Head); ok && n > 0 {
			e.Head = n
		}
	}
	return fmt.Errorf("%s: %w", q.what, e)
}

func validCode(s string) bool {
	for i := range len(s) {
		if ch := s[i]; ch != '_' && (ch < 'A' || ch > 'Z') && (ch < '0' || ch > '9') {
			return false
		}
	}
	return len(s) <= 64
}

// text reads a string, "" for anything else. The document around it is strict.
func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

// integer reads a number without a fraction, one that is too far out as the
// last that every reader reads exactly. The document around it is strict.
func integer(v jsontext.Value) (int64, bool) {
	if v.Kind() != '0' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		return 0, false
	}
	n := int64(max(-maxInteger, min(f, maxInteger)))
	return n, float64(n) == f || n == maxInteger || n == -maxInteger
}

// unreachable is the error of a call without an answer.
func (q *call) unreachable(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%s: %w: %w", q.what, ErrUnreachable, ended)
	}
	// Not wrapped: its text may quote what came back, at any length.
	return fmt.Errorf("%s: %w: %s", q.what, ErrUnreachable, q.quiet(printable(err.Error())))
}

// quiet is s unless it repeats a piece of the call's secret.
func (q *call) quiet(s string) string {
	const piece = 12
	for i := 0; i+piece <= len(s) && len(q.secret) > 0; i++ {
		if bytes.Contains(q.secret, []byte(s[i:i+piece])) {
			return "(withheld: it repeats the proof)"
		}
	}
	return s
}

// shown is how many characters of an answer a person is shown.
const shown = 200

// printable is s as it can be shown: no control characters or such, and cut.
func printable(s string) string {
	n := 0
	for i, r := range s {
		if n += utf16.RuneLen(r); n > shown {
			s = s[:i]
			break
		}
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
