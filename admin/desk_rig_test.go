package admin_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// key is that of a host by its label. Nobody signs with it.
func key(label string) wire.PublicKey { return sha256.Sum256([]byte(label)) }

func (r *rig) clock() time.Time { return time.UnixMilli(r.now.Load()).UTC() }

func (r *rig) write(fn func(tx store.Tx) error) {
	r.t.Helper()
	if err := r.store.Update(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

// enrol enrols hosts called as their keys are labelled.
func (r *rig) enrol(labels ...string) {
	r.t.Helper()
	r.write(func(tx store.Tx) error {
		for _, l := range labels {
			if err := tx.PutEnrolment(store.Enrolment{Key: key(l), Name: l, AuthorizedBy: "host-key", EnrolledAt: r.clock()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// put queues an item and tells where it stands.
func (r *rig) put(target, id, sender string) (ref relay.ItemRef) {
	r.t.Helper()
	r.write(func(tx store.Tx) (err error) { ref, err = put(tx, target, id, sender, r.clock()); return err })
	r.refs[id] = ref
	return ref
}

func put(tx store.Tx, target, id, sender string, at time.Time) (relay.ItemRef, error) {
	return putLarge(tx, target, id, sender, at, 0)
}

// putLarge queues an item with so many bytes more.
func putLarge(tx store.Tx, target, id, sender string, at time.Time, more int) (relay.ItemRef, error) {
	it := store.Item{Target: key(target), Kind: store.KindEnvelope, ID: id, Sender: key(sender), SenderHost: sender,
		Hash: sha256.Sum256([]byte(id)), AcceptedAt: at, ExpiresAt: at.Add(14 * 24 * time.Hour), Wire: append([]byte(id), make([]byte, more)...)}
	seq, err := tx.Insert(it)
	return relay.ItemRef{Target: it.Target, Seq: seq, ID: id}, err
}

// lister is one of the lists, as one text a row.
type lister struct {
	name string
	page func(ctx context.Context, p admin.Paging) (rows []string, next string, looked int64, err error)
}

func listerOf[T any](name string, page func(context.Context, admin.Paging) (admin.Page[T], error), text func(T) string) lister {
	return lister{name, func(ctx context.Context, p admin.Paging) (rows []string, next string, looked int64, err error) {
		got, err := page(ctx, p)
		for _, v := range got.Items {
			rows = append(rows, text(v))
		}
		return rows, got.Next, got.Looked, err
	}}
}

// listers are all lists, of all rows.
func (r *rig) listers() (all []lister) {
	for _, by := range []store.QueueOrder{store.ByDepth, store.ByBytes, store.ByOldest} {
		all = append(all, listerOf("queues by "+string(by), func(ctx context.Context, p admin.Paging) (admin.Page[admin.Queue], error) {
			return r.Queues(ctx, admin.QueueFilter{Paging: p, Sort: by})
		}, queueText))
	}
	return append(all,
		listerOf("queues of a sender", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Queue], error) {
			return r.Queues(ctx, admin.QueueFilter{Paging: p, Sender: key("sender")})
		}, queueText),
		listerOf("shares", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Share], error) {
			return r.Shares(ctx, admin.ShareFilter{Paging: p, Target: key("hub")})
		}, func(s admin.Share) string { return fmt.Sprintf("%s %d", s.Sender.Name, s.Items) }),
		listerOf("items", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Item], error) {
			return r.Items(ctx, admin.ItemFilter{Paging: p})
		}, itemText),
		listerOf("items of a sender", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Item], error) {
			return r.Items(ctx, admin.ItemFilter{Paging: p, Sender: key("sender")})
		}, itemText),
		listerOf("enrolments", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Enrolment], error) {
			return r.Enrolments(ctx, admin.EnrolmentFilter{Paging: p})
		}, func(e admin.Enrolment) string { return e.Name }),
		listerOf("blocked enrolments", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Enrolment], error) {
			return r.Enrolments(ctx, admin.EnrolmentFilter{Paging: p, State: admin.StateBlocked})
		}, func(e admin.Enrolment) string { return e.Name }),
		listerOf("sender lists", r.SenderLists, func(s admin.SenderList) string { return fmt.Sprintf("%s %d", s.Target.Name, s.Count) }),
		listerOf("denials", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Denial], error) {
			return r.Denials(ctx, admin.DenialFilter{Paging: p})
		}, func(d admin.Denial) string { return fmt.Sprintf("%s %d", d.Reason, d.ID) }),
		listerOf("quarantine", func(ctx context.Context, p admin.Paging) (admin.Page[admin.Quarantined], error) {
			return r.Quarantine(ctx, admin.QuarantineFilter{Paging: p})
		}, func(q admin.Quarantined) string {
			if q.Kind == admin.QuarantineHeld {
				return itemText(*q.Item)
			}
			return fmt.Sprintf("%s refused %d", q.Refusal.Name, q.Refusal.ID)
		}),
	)
}

func queueText(q admin.Queue) string { return fmt.Sprintf("%s %d %d", q.Target.Name, q.Items, q.Bytes) }
func itemText(it admin.Item) string  { return fmt.Sprintf("%s at %d", it.ID, it.Seq) }

// whole pages through a list, and has between do something after each page.
func (l lister) whole(t *testing.T, limit int, between func(n int)) (rows []string) {
	t.Helper()
	after := ""
	for n := range 1000 {
		page, next, looked, err := l.page(t.Context(), admin.Paging{After: after, Limit: limit})
		if err != nil {
			t.Fatalf("%s: page %d: %v", l.name, n, err)
		}
		if len(page) > limit || looked > admin.MaxLook {
			t.Fatalf("%s: got a page of %d, of %d looked at; want at most %d", l.name, len(page), looked, limit)
		}
		rows = append(rows, page...)
		if after = next; after == "" {
			return rows
		}
		between(n)
	}
	t.Fatalf("%s: no end", l.name)
	return nil
}

// furnish fills the store with stable rows and with moving ones.
func (r *rig) furnish() {
	r.t.Helper()
	r.enrol("sender", "hub")
	for i := range 9 {
		for _, kind := range []string{"stable", "moving"} {
			host := fmt.Sprintf("%s-%02d", kind, i)
			r.enrol(host)
			r.refusedPush(host, "no such kind")
			r.write(func(tx store.Tx) error {
				if err := tx.PutSenderList(store.SenderList{Target: key(host), Senders: []wire.PublicKey{key("sender")}, IAT: r.clock(), Record: []byte("{}"), Sig: "s"}); err != nil {
					return err
				}
				if err := tx.AddDenial(store.Denial{HostFP: key(host).Fingerprint(), Reason: host, Source: "operator", AddedAt: r.clock()}); err != nil {
					return err
				}
				if _, err := put(tx, "hub", host+" to hub", host, r.clock()); err != nil {
					return err
				}
				for n := range i/3 + 2 { // three of each depth, each of a MiB or two
					more := 0
					if n == 0 {
						more = (1 + i/6) << 20
					}
					ref, err := putLarge(tx, host, fmt.Sprintf("%s/%d", host, n), "sender", r.clock(), more)
					if err != nil {
						return err
					}
					if n == 0 {
						if err := tx.Hold(ref.Target, ref.Seq, r.clock(), "test", "test"); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}
		if i%2 == 0 {
			r.now.Add(time.Second.Milliseconds())
		}
	}
}

// refusedPush has a host push what is refused as malformed.
func (r *rig) refusedPush(host, kind string) {
	r.t.Helper()
	caller := relay.Caller{Enrolment: store.Enrolment{Key: key(host), Name: host}}
	res, err := r.relay.Push(r.t.Context(), caller, []wire.PushItem{{ID: "refused-1", IDOK: true, Kind: kind, TargetsOK: true}})
	if err != nil || !strings.HasPrefix(res[0].Status, "rejected:") {
		r.t.Fatalf("got %+v, %v; want it refused", res, err)
	}
}

// move makes the moving rows come, go and change places.
func (r *rig) move(n int) {
	r.t.Helper()
	r.now.Add(time.Second.Milliseconds())
	grows, shrinks := fmt.Sprintf("moving-%02d", n%9), fmt.Sprintf("moving-%02d", (n+4)%9)
	fresh := fmt.Sprintf("moving-new-%03d", n)
	r.write(func(tx store.Tx) error {
		if err := tx.PutEnrolment(store.Enrolment{Key: key(fresh), Name: fresh, AuthorizedBy: "host-key", EnrolledAt: r.clock()}); err != nil {
			return err
		}
		for i, more := range []int{1 << 20, 0, 0} {
			if _, err := putLarge(tx, grows, fmt.Sprintf("moving %d %d", n, i), "sender", r.clock(), more); err != nil {
				return err
			}
		}
		if _, err := put(tx, fresh, "moving "+fresh, "sender", r.clock()); err != nil {
			return err
		}
		if _, err := put(tx, "hub", "moving to hub "+fresh, fresh, r.clock()); err != nil {
			return err
		}
		if err := tx.PutSenderList(store.SenderList{Target: key(fresh), IAT: r.clock(), Record: []byte("{}"), Sig: "s"}); err != nil {
			return err
		}
		head, err := tx.Head(key(shrinks))
		if err != nil {
			return err
		}
		if _, err := tx.AckThrough(key(shrinks), head); err != nil {
			return err
		}
		var held []store.HeldItem
		var denials []store.Denial
		if err := tx.Quarantine(nil, func(h store.HeldItem) bool { held = append(held, h); return true }); err != nil {
			return err
		}
		for _, h := range held {
			if strings.HasPrefix(h.ID, shrinks) {
				if err := tx.Drop(h.Item); err != nil {
					return err
				}
			}
		}
		if err := tx.Denials("", 0, func(d store.Denial) bool { denials = append(denials, d); return true }); err != nil {
			return err
		}
		for _, d := range denials {
			if d.Reason == shrinks {
				if err := tx.RemoveDenial(d.ID); err != nil {
					return err
				}
			}
		}
		ref, err := put(tx, grows, fmt.Sprintf("moving held %d", n), "sender", r.clock())
		if err != nil {
			return err
		}
		if err := tx.Hold(ref.Target, ref.Seq, r.clock(), "test", "test"); err != nil {
			return err
		}
		return tx.AddDenial(store.Denial{HostFP: key(grows).Fingerprint(), Reason: grows, Source: "operator", AddedAt: r.clock()})
	})
	r.refusedPush(fresh, "no such kind")
}

// stable picks the rows that nothing happened to.
func stable(rows []string) []string {
	return slices.DeleteFunc(slices.Clone(rows), func(s string) bool { return !strings.HasPrefix(s, "stable") })
}
