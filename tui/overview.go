package tui

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup/drill"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// overview is what an operator wants to see first: alarms, then how the relay
// does, then where mail piles up.
type overview struct {
	pane
	v      admin.Overview
	loaded bool
}

// overviewMsg is the answer to its load.
type overviewMsg struct {
	v   admin.Overview
	err error
}

func (m overviewMsg) failed() error { return m.err }

func newOverview(d desk) screen { return overview{pane: pane{desk: d}} }

func (m overview) load() tea.Cmd {
	return ask(m.svc.Overview, func(v admin.Overview, err error) tea.Msg { return overviewMsg{v, err} })
}

func (m overview) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	switch msg := msg.(type) {
	case overviewMsg:
		if msg.err == nil {
			m.v, m.loaded = msg.v, true
		}
	case tea.KeyMsg:
		if key.Matches(msg, keys.Copy) && m.loaded {
			return m, copyText(m.v.Fingerprint)
		}
	}
	return m, nil
}

func (m overview) title() string           { return "Overview" }
func (m overview) typing() bool            { return false }
func (m overview) back() (screen, bool)    { return m, false }
func (m overview) bindings() []key.Binding { return []key.Binding{keys.Copy} }

func (m overview) view(w, h int) string {
	if !m.loaded {
		return block([]string{"", "  loading …"}, w, h)
	}
	known := m.facts(w)
	lines := m.alarms(w, max(2, h-3-len(known)))
	for _, f := range known {
		lines = append(lines, m.look.faint(fit(f.label, overviewLabel))+f.text)
	}
	lines = append(lines, "")
	rest := h - len(lines)
	n := max(1, min(rest-1, max(len(m.v.Deepest), len(m.v.Longest))))
	lines = append(lines, m.queueTables(w, n+1)...)
	if rest = h - len(lines) - 1; rest >= 4 {
		lines = append(lines, "")
		lines = append(lines, strings.Split(m.jobTable(w, min(rest, len(m.v.Jobs)+1)), "\n")...)
	}
	return block(lines, w, h)
}

const overviewLabel = 10

// alarmLines is how many lines one alarm takes at most.
const alarmLines = 4

// alarms are what is wrong, whole as far as n lines hold them: they tell commands
// to run.
func (m overview) alarms(w, n int) (lines []string) {
	if len(m.v.Problems) == 0 {
		return []string{m.look.good(cut("✓ no alarms", w))}
	}
	for i, p := range m.v.Problems {
		left, room := len(m.v.Problems)-i, n-len(lines)
		if left > 1 {
			room-- // a line for the rest
		}
		if room < 1 {
			return append(lines, m.look.alarm(cut(fmt.Sprintf("! %d more: agentmbx relay status", left), w)))
		}
		for j, r := range wrap(p, w-2, min(alarmLines, room)) {
			lines = append(lines, m.look.alarm(cut([]string{"! ", "  "}[min(j, 1)]+r, w)))
		}
	}
	return lines
}

func (m overview) facts(w int) []fact {
	v, room := m.v, w-overviewLabel
	line := func(label, text string) fact { return fact{label: label, text: cut(text, room)} }
	list := []fact{
		line("relay", fmt.Sprintf("%s, up %s, heartbeat %s", v.Version, age(m.now, v.StartedAt), ago(m.now, v.Heartbeat))),
		line("epoch", v.Epoch),
		line("key", v.Fingerprint),
		line("hosts", fmt.Sprintf("%s enrolled, %s", count(v.Totals.Enrolments), counted(int64(v.LongPolls), "long poll"))),
		line("mail", fmt.Sprintf("%s, %s; quarantine: %s held, %s", counted(v.Totals.Items, "item"), size(v.Totals.Bytes), count(v.Totals.Held), counted(int64(v.Refused), "refused push"))),
		{label: "accepts", text: m.activity(v.Activity.Accepted, v.Activity.TotalAccepted, room)},
		{label: "pulls", text: m.activity(v.Activity.Pulled, v.Activity.TotalPulled, room)},
		{label: "backup", text: m.backup(room)},
		{label: "drill", text: m.drill(room)},
		{label: "disk", text: m.disk(room)},
	}
	if v.Issuer != nil {
		list = append(list, fact{label: "issuer", text: m.issuer(room)})
	}
	return append(list, line("jobs", m.jobLine()))
}

// issuer says how the keys of the accounts issuer stand.
func (m overview) issuer(w int) string {
	st := m.v.Issuer
	keys := "no keys yet"
	if !st.FetchedAt.IsZero() {
		keys = fmt.Sprintf("%s, fetched %s", counted(int64(len(st.Keys)), "key"), ago(m.now, st.FetchedAt))
	}
	switch {
	case !st.Usable:
		return m.look.alarm(cut(fmt.Sprintf("! new hosts are refused: %s, of %s", keys, st.Issuer), w))
	case st.Trouble != "":
		return m.look.warn(cut(fmt.Sprintf("%s, last answer bad, of %s", keys, st.Issuer), w))
	}
	return cut(fmt.Sprintf("%s, of %s", keys, st.Issuer), w)
}

// activity draws a sparkline and what it adds up to.
func (m overview) activity(slots []int64, total int64, w int) string {
	lately := int64(0)
	for _, n := range slots {
		lately += n
	}
	const cells = relay.ActivitySlots / 2 // two slots a column
	const minutes = relay.ActivitySlots * relay.ActivitySlot / time.Minute
	said := fmt.Sprintf("  %s in %dm, %s since start", count(lately), minutes, count(total))
	return m.look.spark(spark(paired(slots), cells)) + cut(said, w-cells)
}

// paired adds up values two by two, from the last one on.
func paired(values []int64) (sums []int64) {
	if len(values)%2 == 1 {
		values = append([]int64{0}, values...)
	}
	for i := 0; i < len(values); i += 2 {
		sums = append(sums, values[i]+values[i+1])
	}
	return sums
}

func (m overview) backup(w int) string {
	b := m.v.Backup
	if b == nil {
		return m.look.warn(cut("none verified yet"+m.next(admin.JobBackup), w))
	}
	return cut(fmt.Sprintf("verified, %s, %s%s", ago(m.now, b.Receipt.At), size(b.Receipt.Bytes), m.next(admin.JobBackup)), w)
}

func (m overview) drill(w int) string {
	d := m.v.Drill
	switch {
	case d == nil:
		return m.look.warn(cut("never"+m.next(admin.JobDrill), w))
	case !d.Passed:
		return m.look.alarm(cut(fmt.Sprintf("! %s: %s%s", ago(m.now, d.At), d.Verdict(), m.next(admin.JobDrill)), w))
	}
	return cut(fmt.Sprintf("passed, %s, served again after %s%s", ago(m.now, d.At), drill.Span(d.RTO), m.next(admin.JobDrill)), w)
}

// next says when a job runs next.
func (m overview) next(job string) string {
	j := m.v.Job(job)
	switch {
	case j == nil:
		return ""
	case j.Running != nil:
		return "; runs now"
	case j.Next.IsZero():
		return ""
	}
	return "; next " + ago(m.now, j.Next)
}

func (m overview) disk(w int) string {
	s := m.v.Store
	text := fmt.Sprintf("%s free; %s of data, %s of write-ahead log", size(s.Free), size(s.Data), size(s.Log))
	if s.Low {
		return m.look.alarm(cut("! nearly full: "+text, w))
	}
	return cut(text, w)
}

// jobLine says which job runs next and which ran last, and what runs now.
func (m overview) jobLine() string {
	var next, last *jobs.State
	var on []string
	for i := range m.v.Jobs {
		j := &m.v.Jobs[i]
		if j.Running != nil {
			on = append(on, j.Name)
		}
		if !j.Next.IsZero() && (next == nil || j.Next.Before(next.Next)) {
			next = j
		}
		if j.Last != nil && (last == nil || j.Last.FinishedAt.After(last.Last.FinishedAt)) {
			last = j
		}
	}
	var parts []string
	if next != nil {
		parts = append(parts, fmt.Sprintf("next %s %s", next.Name, ago(m.now, next.Next)))
	}
	if last != nil {
		parts = append(parts, fmt.Sprintf("last %s %s, %s", last.Name, last.Last.Outcome, ago(m.now, last.Last.FinishedAt)))
	}
	if len(on) > 0 {
		parts = append(parts, "running "+strings.Join(on, ", "))
	}
	return strings.Join(parts, "; ")
}

// queueTables draws the deepest queues and those that wait longest side by side,
// h lines high.
func (m overview) queueTables(w, h int) []string {
	left := (w - 2) / 2
	right := w - 2 - left
	deep := m.queueTable("DEEPEST QUEUES", m.v.Deepest)
	long := m.queueTable("LONGEST WAITING", m.v.Longest)
	a := strings.Split(deep.view(left, h, "nothing is queued"), "\n")
	b := strings.Split(long.view(right, h, "nothing waits"), "\n")
	lines := make([]string, h)
	for i := range lines {
		lines[i] = a[i] + strings.Repeat(" ", max(0, left-width(a[i]))) + "  " + b[i]
	}
	return lines
}

func (m overview) queueTable(title string, list []admin.Queue) table {
	t := table{look: m.look, plain: true, columns: []column{{title: title}, {title: "ITEMS", width: 7, right: true}, {title: "OLDEST", width: 7, right: true}}}
	var rows []tableRow
	for _, q := range list {
		rows = append(rows, tableRow{id: q.Target.Key.String(), cells: []string{hostName(q.Target), count(q.Items), age(m.now, q.Oldest)}, alarm: !q.Live})
	}
	return t.setRows(rows)
}

// jobTable lists the jobs where there is room for them.
func (m overview) jobTable(w, h int) string {
	t := table{look: m.look, plain: true, columns: jobColumns()}
	var rows []tableRow
	for _, j := range m.v.Jobs {
		rows = append(rows, jobRow(m.pane, j))
	}
	return t.setRows(rows).view(w, h, "no jobs")
}

func outcomeText(o string) string {
	if o == store.OutcomeOK || o == "" {
		return o
	}
	return strings.ToUpper(o)
}
