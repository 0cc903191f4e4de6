package lan

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestHello(t *testing.T) {
	r := newRig(t)
	body := r.want(http.StatusOK, r.request("GET", "/v1/pair/hello", ""))
	if !strings.Contains(body, `"owner_pubkey":null`) || !strings.Contains(body, `"v":1`) {
		t.Errorf("got %s; want v 1 and a null owner", body)
	}
	first, err := r.client.Hello(t.Context(), r.addr)
	if err != nil || first.Host != "home" || first.HostKey != r.keys["home"].Public() || first.OwnerKey != "" {
		t.Errorf("got %+v, %v", first, err)
	}
	if b, err := base64.RawURLEncoding.DecodeString(first.Nonce); err != nil || len(b) != 16 {
		t.Errorf("got nonce %q; want 16 bytes of base64url", first.Nonce)
	}
	owner := r.keys["cloud"].Public().String()
	r.node.id.OwnerKey = owner
	second, err := r.client.Hello(t.Context(), r.addr)
	if err != nil || second.OwnerKey != owner || second.Nonce == first.Nonce {
		t.Errorf("got %+v, %v; want the owner and a new nonce", second, err)
	}
}

func TestJoin(t *testing.T) {
	r := newRig(t)
	r.node.id.OwnerKey = r.keys["cloud"].Public().String()
	h, err := r.client.Hello(t.Context(), r.addr)
	if err != nil {
		t.Fatal(err)
	}
	j := JoinRequest{
		Host: "Work.lan", HostKey: r.keys["work"].Public(), OwnerKey: r.keys["stranger"].Public().String(),
		Nonce: "nönce", Addr: "[2001:db8::1]:7373", NonceA: h.Nonce, MAC: "cccc",
	}
	host, mac, err := r.client.Join(t.Context(), r.addr, j)
	if err != nil || host != "home" || mac != "mac-of-the-answer" {
		t.Fatalf("got %s, %s, %v", host, mac, err)
	}
	got := r.node.joins[0]
	transcript := wire.Transcript(
		wire.PairSide{Host: "home", HostKey: h.HostKey, OwnerKey: h.OwnerKey, Nonce: h.Nonce},
		wire.PairSide{Host: j.Host, HostKey: j.HostKey, OwnerKey: j.OwnerKey, Nonce: j.Nonce, Addr: j.Addr})
	if got.Host != j.Host || got.HostKey != j.HostKey || got.OwnerKey != j.OwnerKey || got.Addr != j.Addr || got.MAC != j.MAC {
		t.Errorf("got %+v; want %+v", got, j)
	}
	if string(got.Transcript) != string(transcript) {
		t.Errorf("got transcript %s; want %s", got.Transcript, transcript)
	}
}

func TestJoinShapes(t *testing.T) {
	key := map[bool]string{true: strings.Repeat("A", 43) + "=", false: strings.Repeat("A", 42) + "B="}
	for _, tc := range []struct {
		name   string
		change map[string]any
		status int
	}{
		{"all right", map[string]any{}, 200},
		{"a member more", map[string]any{"more": 1}, 200},
		{"no owner", map[string]any{"owner_pubkey": nil}, 200},
		{"an owner", map[string]any{"owner_pubkey": key[true]}, 200},
		{"no addr", map[string]any{"addr": nil}, 200},
		{"empty addr", map[string]any{"addr": ""}, 200},
		{"addr without port", map[string]any{"addr": "work.lan"}, 200},
		{"longest nonce", map[string]any{"nonce": strings.Repeat("n", 128)}, 200},
		{"longest addr", map[string]any{"addr": strings.Repeat("a", 249) + ":65535"}, 200},

		{"no v", map[string]any{"v": nil}, 400},
		{"v 2", map[string]any{"v": 2}, 400},
		{"v a string", map[string]any{"v": "1"}, 400},
		{"no host", map[string]any{"host": nil}, 400},
		{"bad host", map[string]any{"host": "wo rk"}, 400},
		{"host a number", map[string]any{"host": 7}, 400},
		{"long host", map[string]any{"host": strings.Repeat("h", 64)}, 400},
		{"no key", map[string]any{"host_pubkey": nil}, 400},
		{"second spelling of a key", map[string]any{"host_pubkey": key[false]}, 400},
		{"owner empty", map[string]any{"owner_pubkey": ""}, 400},
		{"second spelling of an owner", map[string]any{"owner_pubkey": key[false]}, 400},
		{"owner a number", map[string]any{"owner_pubkey": 7}, 400},
		{"no nonce", map[string]any{"nonce": nil}, 400},
		{"empty nonce", map[string]any{"nonce": ""}, 400},
		{"long nonce", map[string]any{"nonce": strings.Repeat("n", 129)}, 400},
		{"no nonce_a", map[string]any{"nonce_a": nil}, 400},
		{"long nonce_a", map[string]any{"nonce_a": strings.Repeat("n", 129)}, 400},
		{"no mac", map[string]any{"mac": nil}, 400},
		{"long mac", map[string]any{"mac": strings.Repeat("m", 129)}, 400},
		{"long addr", map[string]any{"addr": strings.Repeat("a", 250) + ":65535"}, 400},
		{"port 0", map[string]any{"addr": "work.lan:0"}, 400},
		{"not an addr", map[string]any{"addr": "http://work.lan:7373/"}, 400},
		{"addr with a line", map[string]any{"addr": "work\n.lan:7373"}, 400},

		{"unknown nonce_a", map[string]any{"nonce_a": "aaaa"}, 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.want(tc.status, r.request("POST", "/v1/pair/join", r.joinBody(tc.change)))
			if heard := len(r.node.joins) == 1; heard != (tc.status == 200) {
				t.Errorf("the node heard of it: %v", heard)
			}
		})
	}
	r := newRig(t)
	for _, body := range []string{``, `[]`, `null`, `{`, `{"v":1,"v":1}`, strings.Replace(r.joinBody(nil), `"bbbb"`, `"\ud800"`, 1)} {
		r.want(http.StatusBadRequest, r.request("POST", "/v1/pair/join", body))
	}
}

func TestNonceSingleUse(t *testing.T) {
	r := newRig(t)
	body := r.joinBody(nil)
	r.want(http.StatusOK, r.request("POST", "/v1/pair/join", body))
	r.want(http.StatusUnauthorized, r.request("POST", "/v1/pair/join", body))

	// A wrong token uses the nonce up, too; a bad shape does not.
	body = r.joinBody(nil)
	r.want(http.StatusBadRequest, r.request("POST", "/v1/pair/join", strings.Replace(body, `"mac":"cccc"`, `"mac":""`, 1)))
	r.node.err = ErrRefused
	r.want(http.StatusUnauthorized, r.request("POST", "/v1/pair/join", body))
	r.node.err = nil
	r.want(http.StatusUnauthorized, r.request("POST", "/v1/pair/join", body))
	if len(r.node.joins) != 2 {
		t.Errorf("the node heard of %d joins; want 2", len(r.node.joins))
	}
}

func TestNonceLife(t *testing.T) {
	for age, status := range map[time.Duration]int{
		2*time.Minute - time.Millisecond: 200, 2 * time.Minute: 401, -time.Second: 401,
	} {
		r := newRig(t)
		var h struct{ Nonce string }
		if err := json.Unmarshal([]byte(r.want(200, r.request("GET", "/v1/pair/hello", ""))), &h); err != nil {
			t.Fatal(err)
		}
		r.clock.add(age)
		r.want(status, r.request("POST", "/v1/pair/join", r.joinBody(map[string]any{"nonce_a": h.Nonce})))
	}
}

func TestNoncesAreBounded(t *testing.T) {
	n := newNonces()
	for i := range maxNonces + 1 {
		n.add(fmt.Sprint(i), day)
	}
	if len(n.given) != maxNonces || len(n.order) != maxNonces {
		t.Errorf("got %d open of %d; want %d", len(n.given), len(n.order), maxNonces)
	}
	if n.use("0", day) || !n.use("1", day) || n.use("1", day) || !n.use("1000", day) {
		t.Error("want the oldest dropped and no other")
	}
	n.add("later", day.Add(nonceLife))
	if len(n.given) != 1 || len(n.order) != 1 {
		t.Errorf("got %d open of %d after their life; want 1", len(n.given), len(n.order))
	}
}
