package sqlite

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/google/uuid"
)

// The schema is a row of numbered files, each a step from the one before it.
//
//go:embed schema/*.sql
var schemaFiles embed.FS

// applicationID stands in the header of every store of ours: "MBXR".
const applicationID = 0x4d425852

// refuseForeign refuses what is not a database, or is another program's, by
// the header alone: to open it for writing would turn it to a write-ahead log.
// A header without our id may still be ours: that of a store whose first
// commit stands in its log only. migrate looks at what SQLite sees.
func refuseForeign(path string) error {
	f, err := os.Open(path) // the lock is ours and no connection is open yet
	if err != nil {
		return err
	}
	defer f.Close()
	var h [100]byte
	n, err := io.ReadFull(f, h[:])
	switch {
	case err == io.EOF: // empty: a store that never began
		return nil
	case err != nil && err != io.ErrUnexpectedEOF:
		return err
	case n < len(h) || string(h[:16]) != "SQLite format 3\x00":
		return fmt.Errorf("%s: %w: not an SQLite database", path, ErrNotAStore)
	}
	cookie, id := binary.BigEndian.Uint32(h[40:]), binary.BigEndian.Uint32(h[68:])
	if id != applicationID && (id != 0 || cookie != 0) {
		return fmt.Errorf("%s: %w: it is another program's database", path, ErrNotAStore)
	}
	return nil
}

// migrations lists the schema's steps in order; their number is the version.
func migrations() ([]string, error) {
	entries, err := fs.ReadDir(schemaFiles, "schema") // sorted by name
	if err != nil {
		return nil, err
	}
	var steps []string
	for i, e := range entries {
		var n int
		if _, err := fmt.Sscanf(e.Name(), "%03d_", &n); err != nil || n != i+1 {
			return nil, fmt.Errorf("schema file %s is out of order: want number %03d", e.Name(), i+1)
		}
		b, err := fs.ReadFile(schemaFiles, "schema/"+e.Name())
		if err != nil {
			return nil, err
		}
		steps = append(steps, string(b))
	}
	return steps, nil
}

// migrate brings the database to the newest schema, one transaction a step,
// and binds a new one to its relay key. The epoch stays what it is.
func migrate(c *conn, isNew bool, o Options) error {
	r := reader{c}
	tables, err := r.pragma("schema_version") // SQLite's own: 0 while nothing was ever created
	if err != nil {
		return err
	}
	id, err := r.pragma("application_id")
	if err != nil {
		return err
	}
	version := 0
	switch {
	case tables == 0 && (o.Key == wire.PublicKey{}):
		return ErrNoStore
	case tables == 0:
	case id != applicationID:
		return fmt.Errorf("%w: it is another program's database", ErrNotAStore)
	default:
		in, err := r.Info()
		if err != nil {
			return err
		}
		version = in.Schema
		if (o.Key != wire.PublicKey{}) && in.RelayKey != o.Key {
			return fmt.Errorf("%w: it belongs to %s, the key given is %s", ErrOtherKey, in.RelayKey.Fingerprint(), o.Key.Fingerprint())
		}
	}
	steps, err := migrations()
	if err != nil {
		return err
	}
	if version > len(steps) {
		return fmt.Errorf("%w: it has schema %d, this binary knows %d; run the newer binary", ErrNewerSchema, version, len(steps))
	}
	for ; version < len(steps); version++ {
		if err := step(c, steps[version], version+1, o); err != nil {
			return fmt.Errorf("migrate to schema %d: %w", version+1, err)
		}
	}
	return nil
}

// step runs one schema file and what belongs to its version, all or nothing.
func step(c *conn, sql string, version int, o Options) (err error) {
	defer func() {
		if err != nil {
			c.failed = nil
			_, e := c.exec("ROLLBACK")
			err = errors.Join(err, e)
		}
	}()
	if _, err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if _, err := c.exec(sql); err != nil {
		return err
	}
	t := newTx(c, nil, nil)
	if version == 1 {
		now := o.Now()
		for _, set := range []func() error{
			func() error { _, err := c.exec(fmt.Sprintf("PRAGMA application_id = %d", applicationID)); return err },
			func() error { return t.setMeta("relay_pubkey", o.Key) },
			func() error { return t.SetEpoch(uuid.NewString()) },
			func() error { return t.SetHeartbeat(now) },
			func() error { return t.setMeta("expiry_from", now) },
			func() error { return t.setMeta("created_at", now) },
		} {
			if err := set(); err != nil {
				return err
			}
		}
	}
	if version == 3 {
		if err := t.fingerprints(); err != nil {
			return err
		}
	}
	if err := t.setMeta("schema_version", version); err != nil {
		return err
	}
	_, err = c.exec("COMMIT")
	return err
}

// fingerprints fills in those of the keys that were enrolled before schema 3. They
// are hashes, which SQLite does not make.
func (t *tx) fingerprints() error {
	var keys []wire.PublicKey
	if err := t.c.query(func(r row) error { keys = append(keys, r.key(0)); return nil }, "SELECT host_pubkey FROM enrolments"); err != nil {
		return err
	}
	for _, k := range keys {
		if _, err := t.c.exec("UPDATE enrolments SET host_fp = ? WHERE host_pubkey = ?", k.Fingerprint(), k); err != nil {
			return err
		}
	}
	return nil
}

var _ store.Tx = (*tx)(nil)
