package tui

import (
	"context"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/store"
)

// queues lists the queues that hold something; one opens to its items.
type queues struct {
	pane
	list list[admin.Queue]
	sort store.QueueOrder
	open screen // the items of one queue
}

func newQueues(d desk) screen {
	return queues{pane: pane{desk: d}, sort: store.ByDepth, list: newList(d.look, queueID,
		column{title: "TARGET"},
		column{title: "FINGERPRINT", width: 19},
		column{title: "HOST", width: 7},
		column{title: "ACCOUNT", width: 16, drop: 2},
		column{title: "ITEMS", width: 7, right: true},
		column{title: "HELD", width: 6, right: true},
		column{title: "SIZE", width: 9, right: true},
		column{title: "OLDEST", width: 7, right: true},
		column{title: "HEAD", width: 17, right: true, drop: 4},
		column{title: "ACKED", width: 17, right: true, drop: 3},
	)}
}

func queueID(q admin.Queue) string { return q.Target.Key.String() }

func (m queues) fetch() fetch[admin.Queue] {
	svc, f := m.svc, admin.QueueFilter{Text: m.list.filter.text, Sort: m.sort}
	return func(ctx context.Context, p admin.Paging) (admin.Page[admin.Queue], error) {
		f.Paging = p
		return svc.Queues(ctx, f)
	}
}

func (m queues) load() tea.Cmd {
	if m.open != nil {
		return m.open.load()
	}
	return m.list.load(m.fetch())
}

func (m queues) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case pageMsg[admin.Queue]:
		m.list, cmd = m.list.take(msg)
		return m, cmd
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

func (m queues) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	if l, cmd, handled := m.list.key(msg, m.page()); handled {
		m.list = l
		return m, cmd
	}
	var cmd tea.Cmd
	q, ok := m.list.current()
	switch {
	case key.Matches(msg, keys.Sort):
		m.sort = map[store.QueueOrder]store.QueueOrder{store.ByDepth: store.ByBytes, store.ByBytes: store.ByOldest, store.ByOldest: store.ByDepth}[m.sort]
		m.list, cmd = m.list.start()
	case key.Matches(msg, keys.Open) && ok:
		m.open, cmd = newItems(m.pane, q), reload
	case key.Matches(msg, keys.Copy) && ok:
		cmd = copyText(q.Target.Key.String())
	}
	return m, cmd
}

func (m queues) back() (screen, bool) {
	if m.open != nil {
		next, was := m.open.back()
		if m.open = next; !was {
			m.open = nil
		}
		return m, true
	}
	var was bool
	m.list, _, was = m.list.back()
	return m, was
}

func (m queues) typing() bool {
	if m.open != nil {
		return m.open.typing()
	}
	return m.list.filter.open
}

func (m queues) title() string {
	if m.open != nil {
		return "Queues › " + m.open.title()
	}
	return "Queues"
}

func (m queues) bindings() []key.Binding {
	if m.open != nil {
		return m.open.bindings()
	}
	if m.list.filter.open {
		return filtering()
	}
	return append([]key.Binding{keys.Open, keys.Filter, keys.Sort, keys.Copy}, moving()...)
}

func (m queues) view(w, h int) string {
	if m.open != nil {
		return m.open.view(w, h)
	}
	none := "no queue holds anything"
	if m.sort == store.ByBytes {
		none = "no queue holds 1 MiB"
	}
	return m.list.view(w, h, queueOrders[m.sort], none, m.row)
}

var queueOrders = map[store.QueueOrder]string{
	store.ByDepth:  "queues with the most items first",
	store.ByBytes:  "queues of 1 MiB and more, the largest first",
	store.ByOldest: "queues whose mail waits longest first",
}

func (m queues) row(q admin.Queue) tableRow {
	name, state, held := hostName(q.Target), "", ""
	if !q.Live {
		state = "REVOKED"
	}
	if q.HeldItems > 0 {
		held = count(q.HeldItems)
	}
	return tableRow{alarm: !q.Live, cells: []string{name, q.Target.Fingerprint, state, q.Account, count(q.Items), held, size(q.Bytes),
		age(m.now, q.Oldest), count(q.Head), count(q.Acked)}}
}

// hostName is the name of a host, or a word where it has none.
func hostName(h admin.Host) string {
	if h.Name == "" {
		return "(no name)"
	}
	return h.Name
}
