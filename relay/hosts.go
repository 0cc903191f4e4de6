package relay

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// SourceOperator is the source of the denials that Block adds.
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

// Block refuses a host until a time (zero: until it is unblocked) and ends its
// long polls. The host is told the reason. It takes the place of the operator's
// blocks of that host that are in force: one Unblock is enough. Nothing is done
// when the same block is in force already: changed tells.
func (r *Relay) Block(ctx context.Context, key wire.PublicKey, until time.Time, d Deed) (changed bool, err error) {
	if key.IsZero() {
		return false, fmt.Errorf("%w: name the host's key", ErrBadDeed)
	}
	if !until.IsZero() {
		until = until.UTC().Truncate(time.Millisecond)
		if !until.After(r.now()) {
			return false, fmt.Errorf("%w: a block can't end in the past", ErrBadDeed)
		}
	}
	err = r.deed(ctx, "block", d, func(c *change, line *deedLine) (bool, error) {
		changed = false
		want := store.Denial{HostFP: key.Fingerprint(), Reason: d.Reason, Source: SourceOperator, AddedAt: line.at, Until: until}
		stands, err := c.operatorBlocks(want.HostFP, line.at)
		if err != nil {
			return false, err
		}
		if len(stands) == 1 && stands[0].Reason == want.Reason && stands[0].Until.Equal(until) {
			return false, nil
		}
		for _, s := range stands {
			if err := c.RemoveDenial(s.ID); err != nil {
				return false, err
			}
			line.Replaced = append(line.Replaced, s.ID)
		}
		if err := c.AddDenial(want); err != nil {
			return false, err
		}
		e, err := c.Enrolment(key) // a host may be blocked before it comes
		if err := present(err); err != nil {
			return false, err
		}
		line.Host, line.Denial = &hostLine{key, want.HostFP, e.Name}, lineOf(want)
		changed = true
		return true, c.did(Effect{Kind: Denied, At: line.at, Host: key})
	})
	return changed && err == nil, err
}

// operatorBlocks are the operator's denials of a host that are in force.
func (c *change) operatorBlocks(fp string, at time.Time) (list []store.Denial, err error) {
	err = c.Denials(fp, 0, func(d store.Denial) bool {
		if d.Source == SourceOperator && d.ClientID == "" && (d.Until.IsZero() || d.Until.After(at)) {
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
		if hosts, err := c.ByFingerprint(was.HostFP, 1); err != nil {
			return false, err
		} else if len(hosts) == 1 {
			e.Host = hosts[0].Key
			line.Host = &hostLine{e.Host, was.HostFP, hosts[0].Name}
		}
		line.Denial = lineOf(was)
		return true, c.did(e)
	})
	if err != nil {
		return store.Denial{}, err
	}
	return was, nil
}
