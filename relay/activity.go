package relay

import (
	"sync/atomic"
	"time"
)

// Activity is what a relay did lately, in slots of ActivitySlot, the oldest first.
// The last slot is not over yet.
type Activity struct {
	Accepted []int64 `json:"accepted"` // items, one for each target
	Pulled   []int64 `json:"pulled"`   // items
	// Since the start of the process.
	TotalAccepted int64 `json:"total_accepted"`
	TotalPulled   int64 `json:"total_pulled"`
	TotalAcked    int64 `json:"total_acked"`
}

// ActivitySlot is how long a slot of Activity is, ActivitySlots how many there are.
const (
	ActivitySlot  = 10 * time.Second
	ActivitySlots = 60
)

// activity counts what went through this process. Nobody waits here.
type activity struct {
	accepted, pulled meter
	acked            atomic.Int64
}

// meter counts in slots. A slot holds the number of its time in the upper half
// and what was counted in the lower, so that one swap starts it anew.
type meter struct {
	total atomic.Int64
	slots [ActivitySlots]atomic.Uint64
}

func slotOf(now time.Time) uint32 { return uint32(now.Unix() / int64(ActivitySlot/time.Second)) }

func (m *meter) add(now time.Time, n int64) {
	m.total.Add(n)
	at := slotOf(now)
	s := &m.slots[at%ActivitySlots]
	for {
		old := s.Load()
		next := uint64(at)<<32 | uint64(uint32(n))
		if uint32(old>>32) == at {
			next = old + uint64(uint32(n))
		}
		if s.CompareAndSwap(old, next) {
			return
		}
	}
}

func (m *meter) lately(now time.Time) []int64 {
	list := make([]int64, ActivitySlots)
	at := slotOf(now)
	for i := range list {
		slot := at - uint32(ActivitySlots-1-i)
		if v := m.slots[slot%ActivitySlots].Load(); uint32(v>>32) == slot {
			list[i] = int64(uint32(v))
		}
	}
	return list
}

// count notes the effects that were committed.
func (a *activity) count(now time.Time, effects []Effect) {
	var accepted, acked int64
	for _, e := range effects {
		switch e.Kind {
		case Accepted:
			accepted++
		case Acked:
			acked += e.Count
		}
	}
	if accepted > 0 {
		a.accepted.add(now, accepted)
	}
	if acked > 0 {
		a.acked.Add(acked)
	}
}

// Activity answers from counters in memory.
func (r *Relay) Activity() Activity {
	now := r.clock()
	a := &r.activity
	return Activity{
		Accepted: a.accepted.lately(now), Pulled: a.pulled.lately(now),
		TotalAccepted: a.accepted.total.Load(), TotalPulled: a.pulled.total.Load(), TotalAcked: a.acked.Load(),
	}
}
