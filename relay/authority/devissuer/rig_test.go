package devissuer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/agentmbx/agentmbx/relay/wire"
)

var t0 = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

const relayURL = "https://relay.example"

// rig is an issuer behind real HTTP, with a clock that tests move.
type rig struct {
	t   *testing.T
	o   Options
	i   *Issuer
	url string
	log *lockedLog

	mu  sync.Mutex
	now time.Time
}

type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, now: t0, log: &lockedLog{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		i := r.i
		r.mu.Unlock()
		i.ServeHTTP(w, q)
	}))
	t.Cleanup(srv.Close)
	r.url = srv.URL
	r.o = Options{Dir: t.TempDir(), Base: srv.URL, Relay: relayURL, NoPush: true, Now: r.clock,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(&r.o)
	}
	r.open()
	t.Cleanup(func() { noError(t, r.i.Close()) })
	return r
}

func (r *rig) open() {
	r.t.Helper()
	i, err := New(r.o)
	noError(r.t, err)
	r.mu.Lock()
	r.i = i
	r.mu.Unlock()
}

func (r *rig) restart() {
	r.t.Helper()
	noError(r.t, r.i.Close())
	r.open()
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got error %v; want none", err)
	}
}

// answer is what an endpoint said.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   []byte
	v      map[string]any
}

func (a answer) text(name string) string {
	a.t.Helper()
	s, ok := a.v[name].(string)
	if !ok {
		a.t.Fatalf("got %s %s; want a text called %s", http.StatusText(a.status), a.body, name)
	}
	return s
}

// is checks a status, and the code of a refusal.
func (a answer) is(status int, code string) {
	a.t.Helper()
	got, _ := a.v["error"].(string)
	if a.status != status || got != code {
		a.t.Errorf("got %d %s; want %d %q", a.status, a.body, status, code)
	}
}

func (r *rig) send(method, path, kind, bearer, body string) answer {
	r.t.Helper()
	q, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	noError(r.t, err)
	q.Header.Set("Content-Type", kind)
	if bearer != "" {
		q.Header.Set("Authorization", "Bearer "+bearer)
	}
	return r.do(q)
}

func (r *rig) do(q *http.Request) answer {
	r.t.Helper()
	resp, err := http.DefaultClient.Do(q)
	noError(r.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	noError(r.t, err)
	a := answer{t: r.t, status: resp.StatusCode, header: resp.Header, body: body, v: map[string]any{}}
	_ = json.Unmarshal(body, &a.v) // what is no JSON has no members
	return a
}

// form posts form values.
func (r *rig) form(path string, v map[string]string) answer {
	r.t.Helper()
	u := url.Values{}
	for name, s := range v {
		u.Set(name, s)
	}
	return r.send("POST", path, "application/x-www-form-urlencoded", "", u.Encode())
}

// json posts a document.
func (r *rig) json(path, bearer string, v any) answer {
	r.t.Helper()
	doc, err := json.Marshal(v)
	noError(r.t, err)
	return r.send("POST", path, "application/json", bearer, string(doc))
}

// host is a host's two keys.
type host struct {
	name       string
	key, cloud wire.PrivateKey
	clientID   string
	hostID     string
}

func newHost(t *testing.T, name string) *host {
	t.Helper()
	key, err := wire.GenerateKey()
	noError(t, err)
	cloud, err := wire.GenerateKey()
	noError(t, err)
	return &host{name: name, key: key, cloud: cloud}
}

// begin is what begins a host's login.
func (h *host) begin() map[string]string {
	return map[string]string{"client_id": "agentmbx-cli", "host": h.name, "host_fingerprint": h.key.Public().Fingerprint()}
}

func poll(device string) map[string]string {
	return map[string]string{"client_id": "agentmbx-cli", "grant_type": deviceGrant, "device_code": device}
}

// login signs a host in for an account.
func (r *rig) login(h *host, account string) (bearer string) {
	r.t.Helper()
	a := r.form("/device/code", h.begin())
	a.is(200, "")
	_, err := r.i.Approve(a.text("user_code"), account, "")
	noError(r.t, err)
	return r.form("/device/token", poll(a.text("device_code"))).text("access_token")
}

// enrolment is an enrolment's body with a fresh nonce, for tests to spoil.
func (r *rig) enrolment(h *host, bearer string) map[string]any {
	r.t.Helper()
	a := r.json("/v1/host/enrolments/challenge", bearer, map[string]string{"host_name": h.name, "host_pub": h.key.Public().String(), "cloud_pub": h.cloud.Public().String()})
	a.is(200, "")
	nonce := a.text("nonce")
	return map[string]any{
		"host_name": h.name, "host_pub": h.key.Public().String(), "nonce": nonce,
		"certificate": r.certificate(h.key, h.cloud.Public(), r.url), "proof": wire.SignCloudProof(h.cloud, nonce, h.key.Public(), r.url),
	}
}

func (r *rig) certificate(key wire.PrivateKey, cloud wire.PublicKey, aud string) map[string]any {
	payload, sig := wire.MakeCloudCertificate(key, cloud, aud, r.clock())
	return map[string]any{"payload": json.RawMessage(payload), "sig": sig}
}

// enrolled signs a host in and enrols it.
func (r *rig) enrolled(h *host, account string) *host {
	r.t.Helper()
	bearer := r.login(h, account)
	a := r.json("/v1/host/enrolments", bearer, r.enrolment(h, bearer))
	a.is(200, "")
	h.clientID, h.hostID = a.text("client_id"), a.text("host_id")
	return h
}

// asserted are the claims of a good client assertion.
func (r *rig) asserted(h *host) map[string]any {
	now := r.clock().Unix()
	return map[string]any{"iss": h.clientID, "sub": h.clientID, "aud": r.url + "/token", "iat": now, "exp": now + 60, "jti": secret()}
}

// compact signs a token by hand, so that tests can say anything.
func compact(key wire.PrivateKey, header, claims any) string {
	part := func(v any) string {
		doc, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return base64.RawURLEncoding.EncodeToString(doc)
	}
	signed := part(header) + "." + part(claims)
	sig, err := wire.DecodeBase64(key.Sign([]byte(signed)))
	if err != nil {
		panic(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(sig)
}

var edDSA = map[string]any{"alg": "EdDSA", "typ": "JWT"}

// asking is a good form for a token, to be changed.
func (r *rig) asking(h *host, resource string, change map[string]string) map[string]string {
	form := map[string]string{
		"grant_type": "client_credentials", "client_assertion_type": assertionType, "resource": resource,
		"client_assertion": compact(h.cloud, edDSA, r.asserted(h)),
	}
	maps.Copy(form, change)
	return form
}

// verified checks a token by the key set as it is published, with the library, and
// reads it.
func (r *rig) verified(token string) (header, claims map[string]any) {
	r.t.Helper()
	set, err := jwk.Parse(r.send("GET", "/.well-known/jwks.json", "", "", "").body)
	noError(r.t, err)
	payload, err := jws.Verify([]byte(token), jws.WithKeySet(set))
	noError(r.t, err)
	head, err := base64.RawURLEncoding.DecodeString(token[:strings.Index(token, ".")])
	noError(r.t, err)
	noError(r.t, json.Unmarshal(head, &header))
	noError(r.t, json.Unmarshal(payload, &claims))
	return header, claims
}
