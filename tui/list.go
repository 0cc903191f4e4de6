package tui

import (
	"errors"
	"slices"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// list is a list of the Service's on a screen: its rows, the selection, the filter
// and what is marked for one action on many.
type list[T any] struct {
	pages[T]
	table  table
	filter filter
	marks  []T // in the order in which they were marked
}

func newList[T any](l *look, id func(T) string, columns ...column) list[T] {
	return list[T]{pages: newPages(id), table: table{look: l, columns: columns}}
}

// take takes what load brought; cmd asks on. A filter that is refused is undone,
// and why is said.
func (l list[T]) take(m pageMsg[T]) (list[T], tea.Cmd) {
	if m.gen == l.gen && !l.loaded && l.filter.text != "" && refusesFilter(m.err) {
		l.filter = l.filter.undone()
		l, _ = l.start()
		return l, tell("", m.err)
	}
	var again bool
	l.pages, again = l.pages.take(m)
	rows := make([]tableRow, len(l.rows))
	for i, r := range l.rows {
		rows[i].id = l.id(r)
	}
	l.table = l.table.setRows(rows)
	l.table.more = l.next != ""
	if again {
		return l, reload
	}
	return l, nil
}

// refusesFilter reports whether a list can't be filtered as was asked.
func refusesFilter(err error) bool {
	return errors.Is(err, admin.ErrBadRequest) || errors.Is(err, admin.ErrNotFound)
}

// start asks another question.
func (l list[T]) start() (list[T], tea.Cmd) {
	l.pages = l.pages.start()
	l.table = l.table.setRows(nil)
	l.table.top, l.table.more = 0, false
	return l, reload
}

// key takes the keys of every list; page is how many rows are shown.
func (l list[T]) key(msg tea.KeyMsg, page int) (next list[T], cmd tea.Cmd, handled bool) {
	if l.filter.open {
		var changed bool
		if l.filter, changed = l.filter.key(msg); changed {
			l, cmd = l.start()
		}
		return l, cmd, true
	}
	if key.Matches(msg, keys.Filter) {
		l.filter = l.filter.start()
		return l, nil, true
	}
	moved, handled := l.table.move(msg, page)
	if !handled {
		return l, nil, false
	}
	l.table = moved
	down := key.Matches(msg, keys.Down, keys.PageDown, keys.Bottom)
	if down && (l.table.atEnd() || len(l.rows) == 0) {
		var wanted bool
		if l.pages, wanted = l.pages.more(); wanted {
			return l, reload, true
		}
	}
	return l, nil, true
}

// back leaves the filter, ends a search or takes the marks away, one at a time;
// changed is true when the list must be asked anew.
func (l list[T]) back() (next list[T], changed, was bool) {
	if l.filter.open {
		l.filter, _, _ = l.filter.back()
		return l, false, true
	}
	if stopped, did := l.stop(); did {
		l.pages = stopped
		return l, false, true
	}
	if len(l.marks) > 0 {
		l.marks = nil
		return l, false, true
	}
	if l.filter, changed, was = l.filter.back(); changed {
		l, _ = l.start()
	}
	return l, changed, was
}

// current is the selected row.
func (l list[T]) current() (T, bool) { return l.find(l.table.selected) }

// mark marks the selected row, or takes its mark away, and goes to the next; false
// when there are as many as one action takes.
func (l list[T]) mark() (list[T], bool) {
	row, ok := l.current()
	if !ok {
		return l, true
	}
	if at := l.marked(l.id(row)); at >= 0 {
		l.marks = slices.Delete(slices.Clone(l.marks), at, at+1)
	} else if len(l.marks) >= relay.MaxItems {
		return l, false
	} else {
		l.marks = append(slices.Clip(l.marks), row)
	}
	if at := l.table.index(); at < len(l.table.rows)-1 {
		l.table.selected = l.table.rows[at+1].id
	}
	return l, true
}

// markLeft marks the rows that an action left for another one.
func (l list[T]) markLeft(left func(T) bool) list[T] {
	for _, r := range l.rows {
		if left(r) {
			l.marks = append(slices.Clip(l.marks), r)
		}
	}
	return l
}

func (l list[T]) marked(id string) int {
	return slices.IndexFunc(l.marks, func(r T) bool { return l.id(r) == id })
}

// chosen is what an action is for: what is marked, or else the selected row.
func (l list[T]) chosen() []T {
	if len(l.marks) > 0 {
		return l.marks
	}
	if row, ok := l.current(); ok {
		return []T{row}
	}
	return nil
}

// view draws the list below a line that says what is shown. Only the rows that
// are seen are made.
func (l list[T]) view(w, h int, says, none string, row func(T) tableRow) string {
	if h < 1 || w < 1 {
		return block(nil, w, h)
	}
	for _, s := range []string{l.search(), l.markedText()} {
		if s != "" { // before the rest: it may be cut
			says = joinNonEmpty(s, says)
		}
	}
	head := l.table.look.faint(cut(says, w))
	if f := l.filter.view(l.table.look, w); f != "" {
		head += "\n" + f
		h--
	}
	marked := make(map[string]bool, len(l.marks))
	for _, m := range l.marks {
		marked[l.id(m)] = true
	}
	t := l.table
	t.rows = slices.Clone(t.rows)
	at := max(0, t.index())
	for i := max(0, at-h); i < min(len(t.rows), at+h); i++ {
		id := t.rows[i].id
		t.rows[i] = row(l.rows[i])
		t.rows[i].id, t.rows[i].marked = id, marked[id]
	}
	if h < 2 {
		return block([]string{head}, w, h)
	}
	return head + "\n" + t.view(w, h-1, l.empty(l.filter.nothing(none)))
}

func (l list[T]) markedText() string {
	if len(l.marks) == 0 {
		return ""
	}
	return count(int64(len(l.marks))) + " marked"
}

func joinNonEmpty(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " · " + b
}

// filtering are the keys while a filter is typed.
func filtering() []key.Binding {
	return []key.Binding{
		key.NewBinding(key.WithKeys("enter"), key.WithHelp("enter", "filter")),
		key.NewBinding(key.WithKeys("esc"), key.WithHelp("esc", "as before")),
	}
}
