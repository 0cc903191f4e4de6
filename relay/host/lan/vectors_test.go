package lan

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestHopVectorsAtTheServer(t *testing.T) {
	r := newRig(t)
	var list []struct{ Key, Method, Path, TS, Body, Payload, Sig string }
	wiretest.LoadVector(t, "lan-hop.json", &list)
	if len(list) == 0 {
		t.Fatal("no examples")
	}
	for _, e := range list {
		for _, query := range []string{"", "?q=1"} { // a query is not signed
			req := r.request(e.Method, e.Path+query, e.Body)
			req.Header.Set(wire.HeaderHost, e.Key)
			req.Header.Set(wire.HeaderTS, e.TS)
			req.Header.Set(wire.HeaderSig, e.Sig)
			r.want(http.StatusOK, req)
		}
	}
}

func TestHopVectorsOfTheClient(t *testing.T) {
	keys := wiretest.Keys(t)
	var list []struct{ Key, Method, Path, TS, Body, Payload, Sig string }
	wiretest.LoadVector(t, "lan-hop.json", &list)
	for _, e := range list {
		var got *http.Request
		var body []byte
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r
			body, _ = io.ReadAll(r.Body)
			io.WriteString(w, `{"results":[]}`)
		}))
		c := NewClient((&clock{t: day}).now)
		who := Caller{Host: e.Key, Key: keys[e.Key], Port: 7373}
		addr := hs.Listener.Addr().String()
		if e.Path == "/v1/enc-key" {
			_, _, _, _ = c.EncKey(context.Background(), who, addr) // the answer is not one
		} else if _, err := c.Envelopes(context.Background(), who, addr, nil); err != nil {
			t.Error(err)
		}
		c.Close()
		hs.Close()
		if got == nil || got.Method != e.Method || got.URL.Path != e.Path || string(body) != e.Body {
			t.Fatalf("%s: got %v %q; want %s %s %q", e.Path, got, body, e.Method, e.Path, e.Body)
		}
		h := got.Header
		if h.Get("x-mbx-host") != e.Key || h.Get("x-mbx-ts") != e.TS || h.Get("x-mbx-sig") != e.Sig || h.Get("x-mbx-port") != "7373" {
			t.Errorf("%s: got %v; want %s %s", e.Path, h, e.TS, e.Sig)
		}
	}
}

func TestPairingVector(t *testing.T) {
	r := newRig(t)
	var v struct {
		KeyHex     string `json:"key_hex"`
		Transcript string `json:"transcript"`
		JoinMAC    string `json:"join_mac"`
		AcceptMAC  string `json:"accept_mac"`
	}
	wiretest.LoadVector(t, "pairing.json", &v)
	key, err := hex.DecodeString(v.KeyHex)
	if err != nil {
		t.Fatal(err)
	}
	node := &pairingNode{fakeNode: r.node, key: [32]byte(key)}
	r.server.node = node
	const nonceA = "bm9uY2UtYS1ub25jZS1h"
	r.server.nonces.add(nonceA, day)
	host, mac, err := r.client.Join(context.Background(), r.addr, JoinRequest{
		Host: "work", HostKey: r.keys["work"].Public(), Nonce: "bm9uY2UtYi1ub25jZS1i",
		Addr: "192.0.2.7:7373", NonceA: nonceA, MAC: v.JoinMAC,
	})
	if err != nil || host != "home" || mac != v.AcceptMAC {
		t.Errorf("got %s, %s, %v; want home, %s", host, mac, err, v.AcceptMAC)
	}
	if node.transcript != v.Transcript {
		t.Errorf("got transcript %s; want %s", node.transcript, v.Transcript)
	}
}

// pairingNode knows the pairing key.
type pairingNode struct {
	*fakeNode
	key        [32]byte
	transcript string
}

func (n *pairingNode) Join(_ context.Context, j Join) (string, error) {
	n.transcript = string(j.Transcript)
	if !wire.CheckPairingMAC(n.key, wire.PairJoin, j.Transcript, j.MAC) {
		return "", ErrRefused
	}
	return wire.PairingMAC(n.key, wire.PairAccept, j.Transcript), nil
}
