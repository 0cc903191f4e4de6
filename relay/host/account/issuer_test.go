package account

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

var t0 = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// issuer is a small accounts issuer: it checks what a host sends, and answers
// what a test tells it to.
type issuer struct {
	t   testing.TB
	url string

	mu      sync.Mutex
	now     time.Time
	calls   []string
	token   []func(http.ResponseWriter) // answers to device/token, the last one again and again
	instead map[string]func(http.ResponseWriter, *http.Request)
	cloud   wire.PublicKey
	given   []string // tokens for the relay
}

const (
	testBearer = "bearer-of-the-person-who-approved-it"
	testNonce  = "nonce-of-the-enrolment"
	testClient = "host-client-1"
	testRelay  = "https://relay.example"
)

func newIssuer(t testing.TB) *issuer {
	i := &issuer{t: t, now: t0, instead: map[string]func(http.ResponseWriter, *http.Request){}}
	i.token = []func(http.ResponseWriter){func(w http.ResponseWriter) {
		say(w, 200, map[string]any{"access_token": testBearer, "token_type": "bearer"})
	}}
	s := httptest.NewServer(i)
	t.Cleanup(s.Close)
	i.url = s.URL
	return i
}

func say(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// refuses is an OAuth error.
func refuses(status int, code string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { say(w, status, map[string]string{"error": code}) }
}

// breaks ends a connection without an answer.
func breaks(w http.ResponseWriter) {
	if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
		c.Close()
	}
}

func (i *issuer) clock() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.now
}

func (i *issuer) pass(d time.Duration) {
	i.mu.Lock()
	i.now = i.now.Add(d)
	i.mu.Unlock()
}

func (i *issuer) count(call string) (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range i.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", i.clock().Format(http.TimeFormat))
	i.mu.Lock()
	i.calls = append(i.calls, r.URL.Path)
	instead := i.instead[r.URL.Path]
	i.mu.Unlock()
	if instead != nil {
		instead(w, r)
		return
	}
	v, bearer := fields(r), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	signedIn := !strings.HasPrefix(r.URL.Path, "/v1/") && r.URL.Path != "/revoke-session" || bearer == testBearer
	switch {
	case !signedIn:
		refuses(401, "invalid_token")(w)
	case r.URL.Path == "/device/code" && v["client_id"] == "agentmbx-cli" && v["host"] == "alpha" && v["host_fingerprint"] != "":
		say(w, 200, map[string]any{"device_code": "device-code", "user_code": "ABCD-EFGH",
			"verification_uri": i.url + "/device", "expires_in": 600, "interval": 2})
	case r.URL.Path == "/device/token" && v["device_code"] == "device-code" && v["client_id"] == "agentmbx-cli" &&
		v["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code":
		i.mu.Lock()
		answer := i.token[0]
		i.token = i.token[min(1, len(i.token)-1):]
		i.mu.Unlock()
		answer(w)
	case r.URL.Path == "/v1/host/enrolments/challenge":
		say(w, 200, map[string]any{"nonce": testNonce, "expires_in": 300})
	case r.URL.Path == "/v1/host/enrolments":
		i.enrol(w, v)
	case r.URL.Path == "/revoke-session":
		say(w, 200, map[string]any{})
	case r.URL.Path == "/token":
		i.give(w, v)
	default:
		refuses(400, "unexpected")(w)
	}
}

// fields reads a form, or a document with its members as text.
func fields(r *http.Request) map[string]string {
	out := map[string]string{}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		var m map[string]json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&m)
		for k, v := range m {
			var s string
			if json.Unmarshal(v, &s) != nil {
				s = string(v)
			}
			out[k] = s
		}
		return out
	}
	_ = r.ParseForm()
	for k := range r.PostForm {
		out[k] = r.PostForm.Get(k)
	}
	return out
}

// enrol checks certificate and proof as the protocol says.
func (i *issuer) enrol(w http.ResponseWriter, v map[string]string) {
	var c struct {
		Payload json.RawMessage `json:"payload"`
		Sig     string          `json:"sig"`
	}
	host, err := wire.ParsePublicKey(v["host_pub"])
	if err == nil {
		err = json.Unmarshal([]byte(v["certificate"]), &c)
	}
	cert, certErr := wire.VerifyCloudCertificate(c.Payload, c.Sig, host)
	switch {
	case err != nil || certErr != nil || cert.Aud != i.url:
		say(w, 400, map[string]string{"error": "bad_certificate"})
	case v["nonce"] != testNonce || !wire.VerifyCloudProof(cert.CloudPub, v["proof"], testNonce, host, i.url):
		say(w, 400, map[string]string{"error": "bad_proof"})
	default:
		i.mu.Lock()
		i.cloud = cert.CloudPub
		i.mu.Unlock()
		say(w, 200, map[string]any{
			"host_id": "host-1", "client_id": testClient, "token_endpoint": i.url + "/token", "jwks_uri": i.url + "/jwks.json",
			"resources": map[string]string{"api": "https://api.example", "relay": testRelay},
		})
	}
}

// give checks a client assertion and gives a token of ten minutes.
func (i *issuer) give(w http.ResponseWriter, v map[string]string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	parts := strings.Split(v["client_assertion"], ".")
	var claims struct {
		Iss, Sub, Aud, Jti string
		Iat, Exp           int64
	}
	ok := len(parts) == 3 && v["grant_type"] == "client_credentials" &&
		v["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	if ok {
		sig, err := base64.RawURLEncoding.DecodeString(parts[2])
		ok = err == nil && ed25519.Verify(i.cloud[:], []byte(parts[0]+"."+parts[1]), sig)
		doc, _ := base64.RawURLEncoding.DecodeString(parts[1])
		ok = ok && json.Unmarshal(doc, &claims) == nil
	}
	if !ok || claims.Iss != testClient || claims.Sub != testClient || claims.Aud != i.url+"/token" || claims.Jti == "" ||
		claims.Iat != i.now.Unix() || claims.Exp-claims.Iat > 60 || v["resource"] != testRelay {
		refuses(401, "invalid_client")(w)
		return
	}
	t := jwt(i.now, i.now.Add(10*time.Minute), fmt.Sprint(len(i.given)))
	i.given = append(i.given, t)
	say(w, 200, map[string]any{"access_token": t, "token_type": "Bearer", "expires_in": 600})
}

// jwt has the shape of a token, and nobody's signature.
func jwt(iat, exp time.Time, jti string) string {
	b := base64.RawURLEncoding.EncodeToString
	return b([]byte(`{"alg":"EdDSA"}`)) + "." + b(fmt.Appendf(nil, `{"iat":%d,"exp":%d,"jti":%q}`, iat.Unix(), exp.Unix(), jti)) + "." + b([]byte("signature"))
}

// login signs alpha in; waiting for the person moves the clock.
func (i *issuer) login(ctx context.Context, home string, change func(*LoginOptions)) (Record, []Prompt, []time.Duration, error) {
	var shown []Prompt
	var waits []time.Duration
	o := LoginOptions{
		Home: home, Base: i.url, Host: "alpha", Key: must(wire.GenerateKey()), Now: i.clock,
		Show: func(p Prompt) error { shown = append(shown, p); return nil },
		Wait: func(ctx context.Context, d time.Duration) error {
			waits = append(waits, d)
			i.pass(d)
			return ctx.Err()
		},
	}
	if change != nil {
		change(&o)
	}
	r, err := Login(ctx, o)
	return r, shown, waits, err
}

// home is a folder of a host.
func newHome(t testing.TB) string {
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// noSecrets fails when a file of a home holds a bearer or a token.
func (i *issuer) noSecrets(home string) {
	i.t.Helper()
	for _, e := range must(os.ReadDir(home)) {
		data := string(must(os.ReadFile(filepath.Join(home, e.Name()))))
		for _, s := range append(i.given, testBearer) {
			if strings.Contains(data, s) || strings.Contains(data, url.QueryEscape(s)) {
				i.t.Errorf("%s holds a bearer", e.Name())
			}
		}
		if perm := must(e.Info()).Mode().Perm(); perm != 0o600 {
			i.t.Errorf("%s has the mode %o; want 600", e.Name(), perm)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
