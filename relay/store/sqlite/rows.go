package sqlite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	driverpkg "modernc.org/sqlite"
)

// Signed is a signed record in a store at rest.
type Signed struct {
	What    string           // SignedSenders and the others
	Host    wire.PublicKey   // whose it is
	Signers []wire.PublicKey // who may have signed it: the host, or a key it had before
	Name    string           // the host's, where the record has no place for it
	Record  []byte           // of SignedEncKey: the sealing key
	Sig     string
	At      time.Time
	New     wire.PublicKey // of SignedRotation: the key that Host became
}

// Kinds of signed record.
const (
	SignedSenders  = "sender list"
	SignedEncKey   = "v1 sealing key"
	SignedEncAd    = "sealing key"
	SignedRotation = "key rotation"
)

// everyFormerKey bounds the search for who signed a list that rotations moved.
const everyFormerKey = 1000

// Signed calls each for every signed record, and ends with each's first error.
func (f *File) Signed(ctx context.Context, each func(Signed) error) error {
	f.c.failed = nil
	err := f.c.during(ctx, func() error {
		for _, kind := range []struct{ what, query string }{
			{SignedSenders, "SELECT target_pubkey, record, sig, '', iat, NULL FROM sender_lists"},
			{SignedEncKey, "SELECT host_pubkey, CAST(enc_pub AS BLOB), sig, host_name, at, NULL FROM enc_ads"},
			{SignedEncAd, "SELECT host_pubkey, record, sig, '', at, NULL FROM enc_ad_records"},
			{SignedRotation, "SELECT old_pubkey, record, '', host_name, at, new_pubkey FROM rotations"},
		} {
			if err := f.c.query(func(r row) error {
				s := Signed{What: kind.what, Host: r.key(0), Record: r.bytes(1), Sig: r.text(2), Name: r.text(3), At: r.time(4), New: r.key(5)}
				s.Signers = []wire.PublicKey{s.Host}
				if kind.what == SignedSenders {
					former, err := reader{f.c}.RotatedFrom(s.Host, everyFormerKey)
					if err != nil {
						return err
					}
					s.Signers = append(append(s.Signers, former...), f.formerOf(s.Record)...)
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				return each(s)
			}, kind.query); err != nil {
				return err
			}
		}
		return nil
	})
	return plain(err, f.path)
}

// formerOf is the key that a sender list names as its host's, when that is a
// revoked one: a store that was imported has lists that rotations moved, but not
// those rotations, which its relay did not keep.
func (f *File) formerOf(list []byte) []wire.PublicKey {
	var by struct {
		Key wire.PublicKey `json:"host_pubkey"`
	}
	if wire.Decode(list, &by) != nil {
		return nil
	}
	if e, err := (reader{f.c}).Enrolment(by.Key); err != nil || e.Live() {
		return nil // what cannot be read, the other checks find
	}
	return []wire.PublicKey{by.Key}
}

// checkTables compares the tables, indexes and views of a file with those that
// the migrations make. A view or a trigger of somebody else's making would run
// whenever the file is read.
func checkTables(c *conn, version int) error {
	steps, err := migrations()
	if err != nil {
		return err
	}
	fresh, err := (&driverpkg.Driver{}).Open("file::memory:?mode=memory")
	if err != nil {
		return err
	}
	m := &conn{c: fresh, stmts: map[string]statement{}}
	for _, sql := range steps[:version] {
		if _, err := m.exec(sql); err != nil {
			return errors.Join(err, m.close())
		}
	}
	want, err := tablesOf(m)
	if err := errors.Join(err, m.close()); err != nil {
		return err
	}
	have, err := tablesOf(c)
	if err != nil {
		return err
	}
	if !maps.Equal(have, want) {
		return fmt.Errorf("%w: its tables are not those of schema %d: it was damaged or changed", ErrNotAStore, version)
	}
	return nil
}

func tablesOf(c *conn) (map[string]string, error) {
	tables := map[string]string{}
	err := c.query(func(r row) error {
		tables[r.text(0)+" "+r.text(1)] = r.text(2)
		return nil
	}, "SELECT type, name, coalesce(sql, '') FROM sqlite_schema")
	return tables, err
}
