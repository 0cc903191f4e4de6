package devissuer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const (
	denyType  = "mbx-deny+jwt"
	tokenLife = 10 * time.Minute // of a deny list; it is signed anew when half of it is over

	// denyLife is how long a revocation stands in the list. The client gets no token
	// any more, so the longest token's life would do.
	denyLife    = 24 * time.Hour
	denyAgain   = time.Hour // who is revoked again with less than this left is denied anew
	maxDenyList = 40 << 10  // bytes of entries: a relay takes 64 KiB of token
	maxReason   = 200

	pushTimeout = 10 * time.Second
	maxAnswer   = 16 << 10
)

// denial is an entry of the deny list.
type denial struct {
	HostFP   string `json:"host_fp,omitempty"`
	ClientID string `json:"client_id,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Until    int64  `json:"until"`
}

// signedDenials is the deny list as a token.
type signedDenials struct {
	etag  string // of the entries
	token string
	at    time.Time
}

// Revoked says what a revocation did.
type Revoked struct {
	Hosts   []Host `json:"hosts"`
	Pushed  bool   `json:"pushed"`            // the relay has taken it
	Added   int64  `json:"added"`             // by the relay
	Trouble string `json:"trouble,omitempty"` // why it was not pushed
}

// Revoke takes the credentials of a host away: of a client id the one, of a host's
// id, fingerprint or name all that it has. They get no token any more, and the
// relay is told to refuse them. That stands when it returns nil, whether the relay
// could be told or not; to revoke again tells it again. ErrNotFound when nothing is
// called that, ErrBadCall when several hosts are.
func (i *Issuer) Revoke(ctx context.Context, who, reason string) (Revoked, error) {
	if !utf8.ValidString(reason) || wire.UTF16Len(reason) > maxReason || strings.ContainsFunc(reason, unicode.IsControl) {
		return Revoked{}, refusal{ErrBadCall, fmt.Sprintf("the reason is no line of at most %d characters", maxReason)}
	}
	r, token, err := i.revoke(who, reason)
	if err != nil || i.o.NoPush {
		return r, err
	}
	if r.Added, err = i.push(ctx, token); err != nil {
		r.Trouble = err.Error()
		i.o.Log.Warn("the relay could not be told of a revocation", "relay", i.o.Relay, "err", err)
		return r, nil
	}
	r.Pushed = true
	return r, nil
}

// revoke stores a revocation, and signs its entries for the relay.
func (i *Issuer) revoke(who, reason string) (r Revoked, token string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.o.Now()
	var entries []denial
	err = i.change(func(s *state) error {
		found, err := s.called(who)
		if err != nil {
			return err
		}
		for _, j := range found {
			h := &s.Hosts[j]
			if !h.revoked() {
				h.RevokedAt, h.Reason = now.UTC(), reason
			}
			r.Hosts = append(r.Hosts, *h)
			until := h.RevokedAt.Add(denyLife).Unix()
			if until < now.Add(denyAgain).Unix() {
				until = now.Add(denyLife).Unix()
			}
			// The first is what the relay's operator finds for the host. The second is
			// for whoever certified a stolen cloud key with a host key of their own.
			entries = append(entries, denial{h.HostFP, h.ClientID, h.Reason, until}, denial{"", h.ClientID, h.Reason, until})
			s.Denials = slices.DeleteFunc(s.Denials, func(d denial) bool { return d.ClientID == h.ClientID })
			s.Sessions = slices.DeleteFunc(s.Sessions, func(x session) bool { return x.HostFP == h.HostFP && x.Account == h.Account })
		}
		s.Denials = append(s.Denials, entries...)
		return s.boundDenials(now)
	})
	if err != nil {
		return Revoked{}, "", err
	}
	for _, h := range r.Hosts {
		i.o.Log.Info("a host is revoked", "host", h.Name, "host_fp", h.HostFP, "account", h.Account, "client_id", h.ClientID)
	}
	token, err = i.signDenials(entries, now)
	return r, token, err
}

// called finds the credentials that a person means: those in force, or all when
// none is.
func (s state) called(who string) (found []int, err error) {
	fp, notFP := wire.ParseFingerprint(who)
	inForce := []int{}
	keys := map[string]bool{}
	for j, h := range s.Hosts {
		is := h.ClientID == who || h.HostID == who || wire.FoldName(h.Name) == wire.FoldName(who) || notFP == nil && h.HostFP == fp
		if !is {
			continue
		}
		found = append(found, j)
		keys[h.HostPub] = true
		if !h.revoked() {
			inForce = append(inForce, j)
		}
	}
	switch {
	case len(found) == 0:
		return nil, refusal{ErrNotFound, "no host or client is called that: see agentmbx accounts hosts"}
	case len(keys) > 1:
		return nil, refusal{ErrBadCall, "several hosts are called that: say its fingerprint or client id, see agentmbx accounts hosts"}
	case len(inForce) > 0:
		return inForce, nil
	}
	return found, nil
}

// boundDenials keeps the list within what a relay takes. What goes early is of
// clients whose last token has ended.
func (s *state) boundDenials(now time.Time) error {
	over := now.Add(denyLife - LongestTTL - 2*clockLeeway).Unix()
	for {
		doc, err := json.Marshal(s.Denials)
		if err != nil || len(doc) <= maxDenyList {
			return err
		}
		if s.Denials[0].Until > over { // the oldest
			return refusal{ErrRefused, "too many revocations at once: try again in a quarter of an hour"}
		}
		s.Denials = s.Denials[1:]
	}
}

func (i *Issuer) signDenials(entries []denial, now time.Time) (string, error) {
	if entries == nil {
		entries = []denial{}
	}
	return i.sign(denyType, map[string]any{
		"iss": i.o.Base, "aud": i.o.Relay, "iat": now.Unix(), "exp": now.Add(tokenLife).Unix(), "jti": newID(""), "deny": entries,
	})
}

// denyList is the whole list as a token. Its ETag stays while its entries do,
// though the token is signed anew before it expires.
func (i *Issuer) denyList() (signedDenials, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.o.Now()
	live := slices.DeleteFunc(slices.Clone(i.state.Denials), func(d denial) bool { return d.Until <= now.Unix() })
	doc, err := json.Marshal(live)
	if err != nil {
		return signedDenials{}, err
	}
	sum := sha256.Sum256(append(doc, i.o.Base+"\n"+i.o.Relay...))
	etag := `"` + hex.EncodeToString(sum[:16]) + `"`
	age := now.Sub(i.denyToken.at)
	if i.denyToken.etag == etag && age >= 0 && age < tokenLife/2 {
		return i.denyToken, nil
	}
	token, err := i.signDenials(live, now)
	if err != nil {
		return signedDenials{}, err
	}
	i.denyToken = signedDenials{etag, token, now}
	return i.denyToken, nil
}

func (i *Issuer) serveDenials(w http.ResponseWriter, r *http.Request) {
	d, err := i.denyList()
	if err != nil {
		i.o.Log.Error("the deny list can't be signed", "err", err)
		reply(w, nil, refuse(http.StatusInternalServerError, codeServer, "the issuer failed inside: see its log"))
		return
	}
	w.Header().Set("ETag", d.etag)
	w.Header().Set("Cache-Control", "no-cache")
	for tag := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(tag), "W/") == d.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, d.token)
}

// push hands entries to the relay.
func (i *Issuer) push(ctx context.Context, token string) (added int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"token": token})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.o.Relay+"/v2/relay/deny", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	c := http.Client{Transport: i.o.Push, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, err
	}
	var a struct {
		Added int64  `json:"added"`
		Error string `json:"error"`
	}
	err = wire.Decode(doc, &a)
	switch {
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("it answered %d %.200q", resp.StatusCode, a.Error)
	case err != nil:
		return 0, errors.New("it answered something that no relay does")
	}
	return a.Added, nil
}
