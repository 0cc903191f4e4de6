package account

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// maxToken is the longest token that a relay takes, in bytes.
const maxToken = 6 << 10

// Token is an account's token for one relay. It prints as nothing of it.
type Token struct {
	text string

	// What it says of itself, unverified; zero when that can't be read. The relay
	// verifies it.
	Issued, Expires time.Time
}

func (Token) String() string               { return "(a token)" }
func (Token) GoString() string             { return "(a token)" }
func (Token) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte("(a token)")) }
func (Token) MarshalJSON() ([]byte, error) { return []byte(`"(a token)"`), nil }

// Renew is when a newer token should be asked for: when a fifth of its life is
// left, or two minutes. Zero when its end is not known.
func (t Token) Renew() time.Time {
	if t.Expires.IsZero() {
		return time.Time{}
	}
	spare := 2 * time.Minute
	if life := t.Expires.Sub(t.Issued); !t.Issued.IsZero() && life > 0 {
		spare = min(spare, life/5)
	}
	return t.Expires.Add(-spare)
}

// same reports whether two tokens are the same one.
func (t Token) same(o Token) bool { return t.text != "" && t.text == o.text }

// Proof is what a host shows with its enrolment at the relay of this URL.
func (t Token) Proof(host, cloud wire.PrivateKey, challenge, relay string, now time.Time) jsontext.Value {
	payload, sig := wire.MakeCloudCertificate(host, cloud.Public(), relay, now)
	b := wire.AppendString([]byte(`{"token":`), t.text)
	b = append(append(b, `,"certificate":`...), certificate(payload, sig)...)
	b = wire.AppendString(append(b, `,"cloud_sig":`...), wire.SignCloudProof(cloud, challenge, host.Public(), relay))
	return append(b, '}')
}

// certificate writes a certificate as it travels: its payload stays as signed.
func certificate(payload []byte, sig string) jsontext.Value {
	b := append(append([]byte(`{"payload":`), payload...), `,"sig":`...)
	return append(wire.AppendString(b, sig), '}')
}

var errNoToken = errors.New("what it gave is no token")

// checkToken refuses what can't be one. Its errors repeat nothing of it.
func checkToken(s string) error {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errNoToken
	}
	if len(s) > maxToken {
		return fmt.Errorf("what it gave is over %d bytes, and no relay takes it", maxToken)
	}
	return nil
}

// readToken reads what a token says of itself.
func readToken(s string) (Token, error) {
	if err := checkToken(s); err != nil {
		return Token{}, err
	}
	t := Token{text: s}
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return t, nil
	}
	doc, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		IAT jsontext.Value `json:"iat"`
		EXP jsontext.Value `json:"exp"`
	}
	if err != nil || wire.Decode(doc, &claims) != nil {
		return t, nil
	}
	t.Issued, t.Expires = at(number(claims.IAT)), at(number(claims.EXP))
	return t, nil
}

// at is a claim's time, zero for none that a token can have.
func at(seconds int64) time.Time {
	if seconds <= 0 || seconds > 1<<40 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// assertionLife is how long a client assertion is good for.
const assertionLife = time.Minute

// assertion proves to a token endpoint that this host has the cloud key
// (private_key_jwt, RFC 7523).
func assertion(cloud wire.PrivateKey, clientID, endpoint string, now time.Time) (string, error) {
	claims, err := json.Marshal(map[string]any{
		"iss": clientID, "sub": clientID, "aud": endpoint, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(assertionLife).Unix(),
	})
	if err != nil {
		return "", err
	}
	head := `{"alg":"EdDSA","kid":"` + cloud.Public().Thumbprint() + `","typ":"JWT"}`
	signed := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sig, err := wire.DecodeBase64(cloud.Sign([]byte(signed)))
	if err != nil {
		return "", err
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

// relayToken asks the issuer for a token for a relay, with the cloud key.
func (c *caller) relayToken(ctx context.Context, r Record, cloud wire.PrivateKey, relay string) (Token, error) {
	const what = "token for the relay"
	signed, err := assertion(cloud, r.ClientID, r.TokenEndpoint, c.now())
	if err != nil {
		return Token{}, err
	}
	body, err := c.post(ctx, what, r.TokenEndpoint, url.Values{
		"grant_type":            {"client_credentials"},
		"client_id":             {r.ClientID},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
		"client_assertion":      {signed},
		"resource":              {relay},
	})
	if err != nil {
		return Token{}, err
	}
	bearer, err := bearerOf(what, body)
	if err != nil {
		return Token{}, err
	}
	return readToken(bearer)
}
