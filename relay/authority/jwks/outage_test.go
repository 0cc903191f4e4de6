package jwks_test

import (
	"context"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
)

// TestIssuerDownForAnHour runs the job every ten minutes while the issuer is down,
// and restarts the relay in the middle of it.
func TestIssuerDownForAnHour(t *testing.T) {
	r := newFreshRig(t)
	r.issuer.Serve(jwkstest.Status(502))
	for minute := 1; minute < 60; minute++ {
		r.clock.Set(t0.Add(time.Duration(minute) * time.Minute))
		if minute%10 == 0 {
			if got := r.refreshFails(); got != "the answer has the status 502" {
				t.Fatalf("minute %d: got trouble %q", minute, got)
			}
		}
		if minute == 30 {
			r.restart()
		}
		r.wants("during the hour", r.ed, "")
		r.wants("during the hour", r.es, "")
	}
	if s := r.auth.State(); s.TroubleAt != t0.Add(40*time.Minute) {
		t.Errorf("got trouble since %v; want the first try after the restart", s.TroubleAt)
	}
	r.clock.Set(t0.Add(time.Hour - time.Millisecond))
	r.wants("in the last millisecond", r.ed, "")
	asked := r.issuer.Fetches()

	r.clock.Set(t0.Add(time.Hour))
	r.wants("after an hour", r.ed, "KEYS_UNAVAILABLE")
	r.wants("after an hour", jwkstest.NewKey("EdDSA", "unknown"), "KEYS_UNAVAILABLE")
	if s := r.auth.State(); s.Usable || len(s.Keys) != 2 || s.FetchedAt != t0 {
		t.Errorf("got %+v; want the set of before, not usable", s)
	}
	r.restart()
	r.wants("after an hour and a restart", r.ed, "KEYS_UNAVAILABLE")
	r.fetched("one more by each process", asked+2)

	r.issuer.Publish(r.ed, r.es)
	r.clock.Add(time.Minute - time.Millisecond)
	r.wants("the issuer is back, within the minute", r.ed, "KEYS_UNAVAILABLE")
	r.clock.Add(time.Millisecond)
	r.wants("the issuer is back", r.ed, "")
	r.fetched("the one that helped", asked+3)
	if s := r.auth.State(); !s.Usable || s.Trouble != "" {
		t.Errorf("got %+v; want it usable", s)
	}
	if got := r.logs.count(t, logTrouble); got != 3 {
		t.Errorf("got %d lines about the trouble; want one a process", got)
	}
}

func TestClockSetBack(t *testing.T) {
	for name, c := range map[string]struct {
		by   time.Duration
		up   bool
		want string
	}{
		"a minute":                     {time.Minute, false, ""},
		"over a minute":                {time.Minute + time.Millisecond, false, "KEYS_UNAVAILABLE"},
		"over a minute, the issuer up": {time.Minute + time.Millisecond, true, ""},
		"a year, the issuer up":        {365 * 24 * time.Hour, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFreshRig(t)
			r.wants("an unknown key, which fetches", jwkstest.NewKey("EdDSA", "unknown"), "TOKEN_KEY")
			if !c.up {
				r.issuer.Serve(jwkstest.Status(500))
			}
			r.clock.Set(t0.Add(-c.by))
			r.wants("after it", r.ed, c.want)
			asked := r.issuer.Fetches()
			r.wants("again", r.ed, c.want)
			r.fetched("again", asked) // the minute counts from the clock of now
		})
	}
}

// TestMinuteIsShared: enrolments and deny lists have one minute between them, and
// a fetch that failed used it up, too. The job has a pace of its own.
func TestMinuteIsShared(t *testing.T) {
	r := newFreshRig(t)
	next := jwkstest.NewKey("EdDSA", "ed-2")
	deny := func() error {
		_, err := r.auth.VerifyDenials(context.Background(), next.DenyToken(r.issuer.URL, aud, "list-1", r.clock.Now()))
		return err
	}
	r.issuer.Serve(jwkstest.Status(500))
	if err := deny(); err == nil {
		t.Error("deny list of an unknown key: got no error")
	}
	r.fetched("the start and the list", 2)
	r.issuer.Publish(r.ed, next)
	r.clock.Add(time.Minute - time.Millisecond)
	r.wants("an enrolment within the minute", next, "TOKEN_KEY")
	r.fetched("within the minute", 2)
	r.clock.Add(time.Millisecond)
	r.wants("an enrolment after the minute", next, "")
	r.fetched("after the minute", 3)
	if err := deny(); err != nil {
		t.Errorf("deny list of a known key: %v", err)
	}
	r.refresh()
	r.wants("an unknown key", jwkstest.NewKey("EdDSA", "ed-3"), "TOKEN_KEY")
	r.fetched("the job", 4)
}
