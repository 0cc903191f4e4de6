package host

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

// What an operator discarded after the backup, whose sender heard of it, is not
// delivered by a restore: it is held, under the new keys of both hosts, and the
// operator decides again.
func TestRestoreDeliversNothingDiscarded(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	for _, h := range []*testHost{alpha, beta} {
		h.tick()
	}
	alpha.sendByRelay(beta, "wanted")
	alpha.sendByRelay(beta, "unwanted")
	b := w.relay.backup("")

	w.pass(time.Minute)
	refs := w.relay.waiting(beta)[1:]
	by := relay.Deed{Actor: "ops", Reason: "a loop"}
	must(w.relay.relay.Hold(context.Background(), refs, by))
	if out := must(w.relay.relay.Discard(context.Background(), refs, by)); !out[0].Done {
		t.Fatalf("discard: got %+v; want it done", out)
	}
	alpha.relayOnly() // it hears
	must(beta.RotateKey(context.Background()))
	beta.intoSession()
	must(alpha.Rotate(context.Background(), beta.records()))

	w.relay.stop()
	for range 2 { // and the same once more, from what that made
		r := w.relay.restoreFile(b.File)
		if r.Carried.Discarded+r.Carried.Held != 1 {
			t.Errorf("carried: got %+v; want the one item held", r.Carried)
		}
		if r.Carried.Discarded == 1 && !strings.Contains(strings.Join(r.Warnings, "\n"), "1 items that were discarded after the backup are held") {
			t.Errorf("warnings: got %q; want the discarded item named", r.Warnings)
		}
	}
	w.relay.start()
	for range 3 {
		alpha.tick()
		beta.tick()
	}
	beta.once(t, "restored", "wanted")
	aside := w.relay.aside()
	if len(aside) != 1 || aside[0].Target != beta.Key() || aside[0].Actor != "ops" || aside[0].Reason != "discarded before the restore: a loop" {
		t.Fatalf("got %+v held; want the discarded item, for beta's new key", aside)
	}
	same(t, "released again", must(w.relay.relay.Release(context.Background(), []relay.ItemRef{{Target: aside[0].Target, Seq: aside[0].Seq, ID: aside[0].ID}}, by))[0].Done, true)
	beta.tick()
	beta.once(t, "released", "wanted", "unwanted")
}

// waiting names what is queued for a host, in order.
func (r *testRelay) waiting(h *testHost) (refs []relay.ItemRef) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) error {
		return v.Page(h.Key(), 0, 100, func(it store.Item) bool {
			refs = append(refs, relay.ItemRef{Target: it.Target, Seq: it.Seq, ID: it.ID})
			return true
		})
	}))
	return refs
}
