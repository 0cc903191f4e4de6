package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// stubIssuer grants to the end that a proof says, in milliseconds, and believes a
// deny token to be the list, or the code of what is wrong with it.
type stubIssuer struct{}

func (stubIssuer) Authorize(_ context.Context, a relay.Applicant) (relay.Grant, error) {
	var ms int64
	if json.Unmarshal(a.Proof, &ms) != nil {
		return relay.Grant{Code: "TOKEN_AUDIENCE", Reason: "the token is for another relay"}, nil
	}
	return relay.Grant{OK: true, By: "account-token", Account: "acme", ClientID: "c-1", SessionEnds: time.UnixMilli(ms)}, nil
}

func (stubIssuer) VerifyDenials(_ context.Context, token string) (l relay.DenyList, err error) {
	kinds := map[string]relay.Kind{"TOKEN_SIGNATURE": relay.Unauthorized, "TOKEN_CLAIMS": relay.BadRequest, "KEYS_UNAVAILABLE": relay.Unavailable}
	if k, ok := kinds[token]; ok {
		return l, &relay.Error{Kind: k, Code: token, Text: "no"}
	}
	return l, json.Unmarshal([]byte(token), &l)
}

func hosted(s *setup) { s.Authority = stubIssuer{} }

func (r *rig) deny(token any) *reply { return r.call(nil, "POST", "/v2/relay/deny", m{"token": token}) }

func denyList(id string, iat time.Time, entries ...relay.DenyEntry) string {
	return string(must(json.Marshal(relay.DenyList{ID: id, IAT: iat, Expires: iat.Add(time.Hour), Deny: entries})))
}

func (r *rig) tryEnrolWith(h *wiretest.Host, proof any) *reply {
	body := enrolBody(h, r.challenge(h))
	body["proof"] = proof
	return r.call(nil, "POST", "/v1/relay/enrol", body)
}

func TestSessionsOverHTTP(t *testing.T) {
	r := newRig(t, hosted)
	alpha := wiretest.NewHost("alpha")
	r.tryEnrolWith(alpha, "none").is(403).says(`{"error":"TOKEN_AUDIENCE: the token is for another relay","code":"DENIED","reason":"TOKEN_AUDIENCE"}`)
	r.tryEnrolWith(alpha, t0.Add(time.Minute).UnixMilli()).is(200)
	calls := func(status int, code string) {
		t.Helper()
		for _, c := range [][2]string{{"GET", "/v2/relay/items?after=0"}, {"GET", "/v1/relay/messages?after=0"}, {"GET", "/v2/relay/nothing"}} {
			p := r.call(alpha, c[0], c[1], nil)
			if c[1] == "/v2/relay/nothing" && status == 200 {
				p.is(404)
			} else if code == "" {
				p.is(status)
			} else {
				p.is(status, code)
			}
		}
	}
	calls(200, "")
	r.now.Add(time.Minute.Milliseconds())
	calls(401, "SESSION_EXPIRED")
	if p := r.call(alpha, "GET", "/v2/relay/info", nil).is(200); strings.Contains(string(p.body), `"you"`) {
		t.Errorf("info: got %s; want what anyone gets", p.body)
	}
	r.tryEnrolWith(alpha, t0.Add(time.Hour).UnixMilli()).is(200)
	calls(200, "")
	r.deny(denyList("l-1", t0, relay.DenyEntry{HostFP: alpha.Pub().Fingerprint(), Reason: "gone"})).is(200).says(`{"added":1}`)
	r.now.Add((2 * time.Hour).Milliseconds())
	calls(401, "DENIED") // of the two, what does not end
}

func TestDenyOverHTTP(t *testing.T) {
	r := newRig(t, hosted, noRates)
	r.deny(denyList("l-1", t0, relay.DenyEntry{ClientID: "c-9"})).is(200).says(`{"added":1}`)
	r.deny(denyList("l-1", t0, relay.DenyEntry{ClientID: "c-9"})).is(409, "SEEN")
	r.deny(denyList("l-0", t0.Add(-time.Second))).is(409, "OLDER")
	r.deny("TOKEN_SIGNATURE").is(401, "TOKEN_SIGNATURE")
	r.deny("TOKEN_CLAIMS").is(400, "TOKEN_CLAIMS")
	r.deny("KEYS_UNAVAILABLE").is(503, "KEYS_UNAVAILABLE")
	for _, bad := range []any{"", nil, 1, []string{"x"}} {
		r.deny(bad).is(400, "BAD_TOKEN")
	}
	r.call(nil, "POST", "/v2/relay/deny", `{"token":"a","token":"b"}`).is(400, "BAD_JSON")
	r.call(nil, "POST", "/v2/relay/deny", `{`).is(400, "BAD_JSON")
	r.deny(strings.Repeat("x", 64<<10)).is(413, "TOO_LARGE")
	r.call(nil, "GET", "/v2/relay/deny", nil).is(401)
}

func TestDenyIsRated(t *testing.T) {
	r := newRig(t, hosted, limits(func(l *relay.Limits) { l.EnrolPerMinute = 2 }))
	r.deny("TOKEN_CLAIMS").is(400)
	r.deny("TOKEN_CLAIMS").is(400)
	r.deny(denyList("l-1", t0)).is(429, "RATE")
}

// Without an issuer it is any other path.
func TestDenyWithoutIssuer(t *testing.T) {
	r := newRig(t)
	alpha := r.enrol("alpha")
	r.deny(denyList("l-1", t0)).is(401)
	r.call(alpha, "POST", "/v2/relay/deny", m{"token": denyList("l-1", t0)}).is(404, "NOT_FOUND")
}

// oneList is an issuer of one deny list.
type oneList struct {
	stubIssuer
	token string
}

func (i oneList) VerifyDenials(ctx context.Context, token string) (l relay.DenyList, err error) {
	if token != i.token {
		return l, &relay.Error{Kind: relay.Unauthorized, Code: "TOKEN_SIGNATURE", Text: "no"}
	}
	return i.stubIssuer.VerifyDenials(ctx, token)
}

// FuzzDeny sends anything to the deny call: it takes a list, or refuses it, and
// nothing that a stranger sends looks like the relay's own fault.
func FuzzDeny(f *testing.F) {
	good := denyList("l-1", t0, relay.DenyEntry{ClientID: "c-9"})
	r := newRig(f, noRates, func(s *setup) { s.Authority = oneList{token: good} })
	for _, body := range []any{
		m{"token": good}, m{"token": ""}, m{"token": 1}, m{"token": "x"}, m{}, `{"token":"a","token":"b"}`, `{`, `[]`, ``,
		`{"token":"\ud800"}`, `{"Token":"x"}`, `{"token":{"token":"x"}}`,
	} {
		f.Add(encode(body))
	}
	handler := r.server.Handler()
	f.Fuzz(func(t *testing.T, body []byte) {
		q := httptest.NewRequest("POST", "/v2/relay/deny", bytes.NewReader(body))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, q)
		if w.Code != 200 && (w.Code < 400 || w.Code >= 500) {
			t.Errorf("%q: got %d %s", body, w.Code, w.Body)
		}
	})
}
