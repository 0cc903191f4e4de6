package sqlite

import (
	"errors"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// denial is a row of the deny table.
type denial struct {
	id int64
	denialText
}

type denialText struct {
	who           denied
	reason        string
	addedAt, till time.Time
}

type denied struct{ hostFP, clientID, source string }

func (r reader) denials() (list []denial, err error) {
	err = r.c.query(func(row row) error {
		list = append(list, denial{row.int(0), denialText{denied{row.text(1), row.text(2), row.text(3)}, row.text(4), row.time(5), row.time(6)}})
		return nil
	}, "SELECT id, host_fp, client_id, source, reason, added_at, until FROM deny ORDER BY id")
	return list, err
}

// lastDenial is the last number that a denial was given, as far as the store tells:
// before schema 3 it did not remember those of removed ones.
func (r reader) lastDenial() (last int64, err error) {
	_, err = r.c.one(func(row row) { last = row.int(0) },
		"SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'deny'), 0), coalesce((SELECT max(id) FROM deny), 0))")
	return last, err
}

// denials takes over the deny list. When the replaced store went on from the
// backup its list is the whole truth, its numbers and what was removed from it
// included; otherwise nobody can tell, and what either refused stays refused, for as
// long as the one that refused it longer said. A number that either store has given
// to a denial names no other one: whoever has it in mind unblocks no other host.
func (c *carry) denials() error {
	mine, err := c.t.denials()
	if err != nil {
		return err
	}
	theirs, err := c.from.denials()
	if err != nil {
		return err
	}
	last, err := c.from.lastDenial()
	if err != nil {
		return err
	}
	ours, err := c.t.lastDenial()
	if err != nil {
		return err
	}
	last = max(last, ours)
	known := map[denialText]bool{}
	for _, d := range mine {
		known[d.denialText] = true
	}
	list := theirs
	if !c.descends {
		list, last = bothDenials(mine, theirs, last)
	}
	for _, d := range list {
		if !known[d.denialText] {
			c.done.Denials++
		}
	}
	if !slices.Equal(mine, list) {
		if _, err := c.t.c.exec("DELETE FROM deny"); err != nil {
			return err
		}
		for _, d := range list {
			if _, err := c.t.c.exec("INSERT INTO deny (id, host_fp, client_id, reason, source, added_at, until) VALUES (?, ?, ?, ?, ?, ?, ?)",
				d.id, optional(d.who.hostFP), optional(d.who.clientID), d.reason, d.who.source, d.addedAt, d.till); err != nil {
				return err
			}
		}
	}
	if _, err := c.t.c.exec("DELETE FROM sqlite_sequence WHERE name = 'deny'"); err != nil {
		return err
	}
	_, err = c.t.c.exec("INSERT INTO sqlite_sequence (name, seq) VALUES ('deny', ?)", last)
	return err
}

// bothDenials are those of two stores neither of which went on from the other: under
// new numbers, after the last one that either gave, unless both have the same. It
// answers the last one that was given.
func bothDenials(mine, theirs []denial, last int64) (list []denial, _ int64) {
	if slices.Equal(mine, theirs) {
		return mine, last
	}
	named, longest := map[denied]bool{}, map[denied]time.Time{}
	for _, d := range mine {
		till, ok := longest[d.who]
		longest[d.who] = d.till
		if ok {
			longest[d.who] = later(till, d.till)
		}
	}
	for _, d := range theirs {
		named[d.who] = true
	}
	for _, d := range mine {
		if !named[d.who] {
			list = append(list, d)
		}
	}
	for _, d := range theirs {
		if till, ok := longest[d.who]; ok {
			d.till = later(d.till, till)
		}
		list = append(list, d)
	}
	for i := range list {
		last++
		list[i].id = last
	}
	return list, last
}

// later is the end that comes later; the zero time stands for none.
func later(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && a.After(b) {
		return a
	}
	return b
}

// denyLists remembers every list that the replaced store took: none is taken again.
func (c *carry) denyLists() error {
	return c.from.c.query(func(r row) error {
		l := denyListOf(r)
		was, err := c.t.DenyList(l.ID)
		if err == nil && was == l {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		c.done.DenyLists++
		return c.t.PutDenyList(l)
	}, "SELECT "+denyListColumns+" FROM deny_lists")
}
