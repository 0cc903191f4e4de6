package storetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// model is the contract written down as plainly as can be: slices and maps,
// every answer found by looking at everything.
type model struct {
	info      store.Info
	enrol     map[wire.PublicKey]store.Enrolment
	denials   []store.Denial
	denyLists map[string]store.DenyList
	lists     map[wire.PublicKey]store.SenderList
	encKeys   map[wire.PublicKey]store.EncKey
	encAds    map[wire.PublicKey]store.EncAd
	items     []*mailed // in no order
	dedups    map[store.DedupKey]memory
	next      map[wire.PublicKey]int64
	acked     map[wire.PublicKey]int64
	rotations []store.Rotation
	ops       []store.Op
	runs      []store.Run
	state     map[string][]byte
	seen      map[wire.PublicKey]time.Time
	floor     func() int64

	lastDenial int64 // the last id given
}

// mailed is an item, in its queue or held.
type mailed struct {
	store.Item
	heldAt        time.Time
	actor, reason string
}

// memory is a dedup row and the item it is of, which need not be queued.
type memory struct {
	store.Dedup
	of *mailed
}

var _ store.Tx = (*model)(nil)

func newModel(in store.Info, floor func() int64) *model {
	return &model{
		info: in, floor: floor,
		enrol: map[wire.PublicKey]store.Enrolment{}, lists: map[wire.PublicKey]store.SenderList{},
		encKeys: map[wire.PublicKey]store.EncKey{}, encAds: map[wire.PublicKey]store.EncAd{},
		dedups: map[store.DedupKey]memory{}, next: map[wire.PublicKey]int64{}, acked: map[wire.PublicKey]int64{},
		state: map[string][]byte{}, seen: map[wire.PublicKey]time.Time{}, denyLists: map[string]store.DenyList{},
	}
}

// clone is a copy that shares nothing that changes.
func (m *model) clone() *model {
	c := *m
	c.enrol, c.lists = maps.Clone(m.enrol), maps.Clone(m.lists)
	c.encKeys, c.encAds = maps.Clone(m.encKeys), maps.Clone(m.encAds)
	c.next, c.acked, c.denyLists = maps.Clone(m.next), maps.Clone(m.acked), maps.Clone(m.denyLists)
	c.denials, c.rotations, c.ops = slices.Clone(m.denials), slices.Clone(m.rotations), slices.Clone(m.ops)
	c.runs, c.state, c.seen = slices.Clone(m.runs), maps.Clone(m.state), maps.Clone(m.seen)
	copies := map[*mailed]*mailed{}
	c.items = nil
	for _, it := range m.items {
		n := *it
		copies[it] = &n
		c.items = append(c.items, &n)
	}
	c.dedups = map[store.DedupKey]memory{}
	for k, d := range m.dedups {
		d.of = copies[d.of]
		c.dedups[k] = d
	}
	return &c
}

func one[T any](v T, ok bool) (T, error) {
	if !ok {
		return v, store.ErrNotFound
	}
	return v, nil
}

func at[K comparable, T any](m map[K]T, k K) (T, error) { v, ok := m[k]; return one(v, ok) }

func (m *model) Info() (store.Info, error) { return m.info, nil }

func (m *model) Totals() (t store.Totals, _ error) {
	for _, e := range m.enrol {
		if e.Live() {
			t.Enrolments++
		}
	}
	for _, it := range m.items {
		if it.Held {
			t.Held++
		}
	}
	u, _ := m.usage(func(*mailed) bool { return true })
	t.Items, t.Bytes = u.Items, u.Bytes
	return t, nil
}

func (m *model) usage(of func(*mailed) bool) (u store.Usage, _ error) {
	for _, it := range m.items {
		if of(it) {
			u.Items++
			u.Bytes += it.Size
		}
	}
	return u, nil
}

func (m *model) QueueUsage(t wire.PublicKey) (store.Usage, error) {
	return m.usage(func(it *mailed) bool { return it.Target == t })
}

func (m *model) ShareUsage(t, s wire.PublicKey) (store.Usage, error) {
	return m.usage(func(it *mailed) bool { return it.Target == t && it.Sender == s })
}

func (m *model) AccountUsage(a string) (store.Usage, error) {
	return m.usage(func(it *mailed) bool { return a != "" && m.enrol[it.Target].Account == a })
}

func (m *model) Enrolment(k wire.PublicKey) (store.Enrolment, error)   { return at(m.enrol, k) }
func (m *model) SenderList(t wire.PublicKey) (store.SenderList, error) { return at(m.lists, t) }
func (m *model) EncKey(k wire.PublicKey) (store.EncKey, error)         { return at(m.encKeys, k) }
func (m *model) EncAd(k wire.PublicKey) (store.EncAd, error)           { return at(m.encAds, k) }
func (m *model) Head(t wire.PublicKey) (int64, error)                  { return max(m.next[t]-1, 0), nil }
func (m *model) Acked(t wire.PublicKey) (int64, error)                 { return m.acked[t], nil }
func (m *model) SetEpoch(e string) error                               { m.info.Epoch = e; return nil }
func (m *model) SetHeartbeat(at time.Time) error                       { m.info.Heartbeat = at; return nil }
func (m *model) PutEncAd(k wire.PublicKey, ad store.EncAd) error       { m.encAds[k] = ad; return nil }
func (m *model) PutEncKey(k wire.PublicKey, _ string, e store.EncKey) error {
	m.encKeys[k] = e
	return nil
}

func (m *model) LiveByName(name string, limit int) (list []store.Enrolment, _ error) {
	for _, e := range m.enrol {
		if e.Live() && strings.EqualFold(e.Name, name) && len(list) < limit {
			list = append(list, e)
		}
	}
	return list, nil
}

func (m *model) LiveInAccount(account, name string) (store.Enrolment, error) {
	for _, e := range m.enrol {
		if e.Live() && account != "" && e.Account == account && strings.EqualFold(e.Name, name) {
			return e, nil
		}
	}
	return store.Enrolment{}, store.ErrNotFound
}

func (m *model) Denied(fp, client string, at time.Time) (store.Denial, error) {
	for _, d := range m.denials {
		if (d.HostFP == "" || d.HostFP == fp) && (d.ClientID == "" || d.ClientID == client) && (d.Until.IsZero() || d.Until.After(at)) {
			return d, nil
		}
	}
	return store.Denial{}, store.ErrNotFound
}

func (m *model) Accepts(t, s wire.PublicKey) (listed, named bool, _ error) {
	l, listed := m.lists[t]
	return listed, slices.Contains(l.Senders, s), nil
}

func (m *model) SenderCount(t wire.PublicKey) (n int, listed bool, _ error) {
	l, listed := m.lists[t]
	return len(l.Senders), listed, nil
}

func (m *model) Dedup(s wire.PublicKey, id string, t wire.PublicKey) (store.Dedup, error) {
	for _, t := range m.formerly(t) {
		if d, ok := m.dedupOf(m.formerly(s), id, t); ok {
			return d.Dedup, nil
		}
	}
	return store.Dedup{}, store.ErrNotFound
}

// queue is what a target has, in order, held items too.
func (m *model) queue(t wire.PublicKey) (q []*mailed) {
	for _, it := range m.items {
		if it.Target == t {
			q = append(q, it)
		}
	}
	slices.SortFunc(q, func(a, b *mailed) int { return cmp.Compare(a.Seq, b.Seq) })
	return q
}

func (m *model) Page(t wire.PublicKey, after int64, limit int, each func(store.Item) bool) error {
	for _, it := range m.queue(t) {
		if it.Seq <= after || it.Held {
			continue
		}
		if limit--; limit < 0 || !each(it.Item) {
			break
		}
	}
	return nil
}

func (m *model) Expired(from, now time.Time, limit int) (list []store.Item, _ error) {
	for _, it := range m.items {
		if !it.ExpiresAt.IsZero() && !it.ExpiresAt.After(now) && !it.AcceptedAt.Before(from) && len(list) < limit {
			i := it.Item
			i.Wire = nil
			list = append(list, i)
		}
	}
	return list, nil
}

func (m *model) CountExpired(from, now time.Time) (int64, error) {
	list, err := m.Expired(from, now, len(m.items))
	return int64(len(list)), err
}

func (m *model) Held(each func(store.HeldItem) bool) error {
	var list []*mailed
	for _, it := range m.items {
		if it.Held {
			list = append(list, it)
		}
	}
	slices.SortFunc(list, func(a, b *mailed) int {
		return cmp.Or(bytes.Compare(a.Target[:], b.Target[:]), cmp.Compare(a.Seq, b.Seq))
	})
	for _, it := range list {
		if !each(store.HeldItem{Item: it.Item, HeldAt: it.heldAt, Actor: it.actor, Reason: it.reason}) {
			break
		}
	}
	return nil
}

func (m *model) prunable(d memory, before time.Time) bool {
	return d.AcceptedAt.Before(before) && !slices.Contains(m.items, d.of)
}

func (m *model) Prunable(before time.Time, limit int) (list []store.DedupKey, _ error) {
	for k, d := range m.dedups {
		if m.prunable(d, before) && len(list) < limit {
			list = append(list, k)
		}
	}
	return list, nil
}

func (m *model) RotatedFrom(key wire.PublicKey, limit int) (keys []wire.PublicKey, _ error) {
	for next := []wire.PublicKey{key}; len(next) > 0; next = next[1:] {
		for _, r := range slices.Backward(m.rotations) {
			if r.New == next[0] && r.Old != key && !slices.Contains(keys, r.Old) {
				keys, next = append(keys, r.Old), append(next, r.Old)
			}
		}
	}
	return keys[:min(limit, len(keys))], nil
}

func (m *model) Log(op string, before int64, limit int) (list []store.Op, _ error) {
	for _, o := range slices.Backward(m.ops) {
		if (op == "" || o.Op == op) && (before == 0 || o.ID < before) && len(list) < limit {
			list = append(list, o)
		}
	}
	return list, nil
}

func (m *model) PutEnrolment(e store.Enrolment) error {
	e.RevokedAt = m.enrol[e.Key].RevokedAt
	if other, err := m.LiveInAccount(e.Account, e.Name); err == nil && other.Key != e.Key && e.Live() {
		return store.ErrNameTaken
	}
	m.enrol[e.Key] = e
	return nil
}

func (m *model) Revoke(k wire.PublicKey, at time.Time) (bool, error) {
	e, ok := m.enrol[k]
	if !ok || !e.Live() {
		return false, nil
	}
	e.RevokedAt = at
	m.enrol[k] = e
	return true, nil
}

func (m *model) PutSenderList(l store.SenderList) error {
	l.Senders = slices.Clone(l.Senders)
	m.lists[l.Target] = l
	return nil
}

func (m *model) takeSeq(t wire.PublicKey) int64 {
	seq := max(m.next[t], m.floor(), 1)
	m.next[t] = seq + 1
	return seq
}

func (m *model) Insert(it store.Item) (int64, error) {
	it.Seq = m.takeSeq(it.Target)
	n := &mailed{Item: it}
	m.items = append(m.items, n)
	m.dedups[store.DedupKey{Sender: it.Sender, ItemID: it.ID, Target: it.Target}] = memory{store.Dedup{Hash: it.Hash, Seq: it.Seq, AcceptedAt: it.AcceptedAt}, n}
	return it.Seq, nil
}

func (m *model) remove(gone func(*mailed) bool) (n int64) {
	m.items = slices.DeleteFunc(m.items, func(it *mailed) bool {
		g := gone(it)
		if g {
			n++
		}
		return g
	})
	return n
}

func (m *model) AckThrough(t wire.PublicKey, seq int64) (int64, error) {
	m.acked[t] = max(m.acked[t], seq)
	return m.remove(func(it *mailed) bool { return it.Target == t && it.Seq <= seq && !it.Held }), nil
}

func (m *model) Drop(d store.Item) error {
	if m.remove(func(it *mailed) bool { return it.Target == d.Target && it.Seq == d.Seq && it.Held == d.Held }) == 0 {
		return store.ErrNotFound
	}
	return nil
}

func (m *model) Hold(t wire.PublicKey, seq int64, at time.Time, actor, reason string) error {
	for _, it := range m.items {
		if it.Target == t && it.Seq == seq && !it.Held {
			it.Held, it.heldAt, it.actor, it.reason = true, at, actor, reason
			return nil
		}
	}
	return store.ErrNotFound
}

func (m *model) Forget(rows []store.DedupKey, before time.Time) (n int64, _ error) {
	for _, k := range rows {
		if d, ok := m.dedups[k]; ok && m.prunable(d, before) {
			delete(m.dedups, k)
			n++
		}
	}
	return n, nil
}

func (m *model) Room() bool { return true }

func (m *model) AppendLog(at time.Time, op string, receipt []byte) error {
	m.ops = append(m.ops, store.Op{At: at, Op: op, Receipt: receipt})
	return nil
}

func (m *model) Runs(job string, before int64, limit int) (list []store.Run, _ error) {
	for _, r := range slices.Backward(m.runs) {
		if (job == "" || r.Job == job) && (before == 0 || r.ID < before) && len(list) < limit {
			list = append(list, r)
		}
	}
	return list, nil
}

func (m *model) LastRun(job, outcome string) (store.Run, error) {
	for _, r := range slices.Backward(m.runs) {
		if r.Job == job && r.Outcome == outcome {
			return r, nil
		}
	}
	return store.Run{}, store.ErrNotFound
}

func (m *model) Run(id int64) (store.Run, error) {
	for _, r := range m.runs {
		if r.ID == id {
			return r, nil
		}
	}
	return store.Run{}, store.ErrNotFound
}

func (m *model) StartRun(r store.Run) (int64, error) {
	r.ID = 1
	for i := range m.runs {
		left := &m.runs[i]
		r.ID = left.ID + 1
		if left.Job != r.Job || left.Outcome != "" {
			continue
		}
		if left.Holder == r.Holder {
			return 0, store.ErrRunning
		}
		left.FinishedAt, left.Outcome = r.StartedAt, store.OutcomeCrashed
	}
	r.FinishedAt, r.Outcome = time.Time{}, ""
	m.runs = append(m.runs, r)
	return r.ID, nil
}

func (m *model) FinishRun(r store.Run, keep int) error {
	i := slices.IndexFunc(m.runs, func(x store.Run) bool { return x.ID == r.ID && x.Outcome == "" })
	if i < 0 {
		return store.ErrNotFound
	}
	m.runs[i].FinishedAt, m.runs[i].Outcome, m.runs[i].Detail = r.FinishedAt, r.Outcome, r.Detail
	job := m.runs[i].Job
	last, _ := m.LastRun(job, store.OutcomeOK)
	stay, _ := m.Runs(job, 0, keep)
	m.runs = slices.DeleteFunc(m.runs, func(x store.Run) bool {
		return x.Job == job && x.ID != last.ID && !slices.Contains(stay, x)
	})
	return nil
}

func (m *model) State(name string) ([]byte, error) { return at(m.state, name) }

func (m *model) SetState(name string, value []byte) error {
	switch {
	case value == nil:
		delete(m.state, name)
	case !json.Valid(value):
		return errors.New("state is no JSON")
	default:
		m.state[name] = value
	}
	return nil
}

// Rotate is protocol §3, sentence by sentence.
func (m *model) Rotate(r store.Rotation) (moved int64, _ error) {
	old, ok := m.enrol[r.Old]
	if !ok {
		return 0, store.ErrNotFound
	}
	next, ok := m.enrol[r.New]
	if !ok {
		next = store.Enrolment{Key: r.New, OwnerFP: old.OwnerFP, EnrolledAt: r.At}
	}
	next.Name = old.Name
	if old.Account != "" || next.Account == "" {
		next.Account, next.Org, next.AuthorizedBy = old.Account, old.Org, old.AuthorizedBy
		next.ClientID, next.SessionEnds = old.ClientID, old.SessionEnds
	}
	_, _ = m.Revoke(r.Old, r.At)
	if err := m.PutEnrolment(next); err != nil {
		return 0, err
	}
	for _, it := range m.queue(r.Old) {
		key := store.DedupKey{Sender: it.Sender, ItemID: it.ID, Target: r.New}
		mine := store.DedupKey{Sender: it.Sender, ItemID: it.ID, Target: r.Old}
		remembered := m.dedups[mine].of == it
		theirs, both := m.dedupOf(m.everyKey(it.Sender), it.ID, r.New)
		if both && remembered {
			delete(m.dedups, mine)
		}
		if both && theirs.Hash == it.Hash {
			if t := theirs.of; it.Held && slices.Contains(m.items, t) && !t.Held { // a hold outlives a rotation
				t.Held, t.heldAt, t.actor, t.reason = true, it.heldAt, it.actor, it.reason
			}
			m.remove(func(x *mailed) bool { return x == it })
			continue
		}
		it.Target, it.Seq = r.New, m.takeSeq(r.New)
		moved++
		if !both && remembered {
			d := m.dedups[mine]
			delete(m.dedups, mine)
			d.Seq = it.Seq
			m.dedups[key] = d
		}
	}
	if mine, ok := m.lists[r.Old]; ok {
		if own, ok := m.lists[r.New]; !ok || mine.IAT.After(own.IAT) {
			mine.Target = r.New
			m.lists[r.New] = mine
		}
		delete(m.lists, r.Old)
	}
	for t, l := range m.lists {
		if slices.Contains(l.Senders, r.Old) {
			var senders []wire.PublicKey
			for _, s := range l.Senders {
				if s == r.Old {
					s = r.New
				}
				if !slices.Contains(senders, s) {
					senders = append(senders, s)
				}
			}
			l.Senders = senders
			m.lists[t] = l
		}
	}
	delete(m.encKeys, r.Old)
	delete(m.encAds, r.Old)
	m.rotations = slices.DeleteFunc(m.rotations, func(x store.Rotation) bool { return x.Old == r.Old })
	m.rotations = append(m.rotations, r)
	return moved, nil
}

// formerly lists a key and those it was rotated from.
func (m *model) formerly(key wire.PublicKey) []wire.PublicKey {
	keys, _ := m.RotatedFrom(key, 16)
	return append([]wire.PublicKey{key}, keys...)
}

// everyKey is formerly of the key that a host has now.
func (m *model) everyKey(key wire.PublicKey) []wire.PublicKey {
	for range 16 {
		i := slices.IndexFunc(m.rotations, func(r store.Rotation) bool { return r.Old == key })
		if i < 0 {
			break
		}
		key = m.rotations[i].New
	}
	return m.formerly(key)
}

func (m *model) dedupOf(senders []wire.PublicKey, id string, target wire.PublicKey) (memory, bool) {
	for _, s := range senders {
		if d, ok := m.dedups[store.DedupKey{Sender: s, ItemID: id, Target: target}]; ok {
			return d, true
		}
	}
	return memory{}, false
}
