package relayclient

import (
	"context"
	"encoding/base64"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// maxBatch is how many items a relay can be set to take at once.
const maxBatch = 10_000

// Push hands items to the relay. The results are in the order of items, one
// for each; where the relay's answer has none, or one of another item, it is
// the zero PushResult. No items make no call.
func (c *Client) Push(ctx context.Context, caller Caller, items []Item) ([]PushResult, error) {
	if len(items) == 0 {
		return nil, nil
	}
	q := call{
		what: "push", method: "POST", target: "/v2/relay/items", body: pushBody(items), caller: &caller,
		bound: max(pushAnswer, int64(len(items))*resultAnswer),
	}
	body, err := c.do(ctx, q)
	if err != nil {
		return nil, err
	}
	results, err := parseResults(body, items)
	return results, q.named(err)
}

// pushBody is written by hand, into a buffer that is made once.
func pushBody(items []Item) []byte {
	size := 16
	for i := range items {
		size += 160 + len(items[i].Kind) + len(items[i].ID) + base64.StdEncoding.EncodedLen(len(items[i].Wire))
	}
	b := append(make([]byte, 0, size), `{"items":[`...)
	for i := range items {
		it := &items[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = wire.AppendString(append(b, `{"kind":`...), it.Kind)
		b = wire.AppendString(append(b, `,"item_id":`...), it.ID)
		b = append(b, `,"targets":[{"host_pubkey":"`...)
		b = base64.StdEncoding.AppendEncode(b, it.Target[:])
		b = append(b, `","wire_b64":"`...)
		b = base64.StdEncoding.AppendEncode(b, it.Wire)
		b = append(b, `"}]}`...)
	}
	return append(b, `]}`...)
}

func parseResults(body []byte, items []Item) ([]PushResult, error) {
	a := struct {
		Results results `json:"results"`
	}{results{items: items}}
	if err := decode(body, &a); err != nil {
		return nil, err
	}
	if a.Results.out == nil {
		return nil, errMembers
	}
	return a.Results.out, nil
}

// results reads the results of items, each at its place.
type results struct {
	items []Item
	out   []PushResult // as many as items, once it was there
}

func (r *results) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	r.out = make([]PushResult, len(r.items))
	i := 0
	return elements(dec, func() error {
		if i >= len(r.items) {
			return dec.SkipValue()
		}
		res, err := readResult(dec)
		if err == nil && res.ItemID == r.items[i].ID {
			r.out[i] = res
		}
		i++
		return err
	})
}

func readResult(dec *jsontext.Decoder) (PushResult, error) {
	var a struct {
		ItemID  *string        `json:"item_id"`
		Status  *string        `json:"status"`
		Targets array          `json:"targets"`
		Accept  jsontext.Value `json:"accept"`
		Sig     *string        `json:"sig"`
	}
	if err := json.UnmarshalDecode(dec, &a); err != nil {
		return PushResult{}, err
	}
	if a.ItemID == nil || a.Status == nil || !a.Targets.given {
		return PushResult{}, errMembers
	}
	return PushResult{
		ItemID: *a.ItemID, Status: printable(*a.Status), Accept: valueOrNone(a.Accept), Sig: orNone(a.Sig),
	}, nil
}

// array is a member that has to be an array and is not looked into.
type array struct{ given bool }

func (a *array) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '[' {
		return errMembers
	}
	a.given = true
	return dec.SkipValue()
}

// elements calls element at each value of an array, which it has to read.
func elements(dec *jsontext.Decoder, element func() error) error {
	if dec.PeekKind() != '[' {
		return errMembers
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != ']' {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}
