package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Names of lists, in cursors.
const (
	listQueues   = "queues-" // and the order
	listQueuesOf = "queues-of-a-sender"
	listShares   = "shares"
)

// share is what a queue holds of a sender, as the store lists it.
type share struct {
	key wire.PublicKey // of the other one
	store.Usage
}

// shares lists with one of Shares and SharesOf.
func shares(list func(key, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error, key wire.PublicKey) func(*share, func(share) bool) error {
	return func(after *share, each func(share) bool) error {
		var from wire.PublicKey
		if after != nil {
			from = after.key
		}
		return list(key, from, func(k wire.PublicKey, u store.Usage) bool { return each(share{k, u}) })
	}
}

// Queues lists queues, what they hold and since when.
func (l *Local) Queues(ctx context.Context, f QueueFilter) (page Page[Queue], err error) {
	switch f.Sort {
	case "":
		f.Sort = store.ByDepth
	case store.ByDepth, store.ByBytes, store.ByOldest:
	default:
		return page, fmt.Errorf("%w: sort: want %s, %s or %s", ErrBadRequest, store.ByDepth, store.ByBytes, store.ByOldest)
	}
	list := listQueues + string(f.Sort)
	if !f.Sender.IsZero() {
		list = listQueuesOf
	}
	at, err := f.open(list)
	if err != nil {
		return page, err
	}
	if err := checkText("text", f.Text); err != nil {
		return page, err
	}
	p := newPager[Queue](ctx, f.Paging)
	err = l.look(ctx, func(v *look) error {
		switch {
		case !f.Target.IsZero():
			return v.oneQueue(p, f)
		case !f.Sender.IsZero():
			return v.queuesOf(p, f, at)
		}
		return v.queues(p, f, at)
	})
	return p.page, err
}

// queues lists all queues, in the order asked for.
func (v *look) queues(p *pager[Queue], f QueueFilter, at *cursor) error {
	var after *store.Queue
	if at != nil {
		after = &store.Queue{Target: at.Key}
		switch f.Sort {
		case store.ByBytes:
			after.Bytes = at.N
		case store.ByOldest:
			after.Oldest = time.UnixMilli(at.At).UTC()
		default:
			after.Items = at.N
		}
	}
	text := newNeedle(f.Text)
	return fill(p, after, rows[store.Queue, Queue]{
		read: func(after *store.Queue, each func(store.Queue) bool) error { return v.Queues(f.Sort, after, each) },
		show: func(q store.Queue) (Queue, bool, error) { return v.queue(q, text) },
		mark: func(q store.Queue) cursor {
			c := cursor{List: listQueues + string(f.Sort), Key: q.Target}
			switch f.Sort {
			case store.ByBytes:
				c.N = q.Bytes
			case store.ByOldest:
				c.At = q.Oldest.UnixMilli()
			default:
				c.N = q.Items
			}
			return c
		},
	})
}

// queuesOf lists the queues that hold items of a sender, in the order of their keys.
func (v *look) queuesOf(p *pager[Queue], f QueueFilter, at *cursor) error {
	var after *share
	if at != nil {
		after = &share{key: at.Key}
	}
	text := newNeedle(f.Text)
	return fill(p, after, rows[share, Queue]{
		read: shares(v.SharesOf, f.Sender),
		show: func(s share) (q Queue, ok bool, err error) {
			row, err := v.Queue(s.key)
			if err != nil {
				return q, false, err
			}
			return v.queue(row, text)
		},
		mark: func(s share) cursor { return cursor{List: listQueuesOf, Key: s.key} },
	})
}

// oneQueue is the page of one target: its queue, also when that is empty, if it
// has ever held anything or its host is enrolled.
func (v *look) oneQueue(p *pager[Queue], f QueueFilter) error {
	if f.After != "" { // there is nothing after it
		return nil
	}
	p.page.Looked++
	if !f.Sender.IsZero() {
		if u, err := v.ShareUsage(f.Target, f.Sender); err != nil || u.Items == 0 {
			return err
		}
	}
	row, err := v.Queue(f.Target)
	if err != nil {
		return err
	}
	e, err := v.enrolment(f.Target)
	if err != nil || e == nil && row.Head == 0 {
		return err
	}
	row.Target = f.Target
	q, ok, err := v.queue(row, newNeedle(f.Text))
	if ok {
		p.page.Items = append(p.page.Items, q)
	}
	return err
}

// queue shows a queue, if its target goes by the text.
func (v *look) queue(q store.Queue, text needle) (shown Queue, ok bool, err error) {
	e, err := v.enrolment(q.Target)
	if err != nil {
		return shown, false, err
	}
	shown = Queue{
		Target: hostOf(q.Target, e), Items: q.Items, Bytes: q.Bytes, HeldItems: q.Held.Items, HeldBytes: q.Held.Bytes,
		Oldest: q.Oldest, Head: q.Head, Acked: q.Acked,
	}
	if e != nil {
		shown.Live, shown.Account = e.Live(), e.Account
	}
	return shown, text.in(shown.Target.Fingerprint, shown.Target.Name, shown.Account), nil
}

// Shares lists what a queue holds of each sender.
func (l *Local) Shares(ctx context.Context, f ShareFilter) (page Page[Share], err error) {
	at, err := f.open(listShares)
	if err != nil {
		return page, err
	}
	if err := checkKey("target", f.Target); err != nil {
		return page, err
	}
	var after *share
	if at != nil {
		after = &share{key: at.Key}
	}
	p := newPager[Share](ctx, f.Paging)
	err = l.look(ctx, func(v *look) error {
		return fill(p, after, rows[share, Share]{
			read: shares(v.Shares, f.Target),
			show: func(s share) (Share, bool, error) {
				h, err := v.host(s.key)
				return Share{Sender: h, Items: s.Items, Bytes: s.Bytes}, true, err
			},
			mark: func(s share) cursor { return cursor{List: listShares, Key: s.key} },
		})
	})
	return p.page, err
}
