package host

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// SentMessage is mail of this host with what is known of its way.
type SentMessage struct {
	Message
	Routes        []Route        `json:"routes"`
	Confirmations []Confirmation `json:"confirmations"`
}

// Route is where mail stands on its way to one host. State is queued,
// handed-over (the host has it, over the LAN), relay-accepted, confirmed (a
// receipt came), undelivered or unconfirmed.
type Route struct {
	Host     string    `json:"host"`
	To       []string  `json:"to"`
	State    string    `json:"state"`
	At       time.Time `json:"at"`
	Relay    string    `json:"relay_state,omitempty"` // of the relay's copy
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"` // of the last attempt
}

// Confirmation is what a recipient's host said became of it.
type Confirmation struct {
	Recipient string    `json:"recipient"`
	State     string    `json:"state"`
	At        time.Time `json:"at"`
	Note      string    `json:"note,omitempty"`
	Did       string    `json:"did,omitempty"`
}

// SentMail returns a message that was sent from here.
func (h *Host) SentMail(ctx context.Context, id string) (m SentMessage, err error) {
	err = h.db.read(ctx, func(t *tx) error {
		var env []byte
		var at int64
		found, err := t.get("SELECT envelope, at FROM messages WHERE id = ? AND origin = ''", []any{id}, &env, &at)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%s: %w was sent from here", printable(id), ErrNoMessage)
		}
		m.StoredAt = time.UnixMilli(at).UTC()
		if err := m.fill(env); err != nil {
			return err
		}
		if m.Routes, err = routesOf(t, id); err != nil {
			return err
		}
		m.Confirmations, err = confirmationsOf(t, id)
		return err
	})
	return m, err
}

// SentMails returns the newest mail that went to other hosts, newest first, without bodies.
func (h *Host) SentMails(ctx context.Context, limit int) (ms []SentMessage, err error) {
	ms = []SentMessage{}
	err = h.db.read(ctx, func(t *tx) error {
		err := t.each(`SELECT id, envelope, at FROM messages m WHERE origin = '' AND EXISTS (SELECT 1 FROM routes WHERE msg = m.id)
			ORDER BY n DESC LIMIT ?`, []any{limit}, func(scan func(...any) error) error {
			var m SentMessage
			var id string
			var env []byte
			var at int64
			if err := scan(&id, &env, &at); err != nil {
				return err
			}
			m.StoredAt = time.UnixMilli(at).UTC()
			m.fillOrSay(env)
			m.ID, m.Body = id, ""
			ms = append(ms, m)
			return nil
		})
		for i := range ms {
			if err == nil {
				ms[i].Routes, err = routesOf(t, ms[i].ID)
			}
			if err == nil {
				ms[i].Confirmations, err = confirmationsOf(t, ms[i].ID)
			}
		}
		return err
	})
	return ms, err
}

func routesOf(t *tx, id string) (routes []Route, err error) {
	routes = []Route{}
	err = t.each(`SELECT coalesce(p.name, r.fold), r.recipients, r.state, r.at, coalesce(s.state, ''), coalesce(o.attempts, 0), coalesce(o.error, '')
		FROM routes r LEFT JOIN peers p ON p.fold = r.fold LEFT JOIN relay_sent s ON s.msg = r.msg AND s.fold = r.fold
		LEFT JOIN outbox o ON o.msg = r.msg AND o.fold = r.fold WHERE r.msg = ? ORDER BY r.fold`, []any{id}, func(scan func(...any) error) error {
		var r Route
		var to []byte
		var at int64
		if err := scan(&r.Host, &to, &r.State, &at, &r.Relay, &r.Attempts, &r.Error); err != nil {
			return err
		}
		r.At = time.UnixMilli(at).UTC()
		routes = append(routes, r)
		return json.Unmarshal(to, &routes[len(routes)-1].To)
	})
	return routes, err
}

func confirmationsOf(t *tx, id string) (cs []Confirmation, err error) {
	cs = []Confirmation{}
	err = t.each("SELECT recipient, state, at, note, did FROM confirmations WHERE msg = ? ORDER BY recipient", []any{id}, func(scan func(...any) error) error {
		var c Confirmation
		var at int64
		err := scan(&c.Recipient, &c.State, &at, &c.Note, &c.Did)
		c.At = time.UnixMilli(at).UTC()
		cs = append(cs, c)
		return err
	})
	return cs, err
}

// named reports whether one of the recipients names a mailbox of the host: only
// then must there be a confirmation.
func named(recipients []byte) bool {
	var to []string
	return json.Unmarshal(recipients, &to) != nil || slices.ContainsFunc(to, hasHost)
}

// allNamed reports whether every one of them does.
func allNamed(recipients []byte) bool {
	var to []string
	return json.Unmarshal(recipients, &to) == nil && !slices.ContainsFunc(to, func(a string) bool { return !hasHost(a) })
}

func hasHost(addr string) bool {
	_, _, at := wire.SplitAddress(addr)
	return at
}
