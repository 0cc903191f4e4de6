package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// checkClock looks for what this host stored at a time that has not come yet:
// its clock was ahead then, or is behind now.
func (e *examiner) checkClock(t *tx) error {
	var latest int64
	_, err := t.get(`SELECT max((SELECT coalesce(max(at), 0) FROM messages), (SELECT coalesce(max(at), 0) FROM audit),
		(SELECT coalesce(max(queued_at), 0) FROM outbox), (SELECT coalesce(max(max(seen_at, paired_at)), 0) FROM peers),
		(SELECT coalesce(max(max(state_at, ok_at)), 0) FROM relays), (SELECT coalesce(max(state_at), 0) FROM relay_sent))`, nil, &latest)
	if ahead := e.at(latest).Sub(e.now); err == nil && ahead > wire.MaxAhead {
		e.warn("clock", "the clock went back: host.db has entries from "+span(ahead)+" ahead of it",
			fmt.Sprintf("look at the clock, which says %s; if it is right, what waits goes on by %s", wire.FormatTime(e.now), wire.FormatTime(e.at(latest))))
	}
	return err
}

// checkDaemon says whether mail moves at all. A host that has nobody to write
// to does not need a daemon yet.
func (e *examiner) checkDaemon(t *tx) error {
	var needed bool
	_, err := t.get("SELECT EXISTS (SELECT 1 FROM peers) OR EXISTS (SELECT 1 FROM pair_tokens WHERE expires_at > ?)", []any{t.now}, &needed)
	switch {
	case err != nil || e.lockBad:
	case e.running:
		e.ok("daemon", "one runs on this home")
	case needed:
		e.warn("daemon", "none runs on this home: nothing is sent or received", runDaemon)
	default:
		e.info("daemon", "none runs on this home", runDaemon)
	}
	return err
}

// maxPeerLines is how many peers with trouble get a line of their own.
const maxPeerLines = 10

// checkPeers looks at the paired hosts and at whether mail for them can be sealed.
func (e *examiner) checkPeers(t *tx) error {
	peers, err := allPeers(t)
	if err != nil {
		return err
	}
	if len(peers) == 0 {
		e.info("peers", "no host is paired", "agentmbx pair prints a token, which the other machine gives to agentmbx join")
		return nil
	}
	e.ok("peers", plural(int64(len(peers)), "host")+" paired")
	if len(peers) > wire.MaxSenders && relayURL(e.o, e.config) != "" {
		e.warn("peers", fmt.Sprintf("over %d hosts are paired: no sender list is published, and the relay takes mail for this host from everyone enrolled", wire.MaxSenders),
			"remove those that are gone: agentmbx peers remove NAME")
	}
	var idle []string
	shown, more := 0, int64(0)
	for _, p := range peers {
		if p.adRefused != "" {
			if shown++; shown > maxPeerLines {
				more++
				continue
			}
			e.warn("sealing-key", fmt.Sprintf("the relay's sealing key of %s is refused: %s", p.name, p.adRefused),
				"mail for "+p.name+" waits until its daemon publishes a good one, or is on the same LAN once")
			continue
		}
		if !p.enc.IsZero() || !p.adKey.IsZero() {
			continue
		}
		var n int64
		if _, err := t.get("SELECT count(*) FROM outbox WHERE fold = ? AND error <> ''", []any{p.fold}, &n); err != nil {
			return err
		}
		if n == 0 {
			idle = append(idle, p.name)
			continue
		}
		if shown++; shown > maxPeerLines {
			more++
			continue
		}
		e.warn("sealing-key", fmt.Sprintf("no sealing key of %s is known, and %s for it", p.name, waits(n, "message")),
			"start a daemon there, on the same LAN or enrolled at the same relay")
	}
	if more > 0 {
		e.warn("sealing-key", "the same with "+plural(more, "more peer"), "agentmbx peers shows which")
	}
	if len(idle) > 0 {
		e.info("sealing-key", "not known yet of "+few(idle)+": the first mail asks for it", "")
	}
	return nil
}

func waits(n int64, what string) string {
	if n == 1 {
		return "1 " + what + " waits"
	}
	return plural(n, what) + " wait"
}

func (e *examiner) checkTokens(t *tx) error {
	var n, last int64
	_, err := t.get("SELECT count(*), coalesce(max(expires_at), 0) FROM pair_tokens WHERE expires_at > ?1 AND expires_at <= ?1 + ?2 AND failures < ?3",
		[]any{t.now, MaxTokenLife.Milliseconds(), tokenTries}, &n, &last)
	if err == nil && n > 0 {
		e.info("pairing", fmt.Sprintf("%s open, the last one for %s", plural(n, "token"), span(e.at(last).Sub(e.now))), "")
	}
	return err
}

func (e *examiner) checkOutbox(t *tx) error {
	var n, again int64
	if _, err := t.get("SELECT count(*), coalesce(sum(state = 'repush'), 0) FROM outbox", nil, &n, &again); err != nil {
		return err
	}
	if n == 0 {
		e.ok("outbox", "nothing waits")
		return nil
	}
	var queued int64
	var reason, fold string
	_, err := t.get("SELECT queued_at, error, fold FROM outbox ORDER BY queued_at, msg, fold LIMIT 1", nil, &queued, &reason, &fold)
	if err != nil {
		return err
	}
	text := waits(n, "message")
	if again > 0 {
		text += fmt.Sprintf(" (%d to go to the relay again)", again)
	}
	text += ", the oldest " + e.lasts(queued)
	if reason != "" {
		text += ", for " + fold + ": " + reason
	}
	e.info("outbox", text, "")
	return nil
}

func (e *examiner) checkReceipts(t *tx) error {
	var n, old int64
	var hosts []string
	err := t.each("SELECT fold, count(*), coalesce(sum(error = ?), 0) FROM receipts_out GROUP BY fold ORDER BY fold", []any{receiptsUnknown}, func(scan func(...any) error) error {
		var fold string
		var all, tooOld int64
		err := scan(&fold, &all, &tooOld)
		n, old = n+all, old+tooOld
		if tooOld > 0 {
			hosts = append(hosts, fold)
		}
		return err
	})
	if err == nil && n-old > 0 {
		e.info("receipts", plural(n-old, "receipt")+" owed to other hosts", "")
	}
	if err == nil && old > 0 {
		e.info("receipts", fmt.Sprintf("%s for hosts too old to take them: %s", plural(old, "receipt"), few(hosts)), "they are dropped after 72 hours; a newer agentmbx there takes them")
	}
	return err
}

// checkRotations looks for a change of this host's keys that is not complete,
// or that others have not heard of.
func (e *examiner) checkRotations(t *tx) error {
	e.checkStaged()
	if e.keys != nil {
		for _, record := range e.keys.rotations {
			r, err := wire.ParseRotation(record)
			if err != nil {
				return err
			}
			var one int
			known, err := t.get("SELECT 1 FROM rotations WHERE new_key = ?", []any{r.NewPub[:]}, &one)
			if err != nil {
				return err
			}
			if !known {
				e.warn("rotation", "this host's key was rotated, and nobody is told yet", e.nextPass())
			}
		}
	}
	if url := relayURL(e.o, e.config); url != "" {
		var n int64
		var refused string
		_, err := t.get("SELECT count(*), coalesce(max(refused), '') FROM rotations WHERE relay <> ?", []any{url}, &n, &refused)
		switch {
		case err != nil:
			return err
		case refused != "":
			e.warn("rotation", "the relay refuses this host's new key: "+refused, "ask the relay's operator; if the new key itself is refused, rotate again: agentmbx rotate-key")
		case n > 0:
			e.warn("rotation", "the relay has not taken this host's new key yet", e.nextPass())
		}
	}
	var names, refusing []string
	var oldest int64
	err := t.each("SELECT coalesce(p.name, q.fold), q.refused FROM rotation_peers q LEFT JOIN peers p ON p.fold = q.fold WHERE q.refused <> '' GROUP BY q.fold ORDER BY q.fold", nil,
		func(scan func(...any) error) error {
			var name, why string
			err := scan(&name, &why)
			refusing = append(refusing, name+" ("+why+")")
			return err
		})
	if err != nil {
		return err
	}
	if len(refusing) > 0 {
		e.warn("rotation", "this host's new key is refused by "+few(refusing), "pair again: remove the peer on both sides with agentmbx peers remove, then agentmbx pair and join")
	}
	err = t.each(`SELECT coalesce(p.name, q.fold), min(r.at) FROM rotation_peers q JOIN rotations r ON r.new_key = q.new_key LEFT JOIN peers p ON p.fold = q.fold
		WHERE q.refused = '' GROUP BY q.fold ORDER BY q.fold`, nil, func(scan func(...any) error) error {
		var name string
		var at int64
		err := scan(&name, &at)
		if names = append(names, name); oldest == 0 || at < oldest {
			oldest = at
		}
		return err
	})
	if err != nil || len(names) == 0 {
		return err
	}
	text := "not told yet to " + few(names) + ", rotated " + e.ago(oldest)
	fix := "each is told once it is reached over the LAN; one that never is must be paired again"
	if e.now.Sub(e.at(oldest)) > 24*time.Hour {
		e.warn("rotation", text, fix)
	} else {
		e.info("rotation", text, fix)
	}
	return nil
}

// checkStaged looks for a rotation that was begun.
func (e *examiner) checkStaged() {
	staged, err := readKeys(filepath.Join(e.o.Home, nextKeys))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err == nil && (e.keys == nil || staged.follows(e.keys)):
		e.warn("rotation", "a rotation of this host's key was begun and not completed", "complete it: agentmbx rotate-key")
	default:
		e.warn("rotation", nextKeys+" does not follow from "+keysFile, "move it away; then rotate with agentmbx rotate-key")
	}
}
