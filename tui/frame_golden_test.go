package tui

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/charmbracelet/x/exp/golden"
)

// Places of the other screens.
const (
	atOverview = 0
	atJobs     = 5
	atLog      = 6
)

// Overview, Jobs and Log at two sizes: loading, empty, full, error, relay gone,
// read-only, and with a dialog open.
func TestViews(t *testing.T) {
	t.Parallel()
	fails := func(err error) func(s *stage, at int) {
		return func(s *stage, at int) {
			s.show(at)
			s.app.svc.(*fakeDesk).fail(err)
			s.later(3 * time.Second)
		}
	}
	shows := func(s *stage, at int) { s.show(at) }
	presses := func(names ...string) func(s *stage, at int) {
		return func(s *stage, at int) { s.show(at).press(names...) }
	}
	plenty := func() *fakeDesk { return full() }
	broken := func() *fakeDesk {
		f := full()
		f.err = errors.New("the disk does not answer")
		return f
	}
	noRelay := func() *fakeDesk { return &fakeDesk{err: errGone} }
	held := func() *fakeDesk {
		f := full()
		f.overview.Clock = heldClock()
		return f
	}
	alarming := func() *fakeDesk {
		f := full()
		for i := range 20 {
			f.overview.Problems = append(f.overview.Problems, fmt.Sprintf("problem %d of a relay that is not well at all", i))
		}
		f.overview.Store.Low = true
		return f
	}
	for _, tt := range []struct {
		name string
		at   int
		desk func() *fakeDesk
		play func(s *stage, at int)
	}{
		{"overview loading", atOverview, plenty, func(s *stage, at int) { s.app.shown = at }},
		{"overview empty", atOverview, bare, shows},
		{"overview full", atOverview, plenty, shows},
		{"overview many alarms", atOverview, alarming, shows},
		{"overview error at first", atOverview, broken, shows},
		{"overview error", atOverview, plenty, fails(errors.New("the disk does not answer"))},
		{"overview no relay", atOverview, noRelay, shows},
		{"overview gone", atOverview, plenty, fails(errGone)},
		{"overview read-only", atOverview, plenty, shows},
		{"overview paused", atOverview, plenty, presses("p")},
		{"overview help", atOverview, plenty, presses("?")},
		{"jobs loading", atJobs, plenty, func(s *stage, at int) { s.app.shown = at }},
		{"jobs empty", atJobs, bare, shows},
		{"jobs full", atJobs, plenty, shows},
		{"jobs error", atJobs, plenty, fails(errors.New("the disk does not answer"))},
		{"jobs gone", atJobs, plenty, fails(errGone)},
		{"jobs read-only", atJobs, plenty, shows},
		{"jobs dialog", atJobs, plenty, presses("j", "j", "x")},
		{"jobs dialog held", atJobs, held, presses("j", "x")},
		{"jobs running", atJobs, plenty, presses("j", "j", "x", "y")},
		{"jobs runs", atJobs, plenty, presses("j", "enter")},
		{"jobs one run", atJobs, plenty, presses("j", "enter", "enter")},
		{"jobs help", atJobs, plenty, presses("?")},
		{"log loading", atLog, plenty, func(s *stage, at int) { s.app.shown = at }},
		{"log empty", atLog, bare, shows},
		{"log full", atLog, plenty, shows},
		{"log error", atLog, plenty, fails(errors.New("the disk does not answer"))},
		{"log gone", atLog, plenty, fails(errGone)},
		{"log read-only", atLog, plenty, shows},
		{"log filter open", atLog, plenty, func(s *stage, at int) { s.show(at).press("/").types("hold") }},
		{"log filtered", atLog, plenty, func(s *stage, at int) { s.show(at).press("/").types("hold").press("enter") }},
		{"log one kind", atLog, plenty, presses("o")},
		{"log one line", atLog, plenty, presses("j", "enter")},
	} {
		for _, size := range [][2]int{{80, 24}, {140, 45}} {
			t.Run(fmt.Sprintf("%s/%dx%d", tt.name, size[0], size[1]), func(t *testing.T) {
				t.Parallel()
				var change []func(*Options)
				if len(tt.name) > 9 && tt.name[len(tt.name)-9:] == "read-only" {
					change = append(change, readOnly)
				}
				s := newStage(t, tt.desk(), change...)
				s.resize(size[0], size[1])
				tt.play(s, tt.at)
				golden.RequireEqual(t, s.view())
			})
		}
	}
}

// In ASCII nothing else is drawn, and the layout is the same.
func TestViewInASCII(t *testing.T) {
	t.Parallel()
	s := newStage(t, full("全角", "studio"), func(o *Options) { o.ASCII = true })
	s.show(atOverview)
	golden.RequireEqual(t, s.view())
	for _, r := range s.view() {
		if r > '~' {
			t.Fatalf("got %q; want ASCII only in\n%s", r, s.view())
		}
	}
}
