package tui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// items lists the items that are queued for one target; one opens to all there is
// to know of it. o lists whose they are instead.
type items struct {
	pane
	queue   admin.Queue
	list    list[admin.Item]
	words   words // the filter, as it was understood
	senders bool  // the list of senders is shown
	shares  list[admin.Share]
	from    *admin.Host // only this sender's items
	open    screen      // one item
}

// itemsMsg is what a load of items brings: the list, and the queue's own numbers.
type itemsMsg struct {
	list  tea.Msg
	queue *admin.Queue // nil when it holds nothing
	err   error        // of the queue's numbers
}

func (m itemsMsg) failed() error {
	if f, ok := m.list.(failing); ok && f.failed() != nil {
		return f.failed()
	}
	return m.err
}

func newItems(p pane, q admin.Queue) screen {
	return items{pane: p, queue: q,
		list: newList(p.look, func(it admin.Item) string { return refID(it.ItemRef) },
			column{title: "SEQ", width: 17, right: true},
			column{title: "KIND", width: 8, drop: 2},
			column{title: "FROM"},
			column{title: "SIZE", width: 9, right: true, drop: 4},
			column{title: "AGE", width: 6, right: true},
			column{title: "EXPIRES", width: 9, right: true, drop: 3},
			column{title: "ID", width: 26},
		),
		shares: newList(p.look, func(s admin.Share) string { return s.Sender.Key.String() },
			column{title: "SENDER"},
			column{title: "FINGERPRINT", width: 19},
			column{title: "ITEMS", width: 9, right: true},
			column{title: "SIZE", width: 10, right: true},
		)}
}

func refID(r relay.ItemRef) string { return fmt.Sprintf("%s/%d/%s", r.Target, r.Seq, r.ID) }

// load asks for the list that is shown, and for the queue it belongs to.
func (m items) load() tea.Cmd {
	if m.open != nil {
		return m.open.load()
	}
	list := m.list.load(m.fetchItems())
	if m.senders {
		list = m.shares.load(m.fetchShares())
	}
	svc, target := m.svc, m.queue.Target.Key
	return func() tea.Msg {
		msg := itemsMsg{list: list()}
		if msg.failed() != nil {
			return msg
		}
		ctx, stop := context.WithTimeout(context.Background(), callTimeout)
		defer stop()
		p, err := svc.Queues(ctx, admin.QueueFilter{Paging: admin.Paging{Limit: 1}, Target: target})
		if msg.err = err; len(p.Items) > 0 {
			msg.queue = &p.Items[0]
		}
		return msg
	}
}

func (m items) fetchItems() fetch[admin.Item] {
	svc, w := m.svc, m.words
	f := admin.ItemFilter{Target: m.queue.Target.Key, Kind: w.kind, ID: w.id, OlderThan: w.before}
	if m.from != nil {
		f.Sender = m.from.Key
	}
	return func(ctx context.Context, p admin.Paging) (page admin.Page[admin.Item], err error) {
		f := f
		f.Paging = p
		if w.from != "" {
			if f.Sender, err = theHost(ctx, svc, w.from); err != nil {
				return page, err
			}
		}
		return svc.Items(ctx, f)
	}
}

func (m items) fetchShares() fetch[admin.Share] {
	svc, target := m.svc, m.queue.Target.Key
	return func(ctx context.Context, p admin.Paging) (admin.Page[admin.Share], error) {
		return svc.Shares(ctx, admin.ShareFilter{Paging: p, Target: target})
	}
}

func (m items) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case itemsMsg:
		return m.take(msg)
	case doneMsg:
		m.list = m.list.markLeft(func(it admin.Item) bool { return slices.Contains(msg.left, it.ItemRef) })
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

func (m items) take(msg itemsMsg) (screen, tea.Cmd) {
	switch {
	case msg.failed() != nil:
	case msg.queue != nil:
		m.queue = *msg.queue
	default: // nothing is left in it
		m.queue.Items, m.queue.Bytes, m.queue.HeldItems, m.queue.HeldBytes, m.queue.Oldest = 0, 0, 0, 0, time.Time{}
	}
	var cmd tea.Cmd
	switch l := msg.list.(type) {
	case pageMsg[admin.Item]:
		m.list, cmd = m.list.take(l)
		m.words = m.words.follow(m.list.filter, m.now, itemWords...)
	case pageMsg[admin.Share]:
		m.shares, cmd = m.shares.take(l)
	}
	return m, cmd
}

func (m items) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	if m.dialog != nil {
		var cmd tea.Cmd
		var done bool
		if m.pane, cmd, done = m.answer(msg); done {
			m.list.marks = nil
		}
		return m, cmd
	}
	if m.senders {
		return m.senderKey(msg)
	}
	if l, cmd, handled := m.list.key(msg, m.page()); handled {
		m.list = l
		if l.filter.open || l.filter.text == m.words.text {
			return m, cmd
		}
		return m.filtered(cmd)
	}
	var cmd tea.Cmd
	it, ok := m.list.current()
	switch {
	case key.Matches(msg, keys.Senders):
		m.senders, cmd = true, reload
	case key.Matches(msg, keys.Mark):
		return m.mark()
	case key.Matches(msg, keys.Hold) && ok:
		m.pane, cmd = m.ask(m.holdDialog(m.list.chosen()))
	case key.Matches(msg, keys.Open) && ok:
		m.open, cmd = newItem(m.pane, it), reload
	case key.Matches(msg, keys.Copy) && ok:
		cmd = copyText(it.ID)
	}
	return m, cmd
}

func (m items) mark() (screen, tea.Cmd) {
	l, room := m.list.mark()
	if m.list = l; !room {
		return m, tell("", fmt.Errorf("at most %d items at once", relay.MaxItems))
	}
	return m, nil
}

// itemWords are the words of the filter.
var itemWords = []string{"kind", "from", "older", "id"}

// filtered takes what was typed as the filter.
func (m items) filtered(cmd tea.Cmd) (screen, tea.Cmd) {
	w, err := readWords(m.list.filter.text, m.now, itemWords...)
	if err != nil {
		m.list.filter = m.list.filter.undone()
		return m, tea.Batch(cmd, tell("", err))
	}
	m.words = w
	return m, cmd
}

func (m items) senderKey(msg tea.KeyMsg) (screen, tea.Cmd) {
	if t, handled := m.shares.table.move(msg, m.page()); handled {
		m.shares.table = t
		if more, wanted := m.shares.more(); wanted && t.atEnd() {
			m.shares.pages = more
			return m, reload
		}
		return m, nil
	}
	if s, ok := m.shares.current(); ok && key.Matches(msg, keys.Open) {
		m.from, m.senders = &s.Sender, false
		var cmd tea.Cmd
		m.list, cmd = m.list.start()
		return m, cmd
	}
	if key.Matches(msg, keys.Senders) {
		m.senders = false
		return m, reload
	}
	return m, nil
}

func (m items) back() (screen, bool) {
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
	case m.senders:
		m.senders = false
		return m, true
	}
	l, changed, was := m.list.back()
	if m.list = l; changed {
		m.words = words{}
	}
	if !was && m.from != nil {
		m.from, was = nil, true
		m.list, _ = m.list.start()
	}
	return m, was
}

func (m items) typing() bool {
	if m.open != nil {
		return m.open.typing()
	}
	return m.dialog != nil || m.list.filter.open
}

func (m items) title() string {
	name := clean(hostName(m.queue.Target))
	if m.open != nil {
		return name + " › " + m.open.title()
	}
	return name
}

func (m items) bindings() []key.Binding {
	switch {
	case m.open != nil:
		return m.open.bindings()
	case m.dialog != nil:
		return m.dialog.bindings()
	case m.senders:
		return append([]key.Binding{keys.Open, keys.Senders, keys.Back}, moving()...)
	case m.list.filter.open:
		return filtering()
	}
	return append([]key.Binding{keys.Open, m.off(keys.Hold), m.off(keys.Mark), keys.Filter, keys.Senders, keys.Copy, keys.Back}, moving()...)
}

func (m items) view(w, h int) string {
	if m.open != nil {
		return m.open.view(w, h)
	}
	head := m.head(w)
	rest := max(0, h-len(head))
	says, list := "", ""
	switch {
	case m.senders:
		list = m.shares.view(w, rest, "whose items they are; enter shows one sender's", "no sender has anything here", m.shareRow)
	default:
		if m.from != nil {
			says = "only from " + clean(hostName(*m.from)) + " (esc: all)"
		}
		if m.list.filter.open {
			says = joinNonEmpty(says, "envelope receipt expired from:HOST older:2h id:ITEM")
		}
		if says == "" {
			says = "queued items, the next one to be pulled first"
		}
		none := "nothing is queued"
		if m.from != nil {
			none = "nothing is queued from " + hostName(*m.from)
		} else if m.queue.HeldItems > 0 {
			none += "; what is held stands in Quarantine (4)"
		}
		list = m.list.view(w, rest, says, none, m.row)
	}
	return m.draw(block(append(head, strings.Split(list, "\n")...), w, h), w, h)
}

// head is what there is to know of the queue, in two lines.
func (m items) head(w int) []string {
	q := m.queue
	a := fmt.Sprintf("%s  %s", hostName(q.Target), q.Target.Fingerprint)
	if q.Account != "" {
		a += "  account " + q.Account
	}
	if !q.Live {
		a += "  NOT ENROLLED: nobody pulls this"
	}
	b := fmt.Sprintf("acked %d · %s, %s", q.Acked, counted(q.Items, "item"), size(q.Bytes))
	if q.HeldItems > 0 {
		b += fmt.Sprintf(", %s held", count(q.HeldItems))
	}
	if !q.Oldest.IsZero() {
		b += ", first waits " + age(m.now, q.Oldest)
	}
	if head := fmt.Sprintf(" · head %d", q.Head); width(b+head) <= w { // half a number is none
		b += head
	}
	return []string{m.look.strong(cut(a, w)), cut(b, w)}
}

func (m items) row(it admin.Item) tableRow {
	return tableRow{cells: []string{fmt.Sprint(it.Seq), it.Kind, hostName(it.Sender), size(it.Bytes), age(m.now, it.AcceptedAt), due(m.now, it.ExpiresAt), it.ID}}
}

func (m items) shareRow(s admin.Share) tableRow {
	return tableRow{cells: []string{hostName(s.Sender), s.Sender.Fingerprint, count(s.Items), size(s.Bytes)}}
}

// due is how long there is until a time.
func due(now, at time.Time) string {
	switch {
	case at.IsZero():
		return "never"
	case now.IsZero():
		return "-"
	case !at.After(now):
		return "now"
	}
	return span(at.Sub(now))
}
