package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// maxPushBytes bounds the wire bytes of one push: a relay takes 8 MiB of JSON.
const maxPushBytes = 5 << 20

// parcel is one item on its way to a relay: mail of the outbox, or a receipt.
type parcel struct {
	mail    *row
	receipt *owed
	peer    *peer
	item    relayclient.Item
	hash    string
	sealed  int64 // when the bytes were made, which is before they were first pushed
}

// push gives the relay what is for it among the rows and receipts of this tick:
// what the LAN has failed at, or what is for a host whose address reaches nobody.
func (h *Host) push(ctx context.Context, s *session, rows []row, receipts []owed, report *RelayReport) error {
	parcels, err := h.pickParcels(ctx, rows, receipts)
	if err != nil {
		return err
	}
	ads := map[string]adAnswer{} // each peer is looked up once a pass
	s.pushUntil = h.now().Add(maxPass)
	for len(parcels) > 0 && h.now().Before(s.pushUntil) { // what is left stays due
		batch, n, err := h.pack(ctx, s, parcels, ads, report)
		if err != nil {
			return err
		}
		parcels = parcels[n:]
		if len(batch) == 0 {
			continue
		}
		if err := h.pushBatch(ctx, s, batch, report); err != nil {
			return err
		}
	}
	return nil
}

// pickParcels leaves out what still goes over the LAN. What a relay has held
// before, or what answers mail that came over one, is not kept waiting; where
// the LAN is switched off no address reaches anybody, and nothing is.
func (h *Host) pickParcels(ctx context.Context, rows []row, receipts []owed) (parcels []parcel, err error) {
	lanOff := h.lanIsOff()
	err = h.db.read(ctx, func(t *tx) error {
		peers := map[string]*peer{}
		forRelay := func(fold string, attempts int, knowsIt bool) (*peer, error) {
			p, ok := peers[fold]
			if !ok {
				var err error
				if p, err = findPeer(t, fold); err != nil {
					return nil, err
				}
				peers[fold] = p
			}
			if p == nil || attempts < relayAfter && !knowsIt && !p.lanDown() && !lanOff {
				return nil, nil
			}
			return p, nil
		}
		for i := range rows {
			p, err := forRelay(rows[i].fold, rows[i].attempts, rows[i].repush)
			if err != nil {
				return err
			}
			if p != nil {
				parcels = append(parcels, parcel{mail: &rows[i], peer: p})
			}
		}
		for i := range receipts {
			o := &receipts[i]
			p, err := forRelay(o.fold, o.attempts, o.overRelay)
			if err != nil {
				return err
			}
			if p != nil {
				id := fmt.Sprintf("receipt:%s:%s:%d", o.msg, o.recipient, o.seq)
				parcels = append(parcels, parcel{receipt: o, peer: p, hash: wire.HashHex(o.wire),
					item: relayclient.Item{Kind: wire.KindReceipt, ID: id, Target: p.key, Wire: o.wire}})
			}
		}
		return nil
	})
	return parcels, err
}

// pack makes the bytes of one push and stores those that are new before
// anything is sent. It returns how many parcels it has looked at; one that
// can't be sealed now stays in the outbox and is counted as failed.
func (h *Host) pack(ctx context.Context, s *session, parcels []parcel, ads map[string]adAnswer, report *RelayReport) (batch []parcel, n int, err error) {
	size := int64(0)
	var fresh []parcel
	former := map[*row][]byte{}
	notes := map[*row]string{} // why a row can't be given to the relay now
	for _, p := range parcels {
		if len(batch) == s.limits.MaxBatch || len(batch) > 0 && size >= maxPushBytes || !h.now().Before(s.pushUntil) {
			break
		}
		if p.mail != nil {
			old, err := h.wireFor(ctx, s, &p, ads)
			var held *heldBack
			if errors.As(err, &held) {
				n++
				report.Failed++
				notes[p.mail] = held.reason
				continue
			}
			if err != nil {
				return nil, 0, err
			}
			if p.sealed == 0 {
				p.sealed = h.now().UnixMilli()
				fresh = append(fresh, p)
				former[p.mail] = old
			}
		}
		n++
		if int64(len(p.item.Wire)) > s.limits.MaxItemBytes {
			report.Failed++
			if p.mail != nil {
				notes[p.mail] = fmt.Sprintf("it is over the relay's limit of %d bytes and waits for the LAN", s.limits.MaxItemBytes)
			}
			continue
		}
		if len(batch) > 0 && size+int64(len(p.item.Wire)) > maxPushBytes {
			n--
			break
		}
		size += int64(len(p.item.Wire))
		batch = append(batch, p)
	}
	if len(fresh)+len(notes) == 0 {
		return batch, n, nil
	}
	return batch, n, h.db.write(ctx, func(t *tx) error {
		for r, reason := range notes {
			if err := setError(t, r, reason); err != nil {
				return err
			}
		}
		for _, p := range fresh {
			// Not for a row that was confirmed meanwhile: nobody would take its bytes away.
			_, err := t.exec(`INSERT INTO wires (msg, fold, target, wire, hash, sealed_at, former)
				SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM outbox WHERE msg = ?1 AND fold = ?2)
				ON CONFLICT (msg, fold) DO UPDATE SET target = ?3, wire = ?4, hash = ?5, sealed_at = ?6, former = ?7`,
				p.mail.msg, p.mail.fold, p.peer.key[:], p.item.Wire, p.hash, p.sealed, former[p.mail])
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// heldBack is why a row can't be given to the relay now.
type heldBack struct{ reason string }

func (e *heldBack) Error() string { return e.reason }

// wireFor fills in a parcel's bytes: those of before, or new ones when there are
// none or when the peer has another host key now. Then it returns the old ones.
func (h *Host) wireFor(ctx context.Context, s *session, p *parcel, ads map[string]adAnswer) (old []byte, err error) {
	var target, wired []byte
	var env wire.Envelope
	err = h.db.read(ctx, func(t *tx) (err error) {
		if _, err = t.get("SELECT target, wire, hash, sealed_at FROM wires WHERE msg = ? AND fold = ?", []any{p.mail.msg, p.mail.fold},
			&target, &wired, &p.hash, &p.sealed); err != nil {
			return err
		}
		env, err = loadEnvelope(t, p.mail.msg)
		return err
	})
	if errors.Is(err, errUnreadable) {
		return nil, &heldBack{err.Error()}
	}
	if err != nil {
		return nil, err
	}
	p.item = relayclient.Item{Kind: wire.KindEnvelope, ID: p.mail.msg, Target: p.peer.key, Wire: wired}
	if bytes.Equal(target, p.peer.key[:]) {
		return nil, nil
	}
	p.sealed = 0
	enc := p.peer.enc
	if enc.IsZero() {
		answer, asked := ads[p.peer.fold]
		if !asked {
			if answer, err = h.lookUpAd(ctx, s, p.peer); err != nil {
				return nil, err
			}
			ads[p.peer.fold] = answer
		}
		if answer.refused != "" {
			return nil, &heldBack{"no sealing key: " + answer.refused}
		}
		enc = answer.enc
	}
	if p.item.Wire, err = wire.Seal(env, enc, h.keyring().key, h.Name()); err != nil {
		return nil, &heldBack{sealReason(err)} // this row's trouble, or its peer's key's: not the others'
	}
	p.hash = wire.HashHex(p.item.Wire)
	return wired, nil
}

// adAnswer is a peer's sealing key from the relay, or why there is none.
type adAnswer struct {
	enc     wire.EncPublicKey
	refused string
}

const adReplay = "replay of an old key"

// lookUpAd asks the relay for a peer's sealing key. Only a record that the
// pinned host key signed counts, and one with another key must be newer than
// the newest taken.
func (h *Host) lookUpAd(ctx context.Context, s *session, p *peer) (adAnswer, error) {
	got, err := s.client.EncKey(ctx, h.relayCaller(), p.key)
	var status *relayclient.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		return adAnswer{refused: "the relay has none of it"}, nil
	}
	if err != nil && ownTrouble(err) {
		return adAnswer{refused: "the relay's answer about it can't be used: " + err.Error()}, nil
	}
	if err != nil {
		return adAnswer{}, h.failed(err, s)
	}
	ad, refused := checkAd(got, p, h.now())
	if refused == p.adRefused && (refused != "" || ad.EncPub == p.adKey && ad.IAT.UnixMilli() <= p.adIAT) {
		return adAnswer{ad.EncPub, refused}, nil // nothing new
	}
	return adAnswer{ad.EncPub, refused}, h.db.write(ctx, func(t *tx) error {
		if refused != "" {
			if err := audit(t, "enc_ad.refused", p.name+": "+refused); err != nil {
				return err
			}
			_, err := t.exec("UPDATE peers SET ad_refused = ? WHERE fold = ? AND key = ?", refused, p.fold, p.key[:])
			return err
		}
		_, err := t.exec("UPDATE peers SET ad_refused = '', ad_key = ?, ad_iat = max(ad_iat, ?) WHERE fold = ? AND key = ?",
			ad.EncPub[:], ad.IAT.UnixMilli(), p.fold, p.key[:])
		return err
	})
}

// ownTrouble reports an answer that says something about this one peer, and not
// about the relay or this host.
func ownTrouble(err error) bool {
	var status *relayclient.StatusError
	if !errors.As(err, &status) {
		return errors.Is(err, relayclient.ErrBadAnswer)
	}
	switch status.Status {
	case http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return false
	}
	return true
}

// checkAd checks a relay's answer about a peer's sealing key and says why it
// is refused, "" for not.
func checkAd(got relayclient.EncKey, p *peer, now time.Time) (ad wire.EncAd, refused string) {
	ad, err := wire.ParseEncAd(got.Ad, got.AdSig, p.name, p.key, now)
	var bad *wire.AdError
	switch {
	case errors.As(err, &bad) && bad.Reason == wire.AdUnsigned && got.EncPub != "" && len(got.Ad) == 0:
		return ad, wire.AdUnsigned + ": a v1 key only"
	case errors.As(err, &bad):
		return ad, bad.Reason
	case p.adIAT > 0 && ad.EncPub != p.adKey && ad.IAT.UnixMilli() <= p.adIAT:
		return ad, adReplay
	}
	return ad, ""
}

// pushBatch pushes parcels and ends those that the relay has taken.
func (h *Host) pushBatch(ctx context.Context, s *session, batch []parcel, report *RelayReport) error {
	items := make([]relayclient.Item, len(batch))
	for i := range batch {
		items[i] = batch[i].item
	}
	own := h.Key()
	h.at("push:stored")
	results, err := s.client.Push(ctx, h.relayCaller(), items)
	if err != nil {
		report.Failed += len(batch)
		return h.failed(err, s)
	}
	h.at("push:answered")
	var done RelayReport
	newEpoch := ""
	err = h.db.write(ctx, func(t *tx) error {
		done, newEpoch = RelayReport{}, ""
		for i, p := range batch {
			r := relayclient.PushResult{}
			if i < len(results) {
				r = results[i]
			}
			epoch, err := h.takeResult(t, s, p, r, own, &done)
			if err != nil {
				return err
			}
			if epoch != "" && epoch != s.epoch {
				newEpoch = epoch
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	report.Accepted += done.Accepted
	report.Rejected += done.Rejected
	report.Failed += done.Failed
	report.ReceiptsSent += done.ReceiptsSent
	if newEpoch != "" {
		return h.timeTravel(ctx, s.url, newEpoch, "")
	}
	return nil
}

// takeResult acts on what the relay says of one parcel. Only its signed word
// about exactly these bytes, for this target, from this host, counts.
func (h *Host) takeResult(t *tx, s *session, p parcel, r relayclient.PushResult, own wire.PublicKey, report *RelayReport) (epoch string, err error) {
	if refusal, rejected := strings.CutPrefix(r.Status, "rejected:"); rejected {
		if p.mail != nil {
			report.Rejected++
		}
		return "", h.refusedByRelay(t, p, refusal)
	}
	if r.Status != resultAccepted && r.Status != resultDuplicate {
		report.Failed++
		return "", h.noAccept(t, p, "the relay gave no result for it")
	}
	a, target, err := checkAccept(r, s.key, own, p)
	if err != nil {
		report.Failed++
		return "", h.noAccept(t, p, "the relay's accept does not hold: "+err.Error())
	}
	if p.receipt != nil {
		report.ReceiptsSent++
		return a.Epoch, p.receipt.drop(t)
	}
	report.Accepted++
	return a.Epoch, h.relayTook(t, s, p, a, target, r)
}

// checkAccept verifies an accept and that it is about this parcel.
func checkAccept(r relayclient.PushResult, relay, own wire.PublicKey, p parcel) (wire.Accept, wire.AcceptTarget, error) {
	a, err := wire.VerifyAccept(r.Accept, r.Sig, relay)
	if err != nil {
		return a, wire.AcceptTarget{}, err
	}
	if a.SenderPubkey != own || a.ItemID != p.item.ID {
		return a, wire.AcceptTarget{}, errors.New("it is about another item")
	}
	for _, target := range a.Targets {
		if target.HostPubkey == p.item.Target {
			if target.WireHash != p.hash {
				return a, target, errors.New("it is about other bytes")
			}
			return a, target, nil
		}
	}
	return a, wire.AcceptTarget{}, errors.New("it is about another target")
}

// noAccept leaves a parcel where it is and notes why.
func (h *Host) noAccept(t *tx, p parcel, reason string) error {
	if err := audit(t, "relay.bad_accept", p.item.ID+" for "+p.peer.name+": "+reason); err != nil || p.mail == nil {
		return err
	}
	return setError(t, p.mail, reason)
}

// refusedByRelay leaves a parcel where it is: it is tried again, over the LAN
// too, until its time is over. After a conflict the bytes of before are tried:
// the relay may hold those, under the peer's new key.
func (h *Host) refusedByRelay(t *tx, p parcel, refusal string) error {
	reason := "the relay refused it: " + printable(refusal)
	if p.receipt != nil && strings.HasPrefix(refusal, signedByAnother) {
		return h.signAgain(t, *p.receipt)
	}
	if p.receipt != nil {
		_, err := t.exec("UPDATE receipts_out SET error = ? WHERE msg = ? AND recipient = ? AND seq = ?", reason, p.receipt.msg, p.receipt.recipient, p.receipt.seq)
		return err
	}
	if err := audit(t, "relay.push_rejected", p.item.ID+" for "+p.peer.name+": "+refusal); err != nil {
		return err
	}
	if refusal == "conflict" {
		var former []byte
		if _, err := t.get("SELECT former FROM wires WHERE msg = ? AND fold = ?", []any{p.mail.msg, p.mail.fold}, &former); err != nil {
			return err
		}
		if len(former) > 0 {
			_, err := t.exec("UPDATE wires SET wire = ?, hash = ?, former = NULL WHERE msg = ? AND fold = ?", former, wire.HashHex(former), p.mail.msg, p.mail.fold)
			if err != nil {
				return err
			}
		}
	}
	return setError(t, p.mail, reason)
}

// relayTook moves a row from the outbox to what the relay holds. The bytes stay
// until the recipient confirms: a restored relay may have lost its copy.
func (h *Host) relayTook(t *tx, s *session, p parcel, a wire.Accept, target wire.AcceptTarget, r relayclient.PushResult) error {
	var one int
	waiting, err := t.get("SELECT 1 FROM outbox WHERE msg = ? AND fold = ?", []any{p.mail.msg, p.mail.fold}, &one)
	if err != nil || !waiting { // confirmed while the answer was on its way
		return err
	}
	at, deadline := clampAccept(a, s.limits.RetentionDays, p.sealed, t.now)
	_, err = t.exec(`INSERT INTO relay_sent (msg, fold, relay, target, hash, seq, epoch, accept, sig, accepted_at, deadline, state, state_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 'relay-accepted', ?12)
		ON CONFLICT (msg, fold) DO UPDATE SET relay = ?3, target = ?4, hash = ?5, seq = ?6, epoch = ?7, accept = ?8, sig = ?9,
			accepted_at = ?10, deadline = ?11, state = 'relay-accepted', state_at = ?12`,
		p.mail.msg, p.mail.fold, s.url, p.item.Target[:], p.hash, target.Seq, a.Epoch, []byte(r.Accept), r.Sig, at, deadline, t.now)
	if err != nil {
		return err
	}
	if err := leave(t, p.mail.msg, p.mail.fold); err != nil {
		return err
	}
	return setRoute(t, p.mail.msg, p.mail.fold, "relay-accepted")
}

// Bounds of what a relay says about times: it supplies them.
const (
	maxRetention = 60 * 24 * time.Hour

	defaultRetention = 14 // days
	deadlineGrace    = 24 * time.Hour
)

// clampAccept is when a relay took an item and until when its delivery must be
// confirmed, both kept within reason. However often a relay starts over, the
// sender hears of an end: no bytes are waited for longer than a queued row and
// then a relay's copy can live.
func clampAccept(a wire.Accept, retentionDays int, sealed, now int64) (at, deadline int64) {
	if parsed, err := wire.ParseTime(a.At); err == nil {
		at = parsed.UnixMilli()
	}
	at = min(max(at, sealed), now+wire.MaxAhead.Milliseconds()) // sealed may be of a clock that was ahead
	if retentionDays <= 0 {                                     // none that a relay can have
		retentionDays = defaultRetention
	}
	retention := min(time.Duration(min(retentionDays, 1000))*24*time.Hour, maxRetention)
	return at, min(at+(retention+deadlineGrace).Milliseconds(), sealed+(outboxLife+maxRetention+deadlineGrace).Milliseconds())
}
