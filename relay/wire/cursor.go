package wire

import (
	"errors"
	"fmt"
)

// Bounds of any document.
const (
	MaxDepth   = 64   // how deep objects and arrays may nest
	MaxMembers = 4096 // of one object; their names are kept to find duplicates
)

// ErrNotJSON is returned, possibly wrapped, for a document that is not strict
// JSON: bad syntax, a duplicated member, a lone surrogate, invalid UTF-8,
// nesting beyond MaxDepth, more than MaxMembers in an object, a number beyond
// float64, or trailing data.
var ErrNotJSON = errors.New("not JSON")

var (
	errDuplicate = fmt.Errorf("%w: duplicated member", ErrNotJSON)
	errDeep      = fmt.Errorf("%w: nested too deep", ErrNotJSON)
	errMany      = fmt.Errorf("%w: too many members", ErrNotJSON)
	errNumber    = fmt.Errorf("%w: number out of range", ErrNotJSON)
	errText      = fmt.Errorf("%w: bad text", ErrNotJSON)
	errTrailing  = fmt.Errorf("%w: data after the end", ErrNotJSON)
)

// errType is an object, array, string or number where another was wanted.
var errType = errors.New("value of another type")

// cursor walks one JSON document strictly and in place: what it hands out are
// slices of the document, copied only where an escape has to be undone. It
// exists because the push path parses thousands of items a second; fuzzing
// holds it against jsontext, which must accept and refuse the same documents.
type cursor struct {
	buf   []byte
	pos   int
	depth int
	names [][]byte // member names of the objects that are open, for finding duplicates
}

func newCursor(doc []byte) cursor { return cursor{buf: doc} }

// document runs read over the one value of the document and refuses anything after it.
func (c *cursor) document(read func() error) error {
	if err := read(); err != nil {
		return err
	}
	c.space()
	if c.pos != len(c.buf) {
		return errTrailing
	}
	return nil
}

func (c *cursor) space() {
	for c.pos < len(c.buf) {
		switch c.buf[c.pos] {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return
		}
	}
}

// peek returns the first byte of the next value or delimiter, '0' for any
// number, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.pos == len(c.buf) {
		return 0
	}
	b := c.buf[c.pos]
	if b == '-' || '0' <= b && b <= '9' {
		return '0'
	}
	return b
}

// skip reads any value.
func (c *cursor) skip() error {
	switch c.peek() {
	case '{':
		return c.object(nil)
	case '[':
		return c.array(nil)
	case '"':
		_, _, err := c.rawText()
		return err
	case '0':
		_, err := c.number()
		return err
	case 't':
		return c.literal("true")
	case 'f':
		return c.literal("false")
	case 'n':
		return c.literal("null")
	}
	return ErrNotJSON
}

// raw reads any value and returns it as it stands in the document.
func (c *cursor) raw() ([]byte, error) {
	c.space()
	start := c.pos
	if err := c.skip(); err != nil {
		return nil, err
	}
	return c.buf[start:c.pos:c.pos], nil
}

func (c *cursor) literal(word string) error {
	if len(c.buf)-c.pos < len(word) || string(c.buf[c.pos:c.pos+len(word)]) != word {
		return ErrNotJSON
	}
	c.pos += len(word)
	return nil
}

// object reads an object. member is called with the position on each value,
// which it has to read; nil skips them. The name is valid until member returns.
func (c *cursor) object(member func(name []byte) error) error {
	if c.peek() != '{' {
		return c.wrongType()
	}
	if c.depth++; c.depth > MaxDepth {
		return errDeep
	}
	c.pos++
	if c.names == nil {
		c.names = make([][]byte, 0, 24) // an envelope with its meta fits
	}
	base := len(c.names)
	var seen map[string]struct{} // only once an object is large
	if c.peek() == '}' {
		c.pos++
		c.depth--
		return nil
	}
	for {
		if c.peek() != '"' {
			return ErrNotJSON
		}
		name, err := c.text()
		if err != nil {
			return err
		}
		if seen == nil {
			for _, n := range c.names[base:] {
				if string(n) == string(name) {
					return errDuplicate
				}
			}
			c.names = append(c.names, name)
			if len(c.names)-base > 32 {
				seen = make(map[string]struct{}, 128)
				for _, n := range c.names[base:] {
					seen[string(n)] = struct{}{}
				}
			}
		} else {
			if _, dup := seen[string(name)]; dup {
				return errDuplicate
			}
			if len(seen) == MaxMembers {
				return errMany
			}
			seen[string(name)] = struct{}{}
		}
		if c.peek() != ':' {
			return ErrNotJSON
		}
		c.pos++
		if member != nil {
			err = member(name)
		} else {
			err = c.skip()
		}
		if err != nil {
			return err
		}
		switch c.peek() {
		case ',':
			c.pos++
		case '}':
			c.pos++
			c.depth--
			c.names = c.names[:base]
			return nil
		default:
			return ErrNotJSON
		}
	}
}

// array reads an array. element is called with the position on each value,
// which it has to read; nil skips them.
func (c *cursor) array(element func() error) error {
	if c.peek() != '[' {
		return c.wrongType()
	}
	if c.depth++; c.depth > MaxDepth {
		return errDeep
	}
	c.pos++
	if c.peek() == ']' {
		c.pos++
		c.depth--
		return nil
	}
	for {
		var err error
		if element != nil {
			err = element()
		} else {
			err = c.skip()
		}
		if err != nil {
			return err
		}
		switch c.peek() {
		case ',':
			c.pos++
		case ']':
			c.pos++
			c.depth--
			return nil
		default:
			return ErrNotJSON
		}
	}
}

// wrongType tells a value of another type from no value at all.
func (c *cursor) wrongType() error {
	switch c.peek() {
	case '{', '[', '"', '0', 't', 'f', 'n':
		return errType
	}
	return ErrNotJSON
}
