package wire

import (
	"errors"
	"strconv"
	"time"
)

// ErrBadReceipt is returned for a document that is JSON but not a receipt.
var ErrBadReceipt = errors.New("bad receipt")

// Receipt is a delivery receipt: what became of a message at one recipient.
type Receipt struct {
	Msg       string
	Recipient string // name@host
	State     string // delivered, notified, read or acked
	At        time.Time
	Note      string
	Did       string
	Seq       int64

	signed []byte // canonical rec as received
	sig    string
}

// ID is the item id that the receipt travels under.
func (r Receipt) ID() string {
	return "receipt:" + r.Msg + ":" + r.Recipient + ":" + strconv.FormatInt(r.Seq, 10)
}

// Rank orders the states: a higher one replaces a lower one. It is 0 for no state.
func (r Receipt) Rank() int { return stateRank(r.State) }

func stateRank[T string | []byte](state T) int {
	switch string(state) {
	case "delivered":
		return 1
	case "notified":
		return 2
	case "read":
		return 3
	case "acked":
		return 4
	}
	return 0
}

// SignedBy reports whether key signed the receipt that CheckReceipt read.
func (r Receipt) SignedBy(key PublicKey) bool { return r.signed != nil && key.Verify(r.signed, r.sig) }

// CheckReceipt reads the wire bytes of a receipt and checks its shape, not its
// signature. An error matches ErrNotJSON or is ErrBadReceipt.
func CheckReceipt(wire []byte) (Receipt, error) {
	if err := CheckJSON(wire); err != nil {
		return Receipt{}, err
	}
	var r Receipt
	var rec []byte
	var hasSig bool
	c := newCursor(wire)
	err := c.object(func(name []byte) (err error) {
		switch string(name) {
		case "rec":
			rec, err = c.raw()
		case "sig":
			var sig []byte
			sig, err = c.text()
			r.sig, hasSig = string(sig), true
		default:
			err = ErrBadReceipt
		}
		return err
	})
	if err != nil || rec == nil || !hasSig || r.readRec(rec) != nil {
		return Receipt{}, ErrBadReceipt
	}
	if r.signed, err = Canonical(rec); err != nil {
		return Receipt{}, ErrBadReceipt
	}
	return r, nil
}

// readRec reads the inner record, which is known to be strict JSON.
func (r *Receipt) readRec(rec []byte) error {
	var v, typ, msg, recipient, state, at, seq bool
	c := newCursor(rec)
	err := c.object(func(name []byte) (err error) {
		switch string(name) {
		case "v":
			var n int64
			n, err = c.integer()
			v = n == 1
		case "type":
			var s []byte
			s, err = c.text()
			typ = string(s) == "receipt"
		case "msg":
			r.Msg, msg, err = c.bounded(10, 40)
		case "recipient":
			r.Recipient, recipient, err = c.bounded(1, 104)
		case "state":
			r.State, state, err = c.bounded(1, 9)
			state = state && stateRank(r.State) > 0
		case "at":
			var s []byte
			if s, err = c.text(); err == nil {
				r.At, err = ParseTime(string(s))
				at = true
			}
		case "note":
			var ok bool
			if r.Note, ok, err = c.bounded(0, 500); err == nil && !ok {
				err = ErrBadReceipt
			}
		case "did":
			var ok bool
			if r.Did, ok, err = c.bounded(0, 200); err == nil && !ok {
				err = ErrBadReceipt
			}
		case "seq":
			r.Seq, err = c.integer()
			seq = r.Seq > 0
		default:
			err = ErrBadReceipt
		}
		return err
	})
	if err != nil || !v || !typ || !msg || !recipient || !state || !at || !seq {
		return ErrBadReceipt
	}
	name, host, ok := SplitAddress(r.Recipient)
	if !ok || !ValidAgentName(name) || !ValidHostName(host) {
		return ErrBadReceipt
	}
	return nil
}

// bounded reads a string and reports whether it is lo to hi UTF-16 units long.
func (c *cursor) bounded(lo, hi int) (s string, ok bool, err error) {
	b, err := c.text()
	if err != nil {
		return "", false, err
	}
	n := UTF16Len(b)
	return string(b), lo <= n && n <= hi, nil
}

// integer reads a whole number.
func (c *cursor) integer() (int64, error) {
	raw, err := c.number()
	if err != nil {
		return 0, err
	}
	n, ok := integer(raw)
	if !ok {
		return 0, errType
	}
	return n, nil
}

// MakeReceipt signs r with the recipient host's key and returns the wire bytes:
// canonical {rec, sig}. Note and Did are left out when empty.
func MakeReceipt(key PrivateKey, r Receipt) (wire []byte) {
	b := make([]byte, 0, 256+len(r.Note)+len(r.Did))
	b = append(b, `{"at":"`...)
	b = append(b, FormatTime(r.At)...)
	b = append(b, '"')
	if r.Did != "" {
		b = append(b, `,"did":`...)
		b = AppendString(b, r.Did)
	}
	b = append(b, `,"msg":`...)
	b = AppendString(b, r.Msg)
	if r.Note != "" {
		b = append(b, `,"note":`...)
		b = AppendString(b, r.Note)
	}
	b = append(b, `,"recipient":`...)
	b = AppendString(b, r.Recipient)
	b = append(b, `,"seq":`...)
	b = strconv.AppendInt(b, r.Seq, 10)
	b = append(b, `,"state":`...)
	b = AppendString(b, r.State)
	b = append(b, `,"type":"receipt","v":1}`...)

	wire = make([]byte, 0, len(b)+128)
	wire = append(wire, `{"rec":`...)
	wire = append(wire, b...)
	wire = append(wire, `,"sig":"`...)
	wire = append(wire, key.Sign(b)...)
	return append(wire, `"}`...)
}
