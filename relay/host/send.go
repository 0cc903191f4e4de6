package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Draft is mail to be sent. From is a mailbox of this host, "" for owner. To
// holds name@host, a bare name (the mailbox of that name here, else whichever
// peers have one), role:NAME or * for everyone.
type Draft struct {
	From       string
	To         []string
	Subject    string
	Body       string
	Kind       string // "" for message
	Thread     string // "" for a new one, or that of ReplyTo
	ReplyTo    string
	NeedsReply bool
	Refs       []string
	Tags       []string
}

// Sent says where mail is going.
type Sent struct {
	ID    string   `json:"id"`
	Local []string `json:"local"` // mailboxes of this host, already delivered
	Hosts []string `json:"hosts"` // paired hosts it waits for
}

// Send stores mail and queues it for every host it is for. When it returns nil
// the mail is durable. It returns an error that matches ErrBadMail for mail
// that can't be sent as it is, ErrNoPeer for a host that is not paired.
func (h *Host) Send(ctx context.Context, d Draft) (s Sent, err error) {
	if d.From == "" {
		d.From = "owner"
	}
	if !wire.ValidAgentName(d.From) {
		return Sent{}, fmt.Errorf("%w: from %q: %w", ErrBadMail, d.From, ErrBadName)
	}
	if len(d.To) == 0 {
		return Sent{}, fmt.Errorf("%w: it is for nobody", ErrBadMail)
	}
	if len(d.Body) > wire.MaxPlainBody {
		return Sent{}, fmt.Errorf("%w: %w", ErrBadMail, wire.ErrBodyTooLarge)
	}
	err = h.db.write(ctx, func(t *tx) (err error) {
		s, err = h.send(t, d)
		return err
	})
	if err == nil {
		h.wake()
	}
	return s, err
}

func (h *Host) send(t *tx, d Draft) (Sent, error) {
	plan, err := h.route(t, d)
	if err != nil {
		return Sent{}, err
	}
	e := h.compose(t, d, plan)
	if e.Thread == "" {
		if e.Thread, err = threadOf(t, d.ReplyTo, e.ID); err != nil {
			return Sent{}, err
		}
	}
	// Signing checks the whole shape; the copy that is kept has its body open.
	opened, err := wire.SignEnvelope(e, h.keyring().key, h.Name())
	var shape *wire.ShapeError
	if errors.As(err, &shape) {
		return Sent{}, fmt.Errorf("%w: its %s is over a limit or has a form that mail can't have", ErrBadMail, shape.What)
	}
	if err != nil {
		return Sent{}, err
	}
	if err := ensureMailbox(t, d.From, true); err != nil {
		return Sent{}, err
	}
	if err := h.storeMessage(t, e.ID, e, opened, "", plan.local, false); err != nil {
		return Sent{}, err
	}
	s := Sent{ID: e.ID, Local: plan.local, Hosts: []string{}}
	for _, p := range plan.hosts {
		to, err := json.Marshal(plan.recipients[p.fold])
		if err != nil {
			return Sent{}, err
		}
		if _, err := t.exec("INSERT INTO routes (msg, fold, recipients, state, at) VALUES (?, ?, ?, 'queued', ?)", e.ID, p.fold, string(to), t.now); err != nil {
			return Sent{}, err
		}
		if _, err := t.exec("INSERT INTO outbox (msg, fold, queued_at, next_at) VALUES (?, ?, ?, ?)", e.ID, p.fold, t.now, t.now); err != nil {
			return Sent{}, err
		}
		s.Hosts = append(s.Hosts, p.name)
	}
	return s, nil
}

func (h *Host) compose(t *tx, d Draft, plan plan) wire.Envelope {
	now := time.UnixMilli(t.now)
	e := wire.Envelope{
		V: 3, ID: wire.NewID(now), TS: wire.FormatTime(now), From: d.From + "@" + h.Name(), To: d.To,
		Thread: d.Thread, Kind: d.Kind, Subject: d.Subject, Body: d.Body, NeedsReply: d.NeedsReply,
		Refs: d.Refs, Meta: emptyMeta(),
	}
	if e.Kind == "" {
		e.Kind = "message"
	}
	if e.Refs == nil {
		e.Refs = []string{}
	}
	if d.Tags != nil {
		e.Meta.Tags = d.Tags
	}
	if d.ReplyTo != "" {
		id := d.ReplyTo
		if wire.ValidID(wireID(id)) {
			id = wireID(id)
		}
		e.ReplyTo = &id
	}
	e.Meta.LocalNames = plan.localNames
	return e
}

// threadOf is the thread of the message that is answered, else a new one.
func threadOf(t *tx, replyTo, id string) (string, error) {
	var env []byte
	found, err := t.get("SELECT envelope FROM messages WHERE id = ?", []any{replyTo}, &env)
	if err != nil || !found {
		return id, err
	}
	e, err := storedEnvelope(env)
	if err != nil || e.Thread == "" {
		return id, err
	}
	return e.Thread, nil
}

// plan is where a message goes: the mailboxes here, and the hosts with the
// recipients that led to each. Several recipients on one host are one target.
type plan struct {
	local      []string
	localNames []string // bare names that were meant for this host
	hosts      []*peer
	recipients map[string][]string
}

// route resolves every recipient to mailboxes here and to concrete hosts: a
// relay is never asked to.
func (h *Host) route(t *tx, d Draft) (plan, error) {
	p := plan{local: []string{}, recipients: map[string][]string{}}
	var peers []*peer
	everyPeer := func(to string) error {
		if peers == nil {
			var err error
			if peers, err = allPeers(t); err != nil {
				return err
			}
		}
		for _, peer := range peers {
			p.add(peer, to)
		}
		return nil
	}
	for _, to := range d.To {
		name, host, at := wire.SplitAddress(to)
		role, isRole := strings.CutPrefix(to, "role:")
		var err error
		switch {
		case at:
			err = h.routeTo(t, &p, to, name, host)
		case to == "*":
			if err = everyPeer(to); err == nil {
				err = p.addLocal(t, "SELECT name FROM mailboxes WHERE made AND name <> ? ORDER BY name", d.From)
			}
		case isRole && wire.ValidAgentName(role):
			if err = everyPeer(to); err == nil {
				err = p.addLocal(t, "SELECT name FROM mailboxes WHERE made AND instr(roles, ?) ORDER BY name", " "+role+" ")
			}
		case wire.ValidAgentName(to):
			before := len(p.local)
			if err = p.addLocal(t, "SELECT name FROM mailboxes WHERE made AND name = ?", to); err != nil {
				break
			}
			if len(p.local) > before || slices.Contains(p.local, to) {
				if !slices.Contains(p.localNames, to) {
					p.localNames = append(p.localNames, to)
				}
			} else {
				err = everyPeer(to)
			}
		default:
			err = fmt.Errorf("%w: %q is not a recipient: want name@host, a name, role:NAME or *", ErrBadMail, printable(to))
		}
		if err != nil {
			return plan{}, err
		}
	}
	if len(p.local) == 0 && len(p.hosts) == 0 {
		return plan{}, fmt.Errorf("%w: nobody here or at a paired host can be meant by %s", ErrNoPeer, printable(strings.Join(d.To, ", ")))
	}
	return p, nil
}

// routeTo resolves name@host.
func (h *Host) routeTo(t *tx, p *plan, to, name, host string) error {
	if !wire.ValidAgentName(name) || !wire.ValidHostName(host) {
		return fmt.Errorf("%w: %q is not an address: want name@host", ErrBadMail, printable(to))
	}
	if wire.FoldName(host) == h.fold() {
		if !slices.Contains(p.local, name) {
			p.local = append(p.local, name)
		}
		return nil
	}
	peer, err := findPeer(t, wire.FoldName(host))
	if err != nil {
		return err
	}
	if peer == nil {
		return fmt.Errorf("%s: %w", host, ErrNoPeer)
	}
	p.add(peer, to)
	return nil
}

func (p *plan) add(peer *peer, to string) {
	if p.recipients[peer.fold] == nil {
		p.hosts = append(p.hosts, peer)
	}
	p.recipients[peer.fold] = append(p.recipients[peer.fold], to)
}

func (p *plan) addLocal(t *tx, query, arg string) error {
	return t.each(query, []any{arg}, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		if !slices.Contains(p.local, name) {
			p.local = append(p.local, name)
		}
		return err
	})
}
