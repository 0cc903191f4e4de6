package wire

import (
	"bytes"
	"fmt"
)

// VerifyEnvelope checks the signature of an envelope against the sending host's
// key, over the members as received. It holds for the wire form and for the
// opened form alike, because a sealed envelope is signed with its sealed body.
// It returns ErrBadSignature, or CheckJSON's error for what is not JSON. The
// host name in the signature is the caller's to compare.
func VerifyEnvelope(wire []byte, key PublicKey) error {
	signed, sig, err := signedEnvelope(wire)
	if err != nil {
		return err
	}
	if sig.Alg != SigAlg || sig.Key != key.Fingerprint() || !key.Verify(signed, sig.Value) {
		return ErrBadSignature
	}
	return nil
}

// SignedPayload is what the signature of an envelope covers: its canonical form
// without sig, with the sealed body where there is one.
func SignedPayload(wire []byte) ([]byte, error) {
	signed, _, err := signedEnvelope(wire)
	return signed, err
}

// OpenedForm is the envelope with body in place of its sealed one: what a host
// stores. Every other member stays as received.
func OpenedForm(wire, body []byte) ([]byte, error) {
	if err := CheckJSON(wire); err != nil {
		return nil, err
	}
	c := newCursor(wire)
	from, to := 0, 0
	err := c.object(func(name []byte) error {
		isBody := string(name) == "body"
		value, err := c.raw()
		if isBody {
			from, to = c.pos-len(value), c.pos
		}
		return err
	})
	if err != nil || to == 0 {
		return nil, &ShapeError{"body"}
	}
	out := make([]byte, 0, len(wire)+len(body))
	out = append(out, wire[:from]...)
	out = append(out, '"')
	out = appendEscaped(out, body)
	out = append(out, '"')
	return append(out, wire[to:]...), nil
}

func signedEnvelope(wire []byte) (signed []byte, sig EnvelopeSig, err error) {
	if err := CheckJSON(wire); err != nil {
		return nil, sig, err
	}
	var sigRaw, encRaw, bodyRaw []byte
	members := make([]byte, 0, len(wire))
	members = append(members, '{')
	c := newCursor(wire)
	err = c.object(func(name []byte) error {
		value, err := c.raw()
		if err != nil {
			return err
		}
		switch string(name) {
		case "sig":
			sigRaw = value
			return nil
		case "body":
			bodyRaw = value
			return nil
		case "enc":
			encRaw = value
		}
		members = append(members, '"')
		members = appendEscaped(members, name)
		members = append(members, '"', ':')
		members = append(members, value...)
		members = append(members, ',')
		return nil
	})
	if err != nil || sigRaw == nil || bodyRaw == nil {
		return nil, sig, fmt.Errorf("%w: none there", ErrBadSignature)
	}
	if err := Decode(sigRaw, &sig); err != nil {
		return nil, sig, ErrBadSignature
	}
	if encRaw != nil && bytes.HasPrefix(encRaw, []byte("{")) {
		bodyRaw = nil
		e := newCursor(encRaw)
		err := e.object(func(name []byte) error {
			isBody := string(name) == "body"
			value, err := e.raw()
			if isBody {
				bodyRaw = value
			}
			return err
		})
		if err != nil || bodyRaw == nil {
			return nil, sig, ErrBadSignature
		}
	}
	members = append(members, `"body":`...)
	members = append(members, bodyRaw...)
	members = append(members, '}')
	signed, err = Canonical(members)
	return signed, sig, err
}
