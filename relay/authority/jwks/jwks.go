// Package jwks is the authority of a hosted relay: it lets hosts enrol that show
// an account's token, and checks the token offline, by the keys that the accounts
// issuer publishes (seed 000 §8, protocol §7).
package jwks

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// Options are what an authority is made of.
type Options struct {
	Issuer   string // the only iss that is taken
	Audience string // the relay's public URL, the only aud
	URL      string // of the key set; https, or http on loopback
	DenyURL  string // of the deny list to pull, "" for none; as URL

	Store     store.Store       // where the last good key set is kept
	Transport http.RoundTripper // nil for one of its own
	Now       func() time.Time  // nil means time.Now
	Log       *slog.Logger      // nil for none
}

// Authority is the issuer of a hosted relay. Safe for concurrent use.
type Authority struct {
	issuer   string
	audience string
	now      func() time.Time
	keys     *keySet
	denials  *denials
}

var _ relay.Issuer = (*Authority)(nil)

// New makes an authority with the key set that the store has. It fetches nothing.
func New(ctx context.Context, o Options) (*Authority, error) {
	if o.Issuer == "" || o.Audience == "" || o.Store == nil {
		return nil, errors.New("account tokens need an issuer, the relay's public URL and a store")
	}
	if err := checkURL("key set", o.URL); err != nil {
		return nil, err
	}
	if o.DenyURL != "" {
		if err := checkURL("deny list", o.DenyURL); err != nil {
			return nil, err
		}
	}
	now := o.Now
	if now == nil {
		now = time.Now
	}
	// Ages are between wall clocks: a set that was saved has no other.
	wall := func() time.Time { return now().Round(0).UTC() }
	web := newWeb(o.Transport)
	a := &Authority{
		issuer: o.Issuer, audience: o.Audience, now: wall,
		denials: &denials{url: o.DenyURL, web: web},
		keys: &keySet{
			issuer: o.Issuer, url: o.URL, web: web, store: o.Store, now: wall,
			log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		},
	}
	if err := a.keys.load(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// Authorize checks the proof of a host that asks to enrol. It answers an error,
// and the code with it, when it has no keys to check the token with.
func (a *Authority) Authorize(ctx context.Context, who relay.Applicant) (relay.Grant, error) {
	e := a.exam()
	e.who = who
	if failed := firstFailed(ctx, accountChecks, e); failed != nil {
		refused := relay.Grant{Code: failed.code, Reason: failed.text}
		if failed.code == keysUnavailable {
			return refused, &relay.Error{
				Kind: relay.Unavailable, Code: failed.code, Text: failed.code + ": " + failed.text, Reason: failed.code,
			}
		}
		return refused, nil
	}
	c := e.token.claims
	return relay.Grant{
		OK: true, By: "account-token",
		Account: c.account.s, Org: c.org.s, ClientID: c.clientID.s, SessionEnds: c.exp.at,
	}, nil
}

// VerifyDenials reads a deny token.
func (a *Authority) VerifyDenials(ctx context.Context, token string) (relay.DenyList, error) {
	e := a.exam()
	e.text = token
	if failed := firstFailed(ctx, denyChecks, e); failed != nil {
		return relay.DenyList{}, &relay.Error{Kind: kindOf(failed.code), Code: failed.code, Text: failed.text}
	}
	c := e.token.claims
	return relay.DenyList{ID: c.jti.s, IAT: c.iat.at, Expires: c.exp.at, Deny: e.deny}, nil
}

// Refresh fetches the key set and says in a few words what came of it.
func (a *Authority) Refresh(ctx context.Context) (detail string, err error) {
	return a.keys.refresh(ctx)
}

// FetchDenials fetches the deny list. "" when there is none to pull, or it has not
// changed since the last one that was handed out and Taken.
func (a *Authority) FetchDenials(ctx context.Context) (token string, err error) {
	return a.denials.fetch(ctx)
}

// Taken tells that a fetched deny list was taken: it need not be fetched again
// while its ETag stays.
func (a *Authority) Taken(token string) { a.denials.taken(token) }

// State tells how the key set stands.
func (a *Authority) State() relay.IssuerState { return a.keys.state() }
