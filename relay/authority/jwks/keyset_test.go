package jwks_test

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/store"
)

const (
	logTrouble = "no good key set from the accounts issuer"
	logGood    = "the accounts issuer answers with a good key set again"
	logFetch   = "fetching the key set for a token"
)

// answerText makes the issuer answer for its key set with a text.
func answerText(body string) http.Handler {
	return jwkstest.Text("application/json", []byte(body))
}

// setOf is a key set of JWKs as they are written.
func setOf(keys ...any) http.Handler {
	return answerText(string(jwkstest.Marshal(obj{"keys": keys})))
}

// but is a JWK with other members; nil takes one away.
func but(k jwkstest.Key, change obj) obj {
	j := k.JWK()
	for name, v := range change {
		if j[name] = v; v == nil {
			delete(j, name)
		}
	}
	return j
}

// TestBadSets: whatever is wrong with an answer, the set from before stays, the
// operator is told once, and the next good answer ends it.
func TestBadSets(t *testing.T) {
	ed, es := jwkstest.NewKey("EdDSA", "new-ed"), jwkstest.NewKey("ES256", "new-es")
	good := string(jwkstest.Set(ed, es))
	rsa := obj{"kty": "RSA", "kid": "rsa", "n": "AQAB", "e": "AQAB"}
	p256 := elliptic.P256().Params()
	off := jwkstest.B64(new(big.Int).Sub(p256.P, big.NewInt(2)).Bytes())
	hundred := func(n int) (keys []any) {
		for i := range n {
			keys = append(keys, but(ed, obj{"kid": fmt.Sprint(i)}))
		}
		return keys
	}
	cases := []struct {
		name   string
		answer http.Handler
		want   string
	}{
		{"nothing", answerText(""), "the answer is not JSON"},
		{"HTML", jwkstest.Text("text/html", []byte("<!doctype html><title>Maintenance</title>")), "the answer is not JSON"},
		{"half a set", answerText(good[:len(good)/2]), "the answer is not JSON"},
		{"two sets", answerText(good + good), "the answer is not JSON"},
		{"a member twice", answerText(`{"keys":[],` + good[1:]), "the answer is not JSON"},
		{"a member of a key twice", answerText(strings.Replace(good, `"kid":`, `"kid":"x","kid":`, 1)), "the answer is not JSON"},
		{"a lone surrogate", answerText(strings.Replace(good, "new-ed", `\udc00`, 1)), "the answer is not JSON"},
		{"null", answerText("null"), "the answer is not a key set"},
		{"a list", answerText("[" + good + "]"), "the answer is not a key set"},
		{"a key alone", answerText(string(jwkstest.Marshal(ed.JWK()))), "the answer is not a key set"},
		{"keys an object", answerText(`{"keys":{}}`), "the answer is not a key set"},
		{"keys null", answerText(`{"keys":null}`), "the answer is not a key set"},
		{"a key a text", setOf(ed.JWK(), "key"), "the answer is not a key set"},
		{"empty", setOf(), "the answer is not a key set"},
		{"only RSA", setOf(rsa), "the key set has no Ed25519 or P-256 key for signatures"},
		{"only for encryption", setOf(but(ed, obj{"use": "enc"})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"use null", setOf(but(ed, obj{"use": jsonNull})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"only X25519", setOf(but(ed, obj{"crv": "X25519"})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"only P-384", setOf(but(es, obj{"crv": "P-384"})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"alg of another", setOf(but(ed, obj{"alg": "ES256"}), but(es, obj{"alg": "HS256"})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"only to sign", setOf(but(ed, obj{"key_ops": []string{"sign"}})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"no kid", setOf(but(ed, obj{"kid": nil}), but(es, obj{"kid": ""})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"kid of 129", setOf(but(ed, obj{"kid": strings.Repeat("k", 129)})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"31 bytes", setOf(but(ed, obj{"x": jwkstest.B64(make([]byte, 31))})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"33 bytes", setOf(but(ed, obj{"x": jwkstest.B64(make([]byte, 33))})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"x padded", setOf(but(ed, obj{"x": ed.JWK()["x"].(string) + "="})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"x missing", setOf(but(ed, obj{"x": nil}), but(es, obj{"x": nil})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"y padded", setOf(but(es, obj{"y": es.JWK()["y"].(string) + "="})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"y missing", setOf(but(es, obj{"y": nil})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"not on the curve", setOf(but(es, obj{"x": off})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"the point of nothing", setOf(but(es, obj{"x": jwkstest.B64(make([]byte, 32)), "y": jwkstest.B64(make([]byte, 32))})), "the key set has no Ed25519 or P-256 key for signatures"},
		{"a kid twice", setOf(ed.JWK(), but(es, obj{"kid": "new-ed"})), "the key set has one key id twice"},
		{"the same key twice", setOf(ed.JWK(), ed.JWK()), "the key set has one key id twice"},
		{"a kid twice, once of RSA", setOf(ed.JWK(), but(ed, obj{"kty": "RSA", "n": "AQAB", "e": "AQAB"})), "the key set has one key id twice"},
		{"a shared key under a used kid", setOf(obj{"kty": "oct", "kid": "new-ed", "k": "c2VjcmV0"}, ed.JWK()), "the key set has one key id twice"},
		{"a private key", setOf(es.JWK(), but(ed, obj{"d": jwkstest.B64(make([]byte, 32))})), "the key set shows a private key"},
		{"101 keys", setOf(hundred(101)...), "the key set has over 100 keys"},
		{"256 KiB and a byte", answerText(good + strings.Repeat(" ", 256<<10+1-len(good))), "the answer is over 256 KiB"},
		{"5 MB", answerText(good + strings.Repeat(" ", 5<<20)), "the answer is over 256 KiB"},
		{"5 MB of zip", jwkstest.Text("application/gzip", bytes.Repeat([]byte{0x1f, 0x8b}, 5<<19)), "the answer is over 256 KiB"},
		{"404", jwkstest.Status(404), "the answer has the status 404"},
		{"503", jwkstest.Status(503), "the answer has the status 503"},
		{"204", jwkstest.Status(204), "the answer has the status 204"},
		{"304", jwkstest.Status(304), "the answer has the status 304"},
		{"broken off", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(good[:20]))
		}), "the answer broke off"},
		{"no answer", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "the answer broke off"},
	}
	r := newFreshRig(t)
	troubles, goods := 0, 0
	for _, c := range cases {
		r.issuer.Serve(c.answer)
		for range 3 {
			if got := r.refreshFails(); got != c.want {
				t.Errorf("%s: got trouble %q; want %q", c.name, got, c.want)
			}
		}
		troubles++
		if got := r.logs.count(t, logTrouble); got != troubles {
			t.Errorf("%s, three times: got %d lines in the log; want %d", c.name, got, troubles)
		}
		if s := r.auth.State(); !slices.Equal(s.Keys, []string{"ed-1", "es-1"}) || !s.Usable || s.TroubleAt != r.clock.Now() {
			t.Errorf("%s: got %+v; want the two keys of before, and since when", c.name, s)
		}
		r.wants(c.name+", a host with a key of before", r.ed, "")
		r.clock.Add(time.Second)

		r.issuer.Publish(r.ed, r.es)
		r.refresh()
		goods++
		if got := r.logs.count(t, logGood); got != goods {
			t.Errorf("%s, over: got %d lines in the log; want %d", c.name, got, goods)
		}
		if s := r.auth.State(); s.Trouble != "" || !s.TroubleAt.IsZero() {
			t.Errorf("%s, over: got %+v; want no trouble", c.name, s)
		}
	}
}

var jsonNull = json.RawMessage("null")

func TestGoodSets(t *testing.T) {
	r := newFreshRig(t)
	ed, es := r.ed.JWK(), r.es.JWK()
	good := string(jwkstest.Set(r.ed, r.es))
	hundred := []any{ed, es}
	for i := range 98 {
		hundred = append(hundred, obj{"kty": "future", "kid": fmt.Sprint(i)})
	}
	for name, answer := range map[string]http.Handler{
		"as it is":                setOf(ed, es),
		"bare":                    setOf(but(r.ed, obj{"use": nil, "alg": nil}), but(r.es, obj{"use": nil, "alg": nil})),
		"to verify":               setOf(but(r.ed, obj{"key_ops": []string{"verify"}}), es),
		"with what is not known":  setOf(but(r.ed, obj{"x5c": []string{"no certificate"}, "x5u": "http://127.0.0.1:1/", "exp": 1}), es),
		"beside keys for others":  setOf(obj{"kty": "RSA", "kid": "r", "n": "AQAB", "e": "AQAB"}, ed, obj{"kty": "oct", "kid": "o", "k": "AA"}, es, obj{}),
		"beside one that is none": setOf(ed, es, but(r.ed, obj{"kid": "short", "x": "AAAA"})),
		"100 keys":                setOf(hundred...),
		"256 KiB":                 answerText(good + strings.Repeat(" ", 256<<10-len(good))),
		"called HTML":             jwkstest.Text("text/html", []byte(good)),
	} {
		r.issuer.Serve(answer)
		r.refresh()
		if got := r.auth.State().Keys; !slices.Equal(got, []string{"ed-1", "es-1"}) {
			t.Errorf("%s: got keys %q; want ed-1 and es-1", name, got)
		}
		r.wants(name, r.ed, "")
		r.wants(name, r.es, "")
	}
}

func TestRotation(t *testing.T) {
	r := newFreshRig(t)
	next := jwkstest.NewKey("EdDSA", "ed-2")
	r.issuer.Publish(r.ed, r.es, next)
	r.wants("a token with the next key, which nobody told of", next, "")
	r.fetched("the start and the next key", 2)
	r.wants("the key of before", r.ed, "")

	r.issuer.Publish(next)
	r.wants("a key that was removed, before the next fetch", r.ed, "")
	r.refresh()
	r.wants("a key that was removed", r.ed, "TOKEN_KEY")
	r.wants("another", r.es, "TOKEN_KEY")
	r.wants("the one that stays", next, "")
	if detail, err := r.auth.Refresh(context.Background()); err != nil || detail != "1 key" {
		t.Errorf("refresh: got %q, %v; want 1 key", detail, err)
	}
	r.restart()
	r.wants("a key that was removed, after a restart", r.ed, "TOKEN_KEY")
	r.wants("the one that stays, after a restart", next, "")
}

func TestKidChangesItsKey(t *testing.T) {
	r := newFreshRig(t)
	again := jwkstest.NewKey("EdDSA", "ed-1")
	r.issuer.Publish(again, r.es)
	if detail, err := r.auth.Refresh(context.Background()); err != nil || detail != "2 keys: 0 new, 1 changed, 0 gone" {
		t.Errorf("refresh: got %q, %v", detail, err)
	}
	r.wants("the key of before", r.ed, "TOKEN_SIGNATURE")
	r.wants("the key of now", again, "")

	other := jwkstest.NewKey("ES256", "ed-1")
	r.issuer.Publish(other, r.es)
	r.refresh()
	r.wants("a key of another kind under the kid, the one of before", again, "TOKEN_KEY")
	r.wants("a key of another kind under the kid", other, "")
}

// row is what the store has of the key set.
func (r *rig) row() (row []byte) {
	r.t.Helper()
	err := r.store.View(context.Background(), func(v store.Reader) (err error) {
		row, err = v.State("jwks")
		return err
	})
	if err != nil {
		r.t.Fatalf("read the row: %v", err)
	}
	return row
}

func (r *rig) setRow(row []byte) {
	r.t.Helper()
	err := r.store.Update(context.Background(), func(tx store.Tx) error { return tx.SetState("jwks", row) })
	if err != nil {
		r.t.Fatalf("write the row: %v", err)
	}
}

func TestSavedSet(t *testing.T) {
	r := newRig(t)
	r.issuer.Serve(setOf(r.ed.JWK(), r.es.JWK(), obj{"kty": "oct", "kid": "o", "k": "c2VjcmV0"}))
	r.refresh()
	row := r.row()
	if bytes.Contains(row, []byte("c2VjcmV0")) || bytes.Contains(row, []byte(`"d"`)) || bytes.Contains(row, []byte(`"k"`)) {
		t.Errorf("got the row %s; want public keys only", row)
	}
	r.issuer.Serve(jwkstest.Status(500))
	r.restart()
	r.wants("after a restart", r.ed, "")
	if got := r.auth.State(); !got.Usable || got.FetchedAt != t0 || len(got.Keys) != 2 {
		t.Errorf("got %+v; want the saved set", got)
	}
	for name, change := range map[string]func(string) string{
		"another issuer": func(s string) string { return strings.Replace(s, `"issuer":"http`, `"issuer":"x`, 1) },
		"another URL":    func(s string) string { return strings.Replace(s, jwkstest.JWKSPath, "/keys", 1) },
		"half":           func(s string) string { return `{"issuer":7}` },
		"no keys":        func(s string) string { return s[:strings.Index(s, `"keys"`)] + `"keys":[]}` },
		"no time":        func(s string) string { return strings.Replace(s, `"fetched_at"`, `"fetched"`, 1) },
		"of the future":  func(s string) string { return strings.Replace(s, "2026-", "2027-", 1) },
	} {
		changed := change(string(row))
		if changed == string(row) {
			t.Fatalf("%s: nothing changed in %s", name, row)
		}
		r.setRow([]byte(changed))
		r.restart()
		r.wants(name, r.ed, "KEYS_UNAVAILABLE")
	}
	r.logs.lines(t)
}

// readOnly is a store that takes nothing.
type readOnly struct{ store.Store }

func (readOnly) Update(context.Context, func(store.Tx) error) error { return store.ErrFull }

func TestSaveFails(t *testing.T) {
	r := newRig(t, func(r *rig) { r.wrap = func(s store.Store) store.Store { return readOnly{s} } })
	r.refresh()
	r.wants("a set that could not be saved", r.ed, "")
	if n := r.logs.count(t, "the key set could not be saved; a restart would begin without it"); n != 1 {
		t.Errorf("got %d lines in the log; want 1", n)
	}
}

func TestOptionsRefused(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(*jwks.Options){
		"no issuer":              func(o *jwks.Options) { o.Issuer = "" },
		"no audience":            func(o *jwks.Options) { o.Audience = "" },
		"no store":               func(o *jwks.Options) { o.Store = nil },
		"no URL":                 func(o *jwks.Options) { o.URL = "" },
		"http elsewhere":         func(o *jwks.Options) { o.URL = "http://accounts.example.test/jwks.json" },
		"http to a lookalike":    func(o *jwks.Options) { o.URL = "http://127.0.0.1.example.test/" },
		"another scheme":         func(o *jwks.Options) { o.URL = "file:///etc/passwd" },
		"no host":                func(o *jwks.Options) { o.URL = "https:///jwks.json" },
		"a password":             func(o *jwks.Options) { o.URL = "https://ann:hunter2@accounts.example.test/" },
		"a password, bad":        func(o *jwks.Options) { o.URL = "https://ann:hunter2@accounts example test/" },
		"a fragment":             func(o *jwks.Options) { o.URL = "https://accounts.example.test/#keys" },
		"deny list by http":      func(o *jwks.Options) { o.DenyURL = "http://accounts.example.test/deny" },
		"deny list without host": func(o *jwks.Options) { o.DenyURL = "/deny" },
	} {
		o := r.options()
		change(&o)
		a, err := jwks.New(context.Background(), o)
		if err == nil || a != nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, %v; want one line without the address", name, a, err)
		}
	}
	for _, url := range []string{"https://accounts.example.test/jwks.json?v=2", "http://localhost:8080/", "http://[::1]/", "http://127.1.2.3/"} {
		o := r.options()
		o.URL, o.DenyURL = url, ""
		if _, err := jwks.New(context.Background(), o); err != nil {
			t.Errorf("%s: got %v; want it taken", url, err)
		}
	}
}

// TestUnavailable: a token that cannot be judged is an error with the code, not a
// refusal of the token.
func TestUnavailable(t *testing.T) {
	r := newRig(t)
	r.issuer.Serve(jwkstest.Status(500))
	g, err := r.auth.Authorize(context.Background(), r.applicant(r.proof(r.ed.Sign(nil, r.claims()))))
	var why *relay.Error
	if !errors.As(err, &why) || why.Kind != relay.Unavailable || why.Reason != "KEYS_UNAVAILABLE" || g.OK {
		t.Errorf("got %+v and %#v; want an error of kind Unavailable", g, err)
	}
	_, err = r.auth.VerifyDenials(context.Background(), r.ed.DenyToken(r.issuer.URL, aud, "list-1", t0))
	if !errors.As(err, &why) || why.Kind != relay.Unavailable || why.Code != "KEYS_UNAVAILABLE" {
		t.Errorf("deny token: got %#v; want an error of kind Unavailable", err)
	}
}
