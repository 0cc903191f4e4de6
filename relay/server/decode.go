package server

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// decode reads the body, which must be an object, strictly into a struct of
// members.
func (c *call) decode(v any) error {
	b := bytes.TrimLeft(c.body, " \t\r\n")
	if len(b) == 0 || b[0] != '{' || wire.Decode(b, v) != nil {
		return errJSON
	}
	return nil
}

// member is a member of a body as it stands there: nil when it is absent. It is
// read by what it should be, so that one of another type is refused by name.
type member = json.RawMessage

// text reads a string. One that is absent is empty; null is of another type.
func text(m member) (s string, ok bool) {
	if m == nil {
		return "", true
	}
	if m[0] != '"' || wire.Decode(m, &s) != nil {
		return "", false
	}
	return s, true
}

// textOrEmpty reads a string and answers "" for anything else.
func textOrEmpty(m member) string {
	s, _ := text(m)
	return s
}

// number reads a number and answers NaN for anything else.
func number(m member) float64 {
	f, err := strconv.ParseFloat(string(m), 64)
	if err != nil || m[0] != '-' && (m[0] < '0' || m[0] > '9') {
		return math.NaN()
	}
	return f
}
