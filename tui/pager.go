package tui

import (
	"fmt"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"
)

// pager is a text of many lines to scroll through.
type pager struct {
	text []string // cleaned and wrapped when it is drawn
	top  int
}

// wrapped is the text in w columns.
func (p pager) wrapped(w int) (lines []string) {
	for _, l := range p.text {
		if rows := wrap(l, w, maxWrapped); len(rows) > 0 {
			lines = append(lines, rows...)
		} else {
			lines = append(lines, "")
		}
	}
	return lines
}

// maxWrapped is how many rows one line of a text takes at most.
const maxWrapped = 200

// move scrolls, in a view of w columns and h lines.
func (p pager) move(msg tea.KeyMsg, w, h int) (moved pager, handled bool) {
	last := max(0, len(p.wrapped(w))-max(1, h-1))
	switch {
	case key.Matches(msg, keys.Up):
		p.top--
	case key.Matches(msg, keys.Down):
		p.top++
	case key.Matches(msg, keys.PageUp):
		p.top -= max(1, h-1)
	case key.Matches(msg, keys.PageDown):
		p.top += max(1, h-1)
	case key.Matches(msg, keys.Top):
		p.top = 0
	case key.Matches(msg, keys.Bottom):
		p.top = last
	default:
		return p, false
	}
	p.top = max(0, min(p.top, last))
	return p, true
}

// view draws the part of the text that is in sight; the last line says which,
// where it is not all of it.
func (p pager) view(l *look, w, h int) string {
	lines := p.wrapped(w)
	if len(lines) <= h {
		return block(lines, w, h)
	}
	page := max(1, h-1)
	top := max(0, min(p.top, len(lines)-page))
	shown := append([]string{}, lines[top:min(len(lines), top+page)]...)
	return block(append(shown, l.faint(cut(fmt.Sprintf("lines %d-%d of %d", top+1, min(len(lines), top+page), len(lines)), w))), w, h)
}
