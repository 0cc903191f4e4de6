package tui

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/backup/drill"
)

// backups lists the backups in the folder and how they were verified, takes new
// ones and rehearses restores. A restore itself is only told of: the relay is
// stopped for it.
type backups struct {
	pane
	rows   []backup.Entry
	loaded bool
	table  table
	drill  *drill.Receipt // of the last one in the log
	watch  watch
	open   screen // a backup, or a checklist
}

// backupsMsg is what a load brings.
type backupsMsg struct {
	rows    []backup.Entry
	drill   *drill.Receipt
	running *jobs.Run // one of these jobs, whoever started it
	err     error
}

func (m backupsMsg) failed() error { return m.err }

func newBackups(d desk) screen {
	return backups{pane: pane{desk: d}, table: table{look: d.look, flex: backupName, columns: []column{
		{title: "TAKEN", width: 11, right: true},
		{title: "CHECKED", width: 8},
		{title: "SIZE", width: 9, right: true},
		{title: "ITEMS", width: 9, right: true, drop: 1},
		{title: "HOSTS", width: 8, right: true, drop: 2},
		{title: "EPOCH", width: 36, drop: 4},
		{title: "FILE", tail: true},
	}}}
}

// backupName is how long the name of a backup is.
const backupName = len("relay-20260304T031700Z-000070.db")

// backupJobs are the jobs that this screen shows at work.
var backupJobs = []string{admin.JobBackup, admin.JobBackupFile, admin.JobVerify, admin.JobDrill, admin.JobDrillFile}

func (m backups) load() tea.Cmd {
	svc := m.svc
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(context.Background(), callTimeout)
		defer stop()
		rows, err := svc.Backups(ctx)
		if err != nil {
			return backupsMsg{err: err}
		}
		last, err := svc.Log(ctx, admin.LogFilter{Op: "drill", Limit: 1})
		if err != nil {
			return backupsMsg{err: err}
		}
		states, err := svc.Jobs(ctx)
		msg := backupsMsg{rows: rows, err: err}
		if len(last) > 0 {
			msg.drill = readDrill(last[0].Receipt)
		}
		for _, s := range states {
			if s.Running != nil && slices.Contains(backupJobs, s.Name) {
				msg.running = s.Running
			}
		}
		return msg
	}
}

// readDrill reads a drill's receipt, nil where it is none.
func readDrill(b []byte) *drill.Receipt {
	var r drill.Receipt
	if json.Unmarshal(b, &r) != nil || len(r.Checks) == 0 {
		return nil
	}
	return &r
}

func (m backups) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case backupsMsg:
		return m.take(msg)
	case runMsg:
		return m.ran(msg)
	case tea.KeyMsg:
		if m.open == nil {
			return m.key(msg)
		}
	}
	if m.open != nil {
		if size, is := msg.(tea.WindowSizeMsg); is {
			size.Height--
			msg = size
		}
		m.open, cmd = m.open.update(msg)
	}
	return m, cmd
}

// inner is the pane of what opens: the last line is for the run that is followed.
func (m backups) inner() pane {
	p := m.pane
	p.h--
	return p
}

func (m backups) take(msg backupsMsg) (screen, tea.Cmd) {
	if msg.err != nil {
		return m, nil
	}
	m.rows, m.drill, m.loaded = msg.rows, msg.drill, true
	ids := make([]tableRow, len(m.rows))
	for i, e := range m.rows {
		ids[i].id = e.Path
	}
	m.table = m.table.setRows(ids)
	if msg.running != nil && !m.watch.on() {
		m.watch = watch{run: *msg.running}
		return m, m.lookAt(msg.running.ID)
	}
	return m, nil
}

// ran takes how a run stands. What a drill or a verification found is opened when
// it ends, unless something else is open.
func (m backups) ran(msg runMsg) (screen, tea.Cmd) {
	was := m.watch.on()
	var cmd tea.Cmd
	m.watch, cmd = m.watch.take(m.desk, msg)
	ended := (was || msg.fresh) && !m.watch.on()
	if ended && !m.busy() {
		if list := m.found(m.watch.run); list != nil {
			m.open = list
		}
	}
	return m, cmd
}

// busy reports whether something is open that must not be taken away.
func (m backups) busy() bool {
	if b, is := m.open.(backupFile); is {
		return b.dialog != nil
	}
	return m.dialog != nil || m.open != nil
}

// found is the checklist of what a run found, nil where it has none.
func (m backups) found(r jobs.Run) screen {
	switch r.Job {
	case admin.JobDrill, admin.JobDrillFile:
		if d := readDrill(r.Result); d != nil {
			return drillList(m.inner(), *d)
		}
	case admin.JobVerify:
		var v backup.Report
		if json.Unmarshal(r.Result, &v) == nil && len(v.Checks) > 0 {
			return verifyList(m.inner(), v)
		}
	}
	return nil
}

func (m backups) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	var cmd tea.Cmd
	if m.dialog != nil {
		m.pane, cmd, _ = m.answer(msg)
		return m, cmd
	}
	if t, handled := m.table.move(msg, m.page()-2); handled {
		m.table = t
		return m, nil
	}
	e, ok := m.current()
	switch {
	case key.Matches(msg, keys.Backup):
		m.pane, cmd = m.ask(m.backupDialog())
	case key.Matches(msg, keys.Receipt) && m.drill != nil:
		m.open = drillList(m.inner(), *m.drill)
	case key.Matches(msg, keys.Receipt):
		cmd = tell("no drill is in the log yet: d runs one", nil)
	case key.Matches(msg, keys.Drill):
		m.pane, cmd = m.ask(m.drillDialog(e, ok))
	case key.Matches(msg, keys.Verify) && ok:
		m.pane, cmd = m.ask(m.verifyDialog(e))
	case key.Matches(msg, keys.Open, keys.Restore) && ok:
		m.open = newBackup(m.inner(), e)
	case key.Matches(msg, keys.Copy) && ok:
		cmd = copyText(e.Path)
	}
	return m, cmd
}

func (m backups) current() (backup.Entry, bool) {
	for _, e := range m.rows {
		if e.Path == m.table.selected {
			return e, true
		}
	}
	return backup.Entry{}, false
}

// newest is the backup that the drill of no file in particular takes.
func (m backups) newest() (backup.Entry, bool) {
	for _, e := range m.rows {
		if e.Verified {
			return e, true
		}
	}
	return backup.Entry{}, false
}

func (d desk) backupDialog() dialog {
	return dialog{
		title: "Back up now?",
		lines: []string{"A verified copy of the store goes into the folder of the backups. Older ones beyond those that are kept are removed after it."},
		do:    func(dialog) tea.Cmd { return d.startJob(admin.JobBackup, nil, false) },
	}
}

func (d desk) verifyDialog(e backup.Entry) dialog {
	return dialog{
		title: "Verify a backup?",
		lines: []string{e.Path, "", "All of it is read and checked; nothing is changed."},
		do: func(dialog) tea.Cmd {
			return d.startJob(admin.JobVerify, map[string]string{"file": e.Path}, false)
		},
	}
}

// drillDialog asks for a drill of the selected backup. That of the newest one is
// the drill of the schedule, too, and is named by no file: it may be another one
// by then.
func (m backups) drillDialog(e backup.Entry, ok bool) dialog {
	d := m.desk
	newest, is := m.newest()
	job, args, what := admin.JobDrill, any(nil), "the newest verified backup"
	if ok && (!is || e.Path != newest.Path) {
		job, args, what = admin.JobDrillFile, map[string]string{"file": e.Path}, e.Path
	}
	return dialog{
		title: "Rehearse a restore?",
		lines: []string{what, "", "It is restored into a scratch folder, served on loopback and checked there. The live store is not touched."},
		do:    func(dialog) tea.Cmd { return d.startJob(job, args, false) },
	}
}

func (m backups) back() (screen, bool) {
	switch {
	case m.open != nil:
		next, was := m.open.back()
		if m.open = next; !was {
			m.open = nil
		}
		return m, true
	case m.dialog != nil:
		m.dialog = nil
		return m, true
	}
	return m, false
}

func (m backups) typing() bool {
	if m.open != nil {
		return m.open.typing()
	}
	return m.dialog != nil
}

func (m backups) title() string {
	if m.open != nil {
		return "Backups & drills › " + m.open.title()
	}
	return "Backups & drills"
}

func (m backups) bindings() []key.Binding {
	switch {
	case m.open != nil:
		return m.open.bindings()
	case m.dialog != nil:
		return m.dialog.bindings()
	}
	b := []key.Binding{keys.Open, m.off(keys.Backup), m.off(keys.Verify), m.off(keys.Drill), keys.Restore, keys.Receipt, keys.Copy}
	return append(b, moving()...)
}

func (m backups) view(w, h int) string {
	foot := []string{m.watch.view(m.look, m.now, w)}
	if e, ok := m.current(); ok && m.open == nil && e.Problem != "" && !m.watch.on() { // there is no room for it in its row
		foot[0] = m.look.alarm(cut("! "+e.Problem, w))
	}
	rest := max(0, h-len(foot))
	if m.open != nil {
		return block(append(strings.Split(m.open.view(w, rest), "\n"), foot...), w, h)
	}
	empty := "loading …"
	if m.loaded {
		empty = "no backup: b takes one"
	}
	t := m.table
	t.rows = slices.Clone(t.rows)
	for i := range t.rows {
		id := t.rows[i].id
		t.rows[i] = m.row(m.rows[i])
		t.rows[i].id = id
	}
	lines := []string{cutDrawn(m.drillLine(w), w)}
	lines = append(lines, strings.Split(t.view(w, max(1, rest-1), empty), "\n")...)
	return m.draw(block(append(lines[:min(len(lines), rest)], foot...), w, h), w, h)
}

// drillLine is how the last drill went.
func (m backups) drillLine(w int) string {
	switch {
	case !m.loaded:
		return ""
	case m.drill == nil:
		return m.look.warn(cut("no drill yet: nobody knows that a restore works (d runs one)", w))
	case m.drill.Passed:
		return m.look.good(cut(fmt.Sprintf("last drill passed %s: %s, served again after %s", ago(m.now, m.drill.At), counted(int64(len(m.drill.Checks)), "check"), drill.Span(m.drill.RTO)), w))
	}
	return m.look.alarm(cut("LAST DRILL "+ago(m.now, m.drill.At)+" "+m.drill.Verdict(), w))
}

func (m backups) row(e backup.Entry) tableRow {
	r := e.Receipt
	return tableRow{alarm: !e.Verified && e.Ours, faint: !e.Ours, cells: []string{ago(m.now, r.At), checked(e), size(r.Bytes), count(r.Items), count(r.Enrolments), r.Epoch, filepath.Base(e.Path)}}
}

func checked(e backup.Entry) string {
	switch {
	case !e.Ours:
		return "foreign"
	case e.Verified:
		return "verified"
	}
	return "NOT GOOD"
}
