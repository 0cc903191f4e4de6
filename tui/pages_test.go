package tui

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// sieve is a list of which a filter lets few through: a page looks at 10 rows at
// most.
type sieve struct {
	n     int // rows
	every int // of them, one in so many is found
	calls int
	drop  map[string]bool // rows that are gone
	head  []string        // rows that came before all others
}

func (s *sieve) fetch(_ context.Context, p admin.Paging) (page admin.Page[string], err error) {
	s.calls++
	from := 0
	if p.After == "" {
		page.Items = slices.Clone(s.head)
	} else {
		from, _ = strconv.Atoi(p.After)
	}
	at := from
	for ; at < s.n && at < from+10 && len(page.Items) < p.Limit; at++ {
		if id := fmt.Sprint("row ", at); at%s.every == 0 && !s.drop[id] {
			page.Items = append(page.Items, id)
		}
		page.Looked++
	}
	if at < s.n {
		page.Next = strconv.Itoa(at)
	}
	return page, nil
}

func rowsOf() pages[string] { return newPages(func(s string) string { return s }) }

// turn has a list load once.
func (s *sieve) turn(t *testing.T, l pages[string]) (pages[string], bool) {
	t.Helper()
	return l.take(l.load(s.fetch)().(pageMsg[string]))
}

// A search that finds little goes on by itself, says how far it is, and ends.
func TestSearchGoesOn(t *testing.T) {
	s := &sieve{n: 95, every: 30}
	l := rowsOf()
	if got := l.empty("none"); got != "loading …" {
		t.Errorf("before: got %q; want it loading", got)
	}
	again, turns := true, 0
	for again {
		l, again = s.turn(t, l)
		turns++
		if again && !strings.Contains(l.search(), "looked at "+strconv.Itoa(10*turns)+" rows, esc stops it") {
			t.Errorf("after %d turns: got %q; want how far it is", turns, l.search())
		}
	}
	if want := []string{"row 0", "row 30", "row 60", "row 90"}; !slices.Equal(l.rows, want) || turns != 10 || l.looked != 95 || l.search() != "" {
		t.Errorf("got %v after %d turns, %d rows looked at, %q; want %v after 10, 95 looked at", l.rows, turns, l.looked, l.search(), want)
	}
	// A refresh looks at no more than its share again, and forgets nothing.
	s.calls = 0
	if l, again = s.turn(t, l); again || len(l.rows) != 4 || s.calls != freshCalls {
		t.Errorf("refreshed: got %v, again %v, %d calls; want the four rows with %d calls", l.rows, again, s.calls, freshCalls)
	}
}

// A stopped search keeps what it found, drops what was in flight, and goes on when
// more is asked for.
func TestSearchStops(t *testing.T) {
	s := &sieve{n: 1000, every: 30}
	l, _ := s.turn(t, rowsOf())
	flying := l.load(s.fetch)
	l, did := l.stop()
	if !did || !strings.Contains(l.search(), "stopped after 10 rows") {
		t.Fatalf("got %v, %q; want it stopped", did, l.search())
	}
	if after, again := l.take(flying().(pageMsg[string])); again || len(after.rows) != 1 || after.looked != 10 {
		t.Errorf("an answer after the stop: got %v; want it dropped", after.rows)
	}
	if _, did := l.stop(); did {
		t.Error("got it stopped twice")
	}
	l, wanted := l.more()
	if !wanted || !l.short() {
		t.Fatal("got no more; want the search to go on")
	}
	if l, _ = s.turn(t, l); l.looked != 20 {
		t.Errorf("got %d rows looked at; want it to go on where it was", l.looked)
	}
}

// An answer to an earlier question, another filter or sort, is dropped.
func TestStaleAnswersAreDropped(t *testing.T) {
	s := &sieve{n: 500, every: 1}
	l := rowsOf()
	old := l.load(s.fetch)
	l = l.start()
	if got, again := l.take(old().(pageMsg[string])); again || got.loaded || len(got.rows) > 0 {
		t.Errorf("got %v; want the answer dropped", got.rows)
	}
}

// The next page comes when it is asked for, and a refresh shows as many rows as
// before, at most maxFresh of them read anew.
func TestPagesAndRefresh(t *testing.T) {
	s := &sieve{n: 9, every: 1}
	big := func(_ context.Context, p admin.Paging) (page admin.Page[string], err error) {
		from, _ := strconv.Atoi(p.After)
		if p.Limit > admin.MaxPage {
			t.Errorf("got a limit of %d", p.Limit)
		}
		s.calls++
		for i := from; i < from+p.Limit; i++ {
			page.Items = append(page.Items, fmt.Sprint("row ", i))
		}
		page.Next, page.Looked = strconv.Itoa(from+p.Limit), int64(p.Limit)
		return page, nil
	}
	l := rowsOf()
	turn := func() {
		var again bool
		if l, again = l.take(l.load(big)().(pageMsg[string])); again {
			t.Error("got it to go on; want it to wait")
		}
	}
	for want := pageSize; want <= maxRows; want += pageSize {
		if turn(); len(l.rows) != want {
			t.Fatalf("got %d rows; want %d", len(l.rows), want)
		}
		l, _ = l.more()
	}
	if _, wanted := l.more(); wanted || !strings.Contains(l.search(), "there are more") {
		t.Errorf("got more than %d rows", maxRows)
	}
	s.calls = 0
	if turn(); len(l.rows) != maxRows || s.calls != 1 || l.next != strconv.Itoa(maxRows) {
		t.Errorf("refreshed: got %d rows by %d calls, next %s; want all of them by one", len(l.rows), s.calls, l.next)
	}
}

// A refresh takes rows away that are gone as far as it reads, adds new ones, and
// keeps those below without doubling one.
func TestRefreshMeetsWhatIsBelow(t *testing.T) {
	s := &sieve{n: 60, every: 5}
	l := rowsOf()
	for again := true; again; {
		l, again = s.turn(t, l)
	}
	s.drop, s.head = map[string]bool{"row 5": true}, []string{"new"}
	want := []string{"new", "row 0", "row 10", "row 15"}
	for i := 20; i < 60; i += 5 {
		want = append(want, fmt.Sprint("row ", i))
	}
	if l, _ = s.turn(t, l); !slices.Equal(l.rows, want) {
		t.Errorf("got %v; want %v", l.rows, want)
	}
	// All of it went, and others came.
	s.every, s.head, s.n = 100, []string{"a", "b"}, 1000
	if l, _ = s.turn(t, l); l.rows[0] != "a" || l.rows[1] != "b" {
		t.Errorf("got %v; want the new rows first", l.rows)
	}
}

// An error leaves what was there, and another page is not begun by it.
func TestErrorKeepsRows(t *testing.T) {
	s := &sieve{n: 9, every: 1}
	l, _ := s.turn(t, rowsOf())
	after, again := l.take(pageMsg[string]{gen: l.gen, fresh: true, err: errGone})
	if again || len(after.rows) != 9 {
		t.Errorf("got %v, again %v; want the rows as they were", after.rows, again)
	}
	if none, _ := rowsOf().take(pageMsg[string]{err: errGone}); none.empty("none") != "could not be read" {
		t.Errorf("got %q; want it said", none.empty("none"))
	}
}

// sifting is a desk whose queues are found slowly.
type sifting struct {
	*fakeDesk
	at int64
}

func (d *sifting) Queues(context.Context, admin.QueueFilter) (p admin.Page[admin.Queue], err error) {
	d.at += 10_000
	return admin.Page[admin.Queue]{Next: "on", Looked: 10_000}, nil
}

// On the screen a search says how far it is; esc stops it, G has it go on, and a
// second esc takes the filter away.
func TestSearchOnScreen(t *testing.T) {
	t.Parallel()
	var m screen = newQueues(desk{svc: &sifting{fakeDesk: bare()}})
	m, _ = m.update(tea.WindowSizeMsg{Width: 80, Height: 20})
	m, _ = m.update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("/")})
	m, _ = m.update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("x")})
	m, cmd := m.update(tea.KeyMsg{Type: tea.KeyEnter})
	for n := range 3 {
		if cmd == nil || cmd() != (reloadMsg{}) {
			t.Fatalf("turn %d: got no wish to go on", n)
		}
		m, cmd = m.update(m.load()())
	}
	see := func(text string) {
		t.Helper()
		if !strings.Contains(m.view(80, 20), text) {
			t.Errorf("got\n%s\nwant %q", m.view(80, 20), text)
		}
	}
	see("searching: looked at 30,000 rows, esc stops it")
	see("filter: x")
	m, _ = m.back()
	see("stopped after 30,000 rows, G goes on")
	m, cmd = m.update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("G")})
	if cmd == nil {
		t.Error("got G to do nothing; want the search to go on")
	}
	see("searching")
	m, _ = m.back()
	m, _ = m.back()
	if strings.Contains(m.view(80, 20), "filter: x") {
		t.Error("got the filter still in force")
	}
}
