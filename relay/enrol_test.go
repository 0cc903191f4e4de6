package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestA6_EnrolmentNeedsItsChallenge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, mallory, beta := wiretest.NewHost("alpha"), wiretest.NewHost("mallory"), r.enrol("beta")
	none := func(what string, err error) {
		t.Helper()
		refused(t, what, err, relay.Unauthorized, "BAD_CHALLENGE")
	}
	none("no challenge was asked for", r.answer(alpha, "made-up", ""))

	challenge, err := r.relay.Challenge("alpha", alpha.Pub().String())
	ok(t, "challenge", err)
	none("another key answers it as itself", r.answer(mallory, challenge, ""))
	q := relay.EnrolRequest{Host: "alpha", Key: alpha.Pub().String(), Sig: mallory.Key.Sign(wire.EnrolPayload(challenge, "alpha", alpha.Pub(), ""))}
	none("another key answers it for alpha", r.relay.Enrol(t.Context(), q))
	q.Sig = alpha.Key.Sign(wire.EnrolPayload(challenge, "alpha", alpha.Pub(), "mine"))
	none("signed for another owner_fp", r.relay.Enrol(t.Context(), q))
	_, found := r.enrolment(alpha)
	same(t, "alpha enrolled", found, false)

	_, err = r.relay.Push(t.Context(), relay.Caller{Enrolment: store.Enrolment{Key: alpha.Pub(), Name: "alpha"}}, []wire.PushItem{mail(alpha, beta)})
	refused(t, "push of a key that never enrolled", err, relay.Unauthorized, "")
	_, err = r.hop(alpha)
	refused(t, "hop of a key that never enrolled", err, relay.Unauthorized, "")

	ok(t, "the holder answers", r.answer(alpha, challenge, "")) // bad answers did not use it up
	none("a challenge is good once", r.answer(alpha, challenge, ""))
	older, err := r.relay.Challenge("alpha", alpha.Pub().String())
	ok(t, "challenge", err)
	_, err = r.relay.Challenge("alpha", alpha.Pub().String())
	ok(t, "challenge", err)
	none("a new challenge replaces the older one", r.answer(alpha, older, ""))
	same(t, "items", r.totals().Items, 0)
}

func TestC7_NamesAndRevokedKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts)
	t.Run("a", func(t *testing.T) {
		one, two := r.enrol("macbook"), r.enrol("MacBook")
		for _, h := range []*wiretest.Host{one, two} {
			if _, err := r.hop(h); err != nil {
				t.Errorf("hop of %s: got %v; want it live", h.Name, err)
			}
		}
	})
	t.Run("b", func(t *testing.T) {
		first := r.enrol("macbook", "acme")
		err := r.tryEnrol(wiretest.NewHost("MACBOOK"), "", "acme")
		refused(t, "second key in the account", err, relay.Conflict, "NAME_TAKEN")
		r.enrol("macbook", "globex")
		ok(t, "the same key again", r.tryEnrol(first, "", "acme"))
		r.revoke(first)
		r.enrol("macbook", "acme") // the name is free again
	})
	t.Run("c", func(t *testing.T) {
		h := r.enrol("lost")
		r.revoke(h)
		refused(t, "enrol again", r.tryEnrol(h, ""), relay.Forbidden, "REVOKED")
		refused(t, "enrol again, proven", r.tryEnrol(h, "", "acme"), relay.Forbidden, "REVOKED")
		_, err := r.hop(h)
		refused(t, "hop", err, relay.Unauthorized, "")
		e, _ := r.enrolment(h)
		same(t, "live", e.Live(), false)
		was, err := r.relay.RevokeHost(t.Context(), h.Pub(), operator)
		if was || err != nil {
			t.Errorf("revoke again: got %v, %v; want false", was, err)
		}
	})
}

// What a stronger authority proved stays when the host enrols by its key alone.
func TestEnrolAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts)
	h := r.enrol("alpha", "acme")
	r.clock.Add(time.Hour)
	ok(t, "again, without a proof", r.tryEnrol(h, "mine"))
	got, _ := r.enrolment(h)
	want := store.Enrolment{Key: h.Pub(), Name: "alpha", OwnerFP: "mine", Account: "acme", AuthorizedBy: "accounts", EnrolledAt: t0}
	same(t, "enrolment", got, want)
	same(t, "live enrolments", r.totals().Enrolments, 1)

	// The queue's charge follows the account.
	beta := r.enrol("beta")
	r.pushed(beta, mail(beta, h), "accepted")
	charged := r.accountUsage("acme")
	ok(t, "another account", r.tryEnrol(h, "mine", "globex"))
	same(t, "charge of the old account", r.accountUsage("acme"), store.Usage{})
	same(t, "charge of the new account", r.accountUsage("globex"), charged)
}

func TestC10_BoundedEnrolment(t *testing.T) {
	t.Parallel()
	key := wiretest.NewHost("x").Pub().String()
	t.Run("a", func(t *testing.T) {
		r := newRig(t)
		for _, name := range []string{"", "be ta", "beta!", "-beta", ".beta", strings.Repeat("b", 64), "béta", "beta\n"} {
			_, err := r.relay.Challenge(name, key)
			refused(t, fmt.Sprintf("challenge for %q", name), err, relay.BadRequest, "BAD_HOST")
			err = r.relay.Enrol(t.Context(), relay.EnrolRequest{Host: name, Key: key})
			refused(t, fmt.Sprintf("enrolment of %q", name), err, relay.BadRequest, "BAD_HOST")
		}
		_, err := r.relay.Challenge("B"+strings.Repeat("._-9", 15)+"zz", key) // 63
		ok(t, "the longest name", err)
	})
	t.Run("b", func(t *testing.T) {
		r := newRig(t)
		for _, k := range []string{"", "x", key[:43], key + "=", strings.Repeat("A", 100_000), key[:42] + "/=", "\n" + key} {
			_, err := r.relay.Challenge("beta", k)
			refused(t, fmt.Sprintf("challenge for a key of %d characters", len(k)), err, relay.BadRequest, "BAD_KEY")
		}
	})
	t.Run("c and d", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.OpenChallenges = 2 }), func(s *setup) { s.ChallengeLife = 50 * time.Millisecond })
		one, two, three := wiretest.NewHost("one"), wiretest.NewHost("two"), wiretest.NewHost("three")
		_, err := r.relay.Challenge("one", one.Pub().String())
		ok(t, "first", err)
		_, err = r.relay.Challenge("two", two.Pub().String())
		ok(t, "second", err)
		_, err = r.relay.Challenge("three", three.Pub().String())
		refused(t, "third", err, relay.Unavailable, "FULL")
		first, err := r.relay.Challenge("one", one.Pub().String())
		ok(t, "a new one in place of its own", err)
		r.clock.Add(49 * time.Millisecond)
		_, err = r.relay.Challenge("three", three.Pub().String())
		refused(t, "third, 1 ms early", err, relay.Unavailable, "FULL")
		r.clock.Add(time.Millisecond)
		refused(t, "enrol with an expired one", r.answer(one, first, ""), relay.Unauthorized, "BAD_CHALLENGE")
		ok(t, "third, after they expired", r.tryEnrol(three, ""))
	})
	t.Run("e", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.Enrolments = 2 }))
		one, two := r.enrol("one"), r.enrol("two")
		three := wiretest.NewHost("three")
		refused(t, "third key", r.tryEnrol(three, ""), relay.Unavailable, "FULL")
		ok(t, "a known key", r.tryEnrol(one, "again"))
		r.rotated(one) // a rotation takes no place
		r.revoke(two)
		ok(t, "third key, after a revocation", r.tryEnrol(three, ""))
		same(t, "live enrolments", r.totals().Enrolments, 2)
	})
	t.Run("f", func(t *testing.T) {
		r := newRig(t)
		ok(t, "owner_fp of 64", r.tryEnrol(wiretest.NewHost("alpha"), strings.Repeat("f", 64)))
		for _, fp := range []string{strings.Repeat("f", 65), "a b", "é"} {
			refused(t, fmt.Sprintf("owner_fp %q", fp), r.tryEnrol(wiretest.NewHost("alpha"), fp), relay.BadRequest, "BAD_OWNER")
		}
	})
	t.Run("g", func(t *testing.T) {
		r := newRig(t, limits(func(l *relay.Limits) { l.EnrolPerMinute = 3 }))
		for range 3 {
			ok(t, "within the rate", r.relay.AllowAddress("192.0.2.1"))
		}
		refused(t, "fourth", r.relay.AllowAddress("192.0.2.1"), relay.TooMany, "RATE")
		ok(t, "another address", r.relay.AllowAddress("192.0.2.2"))
		r.clock.Add(time.Minute)
		ok(t, "a minute later", r.relay.AllowAddress("192.0.2.1"))
	})
}

// Many challenges of one key, and many keys over time, keep the table bounded
// and correct.
func TestChallengesAskedAgainAndAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.OpenChallenges = 2 }))
	one, two := wiretest.NewHost("one"), wiretest.NewHost("two")
	var last string
	for range 110 { // not where the table was just compacted
		c, err := r.relay.Challenge("one", one.Pub().String())
		ok(t, "challenge", err)
		if c == last || len(c) < 32 {
			t.Fatalf("challenge: got %q after %q; want a fresh unguessable one", c, last)
		}
		last = c
		r.clock.Add(time.Second)
	}
	_, err := r.relay.Challenge("two", two.Pub().String())
	ok(t, "another key's", err)
	r.clock.Add(5*time.Minute - 2*time.Second)
	ok(t, "the newest one is open for five minutes", r.answer(one, last, ""))
}

// authorityFunc is an authority of a test.
type authorityFunc func(relay.Applicant) (relay.Grant, error)

func (f authorityFunc) Authorize(_ context.Context, a relay.Applicant) (relay.Grant, error) {
	return f(a)
}

func TestG8_Authority(t *testing.T) {
	t.Parallel()
	var grant relay.Grant
	var thrown error
	var asked []relay.Applicant
	r := newRig(t, func(s *setup) {
		s.Authority = authorityFunc(func(a relay.Applicant) (relay.Grant, error) {
			asked = append(asked, a)
			return grant, thrown
		})
	})
	h := wiretest.NewHost("alpha")
	nothing := func(what string) {
		t.Helper()
		if _, found := r.enrolment(h); found || r.totals().Enrolments != 0 {
			t.Errorf("%s: got an enrolment; want nothing stored", what)
		}
		_, err := r.hop(h)
		refused(t, "hop, "+what, err, relay.Unauthorized, "")
	}

	grant = relay.Grant{Reason: "no seat left in acme"}
	e := refused(t, "denial", r.tryEnrol(h, "mine", "token"), relay.Forbidden, "DENIED")
	same(t, "reason", e.Text, "no seat left in acme")
	nothing("denied")
	same(t, "times asked", len(asked), 1)
	if a := asked[0]; a.Name != "alpha" || a.Key != h.Pub() || a.OwnerFP != "mine" || a.Challenge == "" || string(a.Proof) != `"token"` {
		t.Errorf("applicant: got %+v; want what the host sent", a)
	}

	grant.Reason = strings.Repeat("ü", 300)
	e = refused(t, "long reason", r.tryEnrol(h, ""), relay.Forbidden, "DENIED")
	same(t, "reason, cut at 200 characters", e.Text, strings.Repeat("ü", 200))

	grant, thrown = relay.Grant{OK: true, Account: "acme"}, errors.New("connection to 10.0.0.7 refused")
	e = refused(t, "an authority that throws", r.tryEnrol(h, ""), relay.Forbidden, "DENIED")
	contains(t, "reason", e.Text, "unavailable")
	if strings.Contains(e.Text, "10.0.0.7") {
		t.Errorf("reason: got %q; want nothing of the error", e.Text)
	}
	nothing("unavailable")

	grant, thrown = relay.Grant{OK: true, By: "stub", Account: "acme", Org: "tools"}, nil
	ok(t, "grant", r.tryEnrol(h, "mine"))
	got, _ := r.enrolment(h)
	want := store.Enrolment{Key: h.Pub(), Name: "alpha", OwnerFP: "mine", Account: "acme", Org: "tools", AuthorizedBy: "stub", EnrolledAt: t0}
	same(t, "enrolment", got, want)

	// A revocation while the authority thinks about it stands.
	late := wiretest.NewHost("late")
	ok(t, "grant", r.tryEnrol(late, ""))
	r2 := must(relay.New(t.Context(), relay.Options{Store: r.store, Key: r.key, Limits: relay.DefaultLimits(), Now: r.clock.Now,
		Authority: authorityFunc(func(relay.Applicant) (relay.Grant, error) { r.revoke(late); return grant, nil })}))
	first := r.relay
	challenge, err := r2.Challenge("late", late.Pub().String())
	ok(t, "challenge", err)
	q := relay.EnrolRequest{Host: "late", Key: late.Pub().String(), Sig: late.Key.Sign(wire.EnrolPayload(challenge, "late", late.Pub(), ""))}
	refused(t, "revoked meanwhile", r2.Enrol(t.Context(), q), relay.Forbidden, "REVOKED")
	same(t, "the rig's relay", r.relay, first)
}

func TestJ3_CrowdedName(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts)
	alpha := r.enrol("alpha")
	var hosts []*wiretest.Host
	byName := func(h *wiretest.Host) error { // a v1 hop: no key, the bare path
		hop := relay.Hop{Host: "MacBook"}
		hop.TS, hop.Sig = wire.SignHop(h.Key, "GET", "/v1/relay/messages", nil, r.clock.Now())
		list, err := r.relay.Candidates(t.Context(), hop)
		if err != nil {
			return err
		}
		who, err := r.relay.Verify(list, hop, "GET", "/v1/relay/messages", nil)
		if err == nil && who.Key != h.Pub() {
			t.Errorf("caller: got %s; want the key that signed", who.Key.Fingerprint())
		}
		return err
	}
	for range 16 {
		hosts = append(hosts, r.enrol("macbook"))
	}
	for _, h := range hosts {
		ok(t, "hop by a name of 16", byName(h))
	}
	refused(t, "hop by the name of another's key", byName(alpha), relay.Unauthorized, "")

	hosts = append(hosts, r.enrol("macbook"))
	same(t, "v1 push", r.pushV1(alpha, wireOf(mail(alpha, hosts[3]))), relay.V1Result{Error: "recipient host ambiguous"})
	refused(t, "hop by a name of 17", byName(hosts[3]), relay.Unauthorized, "")
	r.pushed(alpha, mail(alpha, hosts[16]), "accepted") // v2 is by key
	same(t, "pull by key", len(r.pull(hosts[16], relay.PullQuery{}).Items), 1)
	hosts = append(hosts, r.enrol("macbook"))

	// Inside a proven account too: a crowded name is nobody's.
	mine, friend := r.enrol("macbook", "acme"), r.enrol("friend", "acme")
	same(t, "v1 push from the account", r.pushV1(friend, wireOf(mail(friend, mine))), relay.V1Result{Error: "recipient host ambiguous"})
	r.pushed(friend, mail(friend, mine), "accepted")

	r.revoke(mine)
	r.revoke(hosts[0])
	r.revoke(hosts[1])
	ok(t, "hop by a name of 16 again", byName(hosts[3]))
}

func TestHop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	const path = "/v2/relay/items?after=0"
	sign := func(at time.Time) relay.Hop {
		h := relay.Hop{Host: "alpha", Key: alpha.Pub().String()}
		h.TS, h.Sig = wire.SignHop(alpha.Key, "GET", path, nil, at)
		return h
	}
	set := func(f func(*relay.Hop)) relay.Hop { h := sign(t0); f(&h); return h }
	tests := []struct {
		name, path, body string
		hop              relay.Hop
		good             bool
	}{
		{"good", path, "", sign(t0), true},
		{"300 s ago", path, "", sign(t0.Add(-300 * time.Second)), true},
		{"300 s ahead", path, "", sign(t0.Add(300 * time.Second)), true},
		{"301 s ago", path, "", sign(t0.Add(-301 * time.Second)), false},
		{"301 s ahead", path, "", sign(t0.Add(301 * time.Second)), false},
		{"C13h: ts NaN", path, "", set(func(h *relay.Hop) { h.TS = "NaN" }), false},
		{"ts with a sign", path, "", set(func(h *relay.Hop) { h.TS = "+" + h.TS }), false},
		{"no ts", path, "", set(func(h *relay.Hop) { h.TS = "" }), false},
		{"no signature", path, "", set(func(h *relay.Hop) { h.Sig = "" }), false},
		{"C13f: another query", "/v2/relay/items?after=1", "", sign(t0), false},
		{"another body", path, "x", sign(t0), false},
		{"another's key", path, "", set(func(h *relay.Hop) { h.Key = beta.Pub().String() }), false},
		{"no key at all", path, "", set(func(h *relay.Hop) { h.Key = "x" }), false},
		{"the key counts, not the name", path, "", set(func(h *relay.Hop) { h.Host = "beta" }), true},
		{"by a name of nobody", path, "", set(func(h *relay.Hop) { h.Key, h.Host = "", "nobody" }), false},
		{"by no name", path, "", set(func(h *relay.Hop) { h.Key, h.Host = "", "" }), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			who, err := relay.Caller{}, error(nil)
			list, err := r.relay.Candidates(t.Context(), tt.hop)
			if err == nil {
				who, err = r.relay.Verify(list, tt.hop, "GET", tt.path, []byte(tt.body))
			}
			if !tt.good {
				same(t, "text", refused(t, "hop", err, relay.Unauthorized, "").Text, "bad relay hop")
				return
			}
			ok(t, "hop", err)
			same(t, "caller", who.Key, alpha.Pub())
		})
	}
}

// A denial in force refuses the host everywhere, and ends at its time.
func TestDeniedHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	who := r.caller(alpha)
	ok(t, "deny", r.store.Update(t.Context(), func(tx store.Tx) error {
		return tx.AddDenial(store.Denial{HostFP: alpha.Pub().Fingerprint(), Reason: "laptop stolen", Source: "issuer", AddedAt: t0, Until: t0.Add(time.Hour)})
	}))
	_, err := r.hop(alpha)
	same(t, "reason", refused(t, "hop", err, relay.Unauthorized, "DENIED").Text, "laptop stolen")
	_, err = r.relay.Pull(t.Context(), who, relay.PullQuery{})
	refused(t, "pull", err, relay.Unauthorized, "DENIED")
	_, err = r.relay.Ack(t.Context(), who, r.epoch(), 0)
	refused(t, "ack", err, relay.Unauthorized, "DENIED")
	_, err = r.relay.Push(t.Context(), who, []wire.PushItem{mail(alpha, beta)})
	refused(t, "push", err, relay.Unauthorized, "DENIED")
	_, err = r.relay.PushV1(t.Context(), who, [][]byte{wireOf(mail(alpha, beta))})
	refused(t, "v1 push", err, relay.Unauthorized, "DENIED")
	refused(t, "enrol", r.tryEnrol(alpha, ""), relay.Forbidden, "DENIED")
	_, err = r.rotate(alpha, wiretest.NewHost("alpha"))
	refused(t, "rotate it off", err, relay.BadRequest, "DENIED")
	r.pushed(beta, mail(beta, alpha), "accepted") // its mail waits
	r.clock.Add(time.Hour)
	same(t, "pulled after the denial", len(r.pull(alpha, relay.PullQuery{}).Items), 1)
}
