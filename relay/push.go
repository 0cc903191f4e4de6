package relay

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Statuses of a pushed item. A rejected one is followed by its reason.
const (
	StatusAccepted  = "accepted"
	StatusDuplicate = "duplicate"
	rejected        = "rejected:"
)

// PushResult is the answer to one item. Accept is the signed statement in its
// canonical form, nil when the item was rejected.
type PushResult struct {
	ItemID  string
	Status  string
	Targets []wire.AcceptTarget
	Accept  []byte
	Sig     string
}

// prepared is an item with all that can be said of it without the store.
type prepared struct {
	id, kind string
	refusal  string // of the item as a whole
	misfit   bool   // the refusal is one for the sample
	targets  []preparedTarget
	v1       bool // dedup by id alone, no expiry
}

type preparedTarget struct {
	key     wire.PublicKey
	keyOK   bool
	wire    []byte
	hash    [32]byte
	refusal string // of its wire: looked at only when its turn comes
}

// outcome is what a transaction made of an item.
type outcome struct {
	status  string
	misfit  bool // it was refused as a conflict or as malformed
	targets []wire.AcceptTarget
	at      time.Time
	epoch   string
}

// Push stores items, each all or nothing, in one commit (seed 000 §3). What
// can be checked without the store is checked before, what reads the store
// inside the transaction that writes, and accepts are signed after the commit.
func (r *Relay) Push(ctx context.Context, from Caller, items []wire.PushItem) ([]PushResult, error) {
	results := make([]PushResult, len(items))
	if !r.pushes.Allow(string(from.Key[:]), r.now()) {
		for i, it := range items {
			results[i] = PushResult{ItemID: it.ID, Status: rejected + "rate"}
		}
		return results, nil
	}
	ready := make([]prepared, len(items))
	for i, it := range items {
		var err error
		if ready[i], err = r.prepare(ctx, from.Key, it); err != nil {
			return nil, err
		}
	}
	outcomes, err := r.pushAll(ctx, from, ready, false)
	if err != nil {
		return nil, err
	}
	for i, o := range outcomes {
		r.noteRefusal(from, ready[i].id, o)
		results[i] = PushResult{ItemID: ready[i].id, Status: o.status, Targets: o.targets}
		if len(o.targets) > 0 {
			accept := wire.NewAccept(r.pub, o.epoch, from.Key, ready[i].id, o.targets, o.at)
			results[i].Accept, results[i].Sig = wire.SignAccept(r.key, accept)
		}
	}
	return results, nil
}

// prepare does the checks of one item that need no transaction. The order in
// which refusals count is the protocol's; it is put together again in push.
func (r *Relay) prepare(ctx context.Context, sender wire.PublicKey, it wire.PushItem) (prepared, error) {
	p := prepared{id: it.ID, kind: it.Kind}
	switch {
	case !it.IDOK || !wire.ValidItemID(it.ID):
		p.refusal = "bad item id"
	case it.Kind != wire.KindEnvelope && it.Kind != wire.KindReceipt:
		p.refusal = "bad kind"
	case !it.TargetsOK:
		p.refusal = "bad targets"
	}
	if p.refusal != "" {
		p.misfit = true
		return p, nil
	}
	p.targets = make([]preparedTarget, len(it.Targets))
	for i, t := range it.Targets {
		pt := preparedTarget{key: t.Key, keyOK: t.KeyOK, wire: t.Wire}
		switch {
		case !t.WireOK:
			pt.refusal = "bad wire"
		case int64(len(t.Wire)) > r.limits.MaxItemBytes:
			pt.refusal = "item over size limit"
		default:
			var receipt *wire.Receipt
			receipt, pt.refusal = wire.CheckItem(it.Kind, it.ID, t.Wire, sender)
			if receipt != nil {
				signed, err := r.signedBy(ctx, receipt, sender)
				if err != nil {
					return p, err
				}
				if !signed {
					pt.refusal = "receipt is not signed by the sending host"
				}
			}
			pt.hash = wire.Hash(t.Wire)
		}
		p.targets[i] = pt
	}
	return p, nil
}

// olderKeys is how many rotations back a receipt may have been signed.
const olderKeys = 8

// signedBy reports whether a receipt is signed by the pushing key, or by an
// older key of that host by a rotation recorded here.
func (r *Relay) signedBy(ctx context.Context, receipt *wire.Receipt, sender wire.PublicKey) (bool, error) {
	if receipt.SignedBy(sender) {
		return true, nil
	}
	var older []wire.PublicKey
	err := r.store.View(ctx, func(v store.Reader) (err error) { older, err = v.RotatedFrom(sender, olderKeys); return err })
	if err != nil {
		return false, storeError(err)
	}
	for _, k := range older {
		if receipt.SignedBy(k) {
			return true, nil
		}
	}
	return false, nil
}

// pushAll runs items in one transaction. In a v1 batch the first refusal ends it.
func (r *Relay) pushAll(ctx context.Context, from Caller, items []prepared, v1 bool) (outcomes []outcome, err error) {
	err = r.update(ctx, func(c *change) error {
		outcomes = make([]outcome, 0, len(items))
		b, err := c.newBatch(from)
		if err != nil {
			return err
		}
		for i := range items {
			o, err := b.push(&items[i])
			if err != nil {
				return fmt.Errorf("push item %d of %d: %w", i+1, len(items), err)
			}
			outcomes = append(outcomes, o)
			if v1 && len(o.targets) == 0 {
				return nil
			}
		}
		return nil
	})
	return outcomes, err
}

// batch is the part of a push that runs in the transaction. It remembers what
// it learnt of each target, so that a batch to one host asks once.
type batch struct {
	*change
	from    store.Enrolment
	epoch   string
	now     time.Time
	targets map[wire.PublicKey]*target
}

type target struct {
	store.Enrolment
	refusal string
}

func (c *change) newBatch(from Caller) (*batch, error) {
	in, err := c.Info()
	if err != nil {
		return nil, err
	}
	// The hop was verified a moment ago, outside. A rotation or revocation in
	// between leaves the sender no longer welcome.
	if err := c.r.stillWelcome(c, from.Key); err != nil {
		return nil, err
	}
	sender, err := c.Enrolment(from.Key)
	return &batch{change: c, from: sender, epoch: in.Epoch, now: c.r.now(), targets: map[wire.PublicKey]*target{}}, err
}

// target answers what is known of a target, and why it may not be pushed to.
func (b *batch) target(key wire.PublicKey) (*target, error) {
	if t, ok := b.targets[key]; ok {
		return t, nil
	}
	t := &target{}
	b.targets[key] = t
	e, err := b.Enrolment(key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if err != nil || !e.Live() {
		t.refusal = "target not enrolled"
		return t, nil
	}
	t.Enrolment = e
	listed, named, err := b.Accepts(key, b.from.Key)
	if err != nil {
		return nil, err
	}
	if listed && !named {
		t.refusal = "sender not accepted by target"
	}
	return t, nil
}

func reject(why string) outcome { return outcome{status: rejected + why} }

// misfit rejects what no host should have sent.
func misfit(why string) outcome { return outcome{status: rejected + why, misfit: true} }

// noteRefusal remembers an item that was refused as a conflict or as malformed.
func (r *Relay) noteRefusal(from Caller, id string, o outcome) {
	if o.misfit {
		r.refusals.note(from, id, o.status[len(rejected):], r.now())
	}
}

// push decides about one item and stores it. All is checked before anything is
// written, so a refusal leaves nothing behind.
func (b *batch) push(p *prepared) (outcome, error) {
	if p.refusal != "" {
		return outcome{status: rejected + p.refusal, misfit: p.misfit}, nil
	}
	for i, pt := range p.targets {
		refusal := "target not enrolled"
		if pt.keyOK {
			t, err := b.target(pt.key)
			if err != nil {
				return outcome{}, err
			}
			refusal = t.refusal
		}
		if refusal != "" {
			return reject(refusal), nil
		}
		if repeats(p.targets[:i], pt.key) {
			return misfit("duplicate target"), nil
		}
		if pt.refusal != "" {
			return misfit(pt.refusal), nil
		}
	}
	known := make([]store.Dedup, len(p.targets)) // Seq 0: not known
	fresh := 0
	for i, pt := range p.targets {
		d, err := b.Dedup(b.from.Key, p.id, pt.key)
		if errors.Is(err, store.ErrNotFound) {
			fresh++
			continue
		}
		if err != nil {
			return outcome{}, err
		}
		if d.Hash != pt.hash && !p.v1 {
			return misfit("conflict"), nil
		}
		known[i] = d
	}
	if fresh > 0 {
		which, err := b.quota(p.targets, known)
		if err != nil || which != "" {
			return reject("quota:" + which), err
		}
	}
	return b.store(p, known, fresh)
}

func repeats(before []preparedTarget, key wire.PublicKey) bool {
	for _, t := range before {
		if t.keyOK && t.key == key {
			return true
		}
	}
	return false
}

// store writes the copies that are new and puts together what was accepted.
func (b *batch) store(p *prepared, known []store.Dedup, fresh int) (outcome, error) {
	o := outcome{status: StatusDuplicate, epoch: b.epoch, targets: make([]wire.AcceptTarget, len(p.targets))}
	if fresh > 0 {
		o.status, o.at = StatusAccepted, b.now
	}
	for i, pt := range p.targets {
		d := known[i]
		if d.Seq == 0 {
			it := store.Item{
				Target: pt.key, Kind: p.kind, ID: p.id, Sender: b.from.Key, SenderHost: b.from.Name,
				Hash: pt.hash, Size: int64(len(pt.wire)), AcceptedAt: b.now, Wire: pt.wire,
			}
			if !p.v1 { // a v1 sender dropped its row on our 200: its mail never expires
				it.ExpiresAt = b.now.Add(b.r.retention())
			}
			seq, err := b.Insert(it)
			if err != nil {
				return outcome{}, err
			}
			it.Seq = seq
			if err := b.did(Effect{Kind: Accepted, At: b.now, Host: pt.key, Item: it, Seq: seq}); err != nil {
				return outcome{}, err
			}
			d = store.Dedup{Hash: pt.hash, Seq: seq, AcceptedAt: b.now}
		}
		if fresh == 0 && d.AcceptedAt.After(o.at) {
			// A pure duplicate answers when the item was first held for all of
			// these targets: the sender's deadline must not move, and must not
			// end before any copy expires.
			o.at = d.AcceptedAt
		}
		o.targets[i] = wire.AcceptTarget{HostPubkey: pt.key, Seq: d.Seq, WireHash: hex.EncodeToString(d.Hash[:])}
	}
	return o, nil
}
