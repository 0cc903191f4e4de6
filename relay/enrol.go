package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// EnrolRequest is what a host sends to enrol.
type EnrolRequest struct {
	Host    string
	Key     string
	OwnerFP string
	Sig     string
	Proof   json.RawMessage
}

var (
	errBadName = refuse(BadRequest, "BAD_HOST", "bad host name")
	errBadKey  = refuse(BadRequest, "BAD_KEY", "bad public key")
	errRate    = refuse(TooMany, "RATE", "too many calls from this address; try again in a minute")
	errRevoked = refuse(Forbidden, "REVOKED", "this host key is revoked here")
	errFull    = refuse(Unavailable, "FULL", "the relay takes no new hosts now")
)

// AllowAddress counts a challenge, enrol or rotate call of a client address.
func (r *Relay) AllowAddress(addr string) error {
	if !r.enrols.Allow(addr, r.now()) {
		return errRate
	}
	return nil
}

// Challenge opens an enrolment challenge for a host.
func (r *Relay) Challenge(host, key string) (string, error) {
	k, err := applicant(host, key)
	if err != nil {
		return "", err
	}
	text, ok := r.challenges.issue(k, r.now())
	if !ok {
		return "", refuse(Unavailable, "FULL", "too many open challenges; try again in a few minutes")
	}
	return text, nil
}

func applicant(host, key string) (wire.PublicKey, error) {
	if !wire.ValidHostName(host) {
		return wire.PublicKey{}, errBadName
	}
	k, err := wire.ParsePublicKey(key)
	if err != nil {
		return wire.PublicKey{}, errBadKey
	}
	return k, nil
}

// Enrol answers a challenge. Enrolling again is idempotent; what a stronger
// authority proved stays.
func (r *Relay) Enrol(ctx context.Context, q EnrolRequest) error {
	key, err := applicant(q.Host, q.Key)
	if err != nil {
		return err
	}
	if !wire.ValidOwnerFP(q.OwnerFP) {
		return refuse(BadRequest, "BAD_OWNER", "bad owner fingerprint")
	}
	ch, open := r.challenges.find(key, r.now())
	if !open || !key.Verify(wire.EnrolPayload(ch.text, q.Host, key, q.OwnerFP), q.Sig) || !r.challenges.use(key, ch.text) {
		return refuse(Unauthorized, "BAD_CHALLENGE", "no open challenge for this key, or it is not signed by it")
	}
	if err := r.store.View(ctx, func(v store.Reader) error { return r.mayEnrol(v, key) }); err != nil {
		return storeError(err)
	}
	grant, err := r.authority.Authorize(ctx, Applicant{Name: q.Host, Key: key, OwnerFP: q.OwnerFP, Challenge: ch.text, Proof: q.Proof})
	if err != nil {
		r.log.Warn("enrolment authority failed", "host", q.Host, "key", key.Fingerprint(), "err", err)
		var why *Error
		if errors.As(err, &why) {
			return &Error{Kind: Forbidden, Code: "DENIED", Text: wire.Cut(why.Text, 200), Reason: why.Reason}
		}
		return refuse(Forbidden, "DENIED", "the enrolment authority is unavailable")
	}
	if !grant.OK {
		return grant.refusal()
	}
	return r.update(ctx, func(c *change) error { return c.enrol(q, key, grant) })
}

// refusal is what a host is told that an authority does not let enrol.
func (g Grant) refusal() *Error {
	reason := g.Reason
	if g.Code != "" {
		reason = g.Code + ": " + reason
	}
	e := deny(Forbidden, reason)
	e.Reason = g.Code
	return e
}

// mayEnrol refuses keys that are revoked, or denied whatever credential they come
// with: which one that is, the authority tells.
func (r *Relay) mayEnrol(v store.Reader, key wire.PublicKey) error {
	e, err := v.Enrolment(key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !e.Live() {
		return errRevoked
	}
	return r.denied(v, key, "", Forbidden)
}

// denied refuses a host that a denial in force matches.
func (r *Relay) denied(v store.Reader, key wire.PublicKey, clientID string, kind Kind) error {
	d, err := v.Denied(key.Fingerprint(), clientID, r.now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return deny(kind, d.Reason)
}

func deny(kind Kind, reason string) *Error {
	return refuse(kind, "DENIED", cmp.Or(wire.Cut(reason, 200), "denied"))
}

func (c *change) enrol(q EnrolRequest, key wire.PublicKey, g Grant) error {
	was, err := c.Enrolment(key)
	known := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !was.Live() {
		return errRevoked
	}
	e := store.Enrolment{
		Key: key, Name: q.Host, OwnerFP: q.OwnerFP, Account: g.Account, Org: g.Org, AuthorizedBy: g.By,
		ClientID: g.ClientID, EnrolledAt: c.r.now(), SessionEnds: g.SessionEnds.Truncate(time.Millisecond).UTC(),
	}
	if g.SessionEnds.IsZero() {
		e.SessionEnds = time.Time{}
	}
	if known {
		e.EnrolledAt = was.EnrolledAt
		keep(&e, was)
	}
	if err := c.r.denied(c, key, e.ClientID, Forbidden); err != nil {
		return err
	}
	if known {
		if e == was {
			return nil
		}
	} else {
		totals, err := c.Totals()
		if err != nil {
			return err
		}
		if totals.Enrolments >= c.r.limits.Enrolments {
			return errFull
		}
		if !c.Room() {
			return store.ErrFull
		}
	}
	if err := c.PutEnrolment(e); errors.Is(err, store.ErrNameTaken) {
		return refuse(Conflict, "NAME_TAKEN", "another host of this account has that name")
	} else if err != nil {
		return err
	}
	return c.did(Effect{Kind: Enrolled, Host: key})
}

// keep keeps of an earlier enrolment what the new one must not take away: a weaker
// authority's word never replaces a stronger one's, and a token that is older than
// the last one of its credential does not shorten the session.
func keep(e *store.Enrolment, was store.Enrolment) {
	if was.Account != "" && e.Account == "" {
		e.Account, e.Org, e.AuthorizedBy, e.ClientID = was.Account, was.Org, was.AuthorizedBy, was.ClientID
	}
	if e.ClientID == was.ClientID && was.SessionEnds.After(e.SessionEnds) {
		e.SessionEnds = was.SessionEnds
	}
}
