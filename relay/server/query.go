package server

import (
	"net/url"
	"strconv"
	"strings"
)

// maxInteger is the largest integer that every JSON reader reads exactly.
const maxInteger = 1<<53 - 1

// parameters reads the parameters of these names. A name that stands twice, or an
// escape that is none, is refused; other names are not looked at.
func (c *call) parameters(names ...string) (map[string]string, error) {
	got := make(map[string]string, len(names))
	for part := range strings.SplitSeq(c.query, "&") {
		rawName, rawValue, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil {
			return nil, errQuery
		}
		for _, n := range names {
			if n != name {
				continue
			}
			if _, twice := got[n]; twice {
				return nil, errQuery
			}
			if got[n], err = url.QueryUnescape(rawValue); err != nil {
				return nil, errQuery
			}
		}
	}
	return got, nil
}

// integer reads a parameter that is a plain decimal, 0 when it is not given.
func integer(q map[string]string, name string) (int64, error) {
	s, given := q[name]
	if !given {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > maxInteger || s[0] == '+' {
		return 0, errQuery
	}
	return int64(n), nil
}
