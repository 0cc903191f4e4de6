package tui

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	tea "github.com/charmbracelet/bubbletea"
)

func tableOf(ids ...string) (t table) {
	t.columns = []column{{title: "ID"}}
	return t.setRows(namedRows(ids...))
}

func namedRows(ids ...string) (rows []tableRow) {
	for _, id := range ids {
		rows = append(rows, tableRow{id: id, cells: []string{"row " + id}})
	}
	return rows
}

// The selection is an id: it follows its row, and goes to the one that took its
// place when it is gone.
func TestSelectionFollowsItsRow(t *testing.T) {
	t.Parallel()
	tab := tableOf("a", "b", "c")
	tab, _ = tab.move(keyNamed("j"), 10)
	for _, step := range []struct {
		rows string
		want string
	}{{"xyabc", "b"}, {"cba", "b"}, {"ca", "a"}, {"c", "c"}, {"", ""}, {"pq", "p"}} {
		var rows []string
		if step.rows != "" {
			rows = strings.Split(step.rows, "")
		}
		if tab = tab.setRows(namedRows(rows...)); tab.selected != step.want {
			t.Errorf("rows %s: got %q selected; want %q", step.rows, tab.selected, step.want)
		}
	}
}

func TestTableKeys(t *testing.T) {
	t.Parallel()
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("%02d", i))
	}
	tab := tableOf(ids...)
	for _, step := range []struct{ key, want string }{
		{"k", "00"}, {"j", "01"}, {"down", "02"}, {"pgdown", "12"}, {"G", "99"}, {"j", "99"}, {"end", "99"}, {"up", "98"}, {"home", "00"}, {"pgdown", "10"}, {"g", "00"},
	} {
		var handled bool
		if tab, handled = tab.move(keyNamed(step.key), 10); !handled || tab.selected != step.want {
			t.Errorf("%s: got %q, handled %v; want %q", step.key, tab.selected, handled, step.want)
		}
		if view := tab.view(20, 12, ""); !strings.Contains(view, "▸  row "+step.want) {
			t.Errorf("%s: got\n%s\nwant the selection in sight", step.key, view)
		}
	}
	if _, handled := tab.move(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("z")}, 10); handled {
		t.Error("z: got it handled")
	}
	// Moving up goes up in the window before the window moves.
	tab, _ = tab.move(keyNamed("G"), 10)
	tab, _ = tab.move(keyNamed("k"), 10)
	if view := tab.view(20, 12, ""); !strings.Contains(view, "row 99") {
		t.Errorf("up from the last: got\n%s\nwant it still in sight", view)
	}
}

// Columns go in the order of their drop when the width does not do; the one that
// takes what is left, and those without a drop, stay.
func TestColumnsDrop(t *testing.T) {
	t.Parallel()
	tab := table{columns: []column{{title: "A", width: 10}, {title: "B"}, {title: "C", width: 10, drop: 1}, {title: "D", width: 10, drop: 2}}}
	for _, tt := range []struct {
		w    int
		want []int
	}{{80, []int{0, 1, 2, 3}}, {47, []int{0, 1, 2, 3}}, {46, []int{0, 1, 2}}, {35, []int{0, 1, 2}}, {34, []int{0, 1}}, {5, []int{0, 1}}, {0, []int{0, 1}}} {
		if got, _ := tab.layout(tt.w); !slices.Equal(got, tt.want) {
			t.Errorf("%d cells: got columns %v; want %v", tt.w, got, tt.want)
		}
	}
}
