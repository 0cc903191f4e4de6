package storetest

import (
	"fmt"
	"slices"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// walk reads a list to its end, in pages of size rows (0: in one), each from
// where the one before ended.
func walk[T any](size int, from T, list func(after T, each func(T) bool) error, give func(T)) error {
	for after := from; ; {
		n := 0
		if err := list(after, func(v T) bool {
			give(v)
			after = v
			n++
			return n != size
		}); err != nil || n != size || size == 0 {
			return err
		}
	}
}

// first makes a list that takes a pointer one that walk can read: the zero row
// stands for none.
func first[T any](list func(after *T, each func(T) bool) error, none func(T) bool) func(T, func(T) bool) error {
	return func(after T, each func(T) bool) error {
		if none(after) {
			return list(nil, each)
		}
		return list(&after, each)
	}
}

// lists are the facts of whole lists.
func (f *facts) lists(page int) {
	fail := func(err error) { f.line(err, "end of a list") }
	for _, by := range []store.QueueOrder{store.ByDepth, store.ByBytes, store.ByOldest} {
		list := func(after *store.Queue, each func(store.Queue) bool) error { return f.r.Queues(by, after, each) }
		fail(walk(page, store.Queue{}, first(list, func(q store.Queue) bool { return q.Items == 0 }), func(q store.Queue) {
			f.line(nil, "by %s: %s", by, f.queue(q))
		}))
	}
	fail(walk(page, store.Item{}, func(after store.Item, each func(store.Item) bool) error {
		return f.r.Items(store.ItemMark{Target: after.Target, Seq: after.Seq}, each)
	}, func(it store.Item) {
		f.item(f.name(it.Target), "listed", it)
	}))
	fail(walk(page, store.HeldItem{}, first(f.r.Quarantine, func(h store.HeldItem) bool { return h.Seq == 0 }), func(h store.HeldItem) {
		f.item(f.name(h.Target), "in quarantine", h.Item)
		f.line(nil, "held %v since %s by %q for %q", h.Held, stamp(h.HeldAt), h.Actor, h.Reason)
	}))
	fail(walk(page, store.Enrolment{}, first(f.r.Enrolments, func(e store.Enrolment) bool { return e.Key.IsZero() }), func(e store.Enrolment) {
		f.line(nil, "host %q %s account %q revoked %s", e.Name, f.name(e.Key), e.Account, stamp(e.RevokedAt))
	}))
	f.denials("", page)
	fail(walk(page, store.SenderList{}, func(after store.SenderList, each func(store.SenderList) bool) error {
		return f.r.SenderLists(after.Target, each)
	}, func(l store.SenderList) {
		f.line(nil, "list of %s: %v iat %s record %q sig %q", f.name(l.Target), f.names(l.Senders, true), stamp(l.IAT), l.Record, l.Sig)
	}))
}

// denials tells those of a fingerprint, without their ids: those are a backend's
// own, and only go up.
func (f *facts) denials(fp string, page int) {
	last := int64(0)
	f.line(walk(page, store.Denial{}, func(after store.Denial, each func(store.Denial) bool) error {
		return f.r.Denials(fp, after.ID, each)
	}, func(d store.Denial) {
		f.line(nil, "denial %q: %q %q for %q by %q at %s until %s, in order %v", fp, d.HostFP, d.ClientID, d.Reason, d.Source,
			stamp(d.AddedAt), stamp(d.Until), last == 0 || d.ID < last)
		last = d.ID
	}), "end of the denials %q", fp)
}

func (f *facts) queue(q store.Queue) string {
	return fmt.Sprintf("%s holds %+v, of it held %+v, oldest %s, head %d, acked %d", f.name(q.Target), q.Usage, q.Held, stamp(q.Oldest), q.Head, q.Acked)
}

// desk tells what stands beside the queue of a host.
func (f *facts) desk(l string, k wire.PublicKey, sc Scope) {
	q, err := f.r.Queue(k)
	f.line(err, "queue of %s", f.queue(q))
	f.sharesOf(l+" holds from", k, sc, f.r.Shares)
	f.sharesOf(l+" has in the queue of", k, sc, f.r.SharesOf)
	seen, err := f.r.Seen(k)
	f.line(err, "%s seen %s", l, stamp(seen))
	list, err := f.r.ByFingerprint(k.Fingerprint(), 10)
	f.line(err, "%s by its fingerprint: %d", l, len(list))
	for _, e := range list {
		f.line(nil, "%s by its fingerprint: %s %q", l, f.name(e.Key), e.Name)
	}
}

type shares = func(of, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error

// sharesOf tells shares in the order of their keys, or where the keys are not to
// matter in that of their labels.
func (f *facts) sharesOf(what string, k wire.PublicKey, sc Scope, list shares) {
	type share struct {
		key wire.PublicKey
		store.Usage
	}
	var all []string
	err := walk(sc.Page, share{}, func(after share, each func(share) bool) error {
		return list(k, after.key, func(k wire.PublicKey, u store.Usage) bool { return each(share{k, u}) })
	}, func(s share) { all = append(all, fmt.Sprintf("%s %+v", f.name(s.key), s.Usage)) })
	if !sc.Global {
		slices.Sort(all)
	}
	f.line(err, "%s %q", what, all)
}
