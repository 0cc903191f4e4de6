package lan

import (
	"bytes"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Bounds of what a pairing says, in characters.
const (
	maxNonce = 128
	maxMAC   = 128
	maxAddr  = 255
)

func badShape(text string) error { return &refusal{http.StatusBadRequest, text} }

// parseList reads the list that is a member of the body: its elements as they
// stand there, byte for byte. They are slices of body. The whole body must be
// strict JSON; other members are ignored.
func parseList(body []byte, member string, most int) ([][]byte, error) {
	if wire.CheckJSON(body) != nil {
		return nil, badShape("bad json")
	}
	// The checks were made; from here on every read succeeds.
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, badShape("the body is not an object")
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, badShape("bad json")
		}
		if name.String() == member {
			return readList(dec, body, member, most)
		}
		if err := dec.SkipValue(); err != nil {
			return nil, badShape("bad json")
		}
	}
	return nil, badShape("no " + member)
}

// readList reads one list. It stops at the first element too many: what a list
// costs is bounded by what may be in it.
func readList(dec *jsontext.Decoder, body []byte, member string, most int) ([][]byte, error) {
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '[' {
		return nil, badShape(member + " is not a list")
	}
	var list [][]byte
	for dec.PeekKind() != ']' {
		if len(list) == most {
			return nil, badShape("too many " + member)
		}
		v, err := dec.ReadValue()
		if err != nil {
			return nil, badShape("bad json")
		}
		// v lives until the next read only. The capacity ends with the element, or
		// whoever appends to it would write into its neighbour.
		end := int(dec.InputOffset())
		list = append(list, body[end-len(v):end:end])
	}
	return list, nil
}

// joinBody is the body of POST /v1/pair/join.
type joinBody struct {
	V           int     `json:"v"`
	Host        string  `json:"host"`
	HostPubkey  string  `json:"host_pubkey"`
	OwnerPubkey *string `json:"owner_pubkey"` // null for none
	Nonce       string  `json:"nonce"`
	Addr        string  `json:"addr"`
	NonceA      string  `json:"nonce_a"`
	MAC         string  `json:"mac"`
}

// parseJoin reads a request to be paired. An addr without port is one, too: it
// means DefaultPort.
func parseJoin(body []byte) (JoinRequest, error) {
	var b joinBody
	if wire.Decode(body, &b) != nil {
		return JoinRequest{}, badShape("bad json")
	}
	j := JoinRequest{Host: b.Host, Nonce: b.Nonce, Addr: b.Addr, NonceA: b.NonceA, MAC: b.MAC}
	if b.V != 1 {
		return JoinRequest{}, badShape("bad v")
	}
	if !wire.ValidHostName(b.Host) {
		return JoinRequest{}, badShape("bad host name")
	}
	var err error
	if j.HostKey, err = wire.ParsePublicKey(b.HostPubkey); err != nil {
		return JoinRequest{}, badShape("bad host_pubkey")
	}
	if b.OwnerPubkey != nil {
		if _, err := wire.ParsePublicKey(*b.OwnerPubkey); err != nil {
			return JoinRequest{}, badShape("bad owner_pubkey")
		}
		j.OwnerKey = *b.OwnerPubkey
	}
	if !sized(b.Nonce, maxNonce) || !sized(b.NonceA, maxNonce) {
		return JoinRequest{}, badShape("bad nonce")
	}
	if !sized(b.MAC, maxMAC) {
		return JoinRequest{}, badShape("bad mac")
	}
	if b.Addr != "" {
		if _, err := NormalizeAddr(b.Addr); err != nil {
			return JoinRequest{}, badShape("bad addr")
		}
	}
	return j, nil
}

// sized reports whether s has 1 to most characters.
func sized(s string, most int) bool {
	return s != "" && wire.UTF16Len(s) <= most
}
