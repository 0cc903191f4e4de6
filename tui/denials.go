package tui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// denials is the deny list: every refusal that need not be for ever.
type denials struct {
	pane
	list list[admin.Denial]
	all  bool // those that are over, too
}

func newDenials(p pane) screen {
	return denials{pane: p, list: newList(p.look, func(n admin.Denial) string { return fmt.Sprint(n.ID) },
		column{title: "HOST OR CLIENT", width: 24},
		column{title: "BY", width: 11, drop: 1},
		column{title: "SINCE", width: 11, right: true, drop: 2},
		column{title: "ENDS", width: 9, right: true},
		column{title: "REASON"},
	)}
}

// fetch filters by a fingerprint where one was typed, by a client id after "client ",
// as a row has it, and else by the one host of that name.
func (m denials) fetch() fetch[admin.Denial] {
	svc, f, text := m.svc, admin.DenialFilter{All: m.all}, m.list.filter.text
	return func(ctx context.Context, p admin.Paging) (page admin.Page[admin.Denial], err error) {
		f := f
		f.Paging = p
		if id, is := strings.CutPrefix(text, "client "); is {
			f.ClientID = strings.TrimSpace(id)
		} else if text != "" {
			if f.HostFP, err = wire.ParseFingerprint(text); err != nil {
				k, err := theHost(ctx, svc, text)
				switch begin := fingerprintBegin(text); {
				case err == nil:
					f.HostFP = k.Fingerprint()
				case begin != "" && errors.Is(err, admin.ErrNotFound):
					return beginning(ctx, svc, f, begin)
				default:
					return page, err
				}
			}
		}
		return svc.Denials(ctx, f)
	}
}

// fingerprintBegin is the beginning of a fingerprint, in its digits; "" for what
// can be none.
func fingerprintBegin(text string) string {
	begin := strings.ToLower(strings.ReplaceAll(text, "-", ""))
	if strings.Trim(begin, "0123456789abcdef") != "" {
		return ""
	}
	return begin
}

// beginning is a part of the deny list without those whose fingerprint begins in
// another way: a short page, where the search goes on.
func beginning(ctx context.Context, svc admin.Service, f admin.DenialFilter, begin string) (admin.Page[admin.Denial], error) {
	page, err := svc.Denials(ctx, f)
	page.Items = slices.DeleteFunc(page.Items, func(n admin.Denial) bool {
		return !strings.HasPrefix(strings.ReplaceAll(n.HostFP, "-", ""), begin)
	})
	return page, err
}

func (m denials) load() tea.Cmd { return m.list.load(m.fetch()) }

func (m denials) update(msg tea.Msg) (screen, tea.Cmd) {
	m.pane = m.hear(msg)
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case pageMsg[admin.Denial]:
		m.list, cmd = m.list.take(msg)
	case denyMsg:
		return m, msg.act(m.pane)
	case tea.KeyMsg:
		return m.key(msg)
	}
	return m, cmd
}

func (m denials) key(msg tea.KeyMsg) (screen, tea.Cmd) {
	var cmd tea.Cmd
	if m.dialog != nil {
		m.pane, cmd, _ = m.answer(msg)
		return m, cmd
	}
	if l, cmd, handled := m.list.key(msg, m.page()); handled {
		m.list = l
		return m, cmd
	}
	n, ok := m.list.current()
	switch {
	case key.Matches(msg, keys.State):
		m.all = !m.all
		m.list, cmd = m.list.start()
	case key.Matches(msg, keys.Deny):
		m.pane, cmd = m.ask(m.denyDialog())
	case key.Matches(msg, keys.Unblock) && ok:
		m.pane, cmd = m.ask(m.unblockDialog(n, ""))
	case key.Matches(msg, keys.Copy) && ok:
		cmd = copyText(cmp.Or(n.HostFP, n.ClientID))
	}
	return m, cmd
}

func (m denials) back() (screen, bool) {
	if m.dialog != nil {
		m.dialog = nil
		return m, true
	}
	var was bool
	m.list, _, was = m.list.back()
	return m, was
}

func (m denials) typing() bool  { return m.dialog != nil || m.list.filter.open }
func (m denials) title() string { return "deny list" }

func (m denials) bindings() []key.Binding {
	switch {
	case m.dialog != nil:
		return m.dialog.bindings()
	case m.list.filter.open:
		return filtering()
	}
	return append([]key.Binding{m.off(keys.Deny), m.off(keys.Unblock), keys.Filter, keys.State, keys.Copy, keys.Back}, moving()...)
}

func (m denials) view(w, h int) string {
	says, none := "denials in force, last added first", "nobody is denied now"
	if m.all {
		says, none = "all denials, last added first", "nobody was ever denied"
	}
	return m.draw(m.list.view(w, h, says, none, m.row), w, h)
}

func (m denials) row(n admin.Denial) tableRow {
	ends := "over"
	if n.InForce {
		ends = due(m.now, n.Until)
	}
	return tableRow{faint: !n.InForce, cells: []string{whoIs(n), n.Source, ago(m.now, n.AddedAt), ends, n.Reason}}
}
