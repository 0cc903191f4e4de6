package relayclient

import (
	"bytes"
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Bounds of a pull.
const (
	maxPull    = 10_000
	maxWait    = 25 * time.Second
	maxItem    = 4 << 20             // wire bytes; no relay can be set to take more
	itemAnswer = maxItem/3*4 + 4<<10 // such an item in a page
	itemAround = 2 << 10             // of that without the wire bytes
	maxRaw     = 1 << 20             // kept of what is no base64
)

// pageBound is how large a page of up to limit items may be.
func pageBound(limit int) int64 {
	return smallAnswer + min(int64(limit)*itemAnswer, pageAnswer+int64(limit)*itemAround)
}

// Pull reads one page of the caller's queue: up to limit items after a sequence
// number. With a wait, in whole seconds and at most 25, the relay holds an empty
// answer that long; with an epoch it refuses unless that is the current one.
//
// The items are in the order in which they came. One whose wire bytes are no
// base64 is among them with WireOK false, so that it does not hold up the rest;
// any other fault of the page is ErrBadAnswer.
func (c *Client) Pull(ctx context.Context, caller Caller, after int64, limit int, epoch string, wait time.Duration) (Page, error) {
	limit = max(1, min(limit, maxPull))
	seconds := int(max(0, min(wait, maxWait)) / time.Second)
	target := "/v2/relay/items?after=" + strconv.FormatInt(after, 10) + "&limit=" + strconv.Itoa(limit)
	if epoch != "" {
		target += "&epoch=" + url.QueryEscape(epoch)
	}
	if seconds > 0 {
		target += "&wait=" + strconv.Itoa(seconds)
	}
	q := call{
		what: "pull", method: "GET", target: target, caller: &caller, wait: time.Duration(seconds) * time.Second,
		bound: pageBound(limit),
	}
	body, err := c.do(ctx, q)
	if err != nil {
		return Page{}, err
	}
	p, err := parsePage(body, limit)
	return p, q.named(err)
}

func parsePage(body []byte, limit int) (Page, error) {
	a := struct {
		Epoch   *string   `json:"epoch"`
		HeadSeq *int64    `json:"head_seq"`
		Items   pageItems `json:"items"`
		LastSeq *int64    `json:"last_seq"`
		More    *bool     `json:"more"`
	}{Items: pageItems{limit: limit}}
	err := decode(body, &a)
	switch {
	case a.Items.over:
		return Page{}, bad("more items than were asked for")
	case err != nil:
		return Page{}, err
	case !label(a.Epoch) || !counts(a.HeadSeq, a.LastSeq) || !a.Items.given || a.More == nil:
		return Page{}, errMembers
	}
	return Page{Epoch: *a.Epoch, HeadSeq: *a.HeadSeq, LastSeq: *a.LastSeq, More: *a.More, Items: a.Items.list}, nil
}

// pageItems reads the items of a page.
type pageItems struct {
	limit int
	given bool
	over  bool
	list  []PulledItem
}

func (p *pageItems) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	p.given = true
	return elements(dec, func() error {
		if len(p.list) == p.limit {
			p.over = true
			return errMembers
		}
		it, err := readItem(dec)
		p.list = append(p.list, it)
		return err
	})
}

func readItem(dec *jsontext.Decoder) (PulledItem, error) {
	var a struct {
		Seq    *int64   `json:"seq"`
		Kind   *string  `json:"kind"`
		ItemID *string  `json:"item_id"`
		Sender *string  `json:"sender_pubkey"`
		Wire   wireText `json:"wire_b64"`
	}
	if err := json.UnmarshalDecode(dec, &a); err != nil {
		return PulledItem{}, err
	}
	if !counts(a.Seq) || a.Kind == nil || a.ItemID == nil || a.Sender == nil || !a.Wire.given {
		return PulledItem{}, errMembers
	}
	return PulledItem{
		Seq: *a.Seq, Kind: *a.Kind, ID: *a.ItemID, Sender: *a.Sender,
		Wire: a.Wire.wire, WireOK: a.Wire.wire != nil, Raw: a.Wire.raw,
	}, nil
}

// wireText reads wire bytes out of the document, without a copy of their text.
type wireText struct {
	given bool
	wire  []byte // nil when the text is no base64 of anything
	raw   []byte // the text, then
}

func (w *wireText) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '"' {
		return errMembers
	}
	quoted, err := dec.ReadValue()
	if err != nil {
		return err
	}
	w.given = true
	text := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		if text, err = jsontext.AppendUnquote(nil, quoted); err != nil {
			return err
		}
	}
	if b, err := wire.DecodeBase64(string(text)); err == nil && len(b) > 0 {
		w.wire = b
		return nil
	}
	w.raw = bytes.Clone(text[:min(len(text), maxRaw)])
	return nil
}

// Ack tells the relay to drop what it holds through a sequence number.
func (c *Client) Ack(ctx context.Context, caller Caller, epoch string, through int64) (Acked, error) {
	b := wire.AppendString([]byte(`{"epoch":`), epoch)
	b = strconv.AppendInt(append(b, `,"through":`...), through, 10)
	q := call{what: "ack", method: "POST", target: "/v2/relay/ack", body: append(b, '}'), caller: &caller, bound: smallAnswer}
	body, err := c.do(ctx, q)
	if err != nil {
		return Acked{}, err
	}
	a, err := parseAcked(body)
	return a, q.named(err)
}

func parseAcked(body []byte) (Acked, error) {
	var a struct {
		AckedThrough *int64 `json:"acked_through"`
		Deleted      *int64 `json:"deleted"`
		HeadSeq      *int64 `json:"head_seq"`
	}
	if err := decode(body, &a); err != nil {
		return Acked{}, err
	}
	if !counts(a.AckedThrough, a.Deleted, a.HeadSeq) {
		return Acked{}, errMembers
	}
	return Acked{AckedThrough: *a.AckedThrough, Deleted: *a.Deleted, HeadSeq: *a.HeadSeq}, nil
}
