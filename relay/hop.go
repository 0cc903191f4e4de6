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

var errHop = refuse(Unauthorized, "", "bad relay hop")

// Candidates lists who a hop may be from, by what its headers say alone: the
// key named, or every live holder of the name. It is asked before the body is
// read, so that a stranger's body never is.
func (r *Relay) Candidates(ctx context.Context, h Hop) (list []store.Enrolment, err error) {
	if wire.CheckHopTime(h.TS, r.now()) != nil || h.Sig == "" {
		return nil, errHop
	}
	if h.Key != "" {
		key, err := wire.ParsePublicKey(h.Key)
		if err != nil {
			return nil, errHop
		}
		e, err := r.enrolment(ctx, key)
		if err != nil {
			return nil, err
		}
		return []store.Enrolment{e}, nil
	}
	if !wire.ValidHostName(h.Host) {
		return nil, errHop
	}
	err = r.store.View(ctx, func(v store.Reader) (err error) {
		list, err = v.LiveByName(h.Host, int(r.limits.PerName)+1)
		return err
	})
	if err != nil {
		return nil, storeError(err)
	}
	if len(list) == 0 || len(list) > int(r.limits.PerName) { // nobody, or a crowded name
		return nil, errHop
	}
	return list, nil
}

func (r *Relay) enrolment(ctx context.Context, key wire.PublicKey) (e store.Enrolment, err error) {
	err = r.store.View(ctx, func(v store.Reader) (err error) { e, err = v.Enrolment(key); return err })
	if errors.Is(err, store.ErrNotFound) || err == nil && !e.Live() {
		return e, errHop
	}
	return e, storeError(err)
}

// Verify finds the candidate that signed the request, and refuses one that is
// denied. path is what the protocol signs: with the query for v2, bare for v1.
func (r *Relay) Verify(ctx context.Context, candidates []store.Enrolment, h Hop, method, path string, body []byte) (Caller, error) {
	payload := wire.HopPayload(method, path, h.TS, body)
	for _, e := range candidates {
		if !e.Key.Verify(payload, h.Sig) {
			continue
		}
		err := r.store.View(ctx, func(v store.Reader) error { return r.denied(v, e.Key, Unauthorized) })
		return Caller{e}, storeError(err)
	}
	return Caller{}, errHop
}
