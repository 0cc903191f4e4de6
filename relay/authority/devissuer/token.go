package devissuer

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const (
	clientGrant   = "client_credentials"
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

	maxAssertion  = 8 << 10
	assertionLife = 5 * time.Minute // the longest
	clockLeeway   = time.Minute
)

// claims of an account token, as protocol §7 has them.
type claims struct {
	Iss      string       `json:"iss"`
	Aud      string       `json:"aud"`
	Sub      string       `json:"sub"`
	Account  string       `json:"account"`
	Org      string       `json:"org"`
	ClientID string       `json:"client_id"`
	Cnf      confirmation `json:"cnf"`
	IAT      int64        `json:"iat"`
	Exp      int64        `json:"exp"`
	JTI      string       `json:"jti"`
}

type confirmation struct {
	JKT string `json:"jkt"`
}

// token gives a host a token for one of the two resources (RFC 6749 §4.4, RFC
// 7523, RFC 8707).
func (i *Issuer) token(r *request) (any, error) {
	v, err := r.form()
	if err != nil {
		return nil, err
	}
	switch {
	case v["grant_type"] != clientGrant:
		return nil, refuse(http.StatusBadRequest, codeGrantType, "the grant_type here is %s", clientGrant)
	case v["client_assertion_type"] != assertionType:
		return nil, badClient("the client_assertion_type here is %s", assertionType)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.o.Now()
	h, err := i.client(v["client_assertion"], now)
	if err != nil {
		return nil, err
	}
	if id, said := v["client_id"]; said && id != h.ClientID {
		return nil, badClient("client_id and client_assertion name different clients")
	}
	resource := v["resource"]
	if resource != i.o.Relay && resource != i.o.API {
		return nil, refuse(http.StatusBadRequest, codeTarget, "want a resource: %s or %s", i.o.Relay, i.o.API)
	}
	cloud, err := wire.ParsePublicKey(h.CloudPub)
	if err != nil {
		return nil, err
	}
	token, err := i.sign("at+jwt", claims{
		Iss: i.o.Base, Aud: resource, Sub: h.HostID, Account: h.Account, Org: h.Org, ClientID: h.ClientID,
		Cnf: confirmation{cloud.Thumbprint()}, IAT: now.Unix(), Exp: now.Unix() + seconds(i.o.TTL), JTI: newID(""),
	})
	if err != nil {
		return nil, err
	}
	i.o.Log.Debug("a token was given", "client_id", h.ClientID, "resource", resource)
	return map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": seconds(i.o.TTL)}, nil
}

func badClient(format string, a ...any) error {
	return refuse(http.StatusUnauthorized, codeClient, format, a...)
}

// assertion is what a client says of itself.
type assertion struct {
	Iss string   `json:"iss"`
	Sub string   `json:"sub"`
	Aud audience `json:"aud"`
	Exp *float64 `json:"exp"`
	IAT *float64 `json:"iat"`
	NBF *float64 `json:"nbf"`
	JTI string   `json:"jti"`
}

// audience is one text, or a list with one text.
type audience string

func (a *audience) UnmarshalJSON(doc []byte) error {
	if json.Unmarshal(doc, (*string)(a)) == nil {
		return nil
	}
	var list []string
	if err := json.Unmarshal(doc, &list); err != nil {
		return err
	}
	*a = ""
	if len(list) == 1 {
		*a = audience(list[0])
	}
	return nil
}

// client finds the host whose cloud key signed an assertion. Under mu.
func (i *Issuer) client(token string, now time.Time) (Host, error) {
	if token == "" || len(token) > maxAssertion {
		return Host{}, badClient("want a client_assertion of at most %d bytes", maxAssertion)
	}
	said, err := peek(token)
	if err != nil {
		return Host{}, badClient("the client_assertion is no EdDSA token with texts and numbers where they belong")
	}
	h, cloud, known := i.state.client(said.Sub)
	if !known || said.Iss != said.Sub {
		return Host{}, badClient("the client_assertion names no client as its iss and sub: sign in again")
	}
	// Only this algorithm, and only the key that was enrolled: nothing that the
	// token says of itself decides.
	if _, err := jws.Verify([]byte(token), jws.WithKey(jwa.EdDSA, cloud)); err != nil {
		return Host{}, badClient("the client_assertion is not signed by the client's cloud key")
	}
	if h.revoked() { // told only to who holds the key
		return Host{}, badClient("this client was revoked: move cloud.key and account.json away and sign in again")
	}
	if err := i.timely(said, now); err != nil {
		return Host{}, err
	}
	return h, i.once(h.ClientID+" "+said.JTI, now, time.Unix(int64(*said.Exp), 0).Add(clockLeeway))
}

// peek reads an assertion that nobody has verified yet. What the library would let
// pass is refused here: an algorithm that is not the key's, members that stand there
// twice, an extension that must be understood and is not.
func peek(token string) (a assertion, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return a, wire.ErrMalformed
	}
	var header struct {
		Alg  string          `json:"alg"`
		Crit json.RawMessage `json:"crit"`
	}
	if err := readPart(parts[0], &header); err != nil || header.Alg != algEdDSA || header.Crit != nil {
		return a, wire.ErrMalformed
	}
	return a, readPart(parts[1], &a)
}

func readPart(part string, to any) error {
	doc, err := base64.RawURLEncoding.Strict().DecodeString(part)
	if err != nil {
		return wire.ErrMalformed
	}
	return wire.Decode(doc, to)
}

// timely checks for whom and when an assertion is.
func (i *Issuer) timely(a assertion, now time.Time) error {
	at := float64(now.Unix())
	leeway, life := clockLeeway.Seconds(), assertionLife.Seconds()
	switch {
	case string(a.Aud) != i.o.Base && string(a.Aud) != i.o.Base+"/token":
		return badClient("the aud of a client_assertion is %s/token", i.o.Base)
	case a.Exp == nil:
		return badClient("the client_assertion has no exp")
	case *a.Exp+leeway <= at:
		return badClient("the client_assertion has expired: check the host's clock")
	case *a.Exp > at+life+leeway:
		return badClient("the client_assertion lives for more than %s", assertionLife)
	case a.IAT != nil && *a.IAT > at+leeway, a.NBF != nil && *a.NBF > at+leeway:
		return badClient("the client_assertion is of a later time: check the host's clock")
	case a.JTI == "" || len(a.JTI) > 200:
		return badClient("the client_assertion has no jti of 1 to 200 characters")
	}
	return nil
}

// once takes an assertion's id, which serves once until it ends.
func (i *Issuer) once(id string, now, ends time.Time) error {
	if until, used := i.seen[id]; used && until.After(now) {
		return badClient("the client_assertion was used before: make a new one for each call")
	}
	if len(i.seen) >= maxJTIs {
		for old, until := range i.seen {
			if !until.After(now) {
				delete(i.seen, old)
			}
		}
		if len(i.seen) >= maxJTIs {
			return refuse(http.StatusServiceUnavailable, codeUnavailable, "too many calls: try again in a few minutes")
		}
	}
	i.seen[id] = ends
	return nil
}

// client finds a client's host and its cloud key, for the library that verifies.
func (s state) client(id string) (h Host, cloud any, known bool) {
	for _, h := range s.Hosts {
		if h.ClientID != id {
			continue
		}
		key, err := wire.ParsePublicKey(h.CloudPub)
		return h, ed25519Key(key), err == nil
	}
	return Host{}, nil, false
}
