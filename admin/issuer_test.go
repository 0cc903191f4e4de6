package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/store"
)

// fakeIssuer is an issuer whose deny lists are what token texts name: "ID CLIENT...".
type fakeIssuer struct {
	authority.HostKey
	r       *rig
	state   relay.IssuerState
	list    string // there to be pulled
	err     error  // of every fetch
	taken   []string
	fetched int
}

func (f *fakeIssuer) VerifyDenials(_ context.Context, token string) (l relay.DenyList, err error) {
	words := strings.Fields(token)
	if words[0] == "forged" {
		return l, errors.New("its signature is bad")
	}
	l = relay.DenyList{ID: words[0], IAT: f.r.clock(), Expires: f.r.clock().Add(time.Hour)}
	for _, c := range words[1:] {
		l.Deny = append(l.Deny, relay.DenyEntry{ClientID: c, Reason: "says the issuer", Until: f.r.clock().Add(time.Hour)})
	}
	return l, nil
}

func (f *fakeIssuer) Refresh(context.Context) (string, error) {
	f.fetched++
	return "2 keys", f.err
}

func (f *fakeIssuer) FetchDenials(context.Context) (string, error) {
	if slices.Contains(f.taken, f.list) {
		return "", f.err
	}
	return f.list, f.err
}

func (f *fakeIssuer) Taken(token string)       { f.taken = append(f.taken, token) }
func (f *fakeIssuer) State() relay.IssuerState { return f.state }

// hostedRig is the desk of a relay with an issuer.
func hostedRig(t *testing.T) (*rig, *fakeIssuer) {
	t.Helper()
	f := &fakeIssuer{state: relay.IssuerState{Issuer: "https://accounts.example", URL: "https://accounts.example/keys", Keys: []string{"k1"}, Usable: true}}
	r := newRig(t, func(o *admin.Options) {
		var err error
		o.Relay, err = relay.New(t.Context(), relay.Options{Store: o.Store.(store.Store), Key: o.Key, Version: "test", Limits: relay.DefaultLimits(), Authority: f, Now: o.Now})
		if err != nil {
			t.Fatal(err)
		}
		o.Hosted, o.Issuer = true, f
	})
	f.r = r
	f.state.FetchedAt = r.clock()
	return r, f
}

// The deny list is pulled, taken once, and in force; denials that are over go, with
// an issuer and without.
func TestDenyJob(t *testing.T) {
	t.Parallel()
	r, f := hostedRig(t)
	step := func(want, detail string) {
		t.Helper()
		if run := r.run(admin.JobDeny, nil); run.Outcome != want || run.Detail != detail {
			t.Errorf("got %s: %s; want %s: %s", run.Outcome, run.Detail, want, detail)
		}
	}
	step("ok", "")
	f.list = "jti-1 c1 c2"
	step("ok", "a deny list: 2 added")
	step("ok", "")
	f.taken = nil // the relay was started again
	step("ok", "the deny list is that of before")
	f.list = "forged c3"
	step("failed", "the deny list was not taken: its signature is bad")
	f.err = errors.New("the issuer answers 500")
	step("failed", "the issuer answers 500")
	p, err := r.Denials(t.Context(), admin.DenialFilter{Paging: firstPage})
	if err != nil || len(p.Items) != 2 || p.Items[0].ClientID != "c2" || p.Items[0].Source != relay.SourceIssuerList {
		t.Errorf("got %+v, %v; want the two of the list", p.Items, err)
	}
	if slices.Contains(f.taken, "forged c3") {
		t.Error("got a forged list taken")
	}
	// An issuer that is away keeps nothing that is over.
	r.now.Add(26 * time.Hour.Milliseconds())
	step("failed", "the issuer answers 500")
	if p, err = r.Denials(t.Context(), admin.DenialFilter{Paging: firstPage, All: true}); err != nil || len(p.Items) != 0 {
		t.Errorf("a day later: got %+v, %v; want none", p.Items, err)
	}

	plain := newRig(t)
	plain.write(func(tx store.Tx) error {
		return tx.AddDenial(store.Denial{ClientID: "c", Source: "operator", AddedAt: plain.clock(), Until: plain.clock().Add(time.Hour)})
	})
	plain.now.Add(26 * time.Hour.Milliseconds())
	if run := plain.run(admin.JobDeny, nil); run.Outcome != "ok" || run.Detail != "1 that were over removed" {
		t.Errorf("without an issuer: got %+v; want one removed", run)
	}
}

// The keys are a job of a hosted relay alone.
func TestKeysJob(t *testing.T) {
	t.Parallel()
	r, f := hostedRig(t)
	if run := r.run(admin.JobJWKS, nil); run.Outcome != "ok" || run.Detail != "2 keys" || f.fetched != 1 {
		t.Errorf("got %+v after %d fetches; want one", run, f.fetched)
	}
	f.err = errors.New("the issuer answers 500")
	if run := r.run(admin.JobJWKS, nil); run.Outcome != "failed" || run.Detail != "the issuer answers 500" {
		t.Errorf("got %+v; want it failed", run)
	}
	plain := newRig(t)
	s, err := plain.Status(t.Context())
	if err != nil || s.Issuer != nil || s.Job(admin.JobJWKS) != nil || s.Job(admin.JobDeny) == nil {
		t.Errorf("got %+v, %v; want nothing of an issuer", s, err)
	}
}

// The status tells how the issuer stands, and what of it needs a person.
func TestIssuerProblems(t *testing.T) {
	t.Parallel()
	const (
		tooOld = "new hosts are refused: the keys of the accounts issuer are too old"
		bad    = "the last answer of the accounts issuer was bad"
		noList = "the deny list was not fetched for a while"
	)
	for _, tt := range []struct {
		name   string
		change func(r *rig, f *fakeIssuer)
		want   []string // begin the problems
		short  []string // for anyone
	}{
		{"well", func(*rig, *fakeIssuer) {}, nil, nil},
		{"the last answer bad", func(r *rig, f *fakeIssuer) {
			f.state.Trouble, f.state.TroubleAt = "500 Internal Server Error", r.clock()
		}, []string{"the keys of the accounts issuer were not fetched since 2026-10-02T12:00:00.000Z: its last answer was bad: 500 Internal Server Error; see that https://accounts.example/keys answers"}, []string{bad}},
		{"never fetched", func(_ *rig, f *fakeIssuer) { f.state = relay.IssuerState{URL: "https://x"} },
			[]string{"new hosts are refused: the keys of the accounts issuer were never fetched; see that https://x answers"}, []string{tooOld}},
		{"fetched too long ago", func(r *rig, f *fakeIssuer) {
			f.state.Usable, f.state.Trouble, f.state.TroubleAt = false, "timeout", r.clock()
			f.state.FetchedAt = r.clock().Add(-62 * time.Minute)
		}, []string{"new hosts are refused: the keys of the accounts issuer were fetched 1h2m0s ago, and hold for an hour; its last answer was bad: timeout; see that"}, []string{tooOld}},
		{"fetched in the future", func(r *rig, f *fakeIssuer) { f.state.Usable, f.state.FetchedAt = false, r.clock().Add(time.Hour) },
			[]string{"new hosts are refused: the keys of the accounts issuer were fetched at a time that is yet to come"}, []string{tooOld}},
		{"no deny list since the start", func(r *rig, _ *fakeIssuer) { r.now.Add(11 * time.Minute.Milliseconds()) },
			[]string{"the deny list was not fetched for 11m0s"}, []string{noList}},
		{"just started", func(r *rig, _ *fakeIssuer) { r.now.Add(9 * time.Minute.Milliseconds()) }, nil, nil},
		{"a deny list of late", func(r *rig, _ *fakeIssuer) {
			r.now.Add(11 * time.Minute.Milliseconds())
			r.run(admin.JobDeny, nil)
			r.now.Add(time.Minute.Milliseconds())
		}, nil, nil},
		{"a deny list that is forged ever since", func(r *rig, f *fakeIssuer) {
			r.run(admin.JobDeny, nil)
			r.now.Add(11 * time.Minute.Milliseconds())
			f.list = "forged c"
			r.run(admin.JobDeny, nil)
		}, []string{"the deny list was not fetched for 11m0s: the deny list was not taken: its signature is bad"}, []string{noList}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, f := hostedRig(t)
			tt.change(r, f)
			s, err := r.Status(t.Context())
			if err != nil || s.Issuer == nil || s.Issuer.Keys == nil || s.Issuer.URL != f.state.URL {
				t.Fatalf("got %+v, %v; want the issuer's state", s.Issuer, err)
			}
			var got []string
			for _, p := range s.Problems {
				if strings.Contains(p, "issuer") || strings.Contains(p, "deny list") {
					got = append(got, p)
				}
			}
			if len(got) != len(tt.want) {
				t.Fatalf("got %q; want %q", got, tt.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tt.want[i]) {
					t.Errorf("got %q; want %q", got[i], tt.want[i])
				}
			}
			if got := r.Problems(t.Context()); !slices.Equal(got, tt.short) {
				t.Errorf("for anyone: got %q; want %q", got, tt.short)
			}
			o, err := r.Overview(t.Context())
			if err != nil || fmt.Sprint(o.Issuer) != fmt.Sprint(s.Issuer) {
				t.Errorf("overview: got %+v, %v; want what the status says", o.Issuer, err)
			}
		})
	}
}
