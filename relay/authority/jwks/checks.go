package jwks

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Bounds of a token.
const (
	largestToken = 6 << 10
	longestKid   = 128
	leeway       = 60 * time.Second // between the issuer's clock and ours
)

// keysUnavailable is the one code that is no fault of whoever asks.
const keysUnavailable = "KEYS_UNAVAILABLE"

// check is one thing that must hold. Its code is stable; its text tells the
// host's owner what to do and repeats nothing of what was sent.
type check struct {
	code  string
	holds func(ctx context.Context, e *exam) bool
	text  string
}

// accountChecks are made in this order; the first that fails decides. Each may
// lean on those before it.
var accountChecks = []check{
	{"PROOF_MISSING", proofSent, "this relay takes hosts with an account: sign in and enrol with an account token"},
	{"PROOF_BAD", proofRead, "the proof must be {token, certificate: {payload, sig}, cloud_sig}"},
	{"TOKEN_SIZE", accountSize, "the token is empty or over 6 KiB"},
	{"TOKEN_FORM", accountForm, "the token is not an access token in the compact form of a JWS"},
	{"TOKEN_CRIT", noExtensions, "the token asks for an extension that is not known here"},
	{"TOKEN_ALG", algorithm, "the token must be signed with EdDSA or ES256"},
	{"TOKEN_KID", keyNamed, "the token does not name its key in at most 128 characters"},
	{keysUnavailable, keysUsable, "the relay cannot get the keys of the accounts issuer; try again in a few minutes"},
	{"TOKEN_KEY", keyKnown, "the accounts issuer has no such key; get a fresh token and try again in a minute"},
	{"TOKEN_SIGNATURE", signature, "the token is not signed by the key that it names"},
	{"TOKEN_ISSUER", issuer, "the token is of another issuer than this relay's"},
	{"TOKEN_AUDIENCE", audience, "the token is not for this relay alone; ask for one with the relay's URL as its resource"},
	{"TOKEN_EXPIRED", notExpired, "the token is over; get a fresh one"},
	{"TOKEN_EARLY", notEarly, "the token is of the future; compare the clocks of the issuer and the relay"},
	{"TOKEN_LIFETIME", lifetime, "the token must live for 15 minutes at most"},
	{"TOKEN_CLAIMS", accountClaims, "the token lacks one of exp, iat, sub, account, org, client_id and jti, or one is not fit to keep"},
	{"TOKEN_BINDING", bound, "the token is bound to another cloud key"},
	{"CERTIFICATE_BAD", certificateRead, "the certificate is not one of a cloud key"},
	{"CERTIFICATE_HOST", certificateHost, "the certificate is another host's"},
	{"CERTIFICATE_AUDIENCE", certificateAudience, "the certificate is for another relay; make one for this relay's URL"},
	{"CERTIFICATE_SIGNATURE", certificateSigned, "the certificate is not signed by the host key"},
	{"CLOUD_PROOF", cloudKeyHeld, "the cloud key has not signed this challenge"},
}

// exam is one proof or one deny token under examination: what was sent, and what
// the checks so far have read of it.
type exam struct {
	issuer   string
	audience string
	now      time.Time
	keys     *keySet

	who   relay.Applicant
	proof proof
	text  string // of the token
	token token
	key   publicKey
	known bool // key is the one that the token names
	cert  *certificate
	deny  []relay.DenyEntry
}

func (a *Authority) exam() *exam {
	return &exam{issuer: a.issuer, audience: a.audience, now: a.now(), keys: a.keys}
}

// firstFailed is the first check that does not hold, or nil.
func firstFailed(ctx context.Context, checks []check, e *exam) *check {
	for i := range checks {
		if !checks[i].holds(ctx, e) {
			return &checks[i]
		}
	}
	return nil
}

func proofSent(_ context.Context, e *exam) bool { return !none(e.who.Proof) }

func proofRead(_ context.Context, e *exam) (ok bool) {
	e.proof, ok = readProof([]byte(e.who.Proof))
	e.text = e.proof.token
	return ok
}

func accountSize(_ context.Context, e *exam) bool {
	return e.text != "" && len(e.text) <= largestToken
}

// accountForm refuses tokens of another type, a deny token above all. Types are
// compared without case, as media types are.
func accountForm(_ context.Context, e *exam) (ok bool) {
	e.token, ok = readToken(e.text)
	typ := e.token.header.typ
	return ok && (!typ.sent || typ.is && slices.Contains([]string{"jwt", "at+jwt"}, strings.ToLower(typ.s)))
}

func noExtensions(_ context.Context, e *exam) bool { return !e.token.header.extended }

func algorithm(_ context.Context, e *exam) bool {
	_, ok := verifiers[e.token.header.alg.s]
	return ok
}

func keyNamed(_ context.Context, e *exam) bool { return validKid(e.token.header.kid) }

func validKid(kid text) bool { return kid.s != "" && wire.UTF16Len(kid.s) <= longestKid }

// keysUsable finds the key, and fetches the set for it if that may help.
func keysUsable(ctx context.Context, e *exam) (usable bool) {
	e.key, e.known, usable = e.keys.find(ctx, e.token.header.kid.s)
	return usable
}

// keyKnown also holds the algorithm to the key: a token never chooses how its key
// is used.
func keyKnown(_ context.Context, e *exam) bool {
	return e.known && e.key.alg == e.token.header.alg.s
}

func signature(_ context.Context, e *exam) bool { return e.key.verify(e.token.signed, e.token.sig) }

func issuer(_ context.Context, e *exam) bool { return e.token.claims.iss.s == e.issuer }

func audience(_ context.Context, e *exam) bool { return e.token.claims.aud.s == e.audience }

// Dates that are missing or no numbers are left to the check of the claims.

func notExpired(_ context.Context, e *exam) bool {
	exp := e.token.claims.exp
	return !exp.is || e.now.Before(exp.at.Add(leeway))
}

func notEarly(_ context.Context, e *exam) bool {
	latest := e.now.Add(leeway)
	c := e.token.claims
	return !c.iat.at.After(latest) && !c.nbf.at.After(latest)
}

func lifetime(_ context.Context, e *exam) bool {
	c := e.token.claims
	life := c.exp.at.Sub(c.iat.at)
	return !c.exp.is || !c.iat.is || 0 < life && life <= relay.LongestSession
}

func accountClaims(_ context.Context, e *exam) bool {
	c := e.token.claims
	return c.dated() && c.sub.plain() && c.account.plain() && c.org.plain() && c.clientID.plain() && c.jti.plain()
}

func (c claims) dated() bool { return c.exp.is && c.iat.is && (c.nbf.is || !c.nbf.sent) }

// certificate reads the certificate once: the token is bound to a key that only
// it tells.
func (e *exam) certificate() certificate {
	if e.cert == nil {
		c := readCertificate(e.proof.payload, e.proof.sig)
		e.cert = &c
	}
	return *e.cert
}

// bound leaves a certificate that cannot be read to the next check.
func bound(_ context.Context, e *exam) bool {
	jkt, c := e.token.claims.jkt, e.certificate()
	return jkt.is && (!c.read || jkt.s == c.cloud.Thumbprint())
}

func certificateRead(_ context.Context, e *exam) bool { return e.certificate().read }

func certificateHost(_ context.Context, e *exam) bool { return e.certificate().host == e.who.Key }

func certificateAudience(_ context.Context, e *exam) bool { return e.certificate().aud == e.audience }

func certificateSigned(_ context.Context, e *exam) bool { return e.certificate().signed }

// cloudKeyHeld is what a token and a certificate that were both stolen lack.
func cloudKeyHeld(_ context.Context, e *exam) bool {
	return wire.VerifyCloudProof(e.certificate().cloud, e.proof.cloudSig, e.who.Challenge, e.who.Key, e.audience)
}
