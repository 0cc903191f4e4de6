package host

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/lan"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Lives of a pairing token (host.md §1).
const (
	TokenLife    = 10 * time.Minute
	MaxTokenLife = time.Hour
	maxTokens    = 20 // open at once
	tokenTries   = 5  // wrong answers burn a token
)

// Errors of pairing.
var (
	ErrBadTokenLife = errors.New("a pairing token lives a second to an hour")
	ErrTooManyOpen  = errors.New("too many pairing tokens are open: wait for some to end")
	ErrPairRefused  = errors.New("the other host does not know this token: it may be mistyped, used or over")
)

// ErrUnproven is returned by JoinPeer when the host that answered does not know
// the token: nothing was paired.
var ErrUnproven = errors.New("the host that answered does not know the token: nothing was paired; someone may be in between")

// NewPairToken makes a single-use token that lets one host pair with this one.
// Only what is stretched from it is kept.
func (h *Host) NewPairToken(ctx context.Context, life time.Duration) (token string, err error) {
	if life < time.Second || life > MaxTokenLife {
		return "", ErrBadTokenLife
	}
	if token, err = wire.NewToken(); err != nil {
		return "", err
	}
	plain, err := wire.NormalizeToken(token)
	if err != nil {
		return "", err
	}
	key := wire.PairingKey(plain)
	return token, h.db.write(ctx, func(t *tx) error {
		if err := dropTokens(t); err != nil {
			return err
		}
		var n int
		if _, err := t.get("SELECT count(*) FROM pair_tokens", nil, &n); err != nil {
			return err
		}
		if n >= maxTokens {
			return ErrTooManyOpen
		}
		_, err := t.exec("INSERT INTO pair_tokens (key, expires_at) VALUES (?, ?)", key[:], t.now+life.Milliseconds())
		return err
	})
}

// dropTokens drops tokens that are over, also after the clock was set back by
// more than a token's life.
func dropTokens(t *tx) error {
	_, err := t.exec("DELETE FROM pair_tokens WHERE expires_at <= ?1 OR expires_at > ?1 + ?2 OR failures >= ?3", t.now, MaxTokenLife.Milliseconds(), tokenTries)
	return err
}

// Identity is part of lan.Node.
func (h *Host) Identity() lan.Identity { return lan.Identity{Host: h.Name(), HostKey: h.Key()} }

// Peer is part of lan.Node.
func (h *Host) Peer(ctx context.Context, name string) (lan.Peer, error) {
	var p *peer
	err := h.db.read(ctx, func(t *tx) (err error) {
		p, err = findPeer(t, wire.FoldName(name))
		return err
	})
	if err == nil && p == nil {
		err = lan.ErrRefused
	}
	if err != nil {
		return lan.Peer{}, err
	}
	return lan.Peer{Name: p.name, Key: p.key}, nil
}

// Seen is part of lan.Node. Where a call came from is not signed, so it is only
// remembered: it takes the place of the known address when that one fails. A
// call that is not newer than the last one may be a replay from anywhere.
func (h *Host) Seen(ctx context.Context, from lan.Peer, addr string, at time.Time) {
	var p *peer
	err := h.db.read(ctx, func(t *tx) (err error) {
		p, err = findPeer(t, wire.FoldName(from.Name))
		return err
	})
	if err != nil || p == nil || !h.newerHop(p.fold, at) {
		return
	}
	moved := addr != "" && addr != p.addr
	if (!moved || addr == p.seenAddr && !p.lanBad && p.addr != "") && h.lately(p.seenAt) {
		return
	}
	err = h.db.write(ctx, func(t *tx) error {
		if moved {
			if _, err := t.exec("UPDATE peers SET seen_addr = ? WHERE fold = ? AND key = ?", addr, p.fold, from.Key[:]); err != nil {
				return err
			}
			if err := tryOtherAddr(t, p.fold); err != nil {
				return err
			}
		}
		_, err := t.exec("UPDATE peers SET seen_at = ? WHERE fold = ?", t.now, p.fold)
		return err
	})
	if err != nil {
		h.log.Warn("a peer's address was not stored", "peer", p.name, "err", err)
	}
}

// newerHop reports whether a peer's hop is newer than all before it, and
// remembers it. What was signed before this process started may be a replay.
func (h *Host) newerHop(fold string, at time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.hops[fold]
	if !ok {
		last = h.start.Add(-time.Millisecond)
	}
	if !at.After(last) {
		return false
	}
	h.hops[fold] = at
	return true
}

// tryOtherAddr lets the address that a peer was seen at take the place of one
// that fails, or of none.
func tryOtherAddr(t *tx, fold string) error {
	_, err := t.exec(`UPDATE peers SET addr = seen_addr, seen_addr = '', lan_failures = 0, lan_bad = 0
		WHERE fold = ? AND (addr = '' OR lan_bad) AND seen_addr NOT IN ('', addr)`, fold)
	return err
}

// Join is part of lan.Node: it pairs a host that knows a token of ours. The
// token is used up in the transaction that pairs.
func (h *Host) Join(ctx context.Context, j lan.Join) (mac string, err error) {
	err = h.db.write(ctx, func(t *tx) error {
		mac = ""
		if err := dropTokens(t); err != nil {
			return err
		}
		id, key, err := matchToken(t, j)
		if err != nil {
			return err
		}
		if id == 0 { // whose token was meant can't be told: each counts it
			_, err := t.exec("UPDATE pair_tokens SET failures = failures + 1")
			return err
		}
		if err := h.addPeer(t, j.Host, j.HostKey, j.OwnerKey, j.Addr); err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM pair_tokens WHERE id = ?", id); err != nil {
			return err
		}
		mac = wire.PairingMAC(key, wire.PairAccept, j.Transcript)
		return nil
	})
	switch {
	case errors.Is(err, ErrTaken):
		return "", lan.ErrConflict
	case err != nil:
		return "", err
	case mac == "":
		return "", lan.ErrRefused
	}
	h.wake()
	return mac, nil
}

func matchToken(t *tx, j lan.Join) (id int64, key [32]byte, err error) {
	err = t.each("SELECT id, key FROM pair_tokens ORDER BY id", nil, func(scan func(...any) error) error {
		var n int64
		var b []byte
		if err := scan(&n, &b); err != nil {
			return err
		}
		var k [32]byte
		copy(k[:], b)
		if wire.CheckPairingMAC(k, wire.PairJoin, j.Transcript, j.MAC) {
			id, key = n, k
		}
		return nil
	})
	return id, key, err
}

// EncKey is part of lan.Node.
func (h *Host) EncKey(context.Context) (wire.EncPublicKey, string, error) {
	k := h.keyring()
	return k.enc.Public(), k.key.Sign(wire.EncKeyV1Payload(h.Name(), k.enc.Public())), nil
}

// Unpair is part of lan.Node: the peer has dropped this host.
func (h *Host) Unpair(ctx context.Context, from lan.Peer) error {
	return h.db.write(ctx, func(t *tx) error {
		p, err := findPeer(t, wire.FoldName(from.Name))
		if err != nil || p == nil {
			return err
		}
		_, err = h.dropPeer(t, p, "peer.unpaired")
		return err
	})
}

// JoinPeer pairs this host with the one that printed the token and listens at
// addr. Own is where this host listens, "" to find out. It returns the other
// host's name.
func (h *Host) JoinPeer(ctx context.Context, addr, token, own string) (name string, err error) {
	plain, err := wire.NormalizeToken(token)
	if err != nil {
		return "", err
	}
	if addr, err = lan.NormalizeAddr(addr); err != nil {
		return "", err
	}
	if own == "" {
		own = h.ownAddr(ctx, addr)
	} else if own, err = lan.NormalizeAddr(own); err != nil {
		return "", err
	}
	hello, err := h.lan.Hello(ctx, addr)
	if err != nil {
		return "", fmt.Errorf("%s: %w", addr, err)
	}
	// Before the token is used up, and the other host has a peer that is none here.
	err = h.db.read(ctx, func(t *tx) error {
		_, err := h.mayPair(t, wire.FoldName(hello.Host), hello.HostKey)
		return err
	})
	if err != nil {
		return "", err
	}
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return "", err
	}
	me := wire.PairSide{Host: h.Name(), HostKey: h.Key(), Nonce: base64.RawURLEncoding.EncodeToString(nonce), Addr: own}
	transcript := wire.Transcript(wire.PairSide{Host: hello.Host, HostKey: hello.HostKey, OwnerKey: hello.OwnerKey, Nonce: hello.Nonce}, me)
	key := wire.PairingKey(plain)
	host, mac, err := h.lan.Join(ctx, addr, lan.JoinRequest{
		Host: me.Host, HostKey: me.HostKey, Nonce: me.Nonce, Addr: own, NonceA: hello.Nonce,
		MAC: wire.PairingMAC(key, wire.PairJoin, transcript),
	})
	var status *lan.StatusError
	if errors.As(err, &status) && status.Status == 401 {
		return "", ErrPairRefused
	}
	if errors.As(err, &status) && status.Status == 409 {
		return "", fmt.Errorf("%w at the other host: remove it there first with agentmbx peers remove %s", ErrTaken, me.Host)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", addr, err)
	}
	if wire.FoldName(host) != wire.FoldName(hello.Host) || !wire.CheckPairingMAC(key, wire.PairAccept, transcript, mac) {
		return "", ErrUnproven
	}
	err = h.db.write(ctx, func(t *tx) error { return h.addPeer(t, hello.Host, hello.HostKey, hello.OwnerKey, addr) })
	if err != nil {
		return "", err
	}
	h.wake()
	return hello.Host, nil
}

// ownAddr is this machine's address on the way to another, with the port that
// the daemon of this home had last, else the default one; "" when there is no way.
func (h *Host) ownAddr(ctx context.Context, other string) string {
	c, err := net.Dial("udp", other) // sends nothing
	if err != nil {
		return ""
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil || strings.Contains(host, "%") {
		return ""
	}
	port := strconv.Itoa(lan.DefaultPort)
	if addr, err := h.lanAddr(ctx); err == nil && addr != "" {
		if _, p, err := net.SplitHostPort(addr); err == nil {
			port = p
		}
	}
	return net.JoinHostPort(host, port)
}
