package relay_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// lately are the last three slots.
func lately(list []int64) string { return fmt.Sprint(list[len(list)-3:]) }

func TestActivity(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	same(t, "slots", len(r.relay.Activity().Accepted), relay.ActivitySlots)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	it := mail(alpha, beta, gamma)
	r.push(alpha, it, item("nonsense", "x")) // two copies
	r.pushed(alpha, it, "duplicate")
	r.clock.Add(relay.ActivitySlot)
	r.pull(beta, relay.PullQuery{})
	r.pull(beta, relay.PullQuery{After: 1})
	if _, err := r.relay.PullV1(t.Context(), r.caller(gamma), 0); err != nil {
		t.Fatalf("v1 pull: %v", err)
	}
	r.ack(beta, 1)
	r.clock.Add(relay.ActivitySlot)
	r.pushV1(alpha, wireOf(mail(alpha, beta)))
	a := r.relay.Activity()
	same(t, "accepted", lately(a.Accepted), "[2 0 1]")
	same(t, "pulled", lately(a.Pulled), "[0 2 0]")
	same(t, "totals", fmt.Sprint(a.TotalAccepted, a.TotalPulled, a.TotalAcked), "3 2 1")
	r.clock.Add(relay.ActivitySlots * relay.ActivitySlot)
	r.pushed(alpha, mail(alpha, beta), "accepted")
	a = r.relay.Activity()
	same(t, "an old slot is forgotten", lately(a.Accepted)+fmt.Sprint(a.Accepted[0]), "[0 0 1]0")
	r.clock.Add(-time.Hour) // a clock that is set back
	r.pushed(alpha, mail(alpha, beta), "accepted")
	same(t, "after a clock that went back", lately(r.relay.Activity().Accepted), "[0 0 1]")
	same(t, "total", r.relay.Activity().TotalAccepted, 5)
	r.restart()
	same(t, "total of a new process", r.relay.Activity().TotalAccepted, 0)
}

// Slots that begin while many count lose nothing of what is counted.
func TestActivityCountsEveryItem(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.PushesPerMinute = 1_000_000 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	who := r.caller(alpha)
	const pushers, each = 4, 25
	var all sync.WaitGroup
	for range pushers {
		all.Go(func() {
			for range each {
				r.clock.Add(time.Second) // slots begin meanwhile
				if _, err := r.relay.Push(t.Context(), who, []wire.PushItem{mail(alpha, beta)}); err != nil {
					t.Errorf("push: %v", err)
				}
			}
		})
	}
	all.Wait()
	a, sum := r.relay.Activity(), int64(0)
	for _, n := range a.Accepted {
		sum += n
	}
	same(t, "in slots and in all", fmt.Sprint(sum, a.TotalAccepted), fmt.Sprint(pushers*each, pushers*each))
}
