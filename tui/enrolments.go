package tui

import (
	"context"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// enrolments lists the hosts that may, or might, use the relay; one opens to all
// there is to know of it, d opens the deny list.
type enrolments struct {
	pane
	list  list[admin.Enrolment]
	state string
	open  screen // one host, or the deny list
}

func newEnrolments(d desk) screen {
	return enrolments{pane: pane{desk: d}, state: admin.StateAll, list: newList(d.look, func(e admin.Enrolment) string { return e.Key.String() },
		column{title: "HOST"},
		column{title: "FINGERPRINT", width: 19},
		column{title: "ACCOUNT", width: 16, drop: 3},
		column{title: "ORG", width: 14, drop: 5},
		column{title: "STATE", width: 8},
		column{title: "QUEUED", width: 8, right: true},
		column{title: "SIZE", width: 10, right: true, drop: 4},
		column{title: "SENDERS", width: 7, right: true, drop: 2},
		column{title: "LAST SEEN", width: 11, right: true},
		column{title: "ENROLLED", width: 11, right: true, drop: 6},
	)}
}

func (m enrolments) fetch() fetch[admin.Enrolment] {
	svc, f := m.svc, admin.EnrolmentFilter{Text: m.list.filter.text, State: m.state}
	return func(ctx context.Context, p admin.Paging) (admin.Page[admin.Enrolment], error) {
		f.Paging = p
		return svc.Enrolments(ctx, f)
	}
}

func (m enrolments) load() tea.Cmd {
	if m.open != nil {
		return m.open.load()
	}
	return m.list.load(m.fetch())
}

func (m enrolments) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case pageMsg[admin.Enrolment]:
		m.list, cmd = m.list.take(msg)
		return m, cmd
	case blockMsg:
		if m.open == nil {
			return m, msg.act(m.pane)
		}
	case tea.KeyMsg:
		if m.open == nil {
			return m.key(msg)
		}
	}
	if m.open != nil {
		m.open, cmd = m.open.update(msg)
	}
	return m, cmd
}

func (m enrolments) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	var cmd tea.Cmd
	if m.dialog != nil {
		m.pane, cmd, _ = m.answer(msg)
		return m, cmd
	}
	if l, cmd, handled := m.list.key(msg, m.page()); handled {
		m.list = l
		return m, cmd
	}
	switch {
	case key.Matches(msg, keys.State):
		m.state = map[string]string{admin.StateAll: admin.StateLive, admin.StateLive: admin.StateRevoked,
			admin.StateRevoked: admin.StateBlocked, admin.StateBlocked: admin.StateAll}[m.state]
		m.list, cmd = m.list.start()
		return m, cmd
	case key.Matches(msg, keys.Denials):
		m.open = newDenials(m.pane)
		return m, reload
	}
	e, ok := m.list.current()
	if !ok {
		return m, nil
	}
	switch {
	case key.Matches(msg, keys.Open):
		m.open, cmd = newHost(m.pane, e), reload
	case key.Matches(msg, keys.Copy):
		cmd = copyText(e.Key.String())
	default:
		m.pane, cmd = m.hostKey(msg, e)
	}
	return m, cmd
}

// hostKey takes the keys that do something to a host.
func (p pane) hostKey(msg tea.KeyMsg, e admin.Enrolment) (pane, tea.Cmd) {
	switch {
	case key.Matches(msg, keys.Revoke) && e.RevokedAt.IsZero():
		return p.ask(p.revokeDialog(e))
	case key.Matches(msg, keys.Revoke):
		return p, tell(hostName(e.Host)+" is revoked already", nil)
	case key.Matches(msg, keys.Block):
		return p.ask(p.blockDialog(e.Host))
	case key.Matches(msg, keys.Unblock) && e.Denial != nil:
		return p.ask(p.unblockDialog(*e.Denial, hostName(e.Host)))
	case key.Matches(msg, keys.Unblock):
		return p, tell(hostName(e.Host)+" is not blocked", nil)
	}
	return p, nil
}

func (m enrolments) back() (screen, bool) {
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
	var was bool
	m.list, _, was = m.list.back()
	return m, was
}

func (m enrolments) typing() bool {
	if m.open != nil {
		return m.open.typing()
	}
	return m.dialog != nil || m.list.filter.open
}

func (m enrolments) title() string {
	if m.open != nil {
		return "Enrolments › " + m.open.title()
	}
	return "Enrolments"
}

func (m enrolments) bindings() []key.Binding {
	switch {
	case m.open != nil:
		return m.open.bindings()
	case m.dialog != nil:
		return m.dialog.bindings()
	case m.list.filter.open:
		return filtering()
	}
	return append([]key.Binding{keys.Open, m.off(keys.Block), m.off(keys.Unblock), m.off(keys.Revoke), keys.Filter, keys.Denials, keys.State, keys.Copy}, moving()...)
}

func (m enrolments) view(w, h int) string {
	if m.open != nil {
		return m.open.view(w, h)
	}
	says := map[string]string{admin.StateAll: "all hosts by name", admin.StateLive: "live hosts by name",
		admin.StateRevoked: "revoked hosts by name", admin.StateBlocked: "blocked hosts by name"}[m.state]
	none := map[string]string{admin.StateAll: "no host has enrolled", admin.StateLive: "no host is live",
		admin.StateRevoked: "no host is revoked", admin.StateBlocked: "no host is blocked"}[m.state]
	return m.draw(m.list.view(w, h, says, none, m.row), w, h)
}

func (m enrolments) row(e admin.Enrolment) tableRow {
	senders := "any"
	if e.Senders != nil {
		senders = count(int64(*e.Senders))
	}
	return tableRow{faint: !e.RevokedAt.IsZero(), alarm: e.RevokedAt.IsZero() && e.Denial != nil, cells: []string{hostName(e.Host), e.Fingerprint, e.Account, e.Org, hostState(e),
		count(e.Items), size(e.Bytes), senders, ago(m.now, e.LastSeen), ago(m.now, e.EnrolledAt)}}
}

// hostState is how a host stands in one word.
func hostState(e admin.Enrolment) string {
	switch {
	case !e.RevokedAt.IsZero():
		return "revoked"
	case e.Denial != nil:
		return "blocked"
	}
	return "live"
}
