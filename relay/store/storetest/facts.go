package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// A Scope names what Facts is to look at.
type Scope struct {
	Hosts     map[string]wire.PublicKey // by the label to print
	Accounts  []string
	Items     []string // item ids whose dedup rows are looked up
	Names     []string
	Ops       []string // kinds of the log
	Jobs      []string // jobs whose runs are listed
	States    []string // names of state
	Denied    []string // fingerprints whose denials are listed
	Clients   []string // credentials whose hosts and denials are listed
	DenyLists []string // by jti
	Sources   []string // of deny lists
	Global    bool     // info, totals, the order of all that is held and whole lists too
	Page      int      // rows at a time of the lists that have pages; 0: all at once
}

// Facts tells all that r answers about a scope as text, one fact a line, so
// that two states are equal when their facts are. Errors other than
// ErrNotFound are answered.
func Facts(r store.Reader, sc Scope) (string, error) {
	f := facts{r: r, label: map[wire.PublicKey]string{}}
	var labels []string
	for l, k := range sc.Hosts {
		labels = append(labels, l)
		f.label[k] = l
	}
	slices.Sort(labels)
	if sc.Global {
		in, err := r.Info()
		f.line(err, "info epoch %s heartbeat %s expiry %s created %s key %s", in.Epoch, stamp(in.Heartbeat),
			stamp(in.ExpiryFrom), stamp(in.CreatedAt), f.name(in.RelayKey))
		t, err := r.Totals()
		f.line(err, "totals %+v", t)
		f.lists(sc.Page)
	}
	for _, fp := range sc.Denied {
		f.denials(fp, sc.Page)
	}
	f.accounts(sc)
	held := map[wire.PublicKey][]store.HeldItem{}
	if err := r.Held(func(it store.HeldItem) bool {
		held[it.Target] = append(held[it.Target], it)
		if sc.Global {
			f.line(nil, "held %s %d", f.name(it.Target), it.Seq)
		}
		return true
	}); err != nil {
		f.errs = append(f.errs, err)
	}
	for _, a := range sc.Accounts {
		u, err := r.AccountUsage(a)
		f.line(err, "account %s %+v", a, u)
		for _, n := range sc.Names {
			e, err := r.LiveInAccount(a, n)
			f.line(err, "account %s name %s %s", a, n, f.name(e.Key))
		}
	}
	for _, n := range sc.Names {
		list, err := r.LiveByName(n, 1000)
		var keys []string
		for _, e := range list {
			keys = append(keys, f.name(e.Key))
		}
		slices.Sort(keys)
		f.line(err, "name %s %v", n, keys)
	}
	for _, op := range sc.Ops {
		list, err := r.Log(op, 0, 2*store.LogKeep)
		f.line(err, "log %q %d lines", op, len(list))
		for _, o := range list {
			f.line(nil, "log %q %s %s %s", op, stamp(o.At), o.Op, o.Receipt)
		}
	}
	for _, job := range sc.Jobs {
		f.runs(job)
	}
	for _, name := range sc.States {
		value, err := r.State(name)
		f.line(err, "state %s %s", name, value)
	}
	for _, l := range labels {
		f.host(l, sc.Hosts[l], labels, sc)
		for _, it := range held[sc.Hosts[l]] {
			f.item(l, "held", it.Item)
			f.line(nil, "%s held %d is %v, at %s by %q for %q", l, it.Seq, it.Held, stamp(it.HeldAt), it.Actor, it.Reason)
		}
	}
	return f.b.String(), errors.Join(f.errs...)
}

type facts struct {
	r     store.Reader
	label map[wire.PublicKey]string
	b     strings.Builder
	errs  []error
}

// line writes a fact, or nothing for a row that is not there.
func (f *facts) line(err error, format string, args ...any) {
	switch {
	case err == nil:
		fmt.Fprintf(&f.b, format+"\n", args...)
	case !errors.Is(err, store.ErrNotFound):
		f.errs = append(f.errs, err)
	}
}

func (f *facts) name(k wire.PublicKey) string {
	if l, ok := f.label[k]; ok {
		return l
	}
	return k.Fingerprint()
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprint(t.UnixMilli())
}

func (f *facts) item(l, what string, it store.Item) {
	f.line(nil, "%s %s %d %s %s from %s (%s) hash %x size %d at %s until %s wire %x", l, what, it.Seq, it.Kind, it.ID, f.name(it.Sender),
		it.SenderHost, it.Hash[:4], it.Size, stamp(it.AcceptedAt), stamp(it.ExpiresAt), sha256.Sum256(it.Wire))
}

// runs tells the runs of a job, without their ids: those are a backend's own.
// So is what it says of one that a crash left.
func (f *facts) runs(job string) {
	tell := func(what string, r store.Run, err error) {
		if r.Outcome == store.OutcomeCrashed {
			r.Detail = ""
		}
		f.line(err, "%s of %q: %s asked by %q, holder %q, from %s to %s, outcome %q, detail %q", what, job, r.Job, r.AskedBy, r.Holder,
			stamp(r.StartedAt), stamp(r.FinishedAt), r.Outcome, r.Detail)
	}
	list, err := f.r.Runs(job, 0, 1000)
	f.line(err, "runs of %q %d", job, len(list))
	for _, r := range list {
		found, err := f.r.Run(r.ID)
		tell("run", r, nil)
		tell("run by its id", found, err)
	}
	for _, outcome := range []string{"", store.OutcomeOK, store.OutcomeFailed, store.OutcomeCrashed} {
		last, err := f.r.LastRun(job, outcome)
		tell("last run with outcome "+outcome, last, err)
	}
}

func (f *facts) host(l string, k wire.PublicKey, labels []string, sc Scope) {
	r := f.r
	e, err := r.Enrolment(k)
	f.line(err, "%s enrolment name %q fp %q account %q org %q by %q at %s revoked %s, credential %q until %s", l, e.Name, e.OwnerFP, e.Account, e.Org,
		e.AuthorizedBy, stamp(e.EnrolledAt), stamp(e.RevokedAt), e.ClientID, stamp(e.SessionEnds))
	head, err := r.Head(k)
	f.line(err, "%s head %d", l, head)
	acked, err := r.Acked(k)
	f.line(err, "%s acked %d", l, acked)
	u, err := r.QueueUsage(k)
	f.line(err, "%s queue %+v", l, u)
	f.desk(l, k, sc)
	enc, err := r.EncKey(k)
	f.line(err, "%s enc key %s %s %s", l, enc.EncPub, enc.Sig, stamp(enc.At))
	ad, err := r.EncAd(k)
	f.line(err, "%s enc ad %q %s %s", l, ad.Record, ad.Sig, stamp(ad.At))
	from, err := r.RotatedFrom(k, 1000)
	f.line(err, "%s rotated from %v", l, f.names(from, false))
	to, err := r.RotatedTo(k, 1000)
	f.line(err, "%s rotated to %v", l, f.names(to, false))
	list, err := r.SenderList(k)
	f.line(err, "%s list %v iat %s record %q sig %q", l, f.names(list.Senders, true), stamp(list.IAT), list.Record, list.Sig)
	f.line(r.Page(k, 0, 1<<30, func(it store.Item) bool {
		f.item(l, "item", it)
		return true
	}), "%s items end", l)
	for seq := max(head-4, 0); seq <= head; seq++ {
		it, err := r.Item(k, seq)
		f.line(err, "%s one item %d %s from %s, wire %d", l, it.Seq, it.ID, f.name(it.Sender), len(it.Wire))
		h, err := r.HeldItem(k, seq)
		f.line(err, "%s one held item %d %s from %s, %v by %q, wire %d", l, h.Seq, h.ID, f.name(h.Sender), h.Held, h.Actor, len(h.Wire))
	}
	n, listed, err := r.SenderCount(k)
	if listed || err != nil {
		f.line(err, "%s list of %d", l, n)
	}
	for _, sl := range labels {
		s := sc.Hosts[sl]
		listed, named, err := r.Accepts(k, s)
		f.line(err, "%s accepts %s %v %v", l, sl, listed, named)
		u, err := r.ShareUsage(k, s)
		f.line(err, "%s share of %s %+v", l, sl, u)
		for _, id := range sc.Items {
			d, err := r.Dedup(s, id, k)
			f.line(err, "%s dedup %s %s seq %d hash %x at %s", l, sl, id, d.Seq, d.Hash[:4], stamp(d.AcceptedAt))
		}
	}
}

func (f *facts) names(keys []wire.PublicKey, sorted bool) (list []string) {
	for _, k := range keys {
		list = append(list, f.name(k))
	}
	if sorted {
		slices.Sort(list)
	}
	return list
}

// Facts tells the facts of a scope.
func (h *Harness) Facts(sc Scope) string {
	h.Helper()
	return get(h, func(r store.Reader) (string, error) { return Facts(r, sc) })
}

// FirstDifference is the first line in which two texts of facts differ.
func FirstDifference(a, b string) string {
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(la), len(lb)) {
		var x, y string
		if i < len(la) {
			x = la[i]
		}
		if i < len(lb) {
			y = lb[i]
		}
		if x != y {
			return fmt.Sprintf("got %q; want %q", x, y)
		}
	}
	return ""
}
