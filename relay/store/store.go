// Package store is the contract between the relay's rules and its durable
// state: what a backend must keep, and what it promises about it.
//
// A backend passes the suite in package storetest. Nothing here belongs to one
// database: no row ids, no files, no SQL. All times are whole milliseconds,
// UTC; a zero time means "never".
package store

import (
	"context"
	"errors"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Errors a caller may test for.
var (
	ErrNotFound = errors.New("not found")
	// ErrFull: there is no room for new mail. Pulls and acks still work, and
	// the write succeeds again once there is room; no restart is needed.
	ErrFull = errors.New("the store is out of disk space")
	// ErrUnknownOutcome: the commit may or may not have taken place. The
	// caller's own retry finds out, since every write here is idempotent.
	ErrUnknownOutcome = errors.New("the outcome of the commit is unknown")
	// ErrGone: the store was moved away or replaced under the process that has
	// it. Nothing was stored, and nothing will be.
	ErrGone = errors.New("the store was moved or deleted while it was open; stop the relay and put the store back")
	// ErrClosed: the store was closed before the call was taken up.
	ErrClosed = errors.New("the store is closed")
	// ErrNameTaken: another live host of the same proven account has the name.
	ErrNameTaken = errors.New("name taken in the account")
	// ErrRunning: a run of the job has not finished.
	ErrRunning = errors.New("the job is running")
)

// Store is the relay's durable state. Safe for concurrent use.
type Store interface {
	// Update runs fn in a transaction and returns after the commit that
	// carries it. When fn or the commit fails, nothing of fn is stored, save
	// for ErrUnknownOutcome. Calls are grouped: fn shares its commit with
	// other callers, but a failing fn undoes only its own work. fn must touch
	// nothing but tx and its own variables, must not wait for anything, and
	// may run more than once. ctx bounds the wait before fn runs; a call that
	// has begun is always waited for.
	Update(ctx context.Context, fn func(tx Tx) error) error
	// View runs fn over one consistent snapshot that holds every commit
	// answered before the call. It never waits for a writer.
	View(ctx context.Context, fn func(r Reader) error) error
	// Check compares the store with itself: its integrity, and every counter
	// with a full count. It reads everything; it is for tests and verification.
	Check(ctx context.Context) error
	// Size tells how much room the store uses and how much is left.
	Size(ctx context.Context) (Size, error)
	Close() error
}

// Size is the room that a store takes, in bytes.
type Size struct {
	Data int64 `json:"data_bytes"` // the tables
	Log  int64 `json:"log_bytes"`  // the write-ahead log, or what the backend has of the kind
	Free int64 `json:"free_bytes"` // left on the device
	Low  bool  `json:"low"`        // new mail is refused for want of room
}

// Info is what a store knows of itself.
type Info struct {
	RelayKey   wire.PublicKey
	Epoch      string
	Heartbeat  time.Time // the last sign of life of a relay on this store
	ExpiryFrom time.Time // items accepted before it never expire
	CreatedAt  time.Time
	Schema     int
}

// Totals are kept as counters: reading them costs the same in any store.
type Totals struct {
	Enrolments int64 `json:"enrolments"` // live ones
	Items      int64 `json:"items"`      // queued and held
	Bytes      int64 `json:"bytes"`
	Held       int64 `json:"held"` // of the items
}

// Enrolment is a host that may use the relay (seed 000 §2). The key is the
// host; the name is a label.
type Enrolment struct {
	Key          wire.PublicKey
	Name         string
	OwnerFP      string // the host's own claim; it decides nothing
	Account      string // proven by an authority, or ""
	Org          string
	AuthorizedBy string
	ClientID     string // of the account's credential, or ""
	EnrolledAt   time.Time
	RevokedAt    time.Time // zero while live; never cleared once set
	SessionEnds  time.Time // zero: it has none
}

// Live reports whether the host may still use the relay.
func (e Enrolment) Live() bool { return e.RevokedAt.IsZero() }

// Denial is a refusal that need not be for ever: an operator's block, or an
// entry of the issuer's deny list. It matches a host when all it names match.
type Denial struct {
	ID       int64     // given by the store
	HostFP   string    // fingerprint of the host key, or "" for any
	ClientID string    // or "" for any
	Reason   string    //
	Source   string    // who added it
	AddedAt  time.Time //
	Until    time.Time // zero: until removed
}

// DenyList is the memory of an issuer's deny list that was taken.
type DenyList struct {
	ID      string // its jti
	Source  string // as in Denial
	IAT     time.Time
	Expires time.Time // when it is too old to be taken again, and may be forgotten
}

// SenderList is what a target said of who may push to it.
type SenderList struct {
	Target  wire.PublicKey
	Senders []wire.PublicKey // what holds now: a rotation replaces a key here
	IAT     time.Time
	Record  []byte // the signed record as received, canonical
	Sig     string
}

// EncKey is the v1 pair a host published (protocol §4).
type EncKey struct {
	EncPub, Sig string
	At          time.Time
}

// EncAd is the v2 advertisement a host published.
type EncAd struct {
	Record []byte // canonical
	Sig    string
	At     time.Time
}

// Kinds of item.
const (
	KindEnvelope = "envelope"
	KindReceipt  = "receipt"
	KindExpired  = "expired"
)

// Item is one unit of mail for one target.
type Item struct {
	Target     wire.PublicKey
	Seq        int64
	Kind       string
	ID         string
	Sender     wire.PublicKey
	SenderHost string // the pusher's name at push time
	Hash       [32]byte
	Size       int64 // len(Wire), also where Wire is left out
	AcceptedAt time.Time
	ExpiresAt  time.Time // zero: never
	Held       bool      // it stands in the quarantine, not in its queue
	Wire       []byte
}

// HeldItem is an item that an operator took out of its queue. It keeps its
// dedup row, its number and its charge, follows a rotation of its target and
// expires like any other; pulls and acks do not see it.
type HeldItem struct {
	Item
	HeldAt        time.Time
	Actor, Reason string
}

// Dedup is the memory of an item once accepted; it outlives the item.
type Dedup struct {
	Hash       [32]byte
	Seq        int64
	AcceptedAt time.Time
}

// DedupKey names one dedup row.
type DedupKey struct {
	Sender wire.PublicKey
	ItemID string
	Target wire.PublicKey
}

// Usage is what a queue, a share of one or an account holds.
type Usage struct{ Items, Bytes int64 }

// MiB is how many whole MiB that is.
func (u Usage) MiB() int64 { return u.Bytes >> 20 }

// Queue is the queue of a target as a whole.
type Queue struct {
	Target      wire.PublicKey
	Usage                 // all that it is charged for
	Held        Usage     // of that, in quarantine
	Oldest      time.Time // when the first of the queued items was accepted; zero when none is queued
	Head, Acked int64
}

// QueueOrder is an order in which queues are listed.
type QueueOrder string

// Orders of queues; those that are equal in one follow in the order of keys. By
// size they are ordered to the MiB only, so that few pushes move one: whoever
// asks wants to know what fills the disk.
const (
	ByDepth  QueueOrder = "depth"  // most items first
	ByBytes  QueueOrder = "bytes"  // most whole MiB first; those below one are left out
	ByOldest QueueOrder = "oldest" // longest waiting first; those with nothing queued are left out
)

// ItemMark is a place in the order of target and seq.
type ItemMark struct {
	Target wire.PublicKey
	Seq    int64
}

// Outcomes of a run.
const (
	OutcomeOK      = "ok"
	OutcomeFailed  = "failed"
	OutcomeCrashed = "crashed" // its process ended before it did
)

// Run is one run of a job. While it is not finished it is the job's lease: no
// other run of that job can start.
type Run struct {
	ID         int64
	Job        string
	AskedBy    string // the schedule, or who
	Holder     string // the process that runs it
	StartedAt  time.Time
	FinishedAt time.Time // zero while it runs
	Outcome    string    // "" while it runs
	Detail     string
}

// Op is one line of the relay log.
type Op struct {
	ID      int64
	At      time.Time
	Op      string
	Receipt []byte // JSON
}

// Rotation is a recorded change of a host's key.
type Rotation struct {
	Old, New wire.PublicKey
	Name     string
	Record   []byte // {rec, old_sig, new_sig}, canonical
	At       time.Time
}

// Reader is a view of the store. Methods answer ErrNotFound for a row that is
// not there, and otherwise only errors of the backend.
type Reader interface {
	Info() (Info, error)
	Totals() (Totals, error)

	Enrolment(key wire.PublicKey) (Enrolment, error)
	// LiveByName lists up to limit live enrolments of a name, compared
	// without case.
	LiveByName(name string, limit int) ([]Enrolment, error)
	// LiveInAccount is the one live host of an account with that name.
	LiveInAccount(account, name string) (Enrolment, error)
	// ByClientID lists up to limit enrolments of a credential, revoked ones too, in
	// the order of their keys.
	ByClientID(clientID string, limit int) ([]Enrolment, error)
	// Denied is the denial in force for a host at a time. It costs the same
	// however many denials there are.
	Denied(hostFP, clientID string, at time.Time) (Denial, error)
	// DenialsNaming calls each for the denials, in force or not, that name exactly
	// this host and this credential ("" for none), last added first.
	DenialsNaming(hostFP, clientID string, each func(Denial) bool) error
	// DenyList finds a list that was taken by its jti; NewestDenyList is that of a
	// source with the highest iat.
	DenyList(id string) (DenyList, error)
	NewestDenyList(source string) (DenyList, error)
	SenderList(target wire.PublicKey) (SenderList, error)
	// Accepts reports whether target published a list, and whether it names
	// sender. It costs less than SenderList.
	Accepts(target, sender wire.PublicKey) (listed, named bool, err error)
	// SenderCount is how many keys target's list names, and whether it published
	// one. It costs the same for any list.
	SenderCount(target wire.PublicKey) (n int, listed bool, err error)
	EncKey(host wire.PublicKey) (EncKey, error)
	EncAd(host wire.PublicKey) (EncAd, error)

	// Dedup finds an item by the keys given, or by those they were rotated
	// from, some rotations back; what stands under the keys given comes first.
	Dedup(sender wire.PublicKey, itemID string, target wire.PublicKey) (Dedup, error)
	// Head is the last seq allocated for target, Acked the last one it
	// acknowledged; both are 0 before the first.
	Head(target wire.PublicKey) (int64, error)
	Acked(target wire.PublicKey) (int64, error)
	QueueUsage(target wire.PublicKey) (Usage, error)
	ShareUsage(target, sender wire.PublicKey) (Usage, error)
	AccountUsage(account string) (Usage, error)

	// Page calls each for the items of target after a seq, in order, up to
	// limit of them, and stops early when each answers false. The items are
	// the caller's to keep.
	Page(target wire.PublicKey, after int64, limit int, each func(Item) bool) error
	// Expired lists up to limit items, without Wire and held ones too, that
	// were accepted at or after from and whose time is over at now.
	Expired(from, now time.Time, limit int) ([]Item, error)
	// CountExpired counts what Expired would list without a limit. It costs
	// as much as there is to count.
	CountExpired(from, now time.Time) (int64, error)
	// Queue is the queue of a target, empty when it never held anything.
	Queue(target wire.PublicKey) (Queue, error)
	// Queues calls each for the queues that hold something, in an order, until
	// each answers false. after is one that an earlier call gave, nil from the
	// start; it need not be there any more. What a call costs depends on how many
	// it gives, not on how many there are; so with all lists below. What they give
	// is the caller's to keep.
	Queues(by QueueOrder, after *Queue, each func(Queue) bool) error
	// Shares calls each for the senders whose items a queue holds, in the order
	// of their keys; SharesOf for the queues that hold items of a sender.
	Shares(target, after wire.PublicKey, each func(sender wire.PublicKey, u Usage) bool) error
	SharesOf(sender, after wire.PublicKey, each func(target wire.PublicKey, u Usage) bool) error
	// Items calls each for the queued items of all targets after a mark,
	// without Wire.
	Items(after ItemMark, each func(Item) bool) error
	// Item is one queued item, HeldItem one in quarantine, without Wire.
	Item(target wire.PublicKey, seq int64) (Item, error)
	HeldItem(target wire.PublicKey, seq int64) (HeldItem, error)
	// Quarantine calls each for the held items, last held first and those of one
	// time by target and seq, without Wire. after is one that an earlier call
	// gave, nil from the start.
	Quarantine(after *HeldItem, each func(HeldItem) bool) error
	// Enrolments calls each for every enrolment, revoked ones too, by name
	// (without case) and key. after is one that an earlier call gave, or nil.
	Enrolments(after *Enrolment, each func(Enrolment) bool) error
	// ByFingerprint lists up to limit enrolments whose key has a fingerprint.
	ByFingerprint(fp string, limit int) ([]Enrolment, error)
	// Seen is when a host was last known to be there; zero when never.
	Seen(host wire.PublicKey) (time.Time, error)
	// Denials calls each for the denials, in force or not, last added first and
	// before an id (0: from the start); of those that name one host only where
	// hostFP is not "".
	Denials(hostFP string, before int64, each func(Denial) bool) error
	// SenderLists calls each for the lists that were published, without Record
	// and Sig, in the order of their targets.
	SenderLists(after wire.PublicKey, each func(SenderList) bool) error
	// Held calls each for every item in quarantine, in the order of target and
	// seq, until each answers false. The items are the caller's to keep.
	Held(each func(HeldItem) bool) error
	// Prunable lists up to limit dedup rows that were accepted before a time
	// and whose item is no longer queued.
	Prunable(before time.Time, limit int) ([]DedupKey, error)
	// RotatedFrom lists up to limit keys that led to key by recorded
	// rotations, the nearest first.
	RotatedFrom(key wire.PublicKey, limit int) ([]wire.PublicKey, error)
	// RotatedTo lists up to limit keys that key led to, the nearest first.
	RotatedTo(key wire.PublicKey, limit int) ([]wire.PublicKey, error)

	// Log lists operations, newest first and before an id (0: from the newest);
	// op "" means all kinds.
	Log(op string, before int64, limit int) ([]Op, error)

	// Runs lists runs, newest first and before an id (0: from the newest); job ""
	// means all jobs.
	Runs(job string, before int64, limit int) ([]Run, error)
	// LastRun is the newest run of a job with an outcome ("" means the one
	// that is not finished).
	LastRun(job, outcome string) (Run, error)
	// Run finds a run by its id.
	Run(id int64) (Run, error)
	// State is what SetState stored under a name, JSON.
	State(name string) ([]byte, error)
}

// Tx is a transaction: a Reader that sees its own writes.
type Tx interface {
	Reader

	// PutEnrolment adds or replaces the enrolment of a key, and moves what
	// its queue is charged to when the account changes. It never clears
	// RevokedAt. ErrNameTaken when the account has a live host of that name.
	PutEnrolment(Enrolment) error
	// Revoke ends an enrolment for ever and reports whether it was live.
	Revoke(key wire.PublicKey, at time.Time) (bool, error)
	// AddDenial gives the denial an id that no other ever had. RemoveDenial
	// answers ErrNotFound.
	AddDenial(Denial) error
	RemoveDenial(id int64) error
	// PruneDenials removes up to limit denials that ended before one time and were
	// added before another, first ended first.
	PruneDenials(ended, added time.Time, limit int) (pruned int64, err error)
	// PutDenyList remembers a list, in place of what was known of its jti.
	// ForgetDenyLists forgets those that expired before a time, save for the newest
	// of each source.
	PutDenyList(DenyList) error
	ForgetDenyLists(before time.Time) (forgotten int64, err error)
	// SetSeen remembers when hosts were last known to be there. It never goes
	// back in time.
	SetSeen(host wire.PublicKey, at time.Time) error
	PutSenderList(SenderList) error
	PutEncKey(host wire.PublicKey, name string, k EncKey) error
	PutEncAd(host wire.PublicKey, ad EncAd) error

	// Room reports whether there is room for new mail and new hosts.
	Room() bool
	// Insert queues an item, allocates its seq, remembers it for dedup and
	// charges it to the queue, the sender's share and the target's account.
	// It answers the seq. ErrFull when there is no room for new mail; a
	// notice of expiry is none, since it takes the place of what was larger.
	Insert(Item) (int64, error)
	// AckThrough drops the items of target up to and with seq, and records
	// it. seq is not above the head; an older ack changes nothing.
	AckThrough(target wire.PublicKey, seq int64) (deleted int64, err error)
	// Drop removes one item, queued or held as Held says, and gives its charge
	// back; its dedup row stays.
	Drop(Item) error
	// Hold takes a queued item out of its queue and into the quarantine. ErrFull
	// when there is no room for the move: the item stays, and acks and drops, which
	// make room, go on.
	Hold(target wire.PublicKey, seq int64, at time.Time, actor, reason string) error
	// Release puts a held item back at the tail of its queue, under a new seq
	// that its dedup row now names; what is charged for it stays. ErrFull as with
	// Hold.
	Release(target wire.PublicKey, seq int64) (newSeq int64, err error)
	// Forget removes those of the rows that Prunable would still list.
	Forget(rows []DedupKey, before time.Time) (pruned int64, err error)
	// Rotate makes New the successor of Old: name, account, queue and sender
	// list follow (protocol §3), and so does what Dedup answers; Old is
	// revoked, the record is kept. It answers how many items moved. It may
	// cost as much as the queue is long, and no more.
	Rotate(r Rotation) (moved int64, err error)

	SetEpoch(epoch string) error
	SetHeartbeat(at time.Time) error
	// AppendLog keeps the last LogKeep lines of each kind.
	AppendLog(at time.Time, op string, receipt []byte) error

	// StartRun records the beginning of a run and answers its id, or
	// ErrRunning while the same holder has one of that job. Only one process
	// at a time writes to a store, so that another holder's unfinished run is
	// one that a crash left: it is recorded as such and taken over.
	StartRun(r Run) (int64, error)
	// FinishRun records the end of a run; of its job the last keep runs stay,
	// and the last one that went well.
	FinishRun(r Run, keep int) error
	// SetState remembers a JSON value under a name; nil forgets it.
	SetState(name string, value []byte) error
}

// LogKeep is how many lines of each kind the relay log keeps, so that sweeps
// never push out a restore.
const LogKeep = 1000
