package relay_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// refusals names the sample, newest first: "alpha: bad kind x2; …".
func (r *rig) refusals() string {
	r.t.Helper()
	list, err := r.relay.Refusals(r.t.Context())
	ok(r.t, "refusals", err)
	var s []string
	for _, x := range list {
		s = append(s, fmt.Sprintf("%s: %s x%d", x.Name, x.Reason, x.Count))
	}
	return strings.Join(s, "; ")
}

// Pushes that no host should have sent are noted; those that anyone may run into
// are not.
func TestRefusedPushesAreNoted(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxSenderItems = 3; l.MaxItemBytes = 4000 }))
	alpha, beta, closed := r.enrol("alpha"), r.enrol("beta"), r.enrol("closed")
	ok(t, "publish", r.publish(closed, t0, beta))
	first := mail(alpha, beta)
	r.pushed(alpha, first, "accepted")
	other := mail(alpha, beta)
	big := strings.Repeat("x", 5000)
	foreign := receipt(beta, alpha, first.ID, 1) // signed by another host
	foreign.Targets[0].Key = beta.Pub()
	for _, tt := range []struct {
		it   wire.PushItem
		note string // "" for none
	}{
		{item(wire.KindEnvelope, "", to(beta, wireOf(other))), "bad item id"},
		{item("nonsense", "x", to(beta, wireOf(other))), "bad kind"},
		{wire.PushItem{ID: "x", IDOK: true, Kind: wire.KindEnvelope}, "bad targets"},
		{item(wire.KindEnvelope, "x", to(beta, nil)), "bad wire"},
		{item(wire.KindEnvelope, "x", to(beta, []byte("{}"))), "*"},
		{item(wire.KindEnvelope, "x", to(beta, wireOf(other))), "item id is not the envelope id"},
		{item(wire.KindEnvelope, other.ID, to(beta, wireOf(other)), to(beta, wireOf(other))), "duplicate target"},
		{item(wire.KindEnvelope, "x", to(beta, []byte(big))), "item over size limit"},
		{foreign, "receipt is not signed by the sending host"},
		{item(wire.KindEnvelope, first.ID, to(beta, wireOf(sealed(alpha, draftOf(alpha, first, beta), beta)))), "conflict"},
		{mail(alpha, wiretest.NewHost("nobody")), ""},
		{mail(alpha, closed), ""},
		{first, ""},
		{mail(alpha, beta), ""},
		{mail(alpha, beta), ""},
		{mail(alpha, beta), ""}, // over its quota
	} {
		before := r.refusals()
		r.clock.Add(time.Second)
		status := r.push(alpha, tt.it)[0].Status
		after := r.refusals()
		if tt.note == "" {
			same(t, "sample after "+status, after, before)
			continue
		}
		reason := strings.TrimPrefix(status, "rejected:")
		if tt.note != "*" {
			same(t, "reason", reason, tt.note)
		}
		prefix(t, "sample", after, "alpha: "+reason+" x1")
	}
	newest := must(r.relay.Refusals(t.Context()))[0]
	same(t, "the newest", fmt.Sprint(newest.Sender, newest.ItemID, newest.Reason), fmt.Sprint(alpha.Pub(), first.ID, "conflict"))

	before := len(must(r.relay.Refusals(t.Context())))
	r.pushV1(beta, []byte("nonsense"))
	r.pushV1(beta, wireOf(mail(beta, wiretest.NewHost("nobody")))) // an unknown host
	same(t, "v1: of two refused", len(must(r.relay.Refusals(t.Context()))), before+1)
	prefix(t, "v1", r.refusals(), "beta: ")
}

// draftOf is another message under the id of one.
func draftOf(from *wiretest.Host, it wire.PushItem, h *wiretest.Host) wire.Envelope {
	d := from.Draft(h, "hello", "another text")
	d.ID = it.ID
	return d
}

// A refusal that repeats is counted; one host does not push out the others; the
// sample is bounded, and so is each text of it.
func TestTheSampleIsBounded(t *testing.T) {
	t.Parallel()
	if raceDetector {
		t.Skip("two hundred hosts from one goroutine: nothing to detect")
	}
	r := newRig(t, limits(func(l *relay.Limits) { l.PushesPerMinute = 1_000_000 }))
	alpha, loud := r.enrol("alpha"), r.enrol("loud")
	for range 3 {
		r.clock.Add(time.Second)
		r.push(alpha, item("nonsense", "x"))
	}
	list := must(r.relay.Refusals(t.Context()))
	same(t, "merged", len(list), 1)
	same(t, "count and time", fmt.Sprint(list[0].Count, list[0].At), fmt.Sprint(3, t0.Add(3*time.Second)))

	id := strings.Repeat("ü", 10_000)
	r.push(loud, item(wire.KindEnvelope, id))
	same(t, "a long id, cut", must(r.relay.Refusals(t.Context()))[0].ItemID, id[:400])
	var whole map[string]any
	ok(t, "decode", json.Unmarshal(wireOf(mail(loud, alpha)), &whole))
	reasons := map[string]bool{}
	for name, value := range whole { // each wrong for reasons of its own
		for _, wrong := range []any{nil, 7, "?", []any{}, []any{"?"}, map[string]any{}} {
			whole[name] = wrong
			reasons[r.pushV1(loud, must(json.Marshal(whole))).Error] = true
		}
		delete(whole, name)
		reasons[r.pushV1(loud, must(json.Marshal(whole))).Error] = true
		whole[name] = value
	}
	if len(reasons) <= 10 {
		t.Fatalf("reasons: got %d, %v; want more than are kept of one host", len(reasons), reasons)
	}
	ofLoud := 0
	for _, x := range must(r.relay.Refusals(t.Context())) {
		if x.Sender == loud.Pub() {
			ofLoud++
		}
	}
	same(t, "kept of one host", ofLoud, 10)
	contains(t, "what is known of the other", r.refusals(), "alpha: bad kind x3")

	for i := range 205 {
		h := wiretest.NewHost(fmt.Sprint("h", i))
		ok(t, "enrol", r.tryEnrol(h, ""))
		r.clock.Add(time.Second)
		r.push(h, item("nonsense", "x"))
	}
	list = must(r.relay.Refusals(t.Context()))
	same(t, "kept", len(list), 200)
	same(t, "the newest", list[0].Name, "h204")
	same(t, "the oldest", list[199].Name, "h5")
	ok(t, "beat", r.relay.Beat(t.Context()))
	r.restart()
	same(t, "kept over a restart", fmt.Sprint(must(r.relay.Refusals(t.Context()))), fmt.Sprint(list))
}

// The sample is stored with the heartbeat, when it changed, and read from there.
func TestTheSampleIsStoredWithTheHeartbeat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha := r.enrol("alpha")
	detached := relay.Detached(relay.Options{Store: r.store, Limits: relay.DefaultLimits(), Now: r.clock.Now})
	stored := func() int { return len(must(detached.Refusals(t.Context()))) }
	r.push(alpha, item("nonsense", "x"))
	same(t, "before the heartbeat", stored(), 0)
	ok(t, "beat", r.relay.Beat(t.Context()))
	same(t, "after it", stored(), 1)

	ok(t, "forget", r.store.Update(t.Context(), func(tx store.Tx) error { return tx.SetState("refused-pushes", nil) }))
	ok(t, "beat", r.relay.Beat(t.Context()))
	same(t, "unchanged, so not stored again", stored(), 0)
	r.push(alpha, item("nonsense", "y"))
	r.full.Store(true)
	ok(t, "beat on a full disk", r.relay.Beat(t.Context()))
	same(t, "stored without room", stored(), 0)
	r.full.Store(false)
	ok(t, "beat", r.relay.Beat(t.Context()))
	same(t, "stored once there is room", stored(), 1)

	ok(t, "spoil", r.store.Update(t.Context(), func(tx store.Tx) error { return tx.SetState("refused-pushes", []byte(`"x"`)) }))
	r.restart()
	same(t, "a record that can't be read", r.refusals(), "")
	r.push(alpha, item("nonsense", "x"))
	same(t, "and after it", r.refusals(), "alpha: bad kind x1")
}

// What is dismissed is gone at once, in memory and in the store, whoever
// dismisses; an id is never given twice.
func TestDismiss(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	for _, h := range []*wiretest.Host{alpha, beta} {
		r.push(h, item("nonsense", "x"))
		r.push(h, item(wire.KindEnvelope, ""))
	}
	list := must(r.relay.Refusals(t.Context()))
	same(t, "to begin with", len(list), 4)
	n, err := r.relay.Dismiss(t.Context(), []int64{list[0].ID, list[3].ID, 99}, operator)
	ok(t, "dismiss", err)
	same(t, "dismissed", n, 2)
	same(t, "left", r.refusals(), "beta: bad kind x1; alpha: bad item id x1")
	same(t, "in the receipt", len(r.receiptOf("dismiss-refused").Refusals), 2)
	r.restart() // without a heartbeat in between
	same(t, "left after a restart", r.refusals(), "beta: bad kind x1; alpha: bad item id x1")

	detached := relay.Detached(relay.Options{Store: r.store, Limits: relay.DefaultLimits(), Now: r.clock.Now})
	n, err = detached.Dismiss(t.Context(), nil, operator)
	ok(t, "dismiss all, without a relay", err)
	same(t, "dismissed", n, 2)
	before := r.dump()
	for _, ids := range [][]int64{nil, {1}, {-1}} {
		n, err = detached.Dismiss(t.Context(), ids, operator)
		if n != 0 || err != nil {
			t.Errorf("dismiss %v of nothing: got %d, %v", ids, n, err)
		}
	}
	if _, err := detached.Dismiss(t.Context(), []int64{1, 1}, operator); err == nil {
		t.Error("one named twice: got no error")
	}
	same(t, "the store", r.dump(), before)
	r.restart()
	r.push(alpha, item("nonsense", "x"))
	if id := must(r.relay.Refusals(t.Context()))[0].ID; id <= 4 {
		t.Errorf("id of a new one: got %d; want one that nothing had", id)
	}
}
