package relay_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func list(id string, iat time.Duration, entries ...relay.DenyEntry) string {
	return string(must(json.Marshal(relay.DenyList{ID: id, IAT: t0.Add(iat), Expires: t0.Add(iat + time.Hour), Deny: entries})))
}

func byKey(h *wiretest.Host) relay.DenyEntry {
	return relay.DenyEntry{HostFP: h.Pub().Fingerprint(), Reason: "stolen"}
}

func (r *rig) deny(source, token string) relay.DenyResult {
	r.t.Helper()
	res, err := r.relay.Deny(r.t.Context(), source, token)
	ok(r.t, "deny", err)
	return res
}

// all lists every denial, last added first.
func (r *rig) all() (list []store.Denial) {
	r.t.Helper()
	r.view(func(v store.Reader) error {
		return v.Denials("", 0, func(d store.Denial) bool { list = append(list, d); return true })
	})
	return list
}

// An entry refuses whoever is all that it names: on the next hop, in an open long
// poll, and at enrolment. Nobody else notices.
func TestDenialsOfTheIssuer(t *testing.T) {
	t.Parallel()
	fp := func(h *wiretest.Host) string { return h.Pub().Fingerprint() }
	for _, tt := range []struct {
		name  string
		entry func(beta *wiretest.Host) relay.DenyEntry
		hit   bool
	}{
		{"the host", func(b *wiretest.Host) relay.DenyEntry { return relay.DenyEntry{HostFP: fp(b)} }, true},
		{"the credential", func(*wiretest.Host) relay.DenyEntry { return relay.DenyEntry{ClientID: "c-1"} }, true},
		{"both", func(b *wiretest.Host) relay.DenyEntry { return relay.DenyEntry{HostFP: fp(b), ClientID: "c-1"} }, true},
		{"the host with another credential", func(b *wiretest.Host) relay.DenyEntry { return relay.DenyEntry{HostFP: fp(b), ClientID: "c-9"} }, false},
		{"another host with the credential", func(*wiretest.Host) relay.DenyEntry {
			return relay.DenyEntry{HostFP: fp(wiretest.NewHost("x")), ClientID: "c-1"}
		}, false},
		{"another credential", func(*wiretest.Host) relay.DenyEntry { return relay.DenyEntry{ClientID: "c-9"} }, false},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t, hosted)
			alpha := r.enrol("alpha", session{Account: "acme", Client: "c-2", For: 15 * time.Minute}.proof())
			beta := r.enrol("beta", quarter.proof())
			e := tt.entry(beta)
			e.Reason = "stolen"
			p, other := r.poll(t.Context(), beta, relay.PullQuery{}), r.poll(t.Context(), alpha, relay.PullQuery{})
			same(t, "added", r.deny(relay.SourceIssuer, list("l-1", 0, e)).Added, 1)
			r.caller(alpha)
			other.waits("another host's poll")
			if !tt.hit {
				p.waits("poll")
				r.caller(beta)
			} else {
				_, err := p.answer("poll", 0)
				refused(t, "poll", err, relay.Unauthorized, "DENIED")
				_, err = r.hop(beta)
				same(t, "what it is told", refused(t, "hop", err, relay.Unauthorized, "DENIED").Text, "stolen")
				refused(t, "enrol", r.tryEnrol(beta, "", quarter.proof()), relay.Forbidden, "DENIED")
				r.pushed(alpha, mail(alpha, beta), "accepted") // its mail waits for it
			}
			r.pushed(alpha, mail(alpha, alpha), "accepted")
			if tt.hit {
				return
			}
			_, err := p.answer("poll", wait)
			ok(t, "poll", err)
		})
	}
}

// With a new credential a host comes back, unless it is refused by its key.
func TestDeniedCredentialIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	beta := r.enrol("beta", quarter.proof())
	r.deny(relay.SourceIssuer, list("l-1", 0, relay.DenyEntry{HostFP: beta.Pub().Fingerprint(), ClientID: "c-1"}, relay.DenyEntry{ClientID: "c-1"}))
	refused(t, "the old one", r.tryEnrol(beta, "", quarter.proof()), relay.Forbidden, "DENIED")
	next := quarter
	next.Client = "c-2"
	ok(t, "a new one", r.tryEnrol(beta, "", next.proof()))
	r.caller(beta)
	e, _ := r.enrolment(beta)
	same(t, "client", e.ClientID, "c-2")
}

// Lists come once, and in the order in which they were made; of a pulled one that
// is the same as before nothing is new.
func TestDenyListsComeOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	h := wiretest.NewHost("mallory")
	same(t, "added", r.deny(relay.SourceIssuer, list("l-1", 0, byKey(h))).Added, 1)
	again := func(what, token, code string) {
		t.Helper()
		_, err := r.relay.Deny(t.Context(), relay.SourceIssuer, token)
		refused(t, what, err, relay.Conflict, code)
	}
	before := r.dump()
	again("the same again", list("l-1", 0, byKey(h)), "SEEN")
	again("its jti with a newer iat", list("l-1", time.Minute, byKey(wiretest.NewHost("x"))), "SEEN")
	again("an older one", list("l-0", -time.Second, byKey(wiretest.NewHost("x"))), "OLDER")
	same(t, "the store", r.dump(), before)
	same(t, "of the same second", r.deny(relay.SourceIssuer, list("l-2", 0, byKey(h))).Added, 0)
	_, err := r.relay.Deny(t.Context(), relay.SourceIssuer, "junk")
	refused(t, "junk", err, relay.Unauthorized, "TOKEN_SIGNATURE")

	// What is pulled has an order of its own: it may be older than what was pushed.
	pulled := list("l-3", -time.Hour, byKey(wiretest.NewHost("y")))
	same(t, "pulled", r.deny(relay.SourceIssuerList, pulled), relay.DenyResult{Added: 1})
	same(t, "pulled again", r.deny(relay.SourceIssuerList, pulled), relay.DenyResult{Known: true})
	_, err = r.relay.Deny(t.Context(), relay.SourceIssuerList, list("l-4", -2*time.Hour))
	refused(t, "an older one pulled", err, relay.Conflict, "OLDER")
	r.restart()
	again("after a restart", list("l-1", 0, byKey(h)), "SEEN")
	again("older after a restart", list("l-0", -time.Second), "OLDER")
}

// Each entry lasts until its end and at least for the longest life of a token, and
// is pruned a day after; without an end until an operator removes it.
func TestDenialsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	past, soon, never := wiretest.NewHost("past"), wiretest.NewHost("soon"), wiretest.NewHost("never")
	entry := func(h *wiretest.Host, until time.Time) relay.DenyEntry {
		e := byKey(h)
		e.Until = until
		return e
	}
	entries := []relay.DenyEntry{entry(past, t0.Add(-time.Hour)), entry(soon, t0.Add(2*time.Hour)), entry(never, time.Time{})}
	same(t, "added", r.deny(relay.SourceIssuerList, list("l-1", 0, entries...)).Added, 3)
	denied := func(after time.Duration, want ...bool) {
		t.Helper()
		r.clock.Set(t0.Add(after))
		for i, h := range []*wiretest.Host{past, soon, never} {
			err := r.tryEnrol(h, "", quarter.proof())
			if _, refusal := err.(*relay.Error); refusal != want[i] {
				t.Errorf("%s after %s: got %v; want denied %v", h.Name, after, err, want[i])
			}
		}
	}
	denied(16*time.Minute-time.Millisecond, true, true, true)
	denied(16*time.Minute, false, true, true)
	denied(2*time.Hour, false, false, true)
	// The same list under a new name, as it is pulled every minute, adds nothing.
	same(t, "added", r.deny(relay.SourceIssuerList, list("l-2", time.Hour, entries...)).Added, 0)

	prune := func(want int64) {
		t.Helper()
		n, err := r.relay.PruneDenials(t.Context())
		ok(t, "prune", err)
		same(t, "pruned", n, want)
	}
	r.clock.Set(t0.Add(day + 16*time.Minute))
	prune(0)
	r.clock.Add(time.Millisecond)
	prune(1)
	r.clock.Add(day)
	prune(1)
	same(t, "left", len(r.all()), 1)
	_, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: r.all()[0].ID}, operator)
	ok(t, "remove", err)
	denied(3*day, false, false, false)
}

// A host does not shake a denial off by a new key, whichever comes first.
func TestDenialsFollowRotations(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	first := r.enrol("beta", quarter.proof())
	last := r.rotated(r.rotated(first))
	same(t, "added", r.deny(relay.SourceIssuer, list("l-1", 0, byKey(first))).Added, 2)
	_, err := r.hop(last)
	refused(t, "hop", err, relay.Unauthorized, "DENIED")
	_, err = r.rotate(last, wiretest.NewHost("beta"))
	refused(t, "rotate", err, relay.BadRequest, "DENIED")

	gamma := r.enrol("gamma", session{Account: "acme", Client: "c-3", For: 15 * time.Minute}.proof())
	r.deny(relay.SourceIssuer, list("l-2", 0, relay.DenyEntry{ClientID: "c-3"}))
	_, err = r.rotate(gamma, wiretest.NewHost("gamma"))
	refused(t, "rotate of a denied credential", err, relay.BadRequest, "DENIED")
}

// What an operator denies follows, too: by a fingerprint or by a key that was used
// before.
func TestOperatorDenialsFollowRotations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		deny func(r *rig, first *wiretest.Host) (bool, error)
	}{
		{"a denial", func(r *rig, first *wiretest.Host) (bool, error) {
			_, changed, err := r.relay.AddDenial(r.t.Context(), relay.DenialSpec{HostFP: first.Pub().Fingerprint()}, because("lost"))
			return changed, err
		}},
		{"a block", func(r *rig, first *wiretest.Host) (bool, error) {
			return r.relay.Block(r.t.Context(), first.Pub(), time.Time{}, because("lost"))
		}},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t)
			first := r.enrol("beta")
			last := r.rotated(r.rotated(first))
			p := r.poll(t.Context(), last, relay.PullQuery{})
			changed, err := tt.deny(r, first)
			ok(t, "deny", err)
			same(t, "changed", changed, true)
			_, err = p.answer("poll", 0)
			refused(t, "poll", err, relay.Unauthorized, "DENIED")
			_, err = r.hop(last)
			same(t, "what it is told", refused(t, "hop", err, relay.Unauthorized, "DENIED").Text, "lost")
			same(t, "of the old key and of the last", len(r.all()), 2)
			before := r.dump()
			changed, err = tt.deny(r, first)
			ok(t, "again", err)
			same(t, "changed", changed, false)
			same(t, "the store", r.dump(), before)
		})
	}
}

// A long list is taken whole, and its line in the log stays short. What an
// interrupted try has left is not added again.
func TestLongDenyList(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	var entries []relay.DenyEntry
	for i := range 1201 {
		entries = append(entries, relay.DenyEntry{ClientID: fmt.Sprintf("c-%d", i), Reason: "closed"})
	}
	ok(t, "a part", r.store.Update(t.Context(), func(tx store.Tx) error {
		return tx.AddDenial(store.Denial{ClientID: "c-7", Reason: "closed", Source: relay.SourceIssuer, AddedAt: t0})
	}))
	same(t, "added", r.deny(relay.SourceIssuer, list("l-1", 0, entries...)).Added, 1200)
	same(t, "denials", len(r.all()), 1201)
	added := 0
	for _, o := range r.log("deny") {
		var line struct {
			Actor   string
			Added   int
			Denials []any
		}
		ok(t, "the log's line", json.Unmarshal(o.Receipt, &line))
		same(t, "actor", line.Actor, "issuer")
		same(t, "named", len(line.Denials), 50)
		added += line.Added
	}
	same(t, "added by the log", added, 1200)
}

// A credential of very many hosts ends all their long polls.
func TestDenialOfManyHosts(t *testing.T) {
	t.Parallel()
	bubble(t, "many", func(t *testing.T) {
		r := newRig(t, hosted)
		var hosts []*wiretest.Host
		for i := range 130 {
			hosts = append(hosts, r.enrol(fmt.Sprintf("h%d", i), quarter.proof()))
		}
		var polls []*poll
		for _, h := range hosts {
			polls = append(polls, r.poll(t.Context(), h, relay.PullQuery{}))
		}
		r.deny(relay.SourceIssuer, list("l-1", 0, relay.DenyEntry{ClientID: "c-1"}))
		for _, p := range polls {
			_, err := p.answer("poll", 0)
			refused(t, "poll", err, relay.Unauthorized, "DENIED")
		}
	})
}

// So does a credential of a host that has had very many keys: the last one need not
// be among those that are looked at.
func TestDenialOfManyKeys(t *testing.T) {
	t.Parallel()
	bubble(t, "rotated often", func(t *testing.T) {
		r := newRig(t, hosted)
		h := r.enrol("beta", quarter.proof())
		for range 110 {
			h = r.rotated(h)
		}
		last := r.rotatedBehind(h)
		p := r.poll(t.Context(), last, relay.PullQuery{})
		r.deny(relay.SourceIssuer, list("l-1", 0, relay.DenyEntry{ClientID: "c-1"}))
		_, err := p.answer("poll", 0)
		refused(t, "poll", err, relay.Unauthorized, "DENIED")
	})
}

// rotatedBehind rotates h to a key that stands behind nearly all others: a store
// lists keys in the order of their bytes.
func (r *rig) rotatedBehind(h *wiretest.Host) *wiretest.Host {
	r.t.Helper()
	last := wiretest.NewHost(h.Name)
	for k := last.Pub(); k[0] < 0xff; k = last.Pub() {
		last = wiretest.NewHost(h.Name)
	}
	_, err := r.rotate(h, last)
	ok(r.t, "rotate", err)
	return last
}

// A dry run of a denial wakes nobody, and one of a credential that is removed lets
// its hosts in again.
func TestDryDenialWakesNobody(t *testing.T) {
	t.Parallel()
	bubble(t, "dry", func(t *testing.T) {
		r := newRig(t, hosted)
		beta := r.rotatedBehind(r.enrol("beta", quarter.proof()))
		p := r.poll(t.Context(), beta, relay.PullQuery{})
		dry := because("lost")
		dry.Dry = true
		_, changed, err := r.relay.AddDenial(t.Context(), relay.DenialSpec{ClientID: "c-1"}, dry)
		ok(t, "dry run", err)
		same(t, "changed", changed, true)
		p.waits("after a dry run")
		d, _, err := r.relay.AddDenial(t.Context(), relay.DenialSpec{ClientID: "c-1"}, because("lost"))
		ok(t, "deny", err)
		_, err = p.answer("poll", 0)
		refused(t, "poll", err, relay.Unauthorized, "DENIED")
		_, err = r.relay.Unblock(t.Context(), relay.DenialRef{ID: d.ID}, operator)
		ok(t, "remove", err)
		line := r.receiptOf("unblock")
		same(t, "whom", line.Host.Name+" "+line.Host.Fingerprint, "beta "+beta.Pub().Fingerprint())
		r.caller(beta)
	})
}

// An operator denies by what a denial can name.
func TestOperatorDenies(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	beta := r.enrol("beta", quarter.proof())
	add := func(s relay.DenialSpec) (store.Denial, bool) {
		t.Helper()
		d, changed, err := r.relay.AddDenial(t.Context(), s, because("lost"))
		ok(t, "add", err)
		return d, changed
	}
	d, changed := add(relay.DenialSpec{ClientID: "c-1"})
	same(t, "changed", changed, true)
	same(t, "client", d.ClientID, "c-1")
	_, err := r.hop(beta)
	same(t, "what it is told", refused(t, "hop", err, relay.Unauthorized, "DENIED").Text, "lost")
	again, changed := add(relay.DenialSpec{ClientID: "c-1"})
	same(t, "changed", changed, false)
	same(t, "id", again.ID, d.ID)
	longer, changed := add(relay.DenialSpec{ClientID: "c-1", Until: t0.Add(time.Hour)})
	same(t, "changed", changed, true)
	same(t, "denials", len(r.all()), 1)
	was, err := r.relay.Unblock(t.Context(), relay.DenialRef{ID: longer.ID}, operator)
	ok(t, "remove", err)
	same(t, "removed", was.ClientID, "c-1")
	r.caller(beta)

	dry := because("lost")
	dry.Dry = true
	before := r.dump()
	_, changed, err = r.relay.AddDenial(t.Context(), relay.DenialSpec{HostFP: beta.Pub().Fingerprint(), ClientID: "c-1"}, dry)
	ok(t, "dry run", err)
	same(t, "changed", changed, true)
	for _, bad := range []relay.DenialSpec{
		{}, {HostFP: "nobody"}, {ClientID: strings.Repeat("c", 201)}, {ClientID: "a\x1b[2J"}, {ClientID: "a\xff"},
		{ClientID: "c-1", Until: t0},
	} {
		if _, _, err := r.relay.AddDenial(t.Context(), bad, operator); err == nil {
			t.Errorf("%+v: got no error; want a refusal", bad)
		}
	}
	same(t, "the store", r.dump(), before)
}

func TestDenyOnARelayWithoutIssuer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.relay.Deny(t.Context(), relay.SourceIssuer, list("l-1", 0))
	refused(t, "deny", err, relay.NotFound, "NOT_FOUND")
}
