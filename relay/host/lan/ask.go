package lan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func unreadable(text string) error { return errors.New("unreadable answer: " + text) }

// Status asks whether an AgentMBX host answers at addr, and which.
func (c *Client) Status(ctx context.Context, addr string) (Status, error) {
	var s Status
	if err := c.do(ctx, nil, http.MethodGet, addr, "/v1/status", nil, &s); err != nil {
		return Status{}, err
	}
	switch {
	case s.Service != service:
		return Status{}, unreadable("not an agentmbx host")
	case !wire.ValidHostName(s.Host):
		return Status{}, unreadable("bad host name")
	case s.HostPubkey.IsZero():
		return Status{}, unreadable("bad host_pubkey")
	}
	s.Version, s.StartedAt = printable(s.Version, maxText), printable(s.StartedAt, maxText)
	return s, nil
}

// Hello asks for what a join needs.
func (c *Client) Hello(ctx context.Context, addr string) (Hello, error) {
	var a helloAnswer
	if err := c.do(ctx, nil, http.MethodGet, addr, "/v1/pair/hello", nil, &a); err != nil {
		return Hello{}, err
	}
	if a.V != 1 || !wire.ValidHostName(a.Host) {
		return Hello{}, unreadable("bad v or host name")
	}
	key, err := wire.ParsePublicKey(a.HostPubkey)
	if err != nil {
		return Hello{}, unreadable("bad host_pubkey")
	}
	h := Hello{Host: a.Host, HostKey: key, Nonce: a.Nonce}
	if a.OwnerPubkey != nil {
		if _, err := wire.ParsePublicKey(*a.OwnerPubkey); err != nil {
			return Hello{}, unreadable("bad owner_pubkey")
		}
		h.OwnerKey = *a.OwnerPubkey
	}
	if !sized(a.Nonce, maxNonce) {
		return Hello{}, unreadable("bad nonce")
	}
	return h, nil
}

// Join asks to be paired. The MAC of the answer is the caller's to check.
func (c *Client) Join(ctx context.Context, addr string, j JoinRequest) (host, mac string, err error) {
	body, err := json.Marshal(joinBody{
		V: 1, Host: j.Host, HostPubkey: j.HostKey.String(), OwnerPubkey: orNull(j.OwnerKey),
		Nonce: j.Nonce, Addr: j.Addr, NonceA: j.NonceA, MAC: j.MAC,
	})
	if err != nil {
		return "", "", err
	}
	var a joinAnswer
	if err := c.do(ctx, nil, http.MethodPost, addr, "/v1/pair/join", body, &a); err != nil {
		return "", "", err
	}
	if a.V != 1 || !wire.ValidHostName(a.Host) {
		return "", "", unreadable("bad v or host name")
	}
	if !sized(a.MAC, maxMAC) {
		return "", "", unreadable("bad mac")
	}
	return a.Host, a.MAC, nil
}

// Rotate sends signed rotations. It returns what was answered, printable and
// cut, for as many as were answered.
func (c *Client) Rotate(ctx context.Context, addr string, records [][]byte) ([]string, error) {
	return askList[string](ctx, c, nil, addr, "/v1/rotate", "records", MaxRotations, records)
}

// Envelopes sends mail. It returns what was answered, each result printable and
// cut, for as many as were answered; a result that names another envelope than
// the one at its place is empty, as is one that is null.
func (c *Client) Envelopes(ctx context.Context, who Caller, addr string, envelopes [][]byte) ([]Result, error) {
	got, err := askList[Result](ctx, c, &who, addr, "/v2/envelopes", "envelopes", MaxEnvelopes, envelopes)
	if err != nil {
		return nil, err
	}
	for i := range got {
		var sent struct {
			ID string `json:"id"`
		}
		if wire.Decode(envelopes[i], &sent) != nil || got[i].ID != sent.ID {
			got[i] = Result{}
		}
		got[i].Result = printable(got[i].Result, maxText)
	}
	return got, nil
}

// Receipts sends delivery receipts. It returns what was answered, printable and
// cut, for as many as were answered.
func (c *Client) Receipts(ctx context.Context, who Caller, addr string, receipts [][]byte) ([]string, error) {
	return askList[string](ctx, c, &who, addr, "/v1/receipts", "receipts", MaxReceipts, receipts)
}

// EncKey asks for the other host's sealing key. Whether its host key signed it
// is the caller's to check.
func (c *Client) EncKey(ctx context.Context, who Caller, addr string) (host string, pub wire.EncPublicKey, sig string, err error) {
	var a encKeyAnswer
	if err := c.do(ctx, &who, http.MethodGet, addr, "/v1/enc-key", nil, &a); err != nil {
		return "", wire.EncPublicKey{}, "", err
	}
	if a.V != 1 || !wire.ValidHostName(a.Host) {
		return "", wire.EncPublicKey{}, "", unreadable("bad v or host name")
	}
	if pub, err = wire.ParseEncPublicKey(a.EncPub); err != nil {
		return "", wire.EncPublicKey{}, "", unreadable("bad enc_pub")
	}
	if b, err := wire.DecodeBase64(a.Sig); err != nil || len(b) != 64 {
		return "", wire.EncPublicKey{}, "", unreadable("bad sig")
	}
	return a.Host, pub, a.Sig, nil
}

// Unpair tells the other host to drop the caller.
func (c *Client) Unpair(ctx context.Context, who Caller, addr string) error {
	return c.do(ctx, &who, http.MethodPost, addr, "/v1/unpair", nil, nil)
}

// askList sends a list of JSON documents, each as it is, and returns the
// results, at most one for each. An answer without a list of results is
// unreadable, not short: nothing is known to be refused by it.
func askList[T any](ctx context.Context, c *Client, who *Caller, addr, path, member string, most int, list [][]byte) ([]T, error) {
	if len(list) > most {
		return nil, fmt.Errorf("%d %s, at most %d in one call", len(list), member, most)
	}
	for i, doc := range list {
		if err := wire.CheckJSON(doc); err != nil { // or it could change what stands around it
			return nil, fmt.Errorf("%s %d: %w", member, i, err)
		}
	}
	body := []byte(`{"` + member + `":[`)
	body = append(body, bytes.Join(list, []byte{','})...)
	body = append(body, "]}"...)
	var a struct {
		Results *[]T `json:"results"`
	}
	if err := c.do(ctx, who, http.MethodPost, addr, path, body, &a); err != nil {
		return nil, err
	}
	if a.Results == nil {
		return nil, unreadable("no results")
	}
	got := *a.Results
	got = got[:min(len(got), len(list))]
	if texts, ok := any(got).([]string); ok {
		for i := range texts {
			texts[i] = printable(texts[i], maxText)
		}
	}
	return got, nil
}
