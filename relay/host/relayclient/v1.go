package relayclient

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// V1EncKey asks a v1 relay for the sealing key of the host with this name.
func (c *Client) V1EncKey(ctx context.Context, caller Caller, host string) (EncKey, error) {
	return c.encKey(ctx, call{target: "/v1/relay/enc-key?host=" + url.QueryEscape(host), caller: &caller, noKey: true})
}

// V1Push hands sealed envelopes to a v1 relay. It took the first stored of
// them; reason is why it stopped there, "" when it took all. No envelopes make
// no call.
func (c *Client) V1Push(ctx context.Context, caller Caller, envelopes [][]byte) (stored int, reason string, err error) {
	if len(envelopes) == 0 {
		return 0, "", nil
	}
	body := append(append([]byte(`{"envelopes":[`), bytes.Join(envelopes, []byte(","))...), `]}`...)
	q := call{what: "v1 push", method: "POST", target: "/v1/relay/messages", body: body, caller: &caller, noKey: true, bound: smallAnswer}
	a, err := c.exchange(ctx, q)
	if err != nil {
		return 0, "", err
	}
	stored, reason, err = parseStored(a.body, len(envelopes))
	switch a.status {
	case http.StatusOK:
		return stored, reason, q.named(err)
	case http.StatusRequestEntityTooLarge:
		// Also the status of a body over the cap, which has no stored.
		if err == nil && stored == 0 && reason != "" {
			return 0, reason, nil
		}
	}
	return 0, "", q.refused(a)
}

func parseStored(body []byte, pushed int) (stored int, reason string, err error) {
	var a struct {
		Stored *int64  `json:"stored"`
		Error  *string `json:"error"`
	}
	if err := decode(body, &a); err != nil {
		return 0, "", err
	}
	if !counts(a.Stored) {
		return 0, "", errMembers
	}
	if *a.Stored > int64(pushed) {
		return 0, "", bad("more stored than was pushed")
	}
	return int(*a.Stored), printable(orNone(a.Error)), nil
}

// V1Pull reads one page of the caller's mail after a cursor, and the cursor to
// ack and go on from. An envelope is checked no further than that it is JSON,
// so that a bad one does not hold up the rest.
func (c *Client) V1Pull(ctx context.Context, caller Caller, after int64) (items []V1Item, cursor int64, err error) {
	q := call{
		what: "v1 pull", method: "GET", target: "/v1/relay/messages?after=" + strconv.FormatInt(after, 10),
		caller: &caller, noKey: true, bound: pageAnswer,
	}
	body, err := c.do(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	items, cursor, err = parseV1Page(body)
	return items, cursor, q.named(err)
}

func parseV1Page(body []byte) ([]V1Item, int64, error) {
	var a struct {
		Items  v1Items `json:"items"`
		Cursor *int64  `json:"cursor"`
	}
	// Not decode: an envelope may be nested as deep as a document, and then
	// the page around it is deeper than one may be.
	switch err := json.Unmarshal(body, &a); {
	case a.Items.over:
		return nil, 0, bad("more items than a page has")
	case err != nil:
		return nil, 0, fmt.Errorf("%w: not JSON, or of another type", ErrBadAnswer)
	case !a.Items.given || !counts(a.Cursor):
		return nil, 0, errMembers
	}
	return a.Items.list, *a.Cursor, nil
}

// v1Items reads the items of a v1 page.
type v1Items struct {
	given bool
	over  bool
	list  []V1Item
}

func (p *v1Items) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	p.given = true
	return elements(dec, func() error {
		if len(p.list) == maxPull {
			p.over = true
			return errMembers
		}
		var a struct {
			Seq      *int64   `json:"seq"`
			Envelope envelope `json:"envelope"`
			From     *string  `json:"from"`
		}
		if err := json.UnmarshalDecode(dec, &a); err != nil {
			return err
		}
		if !counts(a.Seq) || a.Envelope == nil || a.From == nil {
			return errMembers
		}
		p.list = append(p.list, V1Item{Seq: *a.Seq, Envelope: a.Envelope, From: *a.From})
		return nil
	})
}

// envelope is the raw JSON of one. What is wrong inside it is that envelope's
// fault, not the page's.
type envelope []byte

func (e *envelope) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var v jsontext.Value
	err := json.UnmarshalDecode(dec, &v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	*e = envelope(v)
	return err
}

// V1Ack tells a v1 relay to drop what it holds through a cursor.
func (c *Client) V1Ack(ctx context.Context, caller Caller, cursor int64) error {
	b := strconv.AppendInt([]byte(`{"cursor":`), cursor, 10)
	return c.tell(ctx, call{what: "v1 ack", method: "POST", target: "/v1/relay/ack", body: append(b, '}'), caller: &caller, noKey: true})
}
