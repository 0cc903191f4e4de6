package jwks_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
)

const someFP = "1f3a-09bc-77d0-e214"

// denyClaims are those of a good deny token.
func (r *rig) denyClaims() obj {
	return obj{
		"iss": r.issuer.URL, "aud": aud, "jti": "list-1", "iat": at(0), "exp": at(10 * time.Minute),
		"deny": []any{obj{"host_fp": someFP}},
	}
}

func (r *rig) deny(token string) (relay.DenyList, string, relay.Kind) {
	r.t.Helper()
	list, err := r.auth.VerifyDenials(context.Background(), token)
	if err == nil {
		return list, "", 0
	}
	var e *relay.Error
	if !errors.As(err, &e) || e.Code == "" || e.Text == "" || !reflect.DeepEqual(list, relay.DenyList{}) {
		r.t.Fatalf("got %+v and %#v; want a refusal with a code and no list", list, err)
	}
	return list, e.Code, e.Kind
}

func TestDenyChecks(t *testing.T) {
	r := newFreshRig(t)
	typ := obj{"typ": "mbx-deny+jwt"}
	head := func(name string, v any) obj { return obj{"typ": "mbx-deny+jwt", name: v} }
	const bad, unauthorized = relay.BadRequest, relay.Unauthorized
	for _, c := range []struct {
		name   string
		key    jwkstest.Key
		head   obj
		claims obj // other than a good token's; nil takes one away
		want   string
		kind   relay.Kind
	}{
		{"as it is", r.ed, typ, nil, "", 0},
		{"ES256", r.es, typ, nil, "", 0},
		{"over 1 MiB", r.ed, typ, obj{"pad": strings.Repeat("x", 1<<20)}, "TOKEN_SIZE", bad},
		{"no typ", r.ed, obj{"typ": nil}, nil, "TOKEN_FORM", bad},
		{"an access token", r.ed, obj{"typ": "at+jwt"}, nil, "TOKEN_FORM", bad},
		{"typ of another case", r.ed, obj{"typ": "MBX-deny+jwt"}, nil, "TOKEN_FORM", bad},
		{"crit", r.ed, head("crit", []string{"x"}), nil, "TOKEN_CRIT", bad},
		{"none", r.ed, head("alg", "none"), nil, "TOKEN_ALG", unauthorized},
		{"no kid", r.ed, head("kid", nil), nil, "TOKEN_KID", unauthorized},
		{"kid unknown", r.ed, head("kid", "x"), nil, "TOKEN_KEY", unauthorized},
		{"alg of another key", r.ed, head("kid", "es-1"), nil, "TOKEN_KEY", unauthorized},
		{"another key", jwkstest.NewKey("EdDSA", "ed-1"), typ, nil, "TOKEN_SIGNATURE", unauthorized},
		{"another issuer", r.ed, typ, obj{"iss": "https://x.example.test"}, "TOKEN_ISSUER", unauthorized},
		{"another audience", r.ed, typ, obj{"aud": "https://x.example.test"}, "TOKEN_AUDIENCE", unauthorized},
		{"two audiences", r.ed, typ, obj{"aud": []string{aud, "https://x.example.test"}}, "TOKEN_AUDIENCE", unauthorized},
		{"over", r.ed, typ, obj{"iat": at(-time.Hour), "exp": at(0)}, "TOKEN_EXPIRED", bad},
		{"not over for a millisecond", r.ed, typ, obj{"iat": at(-time.Hour), "exp": at(time.Millisecond)}, "", 0},
		{"60 s ahead", r.ed, typ, obj{"iat": at(time.Minute)}, "", 0},
		{"over 60 s ahead", r.ed, typ, obj{"iat": at(60001 * time.Millisecond)}, "TOKEN_EARLY", bad},
		{"no exp", r.ed, typ, obj{"exp": nil}, "TOKEN_CLAIMS", bad},
		{"no iat", r.ed, typ, obj{"iat": nil}, "TOKEN_CLAIMS", bad},
		{"iat a text", r.ed, typ, obj{"iat": "now"}, "TOKEN_CLAIMS", bad},
		{"no jti", r.ed, typ, obj{"jti": nil}, "TOKEN_CLAIMS", bad},
		{"jti of 201", r.ed, typ, obj{"jti": strings.Repeat("j", 201)}, "TOKEN_CLAIMS", bad},
		{"a year to live", r.ed, typ, obj{"exp": at(365 * 24 * time.Hour)}, "", 0},
		{"no deny", r.ed, typ, obj{"deny": nil}, "DENY_ENTRIES", bad},
		{"deny an object", r.ed, typ, obj{"deny": obj{"host_fp": someFP}}, "DENY_ENTRIES", bad},
		{"one good entry, one bad", r.ed, typ, obj{"deny": []any{obj{"host_fp": someFP}, obj{}}}, "DENY_ENTRIES", bad},
	} {
		claims := r.denyClaims()
		maps.Copy(claims, c.claims)
		maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
		if _, got, kind := r.deny(c.key.Sign(c.head, claims)); got != c.want || kind != c.kind {
			t.Errorf("%s: got %q of kind %d; want %q of kind %d", c.name, got, kind, c.want, c.kind)
		}
	}
	for name, token := range map[string]string{"empty": "", "no token": "deny", "an account's token": r.ed.Sign(nil, r.claims())} {
		if _, got, kind := r.deny(token); !strings.HasPrefix(got, "TOKEN_") || kind != bad {
			t.Errorf("%s: got %q of kind %d; want a bad request", name, got, kind)
		}
	}
}

func TestDenyList(t *testing.T) {
	r := newFreshRig(t)
	list, code, _ := r.deny(r.ed.DenyToken(r.issuer.URL, aud, "list-9", t0,
		obj{"host_fp": someFP, "client_id": "client-1", "reason": "left", "until": t0.Add(time.Hour).Unix(), "note": "ours"},
		obj{"client_id": "client-2"}))
	want := relay.DenyList{
		ID: "list-9", IAT: t0, Expires: t0.Add(10 * time.Minute),
		Deny: []relay.DenyEntry{
			{HostFP: someFP, ClientID: "client-1", Reason: "left", Until: t0.Add(time.Hour)},
			{ClientID: "client-2"},
		},
	}
	if code != "" || !reflect.DeepEqual(list, want) {
		t.Errorf("got %q, %+v; want %+v", code, list, want)
	}
	if list, code, _ := r.deny(r.ed.DenyToken(r.issuer.URL, aud, "list-10", t0)); code != "" || len(list.Deny) != 0 {
		t.Errorf("nobody denied: got %q, %+v; want an empty list", code, list)
	}
}

func TestDenyEntries(t *testing.T) {
	r := newFreshRig(t)
	for _, c := range []struct {
		name  string
		entry any
		want  *relay.DenyEntry // nil: refused
	}{
		{"a host", obj{"host_fp": someFP}, &relay.DenyEntry{HostFP: someFP}},
		{"a credential of 200", obj{"client_id": strings.Repeat("c", 200)}, &relay.DenyEntry{ClientID: strings.Repeat("c", 200)}},
		{"until, as records have it", obj{"host_fp": someFP, "until": "2026-10-03T12:00:00.000Z"}, &relay.DenyEntry{HostFP: someFP, Until: t0.Add(24 * time.Hour)}},
		{"until, past", obj{"host_fp": someFP, "until": 1}, &relay.DenyEntry{HostFP: someFP, Until: time.Unix(1, 0).UTC()}},
		{"a long reason", obj{"host_fp": someFP, "reason": strings.Repeat("é", 300)}, &relay.DenyEntry{HostFP: someFP, Reason: strings.Repeat("é", 200)}},
		{"a reason cut between pairs", obj{"host_fp": someFP, "reason": "x" + strings.Repeat("😀", 100)}, &relay.DenyEntry{HostFP: someFP, Reason: "x" + strings.Repeat("😀", 99)}},
		{"a reason empty", obj{"host_fp": someFP, "reason": ""}, &relay.DenyEntry{HostFP: someFP}},

		{"nobody", obj{"reason": "because"}, nil},
		{"nothing", obj{}, nil},
		{"null", nil, nil},
		{"a text", someFP, nil},
		{"a list", []string{someFP}, nil},
		{"a fingerprint in capitals", obj{"host_fp": strings.ToUpper(someFP)}, nil},
		{"a fingerprint without dashes", obj{"host_fp": strings.ReplaceAll(someFP, "-", "")}, nil},
		{"a fingerprint with a space", obj{"host_fp": someFP + " "}, nil},
		{"a fingerprint too short", obj{"host_fp": someFP[:14]}, nil},
		{"a fingerprint empty", obj{"host_fp": "", "client_id": "client-1"}, nil},
		{"a fingerprint null", obj{"host_fp": nil, "client_id": "client-1"}, nil},
		{"a fingerprint a number", obj{"host_fp": 1, "client_id": "client-1"}, nil},
		{"a credential empty", obj{"host_fp": someFP, "client_id": ""}, nil},
		{"a credential of 201", obj{"client_id": strings.Repeat("c", 201)}, nil},
		{"a credential that clears the screen", obj{"client_id": "\x1b[2J"}, nil},
		{"a credential a number", obj{"host_fp": someFP, "client_id": 7}, nil},
		{"a reason a number", obj{"host_fp": someFP, "reason": 7}, nil},
		{"a reason null", obj{"host_fp": someFP, "reason": nil}, nil},
		{"until a fraction", obj{"host_fp": someFP, "until": 1790000000.0005}, nil},
		{"until zero", obj{"host_fp": someFP, "until": 0}, nil},
		{"until negative", obj{"host_fp": someFP, "until": -5}, nil},
		{"until never", obj{"host_fp": someFP, "until": nil}, nil},
		{"until beyond all", obj{"host_fp": someFP, "until": 1e18}, nil},
		{"until before all", obj{"host_fp": someFP, "until": "1969-12-31T23:59:59.000Z"}, nil},
		{"until a day", obj{"host_fp": someFP, "until": "2026-10-03"}, nil},
		{"until in another zone", obj{"host_fp": someFP, "until": "2026-10-03T12:00:00+02:00"}, nil},
		{"until a list", obj{"host_fp": someFP, "until": []int{1}}, nil},
	} {
		claims := r.denyClaims()
		claims["deny"] = []any{c.entry}
		list, code, _ := r.deny(r.ed.Sign(obj{"typ": "mbx-deny+jwt"}, claims))
		switch {
		case c.want == nil && code != "DENY_ENTRIES":
			t.Errorf("%s: got %q; want DENY_ENTRIES", c.name, code)
		case c.want != nil && (code != "" || !reflect.DeepEqual(list.Deny, []relay.DenyEntry{*c.want})):
			t.Errorf("%s: got %q, %+v; want %+v", c.name, code, list.Deny, *c.want)
		}
	}
}

// shelf serves a deny list with an ETag, as a file server does.
type shelf struct {
	body, etag string
	asked      string // the If-None-Match of the last request
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = r.Header.Get("If-None-Match")
	if s.etag != "" {
		w.Header()["Etag"] = []string{s.etag}
		if s.asked == s.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	_, _ = w.Write([]byte(s.body))
}

// pull fails unless a fetch of the deny list hands out this token.
func (r *rig) pull(what, want string) {
	r.t.Helper()
	got, err := r.auth.FetchDenials(context.Background())
	if err != nil || got != want {
		r.t.Fatalf("%s: got %q, %v; want %q", what, got, err, want)
	}
}

func TestFetchDenials(t *testing.T) {
	r := newRig(t)
	s := &shelf{body: "list-1\n", etag: `"one"`}
	r.issuer.ServeDenials(s)
	r.pull("the first", "list-1")
	r.pull("the first, not taken", "list-1")
	r.auth.Taken("another")
	r.pull("the first, another taken", "list-1")
	r.auth.Taken("list-1")
	r.pull("the first, taken", "")
	s.body, s.etag = "list-2", `"two"`
	r.pull("the second", "list-2")
	r.pull("the second, not taken", "list-2")
	s.body, s.etag = "list-1", `"one"`
	r.pull("the first again", "")
	s.etag = `W/"three"`
	r.pull("the first under another ETag", "")
	s.body, s.etag = "list-3", ""
	r.pull("one without ETag", "list-3")
	r.auth.Taken("list-3")
	r.pull("one without ETag, taken", "")
	for name, etag := range map[string]string{"not ASCII": "\"\xff\"", "endless": `"` + strings.Repeat("e", 2<<10) + `"`} {
		s.body, s.etag = name, etag
		r.pull(name, name)
		r.auth.Taken(name)
		r.pull(name+", taken", "")
		if s.asked != "" {
			t.Errorf("%s: got it sent back; want it left out", name)
		}
	}
	r.restart()
	r.pull("after a restart", s.body)
}

func TestFetchDenialsFails(t *testing.T) {
	r := newRig(t)
	s := &shelf{body: "list-1", etag: `"one"`}
	for name, c := range map[string]struct {
		answer http.Handler
		want   string
	}{
		"404":            {jwkstest.Status(404), "the answer has the status 404"},
		"204":            {jwkstest.Status(204), "the answer has the status 204"},
		"304 unasked":    {jwkstest.Status(304), "the answer is 304 to a question without an ETag"},
		"empty":          {jwkstest.Text("", []byte(" \n")), "the answer is empty"},
		"over 1 MiB":     {jwkstest.Text("", make([]byte, 1<<20+1)), "the answer is over 1024 KiB"},
		"redirect there": {http.RedirectHandler("http://127.0.0.1:1/deny", http.StatusFound), "the answer is a redirect to another host or scheme"},
	} {
		r.issuer.ServeDenials(c.answer)
		token, err := r.auth.FetchDenials(context.Background())
		if token != "" || err == nil || err.Error() != "fetch the deny list: "+c.want {
			t.Errorf("%s: got %q, %v; want %q", name, token, err, c.want)
		}
	}
	r.issuer.ServeDenials(s)
	r.pull("after it", "list-1")

	o := r.options()
	o.DenyURL = ""
	asked := r.issuer.DenyFetches()
	r.auth = r.authority(o)
	r.pull("no list to pull", "")
	if got := r.issuer.DenyFetches(); got != asked {
		t.Errorf("no list to pull: got %d requests; want none", got-asked)
	}
}
