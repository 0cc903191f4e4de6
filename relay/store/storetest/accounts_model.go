package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (m *model) ByClientID(clientID string, limit int) (list []store.Enrolment, _ error) {
	for _, e := range m.enrol {
		if clientID != "" && e.ClientID == clientID {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b store.Enrolment) int { return slices.Compare(a.Key[:], b.Key[:]) })
	return list[:min(limit, len(list))], nil
}

func (m *model) DenialsNaming(hostFP, clientID string, each func(store.Denial) bool) error {
	return m.Denials("", 0, func(d store.Denial) bool {
		return d.HostFP != hostFP || d.ClientID != clientID || each(d)
	})
}

func (m *model) PruneDenials(ended, added time.Time, limit int) (pruned int64, _ error) {
	over := slices.DeleteFunc(slices.Clone(m.denials), func(d store.Denial) bool {
		return d.Until.IsZero() || !d.Until.Before(ended) || !d.AddedAt.Before(added)
	})
	slices.SortStableFunc(over, func(a, b store.Denial) int { return a.Until.Compare(b.Until) })
	for _, d := range over[:min(limit, len(over))] {
		pruned++
		if err := m.RemoveDenial(d.ID); err != nil {
			return 0, err
		}
	}
	return pruned, nil
}

func (m *model) DenyList(id string) (store.DenyList, error) {
	l, ok := m.denyLists[id]
	if !ok {
		return l, store.ErrNotFound
	}
	return l, nil
}

func (m *model) NewestDenyList(source string) (newest store.DenyList, err error) {
	err = store.ErrNotFound
	for _, l := range m.denyLists {
		if l.Source == source && (err != nil || cmp.Or(l.IAT.Compare(newest.IAT), cmp.Compare(l.ID, newest.ID)) > 0) {
			newest, err = l, nil
		}
	}
	return newest, err
}

func (m *model) PutDenyList(l store.DenyList) error { m.denyLists[l.ID] = l; return nil }

func (m *model) ForgetDenyLists(before time.Time) (forgotten int64, _ error) {
	for id, l := range m.denyLists {
		if newest, _ := m.NewestDenyList(l.Source); l.Expires.Before(before) && l.IAT.Before(newest.IAT) {
			delete(m.denyLists, id)
			forgotten++
		}
	}
	return forgotten, nil
}

func (m *model) RotatedTo(key wire.PublicKey, limit int) (keys []wire.PublicKey, _ error) {
	for next := key; len(keys) < limit; {
		i := slices.IndexFunc(m.rotations, func(r store.Rotation) bool { return r.Old == next })
		if i < 0 || m.rotations[i].New == key || slices.Contains(keys, m.rotations[i].New) {
			break
		}
		next = m.rotations[i].New
		keys = append(keys, next)
	}
	return keys, nil
}
