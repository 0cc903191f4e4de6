package admin_test

import (
	"context"
	"encoding/json"
	"errors"
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

var firstPage = admin.Paging{Limit: 100}

// site is a store with a few hosts that the filters tell apart.
func site(t *testing.T) *rig {
	r := newRig(t)
	r.write(func(tx store.Tx) error {
		for _, e := range []store.Enrolment{
			{Name: "Alpha", Account: "acme", Org: "North", OwnerFP: "owner"}, {Name: "beta", Account: "acme"},
			{Name: "gamma", Account: "Zeta"}, {Name: "delta"}, {Name: "alpha2"},
		} {
			e.Key, e.AuthorizedBy, e.EnrolledAt = key(e.Name), "host-key", r.clock()
			if err := tx.PutEnrolment(e); err != nil {
				return err
			}
		}
		if err := tx.PutEnrolment(store.Enrolment{Key: key("alpha gone"), Name: "ALPHA", AuthorizedBy: "host-key", EnrolledAt: r.clock()}); err != nil {
			return err
		}
		_, err := tx.Revoke(key("alpha gone"), r.clock())
		return err
	})
	for i := range 4 {
		r.put("beta", fmt.Sprint("b", i), "Alpha")
		r.now.Add(time.Second.Milliseconds())
	}
	r.put("gamma", "g0", "Alpha")
	r.put("gamma", "g1", "beta")
	r.put("gamma", "g2", "a stranger")
	return r
}

func queueNames(p admin.Page[admin.Queue]) (names []string) {
	for _, q := range p.Items {
		names = append(names, q.Target.Name)
	}
	return names
}

func TestQueueFilters(t *testing.T) {
	t.Parallel()
	r := site(t)
	for _, tt := range []struct {
		name string
		f    admin.QueueFilter
		want []string
	}{
		{"all, the deepest first", admin.QueueFilter{}, []string{"beta", "gamma"}},
		{"the longest waiting first", admin.QueueFilter{Sort: store.ByOldest}, []string{"beta", "gamma"}},
		{"by bytes, none of a MiB", admin.QueueFilter{Sort: store.ByBytes}, nil},
		{"by name", admin.QueueFilter{Text: "GAM"}, []string{"gamma"}},
		{"by account", admin.QueueFilter{Text: "zeta"}, []string{"gamma"}},
		{"by fingerprint", admin.QueueFilter{Text: strings.ToUpper(key("beta").Fingerprint()[:9])}, []string{"beta"}},
		{"by nothing there", admin.QueueFilter{Text: "omega"}, nil},
		{"of a sender", admin.QueueFilter{Sender: key("beta")}, []string{"gamma"}},
		{"of a sender and by name", admin.QueueFilter{Sender: key("Alpha"), Text: "bet"}, []string{"beta"}},
		{"one", admin.QueueFilter{Target: key("gamma")}, []string{"gamma"}},
		{"one that is empty", admin.QueueFilter{Target: key("delta")}, []string{"delta"}},
		{"one of nobody", admin.QueueFilter{Target: key("nobody")}, nil},
		{"one of a sender", admin.QueueFilter{Target: key("gamma"), Sender: key("beta")}, []string{"gamma"}},
		{"one without the sender", admin.QueueFilter{Target: key("beta"), Sender: key("beta")}, nil},
		{"one of another name", admin.QueueFilter{Target: key("beta"), Text: "gamma"}, nil},
	} {
		tt.f.Paging = firstPage
		if p, err := r.Queues(t.Context(), tt.f); err != nil || !slices.Equal(queueNames(p), tt.want) || p.Items == nil {
			t.Errorf("%s: got %q, %v; want %q", tt.name, queueNames(p), err, tt.want)
		}
	}
	p, err := r.Queues(t.Context(), admin.QueueFilter{Paging: firstPage, Target: key("beta")})
	if err != nil || len(p.Items) != 1 {
		t.Fatalf("got %+v, %v; want one queue", p, err)
	}
	if q := p.Items[0]; !q.Live || q.Account != "acme" || q.Items != 4 || q.Bytes != 8 || q.Head != r.refs["b3"].Seq || q.Acked != 0 || q.Oldest.IsZero() || q.Target.Fingerprint != key("beta").Fingerprint() {
		t.Errorf("got %+v; want all that is known of it", q)
	}
	shares, err := r.Shares(t.Context(), admin.ShareFilter{Paging: firstPage, Target: key("gamma")})
	if err != nil || len(shares.Items) != 3 {
		t.Fatalf("got %+v, %v; want three senders", shares, err)
	}
	for _, s := range shares.Items {
		if s.Items != 1 || s.Bytes != 2 || (s.Sender.Name == "") != (s.Sender.Key == key("a stranger")) {
			t.Errorf("got %+v; want one item, and a name where one is known", s)
		}
	}
	r.write(func(tx store.Tx) error {
		_, err := putLarge(tx, "gamma", "large", "beta", r.clock(), 1<<20)
		return err
	})
	if p, err := r.Queues(t.Context(), admin.QueueFilter{Paging: firstPage, Sort: store.ByBytes}); err != nil || !slices.Equal(queueNames(p), []string{"gamma"}) {
		t.Errorf("by bytes: got %q, %v; want the one that holds a MiB", queueNames(p), err)
	}
}

func TestItemFilters(t *testing.T) {
	t.Parallel()
	r := site(t)
	held := admin.ItemAction{Action: admin.Action{Actor: "test", Reason: "test"}, Items: []relay.ItemRef{r.refs["b1"]}}
	if res, err := r.Hold(t.Context(), held); err != nil || res.Done != 1 {
		t.Fatalf("hold: got %+v, %v", res, err)
	}
	start := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		f    admin.ItemFilter
		want []string
	}{
		{"of a target", admin.ItemFilter{Target: key("beta")}, []string{"b0", "b2", "b3"}},
		{"of a sender", admin.ItemFilter{Sender: key("beta")}, []string{"g1"}},
		{"of both", admin.ItemFilter{Sender: key("Alpha"), Target: key("gamma")}, []string{"g0"}},
		{"of neither", admin.ItemFilter{Sender: key("delta")}, nil},
		{"by id", admin.ItemFilter{ID: "g2"}, []string{"g2"}},
		{"by part of an id", admin.ItemFilter{ID: "g"}, nil},
		{"by id and sender", admin.ItemFilter{ID: "b3", Sender: key("Alpha")}, []string{"b3"}},
		{"by the id of a held one and sender", admin.ItemFilter{ID: "b1", Sender: key("Alpha")}, nil},
		{"by id of another sender", admin.ItemFilter{ID: "b3", Sender: key("beta")}, nil},
		{"older", admin.ItemFilter{OlderThan: start.Add(2 * time.Second)}, []string{"b0"}},
		{"by kind", admin.ItemFilter{Kind: store.KindReceipt}, nil},
		{"by the kind there is, of a target", admin.ItemFilter{Kind: store.KindEnvelope, Target: key("gamma")}, []string{"g0", "g1", "g2"}},
	} {
		tt.f.Paging = firstPage
		p, err := r.Items(t.Context(), tt.f)
		var got []string
		for _, it := range p.Items {
			got = append(got, it.ID)
		}
		if err != nil || !slices.Equal(got, tt.want) || p.Items == nil {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}

	it, err := r.Item(t.Context(), relay.ItemRef{Target: key("beta"), Seq: r.refs["b0"].Seq})
	if err != nil || it.ID != "b0" || it.TargetHost.Name != "beta" || it.Sender.Name != "Alpha" || len(it.Hash) != 64 || it.Held != nil || it.ExpiresAt.IsZero() {
		t.Errorf("got %+v, %v; want the item", it, err)
	}
	if b, err := json.Marshal(it); err != nil || strings.Contains(string(b), `"wire"`) {
		t.Errorf("got %s, %v; want no body", b, err)
	}
	it, err = r.Item(t.Context(), r.refs["b1"])
	if err != nil || it.Held == nil || it.Held.Actor != "test" || it.Held.Reason != "test" || it.Held.At.IsZero() {
		t.Errorf("got %+v, %v; want it held", it, err)
	}
	for _, ref := range []relay.ItemRef{{Target: key("beta"), Seq: r.refs["b0"].Seq, ID: "b1"}, {Target: key("beta"), Seq: r.refs["b1"].Seq, ID: "b0"}, {Target: key("beta"), Seq: 99}, {Target: key("x"), Seq: 1}} {
		if it, err := r.Item(t.Context(), ref); !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("%+v: got %+v, %v; want it not found", ref, it, err)
		}
	}
}

func enrolmentNames(p admin.Page[admin.Enrolment]) (names []string) {
	for _, e := range p.Items {
		names = append(names, e.Name)
	}
	return names
}

func TestEnrolmentFilters(t *testing.T) {
	t.Parallel()
	r := site(t)
	why := admin.Action{Actor: "test", Reason: "noisy"}
	for host, until := range map[string]time.Time{"beta": {}, "delta": r.clock().Add(time.Hour), "gamma": r.clock().Add(time.Minute)} {
		if _, err := r.Block(t.Context(), admin.BlockAction{HostAction: admin.HostAction{Action: why, Key: key(host)}, Until: until}); err != nil {
			t.Fatal(err)
		}
		r.now.Add(1)
	}
	r.now.Add(2 * time.Minute.Milliseconds()) // gamma's is over
	blocked := func(f admin.EnrolmentFilter) []string {
		t.Helper()
		f.Paging, f.State = firstPage, admin.StateBlocked
		p, err := r.Enrolments(t.Context(), f)
		if err != nil {
			t.Error(err)
		}
		return slices.Sorted(slices.Values(enrolmentNames(p)))
	}
	if got := blocked(admin.EnrolmentFilter{}); !slices.Equal(got, []string{"beta", "delta"}) {
		t.Errorf("blocked: got %q; want beta and delta", got)
	}
	if got := blocked(admin.EnrolmentFilter{Account: "acme"}); !slices.Equal(got, []string{"beta"}) {
		t.Errorf("blocked, of an account: got %q; want beta", got)
	}
	for _, tt := range []struct {
		name string
		f    admin.EnrolmentFilter
		want []string // without case, and those of one name in any order
	}{
		{"all by name", admin.EnrolmentFilter{}, []string{"alpha", "alpha", "alpha2", "beta", "delta", "gamma"}},
		{"live", admin.EnrolmentFilter{State: admin.StateLive}, []string{"alpha", "alpha2", "beta", "delta", "gamma"}},
		{"revoked", admin.EnrolmentFilter{State: admin.StateRevoked}, []string{"alpha"}},
		{"by name", admin.EnrolmentFilter{State: admin.StateAll, Text: "LPHA"}, []string{"alpha", "alpha", "alpha2"}},
		{"by organization", admin.EnrolmentFilter{Text: "north"}, []string{"alpha"}},
		{"by part of an account", admin.EnrolmentFilter{Text: "cm"}, []string{"alpha", "beta"}},
		{"of an account", admin.EnrolmentFilter{Account: "acme"}, []string{"alpha", "beta"}},
		{"of part of an account", admin.EnrolmentFilter{Account: "acm"}, nil},
		{"by fingerprint", admin.EnrolmentFilter{Text: key("delta").Fingerprint()}, []string{"delta"}},
	} {
		tt.f.Paging = firstPage
		p, err := r.Enrolments(t.Context(), tt.f)
		got := strings.ToLower(strings.Join(enrolmentNames(p), " "))
		if err != nil || got != strings.Join(tt.want, " ") {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}

	r.write(func(tx store.Tx) error {
		if err := tx.SetSeen(key("beta"), r.clock()); err != nil {
			return err
		}
		return tx.PutSenderList(store.SenderList{Target: key("beta"), Senders: []wire.PublicKey{key("Alpha"), key("x")}, IAT: r.clock(), Record: []byte("{}"), Sig: "s"})
	})
	e, err := r.Enrolment(t.Context(), key("beta"))
	if err != nil || e.Name != "beta" || e.Items != 4 || e.Bytes != 8 || e.Senders == nil || *e.Senders != 2 || e.Denial == nil || e.Denial.Reason != "noisy" ||
		!e.Denial.InForce || e.Denial.ID == 0 || !e.LastSeen.Equal(r.clock()) {
		t.Errorf("got %+v, %v; want all that is known of it", e, err)
	}
	if e, err = r.Enrolment(t.Context(), key("gamma")); err != nil || e.Denial != nil || e.Senders != nil || !e.LastSeen.IsZero() {
		t.Errorf("got %+v, %v; want no denial, no list and no sign of life", e, err)
	}
	if _, err := r.Enrolment(t.Context(), key("nobody")); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("nobody: got %v; want not found", err)
	}
	l, err := r.SenderList(t.Context(), key("beta"))
	if err != nil || l.Count != 2 || len(l.Senders) != 2 || l.Target.Name != "beta" {
		t.Errorf("got %+v, %v; want the list", l, err)
	}
	for _, h := range l.Senders {
		if (h.Name == "Alpha") != (h.Key == key("Alpha")) {
			t.Errorf("got %+v; want a name where one is known", h)
		}
	}
	if _, err := r.SenderList(t.Context(), key("gamma")); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("no list: got %v; want not found", err)
	}

	all, err := r.Denials(t.Context(), admin.DenialFilter{Paging: firstPage, All: true})
	if err != nil || len(all.Items) != 3 {
		t.Errorf("got %+v, %v; want all denials", all, err)
	}
	for _, d := range all.Items {
		if d.InForce == (d.HostFP == key("gamma").Fingerprint()) {
			t.Errorf("got %+v; want gamma's alone not in force", d)
		}
	}
	of, err := r.Denials(t.Context(), admin.DenialFilter{Paging: firstPage, HostFP: strings.ReplaceAll(strings.ToUpper(key("beta").Fingerprint()), "-", ":")})
	if err != nil || len(of.Items) != 1 || of.Items[0].HostFP != key("beta").Fingerprint() {
		t.Errorf("of a host: got %+v, %v; want its denial", of, err)
	}
}

// A person means a host by its key, by its fingerprint in any spelling or by its
// name in any case; who is live comes first.
func TestResolve(t *testing.T) {
	t.Parallel()
	r := site(t)
	fp := key("beta").Fingerprint()
	for _, tt := range []struct {
		text string
		want []wire.PublicKey
	}{
		{key("beta").String(), []wire.PublicKey{key("beta")}},
		{" " + key("beta").String() + "\n", []wire.PublicKey{key("beta")}},
		{key("nobody").String(), nil},
		{fp, []wire.PublicKey{key("beta")}},
		{strings.ToUpper(strings.ReplaceAll(fp, "-", "")), []wire.PublicKey{key("beta")}},
		{strings.ReplaceAll(fp, "-", " : "), []wire.PublicKey{key("beta")}},
		{"alpha", []wire.PublicKey{key("Alpha"), key("alpha gone")}},
		{"ALPHA", []wire.PublicKey{key("Alpha"), key("alpha gone")}},
		{"alpha2", []wire.PublicKey{key("alpha2")}},
		{"alph", nil},
		{"no host's name!", nil},
		{"x\x1b[2J", nil},
	} {
		list, err := r.Resolve(t.Context(), tt.text)
		var got []wire.PublicKey
		for _, e := range list {
			got = append(got, e.Key)
		}
		if err != nil || !slices.Equal(got, tt.want) || list == nil {
			t.Errorf("%q: got %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
	r.write(func(tx store.Tx) error {
		for i := range 30 {
			k := key(fmt.Sprint("many ", i))
			if err := tx.PutEnrolment(store.Enrolment{Key: k, Name: "many", AuthorizedBy: "host-key", EnrolledAt: r.clock()}); err != nil {
				return err
			}
			if i < 25 {
				if _, err := tx.Revoke(k, r.clock()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	list, err := r.Resolve(t.Context(), "many")
	if err != nil || len(list) != admin.MaxResolved {
		t.Fatalf("got %d hosts, %v; want %d", len(list), err, admin.MaxResolved)
	}
	for i, e := range list {
		if e.RevokedAt.IsZero() != (i < 5) {
			t.Errorf("got revoked %v at %d; want the live ones first", e.RevokedAt, i)
		}
	}
}

// A host that calls itself by another's fingerprint or key is not meant by it, be
// the other live, revoked or blocked, and however the text is spelled.
func TestResolveIsNotFooledByNames(t *testing.T) {
	t.Parallel()
	r := site(t)
	spellings := func(k wire.PublicKey) []string {
		fp := k.Fingerprint()
		plain := strings.ReplaceAll(fp, "-", "")
		return []string{fp, plain, strings.ToUpper(fp), strings.ToUpper(plain), k.String()}
	}
	for _, who := range []string{"beta", "alpha gone"} {
		for i, name := range spellings(key(who)) {
			if !wire.ValidHostName(name) {
				continue
			}
			r.write(func(tx store.Tx) error {
				return tx.PutEnrolment(store.Enrolment{Key: key(fmt.Sprint("liar ", who, i)), Name: name, AuthorizedBy: "host-key", EnrolledAt: r.clock()})
			})
		}
		for _, text := range spellings(key(who)) {
			if list, err := r.Resolve(t.Context(), text); err != nil || len(list) != 1 || list[0].Key != key(who) {
				t.Errorf("%q: got %v, %v; want %s alone", text, list, err, who)
			}
		}
	}
	name := strings.ReplaceAll(key("nobody").Fingerprint(), "-", "")
	r.write(func(tx store.Tx) error {
		return tx.PutEnrolment(store.Enrolment{Key: key("odd"), Name: name, AuthorizedBy: "host-key", EnrolledAt: r.clock()})
	})
	if list, err := r.Resolve(t.Context(), name); err != nil || len(list) != 1 || list[0].Key != key("odd") {
		t.Errorf("a name that is nobody's fingerprint: got %v, %v; want the host of that name", list, err)
	}
}

func TestQuarantineFilters(t *testing.T) {
	t.Parallel()
	r := site(t)
	hold := func(id string) {
		t.Helper()
		a := admin.ItemAction{Action: admin.Action{Actor: "test", Reason: "why " + id}, Items: []relay.ItemRef{r.refs[id]}}
		if res, err := r.Hold(t.Context(), a); err != nil || res.Done != 1 {
			t.Fatalf("hold: got %+v, %v", res, err)
		}
		r.now.Add(time.Second.Milliseconds())
	}
	hold("b0")
	hold("g1")
	r.refusedPush("Alpha", "none")
	r.now.Add(time.Second.Milliseconds())
	r.refusedPush("beta", "none")
	for _, tt := range []struct {
		name string
		f    admin.QuarantineFilter
		want string
	}{
		{"all", admin.QuarantineFilter{}, "g1 b0 by beta by Alpha"},
		{"held", admin.QuarantineFilter{Kind: admin.QuarantineHeld}, "g1 b0"},
		{"refused", admin.QuarantineFilter{Kind: admin.QuarantineRefused}, "by beta by Alpha"},
		{"of a target", admin.QuarantineFilter{Target: key("beta")}, "b0"},
		{"of a sender", admin.QuarantineFilter{Sender: key("beta")}, "g1 by beta"},
		{"refused, of a target", admin.QuarantineFilter{Kind: admin.QuarantineRefused, Target: key("beta")}, ""},
	} {
		for _, limit := range []int{1, 2, 100} {
			var got []string
			for tt.f.After = ""; ; {
				tt.f.Limit = limit
				p, err := r.Quarantine(t.Context(), tt.f)
				if err != nil {
					t.Fatalf("%s: %v", tt.name, err)
				}
				for _, q := range p.Items {
					switch {
					case q.Item != nil && q.Refusal == nil && q.Item.Held != nil:
						got = append(got, q.Item.ID)
					case q.Refusal != nil && q.Item == nil:
						got = append(got, "by "+q.Refusal.Name)
					}
				}
				if tt.f.After = p.Next; p.Next == "" {
					break
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%s, pages of %d: got %q; want %q", tt.name, limit, got, tt.want)
			}
		}
	}
}

// What cannot be asked is refused in one line.
func TestBadQuestions(t *testing.T) {
	t.Parallel()
	r := site(t)
	ctx := t.Context()
	long, notText := strings.Repeat("x", 201), "\xff"
	for name, ask := range map[string]func() error{
		"queues, sort":      func() error { _, err := r.Queues(ctx, admin.QueueFilter{Paging: firstPage, Sort: "age"}); return err },
		"queues, long text": func() error { _, err := r.Queues(ctx, admin.QueueFilter{Paging: firstPage, Text: long}); return err },
		"queues, no text":   func() error { _, err := r.Queues(ctx, admin.QueueFilter{Paging: firstPage, Text: notText}); return err },
		"shares, no target": func() error { _, err := r.Shares(ctx, admin.ShareFilter{Paging: firstPage}); return err },
		"items, kind":       func() error { _, err := r.Items(ctx, admin.ItemFilter{Paging: firstPage, Kind: "mail"}); return err },
		"items, long id": func() error {
			_, err := r.Items(ctx, admin.ItemFilter{Paging: firstPage, ID: strings.Repeat("x", 301)})
			return err
		},
		"items, id":       func() error { _, err := r.Items(ctx, admin.ItemFilter{Paging: firstPage, ID: notText}); return err },
		"item, no target": func() error { _, err := r.Item(ctx, relay.ItemRef{Seq: 1}); return err },
		"item, no seq":    func() error { _, err := r.Item(ctx, relay.ItemRef{Target: key("beta")}); return err },
		"enrolments, state": func() error {
			_, err := r.Enrolments(ctx, admin.EnrolmentFilter{Paging: firstPage, State: "dead"})
			return err
		},
		"enrolments, text": func() error {
			_, err := r.Enrolments(ctx, admin.EnrolmentFilter{Paging: firstPage, Text: long})
			return err
		},
		"enrolments, account": func() error {
			_, err := r.Enrolments(ctx, admin.EnrolmentFilter{Paging: firstPage, Account: long})
			return err
		},
		"enrolment, no key":   func() error { _, err := r.Enrolment(ctx, wire.PublicKey{}); return err },
		"sender list, no key": func() error { _, err := r.SenderList(ctx, wire.PublicKey{}); return err },
		"resolve nothing":     func() error { _, err := r.Resolve(ctx, " \n"); return err },
		"resolve a long text": func() error { _, err := r.Resolve(ctx, long); return err },
		"denials, fingerprint": func() error {
			_, err := r.Denials(ctx, admin.DenialFilter{Paging: firstPage, HostFP: "beta"})
			return err
		},
		"quarantine, kind": func() error {
			_, err := r.Quarantine(ctx, admin.QuarantineFilter{Paging: firstPage, Kind: "poison"})
			return err
		},
		"log, no limit":  func() error { _, err := r.Log(ctx, admin.LogFilter{}); return err },
		"log, long text": func() error { _, err := r.Log(ctx, admin.LogFilter{Limit: 1, Text: long}); return err },
		"log, long op":   func() error { _, err := r.Log(ctx, admin.LogFilter{Limit: 1, Op: long}); return err },
	} {
		if err := ask(); !errors.Is(err, admin.ErrBadRequest) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v; want a bad request in one line", name, err)
		}
	}
	items, err := r.Items(ctx, admin.ItemFilter{Paging: admin.Paging{Limit: 1}})
	if err != nil || items.Next == "" {
		t.Fatalf("got %+v, %v; want more than one item", items, err)
	}
	other := key("beta")
	if items.Items[0].Target == other {
		other = key("gamma")
	}
	if _, err := r.Items(ctx, admin.ItemFilter{Paging: admin.Paging{Limit: 1, After: items.Next}, Target: other}); !errors.Is(err, admin.ErrBadRequest) {
		t.Errorf("a cursor of another target: got %v; want a bad request", err)
	}
}

// An overview has what stands out, and the log is searched without case.
func TestOverviewAndLog(t *testing.T) {
	t.Parallel()
	r := site(t)
	for i := range 10 {
		r.enrol(fmt.Sprint("more-", i))
		r.put(fmt.Sprint("more-", i), "m", "Alpha")
	}
	r.refusedPush("delta", "none")
	o, err := r.Overview(t.Context())
	if err != nil || len(o.Deepest) != 8 || len(o.Longest) != 8 || o.Deepest[0].Target.Name != "beta" || o.Longest[0].Target.Name != "beta" ||
		o.Refused != 1 || o.Drill != nil || o.Totals.Items != 17 || o.Totals.Held != 0 || len(o.Jobs) == 0 {
		t.Errorf("got %+v, %v; want what stands out", o, err)
	}
	r.write(func(tx store.Tx) error {
		for i := range 520 {
			op, receipt := "sweep", `{"n":1}`
			if i == 3 {
				op, receipt = "drill", `{"v":1,"type":"relay-drill","passed":true,"file":"/Backups/One.db"}`
			}
			if i == 5 {
				op, receipt = "restore", `{"file":"/backups/one.db"}`
			}
			if err := tx.AppendLog(r.clock(), op, []byte(receipt)); err != nil {
				return err
			}
		}
		return nil
	})
	if o, err = r.Overview(t.Context()); err != nil || o.Drill == nil || !o.Drill.Passed || o.Drill.File != "/Backups/One.db" {
		t.Errorf("got %+v, %v; want the last drill", o.Drill, err)
	}
	for _, tt := range []struct {
		f    admin.LogFilter
		want []string
	}{
		{admin.LogFilter{Text: "backups/ONE", Limit: 10}, []string{"restore", "drill"}},
		{admin.LogFilter{Text: "backups/one", Limit: 1}, []string{"restore"}},
		{admin.LogFilter{Text: "DRILL", Limit: 10}, []string{"drill"}},
		{admin.LogFilter{Text: "one", Op: "drill", Limit: 10}, []string{"drill"}},
		{admin.LogFilter{Text: "two", Limit: 10}, nil},
		{admin.LogFilter{Op: "restore", Limit: 10}, []string{"restore"}},
		{admin.LogFilter{Limit: 3}, []string{"sweep", "sweep", "sweep"}},
	} {
		list, err := r.Log(t.Context(), tt.f)
		var got []string
		for _, l := range list {
			got = append(got, l.Op)
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: got %q, %v; want %q", tt.f, got, err, tt.want)
		}
	}
	restored, err := r.Log(t.Context(), admin.LogFilter{Text: "one", Limit: 1})
	if err != nil || len(restored) != 1 {
		t.Fatalf("got %v, %v; want a line", restored, err)
	}
	before, err := r.Log(t.Context(), admin.LogFilter{Text: "one", Before: restored[0].ID, Limit: 10})
	if err != nil || len(before) != 1 || before[0].Op != "drill" {
		t.Errorf("before it: got %v, %v; want the drill", before, err)
	}
}

// No answer of the log holds more than it may, however long its lines are, and all
// of them can be read, one answer after the other.
func TestLogOfLongReceipts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const lines = 120
	long := `{"v":1,"x":"` + strings.Repeat("x", 111_000) + `"}`
	r.write(func(tx store.Tx) error {
		for i := range lines {
			if err := tx.AppendLog(r.clock(), []string{"hold", "release"}[i%2], []byte(long)); err != nil {
				return err
			}
		}
		return tx.AppendLog(r.clock(), "discard", []byte(`{"v":1,"x":"`+strings.Repeat("y", 3<<20)+`"}`))
	})
	l := &narrow{Service: r.Local}
	for _, tt := range []struct {
		f     admin.LogFilter
		lines int
	}{
		{admin.LogFilter{Limit: admin.MaxLog}, lines + 1}, {admin.LogFilter{Limit: 7}, lines + 1}, {admin.LogFilter{Op: "hold", Limit: 1000}, lines / 2},
		{admin.LogFilter{Text: "XXX", Limit: 1000}, lines}, {admin.LogFilter{Op: "discard", Limit: 10}, 1}, {admin.LogFilter{Op: "none", Limit: 10}, 0},
	} {
		var ids []int64
		for more := true; more; {
			list, m, err := admin.LogPage(t.Context(), l, tt.f)
			if err != nil || m && len(list) == 0 {
				t.Fatalf("%+v: got %d lines, more %v, %v", tt.f, len(list), m, err)
			}
			for _, e := range list {
				ids = append(ids, e.ID)
				tt.f.Before = e.ID
			}
			more = m
		}
		if len(ids) != tt.lines || !slices.IsSortedFunc(ids, func(a, b int64) int { return int(b - a) }) {
			t.Errorf("%+v: got %d lines, newest first %v; want %d", tt.f, len(ids), ids, tt.lines)
		}
	}
	if bound := admin.MaxLogBytes + 3<<20 + 100; l.most > bound {
		t.Errorf("got %d bytes of receipts in one answer; want %d at most", l.most, bound)
	}
}

// narrow measures what answers of the log hold.
type narrow struct {
	admin.Service
	most int
}

func (s *narrow) Log(ctx context.Context, f admin.LogFilter) ([]admin.LogEntry, error) {
	list, err := s.Service.Log(ctx, f)
	size := 0
	for _, e := range list {
		size += len(e.Receipt)
	}
	s.most = max(s.most, size)
	return list, err
}
