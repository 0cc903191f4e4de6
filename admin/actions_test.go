package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// everything is all that the lists show, and how long the relay log is.
func (r *rig) everything() string {
	r.t.Helper()
	var b strings.Builder
	for _, l := range r.listers() {
		fmt.Fprintln(&b, l.name, l.whole(r.t, admin.MaxPage, func(int) {}))
	}
	for _, q := range [][]byte{r.json(r.Denials(r.t.Context(), admin.DenialFilter{Paging: firstPage, All: true})),
		r.json(r.Enrolments(r.t.Context(), admin.EnrolmentFilter{Paging: firstPage})),
		r.json(r.Items(r.t.Context(), admin.ItemFilter{Paging: firstPage}))} {
		fmt.Fprintf(&b, "%s\n", q)
	}
	fmt.Fprintln(&b, len(r.logged("")), "lines")
	return b.String()
}

func (r *rig) json(v any, err error) []byte {
	r.t.Helper()
	b, err2 := json.Marshal(v)
	if err := errors.Join(err, err2); err != nil {
		r.t.Fatal(err)
	}
	return b
}

var why = admin.Action{Actor: "cli:ops", Reason: "it floods \"the others\""}

// itemDeed does something to items, and says what became of each.
func itemDeed(do func(r *rig) func(admin.ItemAction) (admin.ItemResult, error), ids ...string) func(*rig, bool) (string, error) {
	return func(r *rig, dry bool) (string, error) {
		a := admin.ItemAction{Action: why, DryRun: dry}
		for _, id := range ids {
			ref, known := r.refs[id]
			if !known {
				ref = relay.ItemRef{Target: key("beta"), Seq: r.refs["b0"].Seq, ID: id}
			}
			a.Items = append(a.Items, ref)
		}
		res, err := do(r)(a)
		text := fmt.Sprintf("%d done %d failed", res.Done, res.Failed)
		for _, o := range res.Outcomes {
			text += fmt.Sprintf(", %s %v", o.ID, o.Done)
			if o.Notice != "" {
				text += " " + o.Notice
			}
			if o.NewSeq > o.Seq {
				text += " at the tail"
			}
			if (o.Problem == "") != o.Done {
				text += fmt.Sprintf(" but %q", o.Problem)
			}
		}
		if err == nil && res.DryRun != dry {
			text += " NOT DRY"
		}
		return text, err
	}
}

func (r *rig) hold(a admin.ItemAction) (admin.ItemResult, error) { return r.Hold(r.t.Context(), a) }
func (r *rig) release(a admin.ItemAction) (admin.ItemResult, error) {
	return r.Release(r.t.Context(), a)
}
func (r *rig) discard(a admin.ItemAction) (admin.ItemResult, error) {
	return r.Discard(r.t.Context(), a)
}

func hold(r *rig) func(admin.ItemAction) (admin.ItemResult, error)    { return r.hold }
func release(r *rig) func(admin.ItemAction) (admin.ItemResult, error) { return r.release }
func discard(r *rig) func(admin.ItemAction) (admin.ItemResult, error) { return r.discard }

// must does a deed that comes before the one that is looked at.
func must(deed func(*rig, bool) (string, error)) func(*rig) {
	return func(r *rig) {
		r.t.Helper()
		if got, err := deed(r, false); err != nil || strings.Contains(got, "false") {
			r.t.Fatalf("got %s, %v; want it done", got, err)
		}
		r.now.Add(time.Second.Milliseconds())
	}
}

func changed(v admin.HostResult, dry bool, err error) (string, error) {
	text := fmt.Sprintf("%s changed %v", v.Enrolment.Name, v.Changed)
	if err == nil && v.DryRun != dry {
		text += " NOT DRY"
	}
	return text, err
}

func revoke(host string) func(*rig, bool) (string, error) {
	return func(r *rig, dry bool) (string, error) {
		v, err := r.Revoke(r.t.Context(), admin.HostAction{Action: why, Key: key(host), DryRun: dry})
		if err == nil && !dry && v.Enrolment.RevokedAt.IsZero() {
			r.t.Errorf("got %+v; want the host as it is now", v.Enrolment)
		}
		return changed(v, dry, err)
	}
}

func block(host string, life time.Duration) func(*rig, bool) (string, error) {
	return func(r *rig, dry bool) (string, error) {
		a := admin.BlockAction{HostAction: admin.HostAction{Action: why, Key: key(host), DryRun: dry}}
		if life != 0 {
			a.Until = time.Date(2026, 10, 3, 0, 0, 0, 0, time.UTC).Add(life)
		}
		v, err := r.Block(r.t.Context(), a)
		if d := v.Enrolment.Denial; err == nil && !dry && (d == nil || d.Reason != why.Reason || !d.Until.Equal(a.Until)) {
			r.t.Errorf("got %+v; want the denial", d)
		}
		return changed(v, dry, err)
	}
}

func unblock(host string) func(*rig, bool) (string, error) {
	return func(r *rig, dry bool) (string, error) {
		p, err := r.Denials(r.t.Context(), admin.DenialFilter{Paging: firstPage, HostFP: key(host).Fingerprint()})
		if err != nil || len(p.Items) != 1 {
			r.t.Fatalf("got %+v, %v; want one denial", p, err)
		}
		seen := p.Items[0]
		for what, a := range map[string]admin.UnblockAction{
			"another host": {Action: why, ID: seen.ID, HostFP: key("Alpha").Fingerprint(), AddedAt: seen.AddedAt},
			"another time": {Action: why, ID: seen.ID, HostFP: seen.HostFP, AddedAt: seen.AddedAt.Add(-time.Second)},
		} {
			if _, err := r.Unblock(r.t.Context(), a); !errors.Is(err, admin.ErrNotFound) {
				r.t.Errorf("unblock of %s under that number: got %v; want not found", what, err)
			}
		}
		d, err := r.Unblock(r.t.Context(), admin.UnblockAction{Action: why, ID: seen.ID, HostFP: seen.HostFP, AddedAt: seen.AddedAt, DryRun: dry})
		return fmt.Sprintf("of %v", d.HostFP == key(host).Fingerprint()), err
	}
}

func dismiss(all bool) func(*rig, bool) (string, error) {
	return func(r *rig, dry bool) (string, error) {
		a := admin.DismissAction{Action: why, DryRun: dry}
		list, err := r.relay.Refusals(r.t.Context())
		if err != nil || len(list) == 0 {
			r.t.Fatalf("got %v, %v; want refusals", list, err)
		}
		if !all {
			a.IDs = []int64{list[0].ID}
		}
		d, err := r.Dismiss(r.t.Context(), a)
		if err == nil && d.DryRun != dry {
			return "NOT DRY", nil
		}
		return fmt.Sprint(d.Dismissed), err
	}
}

// Each deed answers the same dry and in earnest. Dry it changes nothing and is in no
// log; in earnest its line in the log says who and why, and a deed that had nothing
// to do is no news.
func TestDeeds(t *testing.T) {
	t.Parallel()
	refuse := func(hosts ...string) func(*rig) {
		return func(r *rig) {
			for _, h := range hosts {
				r.refusedPush(h, "none")
			}
		}
	}
	for _, tt := range []struct {
		name   string
		before []func(*rig)
		deed   func(*rig, bool) (string, error)
		want   string
		op     string // "" for nothing done
	}{
		{"hold", nil, itemDeed(hold, "b1"), "1 done 0 failed, b1 true", "hold"},
		{"hold what is there of some", nil, itemDeed(hold, "b1", "gone", "g0"), "2 done 1 failed, b1 true, gone false, g0 true", "hold"},
		{"hold what is held", []func(*rig){must(itemDeed(hold, "b1"))}, itemDeed(hold, "b1"), "0 done 1 failed, b1 false", ""},
		{"release", []func(*rig){must(itemDeed(hold, "b1"))}, itemDeed(release, "b1"), "1 done 0 failed, b1 true at the tail", "release"},
		{"release to nobody", []func(*rig){must(itemDeed(hold, "b1")), must(revoke("beta"))}, itemDeed(release, "b1"), "0 done 1 failed, b1 false", ""},
		{"discard", []func(*rig){must(itemDeed(hold, "b1"))}, itemDeed(discard, "b1"), "1 done 0 failed, b1 true queued", "discard"},
		{"discard a stranger's", []func(*rig){must(itemDeed(hold, "g2"))}, itemDeed(discard, "g2"), "1 done 0 failed, g2 true not enrolled", "discard"},
		{"discard what is queued", nil, itemDeed(discard, "b1"), "0 done 1 failed, b1 false", ""},
		{"revoke", nil, revoke("beta"), "beta changed true", "revoke"},
		{"revoke again", []func(*rig){must(revoke("beta"))}, revoke("beta"), "beta changed false", ""},
		{"block", nil, block("beta", 0), "beta changed true", "block"},
		{"block until", []func(*rig){must(block("beta", 0))}, block("beta", time.Hour), "beta changed true", "block"},
		{"block again", []func(*rig){must(block("beta", time.Hour))}, block("beta", time.Hour), "beta changed false", ""},
		{"block who has yet to come", nil, block("nobody", 0), " changed true", "block"},
		{"unblock", []func(*rig){must(block("beta", 0))}, unblock("beta"), "of true", "unblock"},
		{"deny a host", nil, deny("beta", "", 0), "changed true", "deny"},
		{"deny a credential", nil, deny("", "laptop-7", time.Hour), "changed true", "deny"},
		{"deny a host with a credential", []func(*rig){must(deny("beta", "", 0))}, deny("beta", "laptop-7", 0), "changed true", "deny"},
		{"deny who is blocked until then", []func(*rig){must(block("beta", time.Hour))}, deny("beta", "", time.Hour), "changed false", ""},
		{"deny longer", []func(*rig){must(deny("", "laptop-7", time.Hour))}, deny("", "laptop-7", 0), "changed true", "deny"},
		{"deny again", []func(*rig){must(deny("", "laptop-7", 0))}, deny("", "laptop-7", 0), "changed false", ""},
		{"dismiss one", []func(*rig){refuse("Alpha", "beta")}, dismiss(false), "1", "dismiss-refused"},
		{"dismiss all", []func(*rig){refuse("Alpha", "beta")}, dismiss(true), "2", "dismiss-refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := site(t)
			for _, do := range tt.before {
				do(r)
			}
			before, lines := r.everything(), r.logged("")
			if got, err := tt.deed(r, true); err != nil || got != tt.want {
				t.Errorf("dry: got %q, %v; want %q", got, err, tt.want)
			}
			if after := r.everything(); after != before {
				t.Errorf("dry: got\n%s\nwant it as before:\n%s", after, before)
			}
			if got, err := tt.deed(r, false); err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
			if after := r.everything(); (after != before) != (tt.op != "") {
				t.Errorf("got\n%s\nwant it changed: %v; it was:\n%s", after, tt.op != "", before)
			}
			r.wantLine(lines, tt.op)
		})
	}
}

// wantLine wants one more line of a kind in the log, or none for "".
func (r *rig) wantLine(before []admin.LogEntry, op string) {
	r.t.Helper()
	now := r.logged("")
	if op == "" {
		if len(now) != len(before) {
			r.t.Errorf("got the line %s; want none", now[0].Receipt)
		}
		return
	}
	if len(now) != len(before)+1 || now[0].Op != op {
		r.t.Fatalf("got %d lines after %d, the last of %s; want one of %s", len(now), len(before), now[0].Op, op)
	}
	var line struct {
		V                   int
		Type, Actor, Reason string
	}
	if err := json.Unmarshal(now[0].Receipt, &line); err != nil || line.V != 1 || line.Type != "relay-"+op || line.Actor != why.Actor || line.Reason != why.Reason {
		r.t.Errorf("got %s, %v; want who and why", now[0].Receipt, err)
	}
}

// The sender of a discarded item finds the notice in its queue, and the released
// item stands behind all others.
func TestWhatDeedsLeave(t *testing.T) {
	t.Parallel()
	r := site(t)
	must(itemDeed(hold, "b0", "b1"))(r)
	s, err := r.Status(t.Context())
	if err != nil || s.Totals.Held != 2 || s.Totals.Items != 7 {
		t.Errorf("got %+v, %v; want two of seven held", s.Totals, err)
	}
	must(itemDeed(discard, "b0"))(r)
	must(itemDeed(release, "b1"))(r)
	of, err := r.Items(t.Context(), admin.ItemFilter{Paging: firstPage, Target: key("Alpha")})
	if err != nil || len(of.Items) != 1 || of.Items[0].Kind != store.KindExpired {
		t.Errorf("got %+v, %v; want the notice", of.Items, err)
	}
	var ids []string
	left, err := r.Items(t.Context(), admin.ItemFilter{Paging: firstPage, Target: key("beta")})
	for _, it := range left.Items {
		ids = append(ids, it.ID)
	}
	if err != nil || !slices.Equal(ids, []string{"b2", "b3", "b1"}) {
		t.Errorf("got %q, %v; want the released one last", ids, err)
	}
	q, err := r.Queues(t.Context(), admin.QueueFilter{Paging: firstPage, Target: key("beta")})
	if err != nil || q.Items[0].Items != 3 || q.Items[0].HeldItems != 0 {
		t.Errorf("got %+v, %v; want three items and none held", q.Items, err)
	}
}

// What cannot be done is refused with its kind, in one line, and nothing changes.
func TestBadDeeds(t *testing.T) {
	t.Parallel()
	r := site(t)
	ctx := t.Context()
	refs := func(n int) (list []relay.ItemRef) {
		for i := range n {
			list = append(list, relay.ItemRef{Target: key("beta"), Seq: int64(i + 1), ID: "x"})
		}
		return list
	}
	one := []relay.ItemRef{r.refs["b1"]}
	nobody, noReason, longActor := admin.Action{Reason: "r"}, admin.Action{Actor: "a", Reason: " "}, admin.Action{Actor: strings.Repeat("x", 201), Reason: "r"}
	longReason, noText := admin.Action{Actor: "a", Reason: strings.Repeat("x", 1001)}, admin.Action{Actor: "a", Reason: "\xff"}
	hostOf := func(a admin.Action, k wire.PublicKey) admin.HostAction { return admin.HostAction{Action: a, Key: k} }
	controls := []string{"\n", "\r", "\t", "\x00", "\x1b[31m", "\x7f", "\u0085", "\u2028", "\u2029", "\u202e", "\u2066", "\u200f", "\u061c"}
	_, blockForever := block("beta", 0)(r, true)
	if blockForever != nil {
		t.Fatal(blockForever)
	}
	before := r.everything()
	type outcome struct {
		name string
		kind string
		err  error
	}
	var all []outcome
	add := func(name, kind string, err error) { all = append(all, outcome{name, kind, err}) }
	for _, verb := range []struct {
		name string
		do   func(admin.ItemAction) (admin.ItemResult, error)
		why  bool
	}{{"hold", r.hold, true}, {"release", r.release, false}, {"discard", r.discard, true}} {
		for what, a := range map[string]admin.ItemAction{
			"by nobody":            {Action: nobody, Items: one},
			"by a long name":       {Action: longActor, Items: one},
			"for a long reason":    {Action: longReason, Items: one},
			"for a reason no text": {Action: noText, Items: one},
			"of nothing":           {Action: why},
			"of too many":          {Action: why, Items: refs(relay.MaxItems + 1)},
			"of no target":         {Action: why, Items: []relay.ItemRef{{Seq: 1, ID: "x"}}},
			"of no seq":            {Action: why, Items: []relay.ItemRef{{Target: key("beta"), ID: "x"}}},
			"of no id":             {Action: why, Items: []relay.ItemRef{{Target: key("beta"), Seq: 1}}},
			"of one twice":         {Action: why, Items: append(slices.Clone(one), one...)},
		} {
			_, err := verb.do(a)
			add(verb.name+" "+what, "BAD_REQUEST", err)
		}
		if verb.why {
			_, err := verb.do(admin.ItemAction{Action: noReason, Items: one})
			add(verb.name+" for no reason", "BAD_REQUEST", err)
		}
	}
	for what, a := range map[string]admin.HostAction{
		"by nobody": hostOf(nobody, key("beta")), "for no reason": hostOf(noReason, key("beta")), "of no key": hostOf(why, wire.PublicKey{}),
	} {
		_, err := r.Revoke(ctx, a)
		add("revoke "+what, "BAD_REQUEST", err)
		_, err = r.Block(ctx, admin.BlockAction{HostAction: a})
		add("block "+what, "BAD_REQUEST", err)
	}
	for _, c := range controls {
		for what, a := range map[string]admin.Action{"an actor": {Actor: "cli:o" + c + "ps", Reason: "r"}, "a reason": {Actor: "cli:ops", Reason: "one" + c + "two"}} {
			name := fmt.Sprintf("with %q in %s", c, what)
			_, err := r.hold(admin.ItemAction{Action: a, Items: one})
			add("hold "+name, "BAD_REQUEST", err)
			_, err = r.release(admin.ItemAction{Action: a, Items: one})
			add("release "+name, "BAD_REQUEST", err)
			_, err = r.Revoke(ctx, hostOf(a, key("beta")))
			add("revoke "+name, "BAD_REQUEST", err)
			_, err = r.Unblock(ctx, admin.UnblockAction{Action: a, ID: 1})
			add("unblock "+name, "BAD_REQUEST", err)
			_, err = r.RotateEpoch(ctx, a)
			add("rotate the epoch "+name, "BAD_REQUEST", err)
			_, err = r.PruneBackups(ctx, false, a)
			add("prune "+name, "BAD_REQUEST", err)
			_, err = r.Dismiss(ctx, admin.DismissAction{Action: a})
			add("dismiss "+name, "BAD_REQUEST", err)
		}
	}
	for what, a := range map[string]admin.DenyAction{
		"nobody":                                {Action: why},
		"by nobody":                             {Action: nobody, ClientID: "c"},
		"for no reason":                         {Action: noReason, ClientID: "c"},
		"what is no fingerprint":                {Action: why, HostFP: "beta"},
		"a credential and what is no host":      {Action: why, ClientID: "c", HostFP: "1f3a-09bc"},
		"a credential of 201 characters":        {Action: why, ClientID: strings.Repeat("é", 201)},
		"a credential that is no text":          {Action: why, ClientID: "\xff"},
		"a credential of a line and a bell":     {Action: why, ClientID: "a\n\a"},
		"a credential that turns the text over": {Action: why, ClientID: "a\u202eb"},
		"until now":                             {Action: why, ClientID: "c", Until: r.clock()},
		"until the year 10000":                  {Action: why, ClientID: "c", Until: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		_, err := r.Deny(ctx, a)
		add("deny "+what, "BAD_REQUEST", err)
	}
	for what, until := range map[string]time.Time{"now": r.clock(), "in the past": r.clock().Add(-time.Hour), "in the year 10000": time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		_, err := r.Block(ctx, admin.BlockAction{HostAction: hostOf(why, key("beta")), Until: until})
		add("block until "+what, "BAD_REQUEST", err)
	}
	_, err := r.Revoke(ctx, hostOf(why, key("nobody")))
	add("revoke a stranger", "NOT_FOUND", err)
	for _, id := range []int64{0, -1, 1, 1 << 62} {
		_, err := r.Unblock(ctx, admin.UnblockAction{Action: why, ID: id})
		add(fmt.Sprint("unblock ", id), "NOT_FOUND", err)
	}
	_, err = r.Unblock(ctx, admin.UnblockAction{ID: 1})
	add("unblock by nobody", "BAD_REQUEST", err)
	_, err = r.Dismiss(ctx, admin.DismissAction{})
	add("dismiss by nobody", "BAD_REQUEST", err)
	_, err = r.Dismiss(ctx, admin.DismissAction{Action: why, IDs: []int64{1, 1}})
	add("dismiss one twice", "BAD_REQUEST", err)
	for _, o := range all {
		if o.err == nil || admin.Kind(o.err) != o.kind || strings.Contains(o.err.Error(), "\n") {
			t.Errorf("%s: got %v, kind %q; want %s in one line", o.name, o.err, admin.Kind(o.err), o.kind)
		}
	}
	if after := r.everything(); after != before {
		t.Errorf("got\n%s\nwant it as before:\n%s", after, before)
	}
}

// While no relay runs, the desk of a store discards only with the relay's key: the
// notices are signed. All else it can do without.
func TestDeedsOffline(t *testing.T) {
	t.Parallel()
	for _, withKey := range []bool{false, true} {
		r := newRig(t, func(o *admin.Options) {
			off := relay.Options{Store: o.Store.(store.Store), Limits: relay.DefaultLimits(), Now: o.Now}
			if withKey {
				off.Key = o.Key
			}
			o.Relay = relay.Detached(off)
		})
		r.enrol("Alpha", "beta")
		r.put("beta", "b0", "Alpha")
		r.put("beta", "b1", "Alpha")
		must(itemDeed(hold, "b0", "b1"))(r)
		got, err := itemDeed(discard, "b0")(r, false)
		if withKey && (err != nil || got != "1 done 0 failed, b0 true queued") {
			t.Errorf("with the key: got %q, %v; want it discarded", got, err)
		}
		if !withKey && (admin.Kind(err) != "REFUSED" || !errors.Is(err, relay.ErrDetached)) {
			t.Errorf("without the key: got %q, %v; want it refused", got, err)
		}
		must(itemDeed(release, "b1"))(r)
		must(block("beta", 0))(r)
		must(revoke("beta"))(r)
	}
}

// blindStore is a store that cannot be read from once something was written.
type blindStore struct {
	admin.Store
	blind atomic.Bool
}

var errBlind = errors.New("the disk does not answer")

func (b *blindStore) View(ctx context.Context, fn func(store.Reader) error) error {
	if b.blind.Load() {
		return errBlind
	}
	return b.Store.View(ctx, fn)
}

// What was done to a host was done, also when the look at it afterwards fails: it is
// answered with what is known. A dry run that cannot look has nothing to say.
func TestHostDeedWithoutALookAfterwards(t *testing.T) {
	t.Parallel()
	blind := &blindStore{}
	r := newRig(t, func(o *admin.Options) {
		blind.Store = o.Store
		o.Store = blind
	})
	r.enrol("beta", "gamma")
	for _, tt := range []struct {
		name, host string
		do         func(admin.HostAction) (admin.HostResult, error)
	}{
		{"revoke", "beta", func(a admin.HostAction) (admin.HostResult, error) { return r.Revoke(t.Context(), a) }},
		{"block", "gamma", func(a admin.HostAction) (admin.HostResult, error) {
			return r.Block(t.Context(), admin.BlockAction{HostAction: a})
		}},
	} {
		blind.blind.Store(true)
		if _, err := tt.do(admin.HostAction{Action: why, Key: key(tt.host), DryRun: true}); !errors.Is(err, errBlind) {
			t.Errorf("%s, dry: got %v; want the error", tt.name, err)
		}
		got, err := tt.do(admin.HostAction{Action: why, Key: key(tt.host)})
		if err != nil || !got.Changed || got.Enrolment.Key != key(tt.host) || got.Enrolment.Fingerprint != key(tt.host).Fingerprint() {
			t.Errorf("%s: got %+v, %v; want it done to the host", tt.name, got, err)
		}
		blind.blind.Store(false)
		e, err := r.Enrolment(t.Context(), key(tt.host))
		if err != nil || e.RevokedAt.IsZero() && e.Denial == nil {
			t.Errorf("%s: got %+v, %v; want it done", tt.name, e, err)
		}
	}
}
