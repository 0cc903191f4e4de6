package tui

import (
	"fmt"
	"testing"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// crowded makes a desk whose lists are as long as a screen shows them.
func crowded() *fakeDesk {
	f := full()
	q, it, e := f.queues[1], f.items[0], f.enrolments[0]
	for i := range maxRows {
		h := hostNamed(i+100, fmt.Sprintf("host-%05d", i))
		q.Target, e.Host = h, h
		it.ItemRef = relay.ItemRef{Target: f.queues[0].Target.Key, Seq: int64(i + 1), ID: fmt.Sprintf("01J8ZQ6YZZZZZZZZZZZZZZ%04d", i)}
		held := it
		held.Held = &admin.Hold{At: clock, Actor: "cli:ann", Reason: "looks odd"}
		f.queues, f.enrolments, f.items = append(f.queues, q), append(f.enrolments, e), append(f.items, it)
		f.quarantine = append(f.quarantine, admin.Quarantined{Kind: admin.QuarantineHeld, Item: &held})
	}
	return f
}

// BenchmarkViewOfLists draws each list at 200×60 with all the rows it may show.
func BenchmarkViewOfLists(b *testing.B) {
	for _, bb := range []struct {
		name string
		at   int
		open []string
	}{
		{"queues", atQueues, nil},
		{"items", atQueues, []string{"enter"}},
		{"item", atQueues, []string{"enter", "enter"}},
		{"enrolments", atEnrolments, nil},
		{"host", atEnrolments, []string{"enter"}},
		{"quarantine", atQuarantine, nil},
		{"backups", atBackups, nil},
		{"dialog", atEnrolments, []string{"x"}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s := newStage(b, crowded())
			s.resize(200, 60)
			s.show(bb.at).press(bb.open...)
			for range maxRows / pageSize { // to the last row
				s.press("G")
			}
			for b.Loop() {
				_ = s.view()
			}
			b.ReportMetric(b.Elapsed().Seconds()*1000/float64(b.N), "ms/view")
		})
	}
}
