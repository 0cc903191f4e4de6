package wire

import (
	"strings"
)

// Bounds of an envelope.
const (
	MaxPlainBody  = 256 << 10                       // bytes of an open body
	MaxSealedBody = (MaxPlainBody + 16 + 2) / 3 * 4 // base64 of a sealed one
	SealAlg       = "x25519+xchacha20poly1305"
	SigAlg        = "ed25519"
)

// ShapeError says which rule of the envelope's shape a document breaks. What is
// a fixed text; nothing of the document is in it.
type ShapeError struct{ What string }

func (e *ShapeError) Error() string { return "bad envelope: " + e.What }

// EnvelopeHead is what a relay reads of an envelope.
type EnvelopeHead struct {
	ID     string
	From   string
	To     []string
	Sealed bool
}

// CheckEnvelope checks the shape of an envelope: every member's type, length
// and range, not its signature. Unknown members are allowed. A document that is
// not strict JSON gives an error that matches ErrNotJSON, whatever else is
// wrong with it; any other fault is a *ShapeError.
func CheckEnvelope(wire []byte) (EnvelopeHead, error) {
	c := envelopeCheck{cursor: newCursor(wire)}
	if err := c.document(c.envelope); err != nil {
		return EnvelopeHead{}, err
	}
	if c.fault == "" {
		c.finish()
	}
	if c.fault != "" {
		return EnvelopeHead{}, &ShapeError{c.fault}
	}
	return c.head, nil
}

// envelopeCheck goes through an envelope once. It notes the first fault and
// reads on, because a document that is not JSON further down must be told from
// an envelope of the wrong shape.
type envelopeCheck struct {
	cursor
	fault string
	head  EnvelopeHead
	seen  uint32 // which of the required members there are

	body, encBody []byte
}

const (
	hasV = 1 << iota
	hasID
	hasTS
	hasFrom
	hasTo
	hasThread
	hasReplyTo
	hasKind
	hasSubject
	hasBody
	hasNeedsReply
	hasRefs
	hasMeta
	hasAuthority
	hasEnc
	hasAll = 1<<iota - 1
)

// require notes a fault unless ok.
func (c *envelopeCheck) require(ok bool, fault string) {
	if !ok && c.fault == "" {
		c.fault = fault
	}
}

func (c *envelopeCheck) envelope() error {
	if c.peek() != '{' {
		c.require(false, "not an object")
		return c.skip()
	}
	return c.object(c.member)
}

func (c *envelopeCheck) member(name []byte) error {
	switch string(name) {
	case "v":
		c.seen |= hasV
		return c.one(3, "v")
	case "id":
		c.seen |= hasID
		s, err := c.str("id")
		c.require(ValidID(s), "id")
		c.head.ID = string(s)
		return err
	case "ts":
		c.seen |= hasTS
		s, err := c.str("ts")
		c.require(isDate(s), "ts")
		return err
	case "from":
		c.seen |= hasFrom
		s, err := c.short(300, "from")
		c.head.From = string(s)
		c.require(strings.IndexByte(c.head.From, '@') >= 0, "from")
		return err
	case "to":
		c.seen |= hasTo
		return c.recipients()
	case "thread":
		c.seen |= hasThread
		if c.peek() == 'n' {
			return c.skip()
		}
		_, err := c.short(300, "thread")
		return err
	case "reply_to":
		c.seen |= hasReplyTo
		if c.peek() == 'n' {
			return c.skip()
		}
		_, err := c.short(300, "reply_to")
		return err
	case "kind":
		c.seen |= hasKind
		s, err := c.str("kind")
		c.require(isKind(s), "kind")
		return err
	case "subject":
		c.seen |= hasSubject
		s, err := c.short(200, "subject")
		c.require(!hasControl(s), "subject")
		return err
	case "body":
		c.seen |= hasBody
		s, err := c.str("body")
		c.body = s
		return err
	case "needs_reply":
		c.seen |= hasNeedsReply
		k := c.peek()
		c.require(k == 't' || k == 'f', "needs_reply")
		return c.skip()
	case "refs":
		c.seen |= hasRefs
		return c.strings(100, 2048, "refs")
	case "meta":
		c.seen |= hasMeta
		return c.meta()
	case "authority":
		c.seen |= hasAuthority
		return c.authority()
	case "enc":
		c.seen |= hasEnc
		return c.enc()
	case "sig":
		return c.sig()
	}
	return c.skip()
}

// finish checks what needs the whole envelope.
func (c *envelopeCheck) finish() {
	if missing := hasAll &^ c.seen; missing != 0 {
		names := [...]string{"v", "id", "ts", "from", "to", "thread", "reply_to", "kind", "subject",
			"body", "needs_reply", "refs", "meta", "authority", "enc"}
		for i, name := range names {
			if missing&(1<<i) != 0 {
				c.require(false, name)
			}
		}
	}
	if c.head.Sealed {
		c.require(len(c.body) <= MaxSealedBody, "body")
		c.require(string(c.body) == string(c.encBody), "body")
	} else {
		c.require(len(c.body) <= MaxPlainBody, "body")
	}
}

// str reads a string; of any other value it notes a fault.
func (c *envelopeCheck) str(fault string) ([]byte, error) {
	if c.peek() != '"' {
		c.require(false, fault)
		return nil, c.skip()
	}
	return c.text()
}

// short reads a string of at most limit UTF-16 units.
func (c *envelopeCheck) short(limit int, fault string) ([]byte, error) {
	s, err := c.str(fault)
	c.require(len(s) <= limit || UTF16Len(s) <= limit, fault)
	return s, err
}

// one reads the number want.
func (c *envelopeCheck) one(want int64, fault string) error {
	n, err := c.whole(fault)
	c.require(n == want, fault)
	return err
}

// whole reads a whole number.
func (c *envelopeCheck) whole(fault string) (int64, error) {
	if c.peek() != '0' {
		c.require(false, fault)
		return 0, c.skip()
	}
	raw, err := c.number()
	if err != nil {
		return 0, err
	}
	n, ok := integer(raw)
	c.require(ok, fault)
	return n, nil
}

// strings reads an array of at most count strings of at most limit units.
func (c *envelopeCheck) strings(count, limit int, fault string) error {
	if c.peek() != '[' {
		c.require(false, fault)
		return c.skip()
	}
	n := 0
	return c.array(func() error {
		n++
		c.require(n <= count, fault)
		_, err := c.short(limit, fault)
		return err
	})
}

func (c *envelopeCheck) recipients() error {
	if c.peek() != '[' {
		c.require(false, "to")
		return c.skip()
	}
	n := 0
	err := c.array(func() error {
		n++
		c.require(n <= 100, "to")
		s, err := c.short(300, "to")
		if c.fault == "" && err == nil {
			c.head.To = append(c.head.To, string(s))
		}
		return err
	})
	c.require(n >= 1, "to")
	return err
}

func isKind(s []byte) bool {
	switch string(s) {
	case "message", "request", "reply", "status", "decision", "alert", "task":
		return true
	}
	return false
}

// hasControl reports whether s holds a control character: C0, DEL, U+0085,
// U+2028 or U+2029.
func hasControl(s []byte) bool {
	for i, ch := range s {
		switch {
		case ch < 0x20 || ch == 0x7f:
			return true
		case ch == 0xC2 && s[i+1] == 0x85: // s is valid UTF-8: what a rune needs is there
			return true
		case ch == 0xE2 && s[i+1] == 0x80 && (s[i+2] == 0xA8 || s[i+2] == 0xA9):
			return true
		}
	}
	return false
}
