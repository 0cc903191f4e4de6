package admin

import (
	"time"

	"github.com/agentmbx/agentmbx/backup/drill"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Page is part of a list. A search may look at many rows to find few: then a page
// has fewer than were asked for, even none, and Next says where to go on.
type Page[T any] struct {
	Items  []T    `json:"items"`
	Next   string `json:"next,omitempty"` // pass as After for what follows; "" at the end
	Looked int64  `json:"looked"`         // rows looked at for this page
}

// MaxPage is the most rows of a page, and MaxLook the most that are looked at for
// one.
const (
	MaxPage = 1000
	MaxLook = 10_000
)

// Paging says which part of a list.
type Paging struct {
	After string `json:"after,omitempty"` // Next of the page before, "" for the first
	Limit int    `json:"limit,omitempty"` // 1 to MaxPage
}

// Host names a host. Name is "" where none is enrolled under the key.
type Host struct {
	Key         wire.PublicKey `json:"key"`
	Fingerprint string         `json:"fingerprint"`
	Name        string         `json:"name"`
}

// Queue is a queue that holds something.
type Queue struct {
	Target    Host      `json:"target"`
	Live      bool      `json:"live"` // its host is enrolled and not revoked
	Account   string    `json:"account,omitempty"`
	Items     int64     `json:"items"` // all that it is charged for
	Bytes     int64     `json:"bytes"`
	HeldItems int64     `json:"held_items"` // of that, in quarantine
	HeldBytes int64     `json:"held_bytes"`
	Oldest    time.Time `json:"oldest,omitzero"` // since when the first of the queued items waits, which the host gets next; after a release others may be older
	Head      int64     `json:"head"`
	Acked     int64     `json:"acked"`
}

// QueueFilter selects queues.
type QueueFilter struct {
	Paging
	Text   string           `json:"text,omitempty"`  // part of the target's name, fingerprint or account, without case
	Target wire.PublicKey   `json:"target,omitzero"` // only this one, also when it is empty
	Sender wire.PublicKey   `json:"sender,omitzero"` // only those that hold items of a sender; ordered by key then
	Sort   store.QueueOrder `json:"sort,omitempty"`  // "" means by depth; by bytes it is to the MiB, without those below one
}

// Share is what a queue holds of one sender.
type Share struct {
	Sender Host  `json:"sender"`
	Items  int64 `json:"items"`
	Bytes  int64 `json:"bytes"`
}

// ShareFilter selects the senders of one queue.
type ShareFilter struct {
	Paging
	Target wire.PublicKey `json:"target"`
}

// Item is one item: never its body.
type Item struct {
	relay.ItemRef
	TargetHost Host      `json:"target_host"`
	Kind       string    `json:"kind"`
	Sender     Host      `json:"sender"`
	SenderHost string    `json:"sender_host"` // the sender's name when it pushed
	Hash       string    `json:"wire_hash"`   // SHA-256 of the sealed bytes, hexadecimal
	Bytes      int64     `json:"bytes"`
	AcceptedAt time.Time `json:"accepted_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"` // never when zero
	Held       *Hold     `json:"held,omitempty"`      // it stands in the quarantine
}

// Hold says who took an item out of its queue, and why.
type Hold struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason"`
}

// ItemFilter selects queued items, in the order of target and seq.
type ItemFilter struct {
	Paging
	Target wire.PublicKey `json:"target,omitzero"`
	Sender wire.PublicKey `json:"sender,omitzero"`
	Kind   string         `json:"kind,omitempty"` // envelope, receipt or expired
	ID     string         `json:"id,omitempty"`   // the whole item id
	// OlderThan, when not zero, selects what was accepted before it.
	OlderThan time.Time `json:"older_than,omitzero"`
}

// Enrolment is a host that may, or might, use the relay. EnrolledAt is zero, in the
// answer to Block, of one that nobody has enrolled. Sessions end on a hosted relay
// alone: elsewhere SessionEnds is zero.
type Enrolment struct {
	Host
	OwnerFP      string    `json:"owner_fp"` // its own claim
	Account      string    `json:"account,omitempty"`
	Org          string    `json:"org,omitempty"`
	AuthorizedBy string    `json:"authorized_by"`
	ClientID     string    `json:"client_id,omitempty"` // of the account's credential
	SessionEnds  time.Time `json:"session_ends,omitzero"`
	SessionOver  bool      `json:"session_over,omitempty"` // it must enrol again: its session has ended, or it never had one
	EnrolledAt   time.Time `json:"enrolled_at"`
	RevokedAt    time.Time `json:"revoked_at,omitzero"`
	LastSeen     time.Time `json:"last_seen,omitzero"`
	Denial       *Denial   `json:"denial,omitempty"` // the last one in force
	Senders      *int      `json:"senders"`          // keys in its sender list; null when it published none
	Items        int64     `json:"items"`            // its queue holds
	Bytes        int64     `json:"bytes"`
}

// States of enrolments to select by.
const (
	StateAll     = "all"
	StateLive    = "live"
	StateRevoked = "revoked"
	StateBlocked = "blocked" // a denial that names the host, or its credential, is in force
)

// EnrolmentFilter selects enrolments, in the order of their names; blocked ones in
// that of their denials, last added first.
type EnrolmentFilter struct {
	Paging
	Text    string `json:"text,omitempty"` // part of the name, fingerprint, account, organization or client id, without case
	Account string `json:"account,omitempty"`
	State   string `json:"state,omitempty"` // "" means all
}

// SenderList is whom a host takes mail from. Senders is left out of lists.
type SenderList struct {
	Target  Host      `json:"target"`
	Count   int       `json:"count"`
	IAT     time.Time `json:"iat"`
	Senders []Host    `json:"senders,omitempty"`
}

// Denial is a refusal that need not be for ever.
type Denial struct {
	ID       int64     `json:"id"`
	HostFP   string    `json:"host_fp,omitempty"`
	ClientID string    `json:"client_id,omitempty"`
	Reason   string    `json:"reason"`
	Source   string    `json:"source"`
	AddedAt  time.Time `json:"added_at"`
	Until    time.Time `json:"until,omitzero"` // until removed when zero
	InForce  bool      `json:"in_force"`
}

// DenialFilter selects denials, newest first.
type DenialFilter struct {
	Paging
	HostFP   string `json:"host_fp,omitempty"`
	ClientID string `json:"client_id,omitempty"` // the whole one
	All      bool   `json:"all,omitempty"`       // those that are over, too
}

// Quarantined is one thing that needs a person: a held item or a refused push.
type Quarantined struct {
	Kind    string         `json:"kind"` // QuarantineHeld or QuarantineRefused
	Item    *Item          `json:"item,omitempty"`
	Refusal *relay.Refusal `json:"refusal,omitempty"`
}

// Kinds of what stands in quarantine.
const (
	QuarantineHeld    = "held"
	QuarantineRefused = "refused"
)

// QuarantineFilter selects what stands in quarantine: held items, last held first,
// then refused pushes, newest first.
type QuarantineFilter struct {
	Paging
	Kind   string         `json:"kind,omitempty"` // "" means all
	Target wire.PublicKey `json:"target,omitzero"`
	Sender wire.PublicKey `json:"sender,omitzero"`
}

// Overview is what an operator wants to see first.
type Overview struct {
	Status
	Activity relay.Activity `json:"activity"`
	Deepest  []Queue        `json:"deepest"` // the first few by depth
	Longest  []Queue        `json:"longest"` // the first few by age
	Refused  int            `json:"refused"` // pushes in the quarantine's sample
	Drill    *drill.Receipt `json:"drill"`   // of the last drill, nil when there is none in the log
}
