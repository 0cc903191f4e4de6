package sqlite

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// items copies the queues, one after the other, and counts what each holds.
func (i *importer) items() error {
	q := importQueue{i: i}
	err := i.each("items", &i.did.Items, func(r *tsRow) error {
		it := i.item(r)
		if r.err != nil {
			return r.err
		}
		if err := q.add(it); err != nil {
			return err
		}
		i.did.ItemBytes += it.Size
		_, err := i.t.c.exec("INSERT INTO items ("+itemColumns+", wire) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			it.Target, it.Seq, it.Kind, it.ID, it.Sender, it.SenderHost, it.Hash, it.Size, it.AcceptedAt, it.ExpiresAt, it.Wire)
		if r.n == 1 {
			i.step("first item")
		}
		return err
	})
	if err == nil {
		err = q.flush()
	}
	if err != nil {
		return err
	}
	for account, u := range i.charged {
		if _, err := i.t.c.exec("INSERT INTO accounts VALUES (?, ?, ?)", account, u.Items, u.Bytes); err != nil {
			return err
		}
	}
	return errors.Join(i.total(totalItems, i.did.Items), i.total(totalBytes, i.did.ItemBytes))
}

func (i *importer) item(r *tsRow) store.Item {
	it := store.Item{Target: r.key("target_pubkey"), Seq: r.number("seq", 1), Kind: r.text("kind"), ID: r.text("item_id"),
		Sender: r.key("sender_pubkey"), SenderHost: r.optional("sender_host"), Hash: r.hash("wire_hash"), Size: r.number("bytes", 1),
		AcceptedAt: r.time("accepted_at"), ExpiresAt: r.optionalTime("expires_at"), Wire: r.blob("wire")}
	if r.err != nil {
		return it
	}
	if it.SenderHost == "" && it.Kind != store.KindExpired { // a store of schema 1 does not tell
		it.SenderHost = i.names[it.Sender]
	}
	switch {
	case it.Kind != store.KindEnvelope && it.Kind != store.KindReceipt && it.Kind != store.KindExpired:
		_ = r.bad("kind", fmt.Sprintf("it is %.40q; want envelope, receipt or expired", it.Kind))
	case !validItemID(it.ID):
		_ = r.bad("item_id", "it is no item id")
	case it.SenderHost != "" && !wire.ValidHostName(it.SenderHost):
		_ = r.bad("sender_host", "it is no host name")
	case int64(len(it.Wire)) != it.Size:
		_ = r.bad("bytes", fmt.Sprintf("it is %d, but the wire has %d", it.Size, len(it.Wire)))
	case wire.Hash(it.Wire) != it.Hash:
		_ = r.bad("wire_hash", "it is not the hash of the wire")
	case i.seqs[it.Target] == 0:
		_ = r.bad("target_pubkey", "it has no row in seqs")
	case it.Seq >= i.seqs[it.Target]:
		_ = r.bad("seq", fmt.Sprintf("it is not below the next one of its queue, %d", i.seqs[it.Target]))
	case it.Seq <= i.acked[it.Target]:
		_ = r.bad("seq", fmt.Sprintf("it was acknowledged: its queue is acked through %d", i.acked[it.Target]))
	}
	return it
}

// importQueue sums up one queue while its items go by.
type importQueue struct {
	i      *importer
	target wire.PublicKey
	all    store.Usage
	oldest time.Time // when the first one was accepted
	shares map[wire.PublicKey]store.Usage
}

func (q *importQueue) add(it store.Item) error {
	if it.Target != q.target {
		if err := q.flush(); err != nil {
			return err
		}
		q.target, q.all, q.oldest, q.shares = it.Target, store.Usage{}, it.AcceptedAt, map[wire.PublicKey]store.Usage{}
	}
	one := store.Usage{Items: 1, Bytes: it.Size}
	q.all, q.shares[it.Sender] = add(q.all, one), add(q.shares[it.Sender], one)
	return nil
}

func (q *importQueue) flush() error {
	if q.all.Items == 0 {
		return nil
	}
	c := q.i.t.c
	if _, err := c.exec("UPDATE seqs SET items = ?, bytes = ?, mib = ?, oldest = ? WHERE target_pubkey = ?",
		q.all.Items, q.all.Bytes, q.all.MiB(), q.oldest, q.target); err != nil {
		return err
	}
	for sender, u := range q.shares {
		if _, err := c.exec("INSERT INTO shares VALUES (?, ?, ?, ?)", q.target, sender, u.Items, u.Bytes); err != nil {
			return err
		}
	}
	if a := q.i.accounts[q.target]; a != "" {
		q.i.charged[a] = add(q.i.charged[a], q.all)
	}
	return nil
}
