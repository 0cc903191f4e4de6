package host

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// What became of an envelope or a receipt. Everything else begins with "rejected:".
const (
	resultAccepted  = "accepted"
	resultDuplicate = "duplicate"
	resultStale     = "stale"
	notPaired       = "rejected:host not paired"
)

// Envelopes takes mail that a peer handed over on the LAN. It makes Host a lan.Node.
func (h *Host) Envelopes(ctx context.Context, from lan.Peer, envelopes [][]byte) (results []lan.Result, err error) {
	for chunk := range slices.Chunk(envelopes, h.group) {
		err := h.db.write(ctx, func(t *tx) error {
			for _, raw := range chunk {
				id, result, err := h.receiveEnvelope(t, raw, from.Name, false)
				if err != nil {
					return err
				}
				results = append(results, lan.Result{ID: id, Result: result})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	h.wake()
	return results, nil
}

// receiveEnvelope checks an envelope in the order of host.md §2 and stores it
// with its deliveries. Caller names the peer that made a LAN call, "" for mail
// that came over a relay: then the host judged is the one the envelope names.
// An error means that nothing could be decided and nothing is stored.
func (h *Host) receiveEnvelope(t *tx, raw []byte, caller string, overRelay bool) (id, result string, err error) {
	e, err := wire.ParseEnvelope(raw)
	if err != nil {
		return idOf(raw), "rejected:" + err.Error(), nil
	}
	name, host, _ := wire.SplitAddress(e.From)
	judged := host
	if caller != "" {
		judged = caller
	}
	p, err := findPeer(t, wire.FoldName(judged))
	switch {
	case err != nil:
		return e.ID, "", err
	case p == nil:
		return e.ID, notPaired, nil
	case wire.FoldName(host) != p.fold || e.Sig == nil || wire.FoldName(e.Sig.Host) != p.fold:
		return e.ID, "rejected:sender host mismatch", nil
	case !wire.ValidAgentName(name):
		return e.ID, "rejected:bad sender address", nil
	}
	keys, err := keysOf(t, p)
	if err != nil {
		return e.ID, "", err
	}
	if !slices.ContainsFunc(keys, func(k wire.PublicKey) bool { return wire.VerifyEnvelope(raw, k) == nil }) {
		return e.ID, "rejected:bad signature", nil
	}
	body, err := h.open(raw)
	if errors.Is(err, wire.ErrNotSealed) {
		return e.ID, "rejected:envelope body is not sealed", nil
	}
	if err != nil {
		return e.ID, "rejected:undecryptable body", nil
	}
	result, err = h.takeIn(t, e, raw, body, p, overRelay)
	return e.ID, result, err
}

// idOf finds the id of something that is no envelope, to name it in an answer.
func idOf(raw []byte) string {
	var head struct {
		ID string `json:"id"`
	}
	if wire.Decode(raw, &head) != nil || !wire.ValidID(head.ID) {
		return ""
	}
	return head.ID
}

// open opens a sealed body with the key of now, then with those of before.
func (h *Host) open(raw []byte) (body []byte, err error) {
	k := h.keyring()
	body, err = wire.Open(raw, k.enc)
	for _, enc := range k.retired {
		if !errors.Is(err, wire.ErrUndecryptable) {
			break
		}
		body, err = wire.Open(raw, enc)
	}
	return body, err
}

// takeIn stores an envelope that was verified and opened, unless it is known.
func (h *Host) takeIn(t *tx, e wire.Envelope, raw, body []byte, p *peer, overRelay bool) (string, error) {
	id, known, err := placeFor(t, e.ID, p.fold)
	if err != nil {
		return "", err
	}
	if known {
		// A sender that pushes again may have missed our receipts. Over the LAN
		// they are tried until they arrive.
		if overRelay {
			err = h.oweAgain(t, id, overRelay)
		}
		return resultDuplicate, err
	}
	boxes, err := h.localRecipients(t, e)
	if err != nil {
		return "", err
	}
	if len(boxes) == 0 && slices.ContainsFunc(e.To, h.isHere) {
		return "rejected:no such mailbox", nil // nothing that can be one
	}
	if len(boxes) == 0 { // a name that nobody here has: known from now on, and not kept
		_, err := t.exec("INSERT INTO pruned_ids (id, origin, at) VALUES (?, ?, ?)", e.ID, p.fold, t.now)
		return resultAccepted, err
	}
	opened, err := wire.OpenedForm(raw, body)
	if err != nil {
		return "", err
	}
	return resultAccepted, h.storeMessage(t, id, e, opened, p.fold, boxes, overRelay)
}

// placeFor is the id that a host's message has here, and whether it is known.
// A host that got a copy of another's message knows its id; with a message of
// its own under that id it must not keep the other one out.
func placeFor(t *tx, id, origin string) (place string, known bool, err error) {
	known, err = t.get("SELECT id FROM messages WHERE id IN (?1, ?1 || '@' || ?2) AND origin = ?2", []any{id, origin}, &place)
	if known || err != nil {
		return place, known, err
	}
	var one int
	known, err = t.get("SELECT 1 FROM pruned_ids WHERE id = ? AND origin = ?", []any{id, origin}, &one)
	if known || err != nil {
		return id, known, err
	}
	taken, err := t.get("SELECT 1 FROM messages WHERE id = ?", []any{id}, &one)
	if taken {
		return id + "@" + origin, false, err
	}
	return id, false, err
}

// isHere reports whether an address names this host.
func (h *Host) isHere(addr string) bool {
	_, host, at := wire.SplitAddress(addr)
	return at && wire.FoldName(host) == h.fold()
}

// localRecipients are the mailboxes of this host that an envelope is for:
// name@thishost always, a bare name only when the mailbox was created here and
// the sender did not mean its own.
func (h *Host) localRecipients(t *tx, e wire.Envelope) (boxes []string, err error) {
	p := plan{}
	for _, to := range e.To {
		name, host, at := wire.SplitAddress(to)
		switch {
		case at && wire.FoldName(host) == h.fold() && wire.ValidAgentName(name):
			if !slices.Contains(p.local, name) {
				p.local = append(p.local, name)
			}
		case at:
		case to == "*":
			err = p.addLocal(t, "SELECT name FROM mailboxes WHERE made AND name <> ? ORDER BY name", "")
		case strings.HasPrefix(to, "role:"):
			err = p.addLocal(t, "SELECT name FROM mailboxes WHERE made AND instr(roles, ?) ORDER BY name", " "+strings.TrimPrefix(to, "role:")+" ")
		case !slices.Contains(e.Meta.LocalNames, to):
			err = p.addLocal(t, "SELECT name FROM mailboxes WHERE made AND name = ?", to)
		}
		if err != nil {
			return nil, err
		}
	}
	return p.local, nil
}
