package relay

import (
	"context"
	"fmt"
	"math"
	"time"
	"unicode"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// SourceOperator is the source of the denials that Block and AddDenial add.
const SourceOperator = "operator"

type hostLine struct {
	Key         wire.PublicKey `json:"key"`
	Fingerprint string         `json:"fingerprint"`
	Name        string         `json:"name,omitempty"`
}

type denialLine struct {
	ID       int64     `json:"id,omitempty"`
	HostFP   string    `json:"host_fp,omitempty"`
	ClientID string    `json:"client_id,omitempty"`
	Reason   string    `json:"reason"`
	Source   string    `json:"source"`
	Until    time.Time `json:"until,omitzero"`
}

func lineOf(d store.Denial) *denialLine {
	return &denialLine{d.ID, d.HostFP, d.ClientID, d.Reason, d.Source, d.Until}
}

// RevokeHost ends a host's enrolment for ever; was tells whether it was live.
// store.ErrNotFound for a key that never enrolled.
func (r *Relay) RevokeHost(ctx context.Context, key wire.PublicKey, d Deed) (was bool, err error) {
	err = r.deed(ctx, "revoke", d, func(c *change, line *deedLine) (bool, error) {
		was = false
		e, err := c.Enrolment(key)
		if err != nil {
			return false, fmt.Errorf("the enrolment of %s: %w", key.Fingerprint(), err)
		}
		if was, err = c.Revoke(key, line.at); err != nil || !was {
			return false, err
		}
		line.Host = &hostLine{key, key.Fingerprint(), e.Name}
		return true, c.did(Effect{Kind: Revoked, At: line.at, Host: key})
	})
	return was && err == nil, err
}

// DenialSpec says who is refused, whoever is all that it names, and until when.
type DenialSpec struct {
	HostFP   string    // fingerprint of the host key, or "" for any
	ClientID string    // of an account's credential, or "" for any
	Until    time.Time // zero: until it is removed
}

// Block refuses a host until a time (zero: until it is unblocked) and ends its
// long polls. Nothing is done when the same block is in force already: changed tells.
func (r *Relay) Block(ctx context.Context, key wire.PublicKey, until time.Time, d Deed) (changed bool, err error) {
	if key.IsZero() {
		return false, fmt.Errorf("%w: name the host's key", ErrBadDeed)
	}
	_, changed, err = r.refuseHosts(ctx, "block", DenialSpec{HostFP: key.Fingerprint(), Until: until}, key, d)
	return changed, err
}

// AddDenial refuses hosts by what a denial can name, and ends their long polls.
// changed is false when the same denial is in force already.
func (r *Relay) AddDenial(ctx context.Context, s DenialSpec, d Deed) (added store.Denial, changed bool, err error) {
	if s.HostFP == "" && s.ClientID == "" {
		return added, false, fmt.Errorf("%w: name a host's fingerprint or a client id", ErrBadDeed)
	}
	if s.HostFP != "" {
		if s.HostFP, err = wire.ParseFingerprint(s.HostFP); err != nil {
			return added, false, fmt.Errorf("%w: host_fp: %w", ErrBadDeed, err)
		}
	}
	if !ValidClientID(s.ClientID) && s.ClientID != "" {
		return added, false, fmt.Errorf("%w: a client id is 1 to %d printable characters", ErrBadDeed, MaxClientID)
	}
	return r.refuseHosts(ctx, "deny", s, wire.PublicKey{}, d)
}

// refuseHosts adds an operator's denial. It takes the place of the operator's
// denials in force that name the same: one Unblock is enough, or two when the host
// has rotated, whose new key is refused with it. The hosts are told the reason. key
// is the host's where it is known.
func (r *Relay) refuseHosts(ctx context.Context, op string, s DenialSpec, key wire.PublicKey, d Deed) (put store.Denial, changed bool, err error) {
	if !s.Until.IsZero() {
		s.Until = s.Until.UTC().Truncate(time.Millisecond)
		if !s.Until.After(r.now()) {
			return put, false, fmt.Errorf("%w: a block can't end in the past", ErrBadDeed)
		}
	}
	err = r.deed(ctx, op, d, func(c *change, line *deedLine) (bool, error) {
		changed = false
		want := store.Denial{HostFP: s.HostFP, ClientID: s.ClientID, Reason: d.Reason, Source: SourceOperator, AddedAt: line.at, Until: s.Until}
		fps, err := c.withSuccessors(s.HostFP)
		if err != nil {
			return false, err
		}
		for i, fp := range fps {
			w := want
			w.HostFP = fp
			stands, added, err := c.putOperatorDenial(w, line)
			if err != nil {
				return false, err
			}
			if i == 0 {
				put = stands
			} else if added {
				line.Denials = append(line.Denials, lineOf(w))
			}
			changed = changed || added
		}
		if !changed {
			return false, nil
		}
		line.Denial = lineOf(want)
		if key.IsZero() {
			return true, nil
		}
		e, err := c.Enrolment(key)
		told := err == nil && e.Live()
		if err := present(err); err != nil {
			return false, err
		}
		line.Host = &hostLine{key, want.HostFP, e.Name}
		if told {
			return true, nil
		}
		return true, c.did(Effect{Kind: Denied, At: line.at, Host: key}) // a host may be blocked before it comes
	})
	return put, changed && err == nil, err
}

// putOperatorDenial adds one denial in place of those that name the same, unless it
// stands just so; stands is what is in force then.
func (c *change) putOperatorDenial(want store.Denial, line *deedLine) (stands store.Denial, added bool, err error) {
	older, err := c.operatorBlocks(want, line.at)
	if err != nil {
		return stands, false, err
	}
	if len(older) == 1 && older[0].Reason == want.Reason && older[0].Until.Equal(want.Until) {
		return older[0], false, nil
	}
	for _, o := range older {
		if err := c.RemoveDenial(o.ID); err != nil {
			return stands, false, err
		}
		line.Replaced = append(line.Replaced, o.ID)
	}
	if err := c.AddDenial(want); err != nil {
		return stands, false, err
	}
	if err := c.DenialsNaming(want.HostFP, want.ClientID, func(o store.Denial) bool { stands = o; return false }); err != nil {
		return stands, false, err
	}
	return stands, true, c.tellDenied(want)
}

// MaxClientID is how long the id of an account's credential may be.
const MaxClientID = 200

// ValidClientID reports whether a text can be the id of an account's credential:
// 1 to MaxClientID printable characters, counted as those of a token are.
func ValidClientID(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return false
		}
	}
	return s != "" && wire.UTF16Len(s) <= MaxClientID
}

// operatorBlocks are the operator's denials in force that name what want does.
func (c *change) operatorBlocks(want store.Denial, at time.Time) (list []store.Denial, err error) {
	err = c.DenialsNaming(want.HostFP, want.ClientID, func(d store.Denial) bool {
		if d.Source == SourceOperator && (d.Until.IsZero() || d.Until.After(at)) {
			list = append(list, d)
		}
		return true
	})
	return list, err
}

// DenialRef names a denial by its id, and pins it by what else was seen of it:
// HostFP and AddedAt may be left out.
type DenialRef struct {
	ID      int64
	HostFP  string
	AddedAt time.Time
}

func (ref DenialRef) is(d store.Denial) bool {
	return d.ID == ref.ID && (ref.HostFP == "" || ref.HostFP == d.HostFP) && (ref.AddedAt.IsZero() || ref.AddedAt.Equal(d.AddedAt))
}

// Unblock removes a denial, and answers it. store.ErrNotFound.
func (r *Relay) Unblock(ctx context.Context, ref DenialRef, d Deed) (was store.Denial, err error) {
	id := ref.ID
	if id <= 0 || id == math.MaxInt64 {
		return was, fmt.Errorf("denial %d: %w", id, store.ErrNotFound)
	}
	err = r.deed(ctx, "unblock", d, func(c *change, line *deedLine) (bool, error) {
		was = store.Denial{}
		err := c.Denials("", id+1, func(d store.Denial) bool { was = d; return false })
		if err == nil && !ref.is(was) {
			err = store.ErrNotFound
		}
		if err == nil {
			err = c.RemoveDenial(id)
		}
		if err != nil {
			return false, fmt.Errorf("denial %d: %w", id, err)
		}
		e := Effect{Kind: Undenied, At: line.at}
		if hosts, _, err := c.namedBy(was, deniedHosts); err != nil {
			return false, err
		} else if len(hosts) > 0 {
			e.Host = hosts[0].Key
			line.Host = &hostLine{e.Host, e.Host.Fingerprint(), hosts[0].Name}
		}
		line.Denial = lineOf(was)
		return true, c.did(e)
	})
	if err != nil {
		return store.Denial{}, err
	}
	return was, nil
}
