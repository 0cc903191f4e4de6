package tui

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/exp/golden"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// What a hosted relay shows besides.
func TestViewsOfAccounts(t *testing.T) {
	t.Parallel()
	down := func(f *fakeDesk) {
		st := *f.overview.Issuer
		st.FetchedAt, st.Usable, st.Trouble, st.TroubleAt = clock.Add(-95*time.Minute), false, "503 Service Unavailable", clock.Add(-85*time.Minute)
		f.overview.Issuer = &st
		f.overview.Problems = append([]string{"new hosts are refused: the keys of the accounts issuer were fetched 1h35m0s ago, and hold for an hour; its last answer was bad: 503 Service Unavailable; see that " + st.URL + " answers",
			"the deny list was not fetched for 25m0s: 503 Service Unavailable"}, f.overview.Problems...)
	}
	for _, tt := range []struct {
		name   string
		change func(f *fakeDesk)
		at     int
		press  []string
	}{
		{"overview", func(*fakeDesk) {}, atOverview, nil},
		{"overview, issuer away", func(f *fakeDesk) { f.overview.Issuer.Trouble = "timeout" }, atOverview, nil},
		{"overview, keys too old", down, atOverview, nil},
		{"overview, no keys yet", func(f *fakeDesk) { f.overview.Issuer = &relay.IssuerState{Issuer: "https://accounts.example"} }, atOverview, nil},
		{"host", func(*fakeDesk) {}, atEnrolments, []string{"enter"}},
		{"host, session over", func(*fakeDesk) {}, atEnrolments, []string{"j", "enter"}},
		{"host, no session", func(*fakeDesk) {}, atEnrolments, []string{"j", "j", "enter"}},
		{"host, denied by credential", func(*fakeDesk) {}, atEnrolments, []string{"j", "j", "j", "j", "j", "enter"}},
		{"deny list", func(*fakeDesk) {}, atEnrolments, []string{"d"}},
		{"deny list, add", func(*fakeDesk) {}, atEnrolments, []string{"d", "a"}},
		{"deny list, remove", func(*fakeDesk) {}, atEnrolments, []string{"d", "u"}},
	} {
		for _, size := range [][2]int{{80, 24}, {140, 45}} {
			t.Run(fmt.Sprintf("%s/%dx%d", tt.name, size[0], size[1]), func(t *testing.T) {
				t.Parallel()
				f := hosted()
				tt.change(f)
				s := newStage(t, f)
				s.resize(size[0], size[1])
				golden.RequireEqual(t, s.show(tt.at).press(tt.press...).view())
			})
		}
	}
}

// A denial is added by a host's fingerprint or key, by a client id or by both; its
// time counts from the yes.
func TestDeny(t *testing.T) {
	t.Parallel()
	h := hostNamed(500, "")
	for _, tt := range []struct {
		host, client, life string
		fp                 string
		want               time.Duration
		did                string
	}{
		{h.Fingerprint, "", "1h", h.Fingerprint, time.Hour, h.Fingerprint},
		{h.Key.String(), "", "24h", h.Fingerprint, 24 * time.Hour, h.Fingerprint},
		{strings.ToUpper(strings.ReplaceAll(h.Fingerprint, "-", ":")), "c-1", "7d", h.Fingerprint, 7 * 24 * time.Hour, h.Fingerprint + " as c-1"},
		{"", " laptop 7 ", "until unblocked", "", 0, "client laptop 7"},
	} {
		f := hosted()
		s := newStage(t, f).show(atEnrolments).press("d", "a").types(tt.host).press("enter").types(tt.client).press("enter", "ctrl+u").types(tt.life).press("enter").types("stolen")
		s.later(time.Minute).press("enter", "y").did("deny " + tt.did + " 1 by cli:test: stolen").sees("stolen")
		want := time.Time{}
		if tt.want > 0 {
			want = s.now.Add(tt.want)
		}
		if d := f.denials[0]; d.HostFP != tt.fp || d.ClientID != strings.TrimSpace(tt.client) || !d.Until.Equal(want) {
			t.Errorf("%+v: got %+v; want it until %v", tt, d, want)
		}
	}
}

// What cannot be a denial is refused in the dialog, which stays.
func TestDenyIsChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ host, client, life, why, want string }{
		{"", "", "1h", "x", "say who"},
		{"studio", "", "1h", "x", "want a fingerprint"},
		{"1f3a-09bc", "", "1h", "x", "want a fingerprint"},
		{"", strings.Repeat("x", 201), "1h", "x", "at most 200"},
		{"", "c", "soon", "x", "want 1h, 24h"},
		{"", "c", "", "x", "fill in: for how long"},
		{"", "c", "1h", " ", "say why"},
	} {
		s := newStage(t, hosted()).show(atEnrolments).press("d", "a").types(tt.host).press("enter").types(tt.client).press("enter", "ctrl+u").types(tt.life).press("enter").types(tt.why)
		s.press("enter", "y").did().sees(tt.want)
		if !s.screen().typing() {
			t.Errorf("%+v: got the dialog closed", tt)
		}
	}
}

// That a denial stands already, or is refused by the relay, is said.
func TestDenyAnswers(t *testing.T) {
	t.Parallel()
	add := func(s *stage) *stage {
		return s.show(atEnrolments).press("d", "a", "enter").types("c-1").press("enter", "ctrl+u").types(unblocked).press("enter").types("stolen").press("enter", "y")
	}
	s := newStage(t, hosted())
	add(s).sees("client c-1 denied until unblocked")
	add(s.press("esc")).sees("client c-1 was denied so already").did("deny client c-1 1 by cli:test: stolen")
	f := hosted()
	s = newStage(t, f).show(atEnrolments).press("d", "a", "enter").types("c-1").press("enter", "enter").types("stolen").press("enter")
	f.fail(errors.New("the disk does not answer"))
	s.press("y").sees("✗ the disk does not answer")
	if d := f.denials[0]; d.ClientID == "c-1" {
		t.Errorf("got %+v; want nothing added", d)
	}
}

// A denial of a credential is found as its row has it, and removed.
func TestDenialOfACredential(t *testing.T) {
	t.Parallel()
	s := newStage(t, hosted()).show(atEnrolments).press("d", "/").types("client client-6").press("enter").sees("client client-6").lacks("floods archive")
	s.press("u").sees("every host that comes with this credential is let").press("y").did("unblock 1 by cli:test: ").sees("unblocked client client-6")
	got := ""
	newStage(t, hosted(), func(o *Options) { o.copy = func(s string) { got = s } }).show(atEnrolments).press("d", "y")
	if got != "client-6" {
		t.Errorf("copied %q; want the client id", got)
	}
}

// Text of the issuer and of accounts is shown, never obeyed.
func TestHostileAccounts(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		f := hosted()
		f.enrolments[0].ClientID = text
		f.enrolments[0].Denial = &admin.Denial{ID: 3, ClientID: text, Reason: text, Source: "issuer", AddedAt: clock, InForce: true}
		f.denials = append([]admin.Denial{*f.enrolments[0].Denial, {ID: 4, HostFP: f.enrolments[0].Fingerprint, ClientID: text, Reason: text, Source: text, AddedAt: clock, InForce: true}}, f.denials...)
		f.overview.Issuer = &relay.IssuerState{Issuer: text, URL: text, Keys: []string{text}, FetchedAt: clock, Usable: true, Trouble: text}
		for _, size := range [][2]int{{80, 24}, {140, 45}} {
			s := newStage(t, f)
			s.resize(size[0], size[1])
			for _, keys := range [][]string{nil, {"3"}, {"enter"}, {"esc", "d"}, {"u"}} {
				holds(t, "window", s.press(keys...).view(), size[0], size[1])
			}
		}
	}
}

// A credential is denied from the deny list: its host is refused at the next hop and
// shown so, until the denial is removed.
func TestJourneyDenyACredential(t *testing.T) {
	t.Parallel()
	r := newReal(t)
	h := r.enrol("stolen-laptop")
	err := r.store.Update(t.Context(), func(tx store.Tx) error {
		e, err := tx.Enrolment(h.Pub())
		e.ClientID = "laptop-7"
		return errors.Join(err, tx.PutEnrolment(e))
	})
	if err != nil {
		t.Fatal(err)
	}
	r.show(atEnrolments).press("d").sees("nobody is denied").press("a", "enter").types("laptop-7").press("enter", "enter").types("it was stolen").press("enter", "y")
	r.sees("client laptop-7", "it was stolen", "1d00h")
	if _, err := r.hop(h); err == nil {
		t.Error("got a hop of a denied host verified")
	}
	r.press("esc").sees("blocked").press("enter").sees("blocked as client laptop-7 until 2026-03-05 15:06:07Z", "client id       laptop-7")
	r.press("u").sees("client laptop-7").press("y").sees("live")
	if _, err := r.hop(h); err != nil {
		t.Errorf("got %v; want the host let in again", err)
	}
	if log := r.logged("deny"); !strings.Contains(log, "it was stolen") || !strings.Contains(log, "laptop-7") {
		t.Errorf("got %s; want whom and why", log)
	}
}
