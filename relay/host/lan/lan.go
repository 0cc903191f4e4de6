// Package lan is how hosts talk to each other on a network of their own: HTTP
// with a signed hop, its server and its client (host.md §1 of the protocol's
// host side).
//
// It knows requests, answers, sizes, rates and signatures. What a request
// means is the host's to decide, behind the interface Node.
package lan

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// DefaultPort is where a host listens.
const DefaultPort = 7373

// HeaderPort names the sender's own LAN port. It is not signed.
const HeaderPort = "x-mbx-port"

// Bounds of a request and of an answer.
const (
	MaxBody      = 4 << 20
	MaxEnvelopes = 200
	MaxReceipts  = 200
	MaxRotations = 50
)

// Errors of a Node that the server turns into a status of their own; any other
// is a 500 without its text.
var (
	ErrShape    = errors.New("malformed")      // 400
	ErrRefused  = errors.New("not authorised") // 401
	ErrConflict = errors.New("already paired") // 409
)

// A Peer is a paired host.
type Peer struct {
	Name string
	Key  wire.PublicKey
}

// Result is what became of one envelope: "accepted", "duplicate" or
// "rejected:<why>".
type Result struct {
	ID     string `json:"id"`
	Result string `json:"result"`
}

// Status is the answer to GET /v1/status.
type Status struct {
	Service    string         `json:"service"` // "agentmbx"
	V          int            `json:"v"`
	Host       string         `json:"host"`
	HostPubkey wire.PublicKey `json:"host_pubkey"`
	Version    string         `json:"version"`
	StartedAt  string         `json:"started_at"`
}

// Identity is what a host says of itself before it is paired.
type Identity struct {
	Host     string
	HostKey  wire.PublicKey
	OwnerKey string // empty for none
}

// Join is a host that asks to be paired. Transcript is what MAC covers, made
// of both sides as the server saw them.
type Join struct {
	Host       string
	HostKey    wire.PublicKey
	OwnerKey   string // empty for none
	Addr       string // where it listens, as it says itself
	Transcript []byte
	MAC        string
}

// Node is the host behind the server. Its methods are safe for concurrent use.
type Node interface {
	// Identity is who this host is now.
	Identity() Identity

	// Peer finds a paired host by name, without regard to case. It returns
	// ErrRefused when there is none.
	Peer(ctx context.Context, name string) (Peer, error)

	// Seen hears of each valid hop: who made it and the address it listens at,
	// "" when the request did not say.
	Seen(ctx context.Context, p Peer, addr string, at time.Time)

	// Join pairs a host that knows a token of ours and returns the MAC of the
	// answer. It returns ErrRefused for an unknown token, ErrConflict for a
	// name or key that is taken.
	Join(ctx context.Context, j Join) (mac string, err error)

	// Rotate takes signed rotations and answers "rotated" or "rejected:<why>" for each, in order.
	Rotate(ctx context.Context, records [][]byte) ([]string, error)

	// Envelopes takes mail from p, in order. When it returns nil all of it is durable.
	Envelopes(ctx context.Context, p Peer, envelopes [][]byte) ([]Result, error)

	// Receipts takes delivery receipts from p, in order: "accepted",
	// "duplicate", "stale" or "rejected:<why>" for each.
	Receipts(ctx context.Context, p Peer, receipts [][]byte) ([]string, error)

	// EncKey is this host's sealing key and its host key's signature over it.
	EncKey(ctx context.Context) (pub wire.EncPublicKey, sig string, err error)

	// Unpair drops p.
	Unpair(ctx context.Context, p Peer) error
}

// Options of a Server.
type Options struct {
	Node    Node
	Version string
	Now     func() time.Time // nil means time.Now
	Log     *slog.Logger     // hears of failures and panics; nil for nobody
}

// Caller is who makes a signed call.
type Caller struct {
	Host string
	Key  wire.PrivateKey
	Port int // its own LAN port, 0 when it does not listen
}

// Hello is the answer to GET /v1/pair/hello.
type Hello struct {
	Host     string
	HostKey  wire.PublicKey
	OwnerKey string // empty for none
	Nonce    string
}

// JoinRequest is the body of POST /v1/pair/join.
type JoinRequest struct {
	Host     string
	HostKey  wire.PublicKey
	OwnerKey string // empty for none
	Nonce    string // ours
	Addr     string
	NonceA   string // theirs, of the hello
	MAC      string
}

// ErrUnreachable matches the error of a call that never reached the other
// host: no connection could be made.
var ErrUnreachable = errors.New("unreachable")

// StatusError is an answer other than 200.
type StatusError struct {
	Status int
	Reason string // the answer's own error, printable and cut to 200 characters
}
