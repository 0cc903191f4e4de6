package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// cursor is a place in a list: where a row stands in the list's order. It names no
// number of rows, so that pages neither skip nor repeat a row when others come and
// go between them.
type cursor struct {
	List string         `json:"l"` // which list, in which order
	Key  wire.PublicKey `json:"k,omitzero"`
	N    int64          `json:"n,omitempty"` // a seq, an id, or what the list is sorted by
	At   int64          `json:"t,omitempty"` // a time, in milliseconds
	Name string         `json:"s,omitempty"`
}

// maxCursor is longer than any that we give.
const maxCursor = 1024

// lastTime is the last millisecond of the year 9999.
const lastTime = 253402300799999

// String is the cursor as it travels.
func (c cursor) String() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings, numbers and a key
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor reads what String wrote, of one of these lists; "" is nil. Any other
// spelling is refused, so that nothing but what we gave is ever taken.
func parseCursor(text string, lists ...string) (*cursor, error) {
	if text == "" {
		return nil, nil
	}
	bad := fmt.Errorf("%w: after: want Next of an earlier page of this list, in this order, or nothing", ErrBadRequest)
	if len(text) > maxCursor {
		return nil, bad
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, bad
	}
	var c cursor
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if d.Decode(&c) != nil || c.N < 0 || c.At < 0 || c.At > lastTime || c.String() != text {
		return nil, bad
	}
	for _, l := range lists {
		if c.List == l {
			return &c, nil
		}
	}
	return nil, bad
}

// open looks at what a caller wants of one of these lists.
func (p Paging) open(lists ...string) (*cursor, error) {
	if p.Limit < 1 || p.Limit > MaxPage {
		return nil, fmt.Errorf("%w: limit: want 1 to %d", ErrBadRequest, MaxPage)
	}
	return parseCursor(p.After, lists...)
}

// maxText is the longest text to search for, in bytes.
const maxText = 200

// checkText looks at a text to search for.
func checkText(what, text string) error {
	if len(text) > maxText || !utf8.ValidString(text) {
		return fmt.Errorf("%w: %s: want at most %d bytes of text", ErrBadRequest, what, maxText)
	}
	return nil
}

// needle is a text that is searched for without case, and in fingerprints also
// without what people put between the digits.
type needle struct{ text, digits string }

func newNeedle(text string) needle {
	n := needle{text: strings.ToLower(text)}
	digits := strings.NewReplacer("-", "", ":", "", " ", "").Replace(n.text)
	if digits != "" && strings.Trim(digits, "0123456789abcdef") == "" {
		n.digits = digits
	}
	return n
}

// in reports whether the text is part of one of these, or of a fingerprint; "" is
// part of everything.
func (n needle) in(fp string, texts ...string) bool {
	if n.text == "" {
		return true
	}
	for _, t := range texts {
		if strings.Contains(strings.ToLower(t), n.text) {
			return true
		}
	}
	return n.digits != "" && strings.Contains(strings.ReplaceAll(fp, "-", ""), n.digits)
}

// pager fills one page, from one list of the store or from several that follow
// each other.
type pager[T any] struct {
	ctx   context.Context
	limit int
	most  int64 // rows to look at
	page  Page[T]
}

func newPager[T any](ctx context.Context, p Paging) *pager[T] {
	return &pager[T]{ctx: ctx, limit: p.Limit, most: MaxLook, page: Page[T]{Items: []T{}}}
}

// over reports whether no more rows are to be looked at.
func (p *pager[T]) over() bool { return len(p.page.Items) >= p.limit || p.page.Looked >= p.most }

// lookAhead is the most rows that are read from the store at a time.
const lookAhead = 500

// rows is a list of the store, and how its rows are shown.
type rows[R, T any] struct {
	// read calls each for the rows after one, nil from the start.
	read func(after *R, each func(R) bool) error
	// show makes of a row what is shown. ok is false for one that was not asked for.
	show func(R) (v T, ok bool, err error)
	mark func(R) cursor
	more bool // something follows this list
}

// fill goes on with the page, from the row after one, until it is over or the list
// ends. Rows are read first and shown then: no statement runs while another one
// is read from.
func fill[R, T any](p *pager[T], after *R, l rows[R, T]) error {
	for {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		n := lookAhead
		if p.page.Looked == 0 {
			n = min(n, p.limit) // without a filter that is all
		}
		n = int(min(int64(n), p.most-p.page.Looked))
		read, more, err := take(n, func(each func(R) bool) error { return l.read(after, each) })
		if err != nil {
			return err
		}
		for i, r := range read {
			v, ok, err := l.show(r)
			if err != nil {
				return err
			}
			p.page.Looked++
			if ok {
				p.page.Items = append(p.page.Items, v)
			}
			if p.over() {
				if more || l.more || i+1 < len(read) {
					p.page.Next = l.mark(r).String()
				}
				return nil
			}
		}
		if !more {
			return nil
		}
		after = &read[len(read)-1]
	}
}

// take reads up to n rows of a list, and tells whether there are more.
func take[R any](n int, read func(each func(R) bool) error) (list []R, more bool, err error) {
	err = read(func(r R) bool {
		if len(list) == n {
			more = true
			return false
		}
		list = append(list, r)
		return true
	})
	return list, more, err
}
