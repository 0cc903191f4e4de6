package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// stubIssuer makes a hosted relay of a rig. It believes a proof to be the grant,
// and a deny token to be the list.
type stubIssuer struct{ now func() time.Time }

type session struct {
	Account, Org, Client string
	For                  time.Duration // from now on
}

func (s session) proof() string { return string(must(json.Marshal(s))) }

func (i stubIssuer) Authorize(_ context.Context, a relay.Applicant) (relay.Grant, error) {
	var text string
	var s session
	if a.Proof == nil {
		return relay.Grant{Code: "PROOF_MISSING", Reason: "this relay wants an account's token"}, nil
	}
	if err := errors.Join(json.Unmarshal(a.Proof, &text), json.Unmarshal([]byte(text), &s)); err != nil {
		return relay.Grant{}, &relay.Error{Kind: relay.Unavailable, Code: "KEYS_UNAVAILABLE", Text: "no keys", Reason: "KEYS_UNAVAILABLE"}
	}
	return relay.Grant{OK: true, By: "account-token", Account: s.Account, Org: s.Org, ClientID: s.Client, SessionEnds: i.now().Add(s.For)}, nil
}

func (stubIssuer) VerifyDenials(_ context.Context, token string) (l relay.DenyList, err error) {
	if err := json.Unmarshal([]byte(token), &l); err != nil {
		return l, &relay.Error{Kind: relay.Unauthorized, Code: "TOKEN_SIGNATURE", Text: "not a list"}
	}
	return l, nil
}

func hosted(s *setup) { s.Authority = stubIssuer{s.Now} }

var quarter = session{Account: "acme", Org: "acme-org", Client: "c-1", For: 15 * time.Minute}

// A session holds to its last millisecond, for every kind of call, and goes on by
// enrolling again.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	alpha, beta := r.enrol("alpha", session{Account: "a", Client: "c-a", For: time.Hour}.proof()), r.enrol("beta", quarter.proof())
	e, _ := r.enrolment(beta)
	same(t, "account", e.Account+" "+e.Org+" "+e.ClientID+" "+e.AuthorizedBy, "acme acme-org c-1 account-token")
	same(t, "session end", e.SessionEnds, t0.Add(15*time.Minute))
	r.pushed(alpha, mail(alpha, beta), "accepted")

	r.clock.Add(15*time.Minute - time.Millisecond)
	who := r.caller(beta)
	same(t, "mail in the last millisecond", len(r.pull(beta, relay.PullQuery{}).Items), 1)
	r.clock.Add(time.Millisecond)
	over := func(what string, err error) {
		t.Helper()
		refused(t, what, err, relay.Unauthorized, "SESSION_EXPIRED")
	}
	_, err := r.hop(beta)
	over("hop", err)
	// Also of a hop that was verified before.
	_, err = r.relay.Pull(t.Context(), who, relay.PullQuery{})
	over("pull", err)
	_, err = r.relay.PullV1(t.Context(), who, 0)
	over("v1 pull", err)
	_, err = r.relay.Push(t.Context(), who, []wire.PushItem{mail(beta, alpha)})
	over("push", err)
	_, err = r.relay.Ack(t.Context(), who, r.epoch(), 1)
	over("ack", err)
	over("v1 ack", r.relay.AckV1(t.Context(), who, 1))
	list, sig := wire.MakeSenderList(beta.Key, nil, r.clock.Now())
	over("sender list", r.relay.PutSenders(t.Context(), who, list, sig))
	ad, adSig := wire.MakeEncAd(beta.Key, "beta", beta.Enc.Public(), r.clock.Now(), r.clock.Now().Add(time.Hour))
	over("sealing key", r.relay.PutEncAd(t.Context(), who, ad, adSig))
	over("v1 sealing key", r.relay.PutEncKey(t.Context(), who, beta.Enc.Public().String(), beta.Key.Sign(wire.EncKeyV1Payload("beta", beta.Enc.Public()))))
	_, err = r.relay.PushV1(t.Context(), who, [][]byte{wireOf(mail(beta, alpha))})
	over("v1 push", err)

	// Others still reach it, and nothing of its mail is lost.
	r.pushed(alpha, mail(alpha, beta), "accepted")
	ok(t, "enrol again", r.tryEnrol(beta, "", quarter.proof()))
	same(t, "mail", len(r.pull(beta, relay.PullQuery{}).Items), 2)
}

func TestSessionsAreRenewed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		next session
		want time.Duration
	}{
		{"a later end", session{"acme", "", "c-1", 20 * time.Minute}, 20 * time.Minute},
		{"an older token of the same credential", session{"acme", "", "c-1", time.Minute}, 15 * time.Minute},
		{"another credential", session{"acme", "", "c-2", time.Minute}, time.Minute},
		{"one that is over", session{"acme", "", "c-2", -time.Minute}, -time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, hosted)
			beta := r.enrol("beta", quarter.proof())
			ok(t, "enrol again", r.tryEnrol(beta, "", tt.next.proof()))
			e, _ := r.enrolment(beta)
			same(t, "session end", e.SessionEnds, t0.Add(tt.want))
			same(t, "client", e.ClientID, tt.next.Client)
			_, err := r.hop(beta)
			same(t, "served", err == nil, tt.want > 0)
		})
	}
}

// What a relay does with its hosts when it becomes a hosted one, and when it is
// one no longer.
func TestAuthorityChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.pushed(alpha, mail(alpha, beta), "accepted")

	hosted(&r.setup)
	r.restart()
	_, err := r.hop(beta)
	refused(t, "a host without an account", err, relay.Unauthorized, "SESSION_EXPIRED")
	e := refused(t, "enrol without a token", r.tryEnrol(beta, ""), relay.Forbidden, "DENIED")
	same(t, "reason", e.Reason, "PROOF_MISSING")
	same(t, "text", e.Text, "PROOF_MISSING: this relay wants an account's token")
	ok(t, "enrol with one", r.tryEnrol(beta, "", quarter.proof()))
	same(t, "its mail", len(r.pull(beta, relay.PullQuery{}).Items), 1)

	r.setup.Authority = authority.HostKey{}
	r.restart()
	r.clock.Add(time.Hour)
	r.caller(beta) // sessions are nothing here
	ok(t, "enrol by the key alone", r.tryEnrol(beta, ""))
	got, _ := r.enrolment(beta)
	same(t, "the stronger word", got.Account+" "+got.Org+" "+got.ClientID+" "+got.AuthorizedBy, "acme acme-org c-1 account-token")
}

// Names and quotas go by the account, whatever its credentials (C7, C9).
func TestAccountsOfAHostedRelay(t *testing.T) {
	t.Parallel()
	of := func(account, client string) string {
		return session{Account: account, Client: client, For: 15 * time.Minute}.proof()
	}
	t.Run("names", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, hosted)
		first := r.enrol("macbook", of("acme", "c-1"))
		refused(t, "the name under another credential", r.tryEnrol(wiretest.NewHost("MacBook"), "", of("acme", "c-2")), relay.Conflict, "NAME_TAKEN")
		refused(t, "the name under the same one", r.tryEnrol(wiretest.NewHost("macbook"), "", of("acme", "c-1")), relay.Conflict, "NAME_TAKEN")
		r.enrol("macbook", of("globex", "c-3"))
		r.clock.Add(time.Hour) // a session that is over keeps its name
		refused(t, "the name later", r.tryEnrol(wiretest.NewHost("macbook"), "", of("acme", "c-2")), relay.Conflict, "NAME_TAKEN")
		r.revoke(first)
		r.enrol("macbook", of("acme", "c-2"))
		refused(t, "a revoked key", r.tryEnrol(first, "", of("acme", "c-1")), relay.Forbidden, "REVOKED")
	})
	t.Run("quotas", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, hosted, limits(func(l *relay.Limits) { l.MaxOwnerItems = 3 }))
		alpha := r.enrol("alpha", of("globex", "c-9"))
		one, two := r.enrol("one", of("acme", "c-1")), r.enrol("two", of("acme", "c-2"))
		for _, h := range []*wiretest.Host{one, two, one} {
			r.pushed(alpha, mail(alpha, h), "accepted")
		}
		r.pushed(alpha, mail(alpha, two), "rejected:quota:owner queue depth exceeded for two")
		// The charge follows the host to another account with its next token.
		ok(t, "enrol again", r.tryEnrol(one, "", of("initech", "c-1")))
		same(t, "charge of the old account", r.accountUsage("acme").Items, 1)
		same(t, "charge of the new account", r.accountUsage("initech").Items, 2)
		r.pushed(alpha, mail(alpha, two), "accepted")
	})
}

// G8 with what a token grants: nothing of a refused host is stored, and its reason
// is a stable code.
func TestG8_HostedRefusals(t *testing.T) {
	t.Parallel()
	var grant relay.Grant
	var thrown error
	r := newRig(t, func(s *setup) {
		s.Authority = authorityFunc(func(relay.Applicant) (relay.Grant, error) { return grant, thrown })
	})
	h := wiretest.NewHost("beta")
	for _, tt := range []struct {
		name         string
		grant        relay.Grant
		thrown       error
		text, reason string
	}{
		{"a code", relay.Grant{Code: "TOKEN_ISSUER", Reason: "another issuer"}, nil, "TOKEN_ISSUER: another issuer", "TOKEN_ISSUER"},
		{"a long reason", relay.Grant{Code: "TOKEN_FORM", Reason: strings.Repeat("x", 300)}, nil,
			"TOKEN_FORM: " + strings.Repeat("x", 188), "TOKEN_FORM"},
		{"no code", relay.Grant{Reason: "no seat left"}, nil, "no seat left", ""},
		{"an error with one", relay.Grant{OK: true}, fmt.Errorf("authorize: %w", &relay.Error{Kind: relay.Unavailable, Code: "X", Text: "X: " + strings.Repeat("y", 300), Reason: "X"}),
			"X: " + strings.Repeat("y", 197), "X"},
	} {
		grant, thrown = tt.grant, tt.thrown
		before := r.dump()
		e := refused(t, tt.name, r.tryEnrol(h, "", "token"), relay.Forbidden, "DENIED")
		same(t, tt.name+": text", e.Text, tt.text)
		same(t, tt.name+": reason", e.Reason, tt.reason)
		same(t, tt.name+": the store", r.dump(), before)
	}
	grant, thrown = relay.Grant{OK: true, By: "account-token", Account: "acme", Org: "o", ClientID: "c-1", SessionEnds: t0.Add(time.Minute + 999*time.Microsecond)}, nil
	ok(t, "grant", r.tryEnrol(h, "mine", "token"))
	got, _ := r.enrolment(h)
	same(t, "enrolment", got, store.Enrolment{Key: h.Pub(), Name: "beta", OwnerFP: "mine", Account: "acme", Org: "o", AuthorizedBy: "account-token",
		ClientID: "c-1", EnrolledAt: t0, SessionEnds: t0.Add(time.Minute)})
}

func TestAuthorityThatCannotDecide(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	beta := wiretest.NewHost("beta")
	e := refused(t, "enrol", r.tryEnrol(beta, "", "no json"), relay.Forbidden, "DENIED")
	same(t, "reason", e.Reason, "KEYS_UNAVAILABLE")
	_, found := r.enrolment(beta)
	same(t, "stored", found, false)
}

// A rotation takes the session along, and begins none.
func TestSessionIsRotated(t *testing.T) {
	t.Parallel()
	r := newRig(t, hosted)
	beta := r.rotated(r.enrol("beta", quarter.proof()))
	e, _ := r.enrolment(beta)
	same(t, "client", e.ClientID, "c-1")
	same(t, "session end", e.SessionEnds, t0.Add(15*time.Minute))
	r.caller(beta)
	r.clock.Add(15 * time.Minute)
	_, err := r.hop(beta)
	refused(t, "hop", err, relay.Unauthorized, "SESSION_EXPIRED")
}

// A long poll ends with the session it was begun in, and says so unless the host
// has another by then.
func TestLongPollEndsWithItsSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		renew bool
	}{{"over", false}, {"renewed", true}} {
		bubble(t, tt.name, func(t *testing.T) {
			r := newRig(t, func(s *setup) { s.Now = time.Now; s.Birth = time.Now(); hosted(s) }) // the bubble's
			r.clock.Set(time.Now())
			beta := r.enrol("beta", session{Account: "acme", Client: "c-1", For: 7 * time.Second}.proof())
			p := r.poll(t.Context(), beta, relay.PullQuery{})
			p.waits("before")
			if tt.renew {
				ok(t, "enrol", r.tryEnrol(beta, "", quarter.proof()))
				p.waits("enrolled again")
			}
			_, err := p.answer("poll", 7*time.Second)
			if tt.renew {
				ok(t, "poll", err)
			} else {
				refused(t, "poll", err, relay.Unauthorized, "SESSION_EXPIRED")
			}
		})
	}
}
