// Package devissuer is a small accounts issuer for development and tests, and for
// whoever hosts a relay for a few people: its own keys and key set, the device
// flow, host enrolment, tokens, revocation and the deny list (protocol §7).
//
// An issuer is a folder. What it must not forget (keys, hosts, sessions, denials)
// is one file that is replaced whole, and a change is there before it is answered.
// Logins that wait for their approval, nonces and the ids of client assertions are
// kept in memory: a restart costs a login begun anew.
package devissuer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/agentmbx/agentmbx/relay/ratelimit"
)

// Options are what an issuer is made of.
type Options struct {
	Dir   string           // where keys, hosts and the deny list are kept
	Base  string           // its own URL: the iss, and the login base
	Relay string           // public URL of the relay: the aud of its tokens
	API   string           // the other resource's URL; "" for Base + "/api"
	TTL   time.Duration    // life of tokens; zero means 10 minutes, the most is 15
	Auto  bool             // approve every login
	Now   func() time.Time // nil means time.Now
	Log   *slog.Logger

	Alg    string            // of new keys: "EdDSA", the default, or "ES256"
	NoPush bool              // don't tell the relay of a revocation: it pulls the list
	Push   http.RoundTripper // for those pushes; nil for one of its own
}

// LongestTTL is how long a token may live: a relay refuses those that live longer.
const LongestTTL = 15 * time.Minute

// What an issuer holds at most. It is for a few people.
const (
	maxHosts    = 10_000
	maxKeys     = 8
	maxSessions = 1_000
	maxLogins   = 1_000
	maxJTIs     = 20_000

	callsPerMinute  = 1_200 // of one address
	loginsPerMinute = 120   // begun by one address
	rateAddresses   = 10_000
)

// ErrInUse is returned when another issuer has the folder.
var ErrInUse = errors.New("an issuer runs on this folder already: stop it first, or use it")

// Issuer is a development issuer. Safe for concurrent use.
type Issuer struct {
	o     Options
	lock  *flock.Flock
	mux   *http.ServeMux
	calls *ratelimit.Limiter // rates, under mu: see rated

	mu         sync.Mutex
	state      state
	keys       []signingKey         // of state.Keys; the first one signs
	logins     map[string]*login    // by user code
	codes      map[string]*login    // by the hash of a device code
	nonces     map[string]nonce     // by the hash of a session
	seen       map[string]time.Time // ids of client assertions, until when they count
	denyToken  signedDenials        // the deny list as it was signed last
	loginRates *ratelimit.Limiter
}

// New opens an issuer's folder, or makes one. Close gives it back.
func New(o Options) (*Issuer, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	lock, err := takeFolder(o.Dir)
	if err != nil {
		return nil, err
	}
	i := &Issuer{
		o: o, lock: lock,
		calls: ratelimit.New(callsPerMinute, rateAddresses), loginRates: ratelimit.New(loginsPerMinute, rateAddresses),
		logins: map[string]*login{}, codes: map[string]*login{}, nonces: map[string]nonce{}, seen: map[string]time.Time{},
	}
	if err := i.open(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	i.mux = i.routes()
	return i, nil
}

// Close gives the folder back. The issuer must not be used any more.
func (i *Issuer) Close() error { return i.lock.Close() }

// Base is the issuer's own URL, as its tokens name it.
func (i *Issuer) Base() string { return i.o.Base }

// complete fills in what was left out, and refuses what cannot be.
func (o *Options) complete() error {
	var err error
	if o.Base, err = plainURL(o.Base); err != nil {
		return fmt.Errorf("the issuer's own URL %w", err)
	}
	if o.Relay, err = plainURL(o.Relay); err != nil {
		return fmt.Errorf("the relay's URL %w", err)
	}
	if o.API, err = plainURL(cmp.Or(o.API, o.Base+"/api")); err != nil {
		return fmt.Errorf("the API's URL %w", err)
	}
	if o.API == o.Relay {
		return errors.New("the relay and the API have the same URL: a token of one would be good for the other")
	}
	o.TTL = cmp.Or(o.TTL, 10*time.Minute)
	if o.TTL < time.Second || o.TTL > LongestTTL {
		return fmt.Errorf("tokens that live for %s: want 1s to %s", o.TTL, LongestTTL)
	}
	o.Alg = cmp.Or(o.Alg, algEdDSA)
	if o.Alg != algEdDSA && o.Alg != algES256 {
		return fmt.Errorf("keys for %.20q: want %s or %s", o.Alg, algEdDSA, algES256)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// plainURL is a URL that can be an issuer or an audience, without a slash at its
// end. Such URLs are compared as texts.
func plainURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.ContainsAny(s, "?#") || len(s) > 500 {
		return "", errors.New("is none: want an http or https URL without user, query and fragment")
	}
	return strings.TrimRight(s, "/"), nil
}

// Reachable reports whether hosts and relays will take the issuer's URL: they want
// https, or http on loopback.
func Reachable(base string) bool {
	u, err := url.Parse(base)
	return err == nil && (u.Scheme == "https" || Loopback(u.Hostname()))
}

// Loopback reports whether a host of an address is this machine alone.
func Loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}
