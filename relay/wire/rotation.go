package wire

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Rotation is a host's change of keys, signed by the old key and the new one.
type Rotation struct {
	Host      string
	OldPub    PublicKey
	NewPub    PublicKey
	NewEncPub EncPublicKey
	IAT       time.Time
	Rec       []byte // canonical rec: what both signatures cover
	OldSig    string
	NewSig    string
	Doc       []byte // canonical {new_sig, old_sig, rec}: what to keep and to pass on
}

type rotationDoc struct {
	Rec    jsontext.Value `json:"rec"`
	OldSig string         `json:"old_sig"`
	NewSig string         `json:"new_sig"`
}

type rotationRecord struct {
	V         int    `json:"v"`
	Type      string `json:"type"`
	Host      string `json:"host"`
	OldPub    string `json:"old_pub"`
	NewPub    string `json:"new_pub"`
	NewEncPub string `json:"new_enc_pub"`
	IAT       string `json:"iat"`
}

// ParseRotation checks a signed rotation. An error matches ErrMalformed, or
// ErrBadSignature when either of the two signatures does not verify.
func ParseRotation(doc []byte) (Rotation, error) {
	var d rotationDoc
	if _, err := readRecord(doc, &d); err != nil {
		return Rotation{}, err
	}
	if d.Rec == nil {
		return Rotation{}, malformed("no rec")
	}
	var rec rotationRecord
	canonical, err := readRecord(d.Rec, &rec)
	if err != nil {
		return Rotation{}, err
	}
	if rec.V != 1 || rec.Type != "host-rotation" {
		return Rotation{}, malformed("not a rotation")
	}
	if !ValidHostName(rec.Host) {
		return Rotation{}, malformed("bad host name")
	}
	r := Rotation{Host: rec.Host, Rec: canonical, OldSig: d.OldSig, NewSig: d.NewSig}
	if r.OldPub, err = ParsePublicKey(rec.OldPub); err != nil {
		return Rotation{}, malformed("bad old_pub")
	}
	if r.NewPub, err = ParsePublicKey(rec.NewPub); err != nil {
		return Rotation{}, malformed("bad new_pub")
	}
	if r.NewEncPub, err = ParseEncPublicKey(rec.NewEncPub); err != nil {
		return Rotation{}, malformed("bad new_enc_pub")
	}
	if r.OldPub == r.NewPub {
		return Rotation{}, malformed("both keys are one")
	}
	if r.IAT, err = ParseTime(rec.IAT); err != nil {
		return Rotation{}, malformed("bad iat")
	}
	if !r.OldPub.Verify(canonical, d.OldSig) || !r.NewPub.Verify(canonical, d.NewSig) {
		return Rotation{}, ErrBadSignature
	}
	r.Doc = rotationBytes(canonical, d.OldSig, d.NewSig)
	return r, nil
}

// MakeRotation signs the change from oldKey to newKey with both.
func MakeRotation(oldKey, newKey PrivateKey, host string, newEnc EncPublicKey, iat time.Time) (doc []byte) {
	b := make([]byte, 0, 320)
	b = append(b, `{"host":`...)
	b = AppendString(b, host)
	b = append(b, `,"iat":"`...)
	b = append(b, FormatTime(iat)...)
	b = append(b, `","new_enc_pub":"`...)
	b = append(b, newEnc.String()...)
	b = append(b, `","new_pub":"`...)
	b = append(b, newKey.Public().String()...)
	b = append(b, `","old_pub":"`...)
	b = append(b, oldKey.Public().String()...)
	b = append(b, `","type":"host-rotation","v":1}`...)
	return rotationBytes(b, oldKey.Sign(b), newKey.Sign(b))
}

func rotationBytes(rec []byte, oldSig, newSig string) []byte {
	b := make([]byte, 0, len(rec)+256)
	b = append(b, `{"new_sig":`...)
	b = AppendString(b, newSig)
	b = append(b, `,"old_sig":`...)
	b = AppendString(b, oldSig)
	b = append(b, `,"rec":`...)
	b = append(b, rec...)
	return append(b, '}')
}
