package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"

	sqlite3 "modernc.org/sqlite/lib"
)

// importer copies the rows of a foreign store into a new one, in one transaction.
type importer struct {
	ctx  context.Context // of the one call that it serves
	f    *foreign
	t    *tx
	did  *Imported
	now  time.Time
	step func(string)
	tick func(done int64)

	done     int64 // rows read
	names    map[wire.PublicKey]string
	revoked  map[wire.PublicKey]bool
	accounts map[wire.PublicKey]string
	seqs     map[wire.PublicKey]int64 // the next one
	acked    map[wire.PublicKey]int64
	charged  map[string]store.Usage // by account
}

func (i *importer) all(m tsMeta) error {
	i.names, i.accounts, i.revoked = map[wire.PublicKey]string{}, map[wire.PublicKey]string{}, map[wire.PublicKey]bool{}
	i.seqs, i.acked, i.charged = map[wire.PublicKey]int64{}, map[wire.PublicKey]int64{}, map[string]store.Usage{}
	oldest := i.now
	for _, copy := range []func() error{
		func() error { return i.enrolments(&oldest) },
		i.encAds, i.encAdRecords, i.senderLists, i.queues, i.acks, i.dedup, i.items, i.missingDedup, i.log,
	} {
		if err := copy(); err != nil {
			return err
		}
	}
	i.step("rows copied")
	if m.expiryFrom.IsZero() { // as that relay's own step to schema 2 does
		m.expiryFrom = i.now
	}
	for k, v := range map[string]any{"epoch": m.epoch, "heartbeat": i.now, "expiry_from": m.expiryFrom, "created_at": oldest} {
		if err := i.t.setMeta(k, v); err != nil {
			return err
		}
	}
	if len(m.paths) > 0 {
		if err := i.t.setJSON(stateRestored, m.paths); err != nil {
			return err
		}
	}
	return i.t.setJSON(stateWanted+"backup", "an import")
}

// each copies the rows of a table; a row that the new store's own rules refuse
// is the foreign store's fault.
func (i *importer) each(table string, n *int64, copy func(r *tsRow) error) error {
	return i.f.rows(i.ctx, table, func(r *tsRow) error {
		if i.done++; i.done%1000 == 0 {
			i.tick(i.done)
		}
		err := copy(r)
		if r.err != nil {
			return r.err
		}
		switch {
		case err == errBehind:
			return nil
		case code(err) == sqlite3.SQLITE_CONSTRAINT:
			return r.bad("the row", "it stands there twice, or breaks a rule of the store")
		}
		*n++
		return err
	})
}

func (i *importer) enrolments(oldest *time.Time) error {
	live := int64(0)
	err := i.each("enrolments", &i.did.Enrolments, func(r *tsRow) error {
		e := store.Enrolment{Key: r.key("host_pubkey"), Name: r.text("host_name"), OwnerFP: r.text("owner_fp"), Account: r.label("account"),
			Org: r.label("org"), AuthorizedBy: r.label("authorized_by"), EnrolledAt: r.time("enrolled_at"), RevokedAt: r.optionalTime("revoked_at")}
		if !wire.ValidHostName(e.Name) {
			_ = r.bad("host_name", "it is no host name")
		}
		if !wire.ValidOwnerFP(e.OwnerFP) {
			_ = r.bad("owner_fp", "it is no owner fingerprint")
		}
		if r.err != nil {
			return r.err
		}
		i.names[e.Key] = e.Name
		if e.Account != "" {
			i.accounts[e.Key] = e.Account
		}
		if e.EnrolledAt.Before(*oldest) {
			*oldest = e.EnrolledAt
		}
		if e.Live() {
			live++
		} else {
			i.did.Revoked++
			i.revoked[e.Key] = true
		}
		return i.t.putEnrolment(e, "")
	})
	if err != nil {
		return err
	}
	return i.total(totalEnrolments, live)
}

func (i *importer) total(name string, n int64) error {
	_, err := i.t.c.exec("UPDATE totals SET value = ? WHERE name = ?", n, name)
	return err
}

// encAds copies the v1 sealing keys. One that its host did not sign stays behind:
// hosts publish theirs again, and a backup with it would be a bad one.
func (i *importer) encAds() error {
	return i.each("enc_ads", &i.did.EncAds, func(r *tsRow) error {
		host, name := r.key("host_pubkey"), r.optional("host_name")
		if name == "" {
			name = i.names[host]
		}
		k := store.EncKey{EncPub: r.text("enc_pub"), Sig: r.sig("sig"), At: r.time("at")}
		pub, err := wire.ParseEncPublicKey(k.EncPub)
		if err != nil {
			_ = r.bad("enc_pub", "it is no key: want 44 characters of base64")
		}
		if name != "" && !wire.ValidHostName(name) {
			_ = r.bad("host_name", "it is no host name")
		}
		if r.err == nil && !host.Verify(wire.EncKeyV1Payload(name, pub), k.Sig) {
			return i.unsigned()
		}
		if r.err != nil {
			return r.err
		}
		return i.t.PutEncKey(host, name, k)
	})
}

func (i *importer) encAdRecords() error {
	return i.each("enc_ad_records", &i.did.EncAdRecords, func(r *tsRow) error {
		host, ad := r.key("host_pubkey"), store.EncAd{Record: r.record("record"), Sig: r.sig("sig"), At: r.time("at")}
		if r.err != nil {
			return r.err
		}
		var said struct {
			Host string `json:"host"`
			IAT  string `json:"iat"`
		}
		err := wire.Decode(ad.Record, &said)
		iat, bad := wire.ParseTime(said.IAT)
		if err == nil && bad == nil { // as of its own time: it may be over
			_, err = wire.ParseEncAd(ad.Record, ad.Sig, said.Host, host, iat)
		}
		if err != nil || bad != nil {
			return i.unsigned()
		}
		return i.t.PutEncAd(host, ad)
	})
}

// errBehind leaves a row behind and goes on.
var errBehind = errors.New("the row stays behind")

func (i *importer) unsigned() error {
	i.did.Unsigned++
	return errBehind
}

// senderLists copies who may push to whom. What holds now stands in senders,
// which a rotation may have changed since the record was signed; and a list that
// a rotation moved was signed with the key before.
func (i *importer) senderLists() error {
	return i.each("sender_lists", &i.did.SenderLists, func(r *tsRow) error {
		l := store.SenderList{Target: r.key("target_pubkey"), IAT: r.time("iat"), Record: r.record("record"), Sig: r.sig("sig")}
		raw := r.record("senders")
		var texts []string
		if r.err == nil && json.Unmarshal(raw, &texts) != nil || texts == nil {
			_ = r.bad("senders", "it is no list of keys")
		}
		if len(texts) > wire.MaxSenders {
			_ = r.bad("senders", fmt.Sprintf("it names %d keys; want at most %d", len(texts), wire.MaxSenders))
		}
		if r.err != nil {
			return r.err
		}
		for _, text := range texts {
			key, err := wire.ParsePublicKey(text)
			if err != nil {
				return r.bad("senders", "it is no list of keys")
			}
			l.Senders = append(l.Senders, key)
		}
		var by struct {
			Key wire.PublicKey `json:"host_pubkey"`
		}
		if err := wire.Decode(l.Record, &by); err != nil {
			return r.bad("record", "it is no sender list")
		}
		if by.Key != l.Target && !i.revoked[by.Key] {
			return r.bad("record", "it is the list of another host")
		}
		if _, err := wire.ParseSenderList(l.Record, l.Sig, by.Key, l.IAT); err != nil {
			return r.bad("record", "it is no sender list that its host signed")
		}
		return i.t.PutSenderList(l)
	})
}

func (i *importer) queues() error {
	return i.each("seqs", &i.did.Queues, func(r *tsRow) error {
		target, next := r.key("target_pubkey"), r.number("next_seq", 1)
		if r.err != nil {
			return r.err
		}
		i.seqs[target] = next
		_, err := i.t.c.exec("INSERT INTO seqs (target_pubkey, next_seq, items, bytes) VALUES (?, ?, 0, 0)", target, next)
		return err
	})
}

func (i *importer) acks() error {
	return i.each("acked", &i.did.Acked, func(r *tsRow) error {
		target, through := r.key("target_pubkey"), r.number("acked_through", 0)
		if r.err == nil && through >= max(i.seqs[target], 1) && through > 0 {
			_ = r.bad("acked_through", "it is beyond what seqs has handed out")
		}
		if r.err != nil {
			return r.err
		}
		i.acked[target] = through
		_, err := i.t.c.exec("INSERT INTO acked VALUES (?, ?)", target, through)
		return err
	})
}

func (i *importer) dedup() error {
	return i.each("dedup", &i.did.Dedup, func(r *tsRow) error {
		sender, target, id := r.key("sender_pubkey"), r.key("target_pubkey"), r.text("item_id")
		hash, seq, at := r.hash("wire_hash"), r.number("seq", 1), r.time("accepted_at")
		if !validItemID(id) {
			_ = r.bad("item_id", "it is no item id")
		}
		if r.err != nil {
			return r.err
		}
		_, err := i.t.c.exec(`INSERT INTO dedup (sender_pubkey, item_id, target_pubkey, wire_hash, seq, accepted_at)
			VALUES (?, ?, ?, ?, ?, ?)`, sender, id, target, hash, seq, at)
		return err
	})
}

// validItemID takes the id of a notice, too: an id with a word before and a key
// after it.
func validItemID(id string) bool {
	return id != "" && len(id) <= 4*wire.MaxItemID
}

// missingDedup remembers the queued items that have no dedup row, so that a
// retry of one is a duplicate here.
func (i *importer) missingDedup() (err error) {
	i.did.DedupAdded, err = i.t.c.execLong(`INSERT OR IGNORE INTO dedup (sender_pubkey, item_id, target_pubkey, wire_hash, seq, accepted_at)
		SELECT sender_pubkey, item_id, target_pubkey, wire_hash, seq, accepted_at FROM items`)
	return err
}

func (i *importer) log() error {
	return i.each("ops", &i.did.LogLines, func(r *tsRow) error {
		at, op, receipt := r.time("at"), r.label("op"), r.record("receipt")
		if r.err == nil && op == "" {
			_ = r.bad("op", "it is empty")
		}
		if r.err != nil {
			return r.err
		}
		_, err := i.t.c.exec("INSERT INTO ops (at, op, receipt) VALUES (?, ?, ?)", at, op, string(receipt))
		return err
	})
}
