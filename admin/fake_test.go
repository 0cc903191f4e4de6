package admin

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// fakeStore is a snapshot of a few rows, so that searches can be tried with
// budgets of a few rows.
type fakeStore struct {
	store.Reader
	hosts   []store.Enrolment
	items   []store.Item // in the order of target and seq; held ones too
	denials []store.Denial
	rotated map[wire.PublicKey]bool
}

func compareKeys(a, b wire.PublicKey) int { return bytes.Compare(a[:], b[:]) }

func (f *fakeStore) Enrolment(key wire.PublicKey) (store.Enrolment, error) {
	for _, e := range f.hosts {
		if e.Key == key {
			return e, nil
		}
	}
	return store.Enrolment{}, store.ErrNotFound
}

func (f *fakeStore) ByFingerprint(fp string, limit int) (list []store.Enrolment, _ error) {
	for _, e := range f.hosts {
		if e.Key.Fingerprint() == fp && len(list) < limit {
			list = append(list, e)
		}
	}
	return list, nil
}

func (f *fakeStore) Seen(wire.PublicKey) (time.Time, error)             { return time.Time{}, nil }
func (f *fakeStore) SenderCount(wire.PublicKey) (int, bool, error)      { return 0, false, nil }
func (f *fakeStore) QueueUsage(wire.PublicKey) (u store.Usage, _ error) { return u, nil }

func (f *fakeStore) Denials(fp string, before int64, each func(store.Denial) bool) error {
	for _, d := range slices.Backward(f.denials) {
		if (fp == "" || d.HostFP == fp) && (before == 0 || d.ID < before) && !each(d) {
			break
		}
	}
	return nil
}

func (f *fakeStore) DenialsNaming(fp, client string, each func(store.Denial) bool) error {
	return f.Denials("", 0, func(d store.Denial) bool { return d.HostFP != fp || d.ClientID != client || each(d) })
}

func (f *fakeStore) Denied(fp, client string, at time.Time) (store.Denial, error) {
	for _, d := range f.denials {
		if refuses(d, fp, client) && (d.Until.IsZero() || d.Until.After(at)) {
			return d, nil
		}
	}
	return store.Denial{}, store.ErrNotFound
}

// refuses reports whether a denial names a host: all that it names must match.
func refuses(d store.Denial, fp, client string) bool {
	return (d.HostFP == "" || d.HostFP == fp) && (d.ClientID == "" || d.ClientID == client)
}

func (f *fakeStore) ByClientID(client string, limit int) (list []store.Enrolment, _ error) {
	for _, e := range f.hosts {
		if e.ClientID == client && len(list) < limit {
			list = append(list, e)
		}
	}
	return list, nil
}

func (f *fakeStore) ShareUsage(target, sender wire.PublicKey) (u store.Usage, _ error) {
	for _, it := range f.items {
		if it.Target == target && it.Sender == sender {
			u.Items++
		}
	}
	return u, nil
}

func (f *fakeStore) SharesOf(sender, after wire.PublicKey, each func(wire.PublicKey, store.Usage) bool) error {
	last := after
	for _, it := range f.items {
		if it.Sender != sender || compareKeys(it.Target, last) <= 0 {
			continue
		}
		last = it.Target
		u, _ := f.ShareUsage(it.Target, sender)
		if !each(it.Target, u) {
			break
		}
	}
	return nil
}

func (f *fakeStore) Items(after store.ItemMark, each func(store.Item) bool) error {
	for _, it := range f.items {
		if past := cmp.Or(compareKeys(it.Target, after.Target), cmp.Compare(it.Seq, after.Seq)) > 0; past && !it.Held && !each(it) {
			break
		}
	}
	return nil
}

func (f *fakeStore) Item(target wire.PublicKey, seq int64) (store.Item, error) {
	for _, it := range f.items {
		if it.Target == target && it.Seq == seq && !it.Held {
			return it, nil
		}
	}
	return store.Item{}, store.ErrNotFound
}

func (f *fakeStore) RotatedFrom(key wire.PublicKey, _ int) ([]wire.PublicKey, error) {
	if f.rotated[key] {
		return []wire.PublicKey{{9}}, nil
	}
	return nil, nil
}

func (f *fakeStore) Dedup(sender wire.PublicKey, id string, target wire.PublicKey) (store.Dedup, error) {
	for _, it := range f.items {
		if it.Target == target && it.Sender == sender && it.ID == id {
			return store.Dedup{Seq: it.Seq}, nil
		}
	}
	return store.Dedup{}, store.ErrNotFound
}

func (f *fakeStore) look() *look {
	return &look{Reader: f, relay: relay.Detached(relay.Options{Limits: relay.DefaultLimits()}), now: time.UnixMilli(1000).UTC(),
		hosts: map[wire.PublicKey]*store.Enrolment{}}
}

// paged walks a list to its end with pages of a size and a budget.
func paged[T any](t *testing.T, limit int, most int64, list func(p *pager[T], at *cursor) error) (all []T) {
	t.Helper()
	after := ""
	for range 10_000 {
		at, err := parseCursor(after, listItems, listBlocked)
		if err != nil {
			t.Fatal(err)
		}
		p := newPager[T](t.Context(), Paging{Limit: limit})
		p.most = most
		if err := list(p, at); err != nil {
			t.Fatal(err)
		}
		if len(p.page.Items) > limit || p.page.Looked > most {
			t.Fatalf("got a page of %d, of %d looked at; want at most %d and %d", len(p.page.Items), p.page.Looked, limit, most)
		}
		all = append(all, p.page.Items...)
		if p.page.Next == "" {
			return all
		}
		if p.page.Next == after {
			t.Fatalf("the page after %q goes on where it began", after)
		}
		after = p.page.Next
	}
	t.Fatal("no end")
	return nil
}

// Items by target, sender and id are found wherever they stand, each once, with
// pages and budgets of any size.
func TestItemsOfASearch(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	for round := range 60 {
		f := &fakeStore{rotated: map[wire.PublicKey]bool{{2}: true}}
		ids := map[string]bool{}
		for target := byte(1); target <= 5; target++ {
			for seq := range int64(rnd.IntN(8)) {
				it := store.Item{Target: wire.PublicKey{target}, Seq: seq + 1, ID: fmt.Sprint("i", rnd.IntN(6)), Sender: wire.PublicKey{byte(rnd.IntN(3) + 1)},
					Kind: store.KindEnvelope, Held: rnd.IntN(4) == 0, AcceptedAt: time.UnixMilli(int64(rnd.IntN(10)))}
				// One sender's id stands once for a target, but where queues became one.
				if k := fmt.Sprint(target, it.Sender, it.ID); !ids[k] || target == 2 {
					ids[k] = true
					f.items = append(f.items, it)
				}
			}
		}
		for _, filter := range []ItemFilter{
			{}, {Target: wire.PublicKey{3}}, {Sender: wire.PublicKey{1}}, {Sender: wire.PublicKey{2}, Target: wire.PublicKey{2}},
			{Sender: wire.PublicKey{1}, ID: "i1"}, {ID: "i2"}, {Sender: wire.PublicKey{3}, ID: "i3", Target: wire.PublicKey{4}},
			{Sender: wire.PublicKey{2}, ID: "i0", Target: wire.PublicKey{2}}, {OlderThan: time.UnixMilli(5)}, {Sender: wire.PublicKey{7}},
		} {
			var want []relay.ItemRef
			for _, it := range f.items {
				if !it.Held && filter.has(it) {
					want = append(want, relay.ItemRef{Target: it.Target, Seq: it.Seq, ID: it.ID})
				}
			}
			limit, most := rnd.IntN(5)+1, int64(rnd.IntN(9)+2)
			var got []relay.ItemRef
			for _, it := range paged(t, limit, most, func(p *pager[Item], at *cursor) error { return f.look().itemsAfter(p, filter, at) }) {
				got = append(got, it.ItemRef)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d round %d filter %+v limit %d most %d: got %v; want %v", seed, round, filter, limit, most, got, want)
			}
		}
	}
}

// Blocked hosts stand in the list once each, last denied first, however many
// denials name them, their credential or both, and however many hosts one names.
func TestBlockedHosts(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 2))
	for round := range 200 {
		f := &fakeStore{}
		for i := range byte(12) {
			k := wire.PublicKey{i + 1}
			f.hosts = append(f.hosts, store.Enrolment{Key: k, Name: fmt.Sprint("h", i), ClientID: []string{"", "c", "d"}[rnd.IntN(3)]})
		}
		for i := range int64(15) {
			d := store.Denial{ID: i*2 + 1, HostFP: wire.PublicKey{byte(rnd.IntN(16) + 1)}.Fingerprint()}
			switch rnd.IntN(5) {
			case 0:
				d.Until = time.UnixMilli(999) // over
			case 1:
				d.Until = time.UnixMilli(1001)
			case 2:
				d.ClientID = "c"
			case 3:
				d.HostFP, d.ClientID = "", []string{"c", "d", "e"}[rnd.IntN(3)]
			}
			f.denials = append(f.denials, d)
		}
		var want []wire.PublicKey
		seen := map[wire.PublicKey]bool{}
		for _, d := range slices.Backward(f.denials) {
			for _, h := range f.hosts {
				if f.look().inForce(d) && refuses(d, h.Key.Fingerprint(), h.ClientID) && !seen[h.Key] {
					seen[h.Key] = true
					want = append(want, h.Key)
				}
			}
		}
		limit, most := rnd.IntN(5)+1, int64(rnd.IntN(9)+2)
		var got []wire.PublicKey
		for _, e := range paged(t, limit, most, func(p *pager[Enrolment], at *cursor) error { return f.look().blocked(p, EnrolmentFilter{}, at) }) {
			got = append(got, e.Key)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d round %d limit %d most %d: got %v; want %v", seed, round, limit, most, got, want)
		}
	}
}

// What the store fails with is what the caller is told.
func TestFailingStore(t *testing.T) {
	broken := errors.New("broken")
	p := newPager[int](t.Context(), Paging{Limit: 1})
	if err := fill(p, nil, rows[int, int]{read: func(*int, func(int) bool) error { return broken }}); err != broken {
		t.Errorf("got %v; want it", err)
	}
}
