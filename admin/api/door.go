package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/ratelimit"
)

// Door is the desk's way in over TCP. It is closed to whoever has no token.
type Door struct {
	Address string // host:port
	Service admin.Service
	// Token opens all of the Service, ReadOnlyToken what only reads. One of the
	// two may be zero.
	Token, ReadOnlyToken TokenHash
	// CertFile and KeyFile are PEM files for TLS; without them the address must be
	// a loopback one.
	CertFile, KeyFile string
	Log               *slog.Logger
	Now               func() time.Time // nil means time.Now

	times    times
	failures *ratelimit.Limiter // of tries to come in, by address
}

func (d *Door) now() time.Time {
	if d.Now == nil {
		return time.Now()
	}
	return d.Now()
}

// TokenHash is the SHA-256 of a token: what a relay knows of it.
type TokenHash [32]byte

// TokenPrefix begins each token of our making, so that it is not taken for its own
// hash, which is of hexadecimal digits too, and is seen where it should not be.
const TokenPrefix = "mbxa_"

// noHashes are no token's: what comes of a variable that was not set, or of a file
// that was empty.
var noHashes = []TokenHash{{}, sha256.Sum256(nil), sha256.Sum256([]byte("\n"))}

// ParseTokenHash reads 64 hexadecimal digits. Its error does not repeat them: a
// token may stand where its hash should.
func ParseTokenHash(s string) (h TokenHash, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) || slices.Contains(noHashes, TokenHash(b)) {
		return h, errors.New("not the SHA-256 of a token: want 64 hexadecimal digits")
	}
	return TokenHash(b), nil
}

// Check reports what is wrong with the door, before it is opened.
func (d *Door) Check() error {
	_, _, err := d.prepare()
	return err
}

// prepare resolves the address and reads the certificate, nil for plain HTTP.
func (d *Door) prepare() (at *net.TCPAddr, c *certificate, err error) {
	switch {
	case d.Token == TokenHash{} && d.ReadOnlyToken == TokenHash{}:
		err = errors.New("no token opens it: make one with `agentmbx relay admin token FILE`, and set MBX_ADMIN_TOKEN_SHA256 or MBX_ADMIN_READONLY_TOKEN_SHA256 to its hash")
	case d.Token == d.ReadOnlyToken:
		err = errors.New("MBX_ADMIN_TOKEN_SHA256 and MBX_ADMIN_READONLY_TOKEN_SHA256 are the same: make a token of its own for reading")
	case (d.CertFile == "") != (d.KeyFile == ""):
		err = errors.New("MBX_ADMIN_TLS_CERT and MBX_ADMIN_TLS_KEY belong together: set both or none")
	}
	if err != nil {
		return nil, nil, err
	}
	if at, err = net.ResolveTCPAddr("tcp", d.Address); err != nil {
		return nil, nil, err
	}
	if d.CertFile != "" {
		c, err = loadCertificate(d.CertFile, d.KeyFile, d.Log, d.now)
	} else if !at.IP.IsLoopback() {
		err = errors.New("other machines reach this address, and without TLS a token could be read on the way: set MBX_ADMIN_TLS_CERT and MBX_ADMIN_TLS_KEY, or listen on 127.0.0.1")
	}
	return at, c, err
}

// Listen takes the address.
func (d *Door) Listen() (net.Listener, error) {
	at, c, err := d.prepare()
	if err != nil {
		return nil, err
	}
	network := "tcp"
	if at.IP.To4() != nil {
		network = "tcp4" // as "tcp" 0.0.0.0 would be every address of both
	}
	l, err := net.ListenTCP(network, at)
	if err != nil {
		return nil, err
	}
	d.failures = ratelimit.New(maxFailures, maxAddresses)
	shut := func(at string) bool { return d.failures.Spent(at, d.now()) }
	var bounded net.Listener = newPlaces(l, maxConns, maxConnsEach, shut)
	if c != nil {
		bounded = tls.NewListener(bounded, c.config())
	}
	return bounded, nil
}

// Serve answers calls on l, which Listen made, until ctx ends. It closes l.
func (d *Door) Serve(ctx context.Context, l net.Listener) error {
	t := d.times
	if t == (times{}) {
		t = usualTimes
	}
	g := &guard{
		token: d.Token, readOnlyToken: d.ReadOnlyToken, log: d.Log, now: d.now,
		failures: d.failures, lines: ratelimit.New(maxLines, 1),
	}
	for _, h := range []struct {
		to **handler
		s  admin.Service
	}{{&g.full, d.Service}, {&g.reading, admin.ReadOnly(d.Service)}} {
		*h.to = newHandler(h.s, d.Log, t)
		(*h.to).from = caller
	}
	return serve(ctx, l, g, d.Log, slog.LevelDebug, t)
}
