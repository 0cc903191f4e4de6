package host

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Relays of before v2 sign nothing and find hosts by name. They are used only
// when info answers exactly 404 and no relay key was ever pinned.

// openV1 enrols this host and publishes its sealing key, once for each key.
func (h *Host) openV1(ctx context.Context, s *session, r *relayRow) error {
	want := "v1 " + h.Key().String()
	if r.enrolled == want {
		return nil
	}
	if err := h.db.write(ctx, func(t *tx) error { return makeRelay(t, s.url) }); err != nil {
		return err
	}
	if err := h.enrol(ctx, s, nil); err != nil {
		return err
	}
	s.enrolled = true
	k, caller := h.keyring(), h.relayCaller()
	enc := k.enc.Public()
	if err := s.client.PublishEncKeyV1(ctx, caller, enc, k.key.Sign(wire.EncKeyV1Payload(caller.Host, enc))); err != nil {
		return h.failed(err, s)
	}
	return h.db.write(ctx, func(t *tx) error {
		// A relay that did not know this host may count from 1 again: what is above
		// an old cursor would be acked unread.
		if _, err := t.exec("UPDATE relays SET enrolled = ?, v1_cursor = 0 WHERE url = ?", want, s.url); err != nil {
			return err
		}
		return audit(t, "relay.enrolled", s.url+" (v1)")
	})
}

// useV1 gives a v1 relay its mail, one envelope a request, and takes one page.
func (h *Host) useV1(ctx context.Context, s *session, rows []row, report *RelayReport) error {
	parcels, err := h.pickParcels(ctx, rows, nil)
	if err != nil {
		return err
	}
	var pushErr error
	s.pushUntil = h.now().Add(maxPass)
	for _, p := range parcels { // what is left stays due
		if pushErr = h.pushV1(ctx, s, p, report); pushErr != nil || !h.now().Before(s.pushUntil) {
			break
		}
	}
	var tr *trouble
	if pushErr != nil && (!errors.As(pushErr, &tr) || tr.state != relayUnavailable) {
		return pushErr
	}
	return cmp.Or(h.pullV1(ctx, s, report), pushErr)
}

// pushV1 ends a row on the relay's unsigned word: it is all that v1 has.
func (h *Host) pushV1(ctx context.Context, s *session, p parcel, report *RelayReport) error {
	held := func(reason string) error {
		report.Failed++
		return h.db.write(ctx, func(t *tx) error { return setError(t, p.mail, reason) })
	}
	enc := p.peer.enc
	if enc.IsZero() {
		got, err := s.client.V1EncKey(ctx, h.relayCaller(), p.peer.name)
		var status *relayclient.StatusError
		switch {
		case errors.As(err, &status) && status.Status == http.StatusNotFound:
			return held("no sealing key: the relay has none of it")
		case err != nil:
			return h.failed(err, s)
		}
		enc, err = wire.ParseEncPublicKey(got.EncPub)
		if err != nil || !p.peer.key.Verify(wire.EncKeyV1Payload(p.peer.name, enc), got.Sig) {
			return held("no sealing key: the relay's is not signed by the paired host")
		}
	}
	var env wire.Envelope
	var recipients []byte
	err := h.db.read(ctx, func(t *tx) (err error) {
		if env, err = loadEnvelope(t, p.mail.msg); err != nil {
			return err
		}
		_, err = t.get("SELECT recipients FROM routes WHERE msg = ? AND fold = ?", []any{p.mail.msg, p.mail.fold}, &recipients)
		return err
	})
	if errors.Is(err, errUnreadable) {
		return held(err.Error())
	}
	if err != nil {
		return err
	}
	env.To = onlyFor(env.To, p.peer.name)          // v1 routes by the recipients' hosts
	if len(env.To) == 0 || !allNamed(recipients) { // the others would be left out without a word
		return held("a v1 relay takes mail for named recipients only")
	}
	wired, err := wire.Seal(env, enc, h.keyring().key, h.Name())
	if err != nil {
		return held(sealReason(err))
	}
	stored, reason, err := s.client.V1Push(ctx, h.relayCaller(), [][]byte{wired})
	if err != nil {
		report.Failed++
		return h.failed(err, s)
	}
	if stored < 1 {
		return held("the relay refused it: " + reason)
	}
	report.Accepted++
	return h.db.write(ctx, func(t *tx) error {
		if err := leave(t, p.mail.msg, p.mail.fold); err != nil {
			return err
		}
		return setRoute(t, p.mail.msg, p.mail.fold, "handed-over")
	})
}

// onlyFor keeps the recipients at one host.
func onlyFor(to []string, host string) (kept []string) {
	for _, a := range to {
		if _, at, ok := wire.SplitAddress(a); ok && wire.FoldName(at) == wire.FoldName(host) {
			kept = append(kept, a)
		}
	}
	return kept
}

// pullV1 takes one page. The position is stored with it, then acked; what is
// refused goes to quarantine here, too.
func (h *Host) pullV1(ctx context.Context, s *session, report *RelayReport) error {
	h.receiving.Lock()
	defer h.receiving.Unlock()
	r, err := h.readRelay(ctx, s.url)
	if err != nil {
		return err
	}
	if err := h.roomInQuarantine(ctx); err != nil {
		return err
	}
	items, cursor, err := s.client.V1Pull(ctx, h.relayCaller(), r.v1Cursor)
	if err != nil {
		return h.failed(err, s)
	}
	if cursor < r.v1Cursor { // an in-memory relay that was started again
		cursor = 0
	}
	if len(items) == 0 && cursor == r.v1Cursor {
		return nil
	}
	var done RelayReport
	err = h.db.write(ctx, func(t *tx) error {
		done = RelayReport{}
		for _, it := range items {
			head, _ := wire.CheckEnvelope(it.Envelope)
			item := relayclient.PulledItem{Seq: it.Seq, Kind: wire.KindEnvelope, ID: head.ID, Wire: it.Envelope, WireOK: true}
			if err := h.takeItem(t, s, item, &done); err != nil {
				return err
			}
		}
		_, err := t.exec("UPDATE relays SET v1_cursor = ? WHERE url = ?", cursor, s.url)
		return err
	})
	if err != nil {
		return err
	}
	report.add(done)
	if err := s.client.V1Ack(ctx, h.relayCaller(), cursor); err != nil {
		return h.failed(err, s)
	}
	return nil
}
