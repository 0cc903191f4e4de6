package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Bounds of the quarantine. When it is full nothing more is received, since
// nothing may be dropped: a person has to look.
const (
	maxQuarantine      = 10_000
	maxQuarantineBytes = 256 << 20
	maxRetries         = 100 // rows tried again in one pass
)

// ErrNotQuarantined is returned for an id that is not in quarantine.
var ErrNotQuarantined = errors.New("not in quarantine")

// Quarantined is an item that a relay delivered and this host could not accept.
type Quarantined struct {
	ID     int64     `json:"id"`
	Relay  string    `json:"relay"`
	Epoch  string    `json:"epoch"`
	Seq    int64     `json:"seq"`
	Kind   string    `json:"kind"`
	ItemID string    `json:"item_id"`
	Sender string    `json:"sender_pubkey"`
	Claims string    `json:"claimed_host"` // the host that it names as its own, unproven
	Reason string    `json:"reason"`
	Bytes  int64     `json:"bytes"`
	At     time.Time `json:"at"`
	Wire   []byte    `json:"wire,omitempty"` // only when one item is asked for
}

// quarantine keeps an item that was refused, once for its place in the queue.
// A place may be another item's later, after a rotation of this host or when
// the relay went back in time: that one is kept, too.
func (h *Host) quarantine(t *tx, s *session, it relayclient.PulledItem, reason string) error {
	raw := it.Wire
	if !it.WireOK {
		raw = it.Raw
	}
	if raw == nil {
		raw = []byte{}
	}
	_, err := t.exec(`INSERT INTO quarantine (relay, epoch, seq, kind, item_id, sender, claims, reason, wire, at)
		SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
		WHERE NOT EXISTS (SELECT 1 FROM quarantine WHERE relay = ?1 AND epoch = ?2 AND seq = ?3 AND kind = ?4 AND item_id = ?5 AND wire = ?9)`,
		s.url, s.epoch, it.Seq, cut(it.Kind, 20), cut(it.ID, 3*wire.MaxItemID), cut(it.Sender, 64), claimedHost(it.Kind, raw), cut(reason, 200), raw, t.now)
	return err
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

// claimedHost is the fold of the host that an item names as its sender.
func claimedHost(kind string, raw []byte) string {
	var addr string
	switch kind {
	case wire.KindEnvelope:
		if head, err := wire.CheckEnvelope(raw); err == nil {
			addr = head.From
		}
	case wire.KindReceipt:
		if r, err := wire.CheckReceipt(raw); err == nil {
			addr = r.Recipient
		}
	}
	if _, host, _ := wire.SplitAddress(addr); wire.ValidHostName(host) {
		return wire.FoldName(host)
	}
	return ""
}

// roomInQuarantine is trouble when the quarantine is full.
func (h *Host) roomInQuarantine(ctx context.Context) error {
	var n, bytes int64
	err := h.db.read(ctx, func(t *tx) error {
		_, err := t.get("SELECT count(*), coalesce(sum(bytes), 0) FROM quarantine", nil, &n, &bytes)
		return err
	})
	if err != nil {
		return err
	}
	if n >= maxQuarantine || bytes >= maxQuarantineBytes {
		return &trouble{state: relayFull, detail: fmt.Sprintf("%s, %d bytes are in quarantine: look at them and discard what is junk; until then nothing is received", plural(n, "item"), bytes)}
	}
	return nil
}

const quarantineColumns = "id, relay, epoch, seq, kind, item_id, sender, claims, reason, bytes, at"

func (q *Quarantined) scan(scan func(...any) error, more ...any) error {
	var at int64
	err := scan(append([]any{&q.ID, &q.Relay, &q.Epoch, &q.Seq, &q.Kind, &q.ItemID, &q.Sender, &q.Claims, &q.Reason, &q.Bytes, &at}, more...)...)
	q.At = time.UnixMilli(at).UTC()
	return err
}

// Quarantine lists a page of what is in quarantine, oldest first, after an id.
func (h *Host) Quarantine(ctx context.Context, after int64, limit int) (list []Quarantined, err error) {
	list = []Quarantined{}
	err = h.db.read(ctx, func(t *tx) error {
		return t.each("SELECT "+quarantineColumns+" FROM quarantine WHERE id > ? ORDER BY id LIMIT ?", []any{after, limit}, func(scan func(...any) error) error {
			var q Quarantined
			err := q.scan(scan)
			list = append(list, q)
			return err
		})
	})
	return list, err
}

// Quarantined returns one item with its bytes.
func (h *Host) Quarantined(ctx context.Context, id int64) (q Quarantined, err error) {
	err = h.db.read(ctx, func(t *tx) (err error) {
		q, err = getQuarantined(t, id)
		return err
	})
	return q, err
}

func getQuarantined(t *tx, id int64) (q Quarantined, err error) {
	found := false
	err = t.each("SELECT "+quarantineColumns+", wire FROM quarantine WHERE id = ?", []any{id}, func(scan func(...any) error) error {
		found = true
		return q.scan(scan, &q.Wire)
	})
	if err == nil && !found {
		err = fmt.Errorf("%d: %w", id, ErrNotQuarantined)
	}
	return q, err
}

// RetryQuarantined judges an item again: it is delivered and gone, or stays with
// the reason of now, which is returned.
func (h *Host) RetryQuarantined(ctx context.Context, id int64) (result string, err error) {
	err = h.db.write(ctx, func(t *tx) error {
		q, err := getQuarantined(t, id)
		if err != nil {
			return err
		}
		result, err = h.retry(t, q)
		return err
	})
	h.wake()
	return result, err
}

// retry judges a quarantined item again.
func (h *Host) retry(t *tx, q Quarantined) (result string, err error) {
	r, err := loadRelay(t, q.Relay)
	if err != nil {
		return "", err
	}
	it := relayclient.PulledItem{Seq: q.Seq, Kind: q.Kind, ID: q.ItemID, Sender: q.Sender, Wire: q.Wire, WireOK: true}
	err = t.savepoint(func() (err error) {
		result, err = h.judgeItem(t, &session{url: q.Relay, key: r.key, epoch: q.Epoch}, it)
		return err
	})
	if isConstraint(err) {
		result, err = "rejected:unreadable item", nil
	}
	if err != nil {
		return "", err
	}
	switch result {
	case resultAccepted, resultDuplicate, resultStale:
		if _, err := t.exec("DELETE FROM quarantine WHERE id = ?", q.ID); err != nil {
			return "", err
		}
		return result, audit(t, "quarantine.released", fmt.Sprintf("%d %s: %s", q.ID, q.ItemID, result))
	}
	_, err = t.exec("UPDATE quarantine SET reason = ?, retried_at = ? WHERE id = ?", cut(result, 200), t.now, q.ID)
	return result, err
}

// DiscardQuarantined drops an item for good.
func (h *Host) DiscardQuarantined(ctx context.Context, id int64) error {
	return h.db.write(ctx, func(t *tx) error {
		q, err := getQuarantined(t, id)
		if err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM quarantine WHERE id = ?", id); err != nil {
			return err
		}
		return audit(t, "quarantine.discarded", fmt.Sprintf("%d %s: %s", id, q.ItemID, q.Reason))
	})
}

// retryQuarantine tries again what was refused because its host was not paired:
// once that host is paired, under the name the item claims and with exactly the
// key that pushed it. The same goes, once, for a signature that did not verify:
// a relay may bring mail under a peer's new key before the peer's record comes.
func (h *Host) retryQuarantine(ctx context.Context) (accepted int, err error) {
	var ids []int64
	err = h.db.read(ctx, func(t *tx) error {
		var one int
		if any, err := t.get("SELECT 1 FROM quarantine LIMIT 1", nil, &one); err != nil || !any {
			return err
		}
		peers, err := allPeers(t)
		if err != nil {
			return err
		}
		for _, p := range peers {
			err := t.each(`SELECT id FROM quarantine WHERE sender = ? AND claims = ?
				AND (reason = 'rejected:host not paired' OR reason = 'rejected:bad signature' AND retried_at = 0) ORDER BY id LIMIT ?`,
				[]any{p.key.String(), p.fold, maxRetries - len(ids)}, func(scan func(...any) error) error {
					var id int64
					err := scan(&id)
					ids = append(ids, id)
					return err
				})
			if err != nil || len(ids) == maxRetries {
				return err
			}
		}
		return nil
	})
	for _, id := range ids {
		if err != nil {
			return accepted, err
		}
		var result string
		result, err = h.RetryQuarantined(ctx, id)
		if errors.Is(err, ErrNotQuarantined) {
			err = nil
		}
		if result == resultAccepted {
			accepted++
		}
	}
	return accepted, err
}
