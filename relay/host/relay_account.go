package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/host/account"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// A hosted relay takes a host by an account's token, shown when it enrols, and
// serves it until that token ends. The next one is shown before: receiving then
// goes on without a break. A relay that wants no token is shown none, unless one
// was set up for it.

// Codes of a relay that has sessions.
const (
	codeOver   = "SESSION_EXPIRED"
	codeDenied = "DENIED"

	reasonKeyless = "KEYS_UNAVAILABLE"
)

// timeReasons are the codes of tokens whose times are wrong, or the clock is.
var timeReasons = map[string]bool{"TOKEN_EXPIRED": true, "TOKEN_EARLY": true, "TOKEN_LIFETIME": true}

const (
	tokenPatience = 5 * time.Second  // how long a pass waits for a token: the LAN waits, too
	oncePatience  = 40 * time.Second // of a host that is here for this only
	renewPause    = time.Minute      // after a renewal that the relay did not take
	unknownLife   = 5 * time.Minute  // of a token that does not say
)

// credential is what a host shows to a hosted relay.
type credential struct {
	kind  account.Kind
	token account.Token
	cloud wire.PrivateKey
}

// sessionRow is how this host stands with a hosted relay.
type sessionRow struct {
	source  account.Kind
	ends    int64 // 0: not known
	renewAt int64
	trouble string // why there is no next token
	reason  string // the relay's code of why it did not take one
}

func loadSession(t *tx, url string) (r sessionRow, err error) {
	_, err = t.get("SELECT source, ends, renew_at, trouble, reason FROM sessions WHERE url = ?", []any{url},
		&r.source, &r.ends, &r.renewAt, &r.trouble, &r.reason)
	return r, err
}

func (r sessionRow) store(t *tx, url string) error {
	_, err := t.exec(`INSERT INTO sessions (url, source, ends, renew_at, trouble, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
		ON CONFLICT (url) DO UPDATE SET source = ?2, ends = ?3, renew_at = ?4, trouble = ?5, reason = ?6`,
		url, string(r.source), r.ends, r.renewAt, printable(r.trouble), printable(r.reason))
	return err
}

// granted is the row of a host that the relay has taken, with a token or without.
func granted(with *credential, now time.Time) (r sessionRow) {
	if with == nil {
		return r
	}
	renew := with.token.Renew()
	switch {
	case renew.IsZero():
		renew = now.Add(unknownLife)
	case !now.Before(renew): // nearly over when it was given: one of the clocks is wrong
		renew = now.Add(account.AskEvery)
	}
	r.source, r.renewAt = with.kind, renew.UnixMilli()
	if !with.token.Expires.IsZero() {
		r.ends = with.token.Expires.UnixMilli()
	}
	return r
}

// credential asks for a token for a relay; nil where none comes from anywhere.
func (h *Host) credential(ctx context.Context, url string) (*credential, error) {
	kind := h.tokens.For(url)
	if kind == account.ByNone {
		return nil, nil
	}
	h.mu.Lock()
	patience := h.patience
	h.mu.Unlock()
	token, cloud, err := h.tokens.Token(ctx, url, patience)
	if err != nil {
		return nil, err
	}
	return &credential{kind, token, cloud}, nil
}

// waitForTokens makes every pass wait for a token as long as it takes.
func (h *Host) waitForTokens() {
	h.mu.Lock()
	h.patience = oncePatience
	h.mu.Unlock()
}

// enrol answers the relay's challenge, with a token unless that is nil.
func (h *Host) enrol(ctx context.Context, s *session, with *credential) error {
	caller := h.relayCaller()
	challenge, err := s.client.Challenge(ctx, caller)
	if err == nil {
		var proof jsontext.Value
		if with != nil {
			proof = with.token.Proof(caller.Key, with.cloud, challenge, s.url, h.now())
		}
		err = s.client.Enrol(ctx, caller, "", challenge, proof)
	}
	var status *relayclient.StatusError
	if errors.As(err, &status) {
		return h.notTaken(status, with)
	}
	if err != nil {
		return h.failed(err, s)
	}
	return nil
}

// notTaken is a relay that refuses to enrol this host.
func (h *Host) notTaken(status *relayclient.StatusError, with *credential) *trouble {
	tr := &trouble{state: relayEnrolFailed, hold: true, detail: status.Error(), reason: status.ReasonCode}
	switch {
	case status.ReasonCode == reasonKeyless:
		tr.state, tr.hold, tr.wait = relayKeyless, false, time.Minute
	case status.Status == http.StatusForbidden && status.Code == codeDenied && status.ReasonCode == "" && with != nil:
		tr.state = relayDenied
	}
	if d := h.now().Sub(status.Date); timeReasons[status.ReasonCode] && !status.Date.IsZero() && d.Abs() > time.Minute {
		tr.detail += fmt.Sprintf("; its clock is %s from this host's", d.Abs().Round(time.Second))
	}
	return tr
}

// enrolAnew enrols a host that the relay does not know, or whose session is over.
func (h *Host) enrolAnew(ctx context.Context, s *session) (over bool, with *credential, err error) {
	var was sessionRow
	var state string
	err = h.db.read(ctx, func(t *tx) (err error) {
		if was, err = loadSession(t, s.url); err != nil {
			return err
		}
		r, err := loadRelay(t, s.url)
		state = r.state
		return err
	})
	if err != nil {
		return false, nil, err
	}
	now := h.now()
	over = was.ends > 0 && (was.ends <= now.UnixMilli() || state == relayOver)
	with, err = h.credential(ctx, s.url)
	if err != nil && ctx.Err() != nil {
		return over, nil, ctx.Err()
	}
	if err == nil && with != nil && was.ends > 0 && with.token.Expires.UnixMilli() <= was.ends && !now.Before(with.token.Expires) {
		err = fmt.Errorf("%s still gives the token that ended at %s", with.kind, wire.FormatTime(with.token.Expires))
	}
	var tr *trouble
	if err == nil {
		err = h.enrol(ctx, s, with)
	} else {
		tr = &trouble{state: relayNoToken, detail: err.Error()}
		if !errors.Is(err, account.ErrWaiting) {
			tr.wait = account.AskEvery
		}
		err = tr
	}
	if errors.As(err, &tr) {
		was.source, was.reason, was.trouble = h.tokens.For(s.url), tr.reason, ""
		if err := h.db.write(ctx, func(t *tx) error { return was.store(t, s.url) }); err != nil {
			return over, nil, err
		}
	}
	return over, with, err
}

// renew shows the relay the next token when the one that it has is nearly over.
// While it has not ended nothing that goes wrong here is trouble of the pass.
func (h *Host) renew(ctx context.Context, s *session) error {
	if h.tokens.For(s.url) == account.ByNone {
		return nil
	}
	var row sessionRow
	err := h.db.read(ctx, func(t *tx) (err error) {
		row, err = loadSession(t, s.url)
		return err
	})
	if err != nil {
		return err
	}
	now := h.now()
	s.renewAt = time.UnixMilli(row.renewAt)
	if now.Before(s.renewAt) {
		return nil
	}
	with, err := h.credential(ctx, s.url)
	pause := account.AskEvery
	var tr *trouble
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, account.ErrWaiting):
		return nil // the next pass takes it
	case err != nil:
		row.trouble, row.reason = err.Error(), ""
	case with == nil:
		return nil
	case row.ends > 0 && !with.token.Expires.IsZero() && with.token.Expires.UnixMilli() <= row.ends:
		row.trouble, row.reason = fmt.Sprintf("%s still gives the token that ends at %s", with.kind, wire.FormatTime(with.token.Expires)), ""
	default:
		err = h.enrol(ctx, s, with)
		if err == nil {
			row = granted(with, now)
			break
		}
		if !errors.As(err, &tr) {
			return err
		}
		row.trouble, row.reason, pause = tr.detail, tr.reason, renewPause
	}
	if row.trouble != "" {
		row.renewAt = now.Add(pause).UnixMilli()
		h.log.Warn("the session with the relay was not renewed", "relay", s.url, "reason", row.trouble)
	}
	s.renewAt = time.UnixMilli(row.renewAt)
	return h.db.write(ctx, func(t *tx) error { return row.store(t, s.url) })
}

// Login signs this host in at an accounts issuer; see account.Login.
func (h *Host) Login(ctx context.Context, base string, show func(account.Prompt) error) (account.Record, error) {
	r, err := account.Login(ctx, account.LoginOptions{
		Home: h.opts.Home, Base: base, Host: h.Name(), Key: h.keyring().key, Show: show, Now: h.now,
		Noted: func(text string) { h.log.Warn("after the sign-in", "reason", text) },
	})
	if err != nil {
		return r, err
	}
	return r, h.db.write(context.WithoutCancel(ctx), func(t *tx) error {
		// A relay that wanted a token need not be left alone any longer.
		if _, err := t.exec("UPDATE relays SET hold_until = 0, holds = 0 WHERE url = ?", r.Resources.Relay); err != nil {
			return err
		}
		if _, err := t.exec("UPDATE sessions SET renew_at = 0 WHERE url = ?", r.Resources.Relay); err != nil {
			return err
		}
		return audit(t, "account.login", r.Base+" "+r.ClientID)
	})
}

// Logout forgets the sign-in. The cloud key stays, and so does a session with a
// relay until its token ends. It returns account.ErrNoRecord when there is none.
func (h *Host) Logout(ctx context.Context) error {
	if err := account.Remove(h.opts.Home); err != nil {
		return err
	}
	return h.db.write(ctx, func(t *tx) error { return audit(t, "account.logout", "") })
}

// AccountRelay is the relay that the sign-in names. It returns
// account.ErrNoRecord when there is no sign-in.
func (h *Host) AccountRelay() (string, error) {
	r, err := account.ReadRecord(h.opts.Home)
	if err == nil && r.Resources.Relay == "" {
		err = fmt.Errorf("%s names no relay: give its URL", r.Base)
	}
	return r.Resources.Relay, err
}
