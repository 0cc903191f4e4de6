package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
)

// However items are named, they keep the order of their queues: held one by one and
// listed last first, they are released as they stood. Outcomes come as they were
// asked for.
func TestDeedsKeepTheOrderOfMail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	var want []string
	var refs []relay.ItemRef
	for i := range 5 {
		it, other := mail(alpha, beta), mail(alpha, gamma)
		r.push(alpha, it, other)
		seq := int64(i + 1)
		r.done(r.relay.Hold, ref(gamma, seq, other))
		r.done(r.relay.Hold, ref(beta, seq, it))
		want = append(want, it.ID)
		refs = append(refs, ref(gamma, seq, other), ref(beta, seq, it))
	}
	slices.Reverse(refs)
	for i, o := range r.done(r.relay.Release, refs...) {
		if o.ItemRef != refs[i] || o.NewSeq != refs[i].Seq+5 {
			t.Errorf("outcome %d: got %+v; want that of %+v, whose number is five more now", i, o, refs[i])
		}
	}
	var got []string
	for _, it := range r.pull(beta, relay.PullQuery{}).Items {
		got = append(got, it.ID)
	}
	same(t, "pulled", strings.Join(got, " "), strings.Join(want, " "))

	// Discarded in any order, their senders hear in that of the queues.
	for i := range refs {
		refs[i].Seq += 5
	}
	r.done(r.relay.Hold, refs...)
	r.done(r.relay.Discard, refs...)
	got, want = nil, nil
	sorted := slices.SortedFunc(slices.Values(refs), relay.ItemRef.Compare)
	for _, g := range r.receiptOf("discard").Groups {
		for _, it := range g.Items {
			got = append(got, fmt.Sprint(g.Target, it.Seq))
		}
	}
	for _, ref := range sorted {
		want = append(want, fmt.Sprint(ref.Target, ref.Seq))
	}
	same(t, "in the log", strings.Join(got, " "), strings.Join(want, " "))
}
