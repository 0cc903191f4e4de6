package wire

import (
	"bytes"
	"time"
)

// Lifetimes of an encryption-key advertisement.
const (
	EncAdLifetime    = 30 * 24 * time.Hour // of one that is published
	EncAdMaxLifetime = 90 * 24 * time.Hour // of one that is accepted
)

// Reasons to refuse an advertisement, in the order they are looked for.
const (
	AdUnsigned     = "unsigned"
	AdMalformed    = "malformed"
	AdWrongPeer    = "wrong peer"
	AdBadSignature = "bad signature"
	AdNotYetValid  = "not yet valid"
	AdExpired      = "expired"
	AdTooLong      = "lifetime over the maximum"
)

// AdError says why an advertisement was refused.
type AdError struct{ Reason string }

func (e *AdError) Error() string { return "enc ad refused: " + e.Reason }

// EncAd is a host's signed and expiring advertisement of its sealing key.
type EncAd struct {
	Host      string
	HostKey   PublicKey
	EncPub    EncPublicKey
	IAT, Exp  time.Time
	Canonical []byte // the record, exactly what Sig covers
	Sig       string
}

type encAdRecord struct {
	V          int    `json:"v"`
	Type       string `json:"type"`
	Host       string `json:"host"`
	HostPubkey string `json:"host_pubkey"`
	EncPub     string `json:"enc_pub"`
	IAT        string `json:"iat"`
	Exp        string `json:"exp"`
}

// ParseEncAd checks an advertisement that the host of this name and key is said
// to have signed. Every error is an *AdError.
func ParseEncAd(ad []byte, sig string, host string, key PublicKey, now time.Time) (EncAd, error) {
	refuse := func(reason string) (EncAd, error) { return EncAd{}, &AdError{reason} }
	if trimmed := bytes.TrimSpace(ad); sig == "" || len(trimmed) == 0 || string(trimmed) == "null" {
		return refuse(AdUnsigned)
	}
	var r encAdRecord
	canonical, err := readRecord(ad, &r)
	if err != nil || r.V != 2 || r.Type != "enc-ad" || !ValidHostName(r.Host) {
		return refuse(AdMalformed)
	}
	a := EncAd{Host: r.Host, Canonical: canonical, Sig: sig}
	if a.HostKey, err = ParsePublicKey(r.HostPubkey); err != nil {
		return refuse(AdMalformed)
	}
	if a.EncPub, err = ParseEncPublicKey(r.EncPub); err != nil {
		return refuse(AdMalformed)
	}
	if a.IAT, err = ParseTime(r.IAT); err != nil {
		return refuse(AdMalformed)
	}
	if a.Exp, err = ParseTime(r.Exp); err != nil {
		return refuse(AdMalformed)
	}
	switch {
	case a.HostKey != key || FoldName(a.Host) != FoldName(host):
		return refuse(AdWrongPeer)
	case !key.Verify(canonical, sig):
		return refuse(AdBadSignature)
	case a.IAT.After(now.Add(MaxAhead)):
		return refuse(AdNotYetValid)
	case !a.Exp.After(now):
		return refuse(AdExpired)
	case a.Exp.Sub(a.IAT) > EncAdMaxLifetime:
		return refuse(AdTooLong)
	case !a.Exp.After(a.IAT):
		return refuse(AdMalformed)
	}
	return a, nil
}

// MakeEncAd signs an advertisement that lives from iat to exp.
func MakeEncAd(key PrivateKey, host string, encPub EncPublicKey, iat, exp time.Time) (ad []byte, sig string) {
	b := make([]byte, 0, 320)
	b = append(b, `{"enc_pub":"`...)
	b = append(b, encPub.String()...)
	b = append(b, `","exp":"`...)
	b = append(b, FormatTime(exp)...)
	b = append(b, `","host":`...)
	b = AppendString(b, host)
	b = append(b, `,"host_pubkey":"`...)
	b = append(b, key.Public().String()...)
	b = append(b, `","iat":"`...)
	b = append(b, FormatTime(iat)...)
	b = append(b, `","type":"enc-ad","v":2}`...)
	return b, key.Sign(b)
}
