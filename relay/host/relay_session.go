package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// trouble is a relay that can't be used in this pass, or not to the end: the
// state to show and why. With hold the relay is left alone for a while.
type trouble struct {
	state, detail string
	hold          bool
	wait          time.Duration // left alone for so long, however often
	reason        string        // the relay's code of a refused token
	held          bool          // still left alone for what went wrong before
}

func (e *trouble) Error() string { return e.state + ": " + e.detail }

// session is a relay in use: its pinned key is verified, this host is enrolled.
type session struct {
	url      string
	client   *relayclient.Client
	key      wire.PublicKey // the relay's
	own      wire.PublicKey // this host's, when it was opened
	epoch    string
	limits   relayclient.Limits
	v1       bool
	opened   time.Time
	enrolled bool      // in this pass
	renewAt  time.Time // when to look for the next token, zero without one

	pushUntil time.Time // when this pass leaves the rest for the next one
}

// How long a relay may take to say who it is, at first and after it has been silent.
const (
	infoTime      = 15 * time.Second
	infoTimeAgain = 4 * time.Second
)

// openSession asks the relay who it is and whom it knows, and puts right what
// is not: epoch, rotations, enrolment, sealing key, sender list. A *trouble
// says why there is no session.
func (h *Host) openSession(ctx context.Context, url string) (*session, error) {
	c, err := h.relayClient(url)
	if err != nil { // somebody wrote it into config.json
		return nil, &trouble{state: relayUnavailable, detail: err.Error()}
	}
	r, err := h.readRelay(ctx, url)
	if err != nil {
		return nil, err
	}
	// More than the whole wait is left when a wrong clock was set right since.
	if left := r.holdUntil - h.now().UnixMilli(); left > 0 && left <= holdFor(max(r.holds, 1)).Milliseconds() {
		return nil, &trouble{state: r.state, detail: r.detail, held: true}
	}
	s := &session{url: url, client: c, own: h.Key(), opened: h.now()}
	caller := h.relayCaller()
	// The LAN has its turn after the relay: one that hangs may not cost each tick
	// as long as the first.
	patience := infoTime
	if r.state == relayDown {
		patience = infoTimeAgain
	}
	infoCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	info, err := c.Info(infoCtx, &caller)
	var status *relayclient.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound && r.key.IsZero() && r.expected == "" {
		s.v1 = true
		return s, h.openV1(ctx, s, r)
	}
	if err != nil {
		return nil, h.failed(err, s)
	}
	if err := h.checkRelayKey(ctx, r, info.RelayKey); err != nil {
		return nil, err
	}
	s.key, s.epoch, s.limits = info.RelayKey, info.Epoch, info.Limits
	if err := h.noteEpoch(ctx, s, info); err != nil {
		return nil, err
	}
	rotated, err := h.tellRotations(ctx, s)
	if err != nil {
		return nil, err
	}
	if rotated {
		if info, err = c.Info(ctx, &caller); err != nil {
			return nil, h.failed(err, s)
		}
	}
	if err := h.ensureEnrolled(ctx, s, info.You); err != nil {
		return nil, err
	}
	if err := h.ensureAd(ctx, s, info.You); err != nil {
		return nil, err
	}
	return s, h.ensureSenders(ctx, s)
}

func (h *Host) readRelay(ctx context.Context, url string) (r *relayRow, err error) {
	err = h.db.read(ctx, func(t *tx) (err error) {
		r, err = loadRelay(t, url)
		return err
	})
	return r, err
}

// failed turns a call's error into trouble. A relay that no longer knows this
// host is asked again in the next pass; one that took it a moment ago and then
// refused it is left alone for a while.
func (h *Host) failed(err error, s *session) error {
	var status *relayclient.StatusError
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &status) && status.Status == http.StatusUnauthorized:
		if err := h.forgetEnrolment(s.url); err != nil {
			return err
		}
		switch {
		case status.Code == codeDenied:
			return &trouble{state: relayDenied, hold: true, detail: status.Error()}
		case status.Code == codeOver && !s.enrolled:
			return &trouble{state: relayOver, detail: "the account's token that it took has ended"}
		case !s.enrolled:
			return &trouble{state: relayUnavailable, detail: "it refused a signed call: " + status.Error()}
		}
		if d := h.now().Sub(status.Date); !status.Date.IsZero() && (d > wire.HopSkew || d < -wire.HopSkew) {
			return &trouble{state: relaySkew, hold: true,
				detail: fmt.Sprintf("its clock is %s from this host's: set the clock of the one that is wrong", d.Abs().Round(time.Second))}
		}
		return &trouble{state: relayRefused, hold: true, detail: "it enrolled this host and then refused its signed call: " + status.Error()}
	case errors.As(err, &status):
		return &trouble{state: relayUnavailable, detail: status.Error()}
	case errors.Is(err, relayclient.ErrUnreachable):
		return &trouble{state: relayDown, detail: err.Error()}
	case errors.Is(err, relayclient.ErrBadAnswer):
		return &trouble{state: relayBadAnswer, detail: err.Error()}
	}
	return err
}

func (h *Host) forgetEnrolment(url string) error {
	return h.db.write(context.Background(), func(t *tx) error {
		_, err := t.exec("UPDATE relays SET enrolled = '', ad_for = '', senders_for = '' WHERE url = ?", url)
		return err
	})
}

// checkRelayKey compares the key that a relay shows with the one it must have.
// One that is not known yet is pinned. What the owner said meanwhile counts: r
// is only good enough to see that nothing has to be done.
func (h *Host) checkRelayKey(ctx context.Context, r *relayRow, served wire.PublicKey) error {
	if r.expected == "" && r.served == "" && served == r.key {
		return nil
	}
	fp, mismatch := served.Fingerprint(), ""
	err := h.db.write(ctx, func(t *tx) error {
		mismatch = ""
		if err := makeRelay(t, r.url); err != nil {
			return err
		}
		r, err := loadRelay(t, r.url)
		if err != nil {
			return err
		}
		want := r.expected
		if want == "" && !r.key.IsZero() {
			want = r.key.Fingerprint()
		}
		if want == "" || want == fp {
			_, err := pinRelay(t, r, served, r.expected != "")
			return err
		}
		mismatch = fmt.Sprintf("it shows the key %s, not %s", fp, want)
		if r.served == fp {
			return nil
		}
		if _, err := t.exec("UPDATE relays SET served = ? WHERE url = ?", fp, r.url); err != nil {
			return err
		}
		return audit(t, "relay.key_changed", fmt.Sprintf("%s shows %s, not %s", r.url, fp, want))
	})
	if err == nil && mismatch != "" {
		err = &trouble{state: relayMismatch, detail: mismatch}
	}
	return err
}

// noteEpoch notices a relay that went back in time: another epoch, or the same
// one with a head below what was received.
func (h *Host) noteEpoch(ctx context.Context, s *session, info relayclient.Info) error {
	r, err := h.readRelay(ctx, s.url)
	if err != nil {
		return err
	}
	switch {
	case r.epoch != info.Epoch:
		return h.timeTravel(ctx, s.url, info.Epoch, "")
	case info.You != nil && info.You.Key == h.Key() && info.You.HeadSeq < r.position:
		return h.timeTravel(ctx, s.url, info.Epoch, fmt.Sprintf("its head %d is below %d, received before", info.You.HeadSeq, r.position))
	}
	return nil
}

// timeTravel starts over with a relay whose store is not the one it was: the
// receive position goes back to 0, and whatever it accepted and nobody
// confirmed goes back to the outbox. Dedup makes what is repeated harmless.
func (h *Host) timeTravel(ctx context.Context, url, epoch, rewind string) error {
	return h.db.write(ctx, func(t *tx) error {
		r, err := loadRelay(t, url)
		if err != nil {
			return err
		}
		if _, err := t.exec("UPDATE relays SET epoch = ?, position = 0, acked = 0 WHERE url = ?", epoch, url); err != nil {
			return err
		}
		if r.epoch == "" {
			return nil // the first time
		}
		// It may not know of rotations any more, and would serve the old keys again.
		if _, err := t.exec("UPDATE rotations SET relay = '' WHERE relay = ?", url); err != nil {
			return err
		}
		n, err := repush(t, url, epoch, rewind != "")
		if err != nil {
			return err
		}
		if rewind != "" {
			return audit(t, "relay.rewind", fmt.Sprintf("%s: %s; %s again", url, rewind, plural(n, "message")))
		}
		return audit(t, "relay.epoch_changed", fmt.Sprintf("%s: %s, then %s; %s again", url, r.epoch, epoch, plural(n, "message")))
	})
}

// enrolmentFor names what an enrolment holds for.
func (h *Host) enrolmentFor(s *session) string {
	return s.key.String() + " " + s.epoch + " " + h.Key().String()
}

// ensureEnrolled enrols this host unless the relay knows it under this name and key.
func (h *Host) ensureEnrolled(ctx context.Context, s *session, you *relayclient.You) error {
	r, err := h.readRelay(ctx, s.url)
	if err != nil {
		return err
	}
	want := h.enrolmentFor(s)
	if you != nil && you.Key == h.Key() && wire.FoldName(you.Host) == h.fold() {
		if r.enrolled != want {
			err := h.db.write(ctx, func(t *tx) error {
				_, err := t.exec("UPDATE relays SET enrolled = ? WHERE url = ?", want, s.url)
				return err
			})
			if err != nil {
				return err
			}
		}
		return h.renew(ctx, s)
	}
	over, with, err := h.enrolAnew(ctx, s)
	if err != nil {
		return err
	}
	s.enrolled = true
	return h.db.write(ctx, func(t *tx) error {
		row := granted(with, h.now())
		if err := row.store(t, s.url); err != nil {
			return err
		}
		if with != nil {
			s.renewAt = time.UnixMilli(row.renewAt)
		}
		if r.enrolled == want && !over {
			if err := audit(t, "relay.enrolment_lost", s.url); err != nil {
				return err
			}
		}
		// A relay that did not know this host has lost its key and its list, too.
		if _, err := t.exec("UPDATE relays SET enrolled = ?, ad_for = '', senders_for = '' WHERE url = ?", want, s.url); err != nil || over {
			return err
		}
		return audit(t, "relay.enrolled", s.url)
	})
}

const (
	adDaily = 24 * time.Hour
	adSpare = 7 * 24 * time.Hour // an advertisement with less left is renewed
)

// ensureAd publishes this host's sealing key when the relay does not have it,
// when it ends soon, and once a day.
func (h *Host) ensureAd(ctx context.Context, s *session, you *relayclient.You) error {
	r, err := h.readRelay(ctx, s.url)
	if err != nil {
		return err
	}
	k := h.keyring()
	enc := k.enc.Public()
	now := h.now()
	want := h.enrolmentFor(s) + " " + enc.String()
	there := !s.enrolled && you != nil && you.Ad != nil && you.Ad.EncPub == enc.String() && you.Ad.Exp.Sub(now) > adSpare &&
		(you.Ad.V1 == "" || you.Ad.V1 == enc.String()) // an older sender would seal for another key; none is harmless
	age := now.UnixMilli() - r.adAt
	if there && r.adFor == want && -wire.MaxAhead.Milliseconds() < age && age < adDaily.Milliseconds() {
		return nil
	}
	drift := !there && r.adFor == want
	if drift && !h.mayRepublish(now) {
		return nil // it has just been put right: a relay that denies it again may wait
	}
	iat := now
	if last := time.UnixMilli(r.adAt); last.After(now) && last.Before(now.Add(wire.MaxAhead)) {
		iat = last.Add(time.Millisecond) // the clock went back a little: peers take only newer ones
	}
	caller := h.relayCaller()
	ad, sig := wire.MakeEncAd(k.key, caller.Host, enc, iat, iat.Add(wire.EncAdLifetime))
	if err := s.client.PublishEncAd(ctx, caller, ad, sig); err != nil {
		return h.failed(err, s)
	}
	// For older senders; a relay that does not take it still has the record.
	if err := s.client.PublishEncKeyV1(ctx, caller, enc, k.key.Sign(wire.EncKeyV1Payload(caller.Host, enc))); err != nil {
		h.log.Info("the relay did not take the v1 sealing key", "relay", s.url, "err", err)
	}
	return h.db.write(ctx, func(t *tx) error {
		if drift {
			if err := audit(t, "relay.enc_ad_missing", s.url); err != nil {
				return err
			}
		}
		_, err := t.exec("UPDATE relays SET ad_at = ?, ad_for = ? WHERE url = ?", iat.UnixMilli(), want, s.url)
		return err
	})
}

// mayRepublish allows one republication a minute to a relay that says it has no
// sealing key of ours.
func (h *Host) mayRepublish(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since := now.Sub(h.republished); 0 <= since && since < time.Minute {
		return false
	}
	h.republished = now
	return true
}

// sendersAhead is how far ahead of the clock a sender list may be dated: relays
// refuse more than wire.MaxAhead.
const sendersAhead = 4 * time.Minute

// ensureSenders publishes whom this host takes mail from: its peers. A host
// that never had one publishes nothing.
func (h *Host) ensureSenders(ctx context.Context, s *session) error {
	r, err := h.readRelay(ctx, s.url)
	if err != nil {
		return err
	}
	var keys []wire.PublicKey
	err = h.db.read(ctx, func(t *tx) error {
		peers, err := allPeers(t)
		for _, p := range peers {
			keys = append(keys, p.key)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(keys, func(a, b wire.PublicKey) int { return strings.Compare(a.String(), b.String()) })
	sum := sha256.New()
	for _, k := range keys {
		sum.Write(k[:])
	}
	want := h.enrolmentFor(s) + " " + hex.EncodeToString(sum.Sum(nil))
	if r.sendersFor == want || len(keys) == 0 && r.sendersIAT == 0 {
		return nil
	}
	if len(keys) > wire.MaxSenders {
		h.log.Warn("too many peers for a sender list: the relay takes mail for this host from everyone enrolled", "peers", len(keys))
		return nil
	}
	// Past the last one, also when the clock was set back, but never so far ahead
	// that a relay which lies about what it holds makes honest ones refuse it.
	now := h.now().UnixMilli()
	iat := min(max(now, r.sendersIAT+1), now+sendersAhead.Milliseconds())
	list, sig := wire.MakeSenderList(h.keyring().key, keys, time.UnixMilli(iat))
	err = s.client.PublishSenders(ctx, h.relayCaller(), list, sig)
	var status *relayclient.StatusError
	if errors.As(err, &status) && (status.Status == http.StatusConflict || status.Status == http.StatusBadRequest) {
		// A list of ours is newer than our clock or our memory: go past it. One
		// that is too new for the relay's clock starts over. Mail does not wait.
		next := iat + 10_000
		if status.Status == http.StatusBadRequest {
			next = 1
		}
		h.log.Warn("the relay did not take the sender list", "relay", s.url, "err", err)
		return h.db.write(ctx, func(t *tx) error {
			_, err := t.exec("UPDATE relays SET senders_iat = ? WHERE url = ?", next, s.url)
			return err
		})
	}
	if err != nil {
		return h.failed(err, s)
	}
	return h.db.write(ctx, func(t *tx) error {
		_, err := t.exec("UPDATE relays SET senders_for = ?, senders_iat = ? WHERE url = ?", want, iat, s.url)
		return err
	})
}
