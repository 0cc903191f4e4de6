package tui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// clock is when all tests of screens play.
var clock = time.Date(2026, 3, 4, 15, 6, 7, 0, time.UTC)

// errGone is what a fake relay that went away answers.
var errGone = errors.New("no relay is running on this store")

func gone(err error) bool { return errors.Is(err, errGone) }

// fakeDesk is a Service without a relay behind it: what it is given it lists, and
// what is done to it it remembers. Safe for concurrent use through its methods;
// tests that reach into its fields while a program runs take mu.
type fakeDesk struct {
	mu     sync.Mutex
	err    error    // every call answers it
	calls  []string // deeds, as "hold 2 by cli:test: why"
	asked  int      // calls of any kind
	nextID int64

	overview    admin.Overview
	queues      []admin.Queue
	shares      map[wire.PublicKey][]admin.Share
	items       []admin.Item
	enrolments  []admin.Enrolment
	lists       []admin.SenderList
	denials     []admin.Denial
	quarantine  []admin.Quarantined
	jobs        []jobs.State
	runs        []jobs.Run // newest first
	backups     []backup.Entry
	entries     []admin.LogEntry // newest first
	logged      int              // bytes of receipts that were asked for
	most        int              // items that one hold or release does; 0: all
	startJobErr error
}

var _ admin.Service = (*fakeDesk)(nil)

// enter begins a call; the caller unlocks.
func (f *fakeDesk) enter() error {
	f.mu.Lock()
	f.asked++
	return f.err
}

// fail has every call answer err from now on, nil ends it.
func (f *fakeDesk) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeDesk) did() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fakeDesk) note(what string, n int, a admin.Action) {
	f.calls = append(f.calls, fmt.Sprintf("%s %d by %s: %s", what, n, a.Actor, a.Reason))
}

// pageOf answers a part of a list; a cursor is the place in it.
func pageOf[T any](list []T, p admin.Paging) (admin.Page[T], error) {
	if p.Limit < 1 || p.Limit > admin.MaxPage {
		return admin.Page[T]{}, fmt.Errorf("%w: limit %d", admin.ErrBadRequest, p.Limit)
	}
	from := 0
	if p.After != "" {
		from, _ = strconv.Atoi(p.After)
	}
	from = min(from, len(list))
	to := min(len(list), from+p.Limit)
	page := admin.Page[T]{Items: slices.Clone(list[from:to]), Looked: int64(to - from)}
	if to < len(list) {
		page.Next = strconv.Itoa(to)
	}
	return page, nil
}

func picked[T any](list []T, keep func(T) bool) (out []T) {
	for _, v := range list {
		if keep(v) {
			out = append(out, v)
		}
	}
	return out
}

func has(text string, in ...string) bool {
	for _, s := range in {
		if strings.Contains(strings.ToLower(s), strings.ToLower(text)) {
			return true
		}
	}
	return false
}

func (f *fakeDesk) Status(context.Context) (admin.Status, error) {
	err := f.enter()
	defer f.mu.Unlock()
	return f.overview.Status, err
}

func (f *fakeDesk) Overview(context.Context) (admin.Overview, error) {
	err := f.enter()
	defer f.mu.Unlock()
	v := f.overview
	v.Jobs = f.jobs
	return v, err
}

func (f *fakeDesk) Log(_ context.Context, q admin.LogFilter) ([]admin.LogEntry, error) {
	err := f.enter()
	defer f.mu.Unlock()
	list := picked(f.entries, func(l admin.LogEntry) bool {
		return (q.Op == "" || l.Op == q.Op) && (q.Before == 0 || l.ID < q.Before)
	})
	n, size := 0, 0
	for n < min(q.Limit, len(list)) && size <= admin.MaxLogBytes {
		size += len(list[n].Receipt)
		n++
	}
	f.logged += size
	return slices.Clone(list[:n]), err
}

func (f *fakeDesk) RotateEpoch(_ context.Context, a admin.Action) (string, error) {
	err := f.enter()
	defer f.mu.Unlock()
	f.note("rotate-epoch", 1, a)
	return "epoch", err
}

func (f *fakeDesk) Queues(_ context.Context, q admin.QueueFilter) (p admin.Page[admin.Queue], err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return p, err
	}
	list := picked(f.queues, func(v admin.Queue) bool {
		return has(q.Text, v.Target.Name, v.Target.Fingerprint, v.Account) && (q.Target.IsZero() || q.Target == v.Target.Key) &&
			(q.Sort != store.ByBytes || v.Bytes >= 1<<20)
	})
	slices.SortStableFunc(list, func(a, b admin.Queue) int {
		switch q.Sort {
		case store.ByOldest:
			return a.Oldest.Compare(b.Oldest)
		case store.ByBytes:
			return int(b.Bytes>>20 - a.Bytes>>20)
		}
		return int(b.Items - a.Items)
	})
	return pageOf(list, q.Paging)
}

func (f *fakeDesk) Shares(_ context.Context, q admin.ShareFilter) (p admin.Page[admin.Share], err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return p, err
	}
	return pageOf(f.shares[q.Target], q.Paging)
}

func (f *fakeDesk) Items(_ context.Context, q admin.ItemFilter) (p admin.Page[admin.Item], err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return p, err
	}
	return pageOf(picked(f.items, func(v admin.Item) bool {
		return (q.Target.IsZero() || q.Target == v.Target) && (q.Sender.IsZero() || q.Sender == v.Sender.Key) &&
			(q.Kind == "" || q.Kind == v.Kind) && (q.ID == "" || q.ID == v.ID)
	}), q.Paging)
}

func (f *fakeDesk) Item(_ context.Context, ref relay.ItemRef) (v admin.Item, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return v, err
	}
	if i := f.item(ref); i >= 0 {
		return f.items[i], nil
	}
	if i := f.held(ref); i >= 0 {
		return *f.quarantine[i].Item, nil
	}
	return v, fmt.Errorf("%w: item %s", admin.ErrNotFound, ref.ID)
}

func same(a, b relay.ItemRef) bool {
	return a.Target == b.Target && a.Seq == b.Seq && (a.ID == b.ID || a.ID == "" || b.ID == "")
}

func (f *fakeDesk) item(ref relay.ItemRef) int {
	return slices.IndexFunc(f.items, func(v admin.Item) bool { return same(v.ItemRef, ref) })
}

func (f *fakeDesk) held(ref relay.ItemRef) int {
	return slices.IndexFunc(f.quarantine, func(v admin.Quarantined) bool { return v.Item != nil && same(v.Item.ItemRef, ref) })
}

func (f *fakeDesk) Enrolments(_ context.Context, q admin.EnrolmentFilter) (p admin.Page[admin.Enrolment], err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return p, err
	}
	return pageOf(picked(f.enrolments, func(e admin.Enrolment) bool {
		state := q.State == "" || q.State == admin.StateAll || q.State == admin.StateLive && e.RevokedAt.IsZero() ||
			q.State == admin.StateRevoked && !e.RevokedAt.IsZero() || q.State == admin.StateBlocked && e.Denial != nil
		return state && has(q.Text, e.Name, e.Fingerprint, e.Account, e.Org, e.ClientID) && (q.Account == "" || q.Account == e.Account)
	}), q.Paging)
}

func (f *fakeDesk) enrolment(key wire.PublicKey) int {
	return slices.IndexFunc(f.enrolments, func(e admin.Enrolment) bool { return e.Key == key })
}

func (f *fakeDesk) Enrolment(_ context.Context, key wire.PublicKey) (e admin.Enrolment, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return e, err
	}
	if i := f.enrolment(key); i >= 0 {
		return f.enrolments[i], nil
	}
	return e, fmt.Errorf("%w: host", admin.ErrNotFound)
}

func (f *fakeDesk) Resolve(_ context.Context, text string) ([]admin.Enrolment, error) {
	err := f.enter()
	defer f.mu.Unlock()
	return picked(f.enrolments, func(e admin.Enrolment) bool { return e.Name == text || e.Fingerprint == text }), err
}

func (f *fakeDesk) SenderLists(_ context.Context, p admin.Paging) (page admin.Page[admin.SenderList], err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return page, err
	}
	return pageOf(f.lists, p)
}

func (f *fakeDesk) SenderList(_ context.Context, key wire.PublicKey) (l admin.SenderList, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return l, err
	}
	for _, l := range f.lists {
		if l.Target.Key == key {
			return l, nil
		}
	}
	return l, fmt.Errorf("%w: sender list", admin.ErrNotFound)
}

func (f *fakeDesk) Denials(_ context.Context, q admin.DenialFilter) (p admin.Page[admin.Denial], err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return p, err
	}
	return pageOf(picked(f.denials, func(d admin.Denial) bool {
		return (q.All || d.InForce) && (q.HostFP == "" || q.HostFP == d.HostFP) && (q.ClientID == "" || q.ClientID == d.ClientID)
	}), q.Paging)
}

func (f *fakeDesk) Quarantine(_ context.Context, q admin.QuarantineFilter) (p admin.Page[admin.Quarantined], err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return p, err
	}
	return pageOf(picked(f.quarantine, func(v admin.Quarantined) bool { return q.Kind == "" || q.Kind == v.Kind }), q.Paging)
}

func (f *fakeDesk) each(what string, a admin.ItemAction, do func(ref relay.ItemRef, o *relay.Outcome)) (r admin.ItemResult, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return r, err
	}
	r.DryRun = a.DryRun
	for _, ref := range a.Items {
		o := relay.Outcome{ItemRef: ref}
		if f.most > 0 && r.Done == f.most {
			o.Problem = relay.ProblemLater
			r.Later++
		} else if do(ref, &o); o.Problem != "" {
			r.Failed++
		} else {
			o.Done = true
			r.Done++
		}
		r.Outcomes = append(r.Outcomes, o)
	}
	if !a.DryRun {
		f.note(what, r.Done, a.Action)
	}
	return r, nil
}

func (f *fakeDesk) Hold(_ context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return f.each("hold", a, func(ref relay.ItemRef, o *relay.Outcome) {
		i := f.item(ref)
		if i < 0 {
			o.Problem = "gone"
			return
		}
		if v := f.items[i]; !a.DryRun {
			v.Held = &admin.Hold{At: clock, Actor: a.Actor, Reason: a.Reason}
			f.items = slices.Delete(slices.Clone(f.items), i, i+1)
			f.quarantine = append([]admin.Quarantined{{Kind: admin.QuarantineHeld, Item: &v}}, f.quarantine...)
		}
	})
}

func (f *fakeDesk) Release(_ context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return f.each("release", a, func(ref relay.ItemRef, o *relay.Outcome) {
		i := f.held(ref)
		if i < 0 {
			o.Problem = "gone"
			return
		}
		o.NewSeq = 9000 + ref.Seq
		if v := *f.quarantine[i].Item; !a.DryRun {
			v.Held, v.Seq = nil, o.NewSeq
			f.quarantine = slices.Delete(slices.Clone(f.quarantine), i, i+1)
			f.items = append(slices.Clone(f.items), v)
		}
	})
}

func (f *fakeDesk) Discard(_ context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return f.each("discard", a, func(ref relay.ItemRef, o *relay.Outcome) {
		i := f.held(ref)
		if i < 0 {
			o.Problem = "gone"
			return
		}
		o.Notice = relay.NoticeQueued
		if !a.DryRun {
			f.quarantine = slices.Delete(slices.Clone(f.quarantine), i, i+1)
		}
	})
}

func (f *fakeDesk) Dismiss(_ context.Context, a admin.DismissAction) (r admin.DismissResult, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return r, err
	}
	rest := picked(f.quarantine, func(v admin.Quarantined) bool {
		return v.Refusal == nil || len(a.IDs) > 0 && !slices.Contains(a.IDs, v.Refusal.ID)
	})
	r = admin.DismissResult{Dismissed: len(f.quarantine) - len(rest), DryRun: a.DryRun}
	if !a.DryRun {
		f.quarantine = rest
		f.note("dismiss", r.Dismissed, a.Action)
	}
	return r, nil
}

func (f *fakeDesk) host(what string, a admin.HostAction, do func(e *admin.Enrolment) bool) (r admin.HostResult, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return r, err
	}
	i := f.enrolment(a.Key)
	if i < 0 {
		return r, fmt.Errorf("%w: host", admin.ErrNotFound)
	}
	e := f.enrolments[i]
	r.Changed, r.DryRun = do(&e), a.DryRun
	if r.Enrolment = e; !a.DryRun {
		f.enrolments = slices.Clone(f.enrolments)
		f.enrolments[i] = e
		f.note(what+" "+e.Name, 1, a.Action)
	}
	return r, nil
}

func (f *fakeDesk) Revoke(_ context.Context, a admin.HostAction) (admin.HostResult, error) {
	return f.host("revoke", a, func(e *admin.Enrolment) bool {
		was := e.RevokedAt.IsZero()
		if was {
			e.RevokedAt = clock
		}
		return was
	})
}

func (f *fakeDesk) Block(_ context.Context, a admin.BlockAction) (admin.HostResult, error) {
	return f.host("block", a.HostAction, func(e *admin.Enrolment) bool {
		f.nextID++
		e.Denial = &admin.Denial{ID: 700 + f.nextID, HostFP: e.Fingerprint, Reason: a.Reason, Source: "operator", AddedAt: clock, Until: a.Until, InForce: true}
		if !a.DryRun {
			f.denials = append([]admin.Denial{*e.Denial}, f.denials...)
		}
		return true
	})
}

func (f *fakeDesk) Deny(_ context.Context, a admin.DenyAction) (r admin.DenyResult, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return r, err
	}
	i := slices.IndexFunc(f.denials, func(d admin.Denial) bool {
		return d.HostFP == a.HostFP && d.ClientID == a.ClientID && d.Reason == a.Reason && d.Until.Equal(a.Until)
	})
	if i >= 0 {
		return admin.DenyResult{Denial: f.denials[i], DryRun: a.DryRun}, nil
	}
	f.nextID++
	r = admin.DenyResult{Denial: admin.Denial{ID: 700 + f.nextID, HostFP: a.HostFP, ClientID: a.ClientID, Reason: a.Reason, Source: "operator", AddedAt: clock, Until: a.Until, InForce: true}, Changed: true, DryRun: a.DryRun}
	if !a.DryRun {
		f.denials = append([]admin.Denial{r.Denial}, f.denials...)
		f.note("deny "+whoIs(r.Denial), 1, a.Action)
	}
	return r, nil
}

func (f *fakeDesk) Unblock(_ context.Context, a admin.UnblockAction) (d admin.Denial, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return d, err
	}
	i := slices.IndexFunc(f.denials, func(d admin.Denial) bool { return d.ID == a.ID })
	if i < 0 {
		return d, fmt.Errorf("%w: denial %d", admin.ErrNotFound, a.ID)
	}
	if d = f.denials[i]; !a.DryRun {
		f.denials = slices.Delete(slices.Clone(f.denials), i, i+1)
		f.note("unblock", 1, a.Action)
	}
	return d, nil
}

func (f *fakeDesk) Jobs(context.Context) ([]jobs.State, error) {
	err := f.enter()
	defer f.mu.Unlock()
	return slices.Clone(f.jobs), err
}

func (f *fakeDesk) Runs(_ context.Context, q admin.RunFilter) ([]jobs.Run, error) {
	err := f.enter()
	defer f.mu.Unlock()
	list := picked(f.runs, func(r jobs.Run) bool {
		return (q.Job == "" || r.Job == q.Job) && (q.Before == 0 || r.ID < q.Before)
	})
	return slices.Clone(list[:min(q.Limit, len(list))]), err
}

// StartJob begins a run that stays unfinished until finish.
func (f *fakeDesk) StartJob(_ context.Context, q jobs.Request) (r jobs.Run, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err = errors.Join(err, f.startJobErr); err != nil {
		return r, err
	}
	f.nextID++
	r = jobs.Run{ID: 9000 + f.nextID, Job: q.Job, AskedBy: q.By, StartedAt: clock, Progress: &jobs.Progress{Stage: "copying", Done: 1, Total: 4}}
	f.runs = append([]jobs.Run{r}, f.runs...)
	f.calls = append(f.calls, fmt.Sprintf("start %s by %s confirm=%v args=%s", q.Job, q.By, q.Confirm, q.Args))
	return r, nil
}

// finish ends a run.
func (f *fakeDesk) finish(id int64, outcome, detail string, result any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs = slices.Clone(f.runs)
	for i := range f.runs {
		if r := &f.runs[i]; r.ID == id {
			r.Outcome, r.Detail, r.FinishedAt, r.Progress = outcome, detail, clock.Add(3*time.Second), nil
			r.Result, _ = json.Marshal(result)
		}
	}
}

func (f *fakeDesk) Run(_ context.Context, id int64) (r jobs.Run, err error) {
	err = f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return r, err
	}
	for _, r := range f.runs {
		if r.ID == id {
			return r, nil
		}
	}
	return r, fmt.Errorf("%w: %d", jobs.ErrNoRun, id)
}

func (f *fakeDesk) Backups(context.Context) ([]backup.Entry, error) {
	err := f.enter()
	defer f.mu.Unlock()
	return slices.Clone(f.backups), err
}

func (f *fakeDesk) PruneBackups(_ context.Context, dryRun bool, a admin.Action) ([]backup.Decision, error) {
	err := f.enter()
	defer f.mu.Unlock()
	f.note("prune", 0, a)
	return nil, err
}
