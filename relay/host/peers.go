package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// ErrNoPeer is returned for a host that is not paired.
var ErrNoPeer = errors.New("not paired: see agentmbx peers, or pair with agentmbx pair and join")

// Peer is a paired host, for people.
type Peer struct {
	Name        string         `json:"name"`
	Key         wire.PublicKey `json:"host_pubkey"`
	Fingerprint string         `json:"fingerprint"`
	Addr        string         `json:"addr"`
	PairedAt    time.Time      `json:"paired_at"`
	SeenAt      *time.Time     `json:"seen_at"` // nil for never
	Reachable   bool           `json:"lan_reachable"`
	EncKey      bool           `json:"enc_key"` // its sealing key is pinned
	AdRefused   string         `json:"enc_ad_refused,omitempty"`
}

// peer is a row of peers.
type peer struct {
	fold, name  string
	key         wire.PublicKey
	addr        string
	pairedAt    int64
	seenAt      int64
	lanFailures int
	lanBad      bool
	seenAddr    string
	enc         wire.EncPublicKey // zero for none
	adKey       wire.EncPublicKey
	adIAT       int64
	adRefused   string
	confirms    bool
}

// lanDown reports whether the peer's last address is known to reach nobody.
func (p *peer) lanDown() bool { return p.addr == "" || p.lanFailures > 0 }

const peerColumns = "fold, name, key, addr, paired_at, seen_at, lan_failures, lan_bad, seen_addr, enc_key, ad_key, ad_iat, ad_refused, confirms"

func (p *peer) scan(scan func(...any) error) error {
	var key, enc, ad []byte
	err := scan(&p.fold, &p.name, &key, &p.addr, &p.pairedAt, &p.seenAt, &p.lanFailures, &p.lanBad, &p.seenAddr, &enc, &ad, &p.adIAT, &p.adRefused, &p.confirms)
	copy(p.key[:], key)
	copy(p.enc[:], enc)
	copy(p.adKey[:], ad)
	return err
}

// findPeer returns nil for a name that is not paired.
func findPeer(t *tx, fold string) (*peer, error) {
	p := &peer{}
	found := false
	err := t.each("SELECT "+peerColumns+" FROM peers WHERE fold = ?", []any{fold}, func(scan func(...any) error) error {
		found = true
		return p.scan(scan)
	})
	if err != nil || !found {
		return nil, err
	}
	return p, nil
}

func allPeers(t *tx) (peers []*peer, err error) {
	err = t.each("SELECT "+peerColumns+" FROM peers ORDER BY fold", nil, func(scan func(...any) error) error {
		p := &peer{}
		peers = append(peers, p)
		return p.scan(scan)
	})
	return peers, err
}

// keysOf are the keys that a peer's signature may be of: its own, then those
// it has rotated away from.
func keysOf(t *tx, p *peer) (keys []wire.PublicKey, err error) {
	keys = append(keys, p.key)
	err = t.each("SELECT key FROM retired_keys WHERE fold = ? ORDER BY retired_at DESC LIMIT 16", []any{p.fold}, func(scan func(...any) error) error {
		var b []byte
		err := scan(&b)
		var k wire.PublicKey
		copy(k[:], b)
		keys = append(keys, k)
		return err
	})
	return keys, err
}

// ErrTaken is returned when the name or the key of a host to pair is another's.
var ErrTaken = errors.New("this name, or this key, is paired already")

// addPeer pairs a host. To pair again with the same name and key renews the
// address; anything else that collides is ErrTaken.
func (h *Host) addPeer(t *tx, name string, key wire.PublicKey, ownerKey, addr string) error {
	fold := wire.FoldName(name)
	p, err := h.mayPair(t, fold, key)
	switch {
	case err != nil:
		return err
	case p != nil:
		_, err = t.exec("UPDATE peers SET name = ?, owner_key = ?, addr = ?, lan_failures = 0, lan_bad = 0, seen_addr = '' WHERE fold = ?", name, ownerKey, addr, fold)
		return err
	}
	_, err = t.exec("INSERT INTO peers (fold, name, key, owner_key, addr, paired_at) VALUES (?, ?, ?, ?, ?, ?)",
		fold, name, key[:], ownerKey, addr, t.now)
	if err != nil {
		return err
	}
	// Keys that were rotated a moment ago, by another process perhaps, may not
	// be the ones that this pairing was signed with: the new peer hears of it, too.
	_, err = t.exec(`INSERT INTO rotation_peers (fold, new_key, next_at) SELECT ?1, new_key, ?2 FROM rotations
		WHERE abs(at - ?2) < ?3 ORDER BY at DESC LIMIT 1`, fold, t.now, time.Hour.Milliseconds())
	if err != nil {
		return err
	}
	return audit(t, "peer.paired", name+" "+key.Fingerprint())
}

// mayPair returns ErrTaken for a host that can't be paired, and the peer that
// it is already, nil for none.
func (h *Host) mayPair(t *tx, fold string, key wire.PublicKey) (*peer, error) {
	if fold == h.fold() || key == h.Key() {
		return nil, fmt.Errorf("%w: it is this host's own", ErrTaken)
	}
	var other, retired string
	if _, err := t.get("SELECT fold FROM peers WHERE key = ?", []any{key[:]}, &other); err != nil {
		return nil, err
	}
	if _, err := t.get("SELECT fold FROM retired_keys WHERE key = ?", []any{key[:]}, &retired); err != nil {
		return nil, err
	}
	p, err := findPeer(t, fold)
	if err == nil && (other != "" && other != fold || p != nil && p.key != key || retired != "") {
		err = ErrTaken
	}
	return p, err
}

// Peers lists the paired hosts.
func (h *Host) Peers(ctx context.Context) (peers []Peer, err error) {
	peers = []Peer{}
	err = h.db.read(ctx, func(t *tx) error {
		rows, err := allPeers(t)
		for _, p := range rows {
			out := Peer{
				Name: p.name, Key: p.key, Fingerprint: p.key.Fingerprint(), Addr: p.addr,
				PairedAt: time.UnixMilli(p.pairedAt).UTC(), Reachable: !p.lanDown(), EncKey: !p.enc.IsZero(), AdRefused: p.adRefused,
			}
			if p.seenAt > 0 {
				at := time.UnixMilli(p.seenAt).UTC()
				out.SeenAt = &at
			}
			peers = append(peers, out)
		}
		return err
	})
	return peers, err
}

// RemovePeer drops a paired host and tells it, if it can be reached. Mail that
// waits for it comes back to its senders. It returns how many did.
func (h *Host) RemovePeer(ctx context.Context, name string) (undelivered int, err error) {
	var p *peer
	err = h.db.read(ctx, func(t *tx) (err error) {
		p, err = findPeer(t, wire.FoldName(name))
		return err
	})
	if err != nil {
		return 0, err
	}
	if p == nil {
		return 0, fmt.Errorf("%s: %w", name, ErrNoPeer)
	}
	if p.addr != "" {
		if err := h.lan.Unpair(ctx, h.caller(), p.addr); err != nil {
			h.log.Info("the peer was not told that it is removed", "peer", p.name, "err", err)
		}
	}
	err = h.db.write(ctx, func(t *tx) (err error) {
		undelivered, err = h.dropPeer(t, p, "peer.removed")
		return err
	})
	return undelivered, err
}

// dropPeer forgets a peer. Mail on its way to it ends, and its senders are told;
// receipts for it have nowhere to go.
func (h *Host) dropPeer(t *tx, p *peer, event string) (undelivered int, err error) {
	few, err := firstWaiting(t, p.fold)
	if err != nil {
		return 0, err
	}
	waiting, err := countBySender(t, "SELECT m.sender, count(*) FROM outbox o JOIN messages m ON m.id = o.msg WHERE o.fold = ? GROUP BY m.sender", p.fold)
	if err != nil {
		return 0, err
	}
	held, err := countBySender(t, `SELECT m.sender, count(*) FROM relay_sent s JOIN messages m ON m.id = s.msg
		WHERE s.fold = ? AND s.state = 'relay-accepted' GROUP BY m.sender`, p.fold)
	if err != nil {
		return 0, err
	}
	for _, q := range []struct {
		query string
		args  []any
	}{
		{"UPDATE routes SET state = 'undelivered', at = ?2 WHERE fold = ?1 AND state = 'queued'", []any{p.fold, t.now}},
		{"UPDATE routes SET state = 'unconfirmed', at = ?2 WHERE fold = ?1 AND state = 'relay-accepted'", []any{p.fold, t.now}},
		{"UPDATE relay_sent SET state = 'rejected', state_at = ?2 WHERE fold = ?1 AND state = 'repush'", []any{p.fold, t.now}},
		{"UPDATE relay_sent SET state = 'unconfirmed', state_at = ?2 WHERE fold = ?1 AND state = 'relay-accepted'", []any{p.fold, t.now}},
		{"DELETE FROM outbox WHERE fold = ?", []any{p.fold}},
		{"DELETE FROM wires WHERE fold = ?", []any{p.fold}},
		{"DELETE FROM receipts_out WHERE fold = ?", []any{p.fold}},
		{"DELETE FROM rotation_peers WHERE fold = ?", []any{p.fold}},
		{"DELETE FROM retired_keys WHERE fold = ?", []any{p.fold}},
		{"DELETE FROM peers WHERE fold = ?", []any{p.fold}},
	} {
		if _, err := t.exec(q.query, q.args...); err != nil {
			return 0, err
		}
	}
	for _, msg := range few {
		if err := h.tellSender(t, msg, p.name, "Undelivered", "the host is no longer paired"); err != nil {
			return 0, err
		}
	}
	for box, n := range waiting {
		undelivered += n
		if few != nil {
			continue // each was told of by itself
		}
		err := h.alert(t, box, fmt.Sprintf("Undelivered to %s: %s", p.name, plural(int64(n), "message")),
			"The host is no longer paired. What was waiting for it is marked undelivered: see agentmbx sent.\n")
		if err != nil {
			return 0, err
		}
	}
	for box, n := range held {
		err := h.alert(t, box, fmt.Sprintf("Undelivered/unconfirmed to %s: %s", p.name, plural(int64(n), "message")),
			"The host is no longer paired. A relay has taken this mail for it, and whether it arrives can't be told any more.\n")
		if err != nil {
			return 0, err
		}
	}
	return undelivered, audit(t, event, p.name+" "+p.key.Fingerprint())
}

// maxAlerts is how many messages are told of one by one when a peer goes.
const maxAlerts = 50

// firstWaiting are the messages that wait for a host; nil when they are more
// than maxAlerts.
func firstWaiting(t *tx, fold string) (msgs []string, err error) {
	msgs = []string{}
	err = t.each("SELECT msg FROM outbox WHERE fold = ? ORDER BY queued_at, msg LIMIT ?", []any{fold, maxAlerts + 1}, func(scan func(...any) error) error {
		var msg string
		err := scan(&msg)
		msgs = append(msgs, msg)
		return err
	})
	if len(msgs) > maxAlerts {
		msgs = nil
	}
	return msgs, err
}

// countBySender counts messages by the mailbox they were sent from.
func countBySender(t *tx, query, fold string) (counts map[string]int, err error) {
	counts = map[string]int{}
	return counts, t.each(query, []any{fold}, func(scan func(...any) error) error {
		var sender string
		var n int
		err := scan(&sender, &n)
		counts[senderBox(sender)] += n
		return err
	})
}
