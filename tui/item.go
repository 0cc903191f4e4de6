package tui

import (
	"context"
	"errors"
	"fmt"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// item is all there is to know of one item; its body is nobody's business here.
type item struct {
	pane
	it   admin.Item
	gone bool
}

// itemMsg is the item as it is now; err says ErrNotFound when it does not stand
// there any more.
type itemMsg struct {
	ref relay.ItemRef
	it  admin.Item
	err error
}

func (m itemMsg) gone() bool { return errors.Is(m.err, admin.ErrNotFound) }

func (m itemMsg) failed() error {
	if m.gone() { // an answer, too
		return nil
	}
	return m.err
}

func newItem(p pane, it admin.Item) screen { return item{pane: p, it: it} }

func (m item) load() tea.Cmd {
	svc, ref := m.svc, m.it.ItemRef
	return ask(func(ctx context.Context) (admin.Item, error) { return svc.Item(ctx, ref) },
		func(it admin.Item, err error) tea.Msg { return itemMsg{ref, it, err} })
}

func (m item) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	switch msg := msg.(type) {
	case itemMsg:
		switch {
		case msg.ref != m.it.ItemRef: // about one that was open before
		case msg.gone():
			m.gone = true
		case msg.err == nil:
			m.it, m.gone = msg.it, false
		}
	case tea.KeyMsg:
		return m.key(msg)
	}
	return m, nil
}

func (m item) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	var cmd tea.Cmd
	if m.dialog != nil {
		m.pane, cmd, _ = m.answer(msg)
		return m, cmd
	}
	one := []admin.Item{m.it}
	held := m.it.Held != nil
	switch {
	case key.Matches(msg, keys.Copy):
		cmd = copyText(m.it.ID)
	case m.gone:
	case key.Matches(msg, keys.Hold) && !held:
		m.pane, cmd = m.ask(m.holdDialog(one))
	case key.Matches(msg, keys.Release) && held:
		m.pane, cmd = m.ask(m.releaseDialog(one))
	case key.Matches(msg, keys.Discard) && held:
		m.pane, cmd = m.ask(m.discardDialog(one))
	}
	return m, cmd
}

func (m item) back() (screen, bool) {
	was := m.dialog != nil
	m.dialog = nil
	return m, was
}

func (m item) typing() bool  { return m.dialog != nil }
func (m item) title() string { return "item " + clean(m.it.ID) }

func (m item) bindings() []key.Binding {
	switch {
	case m.dialog != nil:
		return m.dialog.bindings()
	case m.gone:
		return []key.Binding{keys.Copy, keys.Back}
	case m.it.Held != nil:
		return []key.Binding{m.off(keys.Release), m.off(keys.Discard), keys.Copy, keys.Back}
	}
	return []key.Binding{m.off(keys.Hold), keys.Copy, keys.Back}
}

func (m item) view(w, h int) string {
	it := m.it
	list := []fact{
		{label: "item", text: it.ID},
		{label: "kind", text: it.Kind},
		m.state(),
		{label: "to", text: hostText(it.TargetHost)},
		{label: "from", text: hostText(it.Sender)},
	}
	if it.SenderHost != "" && it.SenderHost != it.Sender.Name {
		list = append(list, fact{label: "", text: "called " + it.SenderHost + " when it was pushed"})
	}
	list = append(list,
		fact{label: "sequence", text: fmt.Sprint(it.Seq)},
		fact{label: "size", text: size(it.Bytes) + "  (" + counted(it.Bytes, "byte") + ")"},
		fact{label: "sha256", text: it.Hash},
		fact{label: "accepted", text: when(m.now, it.AcceptedAt)},
		fact{label: "expires", text: when(m.now, it.ExpiresAt)},
	)
	if it.Held != nil {
		list = append(list,
			fact{label: "held", text: when(m.now, it.Held.At)},
			fact{label: "by", text: it.Held.Actor},
			fact{label: "because", text: it.Held.Reason})
	}
	list = append(list, fact{}, fact{label: "body", text: "not shown: it is between its sender and its target"})
	return m.draw(block(facts(m.look, list, w), w, h), w, h)
}

// state says where the item stands.
func (m item) state() fact {
	switch {
	case m.gone:
		return fact{label: "state", text: "GONE: it was pulled and acknowledged, expired, discarded, or released under a new number", alarm: true}
	case m.it.Held != nil:
		return fact{label: "state", text: "held: its target does not get it, and acks pass it by"}
	}
	return fact{label: "state", text: "queued"}
}

// hostText is a host by name and fingerprint.
func hostText(h admin.Host) string { return hostName(h) + "  " + h.Fingerprint }
