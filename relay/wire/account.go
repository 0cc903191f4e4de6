package wire

import (
	"strconv"
	"time"
)

// CloudCertificate is a host key's signed word that a cloud key is its own, for
// use at one relay.
type CloudCertificate struct {
	HostPub   PublicKey
	CloudPub  PublicKey
	Aud       string // the relay's public URL
	IAT       time.Time
	Canonical []byte // the payload, exactly what the signature covers
}

type cloudRecord struct {
	V        int    `json:"v"`
	Type     string `json:"type"`
	HostPub  string `json:"host_pub"`
	CloudPub string `json:"cloud_pub"`
	Aud      string `json:"aud"`
	IAT      int64  `json:"iat"`
}

// MakeCloudCertificate certifies cloud for use at the relay of this URL.
func MakeCloudCertificate(host PrivateKey, cloud PublicKey, aud string, iat time.Time) (payload []byte, sig string) {
	b := make([]byte, 0, 256)
	b = append(b, `{"aud":`...)
	b = AppendString(b, aud)
	b = append(b, `,"cloud_pub":"`...)
	b = append(b, cloud.String()...)
	b = append(b, `","host_pub":"`...)
	b = append(b, host.Public().String()...)
	b = append(b, `","iat":`...)
	b = strconv.AppendInt(b, iat.Unix(), 10)
	b = append(b, `,"type":"cloud-key","v":1}`...)
	return b, host.Sign(b)
}

// VerifyCloudCertificate checks a certificate that host is said to have signed.
// An error matches ErrMalformed or ErrBadSignature. Audience and age are the
// caller's to check.
func VerifyCloudCertificate(payload []byte, sig string, host PublicKey) (CloudCertificate, error) {
	var r cloudRecord
	canonical, err := readRecord(payload, &r)
	if err != nil {
		return CloudCertificate{}, err
	}
	if r.V != 1 || r.Type != "cloud-key" || r.Aud == "" || r.IAT <= 0 || r.IAT > maxSafeInteger {
		return CloudCertificate{}, malformed("not a cloud certificate")
	}
	c := CloudCertificate{Aud: r.Aud, IAT: time.Unix(r.IAT, 0).UTC(), Canonical: canonical}
	if c.HostPub, err = ParsePublicKey(r.HostPub); err != nil || c.HostPub != host {
		return CloudCertificate{}, malformed("the certificate of another host")
	}
	if c.CloudPub, err = ParsePublicKey(r.CloudPub); err != nil {
		return CloudCertificate{}, malformed("bad cloud_pub")
	}
	if !host.Verify(canonical, sig) {
		return CloudCertificate{}, ErrBadSignature
	}
	return c, nil
}

// CloudProofPayload is what the cloud key signs at enrolment, so that a stolen
// token cannot be bound to another host.
func CloudProofPayload(challenge string, host, cloud PublicKey, aud string) []byte {
	return []byte("agentmbx-cloud-pop-v1\n" + challenge + "\n" + host.String() + "\n" + cloud.String() + "\n" + aud)
}

// SignCloudProof signs the proof of possession with the cloud key.
func SignCloudProof(cloud PrivateKey, challenge string, host PublicKey, aud string) (sig string) {
	return cloud.Sign(CloudProofPayload(challenge, host, cloud.Public(), aud))
}

// VerifyCloudProof reports whether the cloud key signed the proof of possession.
func VerifyCloudProof(cloud PublicKey, sig, challenge string, host PublicKey, aud string) bool {
	return cloud.Verify(CloudProofPayload(challenge, host, cloud, aud), sig)
}
