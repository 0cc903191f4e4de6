package tui

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// Why something was not done is in sight at 80×24, before ids and numbers, and
// stays there while the operator looks around.
func TestWhyItWasNotDone(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f).show(atQueues).press("enter", "h").types("why")
	f.mu.Lock()
	f.items = f.items[1:]
	f.mu.Unlock()
	s.press("enter", "y").sees("── ✗ gone: held 0 items of 1", itemIDs+"0000", "seq 1772636000001")
	holds(t, "two lines", s.view(), 80, 24)
	s.press("j", "k", "G").sees("✗ gone")
	s.press("esc").lacks("✗ gone")
	s.press("enter", "h").types("more").press("enter", "y").lacks("✗").sees("held 1 item")
	s.press("j").lacks("held 1 item")
}

// While the relay is gone nothing can be confirmed: the dialog says so and keeps
// what was typed, and does it when the relay is back.
func TestDialogWaitsForTheRelay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		at       int
		open     []string
		typed    string
		confirms []string
		did      string
	}{
		{"hold", atQueues, []string{"enter", "h"}, "odd", []string{"enter", "y"}, "hold 1 by cli:test: odd"},
		{"revoke", atEnrolments, []string{"x"}, "lost", []string{"enter", "s", "t", "u", "d", "i", "o", "enter"}, "revoke studio 1 by cli:test: lost"},
		{"a job", atJobs, []string{"j", "j", "x"}, "", []string{"y"}, "start backup by cli:test confirm=false args="},
	} {
		f := full()
		s := newStage(t, f).show(tt.at).press(tt.open...).types(tt.typed)
		f.fail(errGone)
		s.later(3*time.Second).sees("relay gone since").press(tt.confirms...).sees("the relay is gone: nothing was done", tt.typed)
		f.fail(nil)
		s.later(time.Second).lacks("relay is gone").lacks("relay gone").sees(tt.typed)
		s.press(tt.confirms[len(tt.confirms)-1])
		if got := strings.Join(f.did(), "\n"); got != tt.did {
			t.Errorf("%s: got %q done; want %q", tt.name, got, tt.did)
		}
	}
}

// What failed because the relay went away is said to be not done where that is
// known, and is not said any more when the relay is back.
func TestGoneMeanwhile(t *testing.T) {
	t.Parallel()
	for _, way := range [][]string{{"2", "enter", "h", "o", "enter", "y"}, {"6", "j", "j", "x", "y"}} {
		f := full()
		s := newStage(t, f, func(o *Options) { o.Unsent = gone }).press(way[:len(way)-1]...)
		f.fail(errGone)
		s.press(way[len(way)-1]).sees("relay gone since", "waiting · nothing was done")
		f.fail(nil)
		s.later(time.Second).lacks("nothing was done").lacks("relay gone")
	}
}

// A filter changes a list on enter, takes as much as the Service takes, says what
// was not found, and one that is refused is undone.
func TestFilters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		at       int
		open     []string
		good     string // a filter that finds something
		none     string // one that finds nothing
		bad, why string // one that is refused
	}{
		{"queues", atQueues, nil, "build", "no-such", "", ""},
		{"items", atQueues, []string{"enter"}, "receipt", "no-such", "from:nobody", "no host is called nobody"},
		{"items of a word", atQueues, []string{"enter"}, "receipt", "no-such", "color:red", "cannot filter by color:red"},
		{"items of many", atQueues, []string{"enter"}, "receipt", "no-such", "from:studio", "more than one host"},
		{"enrolments", atEnrolments, nil, "build", "no-such", "", ""},
		{"deny list", atEnrolments, []string{"d"}, "24d0-63", "ffff-ff", "nobody", "no host is called nobody"},
		{"quarantine", atQuarantine, nil, "held", "", "to:nobody", "no host is called nobody"},
		{"log", atLog, nil, "rotate", "no-such", "", ""},
	} {
		s := newStage(t, full()).show(tt.at).press(tt.open...)
		before := strings.Split(s.view(), "\n")
		s.press("/").types(tt.good)
		for i, l := range strings.Split(s.view(), "\n")[6:20] { // a line below the filter's
			if len(before) > i+5 && strings.TrimSpace(before[i+5]) != strings.TrimSpace(l) {
				t.Errorf("%s: got %q while the filter is typed; want %q", tt.name, l, before[i+5])
				break
			}
		}
		s.press("enter").sees("filter: " + tt.good).lacks("nothing found")
		if tt.bad != "" {
			s.press("/", "ctrl+u").types(tt.bad).press("enter").sees(tt.why, "filter: "+tt.good).lacks("could not be read").lacks("nothing found")
		}
		if tt.none != "" {
			s.press("/", "ctrl+u").types(tt.none).press("enter").sees("nothing found for " + tt.none).lacks("nothing is queued")
		}
		s.press("/", "ctrl+u")
		s.send(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(strings.Repeat("x", 500)), Paste: true})
		s.sees("x▏")
		if f, ok := filterOf(s); !ok || len(f) != maxFilter {
			t.Errorf("%s: got a filter of %d bytes; want at most %d", tt.name, len(f), maxFilter)
		}
	}
}

func filterOf(s *stage) (string, bool) {
	switch m := s.screen().(type) {
	case queues:
		if in, is := m.open.(items); is {
			return in.list.filter.text, true
		}
		return m.list.filter.text, true
	case enrolments:
		if in, is := m.open.(denials); is {
			return in.list.filter.text, true
		}
		return m.list.filter.text, true
	case quarantine:
		return m.list.filter.text, true
	case logList:
		return m.filter.text, true
	}
	return "", false
}

// A name is a name, whatever it says of its host.
func TestNameThatSaysState(t *testing.T) {
	t.Parallel()
	f := full("(gone) alpha", "beta")
	for i := range f.queues {
		f.queues[i].Live = i != 1
	}
	s := newStage(t, f).show(atQueues)
	lines := strings.Split(s.view(), "\n")
	if got, revoked := lines[4], lines[5]; strings.Contains(got, "REVOKED") || !strings.Contains(revoked, "beta") || !strings.Contains(revoked, "REVOKED") {
		t.Errorf("got\n%s\n%s\nwant the second alone to be revoked", got, revoked)
	}
}

// A line of the log says who did what to whom, and nothing that its columns say.
func TestSummary(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, by, text string }{
		{`{"v":1,"type":"relay-hold","at":"2026-03-04T15:06:07.000Z","actor":"cli:ann","reason":"","items":[{},{}]}`, "cli:ann", "items: 2"},
		{`{"v":1,"at":"x","actor":"a","reason":"floods","host":{"key":"AAE=","fingerprint":"24d0-63b9","name":"archive"},"denial":{"id":5,"host_fp":"24d0-63b9","reason":"floods"},"x":{"id":7}}`, "a", "floods · archive 24d0-63b9"},
		{`{"denial":{"host_fp":"24d0-63b9","client_id":"c1"}}`, "", "24d0-63b9 c1"},
		{`{"file":"/data/backups/relay-20260304T030607Z-000070.db","n":70,"verified":true,"asked_by":"tui:ann"}`, "tui:ann", "relay-20260304T030607Z-000070.db · n=70 · verified=true"},
		{`{"at":"x","expired":{"envelope":3,"receipt":1},"notices":3,"skipped":{"over_cap":0}}`, "", "expired: 4 · notices=3"},
		{`{}`, "", ""}, {`[1]`, "", "[1]"}, {`{"a":`, "", `{"a":`}, {`{"host":null,"x":{"name":[]}}`, "", ""},
	} {
		if by, text := summary([]byte(tt.in)); by != tt.by || text != tt.text {
			t.Errorf("%s:\ngot  %q by %q\nwant %q by %q", tt.in, text, by, tt.text, tt.by)
		}
	}
}

// Alarms are told whole, with the commands in them.
func TestAlarmsAreWhole(t *testing.T) {
	t.Parallel()
	f := full()
	f.overview.Problems = []string{"no verified backup stands in " + strings.Repeat("/long", 20) + " any more; run: agentmbx relay backup", "the last good drill was 240h0m0s ago; run: agentmbx relay drill"}
	s := newStage(t, f).show(atOverview)
	text := strings.Join(strings.Fields(s.view()), " ")
	for _, want := range []string{"run: agentmbx relay backup", "run: agentmbx relay drill"} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant %q", s.view(), want)
		}
	}
}

// A refusal that was dismissed is said to be.
func TestDismissedRefusal(t *testing.T) {
	t.Parallel()
	s := newStage(t, full()).show(atQuarantine).press("G", "enter").sees("refused push").lacks("state")
	s.press("d", "y").sees("dismissed: it is not in the list any more", "dismissed 1 of 1")
	if s.offers(keys.Dismiss) || s.press("d").screen().typing() {
		t.Error("got it offered again; want it over")
	}
}

// A backup that was found bad shows it in the list, and no way to restore it.
func TestBadBackupShows(t *testing.T) {
	t.Parallel()
	f := full()
	f.backups[0].Verified, f.backups[0].Problem = false, "found bad 2026-03-04T15:06:07Z: sha256: another"
	s := newStage(t, f).show(atBackups).sees("NOT GOOD", backupNamed(70), "! found bad 2026-03-04T15:06:07Z: sha256")
	s.press("t").sees("NOT GOOD: found bad").lacks("agentmbx relay restore")
}

// Lists say what is empty about them.
func TestEmptyStates(t *testing.T) {
	t.Parallel()
	s := newStage(t, bare())
	s.show(atEnrolments).sees("no host has enrolled").press("o", "o").sees("no host is revoked").press("o").sees("no host is blocked").press("d").sees("nobody is denied now")
	s.show(atQuarantine).sees("nothing needs anybody").press("o").sees("nothing is held").press("o").sees("no refused pushes")
	if refusesFilter(errors.New("x")) || !refusesFilter(admin.ErrNotFound) {
		t.Error("want only what the Service refuses to undo a filter")
	}
}
