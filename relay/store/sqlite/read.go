package sqlite

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// reader answers store.Reader over one connection.
type reader struct{ c *conn }

// found turns "no row" into store.ErrNotFound.
func found(ok bool, err error) error {
	if err == nil && !ok {
		return store.ErrNotFound
	}
	return err
}

func (r reader) Info() (in store.Info, err error) {
	err = r.c.query(func(row row) error {
		switch row.text(0) {
		case "relay_pubkey":
			in.RelayKey = row.key(1)
		case "epoch":
			in.Epoch = row.text(1)
		case "heartbeat":
			in.Heartbeat = row.time(1)
		case "expiry_from":
			in.ExpiryFrom = row.time(1)
		case "created_at":
			in.CreatedAt = row.time(1)
		case "schema_version":
			in.Schema = int(row.int(1))
		}
		return nil
	}, "SELECT k, v FROM meta")
	return in, err
}

func (r reader) Totals() (t store.Totals, err error) {
	err = r.c.query(func(row row) error {
		switch row.text(0) {
		case totalEnrolments:
			t.Enrolments = row.int(1)
		case totalItems:
			t.Items = row.int(1)
		case totalBytes:
			t.Bytes = row.int(1)
		case totalHeld:
			t.Held = row.int(1)
		}
		return nil
	}, "SELECT name, value FROM totals")
	return t, err
}

const enrolmentColumns = "host_pubkey, host_name, owner_fp, account, org, authorized_by, enrolled_at, revoked_at, client_id, session_ends"

// enrolments is a query of enrolmentColumns as the schema of c allows it: a file of
// an older one is read as if nothing stood in the columns that came later.
func (c *conn) enrolments(query string) string {
	if c.schema == 0 || c.schema >= 4 {
		return query
	}
	return strings.Replace(query, "client_id, session_ends", "NULL, NULL", 1)
}

func enrolment(row row) store.Enrolment {
	return store.Enrolment{
		Key: row.key(0), Name: row.text(1), OwnerFP: row.text(2), Account: row.text(3), Org: row.text(4),
		AuthorizedBy: row.text(5), EnrolledAt: row.time(6), RevokedAt: row.time(7), ClientID: row.text(8), SessionEnds: row.time(9),
	}
}

func (r reader) Enrolment(key wire.PublicKey) (e store.Enrolment, err error) {
	ok, err := r.c.one(func(row row) { e = enrolment(row) },
		r.c.enrolments("SELECT "+enrolmentColumns+" FROM enrolments WHERE host_pubkey = ?"), key)
	return e, found(ok, err)
}

func (r reader) LiveByName(name string, limit int) (list []store.Enrolment, err error) {
	err = r.c.query(func(row row) error { list = append(list, enrolment(row)); return nil },
		r.c.enrolments("SELECT "+enrolmentColumns+" FROM enrolments INDEXED BY enrolments_name WHERE lower(host_name) = lower(?) AND revoked_at IS NULL LIMIT ?"),
		name, limit) // else it might go through all that had the name and were revoked
	return list, err
}

func (r reader) LiveInAccount(account, name string) (e store.Enrolment, err error) {
	ok, err := r.c.one(func(row row) { e = enrolment(row) }, r.c.enrolments("SELECT "+enrolmentColumns+` FROM enrolments
		WHERE account = ? AND lower(host_name) = lower(?) AND revoked_at IS NULL`), account, name)
	return e, found(ok, err)
}

func (r reader) ByClientID(clientID string, limit int) (list []store.Enrolment, err error) {
	err = r.c.query(func(row row) error { list = append(list, enrolment(row)); return nil },
		"SELECT "+enrolmentColumns+" FROM enrolments INDEXED BY enrolments_client WHERE client_id = ? ORDER BY host_pubkey LIMIT ?", clientID, limit)
	return list, err
}

func (r reader) SenderList(target wire.PublicKey) (l store.SenderList, err error) {
	ok, err := r.c.one(func(row row) {
		l = store.SenderList{Target: target, Senders: unpack(row.bytes(0)), IAT: row.time(1), Record: row.bytes(2), Sig: row.text(3)}
	}, "SELECT senders, iat, record, sig FROM sender_lists WHERE target_pubkey = ?", target)
	return l, found(ok, err)
}

func (r reader) Accepts(target, sender wire.PublicKey) (listed, named bool, err error) {
	listed, err = r.c.one(func(row row) { named = holds(row.bytes(0), sender) },
		"SELECT senders FROM sender_lists WHERE target_pubkey = ?", target)
	return listed, named, err
}

func (r reader) SenderCount(target wire.PublicKey) (n int, listed bool, err error) {
	listed, err = r.c.one(func(row row) { n = int(row.int(0)) },
		"SELECT length(senders) / 32 FROM sender_lists WHERE target_pubkey = ?", target) // reads no list: the length stands before it
	return n, listed, err
}

func (r reader) EncKey(host wire.PublicKey) (k store.EncKey, err error) {
	ok, err := r.c.one(func(row row) { k = store.EncKey{EncPub: row.text(0), Sig: row.text(1), At: row.time(2)} },
		"SELECT enc_pub, sig, at FROM enc_ads WHERE host_pubkey = ?", host)
	return k, found(ok, err)
}

func (r reader) EncAd(host wire.PublicKey) (ad store.EncAd, err error) {
	ok, err := r.c.one(func(row row) { ad = store.EncAd{Record: row.bytes(0), Sig: row.text(1), At: row.time(2)} },
		"SELECT record, sig, at FROM enc_ad_records WHERE host_pubkey = ?", host)
	return ad, found(ok, err)
}

// formerKeys is how many rotations back a dedup row is found.
const formerKeys = 16

func (r reader) Dedup(sender wire.PublicKey, itemID string, target wire.PublicKey) (store.Dedup, error) {
	return dedup(r, sender, itemID, target, func(k wire.PublicKey) ([]wire.PublicKey, error) { return r.RotatedFrom(k, formerKeys) })
}

// dedup looks for an item under the keys given, then under those that sender
// and target had before: a row stays under the key it was made with.
func dedup(r reader, sender wire.PublicKey, itemID string, target wire.PublicKey,
	formerly func(wire.PublicKey) ([]wire.PublicKey, error)) (store.Dedup, error) {
	d, err := r.dedupRow(sender, itemID, target)
	if !errors.Is(err, store.ErrNotFound) {
		return d, err
	}
	senders, err := formerly(sender)
	if err != nil {
		return d, err
	}
	targets, err := formerly(target)
	if err != nil || len(senders)+len(targets) == 0 {
		return d, cmp.Or(err, store.ErrNotFound)
	}
	for _, t := range append([]wire.PublicKey{target}, targets...) {
		if d, err := r.dedupOf(append([]wire.PublicKey{sender}, senders...), itemID, t); !errors.Is(err, store.ErrNotFound) {
			return d, err
		}
	}
	return d, store.ErrNotFound
}

// dedupOf looks for an item of any of these senders.
func (r reader) dedupOf(senders []wire.PublicKey, itemID string, target wire.PublicKey) (d store.Dedup, err error) {
	for _, s := range senders {
		if d, err = r.dedupRow(s, itemID, target); !errors.Is(err, store.ErrNotFound) {
			return d, err
		}
	}
	return d, store.ErrNotFound
}

// everyKey lists a host's keys: the one that key was rotated to in the end, and
// those that led there.
func (r reader) everyKey(key wire.PublicKey) ([]wire.PublicKey, error) {
	for range formerKeys {
		ok, err := r.c.one(func(row row) { key = row.key(0) }, "SELECT new_pubkey FROM rotations WHERE old_pubkey = ?", key)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
	}
	former, err := r.RotatedFrom(key, formerKeys)
	return append([]wire.PublicKey{key}, former...), err
}

func (r reader) dedupRow(sender wire.PublicKey, itemID string, target wire.PublicKey) (d store.Dedup, err error) {
	ok, err := r.c.one(func(row row) { d = store.Dedup{Hash: row.hash(0), Seq: row.int(1), AcceptedAt: row.time(2)} },
		"SELECT wire_hash, seq, accepted_at FROM dedup WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ?",
		sender, itemID, target)
	return d, found(ok, err)
}

func (r reader) Head(target wire.PublicKey) (head int64, err error) {
	_, err = r.c.one(func(row row) { head = row.int(0) - 1 }, "SELECT next_seq FROM seqs WHERE target_pubkey = ?", target)
	return head, err
}

func (r reader) Acked(target wire.PublicKey) (through int64, err error) {
	_, err = r.c.one(func(row row) { through = row.int(0) }, "SELECT acked_through FROM acked WHERE target_pubkey = ?", target)
	return through, err
}

func usage(u *store.Usage) func(row) {
	return func(row row) { *u = store.Usage{Items: row.int(0), Bytes: row.int(1)} }
}

func (r reader) QueueUsage(target wire.PublicKey) (u store.Usage, err error) {
	_, err = r.c.one(usage(&u), "SELECT items, bytes FROM seqs WHERE target_pubkey = ?", target)
	return u, err
}

func (r reader) ShareUsage(target, sender wire.PublicKey) (u store.Usage, err error) {
	_, err = r.c.one(usage(&u), "SELECT items, bytes FROM shares WHERE target_pubkey = ? AND sender_pubkey = ?", target, sender)
	return u, err
}

func (r reader) AccountUsage(account string) (u store.Usage, err error) {
	_, err = r.c.one(usage(&u), "SELECT items, bytes FROM accounts WHERE account = ?", account)
	return u, err
}

const itemColumns = "target_pubkey, seq, kind, item_id, sender_pubkey, sender_host, wire_hash, bytes, accepted_at, expires_at"

func item(row row) store.Item {
	return store.Item{
		Target: row.key(0), Seq: row.int(1), Kind: row.text(2), ID: row.text(3), Sender: row.key(4), SenderHost: row.text(5),
		Hash: row.hash(6), Size: row.int(7), AcceptedAt: row.time(8), ExpiresAt: row.time(9),
	}
}

func (r reader) Page(target wire.PublicKey, after int64, limit int, each func(store.Item) bool) error {
	err := r.c.query(func(row row) error {
		it := item(row)
		it.Wire = row.bytes(10)
		if !each(it) {
			return errStop
		}
		return nil
	}, "SELECT "+itemColumns+", wire FROM items WHERE target_pubkey = ? AND seq > ? ORDER BY seq LIMIT ?", target, after, limit)
	if err == errStop {
		return nil
	}
	return err
}

const expired = " WHERE expires_at <= ?1 AND accepted_at >= ?2"

func (r reader) Expired(from, now time.Time, limit int) (list []store.Item, err error) {
	err = r.c.query(func(row row) error {
		it := item(row)
		it.Held = row.int(10) == 1
		list = append(list, it)
		return nil
	}, "SELECT "+itemColumns+", 0 FROM items"+expired+" UNION ALL SELECT "+itemColumns+", 1 FROM quarantine"+expired+" ORDER BY expires_at LIMIT ?3",
		now, from, limit)
	return list, err
}

func (r reader) CountExpired(from, now time.Time) (n int64, err error) {
	_, err = r.c.one(func(row row) { n = row.int(0) },
		"SELECT (SELECT count(*) FROM items"+expired+") + (SELECT count(*) FROM quarantine"+expired+")", now, from)
	return n, err
}

func (r reader) Held(each func(store.HeldItem) bool) error {
	err := r.c.query(func(row row) error {
		h := store.HeldItem{Item: item(row), HeldAt: row.time(10), Actor: row.text(11), Reason: row.text(12)}
		h.Item.Held, h.Wire = true, row.bytes(13)
		if !each(h) {
			return errStop
		}
		return nil
	}, "SELECT "+itemColumns+", held_at, actor, reason, wire FROM quarantine ORDER BY target_pubkey, seq")
	if err == errStop {
		return nil
	}
	return err
}

// prunable holds of a dedup row d that is older than its horizon. A row that a
// rotation moved keeps the seq of another queue once its item has gone, so the
// seq alone does not name the item; nor does the sender, who may have rotated.
const prunable = `d.accepted_at < ? AND NOT EXISTS (SELECT 1 FROM items i
	WHERE i.target_pubkey = d.target_pubkey AND i.seq = d.seq AND i.item_id = d.item_id)
	AND NOT EXISTS (SELECT 1 FROM quarantine q
	WHERE q.target_pubkey = d.target_pubkey AND q.seq = d.seq AND q.item_id = d.item_id)`

func (r reader) Prunable(before time.Time, limit int) (list []store.DedupKey, err error) {
	err = r.c.query(func(row row) error {
		list = append(list, store.DedupKey{Sender: row.key(0), ItemID: row.text(1), Target: row.key(2)})
		return nil
	}, "SELECT sender_pubkey, item_id, target_pubkey FROM dedup d WHERE "+prunable+" ORDER BY accepted_at LIMIT ?", before, limit)
	return list, err
}

// RotatedTo goes one way: a key is rotated once.
func (r reader) RotatedTo(key wire.PublicKey, limit int) (keys []wire.PublicKey, err error) {
	seen := map[wire.PublicKey]bool{key: true}
	for len(keys) < limit {
		ok, err := r.c.one(func(row row) { key = row.key(0) }, "SELECT new_pubkey FROM rotations WHERE old_pubkey = ?", key)
		if err != nil {
			return nil, err
		}
		if !ok || seen[key] {
			break
		}
		seen[key] = true
		keys = append(keys, key)
	}
	return keys, nil
}

func (r reader) RotatedFrom(key wire.PublicKey, limit int) (keys []wire.PublicKey, err error) {
	seen := map[wire.PublicKey]bool{key: true}
	for next := []wire.PublicKey{key}; len(next) > 0 && len(keys) < limit; next = next[1:] {
		err := r.c.query(func(row row) error {
			if k := row.key(0); !seen[k] {
				seen[k] = true
				keys, next = append(keys, k), append(next, k)
			}
			return nil
		}, "SELECT old_pubkey FROM rotations WHERE new_pubkey = ? ORDER BY at DESC LIMIT ?", next[0], limit-len(keys))
		if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func (r reader) Log(op string, before int64, limit int) (list []store.Op, err error) {
	query, args := "SELECT id, at, op, receipt FROM ops WHERE id < ? ORDER BY id DESC LIMIT ?", []any{from(before), limit}
	if op != "" {
		query, args = "SELECT id, at, op, receipt FROM ops WHERE op = ? AND id < ? ORDER BY id DESC LIMIT ?", []any{op, from(before), limit}
	}
	err = r.c.query(func(row row) error {
		list = append(list, store.Op{ID: row.int(0), At: row.time(1), Op: row.text(2), Receipt: []byte(row.text(3))})
		return nil
	}, query, args...)
	return list, err
}

// from is the id that a list ends before; 0 means that it starts with the newest.
func from(before int64) int64 {
	if before == 0 {
		return math.MaxInt64
	}
	return before
}

// pragma reads a pragma that answers one number.
func (r reader) pragma(name string) (n int64, err error) {
	ok, err := r.c.one(func(row row) { n = row.int(0) }, "PRAGMA "+name)
	if err == nil && !ok {
		err = fmt.Errorf("pragma %s answered nothing", name)
	}
	return n, err
}
