package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Rotated is what RotateKey did.
type Rotated struct {
	Fingerprint string `json:"fingerprint"`
	Resumed     bool   `json:"resumed"` // a rotation that was begun before is complete now
	Peers       int    `json:"peers"`   // that will be told over the LAN
}

// RotateKey gives this host new keys. The old ones keep opening mail that was
// sealed for them; peers and the relay are told by the record that both keys
// signed. A call that a crash cut short is completed by the next one.
func (h *Host) RotateKey(ctx context.Context) (Rotated, error) {
	h.ticking.Lock()
	defer h.ticking.Unlock()
	// One at a time, in whichever process: two would rotate away from the same
	// key, and the peers would follow the one that was lost.
	lock := flock.New(filepath.Join(h.opts.Home, keysLock), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return Rotated{}, err
	}
	defer lock.Unlock()
	k, resumed, err := rotateKeys(h.opts.Home, h.Name(), h.now(), h.at)
	if err != nil {
		return Rotated{}, err
	}
	h.at("rotate:renamed")
	if err := h.reload(ctx); err != nil {
		return Rotated{}, err
	}
	out := Rotated{Fingerprint: k.key.Public().Fingerprint(), Resumed: resumed}
	err = h.db.read(ctx, func(t *tx) error {
		pub := k.key.Public()
		_, err := t.get("SELECT count(*) FROM rotation_peers WHERE new_key = ?", []any{pub[:]}, &out.Peers)
		return err
	})
	h.wake()
	return out, err
}

// noteRotations queues the rotations that keys.json has and the database has
// not: a crash between the two is made good by the next start.
func (h *Host) noteRotations(ctx context.Context) error {
	for _, record := range h.keyring().rotations {
		r, err := wire.ParseRotation(record)
		if err != nil {
			return err
		}
		var one int
		known := false
		err = h.db.read(ctx, func(t *tx) (err error) {
			known, err = t.get("SELECT 1 FROM rotations WHERE new_key = ?", []any{r.NewPub[:]}, &one)
			return err
		})
		if err != nil {
			return err
		}
		if known {
			continue
		}
		err = h.db.write(ctx, func(t *tx) error {
			// They follow one another, also when the clock went back between them.
			n, err := t.exec(`INSERT INTO rotations (new_key, at, record) VALUES (?, max(?, (SELECT coalesce(max(at), 0) + 1 FROM rotations)), ?)
				ON CONFLICT DO NOTHING`, r.NewPub[:], r.IAT.UnixMilli(), record)
			if err != nil || n == 0 {
				return err
			}
			if _, err := t.exec("INSERT INTO rotation_peers (fold, new_key, next_at) SELECT fold, ?, ? FROM peers", r.NewPub[:], t.now); err != nil {
				return err
			}
			return audit(t, "keys.rotated", r.OldPub.Fingerprint()+" to "+r.NewPub.Fingerprint())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tellRotations gives the relay the rotations that it has not taken. A relay
// that never knew the old key has nothing to move.
func (h *Host) tellRotations(ctx context.Context, s *session) (rotated bool, err error) {
	type pending struct{ key, record []byte }
	var all []pending
	err = h.db.read(ctx, func(t *tx) error {
		return t.each("SELECT new_key, record FROM rotations WHERE relay <> ? ORDER BY at, new_key", []any{s.url}, func(scan func(...any) error) error {
			var p pending
			err := scan(&p.key, &p.record)
			all = append(all, p)
			return err
		})
	})
	for _, p := range all {
		if err != nil {
			return rotated, err
		}
		_, callErr := s.client.Rotate(ctx, p.record)
		var status *relayclient.StatusError
		gone := errors.As(callErr, &status) && status.Status == http.StatusNotFound
		if callErr != nil && !gone {
			if status == nil || status.Status != http.StatusConflict && status.Status != http.StatusBadRequest {
				return rotated, h.failed(callErr, s)
			}
			err = h.db.write(ctx, func(t *tx) error {
				n, err := t.exec("UPDATE rotations SET refused = ?1 WHERE new_key = ?2 AND refused <> ?1", status.Error(), p.key)
				if err != nil || n == 0 {
					return err
				}
				return audit(t, "relay.rotation_refused", s.url+": "+status.Error())
			})
			continue
		}
		rotated = rotated || callErr == nil
		err = h.db.write(ctx, func(t *tx) error {
			if _, err := t.exec("UPDATE rotations SET relay = ?, refused = '' WHERE new_key = ?", s.url, p.key); err != nil {
				return err
			}
			// The items have new sequence numbers under the new key; also when a
			// first answer was lost and the relay says 404 to the second call.
			if _, err := t.exec("UPDATE relays SET position = 0, acked = 0 WHERE url = ?", s.url); err != nil || gone {
				return err
			}
			return audit(t, "relay.rotated", s.url)
		})
	}
	return rotated, err
}

// announceRotations tells peers over the LAN.
func (h *Host) announceRotations(ctx context.Context) error {
	if h.lanIsOff() {
		return nil
	}
	var folds []string
	err := h.db.read(ctx, func(t *tx) error {
		return t.each("SELECT DISTINCT fold FROM rotation_peers WHERE next_at <= ?1 OR next_at > ?1 + ?2 LIMIT 100", []any{t.now, maxBackoff.Milliseconds()}, func(scan func(...any) error) error {
			var fold string
			err := scan(&fold)
			folds = append(folds, fold)
			return err
		})
	})
	if err != nil {
		return err
	}
	return h.perHost(folds, func(fold string) error { return h.announceTo(ctx, fold) })
}

func (h *Host) announceTo(ctx context.Context, fold string) error {
	var p *peer
	var keys, records [][]byte
	attempts := 0
	err := h.db.read(ctx, func(t *tx) (err error) {
		if p, err = findPeer(t, fold); err != nil {
			return err
		}
		return t.each(`SELECT r.new_key, r.record, q.attempts FROM rotation_peers q JOIN rotations r ON r.new_key = q.new_key
			WHERE q.fold = ? ORDER BY r.at, r.new_key LIMIT ?`, []any{fold, lan.MaxRotations}, func(scan func(...any) error) error {
			var k, r []byte
			err := scan(&k, &r, &attempts)
			keys, records = append(keys, k), append(records, r)
			return err
		})
	})
	if err != nil || p == nil || len(records) == 0 {
		return err
	}
	var results []string
	cause := error(lan.ErrUnreachable)
	if p.addr != "" {
		results, cause = h.lan.Rotate(ctx, p.addr, records)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return h.db.write(ctx, func(t *tx) error {
		for i, k := range keys {
			result := ""
			if cause == nil && i < len(results) {
				result = results[i]
			}
			after, refused := strings.CutPrefix(result, "rejected:")
			if result != "rotated" && !refused {
				_, err := t.exec("UPDATE rotation_peers SET attempts = attempts + 1, next_at = ? WHERE fold = ? AND new_key = ?",
					t.now+backoff(attempts).Milliseconds(), fold, k)
				if err != nil {
					return err
				}
				continue
			}
			if refused { // it may have been paired with other keys: it is asked again, and doctor says so
				n, err := t.exec("UPDATE rotation_peers SET refused = ?1, attempts = attempts + 1, next_at = ?2 WHERE fold = ?3 AND new_key = ?4 AND refused <> ?1",
					cut(after, 200), t.now+maxBackoff.Milliseconds(), fold, k)
				if err == nil && n > 0 {
					err = audit(t, "rotation.refused", p.name+": "+after)
				} else if err == nil {
					_, err = t.exec("UPDATE rotation_peers SET next_at = ? WHERE fold = ? AND new_key = ?", t.now+maxBackoff.Milliseconds(), fold, k)
				}
				if err != nil {
					return err
				}
				continue
			}
			if _, err := t.exec("DELETE FROM rotation_peers WHERE fold = ? AND new_key = ?", fold, k); err != nil {
				return err
			}
		}
		return nil
	})
}

// Rotate takes peers' signed rotations. It is part of lan.Node.
func (h *Host) Rotate(ctx context.Context, records [][]byte) (results []string, err error) {
	err = h.db.write(ctx, func(t *tx) error {
		for _, record := range records {
			result, err := h.rotatePeer(t, record)
			if err != nil {
				return err
			}
			results = append(results, result)
		}
		return nil
	})
	if err == nil {
		_, err = h.retryQuarantine(ctx) // what came ahead of the record
	}
	h.wake()
	return results, err
}

// rotatePeer pins a peer's new keys on its old key's word. The old key keeps
// verifying what it signed.
func (h *Host) rotatePeer(t *tx, record []byte) (string, error) {
	r, err := wire.ParseRotation(record)
	if errors.Is(err, wire.ErrBadSignature) {
		return "rejected:bad signature", nil
	}
	if err != nil {
		return "rejected:malformed", nil
	}
	p, err := findPeer(t, wire.FoldName(r.Host))
	switch {
	case err != nil:
		return "", err
	case p == nil:
		return notPaired, nil
	case p.key == r.NewPub:
		return "rotated", nil
	case p.key != r.OldPub:
		return "rejected:not the paired key", nil
	}
	var taken string
	if _, err := t.get("SELECT fold FROM peers WHERE key = ?1 UNION ALL SELECT fold FROM retired_keys WHERE key = ?1", []any{r.NewPub[:]}, &taken); err != nil {
		return "", err
	}
	if taken != "" || r.NewPub == h.Key() {
		return "rejected:the new key is known already", nil
	}
	if _, err := t.exec("INSERT INTO retired_keys (key, fold, retired_at) VALUES (?, ?, ?)", p.key[:], p.fold, t.now); err != nil {
		return "", err
	}
	_, err = t.exec("UPDATE peers SET key = ?, enc_key = ?, ad_key = NULL, ad_iat = 0, ad_refused = '' WHERE fold = ?", r.NewPub[:], r.NewEncPub[:], p.fold)
	if err != nil {
		return "", err
	}
	// What waited for the new key may go now, and what a relay brought ahead of
	// this record may come in.
	if _, err := t.exec("UPDATE outbox SET next_at = min(next_at, ?) WHERE fold = ?", t.now, p.fold); err != nil {
		return "", err
	}
	return "rotated", audit(t, "peer.rotated", fmt.Sprintf("%s: %s to %s", p.name, p.key.Fingerprint(), r.NewPub.Fingerprint()))
}
