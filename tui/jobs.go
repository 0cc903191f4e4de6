package tui

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/relay"
)

// jobList lists the jobs; one opens to its last runs, and a run to all that is
// known of it.
type jobList struct {
	pane
	states []jobs.State
	clock  *relay.ClockStatus
	loaded bool
	table  table
	watch  watch

	job     string // whose runs are open, "" for none
	runs    []jobs.Run
	runsFor string // the job whose runs these are
	runTab  table
	run     int64 // the run that is open, 0 for none
	pager   pager
}

// jobsMsg is the answer to a load: the jobs and, where one is open, its runs.
type jobsMsg struct {
	s    admin.Status
	job  string
	runs []jobs.Run
	err  error
}

func (m jobsMsg) failed() error { return m.err }

func newJobs(d desk) screen {
	return jobList{pane: pane{desk: d}, table: table{look: d.look, columns: jobColumns()}, runTab: table{look: d.look, columns: []column{
		{title: "RUN", width: 7, right: true},
		{title: "STARTED", width: 20},
		{title: "TOOK", width: 7, right: true},
		{title: "OUTCOME", width: 8},
		{title: "BY", width: 14, drop: 1},
		{title: "DETAIL"},
	}}}
}

func jobColumns() []column {
	return []column{
		{title: "JOB", width: 11},
		{title: "SCHEDULE", width: 11},
		{title: "NEXT", width: 10},
		{title: "LAST", width: 8},
		{title: "ENDED", width: 11},
		{title: "DETAIL"},
	}
}

// jobRow says how a job stands.
func jobRow(p pane, j jobs.State) tableRow {
	r := tableRow{id: j.Name}
	schedule, next, last, ended, detail := j.Schedule, "-", "-", "-", ""
	if schedule == "" {
		schedule = "on request"
	}
	switch {
	case j.Running != nil:
		next = "running"
	case !j.Next.IsZero():
		next = ago(p.now, j.Next)
		if !p.now.IsZero() && !j.Next.After(p.now) {
			next = "now"
		}
	}
	if l := j.Last; l != nil {
		last, ended, detail = outcomeText(l.Outcome), ago(p.now, l.FinishedAt), l.Detail
		if l.FinishedAt.IsZero() {
			ended = "-"
		}
		r.alarm = last != l.Outcome
	}
	if j.Running != nil {
		detail = progressText(j.Running.Progress)
	} else if j.Wanted != "" {
		detail = "wanted after " + j.Wanted
	}
	r.cells = []string{j.Name, schedule, next, last, ended, detail}
	return r
}

// runsShown is how many runs of a job are asked for: as many as are kept.
const runsShown = 200

func (m jobList) load() tea.Cmd {
	job := m.job
	return ask(func(ctx context.Context) (v jobsMsg, err error) {
		v.job = job
		if v.s, err = m.svc.Status(ctx); err != nil || job == "" {
			return v, err
		}
		v.runs, err = m.svc.Runs(ctx, admin.RunFilter{Job: job, Limit: runsShown})
		return v, err
	}, func(v jobsMsg, err error) tea.Msg {
		v.err = err
		return v
	})
}

func (m jobList) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	switch msg := msg.(type) {
	case jobsMsg:
		if msg.err == nil {
			m = m.take(msg)
		}
	case runMsg:
		var cmd tea.Cmd
		m.watch, cmd = m.watch.take(m.desk, msg)
		return m, cmd
	case tea.KeyMsg:
		return m.key(msg)
	}
	return m.rows(), nil
}

func (m jobList) take(msg jobsMsg) jobList {
	m.states, m.clock, m.loaded = msg.s.Jobs, msg.s.Clock, true
	if msg.job == m.job && msg.job != "" {
		m.runs, m.runsFor = msg.runs, msg.job
	}
	return m
}

// rows makes the rows anew from what is known and the time.
func (m jobList) rows() jobList {
	var rows []tableRow
	for _, j := range m.states {
		rows = append(rows, jobRow(m.pane, j))
	}
	m.table = m.table.setRows(rows)
	if m.job == "" {
		return m
	}
	rows = nil
	for _, r := range m.runs {
		took, outcome := "-", outcomeText(r.Outcome)
		if !r.FinishedAt.IsZero() {
			took = span(r.FinishedAt.Sub(r.StartedAt))
		}
		detail := r.Detail
		if r.Outcome == "" {
			outcome, detail = "running", progressText(r.Progress)
		}
		rows = append(rows, tableRow{id: strconv.FormatInt(r.ID, 10), alarm: outcome != r.Outcome && r.Outcome != "",
			cells: []string{strconv.FormatInt(r.ID, 10), stamp(r.StartedAt), took, outcome, r.AskedBy, detail}})
	}
	m.runTab = m.runTab.setRows(rows)
	m.runTab.more = len(m.runs) == runsShown
	return m
}

func (m jobList) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	if m.dialog != nil {
		var cmd tea.Cmd
		m.pane, cmd, _ = m.answer(msg)
		return m, cmd
	}
	handled := false
	switch {
	case m.run != 0:
		m.pager, handled = m.pager.move(msg, m.w, m.h-1)
	case m.job != "":
		m.runTab, handled = m.runTab.move(msg, tableRows(m.h-1))
	default:
		m.table, handled = m.table.move(msg, tableRows(m.h-2))
	}
	switch {
	case handled:
	case key.Matches(msg, keys.Open):
		return m.opened()
	case key.Matches(msg, m.off(keys.RunNow)) && m.chosen() != "":
		return m.askRun()
	case key.Matches(msg, keys.Copy):
		return m, m.copied()
	}
	return m, nil
}

// chosen is the job that is open or selected.
func (m jobList) chosen() string {
	if m.job != "" {
		return m.job
	}
	return m.table.selected
}

func (m jobList) opened() (screen, tea.Cmd) {
	switch {
	case m.job == "" && m.table.selected != "":
		m.job, m.runs, m.runsFor = m.table.selected, nil, ""
		m.runTab = m.runTab.setRows(nil)
		m.runTab.top = 0
		return m, reload
	case m.job != "" && m.run == 0:
		if r, ok := m.selectedRun(); ok {
			m.run, m.pager = r.ID, pager{text: runFacts(r)}
		}
	}
	return m, nil
}

func (m jobList) selectedRun() (jobs.Run, bool) {
	if i := m.runTab.index(); i >= 0 && i < len(m.runs) {
		return m.runs[i], true
	}
	return jobs.Run{}, false
}

// runFacts is all that is known of a run.
func runFacts(r jobs.Run) []string {
	outcome := r.Outcome
	if outcome == "" {
		outcome = "running: " + progressText(r.Progress)
	}
	lines := []string{
		"job       " + r.Job,
		"run       " + strconv.FormatInt(r.ID, 10),
		"asked by  " + r.AskedBy,
		"started   " + stamp(r.StartedAt),
		"finished  " + stamp(r.FinishedAt),
		"outcome   " + outcomeText(outcome),
		"detail    " + r.Detail,
	}
	if len(r.Result) > 0 {
		lines = append(append(lines, "", "result"), prettyJSON(r.Result)...)
	}
	return lines
}

func (m jobList) copied() tea.Cmd {
	r, ok := m.selectedRun()
	if m.job == "" || !ok {
		return copyText(m.chosen())
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return tell("", err)
	}
	return copyText(string(b))
}

// askRun asks whether a job is to run now. One that is held after a jump of the
// clock wants its name in full: what a sweep expires is gone.
func (m jobList) askRun() (screen, tea.Cmd) {
	job := m.chosen()
	d := dialog{title: "Run " + job + " now?", lines: []string{"The relay runs the job " + job + " now, once. It is written to the relay log."}}
	held := job == admin.JobSweep && m.clock != nil && !m.clock.HeldUntil.IsZero()
	if held {
		d.word = job
		d.lines = []string{
			fmt.Sprintf("The sweep is held: %s. It would expire %s of %s.", m.clock.Why, count(m.clock.Expire), counted(m.clock.Of, "item")),
			"Check the clock of this machine first: what a sweep expires is gone.",
		}
	}
	d.do = func(dialog) tea.Cmd { return m.startJob(job, nil, held) }
	var cmd tea.Cmd
	m.pane, cmd = m.ask(d)
	return m, cmd
}

func (m jobList) title() string {
	switch {
	case m.run != 0:
		return fmt.Sprintf("Jobs › %s › run %d", m.job, m.run)
	case m.job != "":
		return "Jobs › " + m.job
	}
	return "Jobs"
}

func (m jobList) typing() bool { return m.dialog != nil }

func (m jobList) back() (screen, bool) {
	switch {
	case m.dialog != nil:
		m.dialog = nil
	case m.run != 0:
		m.run = 0
	case m.job != "":
		m.job = ""
	default:
		return m, false
	}
	return m.rows(), true
}

func (m jobList) bindings() []key.Binding {
	if m.dialog != nil {
		return m.dialog.bindings()
	}
	list := []key.Binding{keys.Open, m.off(keys.RunNow), keys.Copy}
	if m.run != 0 {
		list = list[1:]
	}
	return append(list, moving()...)
}

func (m jobList) view(w, h int) string {
	if h < 2 {
		return block(nil, w, h)
	}
	head := m.watch.view(m.look, m.now, w)
	if head == "" {
		head = m.look.faint(cut(m.says(), w))
	}
	base := ""
	switch {
	case m.run != 0:
		base = m.pager.view(m.look, w, h-1)
	case m.job != "":
		none := "no runs yet"
		if m.runsFor != m.job {
			none = "loading …"
		}
		base = m.runTab.view(w, h-1, none)
	default:
		none := "no jobs"
		if !m.loaded {
			none = "loading …"
		}
		base = m.table.view(w, h-1, none)
	}
	return m.draw(head+"\n"+base, w, h)
}

// says is the line above the list.
func (m jobList) says() string {
	switch {
	case m.run != 0:
		return "all that is known of the run"
	case m.job != "":
		return "the last runs of " + m.job + ", newest first"
	case m.clock != nil && !m.clock.HeldUntil.IsZero():
		return "the sweep is held after a jump of the clock: " + m.clock.Why
	case !m.loaded:
		return ""
	}
	return counted(int64(len(m.states)), "job") + "; schedules are in UTC"
}
