package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agentmbx/agentmbx/relay/store"
)

// comparisons each list what does not agree; an agreeing store answers no row.
// Counters are looked up for what there is and then compared in sum, which finds
// those that count what is not there: a FULL JOIN would take the square of it.
// since is the first schema that keeps what they compare.
var comparisons = []struct {
	what, query string
	since       int
}{
	{"a queue's counter differs from its items", `
		SELECT hex(target_pubkey), s.items, s.bytes, n, b
		FROM (SELECT target_pubkey, count(*) n, sum(bytes) b FROM charged GROUP BY 1) LEFT JOIN seqs s USING (target_pubkey)
		WHERE s.items IS NOT n OR s.bytes IS NOT b` + inSum("seqs", "charged"), 1},
	{"a sender's share differs from its items", `
		SELECT hex(target_pubkey), hex(sender_pubkey), s.items, s.bytes, n, b
		FROM (SELECT target_pubkey, sender_pubkey, count(*) n, sum(bytes) b FROM charged GROUP BY 1, 2)
		LEFT JOIN shares s USING (target_pubkey, sender_pubkey)
		WHERE s.items IS NOT n OR s.bytes IS NOT b` + inSum("shares", "charged", "NULL"), 1},
	{"an account's counter differs from its items", `
		SELECT account, a.items, a.bytes, n, b
		FROM (SELECT e.account, count(*) n, sum(bytes) b
			FROM charged JOIN enrolments e ON host_pubkey = target_pubkey WHERE e.account IS NOT NULL GROUP BY 1) LEFT JOIN accounts a USING (account)
		WHERE a.items IS NOT n OR a.bytes IS NOT b` +
		inSum("accounts", "charged JOIN enrolments ON host_pubkey = target_pubkey WHERE account IS NOT NULL"), 1},
	{"a total differs from a count", `
		SELECT name, value, n FROM (
			SELECT 'items' name, count(*) n FROM charged UNION ALL SELECT 'bytes', coalesce(sum(bytes), 0) FROM charged
			UNION ALL SELECT 'enrolments', count(*) FROM enrolments WHERE revoked_at IS NULL) LEFT JOIN totals USING (name)
		WHERE value IS NOT n`, 1},
	{"an item's size is not that of its wire", `SELECT hex(target_pubkey), seq FROM items WHERE bytes <> length(wire)
		UNION ALL SELECT hex(target_pubkey), seq FROM quarantine WHERE bytes <> length(wire)`, 1},
	{"a seq is not below the next one", `
		SELECT hex(i.target_pubkey), i.seq FROM charged i LEFT JOIN seqs s USING (target_pubkey) WHERE s.next_seq IS NULL OR i.seq >= s.next_seq`, 1},
	{"an item is queued and held", `SELECT hex(target_pubkey), seq FROM items JOIN quarantine USING (target_pubkey, seq)`, 1},
	{"an item's dedup row has the hash of other bytes", `
		SELECT hex(i.target_pubkey), i.seq FROM items i JOIN dedup d USING (sender_pubkey, item_id, target_pubkey)
		WHERE d.seq = i.seq AND d.wire_hash <> i.wire_hash`, 1},
	{"an ack is beyond the head", `
		SELECT hex(target_pubkey), acked_through FROM acked LEFT JOIN seqs s USING (target_pubkey)
		WHERE acked_through > 0 AND acked_through >= coalesce(s.next_seq, 1)`, 1},
	{"an acked item is still queued", `
		SELECT hex(i.target_pubkey), i.seq FROM items i JOIN acked USING (target_pubkey) WHERE i.seq <= acked_through`, 1},
	{"a queue's counter of held items differs from the quarantine", `
		SELECT hex(target_pubkey), s.held_items, s.held_bytes, n, b
		FROM (SELECT target_pubkey, count(*) n, sum(bytes) b FROM quarantine GROUP BY 1) LEFT JOIN seqs s USING (target_pubkey)
		WHERE s.held_items IS NOT n OR s.held_bytes IS NOT b
		UNION ALL SELECT 'all', i, c, n, b
		FROM (SELECT coalesce(sum(held_items), 0) i, coalesce(sum(held_bytes), 0) c FROM seqs),
			(SELECT count(*) n, coalesce(sum(bytes), 0) b FROM quarantine)
		WHERE i <> n OR c <> b`, 3},
	{"a queue's oldest is not when its first item was accepted", `
		SELECT hex(target_pubkey), oldest, first FROM (SELECT target_pubkey, oldest,
			(SELECT accepted_at FROM items i WHERE i.target_pubkey = s.target_pubkey ORDER BY seq LIMIT 1) first FROM seqs s)
		WHERE oldest IS NOT first`, 3},
	// SQLite leaves CHECK constraints out of an integrity check that is read-only.
	{"a queue's MiB are not those of its bytes", `SELECT hex(target_pubkey), bytes, mib FROM seqs WHERE mib <> bytes / 1048576`, 3},
	{"the total of held items differs from a count", `
		SELECT value, n FROM (SELECT 'held' name, count(*) n FROM quarantine) LEFT JOIN totals USING (name) WHERE value IS NOT n`, 3},
	{"a denial names nobody", `SELECT id FROM deny WHERE coalesce(host_fp, '') = '' AND coalesce(client_id, '') = ''`, 1},
	{"a denial's number is above the last one given", `
		SELECT id FROM deny WHERE id > coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'deny'), 0)`, 3},
	{"a credential or a deny list has no name", `SELECT hex(host_pubkey) FROM enrolments WHERE client_id = ''
		UNION ALL SELECT source FROM deny_lists WHERE jti = ''`, 4},
}

// inSum compares the sum of a table of counters with what is counted.
func inSum(counters, counted string, columns ...string) string {
	return ` UNION ALL SELECT ` + strings.Join(append(columns, "'all'"), ", ") + `, i, c, n, b
		FROM (SELECT coalesce(sum(items), 0) i, coalesce(sum(bytes), 0) c FROM ` + counters + `),
			(SELECT count(*) n, coalesce(sum(bytes), 0) b FROM ` + counted + `)
		WHERE i <> n OR c <> b`
}

// Check compares the store with itself over one snapshot: SQLite's integrity
// and foreign keys, every counter with a full count, sender lists with their
// index. It reads everything.
func (s *Store) Check(ctx context.Context) error {
	return s.View(ctx, func(store.Reader) (err error) { // a reader's place, so that Close waits
		c, err := openConn(s.path, "ro", checkPragmas)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		return s.snapshot(c, func(store.Reader) error {
			return c.during(ctx, func() error { return check(c, 0) })
		})
	})
}

// checkPragmas are for a connection of its own: what has to be sorted grows with
// the store, and goes to disk.
var checkPragmas = []string{"query_only(on)", "busy_timeout(5000)", "trusted_schema(off)", "temp_store(file)", "cache_size(-16384)"}

// before2 stands in front of a comparison for a file of schema 1, which has no
// quarantine.
const before2 = `WITH charged AS (SELECT target_pubkey, seq, sender_pubkey, bytes FROM items),
	quarantine AS (SELECT target_pubkey, seq, bytes, wire FROM items WHERE false) `

// check compares what c sees; schema is 0 for the newest.
func check(c *conn, schema int) error {
	older := ""
	if schema == 1 {
		older = before2
	}
	var faults []error
	if err := c.query(func(r row) error {
		if r.text(0) != "ok" {
			faults = append(faults, fmt.Errorf("integrity: %s", r.text(0)))
		}
		return nil
	}, "PRAGMA integrity_check"); err != nil {
		return err
	}
	if err := c.query(func(r row) error {
		faults = append(faults, fmt.Errorf("foreign key: %v", []any{r}))
		return nil
	}, "PRAGMA foreign_key_check"); err != nil {
		return err
	}
	for _, cmp := range comparisons {
		if schema != 0 && schema < cmp.since {
			continue
		}
		if err := c.query(func(r row) error {
			faults = append(faults, fmt.Errorf("%s: %v", cmp.what, []any{r}))
			return nil
		}, older+cmp.query); err != nil {
			return fmt.Errorf("%s: %w", cmp.what, err)
		}
	}
	if schema == 0 || schema >= 3 {
		wrong, err := checkFingerprints(c)
		if err != nil {
			return errors.Join(append(faults, err)...)
		}
		faults = append(faults, wrong...)
	}
	lists, err := checkLists(c)
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	return also(errors.Join(append(faults, lists...)...), ErrDamaged)
}

func checkFingerprints(c *conn) (faults []error, err error) {
	err = c.query(func(r row) error {
		if k := r.key(0); r.text(1) != k.Fingerprint() {
			faults = append(faults, fmt.Errorf("the enrolment of %s has the fingerprint %q", k.Fingerprint(), r.text(1)))
		}
		return nil
	}, "SELECT host_pubkey, host_fp FROM enrolments")
	return faults, err
}

// checkLists compares sender_lists with listed_senders, row by row: there may be
// millions. When every entry of a list is indexed and the index has no more rows
// than that, it has no others.
func checkLists(c *conn) (faults []error, err error) {
	var entries, missing, rows int64
	if err := c.query(func(r row) error {
		target := r.key(0)
		for _, k := range unpack(r.bytes(1)) {
			ok, err := c.one(func(row) {}, "SELECT 1 FROM listed_senders WHERE sender_pubkey = ? AND target_pubkey = ?", k, target)
			if err != nil {
				return err
			}
			if entries++; !ok {
				missing++
			}
		}
		return nil
	}, "SELECT target_pubkey, senders FROM sender_lists"); err != nil {
		return nil, err
	}
	if _, err := c.one(func(r row) { rows = r.int(0) }, "SELECT count(*) FROM listed_senders"); err != nil {
		return nil, err
	}
	if missing > 0 {
		faults = append(faults, fmt.Errorf("%d entries of sender lists are not indexed", missing))
	}
	if extra := rows - (entries - missing); extra > 0 {
		faults = append(faults, fmt.Errorf("%d listed senders are in no list", extra))
	}
	return faults, nil
}
