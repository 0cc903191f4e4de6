package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// LANReport is what one pass over the LAN did.
type LANReport struct {
	Sent     int `json:"sent"`     // rows that the other host took
	Failed   int `json:"failed"`   // rows that will be tried again
	Rejected int `json:"rejected"` // rows that the other host refused for good
}

const (
	maxLANCalls = 8                // hosts called at once
	maxLANBatch = 3 << 20          // bytes of envelopes in one call: the peer takes 4 MiB
	maxOffer    = 15 * time.Second // before a host with more to take leaves it for the next tick
	probeAfter  = time.Minute
)

var errLANOff = errors.New("the LAN is switched off here")

// caller is who signs this host's LAN calls.
func (h *Host) caller() lan.Caller {
	h.mu.Lock()
	defer h.mu.Unlock()
	return lan.Caller{Host: h.config.Host, Key: h.keys.key, Port: h.lanPort}
}

func (h *Host) lanIsOff() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanOff
}

// lanPass offers rows to their hosts. Those that the relay pass has taken are
// no longer in the outbox and are left alone.
func (h *Host) lanPass(ctx context.Context, rows []row) (report LANReport, err error) {
	byFold := map[string][]row{}
	var folds []string
	for _, r := range rows {
		if byFold[r.fold] == nil {
			folds = append(folds, r.fold)
		}
		byFold[r.fold] = append(byFold[r.fold], r)
	}
	var mu sync.Mutex
	err = h.perHost(folds, func(fold string) error {
		sent, failed, rejected, err := h.offer(ctx, fold, byFold[fold])
		mu.Lock()
		report.Sent += sent
		report.Failed += failed
		report.Rejected += rejected
		mu.Unlock()
		return err
	})
	return report, err
}

// perHost calls fn for every host, a few at a time: one that hangs keeps the
// others waiting only a little.
func (h *Host) perHost(folds []string, fn func(fold string) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(folds))
	slots := make(chan struct{}, maxLANCalls)
	for i, fold := range folds {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = fn(fold)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// letter is a row with what is needed to seal it.
type letter struct {
	row
	env wire.Envelope
}

// offer gives one host its rows.
func (h *Host) offer(ctx context.Context, fold string, rows []row) (sent, failed, rejected int, err error) {
	var p *peer
	var letters []letter
	var unreadable []row
	err = h.db.read(ctx, func(t *tx) (err error) {
		if p, err = findPeer(t, fold); err != nil || p == nil {
			return err
		}
		for _, r := range rows {
			var one int
			if still, err := t.get("SELECT 1 FROM outbox WHERE msg = ? AND fold = ?", []any{r.msg, fold}, &one); err != nil {
				return err
			} else if !still {
				continue
			}
			env, err := loadEnvelope(t, r.msg)
			if errors.Is(err, errUnreadable) {
				unreadable = append(unreadable, r)
				continue
			}
			if err != nil {
				return err
			}
			letters = append(letters, letter{r, env})
		}
		return nil
	})
	if err == nil && len(unreadable) > 0 {
		err = h.db.write(ctx, func(t *tx) error {
			for _, r := range unreadable {
				if err := postpone(t, r, errUnreadable.Error()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil || len(letters) == 0 || p == nil {
		return 0, 0, 0, err
	}
	enc, cause := h.pinnedEnc(ctx, p)
	started := h.now()
	for cause == nil && len(letters) > 0 {
		if h.now().Sub(started) > maxOffer {
			break // the rest stays due: the other hosts have waited long enough
		}
		batch, sealed, left, err := h.sealBatch(ctx, letters, enc)
		if err != nil {
			return sent, failed, rejected, err
		}
		failed += len(letters) - len(sealed) - len(left)
		if len(batch) > 0 {
			var results []lan.Result
			if results, cause = h.lan.Envelopes(ctx, h.caller(), p.addr, batch); cause != nil {
				letters = append(sealed, left...)
				break
			}
			s, r, err := h.takeResults(ctx, p, sealed, results)
			if err != nil {
				return sent, failed, rejected, err
			}
			sent, rejected = sent+s, rejected+r
		}
		letters = left
	}
	if ctx.Err() != nil {
		return sent, failed, rejected, ctx.Err()
	}
	if cause == nil {
		return sent, failed, rejected, h.reached(ctx, p)
	}
	err = h.db.write(ctx, func(t *tx) error {
		for _, l := range letters {
			if err := postpone(t, l.row, lanReason(cause)); err != nil {
				return err
			}
		}
		return noteLANFailure(t, p, cause)
	})
	return sent, failed + len(letters), rejected, err
}

// sealBatch seals letters up to the size of one call. One that can't be sealed
// is postponed with the reason: it is its own trouble, not the others'.
func (h *Host) sealBatch(ctx context.Context, letters []letter, enc wire.EncPublicKey) (batch [][]byte, sealed, left []letter, err error) {
	size := 0
	for i, l := range letters {
		wired, err := wire.Seal(l.env, enc, h.keyring().key, h.Name())
		if err != nil {
			if err := h.db.write(ctx, func(t *tx) error { return postpone(t, l.row, sealReason(err)) }); err != nil {
				return nil, nil, nil, err
			}
			continue
		}
		if len(batch) > 0 && (size+len(wired) > maxLANBatch || len(batch) == lan.MaxEnvelopes) {
			return batch, sealed, letters[i:], nil
		}
		size += len(wired)
		batch, sealed = append(batch, wired), append(sealed, l)
	}
	return batch, sealed, nil, nil
}

func sealReason(err error) string { return "it can't be sealed: " + err.Error() }

// takeResults ends the rows that the host has decided about. A result that is
// missing, or is none that the protocol knows, is a refusal: the sender hears.
func (h *Host) takeResults(ctx context.Context, p *peer, letters []letter, results []lan.Result) (sent, rejected int, err error) {
	err = h.db.write(ctx, func(t *tx) error {
		sent, rejected = 0, 0
		for i, l := range letters {
			result := ""
			if i < len(results) {
				result = results[i].Result
			}
			if result == resultAccepted || result == resultDuplicate {
				sent++
				if err := end(t, l.msg, l.fold, "settled", "handed-over"); err != nil {
					return err
				}
				continue
			}
			rejected++
			reason := "the host gave no result for it"
			if after, ok := strings.CutPrefix(result, "rejected:"); ok {
				reason = "the host refused it: " + printable(after)
			}
			if err := h.undelivered(t, l.msg, p, reason); err != nil {
				return err
			}
		}
		return nil
	})
	return sent, rejected, err
}

// pinnedEnc is the peer's pinned sealing key; when there is none, the peer is
// asked for it.
func (h *Host) pinnedEnc(ctx context.Context, p *peer) (wire.EncPublicKey, error) {
	switch {
	case h.lanIsOff():
		return wire.EncPublicKey{}, errLANOff
	case p.addr == "":
		return wire.EncPublicKey{}, fmt.Errorf("no address is known: %w", lan.ErrUnreachable)
	case !p.enc.IsZero():
		return p.enc, nil
	}
	return h.refreshEnc(ctx, p)
}

var errBadEncKey = errors.New("its sealing key is not signed by the paired host")

// RefreshEncKey asks a peer for its sealing key and pins it, if the paired host
// signed it.
func (h *Host) RefreshEncKey(ctx context.Context, name string) error {
	var p *peer
	err := h.db.read(ctx, func(t *tx) (err error) {
		p, err = findPeer(t, wire.FoldName(name))
		return err
	})
	if err != nil {
		return err
	}
	if p == nil {
		return fmt.Errorf("%s: %w", name, ErrNoPeer)
	}
	_, err = h.refreshEnc(ctx, p)
	return err
}

func (h *Host) refreshEnc(ctx context.Context, p *peer) (wire.EncPublicKey, error) {
	host, enc, sig, err := h.lan.EncKey(ctx, h.caller(), p.addr)
	if err != nil {
		return wire.EncPublicKey{}, err
	}
	if wire.FoldName(host) != p.fold || !p.key.Verify(wire.EncKeyV1Payload(host, enc), sig) {
		err := h.db.write(ctx, func(t *tx) error { return audit(t, "enc_key.rejected", p.name+": "+errBadEncKey.Error()) })
		return wire.EncPublicKey{}, errors.Join(errBadEncKey, err)
	}
	if enc == p.enc {
		return enc, nil
	}
	return enc, h.db.write(ctx, func(t *tx) error {
		// Only for the key that was asked for: the peer may have rotated meanwhile.
		n, err := t.exec("UPDATE peers SET enc_key = ? WHERE fold = ? AND key = ?", enc[:], p.fold, p.key[:])
		if err != nil || n == 0 {
			return err
		}
		return audit(t, "enc_key.pinned", p.name)
	})
}

// lanReason is what a row says about its last attempt.
func lanReason(cause error) string {
	var status *lan.StatusError
	switch {
	case errors.Is(cause, lan.ErrUnreachable):
		return "the host can't be reached on the LAN"
	case errors.As(cause, &status) && tooOld(status.Status):
		return "the host is too old for sealed mail"
	}
	return cause.Error()
}

func tooOld(status int) bool {
	return status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented
}

// lately reports whether a time is of the last minute. One that is ahead of the
// clock is not: the clock was set back since.
func (h *Host) lately(at int64) bool {
	age := h.now().UnixMilli() - at
	return 0 <= age && age < time.Minute.Milliseconds()
}

// reached notes that a peer answered.
func (h *Host) reached(ctx context.Context, p *peer) error {
	if p.lanFailures == 0 && !p.lanBad && h.lately(p.seenAt) {
		return nil
	}
	return h.db.write(ctx, func(t *tx) error {
		_, err := t.exec("UPDATE peers SET lan_failures = 0, lan_bad = 0, seen_at = ? WHERE fold = ?", t.now, p.fold)
		return err
	})
}

// noteLANFailure counts calls in a row that reached nobody, and lets another
// address have its turn.
func noteLANFailure(t *tx, p *peer, cause error) error {
	if errors.Is(cause, errLANOff) {
		return nil
	}
	down := 0
	if errors.Is(cause, lan.ErrUnreachable) {
		down = 1
	}
	if _, err := t.exec("UPDATE peers SET lan_failures = lan_failures + ?, lan_bad = 1 WHERE fold = ?", down, p.fold); err != nil {
		return err
	}
	return tryOtherAddr(t, p.fold)
}

// probe looks whether peers that could not be reached are back, so that their
// mail goes over the LAN again, and learns sealing keys not yet known.
func (h *Host) probe(ctx context.Context) error {
	if h.lanIsOff() {
		return nil
	}
	var down []*peer
	err := h.db.read(ctx, func(t *tx) error {
		all, err := allPeers(t)
		for _, p := range all {
			if p.addr != "" && (p.lanFailures > 0 || p.enc.IsZero()) {
				down = append(down, p)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	peers := map[string]*peer{}
	var folds []string
	for _, p := range down {
		peers[p.fold] = p
		folds = append(folds, p.fold)
	}
	return h.perHost(folds, func(fold string) error {
		p := peers[fold]
		st, err := h.lan.Status(ctx, p.addr)
		if err != nil || st.HostPubkey != p.key {
			return ctx.Err()
		}
		if p.enc.IsZero() {
			if _, err := h.refreshEnc(ctx, p); err != nil {
				h.log.Info("no sealing key", "peer", p.name, "err", err)
			}
		}
		return h.reached(ctx, p)
	})
}
