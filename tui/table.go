package tui

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"
)

// column is one column of a table.
type column struct {
	title string
	width int  // in cells; 0 takes what is left, of one column only
	right bool // aligned to the right
	tail  bool // cut at its beginning: its end tells it from others
	drop  int  // columns with the highest drop go first where the width does not do; 0 never goes
}

// tableRow is one row. Its id, never its place, is what a selection means.
type tableRow struct {
	id     string
	cells  []string // cleaned by the table
	alarm  bool     // drawn as an alarm, with a ! before it; the cells say why, too
	faint  bool
	marked bool // with a * before it
}

// table is a list with a selection that follows its row when rows move. When the
// selected row is gone the one that took its place is selected.
type table struct {
	look     *look
	columns  []column
	rows     []tableRow
	selected string // id
	top      int    // first row shown
	more     bool   // there are more rows than these: the last line says so
	flex     int    // the least cells of the column that takes what is left; 0 means minFlex
	plain    bool   // nothing is selected: it is only looked at
}

const (
	tableGap  = 2 // cells between columns
	tableMark = 3 // cells before the first: what is selected, marked, alarming
	minFlex   = 8 // cells of the column that takes what is left, before others go
)

// setRows replaces the rows and keeps the selection on its id.
func (t table) setRows(rows []tableRow) table {
	at := t.index()
	t.rows = rows
	if t.index() < 0 {
		t.selected = ""
		if len(rows) > 0 {
			t.selected = rows[max(0, min(at, len(rows)-1))].id
		}
	}
	return t
}

// index is the place of the selected row, -1 for none.
func (t table) index() int {
	for i, r := range t.rows {
		if r.id == t.selected {
			return i
		}
	}
	return -1
}

// tableRows is how many rows a table of h lines surely shows: the page of move.
func tableRows(h int) int { return max(1, h-2) }

// move handles the keys that move the selection: j k, arrows, g G, home end, page
// keys. page is how many rows are shown. handled is false for any other.
func (t table) move(msg tea.KeyMsg, page int) (moved table, handled bool) {
	at, last, page := max(0, t.index()), len(t.rows)-1, max(1, page)
	switch {
	case key.Matches(msg, keys.Up):
		at--
	case key.Matches(msg, keys.Down):
		at++
	case key.Matches(msg, keys.PageUp):
		at -= page
	case key.Matches(msg, keys.PageDown):
		at += page
	case key.Matches(msg, keys.Top):
		at = 0
	case key.Matches(msg, keys.Bottom):
		at = last
	default:
		return t, false
	}
	if last < 0 {
		return t, true
	}
	at = max(0, min(at, last))
	t.selected = t.rows[at].id
	t.top = window(t.top, at, len(t.rows), page)
	return t, true
}

// window is the first of n rows that are shown, page of them, so that at is among
// them: as near to top as may be.
func window(top, at, n, page int) int {
	top = min(top, at, n-page)
	return max(0, top, at-page+1)
}

// atEnd reports whether the selection stands at the last row: the screen may load
// the next page.
func (t table) atEnd() bool { return len(t.rows) > 0 && t.index() == len(t.rows)-1 }

// view draws heading and rows into w columns and h lines; empty is said where
// there is no row.
func (t table) view(w, h int, empty string) string {
	columns, widths := t.layout(w)
	cells := make([]string, len(t.columns))
	for i, c := range t.columns {
		cells[i] = c.title
	}
	lines := []string{t.look.heading(cutDrawn(strings.Repeat(" ", tableMark)+t.line(columns, widths, cells), w))}
	if len(t.rows) == 0 {
		return block(append(lines, t.look.faint(cut("   "+empty, w))), w, h)
	}
	top, end, foot := t.seen(h)
	for _, r := range t.rows[top:end] {
		lines = append(lines, t.row(r, columns, widths, w))
	}
	for foot && len(lines) < h-1 {
		lines = append(lines, "")
	}
	if foot {
		plus := ""
		if t.more {
			plus = "+"
		}
		lines = append(lines, t.look.faint(cut(fmt.Sprintf("   %d-%d of %d%s", top+1, end, len(t.rows), plus), w)))
	}
	return block(lines, w, h)
}

// seen is which rows a view of h lines shows, and whether a last line says so.
func (t table) seen(h int) (top, end int, foot bool) {
	page := max(1, h-1)
	if foot = (t.more || len(t.rows) > page) && !t.plain; foot {
		page = max(1, h-2)
	}
	top = window(t.top, max(0, t.index()), len(t.rows), page)
	return top, min(len(t.rows), top+page), foot
}

func (t table) row(r tableRow, columns, widths []int, w int) string {
	mark := []byte("   ")
	if r.marked {
		mark[1] = '*'
	}
	if r.alarm {
		mark[2] = '!'
	}
	at := " "
	chosen := r.id == t.selected && !t.plain
	if chosen {
		at = "▸"
	}
	s := cutDrawn(at+string(mark[1:])+t.line(columns, widths, r.cells), w)
	switch {
	case chosen:
		return t.look.selected(s)
	case r.alarm:
		return t.look.alarm(s)
	case r.faint:
		return t.look.faint(s)
	}
	return s
}

func (t table) line(columns, widths []int, cells []string) string {
	var b strings.Builder
	for i, c := range columns {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", tableGap))
		}
		text := ""
		if c < len(cells) {
			text = cells[c]
		}
		switch {
		case t.columns[c].right:
			b.WriteString(fitRight(text, widths[i]))
		case t.columns[c].tail:
			b.WriteString(fit(tail(text, widths[i]), widths[i]))
		default:
			b.WriteString(fit(text, widths[i]))
		}
	}
	return b.String()
}

// layout says which columns are shown in w cells, and how wide each is.
func (t table) layout(w int) (columns, widths []int) {
	for i := range t.columns {
		columns = append(columns, i)
	}
	for {
		need, flex := tableMark-tableGap, -1
		for _, c := range columns {
			need += t.columns[c].width + tableGap
			if t.columns[c].width == 0 {
				flex = c
			}
		}
		rest := w - need
		if flex >= 0 && rest < cmp.Or(t.flex, minFlex) || rest < 0 {
			if shorter, ok := t.without(columns); ok {
				columns = shorter
				continue
			}
		}
		for _, c := range columns {
			if c == flex {
				widths = append(widths, max(1, rest))
			} else {
				widths = append(widths, t.columns[c].width)
			}
		}
		return columns, widths
	}
}

// without leaves the column out that goes first.
func (t table) without(columns []int) (rest []int, ok bool) {
	first := -1
	for i, c := range columns {
		if d := t.columns[c].drop; d > 0 && (first < 0 || d >= t.columns[columns[first]].drop) {
			first = i
		}
	}
	if first < 0 {
		return columns, false
	}
	return append(append([]int{}, columns[:first]...), columns[first+1:]...), true
}
