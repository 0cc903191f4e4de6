package tui

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// host is all there is to know of one host, with the list of whom it takes mail
// from below; enter opens its queue.
type host struct {
	pane
	is   hostNow
	top  int    // first line shown
	open screen // its queue
}

// hostNow is a host as it is now.
type hostNow struct {
	e     admin.Enrolment
	list  *admin.SenderList // nil when it published none
	queue *admin.Queue      // nil when it holds nothing
	known bool              // list and queue were asked for
}

// hostMsg is what a load of a host brings.
type hostMsg struct {
	key wire.PublicKey
	now hostNow
	err error
}

func (m hostMsg) failed() error { return m.err }

func newHost(p pane, e admin.Enrolment) screen { return host{pane: p, is: hostNow{e: e}} }

func (m host) load() tea.Cmd {
	if m.open != nil {
		return m.open.load()
	}
	svc, id := m.svc, m.is.e.Key
	return ask(func(ctx context.Context) (n hostNow, err error) {
		if n.e, err = svc.Enrolment(ctx, id); err != nil {
			return n, err
		}
		switch l, err := svc.SenderList(ctx, id); {
		case err == nil:
			n.list = &l
		case !errors.Is(err, admin.ErrNotFound):
			return n, err
		}
		p, err := svc.Queues(ctx, admin.QueueFilter{Paging: admin.Paging{Limit: 1}, Target: id})
		if len(p.Items) > 0 {
			n.queue = &p.Items[0]
		}
		n.known = true
		return n, err
	}, func(n hostNow, err error) tea.Msg { return hostMsg{id, n, err} })
}

func (m host) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case hostMsg:
		if msg.err == nil && msg.key == m.is.e.Key {
			m.is = msg.now
		}
		return m, nil
	case blockMsg:
		return m, msg.act(m.pane)
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

func (m host) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	var cmd tea.Cmd
	if m.dialog != nil {
		m.pane, cmd, _ = m.answer(msg)
		return m, cmd
	}
	if top, handled := scroll(m.top, msg, len(m.lines(m.w)), m.h); handled {
		m.top = top
		return m, nil
	}
	switch {
	case key.Matches(msg, keys.Open):
		q := admin.Queue{Target: m.is.e.Host, Live: m.is.e.RevokedAt.IsZero(), Account: m.is.e.Account}
		if m.is.queue != nil {
			q = *m.is.queue
		}
		m.open, cmd = newItems(m.pane, q), reload
	case key.Matches(msg, keys.Copy):
		cmd = copyText(m.is.e.Key.String())
	default:
		m.pane, cmd = m.hostKey(msg, m.is.e)
	}
	return m, cmd
}

func (m host) back() (screen, bool) {
	if m.open != nil {
		next, was := m.open.back()
		if m.open = next; !was {
			m.open = nil
		}
		return m, true
	}
	was := m.dialog != nil
	m.dialog = nil
	return m, was
}

func (m host) typing() bool {
	if m.open != nil {
		return m.open.typing()
	}
	return m.dialog != nil
}

func (m host) title() string {
	name := clean(hostName(m.is.e.Host))
	if m.open != nil {
		return name + " › queue"
	}
	return name
}

func (m host) bindings() []key.Binding {
	switch {
	case m.open != nil:
		return m.open.bindings()
	case m.dialog != nil:
		return m.dialog.bindings()
	}
	b := []key.Binding{keys.Open, m.off(keys.Block)}
	if m.is.e.Denial != nil {
		b = append(b, m.off(keys.Unblock))
	}
	if m.is.e.RevokedAt.IsZero() {
		b = append(b, m.off(keys.Revoke))
	}
	return append(b, keys.Copy, keys.Back, keys.Up, keys.Down)
}

func (m host) view(w, h int) string {
	if m.open != nil {
		return m.open.view(w, h)
	}
	return m.draw(scrolled(m.look, m.lines(w), m.top, w, h), w, h)
}

// lines are all there is to say.
func (m host) lines(w int) []string {
	e := m.is.e
	list := []fact{
		{label: "host", text: hostName(e.Host)},
		{label: "fingerprint", text: e.Fingerprint},
		{label: "key", text: e.Key.String()},
		m.state(),
		m.session(),
		{label: "account", text: orNone(e.Account)},
		{label: "organization", text: orNone(e.Org)},
		{label: "client id", text: e.ClientID},
		{label: "authorized by", text: e.AuthorizedBy},
		{label: "owner (claim)", text: orNone(e.OwnerFP)},
		{label: "enrolled", text: when(m.now, e.EnrolledAt)},
		{label: "last seen", text: when(m.now, e.LastSeen)},
		m.queueFact(),
	}
	if e.ClientID == "" { // most relays have none
		list = slices.DeleteFunc(list, func(f fact) bool { return f.label == "client id" })
	}
	lines := append(facts(m.look, list, w), "")
	switch l := m.is.list; {
	case !m.is.known:
		return append(lines, m.look.faint(cut("loading …", w)))
	case l == nil:
		return append(lines, m.look.heading(cut("Takes mail from any host: it published no list of senders", w)))
	default:
		lines = append(lines, m.look.heading(cut(fmt.Sprintf("Takes mail from %s, as it said %s", counted(int64(l.Count), "host"), ago(m.now, l.IAT)), w)))
		for _, s := range l.Senders {
			lines = append(lines, cut("  "+hostText(s), w))
		}
		return lines
	}
}

func (m host) state() fact {
	e := m.is.e
	switch {
	case !e.RevokedAt.IsZero():
		return fact{label: "state", text: "revoked " + when(m.now, e.RevokedAt), alarm: true}
	case e.Denial != nil:
		as := ""
		if e.Denial.ClientID != "" {
			as = " as client " + e.Denial.ClientID
		}
		return fact{label: "state", text: fmt.Sprintf("blocked%s %s by %s: %s", as, endOf(*e.Denial), e.Denial.Source, e.Denial.Reason), alarm: true}
	}
	return fact{label: "state", text: "live"}
}

// session says how long its enrolment holds. One that came with an account's token
// ends with it.
func (m host) session() fact {
	e := m.is.e
	f := fact{label: "session", alarm: e.SessionOver}
	switch {
	case !e.RevokedAt.IsZero():
		f.text = "ended"
	case e.SessionOver && e.SessionEnds.IsZero():
		f.text = "none: it must enrol with an account's token"
	case e.SessionOver:
		f.text = fmt.Sprintf("over since %s: it must enrol again", when(m.now, e.SessionEnds))
	case e.SessionEnds.IsZero():
		f.text = "does not end"
	default:
		f.text = "ends " + when(m.now, e.SessionEnds)
	}
	return f
}

func (m host) queueFact() fact {
	q := m.is.queue
	if q == nil {
		if !m.is.known {
			return fact{label: "queue", text: counted(m.is.e.Items, "item")}
		}
		return fact{label: "queue", text: "empty"}
	}
	text := fmt.Sprintf("%s, %s", counted(q.Items, "item"), size(q.Bytes))
	if q.HeldItems > 0 {
		text += fmt.Sprintf(", %s held", count(q.HeldItems))
	}
	if !q.Oldest.IsZero() {
		text += ", the first waits for " + age(m.now, q.Oldest)
	}
	return fact{label: "queue", text: text}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// scroll moves the first of n lines that are shown h at a time.
func scroll(top int, msg tea.KeyMsg, n, h int) (moved int, handled bool) {
	page := max(1, h-1)
	last := max(0, n-page)
	switch {
	case key.Matches(msg, keys.Up):
		top--
	case key.Matches(msg, keys.Down):
		top++
	case key.Matches(msg, keys.PageUp):
		top -= page
	case key.Matches(msg, keys.PageDown):
		top += page
	case key.Matches(msg, keys.Top):
		top = 0
	case key.Matches(msg, keys.Bottom):
		top = last
	default:
		return top, false
	}
	return max(0, min(top, last)), true
}

// scrolled draws drawn lines from one on; the last line says which are seen,
// where it is not all of them.
func scrolled(l *look, lines []string, top, w, h int) string {
	if len(lines) <= h {
		return block(lines, w, h)
	}
	page := max(1, h-1)
	top = max(0, min(top, len(lines)-page))
	shown := append([]string{}, lines[top:top+page]...)
	return block(append(shown, l.faint(cut(fmt.Sprintf("lines %d-%d of %d", top+1, top+page, len(lines)), w))), w, h)
}
