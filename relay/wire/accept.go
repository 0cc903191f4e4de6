package wire

import (
	"encoding/hex"
	"strconv"
	"time"
)

// Accept is a relay's signed word that it holds an item: what lets a sender
// drop its own row. Its JSON form is the accept member of a push result.
type Accept struct {
	V            int            `json:"v"`
	Type         string         `json:"type"`
	RelayPubkey  PublicKey      `json:"relay_pubkey"`
	Epoch        string         `json:"epoch"`
	SenderPubkey PublicKey      `json:"sender_pubkey"`
	ItemID       string         `json:"item_id"`
	Targets      []AcceptTarget `json:"targets"`
	At           string         `json:"at"` // FormatTime of the first acceptance
}

// AcceptTarget is where one copy of the item stands.
type AcceptTarget struct {
	HostPubkey PublicKey `json:"host_pubkey"`
	Seq        int64     `json:"seq"`
	WireHash   string    `json:"wire_hash"`
}

// NewAccept fills in an accept for an item that the relay took at the time at.
func NewAccept(relay PublicKey, epoch string, sender PublicKey, itemID string, targets []AcceptTarget, at time.Time) Accept {
	return Accept{
		V: 1, Type: "relay-accept", RelayPubkey: relay, Epoch: epoch, SenderPubkey: sender,
		ItemID: itemID, Targets: targets, At: FormatTime(at),
	}
}

// Canonical is what the relay signs.
func (a Accept) Canonical() []byte {
	b := make([]byte, 0, 384+len(a.ItemID)+192*len(a.Targets))
	b = append(b, `{"at":`...)
	b = AppendString(b, a.At)
	b = append(b, `,"epoch":`...)
	b = AppendString(b, a.Epoch)
	b = append(b, `,"item_id":`...)
	b = AppendString(b, a.ItemID)
	b = append(b, `,"relay_pubkey":"`...)
	b = append(b, a.RelayPubkey.String()...)
	b = append(b, `","sender_pubkey":"`...)
	b = append(b, a.SenderPubkey.String()...)
	b = append(b, `","targets":[`...)
	for i, t := range a.Targets {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"host_pubkey":"`...)
		b = append(b, t.HostPubkey.String()...)
		b = append(b, `","seq":`...)
		b = strconv.AppendInt(b, t.Seq, 10)
		b = append(b, `,"wire_hash":`...)
		b = AppendString(b, t.WireHash)
		b = append(b, '}')
	}
	b = append(b, `],"type":`...)
	b = AppendString(b, a.Type)
	b = append(b, `,"v":`...)
	b = strconv.AppendInt(b, int64(a.V), 10)
	return append(b, '}')
}

// SignAccept returns the canonical accept, which is also its JSON, and the relay's signature.
func SignAccept(relay PrivateKey, a Accept) (canonical []byte, sig string) {
	canonical = a.Canonical()
	return canonical, relay.Sign(canonical)
}

// VerifyAccept checks an accept as received. It returns an error that matches
// ErrMalformed for anything but an accept of this relay, and ErrBadSignature
// for one it did not sign. Whether it is about the caller's item is the caller's to check.
func VerifyAccept(raw []byte, sig string, relay PublicKey) (Accept, error) {
	var a Accept
	canonical, err := readRecord(raw, &a)
	if err != nil {
		return Accept{}, err
	}
	if a.V != 1 || a.Type != "relay-accept" {
		return Accept{}, malformed("not an accept")
	}
	if a.RelayPubkey != relay {
		return Accept{}, malformed("an accept of another relay")
	}
	if a.SenderPubkey.IsZero() || a.Epoch == "" || !ValidItemID(a.ItemID) || len(a.Targets) == 0 {
		return Accept{}, malformed("an accept of nothing")
	}
	for _, t := range a.Targets {
		if t.HostPubkey.IsZero() || t.Seq < 0 || t.Seq > maxSafeInteger || !validHash(t.WireHash) {
			return Accept{}, malformed("bad target")
		}
	}
	if _, err := ParseTime(a.At); err != nil {
		return Accept{}, malformed("bad time")
	}
	if !relay.Verify(canonical, sig) {
		return Accept{}, ErrBadSignature
	}
	return a, nil
}

func validHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'F' {
			return false
		}
	}
	_, err := hex.DecodeString(s)
	return err == nil
}
