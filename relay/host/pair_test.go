package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// serves is the address of a LAN server of a host that lives as long as the
// test: joining needs the nonces of the hello before.
func (h *testHost) serves() string {
	s := httptest.NewServer(lan.NewServer(lan.Options{Node: h.Host, Version: "test", Now: h.opts.Now}).Handler())
	h.w.t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// token makes a pairing token.
func (h *testHost) token(life time.Duration) string {
	h.w.t.Helper()
	token, err := h.NewPairToken(h.w.t.Context(), life)
	noError(h.w.t, err)
	return token
}

// join joins a host's with a token.
func (h *testHost) join(addr, token string) error {
	_, err := h.JoinPeer(h.w.t.Context(), addr, token, h.addr)
	return err
}

// peersOf lists the names of a host's peers.
func peersOf(h *testHost) string {
	var names []string
	for _, p := range must(h.Peers(h.w.t.Context())) {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// isError checks what an error matches.
func isError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v; want %v", what, got, want)
	}
}

// A token pairs both sides, in any spelling, once; mail goes both ways.
func TestPairing(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	at := alpha.serves()
	token := alpha.token(TokenLife)
	noError(t, beta.join(at, " "+strings.ToLower(strings.ReplaceAll(token, "-", ""))+" "))
	same(t, "alpha's peers", peersOf(alpha), "beta")
	same(t, "beta's peers", peersOf(beta), "alpha")
	same(t, "beta's key at alpha", must(alpha.Peers(t.Context()))[0].Key, beta.Key())
	same(t, "alpha's key at beta", must(beta.Peers(t.Context()))[0].Key, alpha.Key())
	same(t, "beta's address at alpha", must(alpha.Peers(t.Context()))[0].Addr, beta.addr)

	isError(t, "the token used twice", gamma.join(at, token), ErrPairRefused)
	same(t, "alpha's peers", peersOf(alpha), "beta")
	same(t, "gamma's peers", peersOf(gamma), "")
	for _, way := range [][2]*testHost{{alpha, beta}, {beta, alpha}} {
		way[0].send(way[1], "hello")
		same(t, "sent", way[0].tick().LAN.Sent, 1)
		same(t, "inbox", way[1].inbox(), 1)
	}
	same(t, "tokens kept", alpha.count("pair_tokens"), 0)
}

func TestPairingTokenEnds(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	at := alpha.serves()
	for _, life := range []time.Duration{0, -time.Minute, MaxTokenLife + time.Millisecond} {
		_, err := alpha.NewPairToken(t.Context(), life)
		isError(t, life.String(), err, ErrBadTokenLife)
	}
	token := alpha.token(TokenLife)
	w.pass(TokenLife)
	isError(t, "ten minutes later", beta.join(at, token), ErrPairRefused)

	token = alpha.token(TokenLife)
	w.pass(-2 * MaxTokenLife)
	isError(t, "with the clock set back by hours", beta.join(at, token), ErrPairRefused)
	token = alpha.token(TokenLife)
	w.pass(TokenLife - time.Millisecond)
	noError(t, beta.join(at, token))
}

// Five wrong answers burn a token; four do not.
func TestPairingTokenBurns(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	at := alpha.serves()
	guess := func(n int) {
		for range n {
			_, err := alpha.Join(ctx, lan.Join{Host: "mallory", HostKey: w.relay.key.Public(), Transcript: []byte("{}"), MAC: "guess"})
			isError(t, "a guess", err, lan.ErrRefused)
		}
	}
	token := alpha.token(TokenLife)
	guess(4)
	noError(t, beta.join(at, token))
	must(alpha.RemovePeer(ctx, "beta"))
	beta.sql("DELETE FROM peers")

	token = alpha.token(TokenLife)
	guess(5)
	isError(t, "after five", beta.join(at, token), ErrPairRefused)
	same(t, "alpha's peers", peersOf(alpha), "")
	same(t, "beta's peers", peersOf(beta), "")
}

// Names and keys are paired once; with the same key the address is renewed.
func TestPairingConflicts(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta, other := w.host("alpha"), w.host("beta"), w.host("Beta")
	at := alpha.serves()
	noError(t, beta.join(at, alpha.token(TokenLife)))

	token := alpha.token(TokenLife)
	err := other.join(at, token)
	isError(t, "the name with another key", err, ErrTaken)
	hasPart(t, "what to do", err.Error(), "agentmbx peers remove Beta")
	same(t, "the other's peers", peersOf(other), "")
	same(t, "beta's key at alpha", must(alpha.Peers(ctx))[0].Key, beta.Key())

	// The refusal used nothing up.
	alpha.sql("UPDATE peers SET addr = ?, lan_failures = 7", deadAddr)
	noError(t, beta.join(at, token))
	same(t, "the same again: address", must(alpha.Peers(ctx))[0].Addr, beta.addr)
	same(t, "the same again: reachable", must(alpha.Peers(ctx))[0].Reachable, true)
	same(t, "paired", alpha.audited("peer.paired"), 1)

	// The same key under another name.
	token = alpha.token(TokenLife)
	noError(t, writeConfig(beta.opts.Home, Config{V: 1, Host: "renamed"}))
	beta.reopen()
	isError(t, "the key under another name", beta.join(at, token), ErrTaken)
	same(t, "alpha's peers", peersOf(alpha), "beta")

	isError(t, "itself", alpha.join(at, token), ErrTaken)
}

// Who has the name taken finds out before the other side has paired.
func TestPairingConflictOfTheJoiner(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	beta.pin(w.host("alpha"), deadAddr)
	at := alpha.serves()
	token := alpha.token(TokenLife)
	isError(t, "join", beta.join(at, token), ErrTaken)
	same(t, "alpha's peers", peersOf(alpha), "")
	must(beta.RemovePeer(t.Context(), "alpha"))
	noError(t, beta.join(at, token))
}

// Somebody in between gets neither side paired with a key of his own.
func TestPairingWithSomebodyInBetween(t *testing.T) {
	mallorys := must(wire.GenerateKey()).Public().String()
	for _, tc := range []struct {
		name, path   string
		change       func(body map[string]any)
		request      bool // what goes to alpha is changed, else what comes back
		alphaRefuses bool
	}{
		{"another key in the hello", "/v1/pair/hello", func(b map[string]any) { b["host_pubkey"] = mallorys }, false, true},
		{"another name in the hello", "/v1/pair/hello", func(b map[string]any) { b["host"] = "mallory" }, false, true},
		{"another key in the join", "/v1/pair/join", func(b map[string]any) { b["host_pubkey"] = mallorys }, true, true},
		{"another address in the join", "/v1/pair/join", func(b map[string]any) { b["addr"] = "192.0.2.1:7373" }, true, true},
		{"another MAC in the answer", "/v1/pair/join", func(b map[string]any) { b["mac"] = strings.Repeat("A", 43) }, false, false},
		{"another name in the answer", "/v1/pair/join", func(b map[string]any) { b["host"] = "mallory" }, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			proxy := httputil.NewSingleHostReverseProxy(must(url.Parse("http://" + alpha.serves())))
			proxy.ModifyResponse = func(res *http.Response) error {
				if res.Request.URL.Path != tc.path || tc.request || res.StatusCode != http.StatusOK {
					return nil
				}
				res.Header.Del("Content-Length")
				res.ContentLength = -1
				res.Body = changed(t, res.Body, tc.change)
				return nil
			}
			between := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
				if in.URL.Path == tc.path && tc.request {
					in.Body = changed(t, in.Body, tc.change)
					in.ContentLength = -1
				}
				proxy.ServeHTTP(out, in)
			}))
			defer between.Close()
			err := beta.join(between.Listener.Addr().String(), alpha.token(TokenLife))
			if err == nil {
				t.Error("got no error; want it refused")
			}
			same(t, "alpha refuses", errors.Is(err, ErrPairRefused), tc.alphaRefuses)
			same(t, "beta's peers", peersOf(beta), "")
			if tc.alphaRefuses {
				same(t, "alpha's peers", peersOf(alpha), "")
			}
		})
	}
}

// changed is a JSON body with a change.
func changed(t *testing.T, body io.ReadCloser, change func(map[string]any)) io.ReadCloser {
	t.Helper()
	var b map[string]any
	if err := json.NewDecoder(body).Decode(&b); err != nil {
		t.Error(err)
	}
	body.Close()
	change(b)
	return io.NopCloser(strings.NewReader(string(must(json.Marshal(b)))))
}

// Who drops a peer tells it; both forget, waiting mail comes back to its sender.
func TestUnpairing(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	alpha.send(beta, "one")
	alpha.tick()
	alpha.send(beta, "two")
	beta.send(alpha, "three")
	n, err := alpha.RemovePeer(ctx, "BETA")
	noError(t, err)
	same(t, "undelivered", n, 1)
	same(t, "alpha's peers", peersOf(alpha), "")
	same(t, "beta's peers", peersOf(beta), "")
	sameList(t, "alpha's alerts", alpha.alerts("builder"), "Undelivered to beta: two")
	sameList(t, "beta's alerts", beta.alerts("builder"), "Undelivered to alpha: three")
	same(t, "beta's receipts", beta.count("receipts_out"), 0)
	same(t, "outboxes", alpha.outbox()+beta.outbox(), 0)
	same(t, "beta's record of it", beta.audited("peer.unpaired"), 1)
	_, err = alpha.RemovePeer(ctx, "beta")
	isError(t, "again", err, ErrNoPeer)
	_, err = beta.Send(ctx, Draft{To: []string{"builder@alpha"}, Subject: "too late"})
	isError(t, "mail for it", err, ErrNoPeer)

	// They can pair again.
	noError(t, beta.join(alpha.serves(), alpha.token(TokenLife)))
	beta.send(alpha, "hello again")
	same(t, "sent", beta.tick().LAN.Sent, 1)
}

// A peer that can't be told is dropped all the same, and finds out at its next call.
func TestUnpairingOutOfReach(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	beta.lanUp.Store(false)
	must(alpha.RemovePeer(t.Context(), "beta"))
	same(t, "alpha's peers", peersOf(alpha), "")
	same(t, "beta's peers", peersOf(beta), "alpha")
	beta.send(alpha, "hello")
	r := beta.tick().LAN
	same(t, "sent", r.Sent, 0)
	same(t, "failed", r.Failed, 1)
	same(t, "alpha's inbox", alpha.inbox(), 0)
	same(t, "alpha pairs nobody by it", peersOf(alpha), "")
}

// Where a call came from is not signed. It takes the place of an address only
// when that one fails, and never by a call that is not newer than the last.
func TestAddressOfAPeer(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	ctx := context.Background()
	who := lan.Peer{Name: "beta", Key: beta.Key()}
	addr := func() string { return ask[string](alpha, "SELECT addr FROM peers") }
	w.pass(time.Second)
	alpha.Seen(ctx, who, "192.0.2.9:1", w.clock())
	same(t, "while the known one works", addr(), beta.addr)

	alpha.sql("UPDATE peers SET addr = ?", deadAddr)
	alpha.Seen(ctx, who, beta.addr, w.clock()) // the same call once more, from elsewhere
	alpha.send(beta, "one")
	alpha.tick()
	same(t, "after a failure: the one that was seen", addr(), "192.0.2.9:1")

	alpha.sql("UPDATE peers SET addr = ?, lan_bad = 1", deadAddr)
	alpha.Seen(ctx, who, beta.addr, w.clock())
	same(t, "a replay", addr(), deadAddr)
	w.pass(time.Second)
	alpha.Seen(ctx, who, beta.addr, w.clock())
	same(t, "a newer call, while the known one fails", addr(), beta.addr)
	w.pass(time.Minute)
	same(t, "sent", alpha.tick().LAN.Sent, 1)
}

// Mail for a mailbox that nobody here made does not make it one for bare names:
// a peer could take this host's mail with it.
func TestPeersMakeNoMailboxesForBareNames(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	ctx := context.Background()
	noError(t, beta.AddMailbox(ctx, "builder", nil))
	if _, err := beta.Send(ctx, Draft{To: []string{"builder@alpha", "helper@alpha"}, Subject: "hello"}); err != nil {
		t.Fatal(err)
	}
	same(t, "delivered", beta.tick().LAN.Sent, 1)
	for _, to := range []string{"builder", "*", "role:builder"} {
		sent, err := alpha.Send(ctx, Draft{From: "reviewer", To: []string{to}, Subject: "for whoever builds"})
		noError(t, err)
		same(t, to+": hosts", fmt.Sprint(sent.Hosts), "[beta]")
		if slices.Contains(sent.Local, "builder") {
			t.Errorf("%s: got it delivered here; want it at beta only", to)
		}
	}
	noError(t, alpha.AddMailbox(ctx, "builder", nil))
	sent, err := alpha.Send(ctx, Draft{From: "reviewer", To: []string{"builder"}, Subject: "for ours"})
	noError(t, err)
	same(t, "made here: local", fmt.Sprint(sent.Local), "[builder]")
}
