package devissuer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLoginRefusals(t *testing.T) {
	r := newRig(t, nil)
	h := newHost(t, "laptop")
	begin := func(name, value string) map[string]string {
		v := h.begin()
		v[name] = value
		return v
	}
	form := "application/x-www-form-urlencoded"
	fp := h.key.Public().Fingerprint()
	for _, tt := range []struct {
		name   string
		got    answer
		status int
		code   string
	}{
		{"another client", r.form("/device/code", begin("client_id", "other")), 401, "invalid_client"},
		{"no client", r.json("/device/code", "", map[string]string{"host": "laptop", "host_fingerprint": fp}), 401, "invalid_client"},
		{"no name of a host", r.form("/device/code", begin("host", "a b")), 400, "invalid_request"},
		{"no fingerprint", r.form("/device/code", begin("host_fingerprint", "1f3a")), 400, "invalid_request"},
		{"twice", r.send("POST", "/device/code", form, "", "client_id=agentmbx-cli&client_id=agentmbx-cli&host=a&host_fingerprint="+fp), 400, "invalid_request"},
		{"no form", r.send("POST", "/device/code", form, "", "%zz"), 400, "invalid_request"},
		{"JSON with a number", r.send("POST", "/device/code", "application/json; charset=utf-8", "", `{"client_id":1}`), 400, "invalid_request"},
		{"JSON with a member twice", r.send("POST", "/device/code", "application/json", "", `{"host":"a","host":"b"}`), 400, "invalid_request"},
		{"too large", r.send("POST", "/device/code", form, "", "host="+strings.Repeat("a", maxBody)), 413, "invalid_request"},
		{"poll with another grant", r.form("/device/token", map[string]string{"client_id": "agentmbx-cli", "grant_type": "password"}), 400, "unsupported_grant_type"},
		{"poll of another client", r.form("/device/token", map[string]string{"client_id": "x", "grant_type": deviceGrant}), 401, "invalid_client"},
		{"poll with an unknown code", r.form("/device/token", poll("guess")), 400, "invalid_grant"},
		{"poll without a code", r.form("/device/token", poll("")), 400, "invalid_grant"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.got.t = t
			tt.got.is(tt.status, tt.code)
			if tt.got.text("error_description") == "" || tt.got.header.Get("Content-Type") != "application/json" {
				t.Errorf("got %s", tt.got.body)
			}
		})
	}
	if len(r.i.logins) != 0 {
		t.Errorf("got %d logins; want none begun", len(r.i.logins))
	}
}

func TestPolls(t *testing.T) {
	type step struct {
		wait   time.Duration
		do     string // approve, deny
		status int
		code   string
	}
	const sec = time.Second
	pending, slow := step{5 * sec, "", 400, "authorization_pending"}, "slow_down"
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"approved, and used once", []step{pending, {5 * sec, "approve", 200, ""}, {5 * sec, "", 400, "invalid_grant"}}},
		{"denied, and told once", []step{pending, {5 * sec, "deny", 400, "access_denied"}, {5 * sec, "", 400, "invalid_grant"}}},
		{"the first one at once", []step{{0, "approve", 200, ""}}},
		{"too fast adds 5 s", []step{pending, {5*sec - 1, "", 400, slow}, {10*sec - 1, "", 400, slow}, {15 * sec, "", 400, "authorization_pending"}, {15*sec - 1, "approve", 400, slow}, {20 * sec, "", 200, ""}}},
		{"expires", []step{{600*sec - 1, "", 400, "authorization_pending"}, {5 * sec, "", 400, "expired_token"}}},
		{"expires when nobody used it", []step{{0, "", 400, "authorization_pending"}, {600 * sec, "", 400, "expired_token"}, {1200 * sec, "", 400, "expired_token"}}},
		{"a clock set back", []step{pending, {-time.Hour, "", 400, "authorization_pending"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			a := r.form("/device/code", newHost(t, "laptop").begin())
			for n, s := range tt.steps {
				r.pass(s.wait)
				var err error
				switch s.do {
				case "approve":
					_, err = r.i.Approve(a.text("user_code"), "", "")
				case "deny":
					_, err = r.i.Deny(a.text("user_code"))
				}
				noError(t, err)
				got := r.form("/device/token", poll(a.text("device_code")))
				t.Log("step", n)
				got.is(s.status, s.code)
			}
		})
	}
}

func TestApprove(t *testing.T) {
	r := newRig(t, nil)
	begin := func() string { return r.form("/device/code", newHost(t, "laptop").begin()).text("user_code") }
	decided, late := begin(), begin()
	_, err := r.i.Approve(decided, "", "")
	noError(t, err)
	open := begin()
	for _, tt := range []struct {
		name, code, account, org string
		want                     error
	}{
		{"unknown", "BBBB-BBBB", "", "", ErrNotFound},
		{"no code", "nothing", "", "", ErrNotFound},
		{"decided", decided, "", "", ErrRefused},
		{"account with a space", open, "a b", "", ErrBadCall},
		{"organization with a line", open, "a", "b\nc", ErrBadCall},
	} {
		if l, err := r.i.Approve(tt.code, tt.account, tt.org); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %+v, %v; want %v", tt.name, l, err, tt.want)
		}
	}
	l, err := r.i.Approve(open, "", "")
	if err != nil || l.Account != "dev" || l.Org != "dev" {
		t.Errorf("got %+v, %v; want account dev", l, err)
	}
	r.pass(loginLife)
	if l, err := r.i.Deny(late); !errors.Is(err, ErrNotFound) {
		t.Errorf("too late: got %+v, %v; want %v", l, err, ErrNotFound)
	}
	r.pass(loginLife) // the next login forgets them
	begin()
	if len(r.i.logins) != 1 || len(r.i.codes) != 1 {
		t.Errorf("got %d logins and %d codes; want 1", len(r.i.logins), len(r.i.codes))
	}
}

func TestAutoApprove(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Auto = true })
	a := r.form("/device/code", newHost(t, "laptop").begin())
	if a.v["interval"] != 1.0 {
		t.Errorf("got %s; want an interval of 1 s", a.body)
	}
	r.form("/device/token", poll(a.text("device_code"))).is(200, "")
}

func TestUserCodes(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		c := newUserCode()
		if userCode(c) != c || seen[c] {
			t.Fatalf("got %q; want a new code in its own form", c)
		}
		seen[c] = true
	}
	for in, want := range map[string]string{"wdjb mjht": "WDJB-MJHT", "WDJBMJHT": "WDJB-MJHT", "WDJB-MJH": "", "WDJB-MJHA": "", "WDJB-MJHTT": "", "": "", strings.Repeat("-", 40) + "WDJBMJHT": ""} {
		if got := userCode(in); got != want {
			t.Errorf("%q: got %q; want %q", in, got, want)
		}
	}
}

// What comes in floods is bounded.
func TestFloods(t *testing.T) {
	t.Run("calls", func(t *testing.T) {
		r := newRig(t, nil)
		for range callsPerMinute {
			r.send("GET", "/healthz", "", "", "")
		}
		a := r.send("GET", "/healthz", "", "", "")
		a.is(429, "temporarily_unavailable")
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		r.pass(time.Minute)
		r.send("GET", "/healthz", "", "", "").is(200, "")
	})
	t.Run("logins", func(t *testing.T) {
		r := newRig(t, nil)
		h := newHost(t, "laptop")
		for range loginsPerMinute {
			r.form("/device/code", h.begin()).is(200, "")
		}
		r.form("/device/code", h.begin()).is(429, "temporarily_unavailable")
		r.pass(time.Minute)
		for n := range maxLogins { // as if of other addresses
			l := &login{userCode: fmt.Sprint(n), codeHash: fmt.Sprint(n), expires: r.now.Add(loginLife)}
			r.i.logins[l.userCode], r.i.codes[l.codeHash] = l, l
		}
		r.form("/device/code", h.begin()).is(503, "temporarily_unavailable")
		r.pass(2 * loginLife)
		r.form("/device/code", h.begin()).is(200, "")
	})
	t.Run("sessions", func(t *testing.T) {
		r := newRig(t, nil)
		for n := range maxSessions {
			r.i.state.Sessions = append(r.i.state.Sessions, session{Hash: fmt.Sprint(n), Ends: t0.Add(time.Minute)})
		}
		a := r.form("/device/code", newHost(t, "laptop").begin())
		_, err := r.i.Approve(a.text("user_code"), "", "")
		noError(t, err)
		r.form("/device/token", poll(a.text("device_code"))).is(503, "temporarily_unavailable")
		r.pass(time.Minute)
		r.form("/device/token", poll(a.text("device_code"))).is(200, "")
	})
	t.Run("hosts", func(t *testing.T) {
		r := newRig(t, nil)
		for n := range maxHosts {
			r.i.state.Hosts = append(r.i.state.Hosts, Host{ClientID: fmt.Sprint(n)})
		}
		h := newHost(t, "laptop")
		bearer := r.login(h, "")
		r.json("/v1/host/enrolments", bearer, r.enrolment(h, bearer)).is(503, "temporarily_unavailable")
	})
	t.Run("ids of assertions", func(t *testing.T) {
		r := newRig(t, nil)
		h := r.enrolled(newHost(t, "laptop"), "")
		for n := range maxJTIs {
			r.i.seen[fmt.Sprint(n)] = t0.Add(time.Minute)
		}
		r.form("/token", r.asking(h, relayURL, nil)).is(503, "temporarily_unavailable")
		r.pass(time.Minute)
		r.form("/token", r.asking(h, relayURL, nil)).is(200, "")
		if len(r.i.seen) != 1 {
			t.Errorf("got %d ids; want 1", len(r.i.seen))
		}
	})
}
