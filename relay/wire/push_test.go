package wire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestParsePush(t *testing.T) {
	key := wiretest.NewHost("x").Pub()
	target := `{"host_pubkey":"` + key.String() + `","wire_b64":"e30="}`
	items, err := wire.ParsePush([]byte(` {"other":[1],"items":[ {"kind":"envelope","item_id":"a\u00e9","more":{},"targets":[`+target+`]},
		{"kind":"receipt","item_id":"b","targets":[`+target+`,`+target+`]}]} `), 2, 2)
	if err != nil || len(items) != 2 {
		t.Fatalf("got %+v, %v", items, err)
	}
	if it := items[0]; it.ID != "aé" || !it.IDOK || it.Kind != "envelope" || !it.TargetsOK || len(it.Targets) != 1 ||
		it.Targets[0].Key != key || !it.Targets[0].KeyOK || !it.Targets[0].WireOK || string(it.Targets[0].Wire) != "{}" {
		t.Errorf("got %+v", it)
	}
	if len(items[1].Targets) != 2 || items[1].Kind != "receipt" {
		t.Errorf("got %+v", items[1])
	}

	batches := []struct {
		name, body string
		want       error
		n          int
	}{
		{"empty", ``, wire.ErrBadJSON, 0}, {"cut", `{"items":[`, wire.ErrBadJSON, 0}, {"trailing", `{"items":[]}x`, wire.ErrBadJSON, 0},
		{"duplicate items", `{"items":[],"items":[]}`, wire.ErrBadJSON, 0}, {"duplicate in an item", `{"items":[{"a":1,"a":1}]}`, wire.ErrBadJSON, 0},
		{"lone surrogate", `{"items":[{"item_id":"\ud800"}]}`, wire.ErrBadJSON, 0}, {"invalid UTF-8", "{\"items\":[\"\xff\"]}", wire.ErrBadJSON, 0},
		{"too deep", `{"items":[` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `]}`, wire.ErrBadJSON, 0},
		{"null", `null`, wire.ErrBadBatch, 0}, {"array", `[]`, wire.ErrBadBatch, 0}, {"no items", `{}`, wire.ErrBadBatch, 0},
		{"items null", `{"items":null}`, wire.ErrBadBatch, 0}, {"items an object", `{"items":{}}`, wire.ErrBadBatch, 0},
		{"Items", `{"Items":[]}`, wire.ErrBadBatch, 0}, {"over", `{"items":[1,2,3]}`, wire.ErrBadBatch, 0},
		{"none", `{"items":[]}`, nil, 0}, {"odd ones", `{"items":[null,[]]}`, nil, 2},
	}
	for _, tt := range batches {
		items, err := wire.ParsePush([]byte(tt.body), 2, 2)
		if !errors.Is(err, tt.want) || len(items) != tt.n || err != nil && items != nil {
			t.Errorf("%s: got %v, %v; want %d, %v", tt.name, items, err, tt.n, tt.want)
		}
	}

	lenient := []struct {
		name, item      string
		idOK, targetsOK bool
		targets         int
		keyOK, wireOK   bool
	}{
		{"no object", `7`, false, false, 0, false, false},
		{"id a number", `{"item_id":7,"targets":[` + target + `]}`, false, true, 1, true, true},
		{"targets a string", `{"item_id":"a","targets":"x"}`, true, false, 0, false, false},
		{"no target", `{"item_id":"a","targets":[]}`, true, false, 0, false, false},
		{"too many targets", `{"item_id":"a","targets":[` + target + `,` + target + `,` + target + `]}`, true, false, 0, false, false},
		{"target no object", `{"item_id":"a","targets":[7]}`, true, true, 1, false, false},
		{"key short", `{"item_id":"a","targets":[{"host_pubkey":"AAAA","wire_b64":"e30="}]}`, true, true, 1, false, true},
		{"wire absent", `{"item_id":"a","targets":[{"host_pubkey":"` + key.String() + `"}]}`, true, true, 1, true, false},
		{"wire empty", `{"item_id":"a","targets":[{"wire_b64":""}]}`, true, true, 1, false, false},
		{"wire a number", `{"item_id":"a","targets":[{"wire_b64":7}]}`, true, true, 1, false, false},
		{"wire unpadded", `{"item_id":"a","targets":[{"wire_b64":"e30"}]}`, true, true, 1, false, false},
		{"wire loose bits", `{"item_id":"a","targets":[{"wire_b64":"e31="}]}`, true, true, 1, false, false},
		{"wire url alphabet", `{"item_id":"a","targets":[{"wire_b64":"__-_"}]}`, true, true, 1, false, false},
		{"wire with line break", `{"item_id":"a","targets":[{"wire_b64":"e3\n0="}]}`, true, true, 1, false, false},
		{"wire with line breaks", `{"item_id":"a","targets":[{"wire_b64":"e30=\n\n\n\n"}]}`, true, true, 1, false, false},
		{"wire only line breaks", `{"item_id":"a","targets":[{"wire_b64":"\n\n\n\n"}]}`, true, true, 1, false, false},
		{"wire escaped", `{"item_id":"a","targets":[{"wire_b64":"\u00653\u0030="}]}`, true, true, 1, false, true},
	}
	for _, tt := range lenient {
		items, err := wire.ParsePush([]byte(`{"items":[`+tt.item+`]}`), 2, 2)
		if err != nil || len(items) != 1 {
			t.Errorf("%s: got %v, %v", tt.name, items, err)
			continue
		}
		it := items[0]
		ok := it.IDOK == tt.idOK && it.TargetsOK == tt.targetsOK && len(it.Targets) == tt.targets
		if ok && tt.targets == 1 {
			ok = it.Targets[0].KeyOK == tt.keyOK && it.Targets[0].WireOK == tt.wireOK
		}
		if !ok {
			t.Errorf("%s: got %+v", tt.name, it)
		}
	}
}

func TestParseV1Push(t *testing.T) {
	wires, err := wire.ParseV1Push([]byte(`{"envelopes":[ { "v" : 3 } ,null]}`), 2)
	if err != nil || len(wires) != 2 || string(wires[0]) != `{ "v" : 3 }` || string(wires[1]) != "null" {
		t.Errorf("got %s, %v", wires, err)
	}
	for body, want := range map[string]error{
		`{"envelopes":[1,2,3]}`: wire.ErrBadBatch, `{"envelopes":{}}`: wire.ErrBadBatch, `{}`: wire.ErrBadBatch, `7`: wire.ErrBadBatch,
		`{"envelopes":[`: wire.ErrBadJSON, `{"envelopes":[{"a":1,"a":1}]}`: wire.ErrBadJSON, ``: wire.ErrBadJSON,
	} {
		if wires, err := wire.ParseV1Push([]byte(body), 2); !errors.Is(err, want) || wires != nil {
			t.Errorf("%q: got %s, %v; want %v", body, wires, err, want)
		}
	}
}
