package devissuer

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// The device flow (RFC 8628).
const (
	cliClientID = "agentmbx-cli"
	deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"

	loginLife    = 10 * time.Minute
	pollInterval = 5 * time.Second // and what a poll that came too fast adds
	autoInterval = 1 * time.Second // nobody has to type
	defaultOwner = "dev"           // account and organization, when none is named
)

// login is a sign-in that waits for a person's word.
type login struct {
	userCode string
	codeHash string // of the device code
	host     string
	hostFP   string
	expires  time.Time
	interval time.Duration
	polledAt time.Time
	denied   bool
	account  string // "" until it is approved
	org      string
}

// Login is a sign-in as people see it.
type Login struct {
	Host    string `json:"host"`
	HostFP  string `json:"host_fp"`
	Account string `json:"account,omitempty"`
	Org     string `json:"org,omitempty"`
	Denied  bool   `json:"denied,omitempty"`
}

// deviceCode begins a login.
func (i *Issuer) deviceCode(r *request) (any, error) {
	v, err := r.values()
	if err != nil {
		return nil, err
	}
	if v["client_id"] != cliClientID {
		return nil, refuse(http.StatusUnauthorized, codeClient, "the client_id of a login is %s", cliClientID)
	}
	fp, err := wire.ParseFingerprint(v["host_fingerprint"])
	if err != nil || !wire.ValidHostName(v["host"]) {
		return nil, badRequest("want host and host_fingerprint, the host's name and the fingerprint of its key")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.o.Now()
	if !i.loginRates.Allow(address(r.Request), now) {
		return nil, refuse(http.StatusTooManyRequests, codeUnavailable, "more than %d logins a minute: try again in a minute", loginsPerMinute)
	}
	i.forgetLogins(now)
	if len(i.logins) >= maxLogins {
		return nil, refuse(http.StatusServiceUnavailable, codeUnavailable, "%d logins wait for approval: try again later", maxLogins)
	}
	code := secret()
	l := &login{userCode: newUserCode(), codeHash: hashOf(code), host: v["host"], hostFP: fp, expires: now.Add(loginLife), interval: pollInterval}
	if i.o.Auto {
		l.account, l.org, l.interval = defaultOwner, defaultOwner, autoInterval
	}
	i.logins[l.userCode], i.codes[l.codeHash] = l, l
	i.o.Log.Info("a host signs in", "host", l.host, "host_fp", l.hostFP, "user_code", l.userCode, "approved", i.o.Auto)
	page := i.o.Base + "/device"
	return map[string]any{
		"device_code": code, "user_code": l.userCode,
		"verification_uri": page, "verification_uri_complete": page + "?user_code=" + url.QueryEscape(l.userCode),
		"expires_in": seconds(loginLife), "interval": seconds(l.interval),
	}, nil
}

// deviceToken is asked until the login is decided.
func (i *Issuer) deviceToken(r *request) (any, error) {
	v, err := r.values()
	if err != nil {
		return nil, err
	}
	switch {
	case v["grant_type"] != deviceGrant:
		return nil, refuse(http.StatusBadRequest, codeGrantType, "the grant_type here is %s", deviceGrant)
	case v["client_id"] != cliClientID:
		return nil, refuse(http.StatusUnauthorized, codeClient, "the client_id of a login is %s", cliClientID)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.o.Now()
	l := i.codes[hashOf(v["device_code"])]
	if l == nil {
		return nil, refuse(http.StatusBadRequest, codeGrant, "no such login: it was used, or the issuer was restarted; begin anew")
	}
	since := now.Sub(l.polledAt)
	fast := !l.polledAt.IsZero() && since >= 0 && since < l.interval
	l.polledAt = now
	switch {
	case !now.Before(l.expires):
		return nil, refuse(http.StatusBadRequest, codeExpired, "the login was not approved in time: begin anew")
	case fast:
		l.interval += pollInterval
		return nil, refuse(http.StatusBadRequest, codeSlowDown, "wait %d seconds between two calls", seconds(l.interval))
	case l.denied:
		i.forgetLogin(l)
		return nil, refuse(http.StatusBadRequest, codeDenied, "the login was denied")
	case l.account == "":
		return nil, refuse(http.StatusBadRequest, codePending, "the login waits for its approval")
	}
	bearer, err := i.openSession(l, now)
	if err != nil {
		return nil, err
	}
	i.forgetLogin(l)
	return map[string]any{"access_token": bearer, "token_type": "Bearer", "expires_in": seconds(sessionLife)}, nil
}

var ownerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// Approve lets the login of a user code in, for an account ("dev" when none is
// named) of an organization (the same). ErrNotFound when no login has the code.
func (i *Issuer) Approve(code, account, org string) (Login, error) {
	if account == "" {
		account = defaultOwner
	}
	if org == "" {
		org = account
	}
	if !ownerName.MatchString(account) || !ownerName.MatchString(org) {
		return Login{}, refusal{ErrBadCall, "an account has 1 to 64 letters, digits and any of . _ @ -, and begins with a letter or a digit"}
	}
	return i.decide(code, func(l *login) { l.account, l.org = account, org })
}

// Deny refuses the login of a user code.
func (i *Issuer) Deny(code string) (Login, error) {
	return i.decide(code, func(l *login) { l.denied = true })
}

func (i *Issuer) decide(code string, how func(*login)) (Login, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	l := i.logins[userCode(code)]
	if l == nil || !i.o.Now().Before(l.expires) {
		return Login{}, refusal{ErrNotFound, "no login waits with this code: begin it anew on the host"}
	}
	if l.denied || l.account != "" {
		return Login{}, refusal{ErrRefused, "this login is decided already"}
	}
	how(l)
	i.o.Log.Info("a login is decided", "host", l.host, "host_fp", l.hostFP, "approved", !l.denied, "account", l.account)
	return Login{Host: l.host, HostFP: l.hostFP, Account: l.account, Org: l.org, Denied: l.denied}, nil
}

// forgetLogins drops those that have been over for as long as they lived: until
// then a poll is told that they expired.
func (i *Issuer) forgetLogins(now time.Time) {
	for _, l := range i.logins {
		if now.Sub(l.expires) >= loginLife {
			i.forgetLogin(l)
		}
	}
}

func (i *Issuer) forgetLogin(l *login) {
	delete(i.logins, l.userCode)
	delete(i.codes, l.codeHash)
}

// servePage is where a login sends its person. Approving is for whoever has the
// issuer's folder, so the page only says how.
func (i *Issuer) servePage(w http.ResponseWriter, r *http.Request) {
	code := userCode(r.URL.Query().Get("user_code"))
	if code == "" {
		code = "CODE"
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	fmt.Fprintf(w, "A development issuer of AgentMBX accounts.\n\nTo approve the login, run this on the machine of the issuer, with its --dir:\n\n  agentmbx accounts approve %s\n", code)
}

// letters of user codes: no vowels, so that they form no words, and none that
// look alike.
const letters = "BCDFGHJKLMNPQRSTVWXZ"

// newUserCode makes a code for people, such as WDJB-MJHT.
func newUserCode() string {
	b := make([]byte, 0, 9)
	for len(b) < 9 {
		if len(b) == 4 {
			b = append(b, '-')
		}
		var x [1]byte
		_, _ = rand.Read(x[:]) // never fails
		if x[0] < 240 {        // 12 for each letter
			b = append(b, letters[x[0]%20])
		}
	}
	return string(b)
}

// userCode is a code as newUserCode writes it, however it was typed; "" for none.
func userCode(s string) string {
	if len(s) > 32 {
		return ""
	}
	s = strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(s))
	if len(s) != 8 || strings.Trim(s, letters) != "" {
		return ""
	}
	return s[:4] + "-" + s[4:]
}

// secret is 32 random bytes as text.
func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

func newID(prefix string) string {
	b := make([]byte, 10)
	_, _ = rand.Read(b) // never fails
	return prefix + hex.EncodeToString(b)
}

// hashOf is how secrets of others are kept.
func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
