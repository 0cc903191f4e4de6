package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// look is one snapshot of the store, and what is known of the hosts in it.
type look struct {
	store.Reader
	relay  *relay.Relay
	now    time.Time
	hosted bool                                // sessions end
	hosts  map[wire.PublicKey]*store.Enrolment // nil for a key that nobody is enrolled under
}

// look runs fn over one snapshot. It is short: nothing but the store is waited for.
func (l *Local) look(ctx context.Context, fn func(v *look) error) error {
	return l.o.Store.View(ctx, func(r store.Reader) error {
		return fn(&look{Reader: r, relay: l.o.Relay, now: l.o.Now().UTC(), hosted: l.o.Hosted, hosts: map[wire.PublicKey]*store.Enrolment{}})
	})
}

// enrolment finds a host, nil when nobody is enrolled under the key.
func (v *look) enrolment(key wire.PublicKey) (*store.Enrolment, error) {
	if e, known := v.hosts[key]; known {
		return e, nil
	}
	e, err := v.Enrolment(key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		v.hosts[key] = nil
		return nil, nil
	case err != nil:
		return nil, err
	}
	v.hosts[key] = &e
	return &e, nil
}

// host names a host.
func (v *look) host(key wire.PublicKey) (Host, error) {
	e, err := v.enrolment(key)
	if err != nil {
		return Host{}, err
	}
	return hostOf(key, e), nil
}

func hostOf(key wire.PublicKey, e *store.Enrolment) Host {
	h := Host{Key: key, Fingerprint: key.Fingerprint()}
	if e != nil {
		h.Name = e.Name
	}
	return h
}

// checkKey wants a key where a call needs one.
func checkKey(what string, key wire.PublicKey) error {
	if key.IsZero() {
		return fmt.Errorf("%w: %s: want a key", ErrBadRequest, what)
	}
	return nil
}
