package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// oneHost is a desk that knows one host, or fails.
type oneHost struct {
	admin.Service
	e   admin.Enrolment
	err error
}

func (o oneHost) Enrolment(context.Context, wire.PublicKey) (admin.Enrolment, error) {
	return o.e, o.err
}

// Only a denial of the credential alone is one that an unblock of the host leaves.
func TestClientDenial(t *testing.T) {
	h := admin.Host{Key: wire.PublicKey{1}}
	for _, tt := range []struct {
		name string
		host admin.Host
		desk oneHost
		want int64 // the denial's number, 0 for none
		fail bool
	}{
		{"of the credential", h, oneHost{e: admin.Enrolment{Denial: &admin.Denial{ID: 7, ClientID: "c"}}}, 7, false},
		{"of the host", h, oneHost{e: admin.Enrolment{Denial: &admin.Denial{ID: 7, HostFP: "f"}}}, 0, false},
		{"of both", h, oneHost{e: admin.Enrolment{Denial: &admin.Denial{ID: 7, HostFP: "f", ClientID: "c"}}}, 0, false},
		{"none", h, oneHost{}, 0, false},
		{"a host that has gone", h, oneHost{err: admin.ErrNotFound}, 0, false},
		{"a host that has not come", admin.Host{Fingerprint: "f"}, oneHost{err: errors.New("not asked")}, 0, false},
		{"no answer", h, oneHost{err: errors.New("no answer")}, 0, true},
	} {
		d, err := clientDenial(t.Context(), tt.desk, tt.host)
		if (err != nil) != tt.fail || (d != nil) != (tt.want != 0) || d != nil && d.ID != tt.want {
			t.Errorf("%s: got %+v, %v; want denial %d, failed %v", tt.name, d, err, tt.want, tt.fail)
		}
	}
}

func TestSessionText(t *testing.T) {
	now := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		e    admin.Enrolment
		want string
	}{
		{admin.Enrolment{}, "does not end"},
		{admin.Enrolment{SessionEnds: now.Add(90 * time.Second)}, "until 2026-10-02T12:01:30.000Z, for 1m30s"},
		{admin.Enrolment{SessionEnds: now.Add(-time.Hour), SessionOver: true}, "over since 2026-10-02T11:00:00.000Z: it must enrol again"},
		{admin.Enrolment{SessionOver: true}, "none: it must enrol with an account's token"},
		{admin.Enrolment{RevokedAt: now, SessionEnds: now}, "-"},
	} {
		if got := sessionText(tt.e, now); got != tt.want {
			t.Errorf("%+v: got %q; want %q", tt.e, got, tt.want)
		}
	}
}

// What an issuer names itself, and what went wrong with it, plays with no terminal.
func TestIssuerLine(t *testing.T) {
	for _, tt := range []struct {
		st   *relay.IssuerState
		want string
	}{
		{nil, ""},
		{&relay.IssuerState{Issuer: "https://a"}, "issuer\thttps://a, no keys yet; new hosts are refused\n"},
		{&relay.IssuerState{Issuer: "https://a", Usable: true, Trouble: "500\x1b[2J\n"}, "issuer\thttps://a, no keys yet; the last answer was bad: 500?[2J?\n"},
	} {
		var out bytes.Buffer
		if printIssuer(&out, tt.st); out.String() != tt.want {
			t.Errorf("got %q; want %q", out.String(), tt.want)
		}
	}
	var out bytes.Buffer
	printIssuer(&out, &relay.IssuerState{Issuer: "i", Keys: []string{"a", "b"}, FetchedAt: time.Now().Add(-time.Hour), Usable: true})
	if !strings.Contains(out.String(), "2 keys, fetched 1h0m0s ago\n") {
		t.Errorf("got %q; want how old the keys are", out.String())
	}
}
