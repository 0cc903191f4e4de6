package tui

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// stage plays the whole program by hand: keys go into the root, and what its
// commands answer comes back at once, without a terminal and without a timer.
type stage struct {
	t   testing.TB
	app app
	now time.Time
	// what is to be looked at a while later, by look
	waiting []tea.Cmd
}

// Places of the screens.
const (
	atQueues = 1 + iota
	atEnrolments
	atQuarantine
	atBackups
)

func newStage(t testing.TB, svc admin.Service, change ...func(*Options)) *stage {
	s := &stage{t: t, now: clock}
	o := Options{Service: svc, Actor: "cli:test", Where: "/data", StoreDir: "/data", Gone: gone, Now: func() time.Time { return s.now }}
	o.after = func(_ time.Duration, then func(time.Time) tea.Msg) tea.Cmd {
		return func() tea.Msg {
			s.waiting = append(s.waiting, func() tea.Msg { return then(s.now) })
			return nil
		}
	}
	for _, f := range change {
		f(&o)
	}
	s.app = newApp(o)
	s.resize(80, 24)
	return s
}

func readOnly(o *Options) { o.ReadOnly = true }

// send gives the root a message and plays what follows.
func (s *stage) send(msg tea.Msg) {
	s.t.Helper()
	next, cmd := s.app.take(msg)
	s.app = next
	s.play(cmd)
}

func (s *stage) play(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case nil:
	case tea.BatchMsg:
		for _, c := range msg {
			s.play(c)
		}
	default:
		s.send(msg)
	}
}

// look looks once more at the runs that are followed.
func (s *stage) look() *stage {
	s.t.Helper()
	waiting := s.waiting
	s.waiting = nil
	for _, cmd := range waiting { // of the screen that is shown
		s.play(s.app.wrap(s.app.shown, cmd))
	}
	return s
}

func (s *stage) resize(w, h int) { s.send(tea.WindowSizeMsg{Width: w, Height: h}) }

// show goes to a screen, which loads.
func (s *stage) show(at int) *stage {
	s.press(string(rune('1' + at)))
	return s
}

// press presses keys by their names.
func (s *stage) press(names ...string) *stage {
	s.t.Helper()
	for _, n := range names {
		s.send(keyNamed(n))
	}
	return s
}

func keyNamed(n string) tea.KeyMsg {
	for k, name := range map[tea.KeyType]string{tea.KeyEnter: "enter", tea.KeyEsc: "esc", tea.KeyTab: "tab", tea.KeyUp: "up", tea.KeyDown: "down",
		tea.KeyPgDown: "pgdown", tea.KeyHome: "home", tea.KeyEnd: "end", tea.KeyBackspace: "backspace", tea.KeyCtrlU: "ctrl+u"} {
		if n == name {
			return tea.KeyMsg{Type: k}
		}
	}
	if n == " " {
		return tea.KeyMsg{Type: tea.KeySpace, Runes: []rune{' '}}
	}
	return tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(n)}
}

// types types a text, character by character.
func (s *stage) types(text string) *stage {
	s.t.Helper()
	for _, r := range text {
		s.press(string(r))
	}
	return s
}

// later lets time pass, and refreshes.
func (s *stage) later(d time.Duration) *stage {
	s.now = s.now.Add(d)
	next, _ := s.app.all(tickMsg(s.now))
	next.now = s.now
	s.app = next
	s.send(reloadMsg{})
	return s
}

func (s *stage) view() string { return s.app.View() }

// sees fails the test when the screen does not show all of the texts.
func (s *stage) sees(texts ...string) *stage {
	s.t.Helper()
	for _, text := range texts {
		if !strings.Contains(s.view(), text) {
			s.t.Fatalf("got\n%s\nwant it to show %q", s.view(), text)
		}
	}
	return s
}

func (s *stage) lacks(text string) *stage {
	s.t.Helper()
	if strings.Contains(s.view(), text) {
		s.t.Fatalf("got\n%s\nwant it not to show %q", s.view(), text)
	}
	return s
}

// offers reports whether the screen offers a key.
func (s *stage) offers(b key.Binding) bool {
	for _, o := range s.app.tabs[s.app.shown].bindings() {
		if o.Help() == b.Help() && o.Enabled() {
			return true
		}
	}
	return false
}

func (s *stage) screen() screen { return s.app.tabs[s.app.shown].screen }

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
