package host

import (
	"context"
	"time"
)

// prunedLife is how long the id of a pruned message is remembered (host.md §2):
// a week longer than a relay keeps mail unless it was told otherwise.
const prunedLife = 21 * 24 * time.Hour

// Pruned is what Prune did.
type Pruned struct {
	Removed int64 `json:"removed"`
	Kept    struct {
		Outbox int64 `json:"outbox"` // on its way, or held by a relay and not confirmed
		Open   int64 `json:"open"`   // not acked by everyone here
	} `json:"kept"`
}

// Prune removes messages older than age that nobody here still has to ack and
// that are not on their way. Ids of received ones are remembered, since a
// restored relay may deliver them once more.
func (h *Host) Prune(ctx context.Context, age time.Duration) (out Pruned, err error) {
	const (
		waiting = `EXISTS (SELECT 1 FROM outbox o WHERE o.msg = m.id)
			OR EXISTS (SELECT 1 FROM relay_sent s WHERE s.msg = m.id AND s.state IN ('relay-accepted', 'repush'))`
		open = `EXISTS (SELECT 1 FROM deliveries d WHERE d.msg = m.id AND d.state <> 'acked')`
	)
	cut := h.now().Add(-age).UnixMilli()
	err = h.db.read(ctx, func(t *tx) error {
		_, err := t.get(`SELECT coalesce(sum(w), 0), coalesce(sum(NOT w AND o), 0) FROM (SELECT (`+waiting+`) AS w, (`+open+`) AS o FROM messages m WHERE m.at < ?)`,
			[]any{cut}, &out.Kept.Outbox, &out.Kept.Open)
		return err
	})
	var lastAt, lastN int64 // what is kept is not looked at twice
	for more := true; err == nil && more; {
		err = h.db.write(ctx, func(t *tx) error {
			var ids []string
			var origins []string
			err := t.each(`SELECT m.id, m.origin, m.at, m.n FROM messages m WHERE m.at < ? AND (m.at, m.n) > (?, ?)
				AND NOT (`+waiting+`) AND NOT (`+open+`) ORDER BY m.at, m.n LIMIT 500`,
				[]any{cut, lastAt, lastN}, func(scan func(...any) error) error {
					var id, origin string
					err := scan(&id, &origin, &lastAt, &lastN)
					ids, origins = append(ids, id), append(origins, origin)
					return err
				})
			if err != nil {
				return err
			}
			more = len(ids) == 500
			for i, id := range ids {
				if err := pruneOne(t, id, origins[i]); err != nil {
					return err
				}
			}
			out.Removed += int64(len(ids))
			return nil
		})
	}
	return out, err
}

func pruneOne(t *tx, id, origin string) error {
	if _, err := t.exec("INSERT INTO pruned_ids (id, origin, at) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET at = excluded.at", wireID(id), origin, t.now); err != nil {
		return err
	}
	for _, q := range []string{"DELETE FROM relay_sent WHERE msg = ?", "DELETE FROM wires WHERE msg = ?", "DELETE FROM messages WHERE id = ?"} {
		if _, err := t.exec(q, id); err != nil {
			return err
		}
	}
	return nil
}

// forgetPruned drops the ids that are old enough.
func forgetPruned(t *tx) error {
	_, err := t.exec("DELETE FROM pruned_ids WHERE (id, origin) IN (SELECT id, origin FROM pruned_ids WHERE at < ? LIMIT 1000)", t.now-prunedLife.Milliseconds())
	return err
}
