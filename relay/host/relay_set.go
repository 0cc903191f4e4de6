package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// ErrBadRelayKey is returned for a fingerprint or key that is none.
var ErrBadRelayKey = errors.New("not a relay key: want its fingerprint, 16 hex digits, or the key itself, 44 characters")

// KeyMismatchError is a relay that shows another key than it should.
type KeyMismatchError struct {
	URL          string
	Served, Want string // fingerprints
}

func (e *KeyMismatchError) Error() string {
	return fmt.Sprintf("the relay at %s shows the key %s, not %s: nothing was changed; if its owner confirms the new key, run agentmbx relay set %s --key %s",
		e.URL, e.Served, e.Want, e.URL, e.Served)
}

// RelaySet is what SetRelay did.
type RelaySet struct {
	URL         string `json:"url"`
	Fingerprint string `json:"fingerprint"` // pinned, or expected when it could not be reached
	Pinned      bool   `json:"pinned"`
	Source      string `json:"source,omitempty"` // owner or first-use
	Reachable   bool   `json:"reachable"`
}

// SetRelay makes url the relay of this host and pins its key. With key, a
// fingerprint or the key itself, only that one is pinned; when the relay can't
// be reached the expectation is kept for the first session. It returns
// ErrBadRelayKey, or a *KeyMismatchError with nothing changed.
func (h *Host) SetRelay(ctx context.Context, url, key string) (RelaySet, error) {
	url, err := relayclient.ParseURL(url)
	if err != nil {
		return RelaySet{}, err
	}
	want := ""
	if key != "" {
		if want, err = relayFingerprint(key); err != nil {
			return RelaySet{}, err
		}
	}
	c, err := relayclient.New(url, relayclient.Options{Now: h.now, Transport: h.opts.Transport, Timeout: 10 * time.Second})
	if err != nil {
		return RelaySet{}, err
	}
	defer c.Close()
	out := RelaySet{URL: url, Fingerprint: want}
	info, err := c.Info(ctx, nil)
	if ctx.Err() != nil {
		return RelaySet{}, ctx.Err()
	}
	out.Reachable = err == nil
	err = h.db.write(ctx, func(t *tx) error {
		r, err := loadRelay(t, url)
		if err != nil {
			return err
		}
		if err := makeRelay(t, url); err != nil {
			return err
		}
		if !out.Reachable {
			if want == "" {
				if !r.key.IsZero() {
					out.Fingerprint, out.Pinned, out.Source = r.key.Fingerprint(), true, r.pinSource
				}
				return nil
			}
			_, err := t.exec("UPDATE relays SET expected = ? WHERE url = ?", want, url)
			return err
		}
		served := info.RelayKey.Fingerprint()
		if want != "" && served != want {
			return &KeyMismatchError{URL: url, Served: served, Want: want}
		}
		if want == "" && !r.key.IsZero() && r.key != info.RelayKey {
			return &KeyMismatchError{URL: url, Served: served, Want: r.key.Fingerprint()}
		}
		out.Pinned, out.Fingerprint = true, served
		out.Source, err = pinRelay(t, r, info.RelayKey, want != "")
		return err
	})
	if err != nil {
		return RelaySet{}, err
	}
	return out, h.setConfigRelay(url)
}

// relayFingerprint reads what --key may be.
func relayFingerprint(key string) (string, error) {
	if fp, err := wire.ParseFingerprint(key); err == nil {
		return fp, nil
	}
	k, err := wire.ParsePublicKey(key)
	if err != nil {
		return "", ErrBadRelayKey
	}
	return k.Fingerprint(), nil
}

// pinRelay pins a relay's key. Its epoch stays: a relay that has another key
// has another epoch, and that sends again whatever the old one may have lost.
func pinRelay(t *tx, r *relayRow, key wire.PublicKey, byOwner bool) (source string, err error) {
	source = r.pinSource
	if byOwner {
		source = "owner"
	} else if source == "" {
		source = "first-use"
	}
	changed := !r.key.IsZero() && r.key != key
	event := "relay.pinned"
	switch {
	case changed:
		event = "relay.key_confirmed"
		_, err = t.exec("UPDATE relays SET enrolled = '', ad_for = '', senders_for = '' WHERE url = ?", r.url)
	case r.key == key && source == r.pinSource:
		event = ""
	}
	if err == nil {
		_, err = t.exec("UPDATE relays SET key = ?, pin_source = ?, expected = '', served = '', hold_until = 0, holds = 0 WHERE url = ?", key[:], source, r.url)
	}
	if err == nil && event != "" {
		err = audit(t, event, r.url+" "+key.Fingerprint())
	}
	return source, err
}

// UnsetRelay stops using a relay. What is known of it, its key first of all, is kept.
func (h *Host) UnsetRelay() error { return h.setConfigRelay("") }

func (h *Host) setConfigRelay(url string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := readConfig(h.opts.Home)
	if err != nil {
		return err
	}
	c.Relay = url
	if err := writeConfig(h.opts.Home, c); err != nil {
		return err
	}
	h.config = c
	return nil
}
