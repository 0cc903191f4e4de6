package sqlite

import (
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (r reader) Enrolments(after *store.Enrolment, each func(store.Enrolment) bool) error {
	head, tail := r.c.enrolments("SELECT "+enrolmentColumns+" FROM enrolments"), " ORDER BY lower(host_name), host_pubkey"
	give := func(row row) bool { return each(enrolment(row)) }
	if after == nil {
		return r.list(give, span{head + " WHERE lower(host_name) >= ''" + tail, nil})
	}
	return r.list(give,
		span{head + " WHERE lower(host_name) = lower(?) AND host_pubkey > ? ORDER BY host_pubkey", []any{after.Name, after.Key}},
		span{head + " WHERE lower(host_name) > lower(?)" + tail, []any{after.Name}})
}

func (r reader) ByFingerprint(fp string, limit int) (list []store.Enrolment, err error) {
	err = r.c.query(func(row row) error { list = append(list, enrolment(row)); return nil },
		r.c.enrolments("SELECT "+enrolmentColumns+" FROM enrolments WHERE host_fp = ? ORDER BY host_pubkey LIMIT ?"), fp, limit)
	return list, err
}

func (r reader) Seen(host wire.PublicKey) (at time.Time, err error) {
	_, err = r.c.one(func(row row) { at = row.time(0) }, "SELECT at FROM last_seen WHERE host_pubkey = ?", host)
	return at, err
}

func (t *tx) SetSeen(host wire.PublicKey, at time.Time) error {
	_, err := t.c.exec("INSERT INTO last_seen VALUES (?, ?) ON CONFLICT DO UPDATE SET at = excluded.at WHERE at < excluded.at", host, at)
	return err
}

func (r reader) SenderLists(after wire.PublicKey, each func(store.SenderList) bool) error {
	return r.list(func(row row) bool {
		return each(store.SenderList{Target: row.key(0), Senders: unpack(row.bytes(1)), IAT: row.time(2)})
	}, span{"SELECT target_pubkey, senders, iat FROM sender_lists WHERE target_pubkey > ? ORDER BY target_pubkey", []any{after}})
}
