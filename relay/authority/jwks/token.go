package jwks

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// A token is read here and nowhere else: the library that verifies its signature
// gets bytes, not a document that it might read in another way.

// token is a JWS in its compact form, read but not verified.
type token struct {
	signed []byte // what the signature covers
	sig    []byte
	header header
	claims claims
}

// header has the members that decide anything. jwk, jku, x5u and x5c, which name
// a key of the sender's choice, are not among them.
type header struct {
	alg, kid, typ text
	extended      bool // asks for extensions, of which none is known here
}

type claims struct {
	iss, sub, account, org, clientID, jti text
	jkt                                   text // cnf.jkt
	aud                                   text // where there is exactly one
	exp, iat, nbf                         date
	deny                                  jsontext.Value
}

// readToken reads a token strictly: three parts of base64url in its one spelling,
// the first two JSON objects.
func readToken(s string) (token, bool) {
	head, rest, ok := strings.Cut(s, ".")
	body, sig, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 {
		return token{}, false
	}
	var t token
	var raw [3][]byte
	for i, part := range []string{head, body, sig} {
		if raw[i], ok = decodeURL(part); !ok {
			return token{}, false
		}
	}
	t.signed = []byte(s[:len(head)+1+len(body)])
	t.sig = raw[2]
	t.header, ok = readHeader(raw[0])
	t.claims, ok2 = readClaims(raw[1])
	return t, ok && ok2
}

func readHeader(doc []byte) (header, bool) {
	var m struct {
		Alg  jsontext.Value `json:"alg"`
		Kid  jsontext.Value `json:"kid"`
		Typ  jsontext.Value `json:"typ"`
		Crit jsontext.Value `json:"crit"`
		B64  jsontext.Value `json:"b64"` // RFC 7797; only with crit, but then others read it all the same
	}
	if !decodeObject(doc, &m) {
		return header{}, false
	}
	return header{
		alg: textOf(m.Alg), kid: textOf(m.Kid), typ: textOf(m.Typ),
		extended: m.Crit != nil || m.B64 != nil,
	}, true
}

func readClaims(doc []byte) (claims, bool) {
	var m struct {
		Iss      jsontext.Value `json:"iss"`
		Sub      jsontext.Value `json:"sub"`
		Aud      jsontext.Value `json:"aud"`
		Exp      jsontext.Value `json:"exp"`
		Iat      jsontext.Value `json:"iat"`
		Nbf      jsontext.Value `json:"nbf"`
		Jti      jsontext.Value `json:"jti"`
		Account  jsontext.Value `json:"account"`
		Org      jsontext.Value `json:"org"`
		ClientID jsontext.Value `json:"client_id"`
		Cnf      jsontext.Value `json:"cnf"`
		Deny     jsontext.Value `json:"deny"`
	}
	if !decodeObject(doc, &m) {
		return claims{}, false
	}
	var cnf struct {
		Jkt jsontext.Value `json:"jkt"`
	}
	decodeObject(m.Cnf, &cnf) // another kind of cnf has no jkt
	return claims{
		iss: textOf(m.Iss), sub: textOf(m.Sub), jti: textOf(m.Jti),
		account: textOf(m.Account), org: textOf(m.Org), clientID: textOf(m.ClientID),
		jkt: textOf(cnf.Jkt), aud: onlyText(m.Aud),
		exp: dateOf(m.Exp), iat: dateOf(m.Iat), nbf: dateOf(m.Nbf),
		deny: m.Deny,
	}, true
}

// decodeObject decodes a strict JSON object: no duplicate members, no lone
// surrogates, names compared by case. null is no object.
func decodeObject(doc jsontext.Value, into any) bool {
	return len(doc) > 0 && wire.Decode(doc, into) == nil && doc.Kind() == '{'
}

// decodeURL decodes base64url in its one spelling: no padding, no line breaks, no
// stray bits.
func decodeURL(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") { // the decoder skips them
		return nil, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return b, err == nil
}

// text is a member that should be a string.
type text struct {
	s    string
	is   bool // a string
	sent bool
}

func textOf(v jsontext.Value) text {
	t := text{sent: v != nil}
	if v.Kind() != '"' {
		return t
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err == nil {
		t.s, t.is = string(b), true
	}
	return t
}

// onlyText is a string, alone or the only one of an array.
func onlyText(v jsontext.Value) text {
	if v.Kind() != '[' {
		return textOf(v)
	}
	var all []jsontext.Value
	if wire.Decode(v, &all) != nil || len(all) != 1 {
		return text{}
	}
	return textOf(all[0])
}

// date is a member that should be a time in seconds since 1970, to the millisecond.
type date struct {
	at    time.Time
	is    bool // a number, and a time of the years 1970 to 9999
	whole bool // without a fraction
	sent  bool
}

var lastDate = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

func dateOf(v jsontext.Value) date {
	d := date{sent: v != nil}
	if v.Kind() != '0' {
		return d
	}
	n, err := strconv.ParseFloat(string(v), 64)
	if err != nil || n < 1 || n > float64(lastDate.Unix()) {
		return d
	}
	d.at, d.is, d.whole = time.UnixMilli(int64(math.Floor(n*1000))).UTC(), true, n == math.Floor(n)
	return d
}

// longestText is how long the texts are that are kept of a token.
const longestText = 200

// plain reports whether a text may be kept: there, not too long, and nothing in it
// that a terminal would not print. Whatever is kept can so be named in a denial.
func (t text) plain() bool {
	if !t.is || t.s == "" || wire.UTF16Len(t.s) > longestText {
		return false
	}
	for _, r := range t.s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// quote makes a text of anybody's fit for a log: ASCII, escaped, short.
func quote(s string) string { return strconv.QuoteToASCII(wire.Cut(s, 64)) }
