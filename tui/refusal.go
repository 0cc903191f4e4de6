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
	of        relay.Refusal
	asked     bool // to be dismissed
	dismissed bool
}

func (m refusal) load() tea.Cmd { return nil }

func (m refusal) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	if done, is := msg.(doneMsg); is && m.asked {
		m.asked, m.dismissed = false, done.err == nil
	}
	k, is := msg.(tea.KeyMsg)
	if !is {
		return m, nil
	}
	var cmd tea.Cmd
	switch {
	case m.dialog != nil:
		m.pane, cmd, m.asked = m.answer(k)
	case key.Matches(k, keys.Copy):
		cmd = copyText(m.of.ItemID)
	case key.Matches(k, keys.Dismiss) && !m.dismissed:
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
	if m.dismissed {
		return []key.Binding{keys.Copy, keys.Back}
	}
	return []key.Binding{m.off(keys.Dismiss), keys.Copy, keys.Back}
}

func (m refusal) view(w, h int) string {
	r := m.of
	var list []fact
	if m.dismissed {
		list = append(list, fact{label: "state", text: "dismissed: it is not in the list any more"})
	}
	lines := facts(m.look, append(list, []fact{
		{label: "refused", text: when(m.now, r.At)},
		{label: "because", text: r.Reason},
		{label: "times", text: count(r.Count) + " by this sender for this reason; the last one is shown"},
		{label: "item", text: r.ItemID},
		{label: "from", text: orNone(r.Name)},
		{label: "fingerprint", text: r.Sender.Fingerprint()},
		{label: "key", text: r.Sender.String()},
		{},
		{label: "what now", text: "the push was refused and its sender was told; nothing of it is stored. To refuse the host, find it in Enrolments (3)."},
	}...), w)
	return m.draw(block(lines, w, h), w, h)
}
