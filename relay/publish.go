package relay

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// PutSenders replaces the list of who may push to the caller.
func (r *Relay) PutSenders(ctx context.Context, who Caller, list json.RawMessage, sig string) error {
	l, err := wire.ParseSenderList(list, sig, who.Key, r.now())
	switch {
	case errors.Is(err, wire.ErrBadSignature):
		return refuse(Unauthorized, "BAD_SIGNATURE", "the list is not signed by the host it is for")
	case err != nil:
		return refuse(BadRequest, "BAD_LIST", err.Error())
	}
	return r.update(ctx, func(c *change) error {
		if err := r.stillWelcome(c, who.Key); err != nil {
			return err
		}
		was, err := c.SenderList(who.Key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		// The store keeps whole milliseconds: a finer iat must not be newer than itself.
		if err == nil && !l.IAT.Truncate(time.Millisecond).After(was.IAT) {
			return refuse(Conflict, "NOT_NEWER", "the stored list is as new or newer")
		}
		put := store.SenderList{Target: who.Key, Senders: l.Senders, IAT: l.IAT, Record: l.Canonical, Sig: sig}
		if err := c.PutSenderList(put); err != nil {
			return err
		}
		return c.did(Effect{Kind: Listed, Host: who.Key, Count: int64(len(l.Senders))})
	})
}

// PutEncAd stores the caller's v2 sealing-key advertisement.
func (r *Relay) PutEncAd(ctx context.Context, who Caller, ad json.RawMessage, sig string) error {
	a, err := wire.ParseEncAd(ad, sig, who.Name, who.Key, r.now())
	if err != nil {
		return refuse(BadRequest, "BAD_AD", err.Error())
	}
	return r.update(ctx, func(c *change) error {
		if err := r.stillWelcome(c, who.Key); err != nil {
			return err
		}
		return c.PutEncAd(who.Key, store.EncAd{Record: a.Canonical, Sig: sig, At: r.now()})
	})
}

// PutEncKey stores the caller's v1 sealing key. The signature names the host as
// it is enrolled.
func (r *Relay) PutEncKey(ctx context.Context, who Caller, encPub, sig string) error {
	k, err := wire.ParseEncPublicKey(encPub)
	if err != nil {
		return refuse(BadRequest, "BAD_KEY", "bad encryption key")
	}
	if !who.Key.Verify(wire.EncKeyV1Payload(who.Name, k), sig) {
		return refuse(Unauthorized, "BAD_SIGNATURE", "the key is not signed by the host it is for")
	}
	return r.update(ctx, func(c *change) error {
		if err := r.stillWelcome(c, who.Key); err != nil {
			return err
		}
		return c.PutEncKey(who.Key, who.Name, store.EncKey{EncPub: encPub, Sig: sig, At: r.now()})
	})
}

// EncKeyAnswer is what a host published of its sealing keys.
type EncKeyAnswer struct {
	Host    string
	HostKey wire.PublicKey
	V1      store.EncKey // EncPub is "" when there is none
	Ad      *store.EncAd // nil when there is none that is current
	AdKey   string       // the key the ad names
}

var errNoEncKey = refuse(NotFound, "NOT_FOUND", "no encryption key known for that host")

// EncKey looks up a host's sealing keys by its key or, where that is
// unambiguous for the caller, by its name.
func (r *Relay) EncKey(ctx context.Context, who Caller, key, host string) (a EncKeyAnswer, err error) {
	err = r.store.View(ctx, func(v store.Reader) error {
		e, err := r.lookup(v, who, key, host)
		if err != nil {
			return err
		}
		a = EncKeyAnswer{Host: e.Name, HostKey: e.Key}
		if a.V1, err = currentEncKey(v, e); err != nil {
			return err
		}
		if err := r.currentAd(v, e, &a); err != nil {
			return err
		}
		if a.Ad == nil && a.V1.EncPub == "" {
			return errNoEncKey
		}
		return nil
	})
	return a, storeError(err)
}

// currentEncKey is a host's v1 pair, if it still holds: its signature names the
// host, so a pair from before a change of name is none.
func currentEncKey(v store.Reader, e store.Enrolment) (store.EncKey, error) {
	k, err := v.EncKey(e.Key)
	if errors.Is(err, store.ErrNotFound) {
		return store.EncKey{}, nil
	}
	if err != nil {
		return k, err
	}
	pub, err := wire.ParseEncPublicKey(k.EncPub)
	if err != nil || !e.Key.Verify(wire.EncKeyV1Payload(e.Name, pub), k.Sig) {
		return store.EncKey{}, nil
	}
	return k, nil
}

// currentAd adds the advertisement if it still holds; an expired one is not served.
func (r *Relay) currentAd(v store.Reader, e store.Enrolment, a *EncKeyAnswer) error {
	ad, err := v.EncAd(e.Key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if parsed, err := wire.ParseEncAd(ad.Record, ad.Sig, e.Name, e.Key, r.now()); err == nil {
		a.Ad, a.AdKey = &ad, parsed.EncPub.String()
	}
	return nil
}

func (r *Relay) lookup(v store.Reader, who Caller, key, host string) (store.Enrolment, error) {
	if key == "" {
		return r.byName(v, who, host, errNoEncKey, errNoEncKey)
	}
	k, err := wire.ParsePublicKey(key)
	if err != nil {
		return store.Enrolment{}, errNoEncKey
	}
	e, err := v.Enrolment(k)
	if errors.Is(err, store.ErrNotFound) || err == nil && !e.Live() {
		return e, errNoEncKey
	}
	return e, err
}

// byName resolves a name as v1 does: to the only live host that carries it, or
// the only one inside the caller's own proven account. A crowded name resolves
// to nobody.
func (r *Relay) byName(v store.Reader, who Caller, name string, none, ambiguous error) (store.Enrolment, error) {
	if !wire.ValidHostName(name) {
		return store.Enrolment{}, none
	}
	list, err := v.LiveByName(name, int(r.limits.PerName)+1)
	if err != nil {
		return store.Enrolment{}, err
	}
	switch n := len(list); {
	case n == 0:
		return store.Enrolment{}, none
	case n == 1:
		return list[0], nil
	case n > int(r.limits.PerName), who.Account == "":
		return store.Enrolment{}, ambiguous
	}
	e, err := v.LiveInAccount(who.Account, name)
	if errors.Is(err, store.ErrNotFound) {
		return e, ambiguous
	}
	return e, err
}
