package tui

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
)

// did fails the test unless exactly these deeds were done.
func (s *stage) did(want ...string) *stage {
	s.t.Helper()
	if got := s.app.svc.(*fakeDesk).did(); !slices.Equal(got, want) {
		s.t.Errorf("got %q; want %q", got, want)
	}
	return s
}

// Nothing is done by a single key, and no is the default of every dialog.
func TestNothingIsDoneByOneKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		at   int
		open []string // to the dialog
	}{
		{"hold", atQueues, []string{"enter", "h"}},
		{"hold one", atQueues, []string{"enter", "enter", "h"}},
		{"release", atQuarantine, []string{"l"}},
		{"discard", atQuarantine, []string{"x"}},
		{"dismiss", atQuarantine, []string{"G", "d"}},
		{"revoke", atEnrolments, []string{"x"}},
		{"block", atEnrolments, []string{"b"}},
		{"unblock", atEnrolments, []string{"d", "u"}},
		{"deny", atEnrolments, []string{"d", "a"}},
		{"back up", atBackups, []string{"b"}},
		{"verify", atBackups, []string{"v"}},
		{"drill", atBackups, []string{"d"}},
	} {
		for _, no := range [][]string{{"esc"}, {"enter", "enter", "enter", "enter"}, {"n", "esc"}} {
			s := newStage(t, full()).show(tt.at).press(tt.open...)
			if !s.screen().typing() {
				t.Fatalf("%s: got no dialog\n%s", tt.name, s.view())
			}
			s.press(no...).press("esc").did()
		}
		// q and digits are no commands while it is open.
		s := newStage(t, full()).show(tt.at).press(tt.open...).press("1", "7")
		if s.app.shown != tt.at || !s.screen().typing() {
			t.Errorf("%s: got another screen out of a dialog", tt.name)
		}
	}
}

// On a desk that only reads the keys are off, and no dialog opens.
func TestReadOnlyKeysAreOff(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		at   int
		open []string
		keys []string
	}{
		{atQueues, []string{"enter"}, []string{"h"}},
		{atQueues, []string{"enter", "enter"}, []string{"h"}},
		{atEnrolments, nil, []string{"b", "u", "x"}},
		{atEnrolments, []string{"enter"}, []string{"b", "u", "x"}},
		{atEnrolments, []string{"d"}, []string{"a", "u"}},
		{atQuarantine, nil, []string{"l", "x"}},
		{atQuarantine, []string{"G"}, []string{"d"}},
		{atQuarantine, []string{"enter"}, []string{"l", "x"}},
		{atQuarantine, []string{"G", "enter"}, []string{"d"}},
		{atBackups, nil, []string{"b", "v", "d"}},
		{atBackups, []string{"enter"}, []string{"v"}},
	} {
		s := newStage(t, full(), readOnly).show(tt.at).press(tt.open...).sees("read-only")
		for _, k := range tt.keys {
			if s.press(k); s.screen().typing() {
				t.Errorf("screen %d after %q: %s opened a dialog", tt.at, tt.open, k)
			}
		}
		for _, b := range s.screen().bindings() {
			if h := b.Help(); b.Enabled() && slices.Contains(tt.keys, h.Key) && h.Key != "l" && h.Key != "d" {
				t.Errorf("screen %d after %q: got %s %s offered", tt.at, tt.open, h.Key, h.Desc)
			}
		}
		s.did()
	}
}

// Marked items are held at once; the dialog says how many and which first.
func TestHoldMany(t *testing.T) {
	t.Parallel()
	s := newStage(t, full()).show(atQueues).press("enter", " ", " ", " ", "h").sees("Hold 3 items?", itemIDs+"0000", itemIDs+"0002")
	s.press("enter", "y").sees("say why").types("loops").press("enter", "y")
	s.did("hold 3 by cli:test: loops").sees("held 3 items").lacks("marked")
	if n := len(s.app.svc.(*fakeDesk).quarantine); n != 9 {
		t.Errorf("got %d in quarantine; want the three and the six before", n)
	}
}

// What one call leaves for another stays marked, and is done by the same key again.
func TestWhatIsLeftStaysMarked(t *testing.T) {
	t.Parallel()
	f := full()
	f.most = 2
	s := newStage(t, f).show(atQueues).press("enter", " ", " ", " ", "h").types("loops").press("enter", "y")
	s.did("hold 2 by cli:test: loops").sees("held 2 items, 1 left: press again for the rest", "1 marked")
	s.press("h").sees("Hold 1 item?", itemIDs+"0002").types("loops").press("enter", "y")
	s.did("hold 2 by cli:test: loops", "hold 1 by cli:test: loops").sees("held 1 item").lacks("marked").lacks("left:")
	f.most = 1
	s.show(atQuarantine).press(" ", " ", "l").sees("Release 2 items?").press("y")
	s.did("hold 2 by cli:test: loops", "hold 1 by cli:test: loops", "release 1 by cli:test: ").sees("1 left: press again for the rest", "1 marked")
}

// Marks are bounded by what one action takes, and esc takes them away first.
func TestMarksAreBounded(t *testing.T) {
	t.Parallel()
	f := full()
	f.items = nil
	for i := range relay.MaxItems + 20 {
		f.items = append(f.items, admin.Item{ItemRef: relay.ItemRef{Target: f.queues[0].Target.Key, Seq: int64(i + 1), ID: "item"}, TargetHost: f.queues[0].Target, AcceptedAt: clock})
	}
	s := newStage(t, f).show(atQueues).press("enter")
	for range relay.MaxItems + 10 {
		s.press(" ")
		if s.app.tabs[atQueues].screen.(queues).open.(items).list.table.atEnd() {
			s.press("down") // the next page
		}
	}
	s.sees("500 marked", "at most 500 items at once")
	s.press("esc").lacks("marked").sees("Queues › studio").press("esc").lacks("Queues › studio")
}

// Rows move while a dialog is open: what is done is done to what it was opened
// for, or said to be gone.
func TestRowsMoveUnderDialog(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f).show(atQueues).press("enter", "h").types("why").sees(itemIDs + "0000  seq 1772636000001")
	f.mu.Lock()
	f.items = slices.Clone(f.items[1:]) // it was pulled and acknowledged
	f.mu.Unlock()
	s.later(3*time.Second).sees(itemIDs+"0000  seq 1772636000001", "why").press("enter", "y")
	s.did("hold 0 by cli:test: why").sees("✗ gone: held 0 items of 1 · not done: " + itemIDs + "0000")

	// The selection stays on its row when others come before it.
	f = full()
	s = newStage(t, f).show(atEnrolments).press("j", "x").sees("type reviewer to do it")
	f.mu.Lock()
	f.enrolments = append([]admin.Enrolment{{Host: hostNamed(900, "aaa"), EnrolledAt: clock}}, f.enrolments...)
	f.mu.Unlock()
	s.later(3 * time.Second).types("left the company").press("enter").types("reviewer").press("enter")
	s.did("revoke reviewer 1 by cli:test: left the company").sees("▸  reviewer", "revoked")
}

// A revocation wants the host's name in full; a name that cannot be typed as it
// reads is replaced by the fingerprint.
func TestRevokeWantsTheName(t *testing.T) {
	t.Parallel()
	s := newStage(t, full()).show(atEnrolments).press("x").types("gone").press("enter").types("studi").press("enter")
	s.did().sees("type studio in full").types("o").press("enter").did("revoke studio 1 by cli:test: gone")
	for _, name := range hostile {
		h := hostNamed(3, name)
		if got := typable(h); got != h.Fingerprint && !plain(got) {
			t.Errorf("for %q: got %q to type; want its fingerprint", name, got)
		}
	}
	if h := hostNamed(3, "ann’s"); typable(h) != h.Fingerprint {
		t.Error("got a name to type that not every keyboard has")
	}
}

// A block counts its time from the yes; a text that is no time is refused in the
// dialog.
func TestBlockForATime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want time.Duration
	}{{"1h", time.Hour}, {"24h", 24 * time.Hour}, {"7d", 7 * 24 * time.Hour}, {"90m", 90 * time.Minute}, {"until unblocked", 0}} {
		f := full()
		s := newStage(t, f).show(atEnrolments).press("enter", "b", "ctrl+u").types(tt.text).press("enter").types("floods")
		s.later(time.Minute).press("enter", "y").did("block studio 1 by cli:test: floods").sees("studio", "blocked")
		want := time.Time{}
		if tt.want > 0 {
			want = s.now.Add(tt.want)
		}
		if got := f.enrolments[0].Denial.Until; !got.Equal(want) {
			t.Errorf("%s: got an end at %v; want %v", tt.text, got, want)
		}
	}
	for _, text := range []string{"", "x", "-1h", "0d", "1e9d", "99999999999999999999h", "NaNd", "1w"} {
		s := newStage(t, full()).show(atEnrolments).press("b", "ctrl+u").types(text).press("enter").types("why").press("enter", "y").did()
		if !s.screen().typing() {
			t.Errorf("%q: got the dialog closed; want it to say what is wrong", text)
		}
	}
}

// The quarantine tells held items and refused pushes apart.
func TestQuarantineDeeds(t *testing.T) {
	t.Parallel()
	s := newStage(t, full()).show(atQuarantine).press("d").sees("a held item is not dismissed").did()
	s.press("G", "l").sees("can only be dismissed").did()
	s.press("g", " ", " ", "G", " ", "l").sees("Release 2 items?", "1 marked refusal stays: dismiss it with d.").press("y")
	s.did("release 2 by cli:test: ").sees("released 2 items")
	s.press("g", "x").types("poison").press("enter").types("discard").press("enter")
	s.did("release 2 by cli:test: ", "discard 1 by cli:test: poison").sees("discarded 1 item; its sender will hear")
	s.press("g", " ", " ", "d").sees("Dismiss 2 refused pushes?").press("y").sees("dismissed 2 of 2")
	s.press("/").types("held").press("enter").sees("nothing found for held", "filter: held")
	s.press("/").types(" nonsense").press("enter").sees("cannot filter by nonsense", "filter: held")
}

// An item that goes away while it is looked at is said to be gone, and nothing can
// be done to it.
func TestItemGoes(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f).show(atQueues).press("enter", "enter").sees("state           queued")
	if !s.offers(keys.Hold) {
		t.Error("got no way to hold it")
	}
	f.mu.Lock()
	f.items = nil
	f.mu.Unlock()
	s.later(3 * time.Second).sees("GONE").press("h").did()
	if s.offers(keys.Hold) || s.screen().typing() {
		t.Error("got a gone item to hold")
	}
}

// The body of an item is nowhere, and what is shown comes from its metadata.
func TestOneItem(t *testing.T) {
	t.Parallel()
	newStage(t, full()).show(atQueues).press("enter", "enter").
		sees(itemIDs+"0000", "ab12ab12", "2026-03-04 13:36:07Z  (1h30m ago)", "(in 14d00h)", "reviewer", "300 bytes", "not shown")
}

// y copies the id, the key, the path or the command.
func TestCopies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		at   int
		keys []string
		want string
	}{
		{"a queue", atQueues, nil, hostNamed(1, "").Key.String()},
		{"an item in a list", atQueues, []string{"enter"}, itemIDs + "0000"},
		{"an item", atQueues, []string{"enter", "enter"}, itemIDs + "0000"},
		{"a host", atEnrolments, []string{"enter"}, hostNamed(1, "").Key.String()},
		{"a held item", atQuarantine, nil, itemIDs + "0009"},
		{"a backup", atBackups, nil, "/data/backups/" + backupNamed(70)},
		{"the way to restore it", atBackups, []string{"t"}, "agentmbx relay restore /data/backups/" + backupNamed(70) + " --store-dir /data"},
		{"a bad one", atBackups, []string{"G", "k", "t"}, "/data/backups/" + backupNamed(65)},
	} {
		got := ""
		newStage(t, full(), func(o *Options) { o.copy = func(s string) { got = s } }).show(tt.at).press(tt.keys...).press("y")
		if got != tt.want {
			t.Errorf("%s: got %q; want %q", tt.name, got, tt.want)
		}
	}
}

// The way to restore names what a shell takes for one word, and where the relay is
// elsewhere what its own receipt says.
func TestRestoreCommand(t *testing.T) {
	t.Parallel()
	e := fullBackups()[0]
	e.Path = "/data/it's here/b.db"
	here := backupFile{pane: pane{desk: desk{storeDir: "/data"}}, e: e}
	if got, want := here.command(), `agentmbx relay restore '/data/it'\''s here/b.db' --store-dir /data`; got != want {
		t.Errorf("got %s; want %s", got, want)
	}
	there := backupFile{e: e}
	if got := there.command(); got != e.Receipt.Restore {
		t.Errorf("elsewhere: got %s; want %s", got, e.Receipt.Restore)
	}
	foreign := e
	foreign.Ours = false
	for _, bad := range []backupFile{{e: fullBackups()[5]}, {e: foreign}} {
		if text := strings.Join(bad.lines(80), "\n"); strings.Contains(text, "agentmbx relay restore") || !strings.Contains(text, "Do not restore") {
			t.Errorf("got\n%s\nwant no way to restore it", text)
		}
	}
}

// Another run of a job is refused, and said.
func TestRunIsRefused(t *testing.T) {
	t.Parallel()
	f := full()
	f.startJobErr = errors.New("the job is running: backup")
	newStage(t, f).show(atBackups).press("b", "y").sees("✗ the job is running: backup")
}

// What somebody else started is shown at work, too.
func TestRunOfAnotherIsShown(t *testing.T) {
	t.Parallel()
	m := newBackups(desk{svc: full()})
	run := jobs.Run{ID: 7, Job: admin.JobBackup, StartedAt: clock.Add(-time.Minute), Progress: &jobs.Progress{Stage: "copy", Done: 1, Total: 2}}
	m, _ = m.update(tickMsg(clock))
	m, cmd := m.update(backupsMsg{running: &run})
	if cmd == nil || !strings.Contains(m.view(80, 20), "backup: run 7 for 1m00s") || !strings.Contains(m.view(80, 20), "50% copy") {
		t.Errorf("got\n%s\nwant the run at work", m.view(80, 20))
	}
	run.Outcome, run.Job, run.Result = "failed", admin.JobDrill, mustJSON(aDrill(false))
	m, _ = m.update(runMsg{run: run, id: 7})
	if got := m.view(80, 40); !strings.Contains(got, "FAIL  same items") || !strings.Contains(got, "ok    restore") {
		t.Errorf("got\n%s\nwant the checklist", got)
	}
	v := backup.Report{File: "/data/b.db", Good: true, Checks: []backup.Check{{Name: "sha256", OK: true, Text: "as the receipt says"}}}
	if got := verifyList(pane{}, v).view(80, 20); !strings.Contains(got, "✓ a good backup: 1 checks") || !strings.Contains(got, "ok    sha256") {
		t.Errorf("got\n%s\nwant the verification", got)
	}
}
