package tui

import (
	"context"
	"fmt"
	"slices"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// quarantine is one list of what needs a person: items that were taken out of
// their queues, and pushes that were refused.
type quarantine struct {
	pane
	list  list[admin.Quarantined]
	words words
	state string // "" shows all
	open  screen // one item, or one refusal
}

func newQuarantine(d desk) screen {
	return quarantine{pane: pane{desk: d}, list: newList(d.look, quarantinedID,
		column{title: "WHAT", width: 7},
		column{title: "FROM", width: 16},
		column{title: "TO", width: 16, drop: 2},
		column{title: "SINCE", width: 7, right: true},
		column{title: "EXPIRES", width: 7, right: true, drop: 3},
		column{title: "TIMES", width: 7, right: true, drop: 4},
		column{title: "BY", width: 14, drop: 5},
		column{title: "WHY"},
		column{title: "ITEM", width: 26, drop: 6},
	)}
}

func quarantinedID(q admin.Quarantined) string {
	switch {
	case q.Item != nil:
		return "held " + refID(q.Item.ItemRef)
	case q.Refusal != nil:
		return fmt.Sprintf("refused %d", q.Refusal.ID)
	}
	return q.Kind
}

func (m quarantine) fetch() fetch[admin.Quarantined] {
	svc, w, f := m.svc, m.words, admin.QuarantineFilter{Kind: m.state}
	if w.kind != "" {
		f.Kind = w.kind
	}
	return func(ctx context.Context, p admin.Paging) (page admin.Page[admin.Quarantined], err error) {
		f := f
		f.Paging = p
		if w.from != "" {
			if f.Sender, err = theHost(ctx, svc, w.from); err != nil {
				return page, err
			}
		}
		if w.to != "" {
			if f.Target, err = theHost(ctx, svc, w.to); err != nil {
				return page, err
			}
		}
		return svc.Quarantine(ctx, f)
	}
}

func (m quarantine) load() tea.Cmd {
	if m.open != nil {
		return m.open.load()
	}
	return m.list.load(m.fetch())
}

func (m quarantine) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case pageMsg[admin.Quarantined]:
		m.list, cmd = m.list.take(msg)
		m.words = m.words.follow(m.list.filter, m.now, quarantineWords...)
		return m, cmd
	case doneMsg:
		m.list = m.list.markLeft(func(q admin.Quarantined) bool { return q.Item != nil && slices.Contains(msg.left, q.Item.ItemRef) })
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

func (m quarantine) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	var cmd tea.Cmd
	if m.dialog != nil {
		var done bool
		if m.pane, cmd, done = m.answer(msg); done {
			m.list.marks = nil
		}
		return m, cmd
	}
	if l, cmd, handled := m.list.key(msg, m.page()); handled {
		m.list = l
		if l.filter.open || l.filter.text == m.words.text {
			return m, cmd
		}
		return m.filtered(cmd)
	}
	q, ok := m.list.current()
	switch {
	case key.Matches(msg, keys.State):
		m.state = map[string]string{"": admin.QuarantineHeld, admin.QuarantineHeld: admin.QuarantineRefused}[m.state]
		m.list, cmd = m.list.start()
	case !ok:
	case key.Matches(msg, keys.Mark):
		return m.mark()
	case key.Matches(msg, keys.Open) && q.Item != nil:
		m.open, cmd = newItem(m.pane, *q.Item), reload
	case key.Matches(msg, keys.Open) && q.Refusal != nil:
		m.open = refusal{pane: m.pane, of: *q.Refusal}
	case key.Matches(msg, keys.Copy):
		cmd = copyText(quarantinedItem(q))
	default:
		return m.deed(msg)
	}
	return m, cmd
}

func quarantinedItem(q admin.Quarantined) string {
	switch {
	case q.Item != nil:
		return q.Item.ID
	case q.Refusal != nil:
		return q.Refusal.ItemID
	}
	return ""
}

// deed asks before something is done to what is chosen: release and discard are
// for held items, dismiss is for refused pushes.
func (m quarantine) deed(msg tea.KeyMsg) (screen, tea.Cmd) {
	var held []admin.Item
	var refused []relay.Refusal
	for _, q := range m.list.chosen() {
		if q.Item != nil {
			held = append(held, *q.Item)
		} else if q.Refusal != nil {
			refused = append(refused, *q.Refusal)
		}
	}
	var d dialog
	switch {
	case key.Matches(msg, keys.Release) && len(held) > 0:
		d = m.releaseDialog(held)
	case key.Matches(msg, keys.Discard) && len(held) > 0:
		d = m.discardDialog(held)
	case key.Matches(msg, keys.Dismiss) && len(refused) > 0:
		d = m.dismissDialog(refused)
		held = nil
	case key.Matches(msg, keys.Release, keys.Discard):
		return m, tell("a refused push is not here any more: it can only be dismissed (d)", nil)
	case key.Matches(msg, keys.Dismiss):
		return m, tell("a held item is not dismissed: release it (l) or discard it (x)", nil)
	default:
		return m, nil
	}
	if n := len(m.list.chosen()) - max(len(held), len(refused)); n > 0 && len(held) > 0 && len(refused) > 0 {
		d.lines = append(d.lines, refusalsStay(n))
	}
	var cmd tea.Cmd
	m.pane, cmd = m.ask(d)
	return m, cmd
}

func refusalsStay(n int) string {
	if n == 1 {
		return "1 marked refusal stays: dismiss it with d."
	}
	return counted(int64(n), "marked refusal") + " stay: dismiss them with d."
}

func (d desk) dismissDialog(list []relay.Refusal) dialog {
	a := admin.DismissAction{}
	g := dialog{title: "Dismiss " + counted(int64(len(list)), "refused push") + "?"}
	if len(list) > 1 {
		g.title = fmt.Sprintf("Dismiss %d refused pushes?", len(list))
	}
	for i, r := range list {
		a.IDs = append(a.IDs, r.ID)
		if i < shownIDs {
			g.lines = append(g.lines, fmt.Sprintf("%s from %s: %s", r.ItemID, orNone(r.Name), r.Reason))
		}
	}
	if n := len(list) - shownIDs; n > 0 {
		g.lines = append(g.lines, "… and "+count(int64(n))+" more")
	}
	g.lines = append(g.lines, "", "Nothing but this list changes. The next refusal shows again.")
	g.do = func(dialog) tea.Cmd {
		a := a
		a.Action = d.action("")
		return act(func(ctx context.Context) (string, error) {
			r, err := d.svc.Dismiss(ctx, a)
			text := fmt.Sprintf("dismissed %d of %d", r.Dismissed, len(a.IDs))
			if r.Dismissed < len(a.IDs) {
				text += ": the others are gone"
			}
			return text, err
		})
	}
	return g
}

func (m quarantine) mark() (screen, tea.Cmd) {
	l, room := m.list.mark()
	if m.list = l; !room {
		return m, tell("", fmt.Errorf("at most %d at once", relay.MaxItems))
	}
	return m, nil
}

// quarantineWords are the words of the filter.
var quarantineWords = []string{"state", "from", "to"}

func (m quarantine) filtered(cmd tea.Cmd) (screen, tea.Cmd) {
	w, err := readWords(m.list.filter.text, m.now, quarantineWords...)
	if err != nil {
		m.list.filter = m.list.filter.undone()
		return m, tea.Batch(cmd, tell("", err))
	}
	m.words = w
	return m, cmd
}

func (m quarantine) back() (screen, bool) {
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
	l, changed, was := m.list.back()
	if m.list = l; changed {
		m.words = words{}
	}
	return m, was
}

func (m quarantine) typing() bool {
	if m.open != nil {
		return m.open.typing()
	}
	return m.dialog != nil || m.list.filter.open
}

func (m quarantine) title() string {
	if m.open != nil {
		return "Quarantine › " + m.open.title()
	}
	return "Quarantine"
}

func (m quarantine) bindings() []key.Binding {
	switch {
	case m.open != nil:
		return m.open.bindings()
	case m.dialog != nil:
		return m.dialog.bindings()
	case m.list.filter.open:
		return filtering()
	}
	b := []key.Binding{keys.Open, m.off(keys.Release), m.off(keys.Discard), m.off(keys.Dismiss), m.off(keys.Mark), keys.Filter, keys.State, keys.Copy}
	return append(b, moving()...)
}

func (m quarantine) view(w, h int) string {
	if m.open != nil {
		return m.open.view(w, h)
	}
	says := map[string]string{"": "held items, last held first, then refused pushes", admin.QuarantineHeld: "held items, last held first",
		admin.QuarantineRefused: "refused pushes, the newest first"}[m.state]
	none := map[string]string{"": "nothing needs anybody", admin.QuarantineHeld: "nothing is held", admin.QuarantineRefused: "no refused pushes"}[m.state]
	if m.list.filter.open {
		says = "words: held refused from:HOST to:HOST"
	}
	return m.draw(m.list.view(w, h, says, none, m.row), w, h)
}

func (m quarantine) row(q admin.Quarantined) tableRow {
	switch {
	case q.Item != nil && q.Item.Held != nil:
		it, held := q.Item, q.Item.Held
		return tableRow{cells: []string{q.Kind, hostName(it.Sender), hostName(it.TargetHost), age(m.now, held.At), due(m.now, it.ExpiresAt), "", held.Actor, held.Reason, it.ID}}
	case q.Refusal != nil:
		r := q.Refusal
		return tableRow{cells: []string{q.Kind, orNone(r.Name), "", age(m.now, r.At), "", count(r.Count), "", r.Reason, r.ItemID}}
	}
	return tableRow{cells: []string{q.Kind}}
}
