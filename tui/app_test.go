package tui

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// tab and digits switch, esc goes back and never leaves, q leaves at the top only,
// ctrl+c always.
func TestKeysOfTheFrame(t *testing.T) {
	t.Parallel()
	quits := func(s *stage, k tea.KeyMsg) bool {
		next, cmd := s.app.take(k)
		s.app = next
		if cmd == nil {
			return false
		}
		_, is := cmd().(tea.QuitMsg)
		return is
	}
	s := newStage(t, full())
	for i := range s.app.tabs {
		if s.app.shown != i {
			t.Errorf("after %d tabs: got screen %d", i, s.app.shown)
		}
		s.press("tab")
	}
	if s.app.shown != 0 {
		t.Errorf("tab at the last screen: got %d; want the first", s.app.shown)
	}
	s.send(tea.KeyMsg{Type: tea.KeyShiftTab})
	if s.app.shown != 6 {
		t.Errorf("shift+tab at the first screen: got %d; want the last", s.app.shown)
	}
	s.press("6", "enter").sees("[6 Jobs]", "Jobs › heartbeat")
	if quits(s, keyNamed("q")) {
		t.Error("q in an opened job: got the end; want back")
	}
	s.lacks("Jobs › ")
	for range 3 {
		if quits(s, keyNamed("esc")) {
			t.Fatal("esc: got the end")
		}
	}
	s.press("?").sees("Everywhere", "shift+tab")
	if quits(s, keyNamed("q")) {
		t.Error("q in the help: got the end; want back")
	}
	s.lacks("Everywhere")
	s.press("x")
	if quits(s, keyNamed("q")) || s.screen().typing() {
		t.Error("q in a dialog: want it closed, and no more")
	}
	s.press("7", "/")
	if quits(s, keyNamed("q")) {
		t.Error("q in a filter: got the end; want a letter")
	}
	s.sees("/ q▏")
	if !quits(s, tea.KeyMsg{Type: tea.KeyCtrlC}) {
		t.Error("ctrl+c: want the end, always")
	}
	s.press("esc")
	if !quits(s, keyNamed("q")) {
		t.Error("q at the top: want the end")
	}
	s.resize(10, 3)
	if !quits(s, keyNamed("q")) || !quits(s, tea.KeyMsg{Type: tea.KeyCtrlC}) {
		t.Error("q and ctrl+c in a small window: want the end")
	}
	s.press("x", "y")
	s.resize(80, 24)
	if got := s.app.svc.(*fakeDesk).did(); len(got) != 0 {
		t.Errorf("keys in a window too small to see anything: got %q done; want nothing", got)
	}
}

// Keys that come in one go are taken one by one, and nothing that is pasted is a
// command or a yes.
func TestKeysInOneGoAndPasted(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f)
	s.press("6").press("jjx")
	s.sees("Run backup now?")
	s.send(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("y"), Paste: true})
	s.sees("Run backup now?")
	s.send(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("1"), Alt: true}) // esc and 1 in one go
	s.lacks("Run backup now?")
	s.send(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("6xy"), Paste: true})
	if got := f.did(); len(got) != 0 || s.app.shown != atOverview {
		t.Errorf("got %q done on screen %d; want nothing, on the first", got, s.app.shown)
	}
}

// A relay that goes away leaves the last data in sight and says since when; what
// it answers when it is back clears that by itself, paused or not.
func TestRelayGoneAndBack(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f)
	s.show(atOverview).sees("0.6.0")
	f.fail(errGone)
	s.later(3*time.Second).sees("relay gone since 15:06:10Z, waiting", "GONE", "DEEPEST QUEUES", "3s old")
	s.later(10*time.Second).sees("relay gone since 15:06:10Z, waiting", "13s old")
	s.press("p").show(atJobs).sees("Waiting for a relay", "agentmbx relay serve --store-dir /data")
	f.fail(nil)
	s.app.now = s.now.Add(time.Minute)
	if !s.app.due() {
		t.Error("paused while the relay is gone: want it asked for all the same")
	}
	s.later(time.Minute).lacks("relay gone").sees("PAUSED", "heartbeat")
	s.app.now = s.now.Add(time.Minute)
	if s.app.due() {
		t.Error("paused while the relay is there: want nothing asked")
	}
	if s.press("p"); !s.app.due() {
		t.Error("not paused any more: want it asked")
	}
}

// An error that is none of a relay gone is said with the age of what is shown, and
// goes when a refresh goes well.
func TestErrorAndRecovery(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f)
	f.fail(errors.New("bad \x1b[31mnews"))
	s.show(atLog).sees("Cannot load this screen:", `bad \x1b[31mnews`)
	f.fail(nil)
	s.press("r").sees("newest first").lacks("Cannot load")
	f.fail(errors.New("bad news"))
	s.later(4*time.Second).sees("cannot refresh, shown as of 4s ago: bad news", "newest first")
	f.fail(nil)
	s.later(time.Second).lacks("cannot refresh")
}

// slowDesk answers the log when it is let.
type slowDesk struct {
	*fakeDesk
	mu   sync.Mutex
	logs int
}

func (d *slowDesk) Log(context.Context, admin.LogFilter) ([]admin.LogEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logs++
	return nil, nil
}

// However often a refresh is due, a screen has one load in flight; what was wanted
// meanwhile is one more, after it.
func TestLoadsDoNotPileUp(t *testing.T) {
	t.Parallel()
	d := &slowDesk{fakeDesk: full()}
	s := newStage(t, d)
	s.app.shown = atLog
	m, first := s.app.load(atLog)
	for i := range 50 {
		m.now = clock.Add(time.Duration(i) * time.Minute)
		var cmd tea.Cmd
		m, cmd = m.load(atLog)
		if cmd != nil {
			t.Fatalf("load %d while one is in flight: got a command", i)
		}
	}
	s.app = m
	s.play(first)
	if d.logs != 2 {
		t.Errorf("got %d loads; want the first, and one for all that came while it was in flight", d.logs)
	}
	if s.app.tabs[atLog].flying || s.app.asking {
		t.Error("got a load in flight; want none")
	}
}

// What a screen asked for comes back to it, even when another one is shown by then.
func TestAnswersFindTheirScreen(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f)
	s.show(atJobs).press("j", "j", "x")
	next, cmd := s.app.take(keyNamed("y"))
	s.app = next
	s.press("1")
	s.play(cmd)
	s.press("6").sees("backup: run 9001", "copying")
	f.finish(9001, "ok", "41 MiB, verified", nil)
	s.look().sees("✓ backup: run 9001 ok: 41 MiB, verified")
	if got := f.did(); len(got) != 1 || !strings.HasPrefix(got[0], "start backup by cli:test confirm=false") {
		t.Errorf("got %q; want one backup", got)
	}
}

// A held sweep runs only when its name is typed, and is confirmed then.
func TestHeldSweepWantsItsName(t *testing.T) {
	t.Parallel()
	f := full()
	f.overview.Clock = heldClock()
	s := newStage(t, f)
	s.show(atJobs).press("j", "x").sees("The sweep is held", "1,200", "type sweep to do it")
	s.press("y", "enter").sees("type sweep in full")
	s.press("ctrl+u").types("sweep")
	f.mu.Lock() // rows move below the dialog
	f.overview.Jobs, f.jobs = f.jobs[2:], f.jobs[2:]
	f.mu.Unlock()
	s.later(2 * time.Second).press("enter")
	if got := f.did(); len(got) != 1 || !strings.HasPrefix(got[0], "start sweep by cli:test confirm=true") {
		t.Errorf("got %q; want the sweep confirmed", got)
	}
}

// A desk that only reads offers no run, and x does nothing.
func TestReadOnlyRunsNothing(t *testing.T) {
	t.Parallel()
	f := full()
	s := newStage(t, f, readOnly)
	s.show(atJobs).press("x", "y", "enter").sees("read-only")
	if got := f.did(); len(got) != 0 || s.offers(keys.RunNow) {
		t.Errorf("got %q, offered %v; want nothing", got, s.offers(keys.RunNow))
	}
}

// The log is read back page by page at its end, without a gap or a line twice, and
// goes on growing at its head.
func TestLogReadsBack(t *testing.T) {
	t.Parallel()
	f := full()
	f.entries = nil
	for i := range 950 {
		f.entries = append(f.entries, admin.LogEntry{ID: int64(950 - i), At: clock.Add(-time.Duration(i) * time.Minute), Op: []string{"sweep", "hold"}[i%2], Receipt: []byte(`{"v":1}`)})
	}
	s := newStage(t, f)
	s.show(atLog).sees("200 lines")
	grow := func(id int64) {
		f.mu.Lock()
		f.entries = append([]admin.LogEntry{{ID: id, At: clock, Op: "backup", Receipt: []byte(`{}`)}}, f.entries...)
		f.mu.Unlock()
		s.later(time.Second)
	}
	s.press("G").sees("400 lines")
	grow(951)
	s.press("G").sees("601 lines")
	s.press("G", "G", "G", "G")
	grow(952)
	got := s.screen().(logList)
	if len(got.entries) != 952 || !got.end {
		t.Fatalf("got %d lines, at the end %v; want all 952", len(got.entries), got.end)
	}
	for i, e := range got.entries {
		if e.ID != int64(952-i) {
			t.Fatalf("line %d: got id %d; want %d", i, e.ID, 952-i)
		}
	}
	s.press("o").sees("only backup").lacks("sweep")
	s.press("esc").sees("all kinds")
	s.press("/").types("no-such").press("enter").sees("nothing found yet")
	s.press("G", "G", "G", "G", "G").sees("nothing found")
}

// The newest line alone is asked for while nothing is new, and receipts that are long
// are held only up to a bound; a short answer is not taken for the end of the log.
func TestLogOfLongReceipts(t *testing.T) {
	t.Parallel()
	f := full()
	f.entries = nil
	long := []byte(`{"v":1,"x":"` + strings.Repeat("x", 111_000) + `"}`)
	for i := range 660 {
		f.entries = append(f.entries, admin.LogEntry{ID: int64(660 - i), At: clock.Add(-time.Duration(i) * time.Minute), Op: "hold", Receipt: long})
	}
	s := newStage(t, f)
	s.show(atLog).sees("19 lines")
	served := func() (bytes int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.logged
	}
	before := served()
	for range 10 {
		s.later(2 * time.Second)
	}
	if n := served() - before; n > 10*len(long) {
		t.Errorf("got %d bytes of receipts while nothing was new; want a line each time", n)
	}
	for range 40 {
		s.press("G")
	}
	s.sees("agentmbx relay log")
	got, size := s.screen().(logList), 0
	for i, e := range got.entries {
		size += len(e.Receipt)
		if e.ID != int64(660-i) {
			t.Fatalf("line %d: got id %d; want %d", i, e.ID, 660-i)
		}
	}
	if got.end || size < logBytes || size > logBytes+len(long) {
		t.Errorf("got %d bytes, at the end %v; want about %d, and not", size, got.end, logBytes)
	}
	before = served()
	s.press("G")
	if n := served() - before; n > len(long) {
		t.Errorf("got %d bytes more at the bound; want none asked for", n)
	}
}

// y copies what is at hand, and says so.
func TestCopy(t *testing.T) {
	t.Parallel()
	var got []string
	s := newStage(t, full(), func(o *Options) { o.copy = func(s string) { got = append(got, s) } })
	s.show(atOverview).press("y").sees("copied 19 bytes")
	s.show(atJobs).press("y")
	s.show(atLog).press("y", "enter", "y")
	if len(got) != 4 || got[0] != hostNamed(999, "").Fingerprint || got[1] != "heartbeat" || got[2] != got[3] || !strings.Contains(got[2], `"dedup_pruned": 12`) {
		t.Errorf("got %q copied", got)
	}
}

// Every screen in one text, without colour, bounded, and the error of the first
// that can't be loaded.
func TestOnce(t *testing.T) {
	t.Parallel()
	o := Options{Service: full(hostile...), Actor: "cli:test", Colour: true, Now: func() time.Time { return clock }}
	text, err := Once(t.Context(), o, 120)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"== 1 Overview ==", "== 2 Queues ==", "== 3 Enrolments ==", "== 4 Quarantine ==", "== 5 Backups & drills ==", "== 6 Jobs ==", "== 7 Log =="} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant %q in it", text, want)
		}
	}
	lines := strings.Split(text, "\n")
	if len(lines) > 7*(onceLines+3) {
		t.Errorf("got %d lines; want a bounded number", len(lines))
	}
	for _, l := range lines {
		if width(l) > 120 || strings.ContainsAny(l, "\x1b\u009b\t\r") {
			t.Errorf("got %q; want at most 120 cells and no codes", l)
		}
	}
	o.ASCII, o.Where = true, "/data"
	text, err = Once(t.Context(), o, 120)
	if err != nil || !strings.HasPrefix(text, "agentmbx relay . /data . 2026-03-04 15:06:07Z\n") || strings.ContainsFunc(text, func(r rune) bool { return r > '~' }) || strings.Contains(text, "\n>") {
		t.Errorf("in ASCII: got\n%s, %v; want where and when at its head, and nothing selected", text, err)
	}
	o.Service = &fakeDesk{err: errGone}
	if _, err := Once(t.Context(), o, 120); !errors.Is(err, errGone) {
		t.Errorf("without a relay: got %v; want %v", err, errGone)
	}
}
