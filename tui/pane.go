package tui

import (
	"context"
	"errors"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"
)

// pane is what the screens of lists have in common: the desk, the time, their
// size, and the dialog that is open.
type pane struct {
	desk
	now    time.Time
	w, h   int
	gone   bool // the relay is
	dialog *dialog
}

// hear takes what every screen is told.
func (p pane) hear(msg tea.Msg) pane {
	switch msg := msg.(type) {
	case tickMsg:
		p.now = time.Time(msg)
	case tea.WindowSizeMsg:
		p.w, p.h = msg.Width, msg.Height
	case goneMsg:
		if p.gone = bool(msg); p.dialog != nil {
			d := *p.dialog
			d.note = ""
			p.dialog = &d
		}
	}
	return p
}

// page is how many rows of a list with a line above it are surely shown.
func (p pane) page() int { return tableRows(p.h - 2) }

// ask opens a dialog, on a desk that may change something.
func (p pane) ask(d dialog) (pane, tea.Cmd) {
	if p.readOnly {
		return p, tell("read-only: nothing is changed from here", nil)
	}
	d.look = p.look
	p.dialog = &d
	return p, nil
}

// answer gives a key to the dialog; done is true when it is over with a yes.
func (p pane) answer(msg tea.KeyMsg) (next pane, cmd tea.Cmd, done bool) {
	asked := *p.dialog
	asked.gone = p.gone
	d, cmd, closed := asked.update(msg)
	if p.dialog = &d; closed {
		p.dialog = nil
	}
	return p, cmd, closed && cmd != nil
}

// draw draws the dialog over what is below it.
func (p pane) draw(base string, w, h int) string {
	if p.dialog == nil {
		return base
	}
	return over(base, p.dialog.view(w, h), w, h)
}

// tell says something in the status line.
func tell(text string, err error) tea.Cmd {
	return func() tea.Msg { return doneMsg{text: text, err: err} }
}

// act does something that changes the store, and says how it went.
func act(do func(ctx context.Context) (string, error)) tea.Cmd {
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(context.Background(), callTimeout)
		defer stop()
		text, err := do(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("no answer in time: it may have been done; look before you try again")
		}
		return doneMsg{text: text, err: err}
	}
}

// fact is one line about something: a label and what there is to say.
type fact struct {
	label, text string
	alarm       bool
}

const factLabel = 16 // cells of a label

// facts draws lines about something, in w columns. Long texts go on below.
func facts(l *look, list []fact, w int) (lines []string) {
	for _, f := range list {
		label := l.faint(fit(f.label, factLabel))
		rows := wrap(f.text, max(1, w-factLabel), 4)
		if len(rows) == 0 {
			rows = []string{""}
		}
		for _, r := range rows {
			if f.alarm {
				r = l.alarm(r)
			}
			lines = append(lines, label+r)
			label = strings.Repeat(" ", factLabel)
		}
	}
	return lines
}

// when is a time, and how long ago that is.
func when(now, at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return stamp(at) + "  (" + ago(now, at) + ")"
}
