package wire

import (
	"errors"
	"fmt"
	"time"
)

// Errors that the record parsers wrap, so that a caller can tell a document
// that is no such record from a record that somebody else signed.
var (
	ErrMalformed    = errors.New("malformed record")
	ErrBadSignature = errors.New("bad signature")
)

// MaxAhead is how far a record's iat may be ahead of the reader's clock.
const MaxAhead = 5 * time.Minute

// Bounds that JSON and JavaScript numbers share.
const maxSafeInteger = 1<<53 - 1

func malformed(what string) error { return fmt.Errorf("%w: %s", ErrMalformed, what) }

// readRecord decodes a record as received and returns its canonical form, which
// is what its signature covers, unknown members included.
func readRecord(raw []byte, into any) (canonical []byte, err error) {
	canonical, err = Canonical(raw)
	if err != nil {
		return nil, malformed("not JSON")
	}
	if canonical[0] != '{' {
		return nil, malformed("not an object")
	}
	if err := Decode(canonical, into); err != nil {
		return nil, malformed("a member of another type")
	}
	return canonical, nil
}

// EnrolPayload is what a host signs to answer an enrolment challenge.
func EnrolPayload(challenge, host string, key PublicKey, ownerFP string) []byte {
	b := make([]byte, 0, 192)
	b = append(b, `{"challenge":`...)
	b = AppendString(b, challenge)
	b = append(b, `,"host":`...)
	b = AppendString(b, host)
	b = append(b, `,"owner_fp":`...)
	b = AppendString(b, ownerFP)
	b = append(b, `,"pubkey":"`...)
	b = append(b, key.String()...)
	return append(b, `","v":1}`...)
}

// EncKeyV1Payload is what a host signs to publish its sealing key the v1 way.
func EncKeyV1Payload(host string, encPub EncPublicKey) []byte {
	b := make([]byte, 0, 128)
	b = append(b, `{"enc_pub":"`...)
	b = append(b, encPub.String()...)
	b = append(b, `","host":`...)
	b = AppendString(b, host)
	return append(b, `,"v":1}`...)
}
