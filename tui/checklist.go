package tui

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/backup/drill"
)

// checklist is a receipt with its checks, each with its result.
type checklist struct {
	pane
	name    string
	good    bool
	verdict string
	facts   func(m checklist) []fact
	checks  []backup.Check
	top     int
}

// drillList is the receipt of a drill.
func drillList(p pane, r drill.Receipt) screen {
	return checklist{pane: p, name: "drill", good: r.Passed, verdict: "drill " + r.Verdict(), checks: r.Checks, facts: func(m checklist) []fact {
		return []fact{
			{label: "backup", text: r.File},
			{label: "taken", text: when(m.now, r.TakenAt)},
			{label: "drilled", text: when(m.now, r.At) + ", from " + r.Source},
			{label: "age (RPO)", text: drill.Span(r.RPO)},
			{label: "served (RTO)", text: "after " + drill.Span(r.RTO) + ", all of it took " + drill.Span(r.Took)},
			{label: "holds", text: counted(r.Items, "item")},
		}
	}}
}

// verifyList is what a verification found.
func verifyList(p pane, r backup.Report) screen {
	verdict := fmt.Sprintf("%s: %d checks", r.Verdict(), len(r.Checks))
	return checklist{pane: p, name: "verify " + filepath.Base(r.File), good: r.Good, verdict: verdict, checks: r.Checks, facts: func(checklist) []fact {
		return []fact{
			{label: "file", text: r.File},
			{label: "size", text: size(r.Bytes)},
			{label: "sha256", text: r.SHA256},
			{label: "holds", text: counted(r.Totals.Items, "item") + ", " + counted(r.Totals.Enrolments, "live host")},
		}
	}}
}

func (m checklist) load() tea.Cmd { return nil }

func (m checklist) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	if k, is := msg.(tea.KeyMsg); is {
		m.top, _ = scroll(m.top, k, len(m.lines(m.w)), m.h)
	}
	return m, nil
}

func (m checklist) back() (screen, bool) { return m, false }
func (m checklist) typing() bool         { return false }
func (m checklist) title() string        { return clean(m.name) }

func (m checklist) bindings() []key.Binding {
	return []key.Binding{keys.Back, keys.Up, keys.Down, keys.PageUp, keys.PageDown}
}

func (m checklist) view(w, h int) string { return scrolled(m.look, m.lines(w), m.top, w, h) }

// checkName is how many cells the names of checks take at most.
const checkName = 24

func (m checklist) lines(w int) []string {
	verdict := m.look.alarm(cut("✗ "+m.verdict, w))
	if m.good {
		verdict = m.look.good(cut("✓ "+m.verdict, w))
	}
	lines := append([]string{verdict, ""}, facts(m.look, m.facts(m), w)...)
	lines = append(lines, "")
	name := 0
	for _, c := range m.checks {
		name = min(checkName, max(name, width(clean(c.Name))))
	}
	for _, c := range m.checks {
		word := m.look.good("ok  ")
		if !c.OK {
			word = m.look.alarm("FAIL")
		}
		head := "  " + word + "  " + fit(c.Name, name) + "  "
		rows := wrap(c.Text, max(1, w-name-10), 3)
		if len(rows) == 0 {
			rows = []string{""}
		}
		for _, r := range rows {
			lines = append(lines, head+r)
			head = strings.Repeat(" ", name+10)
		}
	}
	return lines
}
