package lan

import (
	"crypto/rand"
	"encoding/base64"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// The nonces of hello.
const (
	nonceLife = 2 * time.Minute
	maxNonces = 1000
)

// nonces are those given out and not yet used. At most maxNonces are open: over
// that the oldest is dropped, so that a flood of hellos locks nobody out for
// longer than it lasts.
type nonces struct {
	mu    sync.Mutex
	given map[string]time.Time
	order []string // by age; used ones stay until they are the oldest
}

func newNonces() *nonces { return &nonces{given: map[string]time.Time{}} }

// issue makes a nonce.
func (n *nonces) issue(now time.Time) string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	s := base64.RawURLEncoding.EncodeToString(b[:])
	n.add(s, now)
	return s
}

func (n *nonces) add(nonce string, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.order) > 0 {
		at, open := n.given[n.order[0]]
		if open && live(at, now) && len(n.order) < maxNonces {
			break
		}
		delete(n.given, n.order[0])
		n.order = n.order[1:]
	}
	n.given[nonce] = now
	n.order = append(n.order, nonce)
}

// use reports whether the nonce is open, and closes it.
func (n *nonces) use(nonce string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, open := n.given[nonce]
	delete(n.given, nonce)
	return open && live(at, now)
}

// live reports whether a nonce of the time at may still be used. A clock that
// was set back ends it too.
func live(at, now time.Time) bool {
	age := now.Sub(at)
	return age >= 0 && age < nonceLife
}

// helloAnswer is the answer to GET /v1/pair/hello.
type helloAnswer struct {
	V           int     `json:"v"`
	Host        string  `json:"host"`
	HostPubkey  string  `json:"host_pubkey"`
	OwnerPubkey *string `json:"owner_pubkey"` // null for none
	Nonce       string  `json:"nonce"`
}

// hello is GET /v1/pair/hello.
func (c *call) hello() (any, error) {
	if !c.hellos.Allow(c.remote, c.now()) {
		return nil, errTooMany
	}
	id := c.node.Identity()
	return helloAnswer{1, id.Host, id.HostKey.String(), orNull(id.OwnerKey), c.nonces.issue(c.now())}, nil
}

// orNull makes the empty string null.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// joinAnswer is the answer to POST /v1/pair/join.
type joinAnswer struct {
	V    int    `json:"v"`
	Host string `json:"host"`
	MAC  string `json:"mac"`
}

// join is POST /v1/pair/join. A nonce is used up by the first join of a good
// shape, whatever comes of it.
func (c *call) join() (any, error) {
	if !c.joins.Allow(c.remote, c.now()) {
		return nil, errTooMany
	}
	if err := c.readBody(); err != nil {
		return nil, err
	}
	j, err := parseJoin(c.body)
	if err != nil {
		return nil, err
	}
	if !c.nonces.use(j.NonceA, c.now()) {
		return nil, errNonce
	}
	id := c.node.Identity()
	mac, err := c.node.Join(c.ctx, Join{
		Host: j.Host, HostKey: j.HostKey, OwnerKey: j.OwnerKey, Addr: j.Addr, MAC: j.MAC,
		Transcript: wire.Transcript(
			wire.PairSide{Host: id.Host, HostKey: id.HostKey, OwnerKey: id.OwnerKey, Nonce: j.NonceA},
			wire.PairSide{Host: j.Host, HostKey: j.HostKey, OwnerKey: j.OwnerKey, Nonce: j.Nonce, Addr: j.Addr},
		),
	})
	if err != nil {
		return nil, err
	}
	return joinAnswer{1, id.Host, mac}, nil
}

// rotate is POST /v1/rotate. Its records carry their own signatures.
func (c *call) rotate() (any, error) {
	if !c.rotations.Allow(c.remote, c.now()) {
		return nil, errTooMany
	}
	if err := c.readBody(); err != nil {
		return nil, err
	}
	return answerList(c, "records", MaxRotations, c.node.Rotate)
}
