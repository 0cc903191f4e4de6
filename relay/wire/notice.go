package wire

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// ExpiryNotice is the relay's signed word that it dropped an item unread.
type ExpiryNotice struct {
	ItemID     string
	Target     PublicKey
	AcceptedAt time.Time
	ExpiredAt  time.Time
}

// ID is the item id that the notice travels under.
func (n ExpiryNotice) ID() string { return "expired:" + n.ItemID + ":" + n.Target.String() }

type noticeDoc struct {
	Notice jsontext.Value `json:"notice"`
	Sig    string         `json:"sig"`
}

type noticeRecord struct {
	V            int    `json:"v"`
	Type         string `json:"type"`
	ItemID       string `json:"item_id"`
	TargetPubkey string `json:"target_pubkey"`
	AcceptedAt   string `json:"accepted_at"`
	ExpiredAt    string `json:"expired_at"`
}

// MakeExpiryNotice signs a notice and returns it as an item: its id and its wire bytes.
func MakeExpiryNotice(relay PrivateKey, itemID string, target PublicKey, acceptedAt, expiredAt time.Time) (id string, wire []byte) {
	b := make([]byte, 0, 512)
	b = append(b, `{"accepted_at":"`...)
	b = append(b, FormatTime(acceptedAt)...)
	b = append(b, `","expired_at":"`...)
	b = append(b, FormatTime(expiredAt)...)
	b = append(b, `","item_id":`...)
	b = AppendString(b, itemID)
	b = append(b, `,"target_pubkey":"`...)
	b = append(b, target.String()...)
	b = append(b, `","type":"relay-expired","v":1}`...)

	wire = make([]byte, 0, len(b)+128)
	wire = append(wire, `{"notice":`...)
	wire = append(wire, b...)
	wire = append(wire, `,"sig":"`...)
	wire = append(wire, relay.Sign(b)...)
	wire = append(wire, `"}`...)
	return ExpiryNotice{ItemID: itemID, Target: target}.ID(), wire
}

// ParseExpiryNotice checks the wire bytes of a notice against the relay's key.
// An error matches ErrMalformed or ErrBadSignature.
func ParseExpiryNotice(wire []byte, relay PublicKey) (ExpiryNotice, error) {
	var d noticeDoc
	if _, err := readRecord(wire, &d); err != nil {
		return ExpiryNotice{}, err
	}
	if d.Notice == nil {
		return ExpiryNotice{}, malformed("no notice")
	}
	var r noticeRecord
	canonical, err := readRecord(d.Notice, &r)
	if err != nil {
		return ExpiryNotice{}, err
	}
	if r.V != 1 || r.Type != "relay-expired" || !ValidItemID(r.ItemID) {
		return ExpiryNotice{}, malformed("not an expiry notice")
	}
	n := ExpiryNotice{ItemID: r.ItemID}
	if n.Target, err = ParsePublicKey(r.TargetPubkey); err != nil {
		return ExpiryNotice{}, malformed("bad target_pubkey")
	}
	if n.AcceptedAt, err = ParseTime(r.AcceptedAt); err != nil {
		return ExpiryNotice{}, malformed("bad accepted_at")
	}
	if n.ExpiredAt, err = ParseTime(r.ExpiredAt); err != nil {
		return ExpiryNotice{}, malformed("bad expired_at")
	}
	if !relay.Verify(canonical, d.Sig) {
		return ExpiryNotice{}, ErrBadSignature
	}
	return n, nil
}
