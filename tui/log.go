package tui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// logPage is how many lines of the log are asked for at once, logMost how many
// are held, and logBytes how much their receipts may come to.
const (
	logPage  = 200
	logMost  = 10_000
	logBytes = 32 << 20
)

// logList lists the relay log, newest first; a line opens to its receipt. The
// filter is a text that is looked for in what was loaded, and in what is loaded
// when the end of it is reached.
type logList struct {
	pane
	op      string   // only lines of this kind, "" for all
	ops     []string // kinds seen
	entries []admin.LogEntry
	shown   []int // places in entries that the filter lets through
	loaded  bool
	end     bool // there are no older ones
	full    bool // no older ones are held
	older   bool // older ones are to be loaded next
	table   table
	filter  filter
	open    int64 // id of the line that is open, 0 for none
	pager   pager
}

// logMsg is part of the log: the newest lines, or those before an id.
type logMsg struct {
	op     string
	before int64
	logPart
	err error
}

type logPart struct {
	entries []admin.LogEntry
	more    bool // there are older ones
	same    bool // the newest line is the one that was
}

func (m logMsg) failed() error { return m.err }

func newLog(d desk) screen {
	return logList{pane: pane{desk: d}, table: table{look: d.look, flex: 20, columns: []column{
		{title: "ID", width: 8, right: true, drop: 2},
		{title: "AT", width: 20},
		{title: "KIND", width: 12},
		{title: "BY", width: 12, drop: 1},
		{title: "RECEIPT"},
	}}}
}

// load asks for the newest line alone, and for more only when it is a new one:
// lines do not change, and receipts are long.
func (m logList) load() tea.Cmd {
	f, newest := admin.LogFilter{Op: m.op, Limit: logPage}, int64(0)
	switch n := len(m.entries); {
	case n == 0:
	case m.older:
		f.Before = m.entries[n-1].ID
	default:
		newest = m.entries[0].ID
	}
	svc := m.svc
	return ask(func(ctx context.Context) (p logPart, err error) {
		if newest != 0 {
			last, err := svc.Log(ctx, admin.LogFilter{Op: f.Op, Limit: 1})
			if err != nil || len(last) > 0 && last[0].ID == newest {
				return logPart{same: err == nil}, err
			}
		}
		p.entries, p.more, err = admin.LogPage(ctx, svc, f)
		return p, err
	}, func(p logPart, err error) tea.Msg { return logMsg{f.Op, f.Before, p, err} })
}

func (m logList) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	switch msg := msg.(type) {
	case logMsg:
		if msg.err != nil || msg.op != m.op {
			m.older = m.older && msg.op != m.op
			return m, nil
		}
		if msg.same {
			return m, nil
		}
		return m.take(msg).rows(), nil
	case tea.KeyMsg:
		return m.key(msg)
	}
	return m, nil
}

// take takes a part of the log: older lines go behind those that are held, the
// newest before them, unless lines between them are missing.
func (m logList) take(msg logMsg) logList {
	m.loaded = true
	switch {
	case msg.before != 0:
		m.older = false
		if len(m.entries) == 0 || m.entries[len(m.entries)-1].ID != msg.before {
			return m // of a list that is not shown any more
		}
		m.entries = append(slices.Clip(m.entries), msg.entries...)
		m.end = !msg.more
	default:
		kept, meets := []admin.LogEntry{}, false
		if n := len(msg.entries); n > 0 {
			if at := slices.IndexFunc(m.entries, func(e admin.LogEntry) bool { return e.ID == msg.entries[n-1].ID }); at >= 0 {
				kept, meets = m.entries[at+1:], true
			}
		}
		m.end = m.end && meets || !msg.more
		m.entries = append(slices.Clip(msg.entries), kept...)
	}
	m = m.bound()
	for _, e := range m.entries {
		if at, ok := slices.BinarySearch(m.ops, e.Op); !ok {
			m.ops = slices.Insert(slices.Clone(m.ops), at, e.Op)
		}
	}
	return m
}

// bound lets go of the oldest lines where they are more than is held.
func (m logList) bound() logList {
	n, size := 0, 0
	for n < min(len(m.entries), logMost) && size <= logBytes {
		size += len(m.entries[n].Receipt)
		n++
	}
	if n < len(m.entries) {
		m.entries, m.end = m.entries[:n], false
	}
	m.full = n == logMost || size > logBytes
	return m
}

// rows finds what the filter lets through. The cells are made when they are drawn.
func (m logList) rows() logList {
	m.shown = nil
	var rows []tableRow
	text := strings.ToLower(m.filter.inForce())
	for i, e := range m.entries {
		if text == "" || strings.Contains(strings.ToLower(e.Op), text) || strings.Contains(strings.ToLower(string(e.Receipt)), text) {
			m.shown = append(m.shown, i)
			rows = append(rows, tableRow{id: strconv.FormatInt(e.ID, 10)})
		}
	}
	m.table = m.table.setRows(rows)
	m.table.more = !m.end
	return m
}

func (m logList) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	if m.filter.open {
		m.filter, _ = m.filter.key(msg)
		return m.rows(), nil
	}
	if m.open != 0 {
		if key.Matches(msg, keys.Copy) {
			return m, m.copied()
		}
		m.pager, _ = m.pager.move(msg, m.w, m.h-1)
		return m, nil
	}
	moved, handled := m.table.move(msg, tableRows(m.h-2))
	m.table = moved
	switch {
	case handled:
		down := key.Matches(msg, keys.Down, keys.PageDown, keys.Bottom)
		if down && (m.table.atEnd() || len(m.table.rows) == 0) && !m.end && !m.full {
			m.older = true
			return m, reload
		}
	case key.Matches(msg, keys.Filter):
		m.filter = m.filter.start()
	case key.Matches(msg, keys.Op):
		return m.nextOp(), reload
	case key.Matches(msg, keys.Open):
		if e, ok := m.current(); ok {
			m.open, m.pager = e.ID, pager{text: append([]string{fmt.Sprintf("%s  %s  line %d", stamp(e.At), e.Op, e.ID), ""}, prettyJSON(e.Receipt)...)}
		}
	case key.Matches(msg, keys.Copy):
		return m, m.copied()
	}
	return m, nil
}

// nextOp goes on to the next kind that was seen, and after the last one to all.
func (m logList) nextOp() logList {
	at := slices.Index(m.ops, m.op) + 1
	if m.op = ""; at < len(m.ops) {
		m.op = m.ops[at]
	}
	m.entries, m.loaded, m.end, m.full, m.older = nil, false, false, false, false
	return m.rows()
}

func (m logList) current() (admin.LogEntry, bool) {
	if i := m.table.index(); i >= 0 && i < len(m.shown) {
		return m.entries[m.shown[i]], true
	}
	return admin.LogEntry{}, false
}

func (m logList) copied() tea.Cmd {
	id := m.open
	for _, e := range m.entries {
		if strconv.FormatInt(e.ID, 10) == m.table.selected && id == 0 || e.ID == id {
			return copyText(strings.Join(prettyJSON(e.Receipt), "\n"))
		}
	}
	return nil
}

func (m logList) title() string {
	if m.open != 0 {
		return fmt.Sprintf("Log › line %d", m.open)
	}
	return "Log"
}

func (m logList) typing() bool { return m.filter.open }

func (m logList) back() (screen, bool) {
	was := true
	switch {
	case m.filter.open:
		m.filter, _, _ = m.filter.back()
	case m.open != 0:
		m.open = 0
	case m.filter.text != "":
		m.filter, _, _ = m.filter.back()
	case m.op != "":
		m.op = ""
		m.entries, m.loaded, m.end, m.full, m.older = nil, false, false, false, false
	default:
		was = false
	}
	return m.rows(), was
}

func (m logList) bindings() []key.Binding {
	if m.open != 0 {
		return append([]key.Binding{keys.Copy}, moving()...)
	}
	return append([]key.Binding{keys.Open, keys.Filter, keys.Op, keys.Copy}, moving()...)
}

func (m logList) view(w, h int) string {
	if h < 3 {
		return block(nil, w, h)
	}
	if m.open != 0 {
		return m.look.faint(cut("the whole receipt", w)) + "\n" + m.pager.view(m.look, w, h-1)
	}
	lines := []string{m.look.faint(cut(m.says(), w))}
	if f := m.filter.view(m.look, w); f != "" {
		lines = append(lines, f)
	}
	none := "the log is empty"
	switch {
	case !m.loaded:
		none = "loading …"
	case m.filter.inForce() != "" && !m.end:
		none = "nothing found yet: G looks further back"
	case m.op != "":
		none = m.filter.nothing("no line is of the kind " + m.op)
	default:
		none = m.filter.nothing(none)
	}
	t := m.table
	t.rows = slices.Clone(t.rows)
	top, end, _ := t.seen(h - len(lines))
	for i := top; i < end; i++ {
		t.rows[i] = m.row(m.entries[m.shown[i]])
	}
	return strings.Join(lines, "\n") + "\n" + t.view(w, h-len(lines), none)
}

func (m logList) says() string {
	kind := "all kinds"
	if m.op != "" {
		kind = "only " + m.op + " (esc: all)"
	}
	s := "newest first · " + kind
	if m.full && !m.end { // before the rest: it may be cut
		s = "newest first · older: agentmbx relay log · " + kind
	}
	if n := len(m.entries); n > 0 {
		s += fmt.Sprintf(" · %s back to %s", counted(int64(n), "line"), stamp(m.entries[n-1].At))
	}
	return s
}

func (m logList) row(e admin.LogEntry) tableRow {
	by, text := summary(e.Receipt)
	return tableRow{id: strconv.FormatInt(e.ID, 10), cells: []string{strconv.FormatInt(e.ID, 10), stamp(e.At), e.Op, by, text}}
}

// prettyJSON is a document in lines, its numbers and order as they came.
func prettyJSON(raw json.RawMessage) []string {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return []string{string(raw)}
	}
	return strings.Split(b.String(), "\n")
}
