package lan

import (
	"bytes"
	"testing"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"envelopes":[]}`, `{"envelopes":[{"id":"a"} , 7,"x",null,[[]]]}`, `{"x":{"envelopes":[1]},"\u0065nvelopes":[{}]}`,
		`{"envelopes":[1,2,3,4,5,6,7,8,9]}`, `{"envelopes":[{"a":1,"a":2}]}`, `{"envelopes":["\ud800"]}`, `[]`, ``, "\ufeff{}",
		`{"v":1,"host":"work","host_pubkey":"mYicUuf2X90cNTVZI+5IupRnLkq86d+DhtsgOTmETCk=","owner_pubkey":null,"nonce":"n","addr":"192.0.2.7:7373","nonce_a":"n","mac":"m"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if list, err := parseList(body, "envelopes", 8); err == nil {
			if wire.CheckJSON(body) != nil || len(list) > 8 {
				t.Fatalf("accepted %q: %d elements", body, len(list))
			}
			for _, doc := range list {
				if wire.CheckJSON(doc) != nil || !bytes.Equal(doc, bytes.TrimSpace(doc)) || !bytes.Contains(body, doc) {
					t.Fatalf("%q: got element %q", body, doc)
				}
			}
			// The same elements in a body of their own are the same list.
			again := []byte(`{"envelopes":[` + string(bytes.Join(list, []byte{','})) + `]}`)
			if got, err := parseList(again, "envelopes", 8); err != nil || !equalLists(got, list) {
				t.Fatalf("%q: got %q, %v; want %q", again, got, err, list)
			}
		}
		if j, err := parseJoin(body); err == nil {
			side := wire.PairSide{Host: j.Host, HostKey: j.HostKey, OwnerKey: j.OwnerKey, Nonce: j.Nonce, Addr: j.Addr}
			transcript := wire.Transcript(side, side)
			if canonical, err := wire.Canonical(transcript); err != nil || !bytes.Equal(canonical, transcript) {
				t.Fatalf("%q: got transcript %q, %v", body, transcript, err)
			}
		}
	})
}
