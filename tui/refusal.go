package tui

import (
	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/relay"
)

// refusal is one refused push: what is known of it fits on a page, and does not
// change.
type refusal struct {
	pane
	of relay.Refusal
}

func (m refusal) load() tea.Cmd { return nil }

func (m refusal) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	k, is := msg.(tea.KeyMsg)
	if !is {
		return m, nil
	}
	var cmd tea.Cmd
	switch {
	case m.dialog != nil:
		m.pane, cmd, _ = m.answer(k)
	case key.Matches(k, keys.Copy):
		cmd = copyText(m.of.ItemID)
	case key.Matches(k, keys.Dismiss):
		m.pane, cmd = m.ask(m.dismissDialog([]relay.Refusal{m.of}))
	}
	return m, cmd
}

func (m refusal) back() (screen, bool) {
	was := m.dialog != nil
	m.dialog = nil
	return m, was
}

func (m refusal) typing() bool  { return m.dialog != nil }
func (m refusal) title() string { return "refused push" }

func (m refusal) bindings() []key.Binding {
	if m.dialog != nil {
		return m.dialog.bindings()
	}
	return []key.Binding{m.off(keys.Dismiss), keys.Copy, keys.Back}
}

func (m refusal) view(w, h int) string {
	r := m.of
	lines := facts(m.look, []fact{
		{label: "refused", text: when(m.now, r.At)},
		{label: "because", text: r.Reason},
		{label: "times", text: count(r.Count) + ", since the first one that this is a sample of"},
		{label: "item", text: r.ItemID},
		{label: "from", text: orNone(r.Name)},
		{label: "fingerprint", text: r.Sender.Fingerprint()},
		{label: "key", text: r.Sender.String()},
		{},
		{label: "what now", text: "the push was refused and its sender was told; nothing of it is stored. To refuse the host, find it in Enrolments (3)."},
	}, w)
	return m.draw(block(lines, w, h), w, h)
}
