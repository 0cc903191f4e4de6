package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	driverpkg "modernc.org/sqlite"
)

// naive is the store a first version would have: database/sql on one
// connection, prepared statements, every change written where it happens, and
// a transaction of its own for each item. Schema, durability and the driver's
// settings are the real store's, and so are the rules, which run in package
// relay either way. It holds what pushes and acks ask for; the rest of
// store.Store is nil and never called.
type naive struct {
	store.Store
	db    *sql.DB
	dir   string
	stmts map[string]*sql.Stmt
}

var naiveQueries = map[string]string{
	"info":      "SELECT k, v FROM meta",
	"enrolment": "SELECT host_name, owner_fp, ifnull(account, ''), ifnull(org, ''), authorized_by, enrolled_at, revoked_at FROM enrolments WHERE host_pubkey = ?",
	"denied": `SELECT reason FROM deny WHERE host_fp = ?1 AND (client_id IS NULL OR client_id = ?2) AND (until IS NULL OR until > ?3)
		UNION ALL SELECT reason FROM deny WHERE host_fp IS NULL AND client_id = ?2 AND (until IS NULL OR until > ?3) LIMIT 1`,
	"accepts": "SELECT senders FROM sender_lists WHERE target_pubkey = ?",
	"dedup":   "SELECT wire_hash, seq, accepted_at FROM dedup WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ?",
	"queue":   "SELECT next_seq, items, bytes FROM seqs WHERE target_pubkey = ?",
	"share":   "SELECT items, bytes FROM shares WHERE target_pubkey = ? AND sender_pubkey = ?",
	"account": "SELECT items, bytes FROM accounts WHERE account = ?",
	"acked":   "SELECT acked_through FROM acked WHERE target_pubkey = ?",

	"+seq": `INSERT INTO seqs (target_pubkey, next_seq, items, bytes, mib, oldest) VALUES (?1, ?2 + 1, 1, ?3, ?3 / 1048576, ?4) ON CONFLICT DO UPDATE SET
		next_seq = max(next_seq, ?2) + 1, items = items + 1, bytes = bytes + ?3, mib = (bytes + ?3) / 1048576, oldest = ifnull(oldest, ?4) RETURNING next_seq - 1`,
	"+dedup": "INSERT INTO dedup (sender_pubkey, item_id, target_pubkey, wire_hash, seq, accepted_at) VALUES (?, ?, ?, ?, ?, ?)",
	"+item": `INSERT INTO items (target_pubkey, seq, kind, item_id, sender_pubkey, sender_host, wire_hash, bytes, accepted_at, expires_at, wire)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
	"+share":   "INSERT INTO shares VALUES (?1, ?2, 1, ?3) ON CONFLICT DO UPDATE SET items = items + 1, bytes = bytes + ?3",
	"+account": "INSERT INTO accounts VALUES (?1, 1, ?2) ON CONFLICT DO UPDATE SET items = items + 1, bytes = bytes + ?2",
	"+totals":  "UPDATE totals SET value = value + CASE name WHEN 'items' THEN ?1 ELSE ?2 END WHERE name IN ('items', 'bytes')",

	"-items": "DELETE FROM items WHERE target_pubkey = ? AND seq <= ? RETURNING sender_pubkey, bytes",
	"-queue": `UPDATE seqs SET items = items - ?2, bytes = bytes - ?3, mib = (bytes - ?3) / 1048576,
		oldest = (SELECT accepted_at FROM items WHERE target_pubkey = ?1 ORDER BY seq LIMIT 1) WHERE target_pubkey = ?1`,
	"-share":  "UPDATE shares SET items = items - ?3, bytes = bytes - ?4 WHERE target_pubkey = ?1 AND sender_pubkey = ?2 AND items > ?3",
	"-share0": "DELETE FROM shares WHERE target_pubkey = ?1 AND sender_pubkey = ?2 AND items = ?3",
	"+acked":  "INSERT INTO acked VALUES (?, ?) ON CONFLICT DO UPDATE SET acked_through = max(acked_through, excluded.acked_through)",

	"+meta": "INSERT OR REPLACE INTO meta (k, v) VALUES (?, ?)",
	"+op":   "INSERT INTO ops (at, op, receipt) VALUES (?, ?, ?)",
}

// openDB opens a database file through database/sql.
func openDB(path, mode string, pragmas ...string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}, "_pragma": append(pragmas, "busy_timeout(5000)")}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
}

func openNaive(path string) (*naive, error) {
	_, _ = driverpkg.Fdatasync(true) // as the real store does
	db, err := openDB(path, "rw", "journal_mode(wal)", "synchronous(full)", "foreign_keys(on)",
		"trusted_schema(off)", "temp_store(memory)", "cache_size(-16384)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	s := &naive{db: db, dir: filepath.Dir(path), stmts: map[string]*sql.Stmt{}}
	for name, query := range naiveQueries {
		if s.stmts[name], err = db.Prepare(query); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return s, nil
}

func (s *naive) Close() error {
	var errs []error
	for _, st := range s.stmts {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, s.db.Close())...)
}

// oneByOne pushes the items of a request one after the other.
func oneByOne(r *relay.Relay) func(context.Context, relay.Caller, []wire.PushItem) ([]relay.PushResult, error) {
	return func(ctx context.Context, from relay.Caller, items []wire.PushItem) ([]relay.PushResult, error) {
		all := make([]relay.PushResult, 0, len(items))
		for i := range items {
			one, err := r.Push(ctx, from, items[i:i+1])
			if err != nil {
				return nil, err
			}
			all = append(all, one...)
		}
		return all, nil
	}
}

func (s *naive) Update(ctx context.Context, fn func(store.Tx) error) error {
	tx, err := s.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return err
	}
	if err := fn(&naiveTx{s: s, tx: tx}); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (s *naive) View(_ context.Context, fn func(store.Reader) error) error { return fn(&naiveTx{s: s}) }

// naiveTx reads and writes in a transaction, or only reads without one.
type naiveTx struct {
	store.Tx
	s     *naive
	tx    *sql.Tx
	known map[wire.PublicKey]store.Enrolment
}

func (t *naiveTx) stmt(name string) *sql.Stmt {
	if t.tx == nil {
		return t.s.stmts[name]
	}
	return t.tx.Stmt(t.s.stmts[name])
}

func (t *naiveTx) exec(name string, args ...any) error {
	_, err := t.stmt(name).Exec(args...)
	return err
}

func (t *naiveTx) one(name string, args []any, dest ...any) error {
	err := t.stmt(name).QueryRow(args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return store.ErrNotFound
	}
	return err
}

func ms(v int64) time.Time { return time.UnixMilli(v).UTC() }

func (t *naiveTx) Info() (in store.Info, err error) {
	rows, err := t.stmt("info").Query()
	if err != nil {
		return in, err
	}
	defer rows.Close()
	for rows.Next() {
		var k string
		var v any
		if err := rows.Scan(&k, &v); err != nil {
			return in, err
		}
		switch k {
		case "relay_pubkey":
			copy(in.RelayKey[:], v.([]byte))
		case "epoch":
			in.Epoch = v.(string)
		case "heartbeat":
			in.Heartbeat = ms(v.(int64))
		}
	}
	return in, rows.Err()
}

func (t *naiveTx) Enrolment(key wire.PublicKey) (store.Enrolment, error) {
	e := store.Enrolment{Key: key}
	var at int64
	var revoked *int64
	err := t.one("enrolment", []any{key[:]}, &e.Name, &e.OwnerFP, &e.Account, &e.Org, &e.AuthorizedBy, &at, &revoked)
	e.EnrolledAt = ms(at)
	if revoked != nil {
		e.RevokedAt = ms(*revoked)
	}
	if err == nil {
		if t.known == nil {
			t.known = map[wire.PublicKey]store.Enrolment{}
		}
		t.known[key] = e
	}
	return e, err
}

func (t *naiveTx) Denied(hostFP, clientID string, at time.Time) (d store.Denial, err error) {
	return d, t.one("denied", []any{hostFP, clientID, at.UnixMilli()}, &d.Reason)
}

func (t *naiveTx) Accepts(target, sender wire.PublicKey) (listed, named bool, err error) {
	var packed []byte
	err = t.one("accepts", []any{target[:]}, &packed)
	if errors.Is(err, store.ErrNotFound) {
		return false, false, nil
	}
	for ; len(packed) >= 32; packed = packed[32:] {
		named = named || string(packed[:32]) == string(sender[:])
	}
	return true, named, err
}

func (t *naiveTx) Dedup(sender wire.PublicKey, id string, target wire.PublicKey) (d store.Dedup, err error) {
	var hash []byte
	var at int64
	err = t.one("dedup", []any{sender[:], id, target[:]}, &hash, &d.Seq, &at)
	copy(d.Hash[:], hash)
	d.AcceptedAt = ms(at)
	return d, err
}

func none(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

func (t *naiveTx) QueueUsage(target wire.PublicKey) (u store.Usage, err error) {
	var next int64
	return u, none(t.one("queue", []any{target[:]}, &next, &u.Items, &u.Bytes))
}

func (t *naiveTx) Head(target wire.PublicKey) (int64, error) {
	var next, items, bytes int64
	err := none(t.one("queue", []any{target[:]}, &next, &items, &bytes))
	return max(next-1, 0), err
}

func (t *naiveTx) ShareUsage(target, sender wire.PublicKey) (u store.Usage, err error) {
	return u, none(t.one("share", []any{target[:], sender[:]}, &u.Items, &u.Bytes))
}

func (t *naiveTx) AccountUsage(account string) (u store.Usage, err error) {
	return u, none(t.one("account", []any{account}, &u.Items, &u.Bytes))
}

func (t *naiveTx) Acked(target wire.PublicKey) (through int64, err error) {
	return through, none(t.one("acked", []any{target[:]}, &through))
}

func (t *naiveTx) Room() bool {
	var st syscall.Statfs_t
	err := syscall.Statfs(t.s.dir, &st)
	return err != nil || int64(st.Bavail)*int64(st.Bsize) > 32<<20
}

func (t *naiveTx) Insert(it store.Item) (seq int64, err error) {
	if !t.Room() {
		return 0, store.ErrFull
	}
	size := int64(len(it.Wire))
	at := it.AcceptedAt.UnixMilli()
	if err := t.one("+seq", []any{it.Target[:], max(time.Now().UnixMilli(), 1), size, at}, &seq); err != nil {
		return 0, err
	}
	if err := t.exec("+dedup", it.Sender[:], it.ID, it.Target[:], it.Hash[:], seq, at); err != nil {
		return 0, err
	}
	var expires any
	if !it.ExpiresAt.IsZero() {
		expires = it.ExpiresAt.UnixMilli()
	}
	if err := t.exec("+item", it.Target[:], seq, it.Kind, it.ID, it.Sender[:], it.SenderHost, it.Hash[:], size, at, expires, it.Wire); err != nil {
		return 0, err
	}
	if err := t.exec("+share", it.Target[:], it.Sender[:], size); err != nil {
		return 0, err
	}
	if account := t.known[it.Target].Account; account != "" {
		if err := t.exec("+account", account, size); err != nil {
			return 0, err
		}
	}
	return seq, t.exec("+totals", 1, size)
}

// AckThrough is for hosts without an account: the load has no others.
func (t *naiveTx) AckThrough(target wire.PublicKey, seq int64) (deleted int64, err error) {
	rows, err := t.stmt("-items").Query(target[:], seq)
	if err != nil {
		return 0, err
	}
	gone := map[string]store.Usage{}
	var all store.Usage
	for rows.Next() {
		var sender sql.RawBytes
		var size int64
		if err := rows.Scan(&sender, &size); err != nil {
			return 0, errors.Join(err, rows.Close())
		}
		u := gone[string(sender)]
		gone[string(sender)] = store.Usage{Items: u.Items + 1, Bytes: u.Bytes + size}
		all = store.Usage{Items: all.Items + 1, Bytes: all.Bytes + size}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	for sender, u := range gone {
		if err := t.exec("-share0", target[:], []byte(sender), u.Items); err != nil {
			return 0, err
		}
		if err := t.exec("-share", target[:], []byte(sender), u.Items, u.Bytes); err != nil {
			return 0, err
		}
	}
	if err := t.exec("-queue", target[:], all.Items, all.Bytes); err != nil {
		return 0, err
	}
	if err := t.exec("+totals", -all.Items, -all.Bytes); err != nil {
		return 0, err
	}
	return all.Items, t.exec("+acked", target[:], seq)
}

func (t *naiveTx) SetEpoch(epoch string) error { return t.exec("+meta", "epoch", epoch) }

func (t *naiveTx) SetHeartbeat(at time.Time) error {
	return t.exec("+meta", "heartbeat", at.UnixMilli())
}

func (t *naiveTx) AppendLog(at time.Time, op string, receipt []byte) error {
	return t.exec("+op", at.UnixMilli(), op, string(receipt))
}

// The load asks for no more of what a relay keeps beside its mail.

func (t *naiveTx) State(string) ([]byte, error) { return nil, store.ErrNotFound }

func (t *naiveTx) SetState(string, []byte) error { return nil }

func (t *naiveTx) SetSeen(wire.PublicKey, time.Time) error { return nil }
