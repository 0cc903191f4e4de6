package main

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// AccountSettings say who may enrol.
type AccountSettings struct {
	// Authority decides it: "host-key", whoever holds the key, or "jwks", whoever
	// shows a token of an account: that makes it a hosted relay.
	// MBX_RELAY_AUTHORITY; file authority; default host-key.
	Authority string

	// Issuer is the accounts issuer, spelled exactly as its tokens name it.
	// MBX_RELAY_ISSUER; file issuer.
	Issuer string

	// JWKSURL is where its keys are. MBX_RELAY_JWKS_URL; file jwks_url; default
	// /.well-known/jwks.json at the issuer.
	JWKSURL string

	// DenyURL is where its deny list is pulled from; "" for nowhere.
	// MBX_RELAY_DENY_URL; file deny_url.
	DenyURL string
}

// What decides who may enrol.
const (
	authorityHostKey = "host-key"
	authorityJWKS    = "jwks"
)

func accountSettings(a *AccountSettings) []setting {
	const wantURL = "an https URL without user and fragment, or http on loopback"
	return []setting{
		{key: "authority", env: []string{"MBX_RELAY_AUTHORITY"}, def: authorityHostKey, want: "host-key or jwks",
			set: setOneOf(&a.Authority, authorityHostKey, authorityJWKS)},
		{key: "issuer", env: []string{"MBX_RELAY_ISSUER"}, want: "an https URL without user, query and fragment, or http on loopback",
			set: setTrustedURL(&a.Issuer, false)},
		{key: "jwks_url", env: []string{"MBX_RELAY_JWKS_URL"}, want: wantURL, set: setTrustedURL(&a.JWKSURL, true)},
		{key: "deny_url", env: []string{"MBX_RELAY_DENY_URL"}, want: wantURL, set: setTrustedURL(&a.DenyURL, true)},
	}
}

// hosted says that accounts let hosts in.
func (a AccountSettings) hosted() bool { return a.Authority == authorityJWKS }

// keysURL is where the issuer's keys are.
func (a AccountSettings) keysURL() string {
	if a.JWKSURL != "" {
		return a.JWKSURL
	}
	return strings.TrimRight(a.Issuer, "/") + "/.well-known/jwks.json"
}

// checkAccounts checks what only together makes sense, for whoever serves a relay.
func (s Settings) checkAccounts() error {
	a := s.Accounts
	if !a.hosted() {
		// An issuer that nobody asks would leave a relay open that is meant to be closed.
		for _, st := range []struct{ name, value string }{
			{"MBX_RELAY_ISSUER", a.Issuer}, {"MBX_RELAY_JWKS_URL", a.JWKSURL}, {"MBX_RELAY_DENY_URL", a.DenyURL},
		} {
			if st.value != "" {
				return usage(fmt.Errorf("%s is set, but MBX_RELAY_AUTHORITY is %s, which lets in whoever holds a key: set MBX_RELAY_AUTHORITY=jwks, or unset %s", st.name, a.Authority, st.name))
			}
		}
		return nil
	}
	switch {
	case a.Issuer == "":
		return usage(errors.New("MBX_RELAY_AUTHORITY is jwks: set MBX_RELAY_ISSUER to the accounts issuer, as its tokens name it"))
	case s.PublicURL == "":
		return usage(errors.New("MBX_RELAY_AUTHORITY is jwks: set MBX_RELAY_PUBLIC_URL (or --public-url) to where hosts reach this relay, as tokens name it"))
	}
	if setTrustedURL(new(string), false)(s.PublicURL) != nil {
		return usage(fmt.Errorf("MBX_RELAY_AUTHORITY is jwks, and MBX_RELAY_PUBLIC_URL is %s: set an https URL, or http on loopback: tokens name it", quoteValue(s.PublicURL)))
	}
	return nil
}

// setTrustedURL takes the URL of something whose word counts: nobody on the way may
// change it.
func setTrustedURL(to *string, query bool) func(string) error {
	return func(v string) error {
		u, err := url.Parse(v)
		if err != nil {
			return err
		}
		if u.Hostname() == "" || u.User != nil || strings.Contains(v, "#") || !query && strings.Contains(v, "?") ||
			u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
			return errValue
		}
		*to = v
		return nil
	}
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}
