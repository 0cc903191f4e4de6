package tui

import (
	"testing"

	tea "github.com/charmbracelet/bubbletea"
)

// A dialog does what it asks about after a clear yes only: enter, q, n, esc, an
// unfinished word, and what is pasted are none.
func TestDialog(t *testing.T) {
	t.Parallel()
	paste := func(s string) tea.KeyMsg { return tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(s), Paste: true} }
	press := func(names ...string) (msgs []tea.KeyMsg) {
		for _, n := range names {
			msgs = append(msgs, keyNamed(n))
		}
		return msgs
	}
	word := func(d *dialog) { d.word = "studio" }
	reason := func(d *dialog) { d.reason = true }
	both := func(d *dialog) { d.reason, d.word = true, "studio" }
	must := func(d *dialog) { d.extra = []field{{label: "until", must: true}} }
	for _, tt := range []struct {
		name         string
		make         func(d *dialog)
		keys         []tea.KeyMsg
		done, closed bool
	}{
		{"yes", nil, press("y"), true, true},
		{"no", nil, press("n"), false, true},
		{"enter is no", nil, press("enter"), false, true},
		{"esc is no", nil, press("esc"), false, true},
		{"q is no", nil, press("q"), false, true},
		{"another key is nothing", nil, press("j", "Y", " "), false, false},
		{"a pasted yes is nothing", nil, []tea.KeyMsg{paste("y")}, false, false},
		{"a word typed", word, press("s", "t", "u", "d", "i", "o", "enter"), true, true},
		{"a word begun", word, press("s", "t", "enter"), false, false},
		{"y for a word", word, press("y", "enter"), false, false},
		{"another case", word, press("S", "t", "u", "d", "i", "o", "enter"), false, false},
		{"a reason, then yes", reason, press("o", "d", "d", "enter", "y"), true, true},
		{"no reason", reason, press("enter", "y"), false, false},
		{"y is part of the reason", reason, press("y"), false, false},
		{"a reason, then no", reason, press("o", "enter", "enter"), false, true},
		{"reason and word", both, append(press("o", "tab"), append([]tea.KeyMsg{paste("studio")}, press("enter")...)...), true, true},
		{"word without reason", both, append(press("tab"), append([]tea.KeyMsg{paste("studio")}, press("enter")...)...), false, false},
		{"a line that must be filled in", must, press("enter", "y"), false, false},
		{"a line that was", must, press("1", "h", "enter", "y"), true, true},
	} {
		d := dialog{title: "Do it?", do: func(dialog) tea.Cmd { return reload }}
		if tt.make != nil {
			tt.make(&d)
		}
		done, closed := false, false
		for _, k := range tt.keys {
			var cmd tea.Cmd
			d, cmd, closed = d.update(k)
			done = cmd != nil
		}
		if done != tt.done || closed != tt.closed {
			t.Errorf("%s: got done %v, closed %v; want %v, %v", tt.name, done, closed, tt.done, tt.closed)
		}
	}
}

// What is typed is one line of text, whatever is pasted.
func TestTypedText(t *testing.T) {
	t.Parallel()
	text, _ := typeInto("", tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("a\nb\x1b[31m\u202ec全\u0301"), Paste: true})
	if want := "a b[31mc全\u0301"; text != want {
		t.Errorf("got %q; want %q", text, want)
	}
	if text, _ = typeInto("全", tea.KeyMsg{Type: tea.KeyBackspace}); text != "" {
		t.Errorf("backspace: got %q; want nothing", text)
	}
	if text, _ = typeInto("ab", tea.KeyMsg{Type: tea.KeyCtrlU}); text != "" {
		t.Errorf("ctrl+u: got %q; want nothing", text)
	}
	long := tea.KeyMsg{Type: tea.KeyRunes, Runes: make([]rune, 3*maxTyped)}
	for i := range long.Runes {
		long.Runes[i] = 'x'
	}
	if text, _ = typeInto("", long); len(text) != maxTyped {
		t.Errorf("got %d bytes typed; want at most %d", len(text), maxTyped)
	}
}
