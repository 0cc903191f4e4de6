package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The deny list is one table for all that is refused and need not be for ever:
// what an operator adds (hosts.go), and what the issuer of a hosted relay says.

// Sources of denials that an issuer's lists add.
const (
	SourceIssuer     = "issuer"      // pushed
	SourceIssuerList = "issuer-list" // pulled
)

const (
	// denialLife is the least that an entry of the issuer's lasts: no token that was
	// given out before it is good for longer.
	denialLife = LongestSession + tokenLeeway
	// tokenLeeway is what clocks may differ by where tokens are checked.
	tokenLeeway = time.Minute
	// denialShown is how long a denial that is over can still be seen.
	denialShown = 24 * time.Hour
	// listRemembered is how long a list is remembered at most. An older one is
	// refused by its iat.
	listRemembered = 7 * 24 * time.Hour
	// denyChunk is how many entries one transaction takes: nobody else can write
	// meanwhile.
	denyChunk = 500
	// deniedHosts is how many keys of one entry are told one by one; older keys of
	// hosts that have rotated count, too.
	deniedHosts = 100
)

var (
	errListSeen  = refuse(Conflict, "SEEN", "this deny list was taken before")
	errListOlder = refuse(Conflict, "OLDER", "a newer deny list was taken before")
)

// DenyResult says what a deny list changed.
type DenyResult struct {
	Added int64 // entries that were not in force like that before
	Known bool  // it had been taken before, and nothing was done
}

// Hosted reports whether the relay takes the deny lists of an issuer.
func (r *Relay) Hosted() bool { return r.issuer != nil }

// Deny takes an issuer's deny list: entries are added, never replaced. A pushed
// one is taken once, and only when it is not older than the newest (protocol §7);
// a pulled one that was taken before is Known.
//
// A long list is several transactions. It counts as taken with the last one, and
// entries that are there are not added again: whoever got no answer sends it again.
func (r *Relay) Deny(ctx context.Context, source, token string) (res DenyResult, err error) {
	if r.issuer == nil {
		return res, refuse(NotFound, "NOT_FOUND", "this relay has no accounts issuer")
	}
	list, err := r.issuer.VerifyDenials(ctx, token)
	if err != nil {
		return res, err
	}
	for rest := list.Deny; ; {
		n := min(denyChunk, len(rest))
		added, known := int64(0), false
		err := r.update(ctx, func(c *change) (err error) {
			added, known, err = c.takeDenials(source, list, rest[:n], n == len(rest))
			return err
		})
		if err != nil {
			return DenyResult{}, err
		}
		res.Added, res.Known = res.Added+added, known
		if rest = rest[n:]; known || len(rest) == 0 {
			break
		}
	}
	if res.Added > 0 {
		r.log.Info("the accounts issuer denied hosts", "source", source, "list", quoted(list.ID), "added", res.Added)
	}
	return res, nil
}

// takeDenials adds entries of a list, and remembers the list with its last ones.
func (c *change) takeDenials(source string, list DenyList, entries []DenyEntry, last bool) (added int64, known bool, err error) {
	if err := c.mayTake(source, list); errors.Is(err, errListSeen) && source == SourceIssuerList {
		return 0, true, nil
	} else if err != nil {
		return 0, false, err
	}
	line := deedLine{V: 1, Type: "relay-deny", At: wire.FormatTime(c.r.now()), Actor: source, Reason: "deny list " + quoted(list.ID), at: c.r.now()}
	for _, e := range entries {
		d := store.Denial{
			HostFP: e.HostFP, ClientID: e.ClientID, Reason: cmp.Or(wire.Cut(e.Reason, 200), "denied by the accounts issuer"),
			Source: source, AddedAt: line.at, Until: e.Until.UTC().Truncate(time.Millisecond),
		}
		if e.Until.IsZero() {
			d.Until = time.Time{}
		}
		n, err := c.addIssuerDenial(d, &line)
		if err != nil {
			return 0, false, err
		}
		added += n
	}
	if added > 0 {
		line.Added = added
		if err := c.logDeed("deny", line); err != nil {
			return 0, false, err
		}
	}
	if !last {
		return added, false, nil
	}
	expires := list.Expires.Add(tokenLeeway)
	if most := line.at.Add(listRemembered); expires.After(most) {
		expires = most
	}
	return added, false, c.PutDenyList(store.DenyList{ID: list.ID, Source: source, IAT: list.IAT, Expires: expires.UTC().Truncate(time.Millisecond)})
}

// mayTake refuses a list that was taken, or that is older than one that was.
func (c *change) mayTake(source string, list DenyList) error {
	_, err := c.DenyList(list.ID)
	if err == nil {
		return errListSeen
	}
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	newest, err := c.NewestDenyList(source)
	if err == nil && list.IAT.Before(newest.IAT) {
		return errListOlder
	}
	return present(err)
}

// addIssuerDenial adds an entry of the issuer's, and one for the key that a host it
// names has rotated to: a host does not shake a denial off by a new key.
func (c *change) addIssuerDenial(d store.Denial, line *deedLine) (added int64, err error) {
	fps, err := c.withSuccessors(d.HostFP)
	if err != nil {
		return 0, err
	}
	for _, fp := range fps {
		d.HostFP = fp
		there, err := c.standsAsLong(d)
		if err != nil {
			return added, err
		}
		if there {
			continue
		}
		put := d
		if least := d.AddedAt.Add(denialLife); !put.Until.IsZero() && put.Until.Before(least) {
			put.Until = least
		}
		if err := c.AddDenial(put); err != nil {
			return added, err
		}
		if added++; len(line.Denials) < maxDenialLines {
			line.Denials = append(line.Denials, lineOf(put))
		}
		if err := c.tellDenied(put); err != nil {
			return added, err
		}
	}
	return added, nil
}

// standsAsLong reports whether a denial like d was added that lasts as long, or was
// to. A list that is pulled again and again must not add its old entries anew.
func (c *change) standsAsLong(d store.Denial) (there bool, err error) {
	err = c.DenialsNaming(d.HostFP, d.ClientID, func(o store.Denial) bool {
		there = o.Source == d.Source && (o.Until.IsZero() || !d.Until.IsZero() && !o.Until.Before(d.Until))
		return !there
	})
	return there, err
}

// withSuccessors is a fingerprint, and those of the keys that hosts of it have now.
// "", for any host, is itself alone.
func (c *change) withSuccessors(fp string) (list []string, err error) {
	list = []string{fp}
	if fp == "" {
		return list, nil
	}
	hosts, err := c.ByFingerprint(fp, deniedHosts)
	if err != nil {
		return nil, err
	}
	for _, e := range hosts {
		to, err := c.RotatedTo(e.Key, maxRotations)
		if err != nil {
			return nil, err
		}
		if len(to) > 0 {
			list = append(list, to[len(to)-1].Fingerprint())
		}
	}
	return list, nil
}

// maxRotations is how many rotations a denial follows.
const maxRotations = 1000

// tellDenied tells the observers, and then the long polls, of the hosts that a new
// denial is about. One that is about very many is told as one about all.
func (c *change) tellDenied(d store.Denial) error {
	hosts, more, err := c.namedBy(d, deniedHosts)
	if err != nil {
		return err
	}
	if more {
		return c.did(Effect{Kind: Denied, At: d.AddedAt, Count: deniedHosts})
	}
	for _, e := range hosts {
		if err := c.did(Effect{Kind: Denied, At: d.AddedAt, Host: e.Key}); err != nil {
			return err
		}
	}
	return nil
}

// namedBy lists the live hosts that a denial is about, of the first limit keys that
// it names. more: it names others, too.
func (c *change) namedBy(d store.Denial, limit int) (hosts []store.Enrolment, more bool, err error) {
	var all []store.Enrolment
	if d.HostFP != "" {
		all, err = c.ByFingerprint(d.HostFP, limit+1)
	} else {
		all, err = c.ByClientID(d.ClientID, limit+1)
	}
	if more = len(all) > limit; more {
		all = all[:limit]
	}
	for _, e := range all {
		if e.Live() && (d.ClientID == "" || d.ClientID == e.ClientID) {
			hosts = append(hosts, e)
		}
	}
	return hosts, more, err
}

// PruneDenials removes denials that have been over for a day, and forgets lists
// that can't be taken again.
func (r *Relay) PruneDenials(ctx context.Context) (pruned int64, err error) {
	for {
		var n int64
		err := r.update(ctx, func(c *change) (err error) {
			now := c.r.now()
			if n, err = c.PruneDenials(now.Add(-denialShown), now.Add(-denialLife), denyChunk); err != nil {
				return err
			}
			_, err = c.ForgetDenyLists(now)
			return err
		})
		pruned += n
		if err != nil || n < denyChunk {
			return pruned, err
		}
	}
}

// quoted is text from outside as a log may have it.
func quoted(s string) string { return fmt.Sprintf("%.100q", s) }
