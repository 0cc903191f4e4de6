package host

import (
	"cmp"
	"context"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// States of the relay after its last pass.
const (
	relayOK          = "ok"
	relayV1          = "ok-v1"               // a relay of before v2
	relayDown        = "unreachable"         // no connection, or no answer in time
	relayBadAnswer   = "bad-answer"          // an answer that the protocol does not allow
	relayUnavailable = "unavailable"         // an error status
	relayMismatch    = "key-mismatch"        // it shows another key than the pinned one
	relayEnrolFailed = "enrol-failed"        // it does not take this host
	relaySkew        = "clock-skew"          // its clock and ours are too far apart
	relayRefused     = "refused-after-enrol" // it took this host and then did not know it
	relayFull        = "quarantine-full"     // nothing more is received until a person has looked

	// Of a hosted relay, which takes a host by an account's token.
	relayNoToken = "no-token"         // there is none to show
	relayOver    = "session-over"     // the token that it took has ended
	relayDenied  = "denied"           // its deny list names this host
	relayKeyless = "keys-unavailable" // it can't check tokens now
)

// relayRow is what is known of a relay.
type relayRow struct {
	url              string
	key              wire.PublicKey // pinned; zero for none
	pinSource        string         // owner or first-use
	expected         string         // the only fingerprint that may be pinned
	served           string         // fingerprint of another key it showed
	epoch            string
	position, acked  int64
	v1Cursor         int64
	enrolled         string
	adAt             int64
	adFor            string
	sendersFor       string
	sendersIAT       int64
	state, detail    string
	stateAt, okAt    int64
	holdUntil, holds int64
}

// loadRelay reads what is known of a relay; for a new one, nothing.
func loadRelay(t *tx, url string) (*relayRow, error) {
	r := &relayRow{url: url}
	var key []byte
	_, err := t.get(`SELECT key, pin_source, expected, served, epoch, position, acked, v1_cursor, enrolled, ad_at, ad_for,
		senders_for, senders_iat, state, detail, state_at, ok_at, hold_until, holds FROM relays WHERE url = ?`, []any{url},
		&key, &r.pinSource, &r.expected, &r.served, &r.epoch, &r.position, &r.acked, &r.v1Cursor, &r.enrolled, &r.adAt, &r.adFor,
		&r.sendersFor, &r.sendersIAT, &r.state, &r.detail, &r.stateAt, &r.okAt, &r.holdUntil, &r.holds)
	copy(r.key[:], key)
	return r, err
}

// makeRelay makes sure that there is a row to update.
func makeRelay(t *tx, url string) error {
	_, err := t.exec("INSERT INTO relays (url) VALUES (?) ON CONFLICT DO NOTHING", url)
	return err
}

// relayURL is the relay in use, "" for none.
func (h *Host) relayURL() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return relayURL(h.opts, h.config)
}

// relayURL is the relay in use as SetRelay writes it: a pin must not depend on
// a slash at the end of an environment variable.
func relayURL(o Options, c Config) string {
	raw := cmp.Or(o.RelayURL, c.Relay)
	if url, err := relayclient.ParseURL(raw); err == nil {
		return url
	}
	return raw
}

// relayClient is the client for a relay, kept from call to call.
func (h *Host) relayClient(url string) (*relayclient.Client, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil && h.clientURL == url {
		return h.client, nil
	}
	c, err := relayclient.New(url, relayclient.Options{Now: h.now, Transport: h.opts.Transport})
	if err != nil {
		return nil, err
	}
	if h.client != nil {
		h.client.Close()
	}
	h.client, h.clientURL = c, url
	return c, nil
}

// relayCaller is who signs this host's calls to a relay.
func (h *Host) relayCaller() relayclient.Caller {
	h.mu.Lock()
	defer h.mu.Unlock()
	return relayclient.Caller{Host: h.config.Host, Key: h.keys.key}
}

// noteState records how the last pass went. A state that stays is written only
// now and then: a pass every two seconds should not cost a write each.
func (h *Host) noteState(ctx context.Context, url, state string, tr *trouble) error {
	if tr == nil {
		tr = &trouble{}
	}
	detail := tr.detail
	var r *relayRow
	err := h.db.read(ctx, func(t *tx) (err error) {
		r, err = loadRelay(t, url)
		return err
	})
	if err != nil {
		return err
	}
	ok := state == relayOK || state == relayV1
	now := h.now()
	if r.state == state && r.detail == detail && !tr.hold && tr.wait == 0 && r.holdUntil == 0 && (!ok || r.holds == 0 && 0 <= now.UnixMilli()-r.okAt && now.UnixMilli()-r.okAt < 30_000) {
		return nil
	}
	return h.db.write(ctx, func(t *tx) error {
		if err := makeRelay(t, url); err != nil {
			return err
		}
		r, err := loadRelay(t, url)
		if err != nil {
			return err
		}
		stateAt, okAt, until, holds := r.stateAt, r.okAt, int64(0), r.holds
		if r.state != state {
			stateAt = t.now
		}
		if ok {
			okAt, holds = t.now, 0 // nothing else ends a row of refusals
		}
		if tr.wait > 0 {
			until = t.now + tr.wait.Milliseconds()
		}
		if tr.hold {
			holds = r.holds + 1
			until = t.now + holdFor(holds).Milliseconds()
		}
		_, err = t.exec("UPDATE relays SET state = ?, detail = ?, state_at = ?, ok_at = ?, hold_until = ?, holds = ? WHERE url = ?",
			state, printable(detail), stateAt, okAt, until, holds, url)
		return err
	})
}

// holdFor is the wait after a relay has refused this host so many times: 60 s,
// doubling to an hour.
func holdFor(times int64) time.Duration {
	if times > 6 {
		return time.Hour
	}
	return min(time.Minute<<(times-1), time.Hour)
}

// ParseRelayURL checks a relay's URL and returns it in its one spelling. Its
// error repeats nothing of s.
func ParseRelayURL(s string) (string, error) { return relayclient.ParseURL(s) }

// RelayURL is the relay in use, that of Options or else of the configuration;
// "" for none.
func (h *Host) RelayURL() string { return h.relayURL() }
