// Package relayclient speaks a relay's HTTP interface from the host's side:
// one method a call, signed hops, bounded answers.
//
// It trusts nothing that comes back: an answer is read up to a bound within a
// deadline, a redirect is an error, and whatever is not exactly what the
// protocol says is an error too. What an answer means for the host (keys,
// epochs, positions) is decided by the caller.
package relayclient

import (
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Caller is who signs a call.
type Caller struct {
	Host string
	Key  wire.PrivateKey
}

// Info is the answer to GET /v2/relay/info.
type Info struct {
	RelayKey wire.PublicKey
	Epoch    string
	Version  string
	Limits   Limits
	You      *You // nil when the relay does not know the caller
}

// Limits are the served limits that a host acts on. A missing or absurd one
// is replaced by the protocol's default; MaxWaitS is 0 unless advertised.
type Limits struct {
	MaxItemBytes  int64
	MaxBatch      int
	MaxPull       int
	MaxPullBytes  int64
	MaxTargets    int
	RetentionDays int // as served: the caller clamps it
	MaxWaitS      int
}

// You is how the relay knows the caller.
type You struct {
	Host         string
	Key          wire.PublicKey
	HeadSeq      int64
	AckedThrough int64
	Ad           *YouAd // nil for none
}

// YouAd is what the relay holds of the caller's sealing key: the v2 key and its
// end, the v1 key; each empty when there is none.
type YouAd struct {
	EncPub string
	Exp    time.Time // zero for none
	V1     string
}

// Item is one item to push, for one target.
type Item struct {
	Kind   string
	ID     string
	Target wire.PublicKey
	Wire   []byte
}

// PushResult is what the relay says of one item. Accept is the statement as
// received, for wire.VerifyAccept.
type PushResult struct {
	ItemID string
	Status string // accepted, duplicate or rejected:<code>
	Accept jsontext.Value
	Sig    string
}

// PulledItem is one item of a page.
type PulledItem struct {
	Seq    int64
	Kind   string
	ID     string
	Sender string // as received: the caller parses it
	Wire   []byte // nil when WireOK is false
	WireOK bool   // strict base64 of at least one byte
	Raw    []byte // wire_b64 as received when it is not OK, cut to 1 MiB
}

// Page is a page of a pull.
type Page struct {
	Epoch   string
	HeadSeq int64
	LastSeq int64
	More    bool
	Items   []PulledItem
}

// Acked is the answer to an ack.
type Acked struct {
	AckedThrough int64
	Deleted      int64
	HeadSeq      int64
}

// EncKey is the answer to GET /v2/relay/enc-key: the v2 advertisement as
// received (nil for none) with its signature, and the v1 pair.
type EncKey struct {
	Host    string
	HostKey string
	EncPub  string
	Sig     string
	Ad      jsontext.Value
	AdSig   string
}

// V1Item is one item of a v1 pull.
type V1Item struct {
	Seq      int64
	Envelope []byte // as received
	From     string
}

// StatusError is an answer with a status that is not the success of its call.
type StatusError struct {
	Status     int
	Code       string    // the answer's code, "" for none
	Reason     string    // the answer's error, printable and cut to 200 characters
	ReasonCode string    // the answer's reason: the code of the check that a token did not pass, "" for none
	Epoch      string    // the answer's epoch, "" for none
	Head       int64     // the answer's head_seq
	Date       time.Time // the answer's Date, zero for none
}

// Errors that a caller tells apart; everything else is a relay that can't be used now.
var (
	ErrUnreachable = errors.New("relay unreachable") // no connection, or no answer in time
	ErrBadAnswer   = errors.New("relay answered what the protocol does not allow")
)
