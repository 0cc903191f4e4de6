package devissuer

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jwt"
)

// From a login to a token, as a host goes.
func TestFlow(t *testing.T) {
	for _, alg := range []string{"EdDSA", "ES256"} {
		t.Run(alg, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.Alg, o.TTL = alg, 7*time.Minute })
			h := newHost(t, "laptop")
			a := r.json("/device/code", "", h.begin()) // JSON is as good as a form
			a.is(200, "")
			if a.v["expires_in"] != 600.0 || a.v["interval"] != 5.0 || a.text("verification_uri") != r.url+"/device" ||
				a.text("verification_uri_complete") != r.url+"/device?user_code="+a.text("user_code") {
				t.Errorf("got %s", a.body)
			}
			r.form("/device/token", poll(a.text("device_code"))).is(400, "authorization_pending")
			l, err := r.i.Approve(strings.ToLower(strings.ReplaceAll(a.text("user_code"), "-", " ")), "alice", "acme")
			noError(t, err)
			if want := (Login{Host: "laptop", HostFP: h.key.Public().Fingerprint(), Account: "alice", Org: "acme"}); l != want {
				t.Errorf("got %+v; want %+v", l, want)
			}
			r.pass(5 * time.Second)
			b := r.form("/device/token", poll(a.text("device_code")))
			b.is(200, "")
			if b.text("token_type") != "Bearer" || b.v["expires_in"] != 600.0 || b.header.Get("Cache-Control") != "no-store" {
				t.Errorf("got %s with %v", b.body, b.header)
			}
			bearer := b.text("access_token")
			e := r.json("/v1/host/enrolments", bearer, r.enrolment(h, bearer))
			e.is(200, "")
			h.clientID, h.hostID = e.text("client_id"), e.text("host_id")
			if e.text("token_endpoint") != r.url+"/token" || e.text("jwks_uri") != r.url+"/.well-known/jwks.json" ||
				fmt.Sprint(e.v["resources"]) != fmt.Sprint(map[string]any{"api": r.url + "/api", "relay": relayURL}) {
				t.Errorf("got %s", e.body)
			}
			r.json("/revoke-session", bearer, struct{}{}).is(200, "")
			r.json("/revoke-session", bearer, struct{}{}).is(401, "invalid_token")

			seen := map[any]bool{}
			for _, resource := range []string{relayURL, r.url + "/api"} {
				got := r.form("/token", r.asking(h, resource, map[string]string{"client_id": h.clientID}))
				got.is(200, "")
				token := got.text("access_token")
				if got.text("token_type") != "Bearer" || got.v["expires_in"] != 420.0 {
					t.Errorf("got %s", got.body)
				}
				header, claims := r.verified(token)
				if header["alg"] != alg || header["typ"] != "at+jwt" || header["kid"] != r.i.publicKeys()[0].ID || len(header) != 3 {
					t.Errorf("header: got %v", header)
				}
				seen[claims["jti"]] = true
				now := float64(r.clock().Unix())
				want := map[string]any{
					"iss": r.url, "aud": resource, "sub": h.hostID, "account": "alice", "org": "acme", "client_id": h.clientID,
					"cnf": map[string]any{"jkt": h.cloud.Public().Thumbprint()}, "iat": now, "exp": now + 420, "jti": claims["jti"],
				}
				if fmt.Sprint(claims) != fmt.Sprint(want) {
					t.Errorf("claims: got %v; want %v", claims, want)
				}
				if tok, err := jwt.Parse([]byte(token), jwt.WithVerify(false), jwt.WithValidate(true), jwt.WithAudience(resource), jwt.WithIssuer(r.url), jwt.WithClock(jwt.ClockFunc(r.clock))); err != nil || tok.Subject() != h.hostID {
					t.Errorf("got %v, error %v; want the token valid", tok, err)
				}
			}
			if len(seen) != 2 {
				t.Errorf("got jti %v; want another one in each token", seen)
			}
			kept, err := os.ReadFile(filepath.Join(r.o.Dir, stateFile))
			noError(t, err)
			for name, secret := range map[string]string{"device code": a.text("device_code"), "bearer": bearer} {
				if strings.Contains(r.log.String(), secret) || strings.Contains(string(kept), secret) {
					t.Errorf("the %s stands in the log or the folder", name)
				}
			}
		})
	}
}

func TestKeySetIsPublic(t *testing.T) {
	r := newRig(t, nil)
	_, err := r.i.Rotate(false)
	noError(t, err)
	a := r.send("GET", "/.well-known/jwks.json", "", "", "")
	a.is(200, "")
	set, err := jwk.Parse(a.body)
	noError(t, err)
	if set.Len() != 2 {
		t.Fatalf("got %d keys; want 2", set.Len())
	}
	for _, raw := range a.v["keys"].([]any) {
		names := slices.Sorted(maps.Keys(raw.(map[string]any)))
		if want := []string{"alg", "crv", "kid", "kty", "use", "x"}; !slices.Equal(names, want) {
			t.Errorf("got a key with %v; want %v", names, want)
		}
	}
	for n, k := range r.i.publicKeys() {
		if k.Signs != (n == 0) || k.Alg != jwa.EdDSA.String() {
			t.Errorf("key %d: got %+v", n, k)
		}
	}
}

func TestOtherPaths(t *testing.T) {
	r := newRig(t, nil)
	r.send("GET", "/healthz", "", "", "").is(200, "")
	for _, path := range []string{"/", "/approve", "/hosts", "/admin", "/rotate"} { // the commands have a port of their own
		if a := r.send("POST", path, "", "", "{}"); a.status != http.StatusNotFound {
			t.Errorf("%s: got %d; want 404", path, a.status)
		}
	}
	if a := r.send("GET", "/token", "", "", ""); a.status != http.StatusMethodNotAllowed {
		t.Errorf("got %d; want 405", a.status)
	}
	page := r.send("GET", "/device?user_code=wdjbmjht", "", "", "")
	if page.status != 200 || !strings.Contains(string(page.body), "accounts approve WDJB-MJHT\n") {
		t.Errorf("got %s", page.body)
	}
	page = r.send("GET", "/device?user_code=%3Cscript%3E", "", "", "")
	if page.status != 200 || strings.Contains(string(page.body), "script") || !strings.HasPrefix(page.header.Get("Content-Type"), "text/plain") {
		t.Errorf("got %s", page.body)
	}
}

// What is refused when an issuer is made.
func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no folder":         func(o *Options) { o.Dir = "" },
		"no base":           func(o *Options) { o.Base = "" },
		"base with a query": func(o *Options) { o.Base += "?x" },
		"base with a user":  func(o *Options) { o.Base = "https://me@issuer.example" },
		"relay by file":     func(o *Options) { o.Relay = "file:///relay" },
		"API is the relay":  func(o *Options) { o.API = o.Relay + "/" },
		"long life":         func(o *Options) { o.TTL = LongestTTL + 1 },
		"no life":           func(o *Options) { o.TTL = time.Millisecond },
		"unknown algorithm": func(o *Options) { o.Alg = "HS256" },
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: t.TempDir(), Base: "https://issuer.example", Relay: relayURL}
			change(&o)
			if i, err := New(o); err == nil {
				t.Errorf("got an issuer; want an error")
				noError(t, i.Close())
			}
		})
	}
	i, err := New(Options{Dir: t.TempDir(), Base: "https://issuer.example/", Relay: relayURL + "//"})
	noError(t, err)
	if i.Base() != "https://issuer.example" || i.o.Relay != relayURL || i.o.API != "https://issuer.example/api" || i.o.TTL != 10*time.Minute {
		t.Errorf("got %+v", i.o)
	}
	noError(t, i.Close())
	for base, want := range map[string]bool{"https://a.example": true, "http://a.example": false, "http://127.0.0.1:1": true, "http://[::1]:1": true, "http://localhost": true, "http://10.0.0.1": false} {
		if got := Reachable(base); got != want {
			t.Errorf("%s: got %v; want %v", base, got, want)
		}
	}
}
