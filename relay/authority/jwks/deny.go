package jwks

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// largestList is how large a deny list may be that is pulled; the body of a pushed
// one is bounded by the server.
const largestList = 1 << 20

// denyChecks are made in this order, as accountChecks are.
var denyChecks = []check{
	{"TOKEN_SIZE", denySize, "the deny token is empty or over 1 MiB"},
	{"TOKEN_FORM", denyForm, "the deny token is not a JWS in compact form with the type mbx-deny+jwt"},
	{"TOKEN_CRIT", noExtensions, "the deny token asks for an extension that is not known here"},
	{"TOKEN_ALG", algorithm, "the deny token must be signed with EdDSA or ES256"},
	{"TOKEN_KID", keyNamed, "the deny token does not name its key in at most 128 characters"},
	{keysUnavailable, keysUsable, "the relay cannot get the keys of the accounts issuer; try again in a few minutes"},
	{"TOKEN_KEY", keyKnown, "the accounts issuer has no such key; publish it and try again in a minute"},
	{"TOKEN_SIGNATURE", signature, "the deny token is not signed by the key that it names"},
	{"TOKEN_ISSUER", issuer, "the deny token is of another issuer than this relay's"},
	{"TOKEN_AUDIENCE", audience, "the deny token is not for this relay alone"},
	{"TOKEN_EXPIRED", denyNotExpired, "the deny token is over; sign a fresh one"},
	{"TOKEN_EARLY", notEarly, "the deny token is of the future; compare the clocks of the issuer and the relay"},
	{"TOKEN_CLAIMS", denyClaims, "the deny token needs exp and iat in seconds and a jti of at most 200 printable characters"},
	{"DENY_ENTRIES", denyEntries, "each entry of deny needs a host_fp or a client_id, and its reason and until must be as the protocol says"},
}

// kindOf is what sort of refusal a check of a deny token is (protocol §7).
func kindOf(code string) relay.Kind {
	switch code {
	case "TOKEN_ALG", "TOKEN_KID", "TOKEN_KEY", "TOKEN_SIGNATURE", "TOKEN_ISSUER", "TOKEN_AUDIENCE":
		return relay.Unauthorized
	case keysUnavailable:
		return relay.Unavailable
	}
	return relay.BadRequest
}

func denySize(_ context.Context, e *exam) bool { return e.text != "" && len(e.text) <= largestList }

func denyForm(_ context.Context, e *exam) (ok bool) {
	e.token, ok = readToken(e.text)
	return ok && e.token.header.typ.s == "mbx-deny+jwt"
}

// denyNotExpired has no leeway: from exp on a list may be forgotten, and must not
// be taken a second time.
func denyNotExpired(_ context.Context, e *exam) bool {
	exp := e.token.claims.exp
	return !exp.is || e.now.Before(exp.at)
}

func denyClaims(_ context.Context, e *exam) bool {
	return e.token.claims.dated() && e.token.claims.jti.plain()
}

func denyEntries(_ context.Context, e *exam) bool {
	doc := e.token.claims.deny
	var all []jsontext.Value
	if doc.Kind() != '[' || wire.Decode(doc, &all) != nil {
		return false
	}
	e.deny = make([]relay.DenyEntry, 0, len(all))
	for _, raw := range all {
		entry, ok := readEntry(raw)
		if !ok {
			return false
		}
		e.deny = append(e.deny, entry)
	}
	return true
}

// readEntry reads an entry. A member that is there must be right: an entry that is
// half understood would refuse more hosts than it names.
func readEntry(doc jsontext.Value) (relay.DenyEntry, bool) {
	var m struct {
		HostFP   jsontext.Value `json:"host_fp"`
		ClientID jsontext.Value `json:"client_id"`
		Reason   jsontext.Value `json:"reason"`
		Until    jsontext.Value `json:"until"`
	}
	if !decodeObject(doc, &m) {
		return relay.DenyEntry{}, false
	}
	fp, client, reason := textOf(m.HostFP), textOf(m.ClientID), textOf(m.Reason)
	until, ok := readUntil(m.Until)
	if !ok ||
		!fp.sent && !client.sent ||
		fp.sent && !isFingerprint(fp.s) ||
		client.sent && !client.plain() ||
		reason.sent && !reason.is {
		return relay.DenyEntry{}, false
	}
	return relay.DenyEntry{HostFP: fp.s, ClientID: client.s, Reason: wire.Cut(reason.s, longestText), Until: until}, true
}

func isFingerprint(s string) bool {
	fp, err := wire.ParseFingerprint(s)
	return err == nil && fp == s
}

// readUntil reads whole seconds or the time form of records; zero where there is none.
func readUntil(v jsontext.Value) (time.Time, bool) {
	switch v.Kind() {
	case '0':
		d := dateOf(v)
		return d.at, d.whole
	case '"':
		at, err := wire.ParseTime(textOf(v).s)
		return at, err == nil && at.Unix() > 0
	}
	return time.Time{}, v == nil
}

// denials is the deny list that is pulled.
type denials struct {
	url string
	web *web

	mu      sync.Mutex
	handed  pulled // out, and not known to be taken
	current pulled // the last one that was
}

// pulled is a list as it was fetched.
type pulled struct {
	hash [32]byte
	etag string
}

const (
	unchanged = trouble("the answer is 304 to a question without an ETag")
	emptyList = trouble("the answer is empty")
)

func (d *denials) fetch(ctx context.Context) (string, error) {
	if d.url == "" {
		return "", nil
	}
	d.mu.Lock()
	etag := d.current.etag
	d.mu.Unlock()
	got, err := d.web.get(ctx, d.url, etag, largestList)
	if err == nil {
		err = listError(got, etag)
	}
	if err != nil {
		return "", fmt.Errorf("fetch the deny list: %w", err)
	}
	if got.status == http.StatusNotModified {
		return "", nil
	}
	token := string(bytes.TrimSpace(got.body))
	list := pulled{hash: wire.Hash([]byte(token)), etag: sendable(got.etag)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if list.hash == d.current.hash {
		d.current = list
		return "", nil
	}
	d.handed = list
	return token, nil
}

func listError(got answer, etag string) error {
	switch {
	case got.status == http.StatusNotModified && etag == "":
		return unchanged
	case got.status == http.StatusNotModified:
		return nil
	case got.status != http.StatusOK:
		return badStatus(got.status)
	case len(bytes.TrimSpace(got.body)) == 0:
		return emptyList
	}
	return nil
}

// sendable is an ETag that can be sent back. Without one the list is fetched again.
func sendable(etag string) string {
	if len(etag) > 1<<10 {
		return ""
	}
	for _, b := range []byte(etag) {
		if b < ' ' || b > '~' {
			return ""
		}
	}
	return etag
}

func (d *denials) taken(token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handed.hash == wire.Hash([]byte(token)) {
		d.current, d.handed = d.handed, pulled{}
	}
}
