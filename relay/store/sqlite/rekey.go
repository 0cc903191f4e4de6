package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Rekeyed says what a rekey did. It stands in the relay log under "rekey".
type Rekeyed struct {
	V         int       `json:"v"`    // 1
	Type      string    `json:"type"` // "relay-rekey"
	At        time.Time `json:"at"`
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason,omitempty"`
	From      string    `json:"from"` // fingerprints
	To        string    `json:"to"`
	ToKey     string    `json:"relay_pubkey"`
	FromEpoch string    `json:"from_epoch"`
	Epoch     string    `json:"epoch"`
	// Notices of expiry that waited in queues, signed again with the new key;
	// NoticesLeft could not be read and stay as they are: their hosts put them
	// into quarantine.
	Notices     int64 `json:"notices_signed_again"`
	NoticesLeft int64 `json:"notices_left,omitempty"`
}

// Rekey binds the store to a new key, in one transaction: the key, a new epoch
// (for the hosts it is another relay until their owners confirm it), the log, and
// every notice of expiry that still waits, since hosts verify those by the key
// that they have pinned. It does not need the old private key. Nobody else uses
// the store: no relay runs on it. ErrOtherKey when it belongs to another key than
// from.
func (s *Store) Rekey(ctx context.Context, from wire.PublicKey, to wire.PrivateKey, at time.Time, actor, reason string) (did Rekeyed, err error) {
	at = at.UTC().Truncate(time.Millisecond)
	if err := s.tempStore(ctx, "file"); err != nil { // what it sets aside grows with the store
		return did, err
	}
	defer func() { _ = s.tempStore(context.WithoutCancel(ctx), "memory") }() // else it is only slower
	err = s.Update(ctx, func(tx store.Tx) error {
		t := own(tx)
		in, err := t.Info()
		if err != nil {
			return err
		}
		if in.RelayKey != from {
			return fmt.Errorf("%w: it belongs to %s, not to %s", ErrOtherKey, in.RelayKey.Fingerprint(), from.Fingerprint())
		}
		did = Rekeyed{V: 1, Type: "relay-rekey", At: at, Actor: actor, Reason: reason, From: from.Fingerprint(), To: to.Public().Fingerprint(),
			ToKey: to.Public().String(), FromEpoch: in.Epoch, Epoch: uuid.NewString()}
		for _, set := range []func() error{
			func() error { return t.signAgain(from, to, &did) },
			func() error { return t.setMeta("relay_pubkey", to.Public()) },
			func() error { return t.SetEpoch(did.Epoch) },
			func() error { return t.SetHeartbeat(at) },
			func() error { return t.setJSON(stateWanted+"backup", "a rekey") }, // older ones are of the old key
		} {
			if err := set(); err != nil {
				return err
			}
		}
		receipt, err := json.Marshal(did)
		if err != nil {
			return err
		}
		return t.AppendLog(at, "rekey", receipt)
	})
	return did, err
}

// signAgain signs the notices in queues and in quarantine with the new key. They
// keep id, number and place. What remembers them, dedup rows included of those
// long taken, follows to the new key: no sender is told twice.
func (t *tx) signAgain(from wire.PublicKey, to wire.PrivateKey, did *Rekeyed) error {
	if _, err := t.c.exec("UPDATE OR REPLACE dedup SET sender_pubkey = ? WHERE sender_pubkey = ?", to.Public(), from); err != nil {
		return err
	}
	for _, held := range []bool{false, true} {
		for last, n := (store.Item{}), noticesAtOnce; n == noticesAtOnce; {
			notices, err := t.noticesAfter(last, held, from)
			if err != nil {
				return err
			}
			for _, last = range notices {
				if err := t.signNotice(last, held, from, to, did); err != nil {
					return err
				}
			}
			n = len(notices)
		}
	}
	return nil
}

const noticesAtOnce = 500 // in memory

// noticesAfter are the next notices that a key signed, in the order of their
// queues and numbers.
func (t *tx) noticesAfter(last store.Item, held bool, from wire.PublicKey) (list []store.Item, err error) {
	err = t.c.query(func(r row) error {
		it := item(r)
		it.Wire = r.bytes(10)
		list = append(list, it)
		return nil
	}, "SELECT "+itemColumns+", wire FROM "+table(held)+` WHERE kind = ? AND sender_pubkey = ? AND (target_pubkey, seq) > (?, ?)
		ORDER BY target_pubkey, seq LIMIT ?`, store.KindExpired, from, last.Target, last.Seq, noticesAtOnce)
	return list, err
}

func (t *tx) signNotice(it store.Item, held bool, from wire.PublicKey, to wire.PrivateKey, did *Rekeyed) error {
	body := it.Wire
	if n, err := wire.ParseExpiryNotice(it.Wire, from); err == nil {
		_, body = wire.MakeExpiryNotice(to, n.ItemID, n.Target, n.AcceptedAt, n.ExpiredAt)
		did.Notices++
	} else if errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrBadSignature) {
		did.NoticesLeft++
	} else {
		return err
	}
	hash, size := wire.Hash(body), int64(len(body))
	if _, err := t.c.exec("UPDATE "+table(held)+" SET sender_pubkey = ?, wire = ?, wire_hash = ?, bytes = ? WHERE target_pubkey = ? AND seq = ?",
		to.Public(), body, hash, size, it.Target, it.Seq); err != nil {
		return err
	}
	if _, err := t.c.exec("UPDATE dedup SET wire_hash = ? WHERE sender_pubkey = ? AND item_id = ? AND target_pubkey = ?",
		hash, to.Public(), it.ID, it.Target); err != nil {
		return err
	}
	account, err := t.accountOf(it.Target)
	if err != nil {
		return err
	}
	if err := t.counters.leave(it.Target, from, account, store.Usage{Items: 1, Bytes: it.Size}, held); err != nil {
		return err
	}
	it.Sender, it.Size, it.Held = to.Public(), size, held
	return t.counters.enter(it, account) // in its old place: oldest is looked up anew
}

// tempStore says where the writer puts what it sets aside.
func (s *Store) tempStore(ctx context.Context, where string) error {
	return s.send(ctx, &call{direct: func(c *conn) error {
		_, err := c.exec("PRAGMA temp_store = " + where)
		return plain(err, s.path)
	}})
}

// own is the transaction as this package knows it.
func own(t store.Tx) *tx { return t.(*tx) }
