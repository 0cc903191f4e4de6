package admin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/admin"
)

// Every list in pages of every size is the list in one page, and no page looks at
// more rows than it shows.
func TestListsInPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.furnish()
	for _, l := range r.listers() {
		want, next, looked, err := l.page(t.Context(), admin.Paging{Limit: admin.MaxPage})
		if err != nil || len(want) < 18 || next != "" {
			t.Fatalf("%s: got %d rows, next %q, %v; want all", l.name, len(want), next, err)
		}
		if most := 2*len(want) + 20; looked > int64(most) { // of shares and denials, and of what they lead to
			t.Errorf("%s: looked at %d rows; want at most %d", l.name, looked, most)
		}
		for _, limit := range []int{1, 5, 18} {
			if got := l.whole(t, limit, func(int) {}); !slices.Equal(got, want) {
				t.Errorf("%s, pages of %d:\ngot  %q\nwant %q", l.name, limit, got, want)
			}
		}
	}
}

// While other rows come, go and change places between the pages, each row that
// stays where it is stands in exactly one of them.
func TestListsThatMove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.furnish()
	n := 0
	for _, l := range r.listers() {
		before, _, _, err := l.page(t.Context(), admin.Paging{Limit: admin.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		want := stable(before)
		if len(want) < 9 {
			t.Fatalf("%s: got %d stable rows; want some", l.name, len(want))
		}
		got := stable(l.whole(t, 4, func(page int) {
			if page < 5 { // a list that grows at its end as fast as it is read has none
				r.move(n)
				n++
			}
		}))
		if !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %q\nwant %q", l.name, got, want)
		}
	}
}

// A first page costs the same in a store of any size: it looks at the rows that it
// shows.
func TestCostOfAFirstPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.furnish()
	for round := range 2 {
		for _, l := range r.listers() {
			rows, next, looked, err := l.page(t.Context(), admin.Paging{Limit: 5})
			if err != nil || len(rows) != 5 || next == "" {
				t.Fatalf("%s: got %q, next %q, %v; want five rows and more", l.name, rows, next, err)
			}
			most := int64(5)
			switch l.name {
			case "items of a sender": // and the shares that lead to them
				most = 15
			case "blocked enrolments": // and the denials that do
				most = 30
			}
			if looked > most {
				t.Errorf("%s: looked at %d rows; want at most %d", l.name, looked, most)
			}
		}
		for n := range 8 {
			r.move(8*round + n)
		}
	}
}

// What no page can be made of is refused in one line, and with its kind.
func TestBadPaging(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.furnish()
	for _, l := range r.listers() {
		for _, p := range []admin.Paging{
			{}, {Limit: -1}, {Limit: admin.MaxPage + 1}, {Limit: 1, After: "x"}, {Limit: 1, After: "%"}, {Limit: 1, After: strings.Repeat("A", 5000)},
		} {
			rows, next, _, err := l.page(t.Context(), p)
			if !errors.Is(err, admin.ErrBadRequest) || len(rows) > 0 || next != "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %.60v: got %d rows, %q, %v; want a bad request in one line", l.name, p, len(rows), next, err)
			}
		}
	}
	r.placesOfOthers()
}

// placesOfOthers wants a place in one list to be none in any other: each list
// refuses the cursors of all that stand in another order.
func (r *rig) placesOfOthers() {
	r.t.Helper()
	quarantine := func(name, kind, target string) lister {
		return listerOf(name, func(ctx context.Context, p admin.Paging) (admin.Page[admin.Quarantined], error) {
			f := admin.QuarantineFilter{Paging: p, Kind: kind}
			if target != "" {
				f.Target = key(target)
			}
			return r.Quarantine(ctx, f)
		}, func(q admin.Quarantined) string { return q.Kind })
	}
	lists := append(r.listers(),
		quarantine("held", admin.QuarantineHeld, ""), quarantine("held for one", admin.QuarantineHeld, "stable-00"),
		quarantine("quarantine for one", "", "stable-00"),
		quarantine("refused", admin.QuarantineRefused, ""), quarantine("refused for one", admin.QuarantineRefused, "stable-00"))
	// The lists that stand in the order of another one, or of two that follow each
	// other; all else is in an order of its own.
	orders := map[string][]string{
		"items": {"items"}, "items of a sender": {"items"},
		"quarantine": {"held", "refused"}, "held": {"held"}, "held for one": {"held"}, "quarantine for one": {"held"},
		"refused": {"refused"}, "refused for one": {"refused"},
	}
	for _, l := range lists {
		if orders[l.name] == nil {
			orders[l.name] = []string{l.name}
		}
	}
	tried := 0
	for _, of := range lists {
		for i, limit := range []int{1, 20} { // the quarantine has 18 held
			_, after, _, err := of.page(r.t.Context(), admin.Paging{Limit: limit})
			if err != nil {
				r.t.Fatal(err)
			}
			order := orders[of.name][min(i, len(orders[of.name])-1)]
			for _, l := range lists {
				if after == "" || slices.Contains(orders[l.name], order) {
					continue
				}
				tried++
				rows, _, _, err := l.page(r.t.Context(), admin.Paging{Limit: 5, After: after})
				if !errors.Is(err, admin.ErrBadRequest) || len(rows) > 0 {
					r.t.Errorf("%s after a place in %s: got %d rows, %v; want a bad request", l.name, of.name, len(rows), err)
				}
			}
		}
	}
	if tried < 16*15 {
		r.t.Errorf("got %d pairs; want all lists with the cursors of all others", tried)
	}
}
