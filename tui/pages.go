package tui

import (
	"context"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// A list loads pageSize rows at a time and shows up to maxRows. A refresh reads
// the first maxFresh rows anew with at most freshCalls calls: what stands below
// them stays as it was, and what is gone of it says so when it is acted upon.
const (
	pageSize   = 100
	maxRows    = 2000
	maxFresh   = admin.MaxPage
	freshCalls = 2
)

// fetch asks the Service for a part of a list.
type fetch[T any] func(ctx context.Context, p admin.Paging) (admin.Page[T], error)

// pages is a list that comes in pages, as a screen holds it. A search that finds
// little goes on by itself until a page is full: each part of it is a load of the
// screen's. An answer to an earlier question is dropped by its number.
type pages[T any] struct {
	id      func(T) string
	rows    []T
	next    string // where the next page begins, "" at the end
	looked  int64  // rows that were looked at to find these
	loaded  bool   // an answer came
	stopped bool   // the search was stopped
	failed  bool   // the last answer was an error
	aim     int    // how many rows are wanted
	gen     int    // the number of the question
}

// pageMsg is part of a list: what follows after a place, or all of it anew.
type pageMsg[T any] struct {
	gen   int
	fresh bool
	page  admin.Page[T]
	err   error
}

func (m pageMsg[T]) failed() error { return m.err }

func newPages[T any](id func(T) string) pages[T] { return pages[T]{id: id, aim: pageSize} }

// load asks for the part that is missing, or anew for what is there.
func (l pages[T]) load(f fetch[T]) tea.Cmd {
	gen, fresh := l.gen, l.loaded && !l.short()
	after, want, calls := l.next, min(pageSize, l.aim-len(l.rows)), 1
	if fresh {
		after, want, calls = "", max(pageSize, min(len(l.rows), maxFresh)), freshCalls
	}
	return ask(func(ctx context.Context) (admin.Page[T], error) { return readOn(ctx, f, after, want, calls) },
		func(p admin.Page[T], err error) tea.Msg { return pageMsg[T]{gen, fresh, p, err} })
}

// readOn reads on until there are want rows, or calls were made.
func readOn[T any](ctx context.Context, f fetch[T], after string, want, calls int) (all admin.Page[T], err error) {
	all.Next = after
	for range calls {
		p, err := f(ctx, admin.Paging{After: all.Next, Limit: want - len(all.Items)})
		if err != nil {
			return all, err
		}
		all.Items, all.Next, all.Looked = append(all.Items, p.Items...), p.Next, all.Looked+p.Looked
		if p.Next == "" || len(all.Items) >= want {
			break
		}
	}
	return all, nil
}

// start asks another question: what was found for the last one goes.
func (l pages[T]) start() pages[T] {
	fresh := newPages(l.id)
	fresh.gen = l.gen + 1
	return fresh
}

// more wants the rows after the last one; false when there are none, or no more
// are shown.
func (l pages[T]) more() (pages[T], bool) {
	if l.next == "" || len(l.rows) >= maxRows || l.short() {
		return l, false
	}
	l.stopped, l.aim = false, min(maxRows, len(l.rows)+pageSize)
	l.gen++
	return l, true
}

// stop ends a search that goes on; false when none does.
func (l pages[T]) stop() (pages[T], bool) {
	if !l.loaded || !l.short() {
		return l, false
	}
	l.stopped = true
	l.gen++
	return l, true
}

// short reports whether there are fewer rows than wanted, and may be more.
func (l pages[T]) short() bool { return !l.stopped && l.next != "" && len(l.rows) < l.aim }

// take takes an answer; again is true when it is not enough yet.
func (l pages[T]) take(m pageMsg[T]) (taken pages[T], again bool) {
	if m.gen != l.gen {
		return l, false
	}
	if l.failed = m.err != nil; l.failed {
		return l, false
	}
	if m.fresh {
		l = l.freshen(m.page)
	} else {
		l.rows = l.joined(l.rows, m.page.Items)
		l.next, l.looked = m.page.Next, l.looked+m.page.Looked
	}
	l.loaded = true
	return l, l.short()
}

// freshen puts rows that were read anew in the place of those they reach to. Where
// they reach to nothing that was there, the rest is not to be relied on.
func (l pages[T]) freshen(p admin.Page[T]) pages[T] {
	at := make(map[string]int, len(l.rows))
	for i, r := range l.rows {
		at[l.id(r)] = i
	}
	reach, known := -1, len(p.Items) == 0
	for i := len(p.Items) - 1; i >= 0 && !known; i-- { // the last one that was there before
		var place int
		if place, known = at[l.id(p.Items[i])]; known {
			reach = place
		}
	}
	if p.Next == "" || !known || len(p.Items) >= len(l.rows) && p.Looked >= l.looked {
		l.rows, l.next, l.looked = p.Items, p.Next, p.Looked
		return l
	}
	l.rows = l.joined(p.Items, l.rows[reach+1:])
	return l
}

// joined is a and then what b has besides, without touching either.
func (l pages[T]) joined(a, b []T) []T {
	there := make(map[string]bool, len(a)+len(b))
	all := make([]T, 0, len(a)+len(b))
	for _, list := range [][]T{a, b} {
		for _, r := range list {
			if id := l.id(r); !there[id] {
				there[id] = true
				all = append(all, r)
			}
		}
	}
	return all[:min(len(all), maxRows)]
}

// find is the row of an id.
func (l pages[T]) find(id string) (row T, ok bool) {
	for _, r := range l.rows {
		if l.id(r) == id {
			return r, true
		}
	}
	return row, false
}

// search says how a search stands, "" when nothing is missing.
func (l pages[T]) search() string {
	switch {
	case !l.loaded:
		return ""
	case l.short():
		return "searching: looked at " + count(l.looked) + " rows, esc stops it"
	case l.stopped:
		return "stopped after " + count(l.looked) + " rows, G goes on"
	case len(l.rows) >= maxRows && l.next != "":
		return "there are more than are shown: filter them with /"
	}
	return ""
}

// empty is what stands where there is no row.
func (l pages[T]) empty(none string) string {
	switch {
	case l.failed && !l.loaded:
		return "could not be read"
	case !l.loaded:
		return "loading …"
	case l.short(), l.stopped:
		return "nothing found yet"
	}
	return none
}
