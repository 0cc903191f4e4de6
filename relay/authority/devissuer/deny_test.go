package devissuer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// relayStub is a relay that takes deny lists.
type relayStub struct {
	*httptest.Server
	tokens []string
	status int
	body   string
}

func newRelayStub(t *testing.T) *relayStub {
	s := &relayStub{status: 200, body: `{"added":2}`}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		var v struct{ Token string }
		if q.Method != "POST" || q.URL.Path != "/v2/relay/deny" || json.Unmarshal(body, &v) != nil {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		s.tokens = append(s.tokens, v.Token)
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(s.status)
		_, _ = io.WriteString(w, s.body)
	}))
	t.Cleanup(s.Close)
	return s
}

func denied(h *host, reason string, at time.Time) []any {
	both := map[string]any{"host_fp": h.key.Public().Fingerprint(), "client_id": h.clientID, "until": float64(at.Add(denyLife).Unix())}
	client := map[string]any{"client_id": h.clientID, "until": both["until"]}
	if reason != "" {
		both["reason"], client["reason"] = reason, reason
	}
	return []any{both, client}
}

func TestRevokePushes(t *testing.T) {
	stub := newRelayStub(t)
	r := newRig(t, func(o *Options) { o.NoPush, o.Relay = false, stub.URL })
	h := r.enrolled(newHost(t, "laptop"), "alice")
	r.enrolled(newHost(t, "studio"), "alice")
	open := r.login(h, "alice")
	got, err := r.i.Revoke(t.Context(), "LAPTOP", "lost")
	noError(t, err)
	if !got.Pushed || got.Added != 2 || len(got.Hosts) != 1 || got.Hosts[0].ClientID != h.clientID || got.Hosts[0].RevokedAt != t0 || got.Hosts[0].Reason != "lost" {
		t.Errorf("got %+v", got)
	}
	r.json("/revoke-session", open, struct{}{}).is(401, "invalid_token") // its logins are over, too
	header, claims := r.verified(stub.tokens[0])
	if header["typ"] != "mbx-deny+jwt" || header["kid"] == nil {
		t.Errorf("header: got %v", header)
	}
	want := map[string]any{"iss": r.url, "aud": stub.URL, "iat": float64(t0.Unix()), "exp": float64(t0.Add(tokenLife).Unix()), "jti": claims["jti"], "deny": denied(h, "lost", t0)}
	if fmt.Sprint(claims) != fmt.Sprint(want) {
		t.Errorf("got %v; want %v", claims, want)
	}
	// Again tells it again, in a list of its own, with the reason of before.
	r.pass(time.Minute)
	got, err = r.i.Revoke(t.Context(), h.key.Public().Fingerprint(), "other")
	if err != nil || !got.Pushed || got.Hosts[0].Reason != "lost" || got.Hosts[0].RevokedAt != t0 || len(stub.tokens) != 2 {
		t.Errorf("again: got %+v, %v", got, err)
	}
	_, second := r.verified(stub.tokens[1])
	if second["jti"] == claims["jti"] || fmt.Sprint(second["deny"]) != fmt.Sprint(claims["deny"]) || len(r.i.state.Denials) != 2 {
		t.Errorf("got %v of %v", second, r.i.state.Denials)
	}
	r.pass(denyLife - denyAgain)
	_, err = r.i.Revoke(t.Context(), h.hostID, "")
	noError(t, err)
	if _, third := r.verified(stub.tokens[2]); fmt.Sprint(third["deny"]) != fmt.Sprint(denied(h, "lost", r.clock())) {
		t.Errorf("a day later: got %v; want it denied for another day", third)
	}
}

// A relay that can't be told does not undo a revocation.
func TestRevokeThatIsNotPushed(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"refused", `{"error":"not signed"}`, 401, `it answered 401 "not signed"`},
		{"no relay", "<html>", 404, `it answered 404 ""`},
		{"redirect", "", 307, `it answered 307 ""`},
		{"no JSON", "<html>", 200, "it answered something that no relay does"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stub := newRelayStub(t)
			stub.status, stub.body = tt.status, tt.body
			r := newRig(t, func(o *Options) { o.NoPush, o.Relay = false, stub.URL })
			h := r.enrolled(newHost(t, "laptop"), "alice")
			got, err := r.i.Revoke(t.Context(), "laptop", "")
			noError(t, err)
			if got.Pushed || got.Trouble != tt.want || len(stub.tokens) != 1 {
				t.Errorf("got %+v; want trouble %q", got, tt.want)
			}
			if strings.Contains(r.log.String(), stub.tokens[0]) {
				t.Error("the token stands in the log")
			}
			r.form("/token", r.asking(h, stub.URL, nil)).is(401, "invalid_client")
		})
	}
}

func TestRevokeRefusals(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.enrolled(newHost(t, "laptop"), "alice"), r.enrolled(newHost(t, "Laptop"), "bob")
	for _, tt := range []struct {
		name, who, reason string
		want              error
	}{
		{"unknown", "nobody", "", ErrNotFound},
		{"empty", "", "", ErrNotFound},
		{"unknown fingerprint", "1f3a-09bc-77d0-e214", "", ErrNotFound},
		{"two hosts", "laptop", "", ErrBadCall},
		{"long reason", a.clientID, strings.Repeat("a", 201), ErrBadCall},
		{"reason of two lines", a.clientID, "a\nb", ErrBadCall},
	} {
		if got, err := r.i.Revoke(t.Context(), tt.who, tt.reason); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %+v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
	for n, who := range []string{a.hostID, strings.ToUpper(b.key.Public().Fingerprint())} {
		if got, err := r.i.Revoke(t.Context(), who, "é"+strings.Repeat("a", 199)); err != nil || len(got.Hosts) != 1 || got.Pushed || got.Trouble != "" {
			t.Errorf("%s: got %+v, %v", who, got, err)
		}
		if got := len(r.i.state.Denials); got != 2*(n+1) {
			t.Errorf("got %d entries; want %d", got, 2*(n+1))
		}
	}
}

func TestDenyList(t *testing.T) {
	r := newRig(t, nil)
	h := r.enrolled(newHost(t, "laptop"), "alice")
	get := func(tag string) answer {
		t.Helper()
		q, err := http.NewRequest("GET", r.url+"/deny.jwt", nil)
		noError(t, err)
		if tag != "" {
			q.Header.Set("If-None-Match", tag)
		}
		return r.do(q)
	}
	empty := get("")
	empty.is(200, "")
	header, claims := r.verified(string(empty.body))
	if header["typ"] != "mbx-deny+jwt" || fmt.Sprint(claims["deny"]) != "[]" || claims["aud"] != relayURL {
		t.Errorf("got %v %v", header, claims)
	}
	_, err := r.i.Revoke(t.Context(), "laptop", "lost")
	noError(t, err)
	first := get(empty.header.Get("ETag"))
	first.is(200, "")
	tag := first.header.Get("ETag")
	_, claims = r.verified(string(first.body))
	if tag == empty.header.Get("ETag") || fmt.Sprint(claims["deny"]) != fmt.Sprint(denied(h, "lost", t0)) {
		t.Errorf("got %s, %v", tag, claims)
	}
	for _, match := range []string{tag, `"x", W/` + tag} {
		if a := get(match); a.status != 304 || len(a.body) > 0 || a.header.Get("ETag") != tag {
			t.Errorf("%s: got %d %s; want 304", match, a.status, a.body)
		}
	}
	if a := get(`"x"`); string(a.body) != string(first.body) {
		t.Errorf("got another token; want the same one for a while")
	}
	// Signed anew before it ends, under the same tag.
	r.pass(tokenLife / 2)
	later := get("")
	_, renewed := r.verified(string(later.body))
	if later.header.Get("ETag") != tag || renewed["jti"] == claims["jti"] || renewed["exp"] != float64(r.clock().Add(tokenLife).Unix()) || fmt.Sprint(renewed["deny"]) != fmt.Sprint(claims["deny"]) {
		t.Errorf("got %s %v; want the same entries, newly signed", later.header.Get("ETag"), renewed)
	}
	// A rotation signs it by the new key, so that the old one can be dropped.
	_, err = r.i.Rotate(false)
	noError(t, err)
	_, err = r.i.Rotate(true)
	noError(t, err)
	if rotated := get(""); rotated.header.Get("ETag") != tag {
		t.Errorf("got another tag; want the one of the same entries")
	} else {
		r.verified(string(rotated.body))
	}
	r.restart()
	if a := get(tag); a.status != 304 {
		t.Errorf("after a restart: got %d; want 304", a.status)
	}
	r.pass(denyLife)
	if _, claims := r.verified(string(get("").body)); fmt.Sprint(claims["deny"]) != "[]" {
		t.Errorf("a day later: got %v; want nobody denied", claims["deny"])
	}
	r.form("/token", r.asking(h, relayURL, nil)).is(401, "invalid_client") // for ever
}

// The list stays within what a relay takes.
func TestLongDenyList(t *testing.T) {
	r := newRig(t, nil)
	reason := strings.Repeat("\u00e9", maxReason)
	revoke := func(n int) error {
		key, err := wire.GenerateKey()
		noError(t, err)
		id := fmt.Sprintf("client_%020d", n)
		r.i.state.Hosts = append(r.i.state.Hosts, Host{ClientID: id, HostPub: key.Public().String(), HostFP: key.Public().Fingerprint()})
		_, err = r.i.Revoke(t.Context(), id, reason)
		return err
	}
	n := 0
	var err error
	for ; err == nil && n < 1000; n++ {
		err = revoke(n)
	}
	if !errors.Is(err, ErrRefused) || n < 20 {
		t.Fatalf("got %v after %d; want a refusal after some", err, n)
	}
	if h := r.i.Hosts()[n-1]; h.revoked() {
		t.Error("what was refused was done")
	}
	a := r.send("GET", "/deny.jwt", "", "", "")
	if len(a.body) > 64<<10-len(`{"token":""}`) {
		t.Errorf("got a list of %d bytes", len(a.body))
	}
	r.pass(LongestTTL + 2*clockLeeway)
	if err := revoke(n); err != nil {
		t.Errorf("later: got %v; want it done", err)
	}
	if d := r.i.state.Denials; d[len(d)-1].ClientID != fmt.Sprintf("client_%020d", n) || d[0].ClientID == fmt.Sprintf("client_%020d", 0) && d[0].HostFP != "" {
		t.Errorf("got %.40v first and %.40v last; want the oldest gone", d[0], d[len(d)-1])
	}
}
