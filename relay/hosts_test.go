package relay_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// denials are what the store has against a host, last added first.
func (r *rig) denials(h *wiretest.Host) (list []store.Denial) {
	r.t.Helper()
	r.view(func(v store.Reader) error {
		return v.Denials(h.Pub().Fingerprint(), 0, func(d store.Denial) bool { list = append(list, d); return true })
	})
	return list
}

// block blocks a host and tells whether that changed anything.
func (r *rig) block(key wire.PublicKey, until time.Time, d relay.Deed) bool {
	r.t.Helper()
	changed, err := r.relay.Block(r.t.Context(), key, until, d)
	ok(r.t, "block", err)
	return changed
}

func because(reason string) relay.Deed { return relay.Deed{Actor: operator.Actor, Reason: reason} }

// A block refuses a host with its reason until its end, keeps its mail, and is no
// revocation.
func TestBlockAndUnblock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	same(t, "block", r.block(beta.Pub(), t0.Add(time.Hour), operator), true)
	line := r.receiptOf("block")
	same(t, "whom", line.Host.Name+line.Host.Fingerprint, "beta"+beta.Pub().Fingerprint())
	_, err := r.hop(beta)
	same(t, "what it is told", refused(t, "hop", err, relay.Unauthorized, "DENIED").Text, operator.Reason)
	refused(t, "enrol", r.tryEnrol(beta, ""), relay.Forbidden, "DENIED")
	_, err = r.rotate(beta, wiretest.NewHost("beta"))
	refused(t, "rotate", err, relay.BadRequest, "DENIED")
	r.pushed(alpha, mail(alpha, beta), "accepted")
	e, _ := r.enrolment(beta)
	same(t, "live", e.Live(), true)

	d := r.denials(beta)
	if len(d) != 1 || d[0].Source != relay.SourceOperator || d[0].Reason != operator.Reason || !d[0].AddedAt.Equal(t0) || !d[0].Until.Equal(t0.Add(time.Hour)) {
		t.Fatalf("denials: got %+v; want the operator's, for an hour", d)
	}
	before := r.dump()
	same(t, "block again, just so", r.block(beta.Pub(), t0.Add(time.Hour), operator), false)
	same(t, "the store", r.dump(), before)

	r.clock.Add(time.Hour) // it ends by itself
	r.caller(beta)
	same(t, "block, until it is unblocked", r.block(beta.Pub(), time.Time{}, because("one")), true)
	same(t, "block for another reason", r.block(beta.Pub(), time.Time{}, because("two")), true)
	same(t, "replaced", len(r.log("block")), 3)
	d = r.denials(beta)
	if len(d) != 2 || d[0].Reason != "two" {
		t.Fatalf("denials: got %+v; want the last, and the one that was over before", d)
	}
	r.clock.Add(1000 * day)
	_, err = r.hop(beta)
	refused(t, "hop", err, relay.Unauthorized, "DENIED")
	for what, other := range map[string]relay.DenialRef{
		"of another host":         {ID: d[0].ID, HostFP: alpha.Pub().Fingerprint()},
		"of another time":         {ID: d[0].ID, AddedAt: d[0].AddedAt.Add(time.Millisecond)},
		"as it stood under an id": {ID: d[1].ID, HostFP: d[0].HostFP, AddedAt: d[0].AddedAt},
	} {
		if _, err := r.relay.Unblock(t.Context(), other, operator); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("unblock %s: got %v; want not found", what, err)
		}
	}
	was, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: d[0].ID, HostFP: d[0].HostFP, AddedAt: d[0].AddedAt}, operator)
	ok(t, "unblock", err)
	same(t, "what it was", was.Reason+was.HostFP, "two"+beta.Pub().Fingerprint())
	same(t, "receipt", r.receiptOf("unblock").Denial.ID, d[0].ID)
	r.caller(beta)
	same(t, "its mail", len(r.pull(beta, relay.PullQuery{}).Items), 1)
}

// An unblock leaves what others have against the host, and a block what is not
// the operator's.
func TestBlocksAndOtherDenials(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	beta := r.enrol("beta")
	ok(t, "a denial of the issuer", r.store.Update(t.Context(), func(tx store.Tx) error {
		return tx.AddDenial(store.Denial{HostFP: beta.Pub().Fingerprint(), Reason: "stolen", Source: "issuer", AddedAt: t0})
	}))
	same(t, "block", r.block(beta.Pub(), time.Time{}, operator), true)
	d := r.denials(beta)
	same(t, "denials", len(d), 2)
	_, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: d[0].ID}, operator)
	ok(t, "unblock", err)
	_, err = r.hop(beta)
	same(t, "what it is told", refused(t, "hop", err, relay.Unauthorized, "DENIED").Text, "stolen")
}

// A host may be blocked before it comes.
func TestBlockOfAStranger(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := wiretest.NewHost("mallory")
	same(t, "block", r.block(h.Pub(), time.Time{}, operator), true)
	refused(t, "enrol", r.tryEnrol(h, ""), relay.Forbidden, "DENIED")
	_, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: r.denials(h)[0].ID}, operator)
	ok(t, "unblock", err)
	ok(t, "enrol", r.tryEnrol(h, ""))
}

// What can't be meant, or is not there, changes nothing.
func TestDeedsAboutHostsThatCannotBe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha := r.enrol("alpha")
	before := r.dump()
	for _, tt := range []struct {
		name string
		do   func() error
		want error
	}{
		{"a block that is over", func() error { _, err := r.relay.Block(t.Context(), alpha.Pub(), t0, operator); return err }, relay.ErrBadDeed},
		{"a block of nobody", func() error {
			_, err := r.relay.Block(t.Context(), relay.ItemRef{}.Target, time.Time{}, operator)
			return err
		}, relay.ErrBadDeed},
		{"revoke a stranger", func() error {
			_, err := r.relay.RevokeHost(t.Context(), wiretest.NewHost("x").Pub(), operator)
			return err
		}, store.ErrNotFound},
		{"no such denial", func() error { _, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: 7}, operator); return err }, store.ErrNotFound},
		{"no denial's id", func() error { _, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: -1}, operator); return err }, store.ErrNotFound},
		{"an id beyond all", func() error {
			_, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: math.MaxInt64}, operator)
			return err
		}, store.ErrNotFound},
	} {
		if err := tt.do(); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v; want %v", tt.name, err, tt.want)
		}
	}
	same(t, "the store", r.dump(), before)
	was, err := r.relay.RevokeHost(t.Context(), alpha.Pub(), operator)
	same(t, "revoked", was, true)
	ok(t, "revoke", err)
	same(t, "whom", r.receiptOf("revoke").Host.Name, "alpha")
	before = r.dump()
	was, err = r.relay.RevokeHost(t.Context(), alpha.Pub(), operator)
	ok(t, "revoke again", err)
	same(t, "revoked again", was, false)
	same(t, "the store", r.dump(), before)
}
