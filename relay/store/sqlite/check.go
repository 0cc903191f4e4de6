package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/store"
)

// comparisons each list what does not agree; an agreeing store answers no row.
var comparisons = []struct{ what, query string }{
	{"a queue's counter differs from its items", `
		SELECT hex(coalesce(s.target_pubkey, i.target_pubkey)), s.items, s.bytes, i.n, i.b
		FROM seqs s FULL JOIN (SELECT target_pubkey, count(*) n, sum(bytes) b FROM items GROUP BY 1) i USING (target_pubkey)
		WHERE coalesce(s.items, 0) <> coalesce(i.n, 0) OR coalesce(s.bytes, 0) <> coalesce(i.b, 0)`},
	{"a sender's share differs from its items", `
		SELECT hex(coalesce(s.target_pubkey, i.target_pubkey)), hex(sender_pubkey), s.items, s.bytes, i.n, i.b
		FROM shares s FULL JOIN (SELECT target_pubkey, sender_pubkey, count(*) n, sum(bytes) b FROM items GROUP BY 1, 2) i
		USING (target_pubkey, sender_pubkey)
		WHERE coalesce(s.items, 0) <> coalesce(i.n, 0) OR coalesce(s.bytes, 0) <> coalesce(i.b, 0)`},
	{"an account's counter differs from its items", `
		SELECT account, a.items, a.bytes, i.n, i.b
		FROM accounts a FULL JOIN (SELECT e.account, count(*) n, sum(bytes) b
			FROM items JOIN enrolments e ON host_pubkey = target_pubkey WHERE e.account IS NOT NULL GROUP BY 1) i USING (account)
		WHERE coalesce(a.items, 0) <> coalesce(i.n, 0) OR coalesce(a.bytes, 0) <> coalesce(i.b, 0)`},
	{"a total differs from a count", `
		SELECT name, value, n FROM (
			SELECT 'items' name, count(*) n FROM items UNION ALL SELECT 'bytes', coalesce(sum(bytes), 0) FROM items
			UNION ALL SELECT 'enrolments', count(*) FROM enrolments WHERE revoked_at IS NULL) LEFT JOIN totals USING (name)
		WHERE value IS NOT n`},
	{"an item's size is not that of its wire", `SELECT hex(target_pubkey), seq FROM items WHERE bytes <> length(wire)`},
	{"a seq is not below the next one", `
		SELECT hex(i.target_pubkey), i.seq FROM items i LEFT JOIN seqs s USING (target_pubkey) WHERE s.next_seq IS NULL OR i.seq >= s.next_seq`},
	{"an ack is beyond the head", `
		SELECT hex(target_pubkey), acked_through FROM acked LEFT JOIN seqs s USING (target_pubkey)
		WHERE acked_through > 0 AND acked_through >= coalesce(s.next_seq, 1)`},
	{"an acked item is still queued", `
		SELECT hex(i.target_pubkey), i.seq FROM items i JOIN acked USING (target_pubkey) WHERE i.seq <= acked_through`},
}

// Check compares the store with itself over one snapshot: SQLite's integrity
// and foreign keys, every counter with a full count, sender lists with their
// index. It reads everything.
func (s *Store) Check(ctx context.Context) error {
	return s.View(ctx, func(r store.Reader) error {
		c := r.(reader).c
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
			if err := c.query(func(r row) error {
				faults = append(faults, fmt.Errorf("%s: %v", cmp.what, []any{r}))
				return nil
			}, cmp.query); err != nil {
				return fmt.Errorf("%s: %w", cmp.what, err)
			}
		}
		return errors.Join(append(faults, checkLists(c))...)
	})
}

// checkLists compares sender_lists with listed_senders.
func checkLists(c *conn) error {
	want := map[string]bool{}
	if err := c.query(func(r row) error {
		for _, k := range unpack(r.bytes(1)) {
			want[string(k[:])+string(r.bytes(0))] = true
		}
		return nil
	}, "SELECT target_pubkey, senders FROM sender_lists"); err != nil {
		return err
	}
	var faults []error
	if err := c.query(func(r row) error {
		k := string(r.bytes(0)) + string(r.bytes(1))
		if !want[k] {
			faults = append(faults, fmt.Errorf("listed sender %x is in no list", k))
		}
		delete(want, k)
		return nil
	}, "SELECT sender_pubkey, target_pubkey FROM listed_senders"); err != nil {
		return err
	}
	if len(want) > 0 {
		faults = append(faults, fmt.Errorf("%d entries of sender lists are not indexed", len(want)))
	}
	return errors.Join(faults...)
}
