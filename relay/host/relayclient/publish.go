package relayclient

import (
	"context"
	"net/url"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// PublishSenders tells the relay whom the caller accepts mail from, by a list
// it signed.
func (c *Client) PublishSenders(ctx context.Context, caller Caller, list []byte, sig string) error {
	return c.publish(ctx, caller, "publish the sender list", "/v2/relay/senders", "list", list, sig)
}

// PublishEncAd publishes the caller's sealing key as a signed advertisement.
func (c *Client) PublishEncAd(ctx context.Context, caller Caller, ad []byte, sig string) error {
	return c.publish(ctx, caller, "publish the sealing key", "/v2/relay/enc-key", "ad", ad, sig)
}

// PublishEncKeyV1 publishes the caller's sealing key for older senders.
func (c *Client) PublishEncKeyV1(ctx context.Context, caller Caller, pub wire.EncPublicKey, sig string) error {
	return c.publish(ctx, caller, "publish the v1 sealing key", "/v1/relay/enc-key", "enc_pub", wire.AppendString(nil, pub.String()), sig)
}

// publish sends {member: record, "sig": sig}. The record goes as it is: its
// signature covers what it holds.
func (c *Client) publish(ctx context.Context, caller Caller, what, target, member string, record []byte, sig string) error {
	b := make([]byte, 0, len(record)+len(sig)+64)
	b = wire.AppendString(append(b, '{'), member)
	b = append(append(b, ':'), record...)
	b = wire.AppendString(append(b, `,"sig":`...), sig)
	return c.tell(ctx, call{what: what, method: "POST", target: target, body: append(b, '}'), caller: &caller})
}

// EncKey asks what the relay holds of the sealing key of the host with this
// key. It is answered as received: whose it is, only its signatures tell.
func (c *Client) EncKey(ctx context.Context, caller Caller, key wire.PublicKey) (EncKey, error) {
	return c.encKey(ctx, call{target: "/v2/relay/enc-key?pubkey=" + url.QueryEscape(key.String()), caller: &caller})
}

func (c *Client) encKey(ctx context.Context, q call) (EncKey, error) {
	q.what, q.method, q.bound = "look up a sealing key", "GET", smallAnswer
	body, err := c.do(ctx, q)
	if err != nil {
		return EncKey{}, err
	}
	k, err := parseEncKey(body)
	return k, q.named(err)
}

func parseEncKey(body []byte) (EncKey, error) {
	var a struct {
		Host    *string        `json:"host"`
		HostKey *string        `json:"host_pubkey"`
		EncPub  *string        `json:"enc_pub"`
		Sig     *string        `json:"sig"`
		Ad      jsontext.Value `json:"ad"`
		AdSig   *string        `json:"ad_sig"`
	}
	if err := decode(body, &a); err != nil {
		return EncKey{}, err
	}
	if a.Host == nil || a.HostKey == nil || a.EncPub == nil {
		return EncKey{}, errMembers
	}
	return EncKey{
		Host: *a.Host, HostKey: *a.HostKey, EncPub: *a.EncPub, Sig: orNone(a.Sig), Ad: valueOrNone(a.Ad), AdSig: orNone(a.AdSig),
	}, nil
}
