package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const listSenders = "sender-lists"

// SenderLists lists who has published a list of senders, and how long it is.
func (l *Local) SenderLists(ctx context.Context, paging Paging) (page Page[SenderList], err error) {
	at, err := paging.open(listSenders)
	if err != nil {
		return page, err
	}
	var after *store.SenderList
	if at != nil {
		after = &store.SenderList{Target: at.Key}
	}
	p := newPager[SenderList](ctx, paging)
	err = l.look(ctx, func(v *look) error {
		return fill(p, after, rows[store.SenderList, SenderList]{
			read: func(after *store.SenderList, each func(store.SenderList) bool) error {
				if after == nil {
					after = &store.SenderList{}
				}
				return v.SenderLists(after.Target, each)
			},
			show: func(s store.SenderList) (SenderList, bool, error) {
				h, err := v.host(s.Target)
				return SenderList{Target: h, Count: len(s.Senders), IAT: s.IAT}, true, err
			},
			mark: func(s store.SenderList) cursor { return cursor{List: listSenders, Key: s.Target} },
		})
	})
	return p.page, err
}

// SenderList is the list that a host has published.
func (l *Local) SenderList(ctx context.Context, key wire.PublicKey) (list SenderList, err error) {
	if err := checkKey("key", key); err != nil {
		return list, err
	}
	err = l.look(ctx, func(v *look) error {
		s, err := v.SenderList(key)
		if errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("%w: %s has published no list of senders", ErrNotFound, key.Fingerprint())
		}
		if err != nil {
			return err
		}
		list = SenderList{Count: len(s.Senders), IAT: s.IAT, Senders: make([]Host, len(s.Senders))}
		if list.Target, err = v.host(key); err != nil {
			return err
		}
		for i, k := range s.Senders {
			if list.Senders[i], err = v.host(k); err != nil {
				return err
			}
		}
		return nil
	})
	return list, err
}
