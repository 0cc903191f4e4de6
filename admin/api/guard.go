package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/ratelimit"
)

const (
	maxFailures  = 10   // failed tries a minute, by address
	maxAddresses = 4096 // that are counted at once
	maxLines     = 10   // of log a minute about failed tries, from all addresses
)

// guard lets a request through to the desk that its token opens. It looks at
// nothing else of a request before that.
type guard struct {
	full, reading        *handler
	token, readOnlyToken TokenHash
	log                  *slog.Logger
	now                  func() time.Time
	failures, lines      *ratelimit.Limiter
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := addressKey(r.RemoteAddr)
	limited, inURL := g.failures.Spent(at, g.now()), exposed(r)
	if h := g.open(r.Header["Authorization"]); h != nil && !limited && !inURL {
		proven(r)
		h.ServeHTTP(w, r)
		return
	}
	// Nobody without a token keeps a place, whatever is to come yet of the body.
	w.Header().Set("Connection", "close")
	end, conn := time.Now().Add(g.full.times.refused), http.NewResponseController(w)
	_, _ = conn.SetReadDeadline(end), conn.SetWriteDeadline(end) // only tests have a w without
	switch {
	case limited:
		w.Header().Set("Retry-After", "60")
		send(w, http.StatusTooManyRequests, problem{"too many failed tries from this address: wait a minute", "REFUSED"})
	case inURL:
		g.failed(at, "a token in a URL")
		send(w, http.StatusBadRequest, problem{"a token in a URL is refused, whatever it is: replace that token, since URLs get into logs and histories, and send one as a bearer token only", "BAD_REQUEST"})
	default:
		g.failed(at, "no token or a wrong one")
		w.Header().Set("WWW-Authenticate", "Bearer")
		send(w, http.StatusUnauthorized, problem{"the relay does not take this token", "REFUSED"})
	}
}

// open is the handler that the token opens, nil when none. Both hashes are
// compared whatever the first says.
func (g *guard) open(lines []string) *handler {
	if len(lines) != 1 {
		return nil
	}
	scheme, token, _ := strings.Cut(lines[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || !validToken(token) {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	full := subtle.ConstantTimeCompare(sum[:], g.token[:])
	reading := subtle.ConstantTimeCompare(sum[:], g.readOnlyToken[:])
	switch {
	case full == 1:
		return g.full
	case reading == 1:
		return g.reading
	}
	return nil
}

// failed counts a failed try. Nothing of the token gets into the log.
func (g *guard) failed(at, what string) {
	now := g.now()
	g.failures.Allow(at, now)
	if g.lines.Allow("", now) {
		g.log.Warn("refused at the admin listener", "from", at, "why", what)
	}
}

// ourToken is a token of our making, or much of one.
var ourToken = regexp.MustCompile(TokenPrefix + "[0-9a-f]{16}")

// exposed reports whether a token came in the URL: as a parameter, or as the user
// in front of the host, which clients send as Basic authorization; one of ours
// anywhere.
func exposed(r *http.Request) bool {
	if r.URL.User != nil || strings.Contains(r.Host, "@") || ourToken.MatchString(r.RequestURI) {
		return true
	}
	for _, line := range r.Header["Authorization"] {
		if scheme, _, _ := strings.Cut(line, " "); strings.EqualFold(scheme, "Basic") {
			return true
		}
	}
	for pair := range strings.FieldsFuncSeq(r.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
		name, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		switch strings.ToLower(name) {
		case "token", "access_token", "admin_token", "bearer", "authorization", "auth", "api_key", "apikey", "password":
			return true
		}
	}
	return false
}

// addressKey is what failed tries are counted by: an IPv4 address, or an IPv6 /64,
// which is the least that one client is given.
func addressKey(remote string) string {
	p, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	a := p.Addr().Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	net, _ := a.Prefix(64) // fails for a longer one only
	return net.String()
}

// caller says where a call came from. The token tells that somebody may, not who:
// the actor that follows is the caller's own word.
func caller(r *http.Request) string {
	at := r.RemoteAddr
	if p, err := netip.ParseAddrPort(at); err == nil {
		at = p.Addr().Unmap().String()
	}
	return "tcp:" + at + " "
}
