package storetest

import (
	"github.com/agentmbx/agentmbx/relay/store"
)

// accounts are the facts of credentials and of deny lists.
func (f *facts) accounts(sc Scope) {
	for _, c := range sc.Clients {
		list, err := f.r.ByClientID(c, 1000)
		f.line(err, "credential %q: %d", c, len(list))
		for _, e := range list {
			f.line(nil, "credential %q: %s %q %q revoked %s", c, f.name(e.Key), e.Name, e.ClientID, stamp(e.RevokedAt))
		}
		for _, fp := range append([]string{""}, sc.Denied...) {
			f.naming(fp, c)
		}
	}
	for _, fp := range sc.Denied {
		f.naming(fp, "")
	}
	for _, id := range sc.DenyLists {
		l, err := f.r.DenyList(id)
		f.line(err, "deny list %q is %s", id, denyList(l))
	}
	for _, source := range sc.Sources {
		l, err := f.r.NewestDenyList(source)
		f.line(err, "newest deny list of %q is %s", source, denyList(l))
	}
}

func denyList(l store.DenyList) string {
	return l.ID + " by " + l.Source + " of " + stamp(l.IAT) + " until " + stamp(l.Expires)
}

// naming tells the denials of exactly a host and a credential, without their ids.
func (f *facts) naming(fp, client string) {
	last := int64(0)
	f.line(f.r.DenialsNaming(fp, client, func(d store.Denial) bool {
		f.line(nil, "denial of exactly %q and %q: %q %q for %q by %q at %s until %s, in order %v", fp, client, d.HostFP, d.ClientID, d.Reason,
			d.Source, stamp(d.AddedAt), stamp(d.Until), last == 0 || d.ID < last)
		last = d.ID
		return true
	}), "end of the denials of exactly %q and %q", fp, client)
}
