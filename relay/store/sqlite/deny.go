package sqlite

import (
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

const denialColumns = "id, host_fp, client_id, reason, source, added_at, until"

func denialOf(row row) store.Denial {
	return store.Denial{ID: row.int(0), HostFP: row.text(1), ClientID: row.text(2), Reason: row.text(3), Source: row.text(4),
		AddedAt: row.time(5), Until: row.time(6)}
}

// ends is when a denial ends, for the indexes that sort by it: one without an end
// is behind all others.
const ends = "ifnull(until, 9223372036854775807)"

// Each way in which a denial can match is one step into an index.
const (
	deniedHost   = "SELECT " + denialColumns + " FROM deny INDEXED BY deny_host_ends WHERE host_fp = ?1 AND client_id IS NULL AND " + ends + " > ?2"
	deniedBoth   = "SELECT " + denialColumns + " FROM deny INDEXED BY deny_host_ends WHERE host_fp = ?1 AND client_id = ?3 AND " + ends + " > ?2"
	deniedClient = "SELECT " + denialColumns + " FROM deny INDEXED BY deny_client_ends WHERE host_fp IS NULL AND client_id = ?3 AND " + ends + " > ?2"
)

func (r reader) Denied(hostFP, clientID string, at time.Time) (d store.Denial, err error) {
	query, args := deniedHost+" LIMIT 1", []any{hostFP, at}
	if clientID != "" {
		query, args = deniedHost+" UNION ALL "+deniedBoth+" UNION ALL "+deniedClient+" LIMIT 1", append(args, clientID)
	}
	ok, err := r.c.one(func(row row) { d = denialOf(row) }, query, args...)
	return d, found(ok, err)
}

func (r reader) Denials(hostFP string, before int64, each func(store.Denial) bool) error {
	p := span{"SELECT " + denialColumns + " FROM deny WHERE id < ? ORDER BY id DESC", []any{from(before)}}
	if hostFP != "" {
		p = span{"SELECT " + denialColumns + " FROM deny WHERE host_fp = ? AND id < ? ORDER BY id DESC", []any{hostFP, from(before)}}
	}
	return r.list(func(row row) bool { return each(denialOf(row)) }, p)
}

func (t *tx) RemoveDenial(id int64) error {
	n, err := t.c.exec("DELETE FROM deny WHERE id = ?", id)
	return found(n > 0, err)
}

func (r reader) DenialsNaming(hostFP, clientID string, each func(store.Denial) bool) error {
	p := span{"SELECT " + denialColumns + " FROM deny INDEXED BY deny_names WHERE host_fp = ? AND client_id IS ? ORDER BY id DESC", []any{hostFP, optional(clientID)}}
	if hostFP == "" {
		p = span{"SELECT " + denialColumns + " FROM deny INDEXED BY deny_client_id WHERE host_fp IS NULL AND client_id = ? ORDER BY id DESC", []any{clientID}}
	}
	return r.list(func(row row) bool { return each(denialOf(row)) }, p)
}

func (t *tx) AddDenial(d store.Denial) error {
	_, err := t.c.exec("INSERT INTO deny (host_fp, client_id, reason, source, added_at, until) VALUES (?, ?, ?, ?, ?, ?)",
		optional(d.HostFP), optional(d.ClientID), d.Reason, d.Source, d.AddedAt, d.Until)
	return err
}

func (t *tx) PruneDenials(ended, added time.Time, limit int) (int64, error) {
	return t.c.exec(`DELETE FROM deny WHERE id IN
		(SELECT id FROM deny INDEXED BY deny_until WHERE until < ? AND added_at < ? ORDER BY until, id LIMIT ?)`, ended, added, limit)
}

const denyListColumns = "jti, source, iat, expires"

func denyListOf(row row) store.DenyList {
	return store.DenyList{ID: row.text(0), Source: row.text(1), IAT: row.time(2), Expires: row.time(3)}
}

func (r reader) DenyList(id string) (l store.DenyList, err error) {
	ok, err := r.c.one(func(row row) { l = denyListOf(row) }, "SELECT "+denyListColumns+" FROM deny_lists WHERE jti = ?", id)
	return l, found(ok, err)
}

func (r reader) NewestDenyList(source string) (l store.DenyList, err error) {
	ok, err := r.c.one(func(row row) { l = denyListOf(row) },
		"SELECT "+denyListColumns+" FROM deny_lists WHERE source = ? ORDER BY iat DESC, jti DESC LIMIT 1", source)
	return l, found(ok, err)
}

func (t *tx) PutDenyList(l store.DenyList) error {
	_, err := t.c.exec("INSERT OR REPLACE INTO deny_lists ("+denyListColumns+") VALUES (?, ?, ?, ?)", l.ID, l.Source, l.IAT, l.Expires)
	return err
}

func (t *tx) ForgetDenyLists(before time.Time) (int64, error) {
	return t.c.exec(`DELETE FROM deny_lists WHERE expires < ?
		AND iat < (SELECT max(iat) FROM deny_lists n WHERE n.source = deny_lists.source)`, before)
}
