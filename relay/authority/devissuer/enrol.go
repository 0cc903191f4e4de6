package devissuer

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// session is what a login ends in: a bearer with which one host enrols.
type session struct {
	Hash    string    `json:"hash"` // of the bearer, which is not kept
	HostFP  string    `json:"host_fp"`
	Account string    `json:"account"`
	Org     string    `json:"org"`
	Ends    time.Time `json:"ends"`
}

// nonce is what a session's host must answer next. A new one replaces it.
type nonce struct {
	text    string
	name    string
	host    wire.PublicKey
	cloud   wire.PublicKey
	expires time.Time
}

const (
	nonceLife   = 5 * time.Minute
	sessionLife = 10 * time.Minute
)

// openSession makes a session of a login that was approved. Under mu.
func (i *Issuer) openSession(l *login, now time.Time) (bearer string, err error) {
	bearer = secret()
	err = i.change(func(s *state) error {
		s.Sessions = slices.DeleteFunc(s.Sessions, func(s session) bool { return !s.Ends.After(now) })
		if len(s.Sessions) >= maxSessions {
			return refuse(http.StatusServiceUnavailable, codeUnavailable, "%d logins are being completed: try again later", maxSessions)
		}
		s.Sessions = append(s.Sessions, session{Hash: hashOf(bearer), HostFP: l.hostFP, Account: l.account, Org: l.org, Ends: now.Add(sessionLife).UTC()})
		return nil
	})
	return bearer, err
}

// session finds the one of a request's bearer. Under mu.
func (i *Issuer) session(r *request) (session, error) {
	scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		// By the hash: how long the search takes says nothing of any bearer.
		hash := hashOf(strings.TrimSpace(bearer))
		for _, s := range i.state.Sessions {
			if s.Hash == hash && s.Ends.After(i.o.Now()) {
				return s, nil
			}
		}
	}
	return session{}, refuse(http.StatusUnauthorized, codeToken, "no session with this bearer: sign in again")
}

// revokeSession ends the caller's session.
func (i *Issuer) revokeSession(r *request) (any, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s, err := i.session(r)
	if err != nil {
		return nil, err
	}
	err = i.change(func(st *state) error {
		st.Sessions = slices.DeleteFunc(st.Sessions, func(x session) bool { return x.Hash == s.Hash })
		return nil
	})
	delete(i.nonces, s.Hash)
	return map[string]bool{"ok": true}, err
}

// challenge gives a host the nonce that its cloud key must sign.
func (i *Issuer) challenge(r *request) (any, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s, err := i.session(r)
	if err != nil {
		return nil, err
	}
	var q struct {
		HostName string `json:"host_name"`
		HostPub  string `json:"host_pub"`
		CloudPub string `json:"cloud_pub"`
	}
	if err := r.json(&q); err != nil {
		return nil, err
	}
	host, err := wire.ParsePublicKey(q.HostPub)
	if err != nil || !wire.ValidHostName(q.HostName) {
		return nil, badRequest("want host_name and host_pub, the host's name and key")
	}
	cloud, err := wire.ParsePublicKey(q.CloudPub)
	if err != nil || cloud == host {
		return nil, badRequest("want cloud_pub, a key of its own")
	}
	if host.Fingerprint() != s.HostFP {
		return nil, refuse(http.StatusForbidden, codeDenied, "this login is for the host %s: sign in on each host", s.HostFP)
	}
	now := i.o.Now()
	for hash, n := range i.nonces { // those of sessions that are over
		if !n.expires.After(now) {
			delete(i.nonces, hash)
		}
	}
	n := nonce{text: secret(), name: q.HostName, host: host, cloud: cloud, expires: now.Add(nonceLife)}
	i.nonces[s.Hash] = n
	return map[string]any{"nonce": n.text, "expires_in": seconds(nonceLife)}, nil
}

// enrolment is the body of an enrolment.
type enrolment struct {
	HostName    string `json:"host_name"`
	HostPub     string `json:"host_pub"`
	Certificate struct {
		Payload json.RawMessage `json:"payload"`
		Sig     string          `json:"sig"`
	} `json:"certificate"`
	Nonce string `json:"nonce"`
	Proof string `json:"proof"`
}

// enrol takes a host's cloud key.
func (i *Issuer) enrol(r *request) (any, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s, err := i.session(r)
	if err != nil {
		return nil, err
	}
	var q enrolment
	if err := r.json(&q); err != nil {
		return nil, err
	}
	now := i.o.Now()
	n, open := i.nonces[s.Hash]
	if open && q.Nonce == n.text {
		delete(i.nonces, s.Hash) // it serves once, whatever comes of it
	}
	if !open || q.Nonce != n.text || !n.expires.After(now) {
		return nil, refuse(http.StatusBadRequest, codeGrant, "no such nonce: ask for another one")
	}
	if err := i.proven(q, n, now); err != nil {
		return nil, err
	}
	var h Host
	err = i.change(func(st *state) (err error) {
		h, err = st.enrol(s, n, now)
		return err
	})
	if err != nil {
		return nil, err
	}
	i.o.Log.Info("a host is enrolled", "host", h.Name, "host_fp", h.HostFP, "account", h.Account, "client_id", h.ClientID)
	return map[string]any{
		"host_id": h.HostID, "client_id": h.ClientID,
		"token_endpoint": i.o.Base + "/token", "jwks_uri": i.o.Base + "/.well-known/jwks.json",
		"resources": map[string]string{"api": i.o.API, "relay": i.o.Relay},
	}, nil
}

// proven checks that the host key certified the cloud key for this issuer, and
// that the cloud key signed the nonce.
func (i *Issuer) proven(q enrolment, n nonce, now time.Time) error {
	if q.HostName != n.name || q.HostPub != n.host.String() {
		return badRequest("another host than the one that asked for the nonce")
	}
	c, err := wire.VerifyCloudCertificate(q.Certificate.Payload, q.Certificate.Sig, n.host)
	switch {
	case errors.Is(err, wire.ErrBadSignature):
		return badRequest("the certificate is not signed by the host's key")
	case err != nil:
		return badRequest("the certificate is none of a cloud key of this host")
	case c.CloudPub != n.cloud:
		return badRequest("the certificate is of another cloud key than the one that asked for the nonce")
	case c.Aud != i.o.Base:
		return badRequest("the certificate is for another URL: sign in at %s", i.o.Base)
	case c.IAT.After(now.Add(nonceLife)):
		return badRequest("the certificate is of a later time: check the host's clock")
	case !wire.VerifyCloudProof(n.cloud, q.Proof, n.text, n.host, i.o.Base):
		return badRequest("the proof is not the cloud key's over this nonce")
	}
	return nil
}

// enrol adds a host's cloud key, or finds it. A cloud key is one host's; in another
// account it is another credential of that host.
func (s *state) enrol(by session, n nonce, now time.Time) (Host, error) {
	host, cloud := n.host.String(), n.cloud.String()
	fresh := Host{
		HostID: newID("host_"), ClientID: newID("client_"), Name: n.name, HostPub: host, HostFP: n.host.Fingerprint(),
		CloudPub: cloud, Account: by.Account, Org: by.Org, EnrolledAt: now.UTC(),
	}
	if slices.ContainsFunc(s.Hosts, func(h Host) bool { return h.CloudPub == cloud && h.revoked() }) {
		return Host{}, refuse(http.StatusForbidden, codeDenied, "this cloud key was revoked: move cloud.key and account.json away and sign in again")
	}
	for j, h := range s.Hosts {
		if h.HostPub == host && h.Account == by.Account {
			fresh.HostID = h.HostID
		}
		switch {
		case h.CloudPub != cloud:
		case h.HostPub != host:
			return Host{}, refuse(http.StatusConflict, codeRequest, "this cloud key belongs to another host: move cloud.key and account.json away and sign in again")
		case h.Account == by.Account:
			s.Hosts[j].Name, s.Hosts[j].Org = n.name, by.Org
			return s.Hosts[j], nil
		}
	}
	if len(s.Hosts) >= maxHosts {
		return Host{}, refuse(http.StatusServiceUnavailable, codeUnavailable, "the issuer has %d hosts and takes no more", maxHosts)
	}
	s.Hosts = append(s.Hosts, fresh)
	return fresh, nil
}

// Hosts are the credentials of all hosts, the oldest first.
func (i *Issuer) Hosts() []Host {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.state.Hosts)
}
