package relay

import (
	"context"
	"errors"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Hop is what a request says of who sends it (protocol §2).
type Hop struct {
	Host, Key, TS, Sig string
}

// Caller is a host whose hop was verified.
type Caller struct{ store.Enrolment }

// Candidate is a host that a hop may be from.
type Candidate struct {
	store.Enrolment
	refused error // what it is to be told if it is the caller
}

var (
	errHop     = refuse(Unauthorized, "", "bad relay hop")
	errSession = refuse(Unauthorized, "SESSION_EXPIRED", "this host's session is over: enrol again with a fresh account token")
)

// Candidates lists who a hop may be from, by what its headers say alone: the
// key named, or every live holder of the name. It is asked before the body is
// read, so that a stranger's body never is.
func (r *Relay) Candidates(ctx context.Context, h Hop) (list []Candidate, err error) {
	if wire.CheckHopTime(h.TS, r.now()) != nil || h.Sig == "" {
		return nil, errHop
	}
	err = r.store.View(ctx, func(v store.Reader) error {
		hosts, err := r.named(v, h)
		if err != nil {
			return err
		}
		list = make([]Candidate, len(hosts))
		for i, e := range hosts {
			err := r.welcome(v, e)
			if _, refusal := err.(*Error); err != nil && !refusal {
				return err
			}
			list[i] = Candidate{e, err}
		}
		return nil
	})
	return list, storeError(err)
}

// welcome refuses a live host that is denied, or whose session is over. Only a hosted
// relay has sessions; there, a host that came before it was one has none.
func (r *Relay) welcome(v store.Reader, e store.Enrolment) error {
	if err := r.denied(v, e.Key, e.ClientID, Unauthorized); err != nil {
		return err
	}
	if r.issuer != nil && !e.SessionEnds.After(r.now()) {
		return errSession
	}
	return nil
}

func (r *Relay) named(v store.Reader, h Hop) ([]store.Enrolment, error) {
	if h.Key != "" {
		key, err := wire.ParsePublicKey(h.Key)
		if err != nil {
			return nil, errHop
		}
		e, err := v.Enrolment(key)
		if errors.Is(err, store.ErrNotFound) || err == nil && !e.Live() {
			return nil, errHop
		}
		return []store.Enrolment{e}, err
	}
	if !wire.ValidHostName(h.Host) {
		return nil, errHop
	}
	hosts, err := v.LiveByName(h.Host, int(r.limits.PerName)+1)
	if err == nil && (len(hosts) == 0 || len(hosts) > int(r.limits.PerName)) { // nobody, or a crowded name
		err = errHop
	}
	return hosts, err
}

// Verify finds the candidate that signed the request, and refuses one that is
// denied. path is what the protocol signs: with the query for v2, bare for v1.
func (r *Relay) Verify(candidates []Candidate, h Hop, method, path string, body []byte) (Caller, error) {
	payload := wire.HopPayload(method, path, h.TS, body)
	for _, c := range candidates {
		if c.Key.Verify(payload, h.Sig) {
			r.seen.note(c.Key, r.now())
			return Caller{c.Enrolment}, c.refused
		}
	}
	return Caller{}, errHop
}
