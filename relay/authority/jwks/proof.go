package jwks

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// proof is what a host shows at enrolment (protocol §7).
type proof struct {
	token    string
	payload  jsontext.Value // of the certificate, as received
	sig      string
	cloudSig string
}

func readProof(doc jsontext.Value) (proof, bool) {
	var m struct {
		Token       jsontext.Value `json:"token"`
		Certificate jsontext.Value `json:"certificate"`
		CloudSig    jsontext.Value `json:"cloud_sig"`
	}
	var c struct {
		Payload jsontext.Value `json:"payload"`
		Sig     jsontext.Value `json:"sig"`
	}
	if !decodeObject(doc, &m) || !decodeObject(m.Certificate, &c) {
		return proof{}, false
	}
	token, sig, cloudSig := textOf(m.Token), textOf(c.Sig), textOf(m.CloudSig)
	return proof{token.s, c.Payload, sig.s, cloudSig.s}, token.is && sig.is && cloudSig.is && c.Payload != nil
}

// none reports whether a host sent no proof at all.
func none(doc []byte) bool {
	doc = bytes.TrimSpace(doc)
	return len(doc) == 0 || string(doc) == "null"
}

// certificate is a host's word that a cloud key is its own.
type certificate struct {
	read   bool // it has the shape of one
	host   wire.PublicKey
	cloud  wire.PublicKey
	aud    string
	signed bool // by host
}

// readCertificate takes the certificate at its word about whose it is, so that
// each thing that may be wrong with it can be told.
func readCertificate(payload jsontext.Value, sig string) certificate {
	var m struct {
		HostPub  string `json:"host_pub"`
		CloudPub string `json:"cloud_pub"`
		Aud      string `json:"aud"`
	}
	if !decodeObject(payload, &m) {
		return certificate{}
	}
	host, err := wire.ParsePublicKey(m.HostPub)
	if err != nil {
		return certificate{}
	}
	cloud, err := wire.ParsePublicKey(m.CloudPub)
	if err != nil {
		return certificate{}
	}
	_, err = wire.VerifyCloudCertificate(payload, sig, host)
	if err != nil && !errors.Is(err, wire.ErrBadSignature) {
		return certificate{}
	}
	return certificate{read: true, host: host, cloud: cloud, aud: m.Aud, signed: err == nil}
}
