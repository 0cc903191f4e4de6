package tui

import (
	"path/filepath"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/backup"
)

// backupFile is one backup by its receipt, and how it is restored.
type backupFile struct {
	pane
	e   backup.Entry
	top int
}

func newBackup(p pane, e backup.Entry) screen { return backupFile{pane: p, e: e} }

func (m backupFile) load() tea.Cmd { return nil }

func (m backupFile) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	k, is := msg.(tea.KeyMsg)
	if !is {
		return m, nil
	}
	var cmd tea.Cmd
	if m.dialog != nil {
		m.pane, cmd, _ = m.answer(k)
		return m, cmd
	}
	if top, handled := scroll(m.top, k, len(m.lines(m.w)), m.h); handled {
		m.top = top
		return m, nil
	}
	switch {
	case key.Matches(k, keys.Copy):
		cmd = copyText(m.command())
		if !m.good() {
			cmd = copyText(m.e.Path)
		}
	case key.Matches(k, keys.Verify):
		m.pane, cmd = m.ask(m.verifyDialog(m.e))
	}
	return m, cmd
}

func (m backupFile) back() (screen, bool) {
	was := m.dialog != nil
	m.dialog = nil
	return m, was
}

func (m backupFile) typing() bool  { return m.dialog != nil }
func (m backupFile) title() string { return clean(filepath.Base(m.e.Path)) }

func (m backupFile) bindings() []key.Binding {
	if m.dialog != nil {
		return m.dialog.bindings()
	}
	copies := keys.Copy
	if m.good() {
		copies.SetHelp("y", "copy the command")
	}
	return []key.Binding{copies, m.off(keys.Verify), keys.Back, keys.Up, keys.Down}
}

func (m backupFile) view(w, h int) string {
	return m.draw(scrolled(m.look, m.lines(w), m.top, w, h), w, h)
}

// good reports whether this relay may be restored from it, as far as is known.
func (m backupFile) good() bool { return m.e.Verified && m.e.Ours }

// command is what restores this backup. A relay elsewhere has its store where its
// own receipt says.
func (m backupFile) command() string {
	if m.storeDir == "" && m.e.Receipt.Restore != "" {
		return m.e.Receipt.Restore
	}
	dir := m.storeDir
	if dir == "" {
		dir = "DIR"
	}
	return backup.RestoreCommand(m.e.Path, dir, m.e.Receipt.Encrypted)
}

func (m backupFile) lines(w int) []string {
	e, r := m.e, m.e.Receipt
	list := []fact{
		{label: "file", text: e.Path},
		{label: "checked", text: checkedText(e), alarm: !e.Verified},
		{label: "taken", text: when(m.now, r.At)},
		{label: "holds", text: counted(r.Items, "item") + " (" + size(r.ItemBytes) + "), " + counted(r.Enrolments, "live host")},
		{label: "size", text: size(r.Bytes)},
		{label: "sha256", text: r.SHA256},
		{label: "relay key", text: r.Fingerprint + "  (a restore needs this one)"},
		{label: "epoch", text: r.Epoch},
		{label: "made by", text: "agentmbx " + r.Version},
	}
	if r.Encrypted {
		list = append(list, fact{label: "encrypted", text: "with age: a restore needs the identity"})
	}
	lines := append(facts(m.look, list, w), "")
	if !m.good() {
		return append(lines, m.look.alarm(cut("Do not restore this one: take one that is verified, and of this relay.", w)))
	}
	lines = append(lines, m.look.heading(cut("To restore it, stop the relay and run, as its user:", w)))
	for _, l := range wrap(m.command(), max(1, w-4), 20) {
		lines = append(lines, "    "+m.look.strong(l))
	}
	if m.storeDir == "" {
		lines = append(lines, cut("on the machine of the relay.", w))
	}
	for _, l := range wrap("With --dry-run it only says what would happen. Then start the relay: senders push again what is newer than the backup, and revocations stay.", w, 4) {
		lines = append(lines, m.look.faint(l))
	}
	return lines
}

func checkedText(e backup.Entry) string {
	switch {
	case !e.Ours:
		return "of another relay: it is never counted or removed here"
	case e.Verified:
		return "verified when it was made (v reads all of it again)"
	case e.Problem != "":
		return "NOT GOOD: " + e.Problem
	}
	return "NOT VERIFIED"
}
