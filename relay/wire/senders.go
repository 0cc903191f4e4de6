package wire

import (
	"time"
)

// MaxSenders is how many keys a sender list may hold.
const MaxSenders = 1024

// SenderList is the list of sender keys that a host accepts mail from.
type SenderList struct {
	Senders   []PublicKey // each once, in the order of the list
	IAT       time.Time
	Canonical []byte // the record, exactly what Sig covers
	Sig       string
}

type senderRecord struct {
	V          int      `json:"v"`
	Type       string   `json:"type"`
	HostPubkey string   `json:"host_pubkey"`
	Senders    []string `json:"senders"`
	IAT        string   `json:"iat"`
}

// ParseSenderList checks a sender list that target is said to have signed. An
// error matches ErrMalformed (bad shape, another host's list, more than
// MaxSenders keys, an iat more than MaxAhead of now) or ErrBadSignature.
func ParseSenderList(list []byte, sig string, target PublicKey, now time.Time) (SenderList, error) {
	var r senderRecord
	canonical, err := readRecord(list, &r)
	if err != nil {
		return SenderList{}, err
	}
	if r.V != 1 || r.Type != "relay-senders" || r.Senders == nil {
		return SenderList{}, malformed("not a sender list")
	}
	host, err := ParsePublicKey(r.HostPubkey)
	if err != nil || host != target {
		return SenderList{}, malformed("the list of another host")
	}
	if len(r.Senders) > MaxSenders {
		return SenderList{}, malformed("too many keys")
	}
	l := SenderList{Senders: make([]PublicKey, 0, len(r.Senders)), Canonical: canonical, Sig: sig}
	seen := make(map[PublicKey]struct{}, len(r.Senders))
	for _, s := range r.Senders {
		k, err := ParsePublicKey(s)
		if err != nil {
			return SenderList{}, malformed("a sender is not a key")
		}
		if _, dup := seen[k]; !dup {
			seen[k] = struct{}{}
			l.Senders = append(l.Senders, k)
		}
	}
	if l.IAT, err = ParseTime(r.IAT); err != nil {
		return SenderList{}, malformed("bad iat")
	}
	if l.IAT.After(now.Add(MaxAhead)) {
		return SenderList{}, malformed("iat is in the future")
	}
	if !target.Verify(canonical, sig) {
		return SenderList{}, ErrBadSignature
	}
	return l, nil
}

// MakeSenderList signs the list of senders that the host of key accepts.
func MakeSenderList(key PrivateKey, senders []PublicKey, iat time.Time) (list []byte, sig string) {
	b := make([]byte, 0, 160+48*len(senders))
	b = append(b, `{"host_pubkey":"`...)
	b = append(b, key.Public().String()...)
	b = append(b, `","iat":"`...)
	b = append(b, FormatTime(iat)...)
	b = append(b, `","senders":[`...)
	for i, s := range senders {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, s.String()...)
		b = append(b, '"')
	}
	b = append(b, `],"type":"relay-senders","v":1}`...)
	return b, key.Sign(b)
}
