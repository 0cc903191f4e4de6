package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Errors of the mailbox.
var (
	ErrNoMessage = errors.New("no such message")
	ErrBadName   = errors.New("not a mailbox name: want 2 to 40 lower-case letters, digits or dashes, or owner")
	ErrBadMail   = errors.New("not mail")
)

// States of a delivery, rising.
const (
	StateDelivered = "delivered"
	StateNotified  = "notified"
	StateRead      = "read"
	StateAcked     = "acked"
)

var stateRank = map[string]int{StateDelivered: 1, StateNotified: 2, StateRead: 3, StateAcked: 4}

// Mailbox is a named box of this host.
type Mailbox struct {
	Name  string   `json:"name"`
	Roles []string `json:"roles"`
	Open  int64    `json:"open"` // messages not acked
}

// Message is a message as it stands in one mailbox, or as it was sent.
type Message struct {
	ID         string    `json:"id"`
	From       string    `json:"from"`
	To         []string  `json:"to"`
	Thread     string    `json:"thread,omitempty"`
	ReplyTo    string    `json:"reply_to,omitempty"`
	Kind       string    `json:"kind"`
	Subject    string    `json:"subject"`
	Body       string    `json:"body,omitempty"`
	NeedsReply bool      `json:"needs_reply"`
	Refs       []string  `json:"refs,omitempty"`
	SentAt     string    `json:"sent_at"`
	StoredAt   time.Time `json:"stored_at"`
	Mailbox    string    `json:"mailbox,omitempty"`
	State      string    `json:"state,omitempty"` // of the delivery
	Note       string    `json:"note,omitempty"`
	Did        string    `json:"did,omitempty"`
}

// ensureMailbox makes a mailbox that is not there. made says that somebody here
// wants it; else mail for it came, which must not give it the mail of a bare
// name: anybody who is paired could have sent that.
func ensureMailbox(t *tx, name string, made bool) error {
	_, err := t.exec(`INSERT INTO mailboxes (name, created_at, made) VALUES (?1, ?2, ?3)
		ON CONFLICT (name) DO UPDATE SET made = 1 WHERE ?3 AND NOT made`, name, t.now, made)
	return err
}

// AddMailbox makes a mailbox, or gives one that is there these roles.
func (h *Host) AddMailbox(ctx context.Context, name string, roles []string) error {
	if !wire.ValidAgentName(name) {
		return fmt.Errorf("%q: %w", name, ErrBadName)
	}
	for _, r := range roles {
		if !wire.ValidAgentName(r) {
			return fmt.Errorf("role %q: %w", r, ErrBadName)
		}
	}
	list := ""
	if len(roles) > 0 {
		list = " " + strings.Join(roles, " ") + " "
	}
	return h.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`INSERT INTO mailboxes (name, roles, created_at, made) VALUES (?1, ?2, ?3, 1)
			ON CONFLICT (name) DO UPDATE SET made = 1, roles = iif(?2 = '', roles, ?2)`, name, list, t.now)
		return err
	})
}

// Mailboxes lists this host's mailboxes.
func (h *Host) Mailboxes(ctx context.Context) (boxes []Mailbox, err error) {
	boxes = []Mailbox{}
	err = h.db.read(ctx, func(t *tx) error {
		return t.each(`SELECT name, roles, (SELECT count(*) FROM deliveries d WHERE d.mailbox = m.name AND state <> 'acked')
			FROM mailboxes m ORDER BY name`, nil, func(scan func(...any) error) error {
			var m Mailbox
			var roles string
			err := scan(&m.Name, &roles, &m.Open)
			m.Roles = strings.Fields(roles)
			boxes = append(boxes, m)
			return err
		})
	})
	return boxes, err
}

// Inbox returns a page of a mailbox in the order of arrival, after the message
// of id after ("" from the start); those that are acked only with all. Bodies
// are left out. It returns ErrNoMessage when there is no message after.
func (h *Host) Inbox(ctx context.Context, mailbox, after string, all bool, limit int) (msgs []Message, err error) {
	if !wire.ValidAgentName(mailbox) {
		return nil, fmt.Errorf("%q: %w", mailbox, ErrBadName)
	}
	msgs = []Message{}
	err = h.db.read(ctx, func(t *tx) error {
		var from int64
		if after != "" {
			found, err := t.get("SELECT n FROM messages WHERE id = ?", []any{after}, &from)
			if err == nil && !found {
				err = fmt.Errorf("%s: %w", printable(after), ErrNoMessage)
			}
			if err != nil {
				return err
			}
		}
		cond := "AND d.state <> 'acked'"
		if all {
			cond = ""
		}
		return t.each(`SELECT m.id, m.envelope, m.at, d.state, d.note, d.did FROM deliveries d JOIN messages m ON m.id = d.msg
			WHERE d.mailbox = ? AND d.n > ? `+cond+` ORDER BY d.n LIMIT ?`, []any{mailbox, from, limit},
			func(scan func(...any) error) error {
				m := Message{Mailbox: mailbox}
				var id string
				var env []byte
				var at int64
				if err := scan(&id, &env, &at, &m.State, &m.Note, &m.Did); err != nil {
					return err
				}
				m.StoredAt = time.UnixMilli(at).UTC()
				m.fillOrSay(env)
				m.ID, m.Body = id, ""
				msgs = append(msgs, m)
				return nil
			})
	})
	return msgs, err
}

// fill takes over what the envelope says.
func (m *Message) fill(env []byte) error {
	e, err := storedEnvelope(env)
	if err != nil {
		return err
	}
	m.ID, m.From, m.To, m.Thread, m.Kind, m.Subject, m.Body = e.ID, e.From, e.To, e.Thread, e.Kind, e.Subject, e.Body
	m.NeedsReply, m.Refs, m.SentAt = e.NeedsReply, e.Refs, e.TS
	if e.ReplyTo != nil {
		m.ReplyTo = *e.ReplyTo
	}
	return nil
}

// fillOrSay is fill for lists: one that can't be read says so, and the others
// are shown.
func (m *Message) fillOrSay(env []byte) {
	if m.fill(env) != nil {
		m.Subject, m.To = "("+errUnreadable.Error()+")", []string{}
	}
}

// storedEnvelope reads an envelope that this host has stored. Its shape was
// checked before; one that came sealed has its body open beside the sealed
// part, which no envelope on its way may have.
func storedEnvelope(env []byte) (e wire.Envelope, err error) {
	if err = wire.Decode(env, &e); err != nil {
		err = fmt.Errorf("stored message: %w", err)
	}
	return e, err
}

// Read returns a message of a mailbox with its body and marks it read.
func (h *Host) Read(ctx context.Context, mailbox, id string) (m Message, err error) {
	err = h.db.write(ctx, func(t *tx) (err error) {
		m, err = h.advance(t, mailbox, id, StateRead, "", "")
		return err
	})
	h.wake()
	return m, err
}

// Notify marks a message as shown to its mailbox's owner.
func (h *Host) Notify(ctx context.Context, mailbox, id string) error {
	err := h.db.write(ctx, func(t *tx) error {
		_, err := h.advance(t, mailbox, id, StateNotified, "", "")
		return err
	})
	h.wake()
	return err
}

// Ack marks a message as done with, with a note and what was done ("" for none).
func (h *Host) Ack(ctx context.Context, mailbox, id, note, did string) (m Message, err error) {
	if wire.UTF16Len(note) > 500 || wire.UTF16Len(did) > 200 {
		return Message{}, fmt.Errorf("%w: a note has at most 500 characters, what was done 200", ErrBadMail)
	}
	err = h.db.write(ctx, func(t *tx) (err error) {
		m, err = h.advance(t, mailbox, id, StateAcked, note, did)
		return err
	})
	h.wake()
	return m, err
}

// advance moves a delivery up to state, never down, and owes the sending host
// a receipt for it in the same transaction. To reach a state again changes nothing.
func (h *Host) advance(t *tx, mailbox, id, state, note, did string) (Message, error) {
	m := Message{Mailbox: mailbox}
	var env []byte
	var at int64
	var origin string
	found, err := t.get(`SELECT m.envelope, m.at, m.origin, d.state, d.note, d.did FROM deliveries d JOIN messages m ON m.id = d.msg
		WHERE d.msg = ? AND d.mailbox = ?`, []any{id, mailbox}, &env, &at, &origin, &m.State, &m.Note, &m.Did)
	if err != nil {
		return Message{}, err
	}
	if !found {
		return Message{}, fmt.Errorf("%s in the mailbox %s: %w", printable(id), mailbox, ErrNoMessage)
	}
	m.StoredAt = time.UnixMilli(at).UTC()
	if err := m.fill(env); err != nil {
		return Message{}, err
	}
	m.ID = id
	if stateRank[state] <= stateRank[m.State] {
		return m, nil
	}
	m.State, m.Note, m.Did = state, note, did
	_, err = t.exec("UPDATE deliveries SET state = ?, at = ?, note = ?, did = ? WHERE msg = ? AND mailbox = ?", state, t.now, note, did, id, mailbox)
	if err == nil && origin != "" {
		err = h.oweReceipt(t, id, origin, wire.Receipt{
			Msg: wireID(id), Recipient: mailbox + "@" + h.Name(), State: state, At: time.UnixMilli(t.now), Note: note, Did: did,
		}, mailbox, false)
	}
	return m, err
}

// wireID is the id of a message in its envelope: see placeFor.
func wireID(id string) string {
	id, _, _ = strings.Cut(id, "@")
	return id
}

// storeMessage stores an envelope under id with its body open and delivers it to
// the mailboxes. Origin is the fold of the host it came from, "" for this one.
func (h *Host) storeMessage(t *tx, id string, e wire.Envelope, opened []byte, origin string, mailboxes []string, overRelay bool) error {
	_, err := t.exec("INSERT INTO messages (id, origin, sender, subject, kind, at, envelope) VALUES (?, ?, ?, ?, ?, ?, ?)",
		id, origin, e.From, e.Subject, e.Kind, t.now, opened)
	if err != nil {
		return err
	}
	for _, box := range mailboxes {
		if err := ensureMailbox(t, box, false); err != nil {
			return err
		}
		if _, err := t.exec("INSERT INTO deliveries (msg, mailbox, n, state, at) VALUES (?1, ?2, (SELECT n FROM messages WHERE id = ?1), 'delivered', ?3)", id, box, t.now); err != nil {
			return err
		}
		if origin == "" {
			continue
		}
		err := h.oweReceipt(t, id, origin, wire.Receipt{
			Msg: e.ID, Recipient: box + "@" + h.Name(), State: StateDelivered, At: time.UnixMilli(t.now),
		}, box, overRelay)
		if err != nil {
			return err
		}
	}
	return nil
}

// alert leaves a message of the host itself in a mailbox.
func (h *Host) alert(t *tx, mailbox, subject, body string) error {
	from := "agentmbx@" + h.Name()
	e := wire.Envelope{
		V: 3, ID: wire.NewID(time.UnixMilli(t.now)), TS: wire.FormatTime(time.UnixMilli(t.now)), From: from,
		To: []string{mailbox + "@" + h.Name()}, Kind: "alert", Subject: cutSubject(subject), Body: body,
		Refs: []string{}, Meta: emptyMeta(),
	}
	env, err := wire.Marshal(e)
	if err != nil {
		return err
	}
	return h.storeMessage(t, e.ID, e, env, "", []string{mailbox}, false)
}

func emptyMeta() wire.Meta {
	return wire.Meta{Mentions: []string{}, Directives: []string{}, Tags: []string{}, TaskRefs: []string{}}
}

// cutSubject makes a subject of at most 200 UTF-16 units without control characters.
func cutSubject(s string) string {
	s = printable(s)
	for wire.UTF16Len(s) > 200 {
		r := []rune(s)
		s = string(r[:len(r)-1])
	}
	return s
}

// MailboxesWith names the mailboxes here that have a message.
func (h *Host) MailboxesWith(ctx context.Context, id string) (boxes []string, err error) {
	err = h.db.read(ctx, func(t *tx) error {
		return t.each("SELECT mailbox FROM deliveries WHERE msg = ? ORDER BY mailbox", []any{id}, func(scan func(...any) error) error {
			var box string
			err := scan(&box)
			boxes = append(boxes, box)
			return err
		})
	})
	return boxes, err
}
