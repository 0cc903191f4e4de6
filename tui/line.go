package tui

import (
	"strings"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"
)

// maxTyped is how many bytes a line to type in takes.
const maxTyped = 500

// typeInto takes a key into a line of text: characters, backspace, ctrl+u.
// handled is false for any other key. What is pasted is taken as one line.
func typeInto(text string, msg tea.KeyMsg) (typed string, handled bool) {
	switch msg.Type {
	case tea.KeyRunes, tea.KeySpace:
		for _, r := range msg.Runes {
			if r == '\n' || r == '\r' || r == '\t' {
				r = ' '
			}
			if c := string(r); r == utf8.RuneError || clean(c) != c && clean("a"+c) != "a"+c || len(text)+len(c) > maxTyped {
				continue
			}
			text += string(r)
		}
		return text, true
	case tea.KeyBackspace:
		_, n := utf8.DecodeLastRuneInString(text)
		return text[:len(text)-n], true
	case tea.KeyCtrlU:
		return "", true
	}
	return text, false
}

// maxFilter is how many bytes of a filter the Service takes.
const maxFilter = 200

// filter is the text that a list is filtered by. It stays in sight while it is in
// force.
type filter struct {
	text string
	open bool   // keys go into it
	was  string // what it was before it was opened
}

// inForce is the text that the list is filtered by now: what is typed is none
// before enter.
func (f filter) inForce() string {
	if f.open {
		return f.was
	}
	return f.text
}

// undone is the filter before the last one.
func (f filter) undone() filter { return filter{text: f.was} }

// nothing is what stands in an empty list.
func (f filter) nothing(none string) string {
	if text := f.inForce(); text != "" {
		return "nothing found for " + text
	}
	return none
}

func (f filter) start() filter {
	f.open, f.was = true, f.text
	return f
}

// key takes a key while the filter is open: enter keeps what was typed, esc brings
// back what was. changed is true when the list must be asked anew.
func (f filter) key(msg tea.KeyMsg) (next filter, changed bool) {
	switch msg.Type {
	case tea.KeyEnter:
		f.open = false
		return f, f.text != f.was
	case tea.KeyEsc:
		return f.undone(), false
	}
	if text, _ := typeInto(f.text, msg); len(text) <= maxFilter {
		f.text = text
	} else {
		f.text = strings.ToValidUTF8(text[:maxFilter], "")
	}
	return f, false
}

// back closes an open filter, or empties one in force; changed is true when the
// list must be asked anew, was when there was something to leave.
func (f filter) back() (next filter, changed, was bool) {
	switch {
	case f.open:
		return filter{text: f.was}, false, true
	case f.text != "":
		return filter{}, true, true
	}
	return f, false, false
}

// view is the line that shows the filter, "" when there is none.
func (f filter) view(l *look, w int) string {
	switch {
	case f.open:
		return l.key(fieldLine("/ ", f.text, w, true))
	case f.text != "":
		return l.warn(cut("filter: "+f.text+"  (esc clears it)", w))
	}
	return ""
}

// fieldLine draws a label and the end of what was typed, with a cursor when active.
func fieldLine(label, text string, w int, active bool) string {
	cursor := ""
	if active {
		cursor = "▏"
	}
	text = clean(text)
	room := w - width(label) - width(cursor)
	for room > 1 && width(text) > room {
		_, n := utf8.DecodeRuneInString(text)
		text = text[n:]
	}
	return cutDrawn(label+text+cursor, w)
}
