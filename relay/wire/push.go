package wire

import (
	"errors"
	"fmt"
)

// Errors of the push parsers.
var (
	ErrBadJSON  = errors.New("bad json")  // the document is not strict JSON
	ErrBadBatch = errors.New("bad batch") // no array of items, or too many
	// ErrOverBatch is the ErrBadBatch of too many.
	ErrOverBatch = fmt.Errorf("%w: too many items", ErrBadBatch)
)

// PushItem is one item of a push, read leniently: a field that is absent or of
// another type is marked as not OK and the relay refuses that item alone.
type PushItem struct {
	ID        string
	IDOK      bool
	Kind      string // empty when it is not a string
	Targets   []PushTarget
	TargetsOK bool // an array of 1 to maxTargets elements
}

// PushTarget is where one copy of an item is to go.
type PushTarget struct {
	Key    PublicKey
	KeyOK  bool
	Wire   []byte
	WireOK bool // strict base64 of at least one byte
}

// ParsePush reads the body of a v2 push. It returns ErrBadJSON when the
// document is not strict JSON and ErrBadBatch when items is missing, is not an
// array, or ErrOverBatch when it has more than maxBatch elements; counting stops there. Of an item
// with more than maxTargets targets no target is kept.
func ParsePush(body []byte, maxBatch, maxTargets int) ([]PushItem, error) {
	c := newCursor(body)
	p := pushParser{c: &c, maxTargets: maxTargets}
	found := false
	err := c.batch("items", func() error {
		found = true
		return c.array(func() error {
			if len(p.items) == maxBatch {
				return ErrOverBatch
			}
			p.items = append(p.items, PushItem{})
			return p.item(&p.items[len(p.items)-1])
		})
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, ErrBadBatch
	}
	return p.items, nil
}

// ParseV1Push reads the body of a v1 push and returns each envelope as its raw
// bytes, which are part of body. Its errors are those of ParsePush.
func ParseV1Push(body []byte, maxBatch int) ([][]byte, error) {
	var wires [][]byte
	found := false
	c := newCursor(body)
	err := c.batch("envelopes", func() error {
		found = true
		return c.array(func() error {
			if len(wires) == maxBatch {
				return ErrOverBatch
			}
			w, err := c.raw()
			wires = append(wires, w)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, ErrBadBatch
	}
	return wires, nil
}

// batch reads a document and calls read for the member of this name if it is
// an array. It brings errors to the two that push parsers return.
func (c *cursor) batch(member string, read func() error) error {
	err := c.document(func() error {
		if c.peek() != '{' {
			return c.skip()
		}
		return c.object(func(name []byte) error {
			if string(name) == member && c.peek() == '[' {
				return read()
			}
			return c.skip()
		})
	})
	if err != nil && !errors.Is(err, ErrBadBatch) {
		return ErrBadJSON
	}
	return err
}

type pushParser struct {
	c          *cursor
	maxTargets int
	items      []PushItem
}

func (p *pushParser) item(it *PushItem) error {
	c := p.c
	if c.peek() != '{' {
		return c.skip()
	}
	return c.object(func(name []byte) error {
		switch string(name) {
		case "item_id":
			if c.peek() == '"' {
				s, err := c.text()
				it.ID, it.IDOK = string(s), true
				return err
			}
		case "kind":
			if c.peek() == '"' {
				s, err := c.text()
				it.Kind = kindString(s)
				return err
			}
		case "targets":
			if c.peek() == '[' {
				return p.targets(it)
			}
		}
		return c.skip()
	})
}

// kindString spares the two usual kinds a copy.
func kindString(s []byte) string {
	switch string(s) {
	case "envelope":
		return "envelope"
	case "receipt":
		return "receipt"
	}
	return string(s)
}

func (p *pushParser) targets(it *PushItem) error {
	n := 0
	err := p.c.array(func() error {
		if n++; n > p.maxTargets {
			it.Targets = nil
			return p.c.skip()
		}
		if it.Targets == nil {
			it.Targets = make([]PushTarget, 0, 1)
		}
		it.Targets = append(it.Targets, PushTarget{})
		return p.target(&it.Targets[len(it.Targets)-1])
	})
	it.TargetsOK = n >= 1 && n <= p.maxTargets
	return err
}

func (p *pushParser) target(t *PushTarget) error {
	c := p.c
	if c.peek() != '{' {
		return c.skip()
	}
	return c.object(func(name []byte) error {
		if c.peek() != '"' {
			return c.skip()
		}
		switch string(name) {
		case "host_pubkey":
			s, err := c.text()
			t.KeyOK = err == nil && decode32((*[32]byte)(&t.Key), s)
			return err
		case "wire_b64":
			s, err := c.text()
			if err != nil {
				return err
			}
			w, ok := decodeBase64Raw(s)
			if ok && len(w) > 0 {
				t.Wire, t.WireOK = w, true
			}
			return nil
		}
		return c.skip()
	})
}
