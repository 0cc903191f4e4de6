package jwks_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

type obj = jwkstest.JSON

// attempt is an enrolment that would be granted. Each case changes one thing of it.
type attempt struct {
	key       jwkstest.Key
	header    obj
	claims    obj
	token     string // when it is not made of the above
	certifier wire.PrivateKey
	payload   obj // of the certificate, when it is not a good one
	certSig   string
	certAud   string
	cloud     wire.PrivateKey // who signs the cloud proof
	challenge string
	popAud    string
	proof     func(obj) // changes the proof as it is sent
	raw       string    // is the proof
	who       func(*relay.Applicant)
}

func (r *rig) good() *attempt {
	return &attempt{
		key: r.ed, header: obj{}, claims: r.claims(), certifier: r.host.Key, certAud: aud,
		cloud: r.host.Cloud, challenge: challenge, popAud: aud,
	}
}

// applicant is the attempt as an authority sees it.
func (a *attempt) applicant(r *rig) relay.Applicant {
	token := a.token
	if token == "" {
		token = a.key.Sign(a.header, a.claims)
	}
	payload, sig := wire.MakeCloudCertificate(a.certifier, r.host.Cloud.Public(), a.certAud, r.clock.Now())
	if a.payload != nil {
		var m obj
		if err := json.Unmarshal(payload, &m); err != nil {
			r.t.Fatal(err)
		}
		maps.Copy(m, a.payload)
		maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
		b, err := wire.Canonical(jwkstest.Marshal(m))
		if err != nil {
			r.t.Fatal(err)
		}
		payload, sig = b, a.certifier.Sign(b)
	}
	if a.certSig != "" {
		sig = a.certSig
	}
	pop := a.cloud.Sign(wire.CloudProofPayload(a.challenge, r.host.Key.Public(), r.host.Cloud.Public(), a.popAud))
	proof := obj{
		"token": token, "certificate": obj{"payload": json.RawMessage(payload), "sig": sig}, "cloud_sig": pop,
	}
	if a.proof != nil {
		a.proof(proof)
	}
	who := r.applicant(jwkstest.Marshal(proof))
	if a.raw != "" {
		who.Proof = json.RawMessage(a.raw)
	}
	if a.who != nil {
		a.who(&who)
	}
	return who
}

func header(name string, value any) func(*rig, *attempt) {
	return func(_ *rig, a *attempt) { a.header[name] = value }
}

func claim(name string, value any) func(*rig, *attempt) {
	return func(_ *rig, a *attempt) {
		a.claims[name] = value
		if value == nil {
			delete(a.claims, name)
		}
	}
}

func proof(f func(obj)) func(*rig, *attempt) { return func(_ *rig, a *attempt) { a.proof = f } }

func raw(s string) func(*rig, *attempt) { return func(_ *rig, a *attempt) { a.raw = s } }

func payload(name string, value any) func(*rig, *attempt) {
	return func(_ *rig, a *attempt) { a.payload = obj{name: value} }
}

// text makes the token of a header and claims as they are written here, ISS and
// AUD and the like put in.
func text(head, body string) func(*rig, *attempt) {
	return func(r *rig, a *attempt) {
		whole := string(jwkstest.Marshal(a.claims))
		a.token = a.key.SignText([]byte(head), []byte(strings.ReplaceAll(body, "CLAIMS", whole[1:len(whole)-1])))
	}
}

const goodHead = `{"alg":"EdDSA","kid":"ed-1"}`

// at is a date so long after the rig's now, in seconds; fractions allowed.
func at(d time.Duration) float64 { return float64(t0.Add(d).UnixMilli()) / 1000 }

func dates(iat, exp time.Duration) func(*rig, *attempt) {
	return func(_ *rig, a *attempt) { a.claims["iat"], a.claims["exp"] = at(iat), at(exp) }
}

func TestGrant(t *testing.T) {
	r := newFreshRig(t)
	for _, k := range []jwkstest.Key{r.ed, r.es} {
		g, err := r.auth.Authorize(context.Background(), r.applicant(r.proof(k.Sign(nil, r.claims()))))
		want := relay.Grant{
			OK: true, By: "account-token", Account: "acc-1", Org: "org-1", ClientID: "client-1", SessionEnds: t0.Add(10 * time.Minute),
		}
		if err != nil || g != want {
			t.Errorf("%s: got %+v, %v; want %+v", k.Alg, g, err, want)
		}
	}
}

func TestSameTokenTwice(t *testing.T) {
	r := newFreshRig(t)
	token := r.ed.Sign(nil, r.claims())
	for range 2 {
		if got := r.code(r.applicant(r.proof(token))); got != "" {
			t.Errorf("got %q; want a grant", got)
		}
	}
}

// TestChecks starts from a proof that is granted and changes one thing: so each
// check is seen to fail alone, and none of the changes that want "" is minded.
func TestChecks(t *testing.T) {
	other := jwkstest.NewHost()
	long := strings.Repeat("k", 201)
	cases := []struct {
		name   string
		change func(*rig, *attempt)
		want   string
	}{
		{"as it is", func(*rig, *attempt) {}, ""},

		{"no proof", func(_ *rig, a *attempt) { a.who = func(w *relay.Applicant) { w.Proof = nil } }, "PROOF_MISSING"},
		{"null", raw(" null"), "PROOF_MISSING"},
		{"a text for a proof", raw(`"proof"`), "PROOF_BAD"},
		{"a list for a proof", raw(`[]`), "PROOF_BAD"},
		{"no members", raw(`{}`), "PROOF_BAD"},
		{"a member twice", raw(`{"token":"a","token":"b","certificate":{"payload":{},"sig":""},"cloud_sig":""}`), "PROOF_BAD"},
		{"another case", raw(`{"Token":"a","certificate":{"payload":{},"sig":""},"cloud_sig":""}`), "PROOF_BAD"},
		{"no token", proof(func(p obj) { delete(p, "token") }), "PROOF_BAD"},
		{"a number for a token", proof(func(p obj) { p["token"] = 7 }), "PROOF_BAD"},
		{"no certificate", proof(func(p obj) { p["certificate"] = nil }), "PROOF_BAD"},
		{"no payload", proof(func(p obj) { delete(p["certificate"].(obj), "payload") }), "PROOF_BAD"},
		{"no signature of the certificate", proof(func(p obj) { delete(p["certificate"].(obj), "sig") }), "PROOF_BAD"},
		{"no cloud_sig", proof(func(p obj) { p["cloud_sig"] = nil }), "PROOF_BAD"},
		{"one member more", proof(func(p obj) { p["note"] = "kept for later" }), ""},

		{"an empty token", proof(func(p obj) { p["token"] = "" }), "TOKEN_SIZE"},
		{"over 6 KiB", claim("pad", strings.Repeat("x", 6<<10)), "TOKEN_SIZE"},
		{"an oversized header", header("pad", strings.Repeat("x", 6<<10)), "TOKEN_SIZE"},

		{"typ JWT", header("typ", "JWT"), ""},
		{"no typ", header("typ", nil), ""},
		{"typ of a deny token", header("typ", "mbx-deny+jwt"), "TOKEN_FORM"},
		{"typ of an id token", header("typ", "id_token"), "TOKEN_FORM"},
		{"typ a number", header("typ", 1), "TOKEN_FORM"},
		{"typ empty", header("typ", ""), "TOKEN_FORM"},
		{"a member of the header twice", text(`{"alg":"EdDSA","kid":"ed-1","kid":"ed-1"}`, `{CLAIMS}`), "TOKEN_FORM"},
		{"a claim twice", text(goodHead, `{CLAIMS,"iat":1}`), "TOKEN_FORM"},
		{"a claim twice, escaped", text(goodHead, `{CLAIMS,"i\u0061t":1}`), "TOKEN_FORM"},
		{"a lone surrogate", text(goodHead, `{CLAIMS,"note":"\ud800"}`), "TOKEN_FORM"},
		{"no UTF-8", text(goodHead, "{CLAIMS,\"note\":\"\xff\"}"), "TOKEN_FORM"},
		{"data after the claims", text(goodHead, `{CLAIMS} {}`), "TOKEN_FORM"},
		{"claims null", text(goodHead, `null`), "TOKEN_FORM"},
		{"claims a list", text(goodHead, `[{CLAIMS}]`), "TOKEN_FORM"},
		{"a header that is null", text(`null`, `{CLAIMS}`), "TOKEN_FORM"},
		{"white space in the claims", text(goodHead, " {CLAIMS}\n"), ""},
		{"names of another case", text(goodHead, `{CLAIMS,"ISS":"x","Exp":1,"AUD":2}`), ""},

		{"crit", header("crit", []string{"exp"}), "TOKEN_CRIT"},
		{"an unknown crit", header("crit", []string{"urn:example:x"}), "TOKEN_CRIT"},
		{"an empty crit", header("crit", []string{}), "TOKEN_CRIT"},
		{"crit null", text(`{"alg":"EdDSA","kid":"ed-1","crit":null}`, `{CLAIMS}`), "TOKEN_CRIT"},

		{"no alg", header("alg", nil), "TOKEN_ALG"},
		{"alg a number", header("alg", 1), "TOKEN_ALG"},
		{"alg of another case", header("alg", "eddsa"), "TOKEN_ALG"},
		{"alg Ed25519", header("alg", "Ed25519"), "TOKEN_ALG"}, // RFC 9864; the protocol has EdDSA

		{"no kid", header("kid", nil), "TOKEN_KID"},
		{"kid empty", header("kid", ""), "TOKEN_KID"},
		{"kid a number", header("kid", 1), "TOKEN_KID"},
		{"kid of 129", header("kid", strings.Repeat("k", 129)), "TOKEN_KID"},
		{"kid of 128", header("kid", strings.Repeat("k", 128)), "TOKEN_KEY"},
		{"kid unknown", header("kid", "nobody"), "TOKEN_KEY"},
		{"kid of another case", header("kid", "ED-1"), "TOKEN_KEY"},
		{"kid hostile", header("kid", "a\n{\"level\":\"ERROR\"}\x1b[2J\u202e"), "TOKEN_KEY"},
		{"the other key's kid", header("kid", "es-1"), "TOKEN_KEY"}, // its alg is another

		{"another key's signature", func(r *rig, a *attempt) { a.key = jwkstest.NewKey("EdDSA", r.ed.Kid) }, "TOKEN_SIGNATURE"},

		{"another issuer", claim("iss", "https://accounts.example.test"), "TOKEN_ISSUER"},
		{"the issuer with a slash", func(r *rig, a *attempt) { a.claims["iss"] = r.issuer.URL + "/" }, "TOKEN_ISSUER"},
		{"no issuer", claim("iss", nil), "TOKEN_ISSUER"},

		{"another audience", claim("aud", "https://api.example.test"), "TOKEN_AUDIENCE"},
		{"the audience with a slash", claim("aud", aud+"/"), "TOKEN_AUDIENCE"},
		{"no audience", claim("aud", nil), "TOKEN_AUDIENCE"},
		{"an array of one", claim("aud", []string{aud}), ""},
		{"an array of the API", claim("aud", []string{"https://api.example.test"}), "TOKEN_AUDIENCE"},
		{"an array of two", claim("aud", []string{aud, "https://api.example.test"}), "TOKEN_AUDIENCE"},
		{"an array of twice the same", claim("aud", []string{aud, aud}), "TOKEN_AUDIENCE"},
		{"an array of none", claim("aud", []string{}), "TOKEN_AUDIENCE"},
		{"an array in an array", claim("aud", [][]string{{aud}}), "TOKEN_AUDIENCE"},
		{"an object", claim("aud", obj{aud: true}), "TOKEN_AUDIENCE"},

		{"over for 59.999 s", dates(-10*time.Minute, -59999*time.Millisecond), ""},
		{"over for 60 s", dates(-10*time.Minute, -60*time.Second), "TOKEN_EXPIRED"},
		{"over in milliseconds", claim("exp", t0.Add(-time.Hour).UnixMilli()), "TOKEN_CLAIMS"},
		{"of 60 s ahead", dates(60*time.Second, 10*time.Minute), ""},
		{"of 60.001 s ahead", dates(60001*time.Millisecond, 10*time.Minute), "TOKEN_EARLY"},
		{"nbf 60 s ahead", claim("nbf", at(60*time.Second)), ""},
		{"nbf 60.001 s ahead", claim("nbf", at(60001*time.Millisecond)), "TOKEN_EARLY"},
		{"a life of 15 min", dates(0, 15*time.Minute), ""},
		{"a life of 15 min and 1 ms", dates(0, 15*time.Minute+time.Millisecond), "TOKEN_LIFETIME"},
		{"a life of nothing", dates(0, 0), "TOKEN_LIFETIME"},
		{"a life of less", dates(time.Second, -time.Second), "TOKEN_LIFETIME"},

		{"no exp", claim("exp", nil), "TOKEN_CLAIMS"},
		{"no iat", claim("iat", nil), "TOKEN_CLAIMS"},
		{"exp a text", claim("exp", "1790000000"), "TOKEN_CLAIMS"},
		{"iat a text", claim("iat", wire.FormatTime(t0)), "TOKEN_CLAIMS"},
		{"iat negative", claim("iat", -1), "TOKEN_CLAIMS"},
		{"nbf a text", claim("nbf", "now"), "TOKEN_CLAIMS"},
		{"nbf null", text(goodHead, `{CLAIMS,"nbf":null}`), "TOKEN_CLAIMS"},
		{"nbf beyond all", text(goodHead, `{CLAIMS,"nbf":1e300}`), "TOKEN_CLAIMS"},

		{"no cnf", claim("cnf", nil), "TOKEN_BINDING"},
		{"cnf a text", claim("cnf", "jkt"), "TOKEN_BINDING"},
		{"no jkt", claim("cnf", obj{"jwk": obj{}}), "TOKEN_BINDING"},
		{"jkt of the host key", func(r *rig, a *attempt) { a.claims["cnf"] = obj{"jkt": r.host.Key.Public().Thumbprint()} }, "TOKEN_BINDING"},
		{"another cloud key certified", payload("cloud_pub", other.Cloud.Public().String()), "TOKEN_BINDING"},

		{"no cloud key certified", payload("cloud_pub", nil), "CERTIFICATE_BAD"},
		{"cloud_pub no key", payload("cloud_pub", "AAAA"), "CERTIFICATE_BAD"},
		{"host_pub no key", payload("host_pub", "AAAA"), "CERTIFICATE_BAD"},
		{"another type", payload("type", "host-rotation"), "CERTIFICATE_BAD"},
		{"another version", payload("v", 2), "CERTIFICATE_BAD"},
		{"no time", payload("iat", nil), "CERTIFICATE_BAD"},
		{"a fractional time", payload("iat", 1790000000.5), "CERTIFICATE_BAD"},
		{"a text for a certificate", proof(func(p obj) { p["certificate"].(obj)["payload"] = "e30=" }), "CERTIFICATE_BAD"},
		{"one member more in the certificate", payload("note", "signed like the rest"), ""},
		{"another host certified", payload("host_pub", other.Key.Public().String()), "CERTIFICATE_HOST"},
		{"for another relay", func(_ *rig, a *attempt) { a.certAud = "https://other.example.test" }, "CERTIFICATE_AUDIENCE"},
		{"for no relay", payload("aud", ""), "CERTIFICATE_BAD"},
		{"signed by another host", func(_ *rig, a *attempt) { a.certSig = other.Key.Sign([]byte("x")) }, "CERTIFICATE_SIGNATURE"},
		{"the signature no signature", func(_ *rig, a *attempt) { a.certSig = "AAAA" }, "CERTIFICATE_SIGNATURE"},

		{"another cloud key signs", func(_ *rig, a *attempt) { a.cloud = other.Cloud }, "CLOUD_PROOF"},
		{"the host key signs", func(r *rig, a *attempt) { a.cloud = r.host.Key }, "CLOUD_PROOF"},
		{"another challenge", func(_ *rig, a *attempt) { a.challenge = "the-last-one" }, "CLOUD_PROOF"},
		{"the proof for another relay", func(_ *rig, a *attempt) { a.popAud = "https://other.example.test" }, "CLOUD_PROOF"},
		{"cloud_sig no signature", proof(func(p obj) { p["cloud_sig"] = "AAAA" }), "CLOUD_PROOF"},
	}
	for _, name := range []string{"sub", "account", "org", "client_id", "jti"} {
		cases = append(cases, []struct {
			name   string
			change func(*rig, *attempt)
			want   string
		}{
			{"no " + name, claim(name, nil), "TOKEN_CLAIMS"},
			{name + " empty", claim(name, ""), "TOKEN_CLAIMS"},
			{name + " a number", claim(name, 7), "TOKEN_CLAIMS"},
			{name + " of 200", claim(name, long[:200]), ""},
			{name + " of 201", claim(name, long), "TOKEN_CLAIMS"},
			{name + " of 101 pairs", claim(name, strings.Repeat("😀", 101)), "TOKEN_CLAIMS"},
			{name + " that clears the screen", claim(name, "a\x1b[2J"), "TOKEN_CLAIMS"},
		}...)
	}
	r := newFreshRig(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := r.good()
			c.change(r, a)
			if got := r.code(a.applicant(r)); got != c.want {
				t.Errorf("got %q; want %q", got, c.want)
			}
		})
	}
}

func TestLargestToken(t *testing.T) {
	r := newFreshRig(t)
	// Base64 skips every fourth length; a pad of the header makes up for it.
	sized := func(size int) string {
		claims := r.claims()
		for pad := range 4 {
			head := obj{"pad": strings.Repeat("x", pad)}
			for n := (size - len(r.ed.Sign(head, claims))) * 3 / 4; n > 0; n-- {
				claims["pad"] = strings.Repeat("x", n)
				token := r.ed.Sign(head, claims)
				if len(token) == size {
					return token
				}
				if len(token) < size {
					break
				}
			}
			delete(claims, "pad")
		}
		t.Fatalf("no token of %d bytes", size)
		return ""
	}
	for size, want := range map[int]string{6 << 10: "", 6<<10 + 1: "TOKEN_SIZE"} {
		if got := r.code(r.applicant(r.proof(sized(size)))); got != want {
			t.Errorf("%d bytes: got %q; want %q", size, got, want)
		}
	}
}

// TestStolen has a thief who has all that a host ever sent, and a key and a name of
// its own.
func TestStolen(t *testing.T) {
	r := newFreshRig(t)
	stolen := r.good().applicant(r)
	thief := jwkstest.NewHost()
	var p struct {
		Token    string
		CloudSig string `json:"cloud_sig"`
	}
	if err := json.Unmarshal(stolen.Proof, &p); err != nil {
		t.Fatal(err)
	}
	certify := func(cloud wire.PublicKey) obj {
		payload, sig := wire.MakeCloudCertificate(thief.Key, cloud, aud, t0)
		return obj{"payload": json.RawMessage(payload), "sig": sig}
	}
	sign := wire.SignCloudProof(thief.Cloud, challenge, thief.Key.Public(), aud)
	for _, c := range []struct {
		name  string
		proof json.RawMessage
		want  string
	}{
		{"token and certificate as they are", stolen.Proof, "CERTIFICATE_HOST"},
		{"a certificate of one's own for one's own cloud key",
			jwkstest.Marshal(obj{"token": p.Token, "certificate": certify(thief.Cloud.Public()), "cloud_sig": sign}), "TOKEN_BINDING"},
		{"a certificate of one's own for the stolen cloud key",
			jwkstest.Marshal(obj{"token": p.Token, "certificate": certify(r.host.Cloud.Public()), "cloud_sig": p.CloudSig}), "CLOUD_PROOF"},
		{"and a signature of one's own",
			jwkstest.Marshal(obj{"token": p.Token, "certificate": certify(r.host.Cloud.Public()), "cloud_sig": sign}), "CLOUD_PROOF"},
	} {
		who := relay.Applicant{Name: "alpha", Key: thief.Key.Public(), Challenge: challenge, Proof: c.proof}
		if got := r.code(who); got != c.want {
			t.Errorf("%s: got %q; want %q", c.name, got, c.want)
		}
	}
	later := stolen
	later.Challenge = "another-challenge"
	if got := r.code(later); got != "CLOUD_PROOF" {
		t.Errorf("replayed: got %q; want CLOUD_PROOF", got)
	}
}
