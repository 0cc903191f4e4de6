package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const (
	listEnrolments = "enrolments"
	listBlocked    = "enrolments-blocked"
)

// Enrolments lists hosts.
func (l *Local) Enrolments(ctx context.Context, f EnrolmentFilter) (page Page[Enrolment], err error) {
	list := listEnrolments
	switch f.State {
	case "", StateAll, StateLive, StateRevoked:
	case StateBlocked:
		list = listBlocked
	default:
		return page, fmt.Errorf("%w: state: want %s, %s, %s or %s", ErrBadRequest, StateAll, StateLive, StateRevoked, StateBlocked)
	}
	at, err := f.open(list)
	if err != nil {
		return page, err
	}
	if err := cmp.Or(checkText("text", f.Text), checkText("account", f.Account)); err != nil {
		return page, err
	}
	p := newPager[Enrolment](ctx, f.Paging)
	err = l.look(ctx, func(v *look) error {
		if f.State == StateBlocked {
			return v.blocked(p, f, at)
		}
		return v.enrolments(p, f, at)
	})
	return p.page, err
}

func (v *look) enrolments(p *pager[Enrolment], f EnrolmentFilter, at *cursor) error {
	var after *store.Enrolment
	if at != nil {
		after = &store.Enrolment{Key: at.Key, Name: at.Name}
	}
	text := newNeedle(f.Text)
	return fill(p, after, rows[store.Enrolment, Enrolment]{
		read: v.Reader.Enrolments,
		show: func(e store.Enrolment) (shown Enrolment, ok bool, err error) {
			if !f.has(e, text) {
				return shown, false, nil
			}
			shown, err = v.shown(e)
			return shown, true, err
		},
		mark: func(e store.Enrolment) cursor { return cursor{List: listEnrolments, Key: e.Key, Name: e.Name} },
	})
}

// has reports whether a host is one of those asked for.
func (f EnrolmentFilter) has(e store.Enrolment, text needle) bool {
	switch {
	case f.Account != "" && e.Account != f.Account, f.State == StateLive && !e.Live(), f.State == StateRevoked && e.Live():
		return false
	}
	return f.Text == "" || text.in(e.Key.Fingerprint(), e.Name, e.Account, e.Org, e.ClientID)
}

// blockedHost is a host, and the denial that it is listed for.
type blockedHost struct {
	store.Enrolment
	denial int64
}

// blocked lists the hosts that are named by a denial in force, last denied first.
func (v *look) blocked(p *pager[Enrolment], f EnrolmentFilter, at *cursor) error {
	text := newNeedle(f.Text)
	show := rows[blockedHost, Enrolment]{
		show: func(b blockedHost) (shown Enrolment, ok bool, err error) {
			if !f.has(b.Enrolment, text) {
				return shown, false, nil
			}
			shown, err = v.shown(b.Enrolment)
			return shown, true, err
		},
		mark: func(b blockedHost) cursor { return cursor{List: listBlocked, Key: b.Key, N: b.denial} },
	}
	before := int64(0)
	if at != nil { // the denial at hand again, from the next host that it names
		if before = at.N; before < math.MaxInt64 {
			before++
		}
	}
	for {
		denials, more, err := take(lookAhead, func(each func(store.Denial) bool) error { return v.Denials("", before, each) })
		if err != nil {
			return err
		}
		for i, d := range denials {
			if p.page.Looked++; p.over() {
				p.page.Next = cursor{List: listBlocked, Key: lastKey, N: d.ID + 1}.String() // it is yet to be looked at
				return nil
			}
			hosts, err := v.namedBy(d)
			if err != nil {
				return err
			}
			show.read = func(after *blockedHost, each func(blockedHost) bool) error {
				for _, h := range hosts {
					past := after != nil && slices.Compare(h.Key[:], after.Key[:]) <= 0
					if !past && !each(blockedHost{h, d.ID}) {
						break
					}
				}
				return nil
			}
			var after *blockedHost
			if at != nil && at.N == d.ID {
				after = &blockedHost{store.Enrolment{Key: at.Key}, d.ID}
			}
			show.more = more || i+1 < len(denials)
			if err := fill(p, after, show); err != nil || p.over() {
				return err
			}
		}
		if !more {
			return p.ctx.Err()
		}
		before = denials[len(denials)-1].ID
	}
}

// lastKey is the last one in the order of keys.
var lastKey = wire.PublicKey(slices.Repeat([]byte{0xff}, 32))

// namedBy lists the hosts that are blocked by a denial, in the order of their keys:
// none when it is over, and none when a later one blocks them, too.
func (v *look) namedBy(d store.Denial) ([]store.Enrolment, error) {
	if !v.inForce(d) {
		return nil, nil
	}
	var named []store.Enrolment
	var err error
	if d.HostFP != "" {
		named, err = v.ByFingerprint(d.HostFP, MaxPage)
	} else {
		named, err = v.ByClientID(d.ClientID, MaxPage) // one host has a credential, as a rule
	}
	var hosts []store.Enrolment
	for _, e := range named {
		if d.ClientID != "" && d.ClientID != e.ClientID {
			continue
		}
		last, err := v.denial(e.Key.Fingerprint(), e.ClientID)
		if err != nil {
			return nil, err
		}
		if last != nil && last.ID == d.ID {
			hosts = append(hosts, e)
		}
	}
	slices.SortFunc(hosts, func(a, b store.Enrolment) int { return slices.Compare(a.Key[:], b.Key[:]) })
	return hosts, err
}

// shown is a host with all that is told of it.
func (v *look) shown(e store.Enrolment) (Enrolment, error) {
	out := Enrolment{
		Host: hostOf(e.Key, &e), OwnerFP: e.OwnerFP, Account: e.Account, Org: e.Org, AuthorizedBy: e.AuthorizedBy,
		ClientID: e.ClientID, EnrolledAt: e.EnrolledAt, RevokedAt: e.RevokedAt,
	}
	if v.hosted && e.Live() {
		out.SessionEnds, out.SessionOver = e.SessionEnds, !e.SessionEnds.After(v.now)
	}
	var err error
	if out.LastSeen, err = v.relay.LastSeen(v.Reader, e.Key); err != nil {
		return out, err
	}
	if out.Denial, err = v.denial(out.Fingerprint, e.ClientID); err != nil {
		return out, err
	}
	n, listed, err := v.SenderCount(e.Key)
	if err != nil {
		return out, err
	}
	if listed {
		out.Senders = &n
	}
	u, err := v.QueueUsage(e.Key)
	out.Items, out.Bytes = u.Items, u.Bytes
	return out, err
}

// Enrolment finds a host, live or not.
func (l *Local) Enrolment(ctx context.Context, key wire.PublicKey) (e Enrolment, err error) {
	if err := checkKey("key", key); err != nil {
		return e, err
	}
	err = l.look(ctx, func(v *look) error {
		row, err := v.Reader.Enrolment(key)
		if errors.Is(err, store.ErrNotFound) {
			return noHost(key)
		}
		if err == nil {
			e, err = v.shown(row)
		}
		return err
	})
	return e, err
}

func noHost(key wire.PublicKey) error {
	return fmt.Errorf("%w: no host is enrolled under the key %s", ErrNotFound, key)
}
