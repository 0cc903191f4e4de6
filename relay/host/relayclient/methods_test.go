package relayclient_test

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

var us = wiretest.NewHost("alpha")

// proof is a secret that no error may repeat.
const proof = `{"token":"eyJhbGciOiJFZERTQSJ9.very-secret-account-token.c2lnbmF0dXJl"}`

// A method is one call, with an answer that it takes.
type method struct {
	name string
	good string
	call func(ctx context.Context, c *relayclient.Client) error
}

func methods() []method {
	key, who, id := us.Pub().String(), caller(us), "01HZZZZZZZZZZZZZZZZZZZZZZZ"
	info := `{"v":2,"relay_pubkey":"` + key + `","epoch":"e","version":"1","limits":{}`
	encKey := `{"host":"alpha","host_pubkey":"` + key + `","enc_pub":"` + key + `"}`
	return []method{
		{"Info", info + `}`, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.Info(ctx, nil)
			return err
		}},
		{"InfoSigned", info + `,"you":{"host":"alpha","pubkey":"` + key + `","head_seq":1,"acked_through":0,"enc_ad":null}}`, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.Info(ctx, &who)
			return err
		}},
		{"Challenge", `{"challenge":"c"}`, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.Challenge(ctx, who)
			return err
		}},
		{"Enrol", `{"ok":true}`, func(ctx context.Context, c *relayclient.Client) error {
			return c.Enrol(ctx, who, "", "c", jsontext.Value(proof))
		}},
		{"Rotate", `{"moved":0}`, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.Rotate(ctx, []byte(`{}`))
			return err
		}},
		{"Push", `{"results":[{"item_id":"` + id + `","status":"rejected:rate","targets":[]}]}`, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.Push(ctx, who, []relayclient.Item{{Kind: "envelope", ID: id, Wire: []byte("x")}})
			return err
		}},
		{"Pull", `{"epoch":"e","head_seq":1,"items":[{"seq":1,"kind":"envelope","item_id":"x","sender_pubkey":"y","wire_b64":"eA=="}],"last_seq":1,"more":false}`, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.Pull(ctx, who, 0, 500, "e", time.Second)
			return err
		}},
		{"Ack", `{"acked_through":1,"deleted":1,"head_seq":1}`, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.Ack(ctx, who, "e", 1)
			return err
		}},
		{"PublishSenders", `{"ok":true}`, func(ctx context.Context, c *relayclient.Client) error {
			return c.PublishSenders(ctx, who, []byte(`{}`), "s")
		}},
		{"PublishEncAd", `{"ok":true}`, func(ctx context.Context, c *relayclient.Client) error {
			return c.PublishEncAd(ctx, who, []byte(`{}`), "s")
		}},
		{"PublishEncKeyV1", `{"ok":true}`, func(ctx context.Context, c *relayclient.Client) error {
			return c.PublishEncKeyV1(ctx, who, us.Enc.Public(), "s")
		}},
		{"EncKey", encKey, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.EncKey(ctx, who, us.Pub())
			return err
		}},
		{"V1EncKey", encKey, func(ctx context.Context, c *relayclient.Client) error {
			_, err := c.V1EncKey(ctx, who, "beta")
			return err
		}},
		{"V1Push", `{"stored":1}`, func(ctx context.Context, c *relayclient.Client) error {
			_, _, err := c.V1Push(ctx, who, [][]byte{[]byte(`{}`)})
			return err
		}},
		{"V1Pull", `{"items":[{"seq":1,"envelope":{},"from":"beta"}],"cursor":1}`, func(ctx context.Context, c *relayclient.Client) error {
			_, _, err := c.V1Pull(ctx, who, 0)
			return err
		}},
		{"V1Ack", `{"ok":true}`, func(ctx context.Context, c *relayclient.Client) error {
			return c.V1Ack(ctx, who, 1)
		}},
	}
}
