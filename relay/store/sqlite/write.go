package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// tx is the writer's side of a transaction. It lives as long as the writer's
// connection; begin gives it fresh counters for each group.
type tx struct {
	reader
	counters *counters
	hosts    map[wire.PublicKey]host             // enrolments read or written in this group
	info     *store.Info                         // likewise
	formerly map[wire.PublicKey][]wire.PublicKey // the keys that a key was rotated from, likewise
	room     func() int64                        // the bytes that new mail may take, asked once a group
	left     int64                               // of them
	leftWas  int64                               // when the closure at hand began
	seqNow   func() int64
}

// host remembers an enrolment that is not there, too.
type host struct {
	e   store.Enrolment
	err error
}

func newTx(c *conn, room func() int64, seqNow func() int64) *tx {
	t := &tx{reader: reader{c}, room: room, seqNow: seqNow}
	t.counters = newCounters(t.reader)
	t.hosts = map[wire.PublicKey]host{}
	t.formerly = map[wire.PublicKey][]wire.PublicKey{}
	return t
}

// begin readies t for a new group. It looks at the room whatever the group
// will do: a heartbeat is enough to see that the disk has filled, or has room.
func (t *tx) begin() {
	t.left = t.room()
	t.counters.reset()
	clear(t.hosts)
	t.info = nil
	clear(t.formerly)
}

// next begins another closure.
func (t *tx) next() {
	t.counters.next()
	t.leftWas = t.left
}

// back takes back what the closure at hand left in memory.
func (t *tx) back() {
	t.counters.back()
	t.left = t.leftWas
	clear(t.hosts)
	clear(t.formerly)
	t.info = nil
}

func (t *tx) Dedup(sender wire.PublicKey, itemID string, target wire.PublicKey) (store.Dedup, error) {
	return dedup(t.reader, sender, itemID, target, func(k wire.PublicKey) ([]wire.PublicKey, error) {
		if keys, ok := t.formerly[k]; ok {
			return keys, nil
		}
		keys, err := t.RotatedFrom(k, formerKeys)
		if err == nil {
			t.formerly[k] = keys
		}
		return keys, err
	})
}

func (t *tx) Info() (store.Info, error) {
	if t.info == nil {
		in, err := t.reader.Info()
		if err != nil {
			return in, err
		}
		t.info = &in
	}
	return *t.info, nil
}

func (t *tx) Enrolment(key wire.PublicKey) (store.Enrolment, error) {
	if h, ok := t.hosts[key]; ok {
		return h.e, h.err
	}
	e, err := t.reader.Enrolment(key)
	if err == nil || errors.Is(err, store.ErrNotFound) {
		t.hosts[key] = host{e, err}
	}
	return e, err
}

func (t *tx) Head(target wire.PublicKey) (int64, error) {
	q, err := t.counters.queue(target)
	if err != nil {
		return 0, err
	}
	return max(q.now.nextSeq-1, 0), nil
}

func (t *tx) QueueUsage(target wire.PublicKey) (store.Usage, error) {
	q, err := t.counters.queue(target)
	if err != nil {
		return store.Usage{}, err
	}
	return q.now.Usage, nil
}

func (t *tx) ShareUsage(target, sender wire.PublicKey) (store.Usage, error) {
	s, err := t.counters.share(target, sender)
	if err != nil {
		return store.Usage{}, err
	}
	return s.now, nil
}

func (t *tx) AccountUsage(account string) (store.Usage, error) {
	a, err := t.counters.account(account)
	if err != nil {
		return store.Usage{}, err
	}
	return a.now, nil
}

func (t *tx) Totals() (totals store.Totals, err error) {
	for name, n := range map[string]*int64{
		totalEnrolments: &totals.Enrolments, totalItems: &totals.Items, totalBytes: &totals.Bytes, totalHeld: &totals.Held,
	} {
		c, err := t.counters.total(name)
		if err != nil {
			return totals, err
		}
		*n = c.now
	}
	return totals, nil
}

func (t *tx) PutEnrolment(e store.Enrolment) error {
	was, err := t.Enrolment(e.Key)
	isNew := errors.Is(err, store.ErrNotFound)
	if err != nil && !isNew {
		return err
	}
	e.RevokedAt = was.RevokedAt
	if e.Account != "" && e.Live() {
		other, err := t.LiveInAccount(e.Account, e.Name)
		if err == nil && other.Key != e.Key {
			return store.ErrNameTaken
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	delete(t.hosts, e.Key)
	if isNew {
		if err := t.counters.addTotal(totalEnrolments, 1); err != nil {
			return err
		}
	}
	if was.Account != e.Account { // a queue may be older than its host's enrolment
		q, err := t.counters.queue(e.Key)
		if err != nil {
			return err
		}
		if err := t.moveAccount(was.Account, e.Account, q.now.Usage); err != nil {
			return err
		}
	}
	return t.putEnrolment(e, ` ON CONFLICT (host_pubkey) DO UPDATE SET host_name = excluded.host_name, owner_fp = excluded.owner_fp,
		account = excluded.account, org = excluded.org, authorized_by = excluded.authorized_by, enrolled_at = excluded.enrolled_at,
		client_id = excluded.client_id, session_ends = excluded.session_ends`)
}

// putEnrolment writes the row of an enrolment, with the fingerprint of its key.
func (t *tx) putEnrolment(e store.Enrolment, onConflict string) error {
	_, err := t.c.exec("INSERT INTO enrolments ("+enrolmentColumns+", host_fp) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"+onConflict,
		e.Key, e.Name, e.OwnerFP, optional(e.Account), optional(e.Org), e.AuthorizedBy, e.EnrolledAt, e.RevokedAt,
		optional(e.ClientID), e.SessionEnds, e.Key.Fingerprint())
	return err
}

func (t *tx) moveAccount(from, to string, u store.Usage) error {
	if err := t.counters.chargeAccount(from, minus(u)); err != nil {
		return err
	}
	return t.counters.chargeAccount(to, u)
}

func (t *tx) Revoke(key wire.PublicKey, at time.Time) (bool, error) {
	delete(t.hosts, key)
	n, err := t.c.exec("UPDATE enrolments SET revoked_at = ? WHERE host_pubkey = ? AND revoked_at IS NULL", at, key)
	if err != nil || n == 0 {
		return false, err
	}
	return true, t.counters.addTotal(totalEnrolments, -1)
}

func (t *tx) PutSenderList(l store.SenderList) error {
	if err := t.dropSenderList(l.Target); err != nil {
		return err
	}
	if _, err := t.c.exec("INSERT INTO sender_lists (target_pubkey, senders, iat, record, sig) VALUES (?, ?, ?, ?, ?)",
		l.Target, pack(l.Senders), l.IAT, l.Record, l.Sig); err != nil {
		return err
	}
	for _, s := range unpack(pack(l.Senders)) {
		if _, err := t.c.exec("INSERT INTO listed_senders VALUES (?, ?)", s, l.Target); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) dropSenderList(target wire.PublicKey) error {
	l, err := t.SenderList(target)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range l.Senders {
		if _, err := t.c.exec("DELETE FROM listed_senders WHERE sender_pubkey = ? AND target_pubkey = ?", s, target); err != nil {
			return err
		}
	}
	_, err = t.c.exec("DELETE FROM sender_lists WHERE target_pubkey = ?", target)
	return err
}

func (t *tx) PutEncKey(host wire.PublicKey, name string, k store.EncKey) error {
	_, err := t.c.exec("INSERT OR REPLACE INTO enc_ads (host_pubkey, host_name, enc_pub, sig, at) VALUES (?, ?, ?, ?, ?)",
		host, name, k.EncPub, k.Sig, k.At)
	return err
}

func (t *tx) PutEncAd(host wire.PublicKey, ad store.EncAd) error {
	_, err := t.c.exec("INSERT OR REPLACE INTO enc_ad_records (host_pubkey, record, sig, at) VALUES (?, ?, ?, ?)",
		host, ad.Record, ad.Sig, ad.At)
	return err
}

// accountOf is what a target's queue is charged to; a host that is not
// enrolled here (any more) is charged to nobody.
func (t *tx) accountOf(target wire.PublicKey) (string, error) {
	e, err := t.Enrolment(target)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", err
	}
	return e.Account, nil
}

// takeSeq allocates the next number of a queue. It never falls behind the
// clock, so that a store restored from an older copy goes on above what it
// handed out before (seed 000 section 2).
func (t *tx) takeSeq(target wire.PublicKey) (int64, error) {
	q, err := t.counters.queue(target)
	if err != nil {
		return 0, err
	}
	seq := max(q.now.nextSeq, t.seqNow(), 1)
	now := q.now
	now.nextSeq = seq + 1
	set(t.counters, q, now)
	return seq, nil
}

func (t *tx) Room() bool {
	return t.take(0)
}

// take claims room for n bytes of mail.
func (t *tx) take(n int64) bool {
	// Twice: what is written to the log is there until it is folded.
	if need := 2*n + pageSize; need > t.left {
		return false
	}
	t.left -= 2 * n
	return true
}

func (t *tx) Insert(it store.Item) (int64, error) {
	if it.Kind != store.KindExpired && !t.take(int64(len(it.Wire))) {
		return 0, store.ErrFull
	}
	seq, err := t.takeSeq(it.Target)
	if err != nil {
		return 0, err
	}
	it.Seq, it.Size, it.Held = seq, int64(len(it.Wire)), false
	if _, err := t.c.exec(`INSERT INTO dedup (sender_pubkey, item_id, target_pubkey, wire_hash, seq, accepted_at)
		VALUES (?, ?, ?, ?, ?, ?)`, it.Sender, it.ID, it.Target, it.Hash, seq, it.AcceptedAt); err != nil {
		return 0, err
	}
	if _, err := t.c.exec("INSERT INTO items ("+itemColumns+", wire) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		it.Target, seq, it.Kind, it.ID, it.Sender, it.SenderHost, it.Hash, it.Size, it.AcceptedAt, it.ExpiresAt, it.Wire,
	); err != nil {
		return 0, err
	}
	account, err := t.accountOf(it.Target)
	if err != nil {
		return 0, err
	}
	return seq, t.counters.enter(it, account)
}

func (t *tx) AckThrough(target wire.PublicKey, seq int64) (deleted int64, err error) {
	account, err := t.accountOf(target)
	if err != nil {
		return 0, err
	}
	gone := map[wire.PublicKey]store.Usage{} // by sender
	if err := t.c.query(func(r row) error {
		deleted++
		sender := r.key(0)
		gone[sender] = add(gone[sender], store.Usage{Items: 1, Bytes: r.int(1)})
		return nil
	}, "DELETE FROM items WHERE target_pubkey = ? AND seq <= ? RETURNING sender_pubkey, bytes", target, seq); err != nil {
		return 0, err
	}
	for sender, u := range gone {
		if err := t.counters.leave(target, sender, account, u, false); err != nil {
			return 0, err
		}
	}
	_, err = t.c.exec(`INSERT INTO acked VALUES (?, ?) ON CONFLICT DO UPDATE SET
		acked_through = max(acked_through, excluded.acked_through)`, target, seq)
	return deleted, err
}

func (t *tx) Drop(it store.Item) error {
	var u store.Usage
	err := t.c.query(func(r row) error {
		it.Sender, u = r.key(0), store.Usage{Items: 1, Bytes: r.int(1)}
		return nil
	}, "DELETE FROM "+table(it.Held)+" WHERE target_pubkey = ? AND seq = ? RETURNING sender_pubkey, bytes", it.Target, it.Seq)
	if err := found(u.Items != 0, err); err != nil {
		return err
	}
	account, err := t.accountOf(it.Target)
	if err != nil {
		return err
	}
	return t.counters.leave(it.Target, it.Sender, account, u, it.Held)
}

func (t *tx) Forget(rows []store.DedupKey, before time.Time) (pruned int64, err error) {
	for _, k := range rows {
		n, err := t.c.exec("DELETE FROM dedup AS d WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ? AND "+prunable,
			k.Sender, k.ItemID, k.Target, before)
		if err != nil {
			return 0, err
		}
		pruned += n
	}
	return pruned, nil
}

func (t *tx) setMeta(k string, v any) error {
	t.info = nil
	_, err := t.c.exec("INSERT OR REPLACE INTO meta (k, v) VALUES (?, ?)", k, v)
	return err
}

func (t *tx) SetEpoch(epoch string) error { return t.setMeta("epoch", epoch) }

func (t *tx) SetHeartbeat(at time.Time) error { return t.setMeta("heartbeat", at) }

func (t *tx) AppendLog(at time.Time, op string, receipt []byte) error {
	if _, err := t.c.exec("INSERT INTO ops (at, op, receipt) VALUES (?, ?, ?)", at, op, string(receipt)); err != nil {
		return fmt.Errorf("log %s: %w", op, err)
	}
	_, err := t.c.exec(`DELETE FROM ops WHERE op = ?1 AND id <=
		(SELECT id FROM ops WHERE op = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)`, op, store.LogKeep)
	return err
}

// pack lays keys end to end, sorted and without repeats, so that holds can
// search them where they lie.
func pack(keys []wire.PublicKey) []byte {
	sorted := slices.Clone(keys)
	slices.SortFunc(sorted, func(a, b wire.PublicKey) int { return bytes.Compare(a[:], b[:]) })
	out := make([]byte, 0, 32*len(keys))
	for _, k := range slices.Compact(sorted) {
		out = append(out, k[:]...)
	}
	return out
}

func unpack(b []byte) []wire.PublicKey {
	keys := make([]wire.PublicKey, len(b)/32)
	for i := range keys {
		copy(keys[i][:], b[32*i:])
	}
	return keys
}

func holds(packed []byte, key wire.PublicKey) bool {
	lo, hi := 0, len(packed)/32
	for lo < hi {
		mid := (lo + hi) / 2
		switch bytes.Compare(packed[32*mid:32*mid+32], key[:]) {
		case 0:
			return true
		case -1:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return false
}
