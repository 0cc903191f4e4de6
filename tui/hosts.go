package tui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (d desk) revokeDialog(e admin.Enrolment) dialog {
	a := admin.HostAction{Key: e.Key}
	return dialog{
		title: "Revoke a host for ever?",
		lines: []string{
			hostText(e.Host),
			"Its queue holds " + counted(e.Items, "item") + ".",
			"",
			"Its key can never enrol again. To refuse it for a time, block it (b).",
		},
		word:   typable(e.Host),
		reason: true,
		do: func(g dialog) tea.Cmd {
			a := a
			a.Action = d.action(strings.TrimSpace(g.why))
			return act(func(ctx context.Context) (string, error) {
				r, err := d.svc.Revoke(ctx, a)
				return hostDone(r, "revoked", "was revoked already"), err
			})
		},
	}
}

// typable is what is typed to name a host: its name, where any keyboard has it and
// it reads as what it is, or else its fingerprint.
func typable(h admin.Host) string {
	if h.Name == "" || len(h.Name) > 60 || !plain(h.Name) || strings.TrimSpace(h.Name) != h.Name {
		return h.Fingerprint
	}
	return h.Name
}

const (
	howLong   = "for how long"
	unblocked = "until unblocked"
)

// blockMsg is the yes of a block: its end counts from when it is given.
type blockMsg struct {
	host admin.Host
	for_ time.Duration // 0: until it is unblocked
	why  string
}

func (d desk) blockDialog(h admin.Host) dialog {
	return dialog{
		title: "Block a host?",
		lines: []string{hostText(h), "", "It is refused and its long polls end; its mail waits. It can be unblocked."},
		extra: []field{{label: howLong, value: "24h", hint: "1h, 24h, 7d or " + unblocked, must: true}},
		check: func(g dialog) error {
			_, err := readBlock(g.value(howLong))
			return err
		},
		reason: true,
		reads:  "; told to the host",
		do: func(g dialog) tea.Cmd {
			span, err := readBlock(g.value(howLong))
			if err != nil {
				return tell("", err)
			}
			return func() tea.Msg { return blockMsg{h, span, strings.TrimSpace(g.why)} }
		},
	}
}

// readBlock reads for how long a host is blocked.
func readBlock(s string) (time.Duration, error) {
	if s == unblocked {
		return 0, nil
	}
	d, err := readSpan(s)
	if err != nil {
		return 0, fmt.Errorf("want 1h, 24h, 7d or %s", unblocked)
	}
	return d, nil
}

func (m blockMsg) act(p pane) tea.Cmd {
	a := admin.BlockAction{HostAction: admin.HostAction{Action: p.action(m.why), Key: m.host.Key}}
	end := unblocked
	if m.for_ > 0 {
		a.Until = p.now.Add(m.for_).Truncate(time.Millisecond)
		end = "until " + stamp(a.Until)
	}
	return act(func(ctx context.Context) (string, error) {
		r, err := p.svc.Block(ctx, a)
		return hostDone(r, "blocked "+end, "was blocked so already"), err
	})
}

const (
	denyHost   = "host's fingerprint"
	denyClient = "client id"
)

// denyMsg is the yes of a denial: its end counts from when it is given.
type denyMsg struct {
	hostFP, clientID string
	for_             time.Duration // 0: until it is removed
	why              string
}

// denyDialog asks who is to be refused: nobody need be there yet.
func (d desk) denyDialog() dialog {
	return dialog{
		title: "Add to the deny list?",
		lines: []string{"Who is all that is named is refused, and its long polls end; its mail waits. It can be unblocked."},
		extra: []field{{label: denyHost, hint: "or its key, or empty"}, {label: denyClient, hint: "the whole one, or empty"},
			{label: howLong, value: "24h", hint: "1h, 24h, 7d or " + unblocked, must: true}},
		check:  func(g dialog) error { _, err := readDenial(g); return err },
		reason: true,
		reads:  "; told to the host",
		do: func(g dialog) tea.Cmd {
			m, err := readDenial(g)
			if err != nil {
				return tell("", err)
			}
			return func() tea.Msg { return m }
		},
	}
}

// readDenial reads what was filled in.
func readDenial(g dialog) (m denyMsg, err error) {
	m.clientID, m.why = g.value(denyClient), strings.TrimSpace(g.why)
	if text := g.value(denyHost); text != "" {
		m.hostFP, err = wire.ParseFingerprint(text)
		if key, bad := wire.ParsePublicKey(text); bad == nil {
			m.hostFP, err = key.Fingerprint(), nil
		}
		if err != nil {
			return m, errors.New("want a fingerprint such as 1f3a-09bc-77d0-e214, or a key")
		}
	}
	switch {
	case m.hostFP == "" && m.clientID == "":
		return m, errors.New("say who: a host, a client id or both")
	case m.clientID != "" && !relay.ValidClientID(m.clientID):
		return m, fmt.Errorf("a client id has at most %d printable characters", relay.MaxClientID)
	}
	m.for_, err = readBlock(g.value(howLong))
	return m, err
}

func (m denyMsg) act(p pane) tea.Cmd {
	a := admin.DenyAction{Action: p.action(m.why), HostFP: m.hostFP, ClientID: m.clientID}
	end := unblocked
	if m.for_ > 0 {
		a.Until = p.now.Add(m.for_).Truncate(time.Millisecond)
		end = "until " + stamp(a.Until)
	}
	return act(func(ctx context.Context) (string, error) {
		r, err := p.svc.Deny(ctx, a)
		did := "denied " + end
		if !r.Changed {
			did = "was denied so already"
		}
		return whoIs(r.Denial) + " " + did, err
	})
}

// whoIs names who a denial refuses.
func whoIs(n admin.Denial) string {
	switch {
	case n.HostFP == "":
		return "client " + n.ClientID
	case n.ClientID != "":
		return n.HostFP + " as " + n.ClientID
	}
	return n.HostFP
}

// hostDone says what became of a host.
func hostDone(r admin.HostResult, did, was string) string {
	if !r.Changed {
		did = was
	}
	return hostName(r.Enrolment.Host) + " " + r.Enrolment.Fingerprint + " " + did
}

// unblockDialog asks whether a denial is to be removed; who it names may be "".
func (d desk) unblockDialog(n admin.Denial, who string) dialog {
	a := admin.UnblockAction{Action: d.action(""), ID: n.ID, HostFP: n.HostFP, AddedAt: n.AddedAt}
	goes := "The denial goes; who it refused is let in again."
	if n.HostFP == "" {
		goes = "The denial goes; every host that comes with this credential is let in again."
	}
	return dialog{
		title: "Unblock?",
		lines: append(nonEmpty(who, whoIs(n)), "refused "+endOf(n)+" by "+n.Source+": "+n.Reason, "", goes),
		do: func(dialog) tea.Cmd {
			return act(func(ctx context.Context) (string, error) {
				n, err := d.svc.Unblock(ctx, a)
				return "unblocked " + strings.Join(nonEmpty(who, whoIs(n)), " "), err
			})
		},
	}
}

// endOf is when a denial ends.
func endOf(n admin.Denial) string {
	if n.Until.IsZero() {
		return unblocked
	}
	return "until " + stamp(n.Until)
}

func nonEmpty(list ...string) (some []string) {
	for _, s := range list {
		if s != "" {
			some = append(some, s)
		}
	}
	return some
}
