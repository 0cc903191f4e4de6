package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/store"
)

// deny refuses a host by its label, a credential, or both.
func deny(host, client string, life time.Duration) func(*rig, bool) (string, error) {
	return func(r *rig, dry bool) (string, error) {
		a := admin.DenyAction{Action: why, ClientID: client, DryRun: dry}
		if host != "" {
			a.HostFP = key(host).Fingerprint()
		}
		if life != 0 {
			a.Until = time.Date(2026, 10, 3, 0, 0, 0, 0, time.UTC).Add(life)
		}
		v, err := r.Deny(r.t.Context(), a)
		if d := v.Denial; err == nil && (d.HostFP != a.HostFP || d.ClientID != client || d.Reason != why.Reason || !d.Until.Equal(a.Until) || !d.InForce || d.ID == 0) {
			r.t.Errorf("got %+v; want the denial", d)
		}
		text := fmt.Sprintf("changed %v", v.Changed)
		if err == nil && v.DryRun != dry {
			text += " NOT DRY"
		}
		return text, err
	}
}

// accounts enrols hosts as NAME or NAME=CLIENT.
func (r *rig) accounts(hosts ...string) {
	r.t.Helper()
	r.write(func(tx store.Tx) error {
		for _, h := range hosts {
			name, client, _ := strings.Cut(h, "=")
			if err := tx.PutEnrolment(store.Enrolment{Key: key(name), Name: name, AuthorizedBy: "account-token", ClientID: client, EnrolledAt: r.clock()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// A host is shown with the last denial that refuses it, whatever that names, and
// never with one that is about others or over.
func TestWhichDenialIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.accounts("a=c1", "b=c1", "c=c2", "plain")
	fp := func(host string) string { return key(host).Fingerprint() }
	shown := func() string {
		var list []string
		for _, h := range []string{"a", "b", "c", "plain"} {
			e, err := r.Enrolment(t.Context(), key(h))
			if err != nil {
				t.Fatal(err)
			}
			if e.Denial != nil {
				list = append(list, h+" "+e.Denial.Reason)
			}
		}
		return strings.Join(list, ", ")
	}
	for _, tt := range []struct {
		host, client, reason string
		life                 time.Duration
		want                 string
	}{
		{"", "c9", "another credential", 0, ""},
		{fp("a"), "c2", "a with another credential", 0, ""},
		{"", "c1", "credential", 0, "a credential, b credential"},
		{fp("a"), "", "host", 0, "a host, b credential"},
		{fp("b"), "c1", "both", time.Minute, "a host, b both"},
		{"", "c2", "for a moment", time.Second, "a host, b both, c for a moment"},
		{fp("plain"), "", "plain", 0, "a host, b both, c for a moment, plain plain"},
	} {
		d := store.Denial{HostFP: tt.host, ClientID: tt.client, Reason: tt.reason, Source: "issuer", AddedAt: r.clock()}
		if tt.life > 0 {
			d.Until = r.clock().Add(tt.life)
		}
		r.write(func(tx store.Tx) error { return tx.AddDenial(d) })
		if got := shown(); got != tt.want {
			t.Errorf("after %s: got %q; want %q", tt.reason, got, tt.want)
		}
	}
	p, err := r.Enrolments(t.Context(), admin.EnrolmentFilter{Paging: firstPage, State: admin.StateBlocked})
	if got := enrolmentNames(p); err != nil || !slices.Equal(got, []string{"plain", "c", "b", "a"}) {
		t.Errorf("blocked: got %q, %v; want all four, last denied first", got, err)
	}
	r.now.Add(time.Minute.Milliseconds())
	if got, want := shown(), "a host, b credential, plain plain"; got != want {
		t.Errorf("a minute later: got %q; want %q", got, want)
	}
}

func TestFiltersByClientID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.accounts("a=Laptop-7", "b=laptop-70", "plain")
	for _, d := range []store.Denial{{ClientID: "Laptop-7", Reason: "1"}, {ClientID: "laptop-70", Reason: "2"}, {HostFP: key("a").Fingerprint(), Reason: "3"},
		{HostFP: key("a").Fingerprint(), ClientID: "Laptop-7", Reason: "4"}, {ClientID: "Laptop-7", Reason: "over", Until: r.clock().Add(-time.Second)}} {
		d.Source, d.AddedAt = "issuer", r.clock().Add(-time.Minute)
		r.write(func(tx store.Tx) error { return tx.AddDenial(d) })
	}
	for _, tt := range []struct {
		f    admin.DenialFilter
		want string
	}{
		{admin.DenialFilter{ClientID: "Laptop-7"}, "4 1"},
		{admin.DenialFilter{ClientID: "Laptop-7", All: true}, "over 4 1"},
		{admin.DenialFilter{ClientID: "laptop-7"}, ""},
		{admin.DenialFilter{ClientID: "Laptop"}, ""},
		{admin.DenialFilter{ClientID: "Laptop-7", HostFP: key("a").Fingerprint()}, "4"},
		{admin.DenialFilter{HostFP: key("a").Fingerprint()}, "4 3"},
	} {
		tt.f.Limit = 2 // what is not picked takes no place
		var got []string
		for more := true; more; {
			p, err := r.Denials(t.Context(), tt.f)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range p.Items {
				got = append(got, d.Reason)
			}
			tt.f.After, more = p.Next, p.Next != ""
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%+v: got %q; want %q", tt.f, s, tt.want)
		}
	}
	for text, want := range map[string][]string{"LAPTOP": {"a", "b"}, "laptop-70": {"b"}, "top-7": {"a", "b"}, "c1": nil} {
		p, err := r.Enrolments(t.Context(), admin.EnrolmentFilter{Paging: firstPage, Text: text})
		if got := enrolmentNames(p); err != nil || !slices.Equal(got, want) {
			t.Errorf("hosts with %q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

// On a hosted relay a host's session ends at its time, and one that never had one is
// over; on any other no session ends.
func TestSessions(t *testing.T) {
	t.Parallel()
	for _, hosted := range []bool{false, true} {
		r := newRig(t, func(o *admin.Options) { o.Hosted = hosted })
		now := r.clock()
		for _, tt := range []struct {
			name string
			ends time.Time
			over bool
		}{
			{"later", now.Add(time.Minute), false},
			{"a moment", now.Add(time.Millisecond), false},
			{"now", now, true},
			{"before", now.Add(-time.Minute), true},
			{"none", time.Time{}, true},
		} {
			r.write(func(tx store.Tx) error {
				return tx.PutEnrolment(store.Enrolment{Key: key(tt.name), Name: tt.name, ClientID: "c", SessionEnds: tt.ends, AuthorizedBy: "account-token", EnrolledAt: now})
			})
			e, err := r.Enrolment(t.Context(), key(tt.name))
			want := admin.Enrolment{SessionEnds: tt.ends, SessionOver: tt.over}
			if !hosted {
				want = admin.Enrolment{}
			}
			if err != nil || !e.SessionEnds.Equal(want.SessionEnds) || e.SessionOver != want.SessionOver || e.ClientID != "c" {
				t.Errorf("hosted %v, %s: got %+v, %v; want it over: %v", hosted, tt.name, e, err, want.SessionOver)
			}
		}
		r.write(func(tx store.Tx) error { _, err := tx.Revoke(key("none"), now); return err })
		if e, err := r.Enrolment(t.Context(), key("none")); err != nil || e.SessionOver {
			t.Errorf("revoked: got %+v, %v; want nothing of a session", e, err)
		}
	}
}

// Any spelling of a fingerprint is that host's, and who has not come yet can be
// denied, too.
func TestDenyWhoIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fp := key("nobody").Fingerprint()
	got, err := r.Deny(t.Context(), admin.DenyAction{Action: why, HostFP: strings.ToUpper(strings.ReplaceAll(fp, "-", ":")), ClientID: strings.Repeat("字", 200)})
	if err != nil || got.Denial.HostFP != fp || !got.Changed {
		t.Fatalf("got %+v, %v; want the host denied", got, err)
	}
	r.accounts("nobody=" + strings.Repeat("字", 200))
	if e, err := r.Enrolment(t.Context(), key("nobody")); err != nil || e.Denial == nil || e.Denial.ID != got.Denial.ID {
		t.Errorf("got %+v, %v; want it denied once it is there", e, err)
	}
	d, err := r.Unblock(t.Context(), admin.UnblockAction{Action: why, ID: got.Denial.ID, AddedAt: got.Denial.AddedAt})
	if err != nil || d.ClientID != got.Denial.ClientID {
		t.Errorf("got %+v, %v; want it removed", d, err)
	}
}
