package tui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"
)

// dialog asks before something is done. It is pinned to what it was opened for:
// rows may move below it. The default is no. Nothing that cannot be undone is done
// by a single key: word is what must be typed for it.
type dialog struct {
	look   *look
	title  string
	lines  []string             // what will be done, to how many, with ids; cleaned by the dialog
	word   string               // to be typed in full, "" when y is enough
	reason bool                 // a reason is asked for, and must be given
	reads  string               // who reads the reason besides the relay log
	extra  []field              // further things to fill in
	check  func(d dialog) error // refuses what was filled in, or nil
	do     func(d dialog) tea.Cmd
	// what the operator typed
	typed, why string
	gone       bool // the relay is: a yes would do nothing
	at         int  // the line that takes the keys: the extra ones, the reason, the last question
	note       string
}

// field is one line to fill in. One that must be is refused while empty.
type field struct {
	label, value, hint string
	must               bool
}

// value is what was filled in for a label.
func (d dialog) value(label string) string {
	for _, f := range d.extra {
		if f.label == label {
			return strings.TrimSpace(f.value)
		}
	}
	return ""
}

// asks is how many lines are asked: the last one is the question itself.
func (d dialog) asks() int {
	n := len(d.extra) + 1
	if d.reason {
		n++
	}
	return n
}

// text is the line that takes the keys, nil when it is the question y or n.
func (d *dialog) text() *string {
	switch {
	case d.at < len(d.extra):
		return &d.extra[d.at].value
	case d.reason && d.at == len(d.extra):
		return &d.why
	case d.word != "":
		return &d.typed
	}
	return nil
}

// update takes a key. closed is true when the dialog is over, by yes or by no;
// cmd is what a yes does.
func (d dialog) update(msg tea.KeyMsg) (next dialog, cmd tea.Cmd, closed bool) {
	d.note = ""
	d.extra = slices.Clone(d.extra)
	last := d.at == d.asks()-1
	switch msg.Type {
	case tea.KeyEsc:
		return d, nil, true
	case tea.KeyTab, tea.KeyDown:
		d.at = (d.at + 1) % d.asks()
		return d, nil, false
	case tea.KeyShiftTab, tea.KeyUp:
		d.at = (d.at + d.asks() - 1) % d.asks()
		return d, nil, false
	case tea.KeyEnter:
		if !last {
			d.at++
			return d, nil, false
		}
		if d.word == "" { // the default is no
			return d, nil, true
		}
		return d.yes()
	}
	if text := d.text(); text != nil {
		*text, _ = typeInto(*text, msg)
		return d, nil, false
	}
	switch { // nothing that is pasted is a yes
	case msg.Paste:
	case msg.String() == "y":
		return d.yes()
	case msg.String() == "n", msg.String() == "q":
		return d, nil, true
	}
	return d, nil, false
}

// yes does it, when all is filled in and there is a relay to do it.
func (d dialog) yes() (dialog, tea.Cmd, bool) {
	if d.gone {
		d.note = "the relay is gone: nothing was done; wait for it, or leave with esc"
		return d, nil, false
	}
	for i, f := range d.extra {
		if f.must && strings.TrimSpace(f.value) == "" {
			d.at, d.note = i, "fill in: "+f.label
			return d, nil, false
		}
	}
	if d.reason && strings.TrimSpace(d.why) == "" {
		d.at, d.note = len(d.extra), "say why: it is written to the relay log"
		return d, nil, false
	}
	if d.typed != d.word {
		d.at, d.note = d.asks()-1, fmt.Sprintf("type %s in full, or leave with esc", d.word)
		return d, nil, false
	}
	if d.check != nil {
		if err := d.check(d); err != nil {
			d.at, d.note = 0, err.Error()
			return d, nil, false
		}
	}
	if d.do == nil {
		return d, nil, true
	}
	return d, d.do(d), true
}

// dialogWidth is how wide a dialog is where there is room.
const dialogWidth = 72

// view draws the dialog as a box within w columns and h lines.
func (d dialog) view(w, h int) string {
	w = min(w, dialogWidth)
	if w < 5 || h < 3 { // no room for a box
		return block([]string{cut(d.title, w)}, w, h)
	}
	in := w - 4
	asked := d.questions(in)
	var said []string
	for _, l := range d.lines {
		if l == "" {
			said = append(said, "")
		}
		said = append(said, wrap(l, in, 4)...)
	}
	if room := h - 2 - len(asked); len(said) > room { // what is asked stays in sight
		said = said[:max(0, room)]
		if len(said) > 0 {
			said[len(said)-1] = cut("… (the window is too low for the rest)", in)
		}
	}
	all := append(said, asked...)
	if len(all) > h-2 {
		all = all[len(all)-(h-2):]
	}
	title := cut(d.title, w-6)
	out := []string{"┌─ " + d.look.strong(title) + " " + strings.Repeat("─", max(0, w-5-width(title))) + "┐"}
	for _, l := range all {
		out = append(out, "│ "+l+strings.Repeat(" ", max(0, in-width(l)))+" │")
	}
	out = append(out, "└"+strings.Repeat("─", w-2)+"┘")
	for i := range out {
		out[i] = cutDrawn(out[i], w)
	}
	return strings.Join(out, "\n")
}

// questions are the lines to fill in and the question itself.
func (d dialog) questions(w int) (lines []string) {
	lines = append(lines, "")
	ask := func(i int, label, value, hint string) {
		s := fieldLine(label+": ", value, w, d.at == i)
		if value == "" && hint != "" {
			s = cutDrawn(s+" "+d.look.faint(cut("("+hint+")", max(0, w-width(s)-1))), w)
		}
		if d.at == i {
			s = d.look.strong(s)
		}
		lines = append(lines, s)
	}
	for i, f := range d.extra {
		ask(i, f.label, f.value, f.hint)
	}
	n := len(d.extra)
	if d.reason {
		ask(n, "reason", d.why, "for the relay log"+d.reads)
		n++
	}
	if d.word != "" {
		lines = append(lines, d.look.alarm(cut("This cannot be undone.", w)))
		ask(n, "type "+clean(d.word)+" to do it", d.typed, "")
	} else {
		s := "do it? y / N"
		if d.at == n {
			s = d.look.strong("▸ " + s)
		}
		lines = append(lines, cutDrawn(s, w))
	}
	if d.note != "" {
		lines = append(lines, d.look.warn(cut(d.note, w)))
	}
	foot := "enter: next line · esc: leave it"
	switch last := d.at == d.asks()-1; {
	case last && d.word == "":
		foot = "esc: leave it"
	case last:
		foot = "enter: do it · esc: leave it"
	}
	return append(lines, d.look.faint(cut(foot, w)))
}

// bindings are the keys of a dialog, for the footer.
func (d dialog) bindings() []key.Binding {
	return []key.Binding{key.NewBinding(key.WithKeys("esc"), key.WithHelp("esc", "leave it"))}
}
