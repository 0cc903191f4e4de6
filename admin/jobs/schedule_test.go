package jobs

import (
	"context"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of the tests, wherever they run
)

func TestBadSchedulesAreRefusedInOneLine(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{
		" ", "17 3 * *", "17 3 * * * *", "60 3 * * *", "17 24 * * *", "17 3 0 * *", "17 3 * 13 *", "17 3 * * 8", "*/0 * * * *", "5-1 * * * *",
		"@every 1h", "@daily", "TZ=Europe/Berlin 17 3 * * *", "CRON_TZ=UTC 17 3 * * *", "TZ=UTC", "0 0 30 2 *", "x 3 * * *",
		strings.Repeat("9", 10_000), "\x00\n", "99999999999999999999 * * * *",
	} {
		_, err := New(Options{Jobs: []Job{{Name: "backup", Cron: spec, Do: (&worker{}).do}}})
		if err == nil {
			t.Errorf("%.40q: got no error; want one", spec)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, "job backup: schedule ") || strings.Contains(text, "\n") || !strings.Contains(text, "17 3 * * *") {
			t.Errorf("%.40q: got %q; want one line that names the job and shows a good one", spec, text)
		}
	}
	for _, spec := range []string{"17 3 * * *", "43 4 * * 0", "*/5 0-6,12 1,15 JAN-jun mon", "0 0 29 2 *"} {
		ok(t, spec, CheckSchedule(spec))
	}
}

func TestBadJobsAreRefused(t *testing.T) {
	t.Parallel()
	do := (&worker{}).do
	for name, list := range map[string][]Job{
		"two of one name":            {{Name: "a", Do: do}, {Name: "a", Do: do}},
		"no name":                    {{Do: do}},
		"nothing to do":              {{Name: "a"}},
		"a schedule and an interval": {{Name: "a", Cron: "* * * * *", Every: time.Hour, Do: do}},
		"a negative interval":        {{Name: "a", Every: -time.Hour, Do: do}},
	} {
		if _, err := New(Options{Jobs: list}); err == nil {
			t.Errorf("%s: got no error; want one", name)
		}
	}
}

func FuzzSchedule(f *testing.F) {
	for _, s := range []string{"17 3 * * *", "43 4 * * 0", "*/5 0-6 1,15 jan mon", "0 0 29 2 *", "0 0 30 2 *", "@every 1s", "TZ=", "? ? ? ? ?"} {
		f.Add(s, int64(1_700_000_000), int64(1_700_000_000))
	}
	f.Fuzz(func(t *testing.T, spec string, at, was int64) {
		s, err := parseSchedule(spec)
		if err != nil {
			if strings.ContainsFunc(err.Error(), func(c rune) bool { return c < ' ' }) || len(err.Error()) > 2000 {
				t.Errorf("%q: got %q; want one line of text", spec, err)
			}
			return
		}
		const most = 4_000_000_000 // 2096: the calendar looks five years ahead
		now, last := time.Unix(at%most, 0).UTC(), time.Unix(was%most, 0).UTC()
		due := dueAt(s, now, []time.Time{last}, last)
		if !last.After(now) && !due.After(last) {
			t.Errorf("%q: due at %s after a success at %s; want it later", spec, due, last)
		}
		if due.Location() != time.UTC {
			t.Errorf("%q: due in %s; want UTC", spec, due.Location())
		}
	})
}

// One run a day at 03:17 UTC, in a zone whose clocks change and in one whose
// midnight does not exist, for a week around the change.
func TestOneRunADayAcrossDST(t *testing.T) {
	was := time.Local
	t.Cleanup(func() { time.Local = was })
	for _, zone := range []string{"Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "UTC"} {
		loc, err := time.LoadLocation(zone)
		ok(t, zone, err)
		time.Local = loc
		for _, start := range []time.Time{t0, time.Date(2026, 10, 23, 12, 0, 0, 0, time.UTC), time.Date(2018, 11, 2, 12, 0, 0, 0, time.UTC)} {
			w := &worker{}
			w.r = newRig(t, Job{Name: "backup", Cron: "17 3 * * *", Do: w.do})
			w.r.zone = loc
			w.r.wall.Store(start.UnixMilli())
			w.r.boot()
			w.r.started(Request{Job: "backup", By: "test"})
			w.times()
			w.r.sit(7*day, 15*time.Minute)
			var want []string
			for d := range 7 {
				want = append(want, start.AddDate(0, 0, d+1).Format("02")+"T03:30")
			}
			same(t, zone+" from "+start.Format(time.DateOnly), w.times(), strings.Join(want, " "))
		}
	}
}

// Restarts every six hours for three days, each with half an hour's gap: one
// backup a day, none lost, whether the gaps are over its time or not.
func TestRestartsEverySixHours(t *testing.T) {
	t.Parallel()
	r, w := daily(t)
	r.restart(3*time.Hour + 5*time.Minute) // 15:05, so that the gaps are at 02:35, 08:35 and so on
	for range 12 {
		r.see()
		r.sit(5*time.Hour+30*time.Minute, 5*time.Minute)
		r.restart(30 * time.Minute)
	}
	same(t, "runs", w.times(), "28T03:20 29T03:20 30T03:20")
	r.restart(25 * time.Minute) // 15:30: a gap is from 03:00 to 03:30
	for range 12 {
		r.see()
		r.sit(5*time.Hour+30*time.Minute, 5*time.Minute)
		r.restart(30 * time.Minute)
	}
	same(t, "runs with gaps over the time", w.times(), "31T03:30 01T03:30 02T03:30")
}

// A day that was missed is caught up at the start, once, and the next run is at
// its usual time.
func TestAMissedRunIsCaughtUpAtStart(t *testing.T) {
	t.Parallel()
	r, w := daily(t)
	r.see()
	same(t, "a new store has no day to catch up", w.times(), "")
	r.restart(20 * time.Hour) // 08:00
	same(t, "next, as one sees it", r.stateOf("backup").Next, time.Date(2026, 3, 28, 3, 17, 0, 0, time.UTC))
	r.see()
	same(t, "caught up", w.times(), "28T08:00")
	r.sit(2*time.Hour, 5*time.Minute)
	r.restart(0)
	r.see()
	same(t, "once", w.times(), "")
	r.restart(5 * day)
	r.see()
	r.sit(day, 10*time.Minute)
	same(t, "five days missed are one run", w.times(), "02T10:00 03T03:20")
}

// A manual run is the day's run.
func TestAManualRunCounts(t *testing.T) {
	t.Parallel()
	r, w := daily(t)
	r.sit(15*time.Hour+20*time.Minute, 10*time.Minute) // 03:20
	same(t, "scheduled", w.times(), "28T03:20")
	r.restart(23 * time.Hour) // 02:20
	r.started(Request{Job: "backup", By: "op"})
	r.sit(20*time.Hour, 10*time.Minute)
	same(t, "before its time, it does not count for it", w.times(), "29T02:20 29T03:20")
	r.restart(5 * time.Hour) // 03:20 passed while it was away
	r.started(Request{Job: "backup", By: "op"})
	r.sit(20*time.Hour, 10*time.Minute)
	same(t, "after its time, it does", w.times(), "30T03:20")
}

func TestClockJumps(t *testing.T) {
	t.Parallel()
	prepare := func(t *testing.T) (*rig, *worker, *[]time.Duration) {
		w, seen := &worker{}, &[]time.Duration{}
		w.r = newRigWith(t, Options{
			Jobs:   []Job{{Name: "backup", Cron: "17 3 * * *", Do: w.do}},
			Jumped: func(_ context.Context, by time.Duration) { *seen = append(*seen, by) },
		})
		w.r.see()
		w.r.sit(16*time.Hour, time.Minute) // 28T04:00
		same(t, "the day's run", w.times(), "28T03:17")
		return w.r, w, seen
	}
	t.Run("+40 days and back", func(t *testing.T) {
		t.Parallel()
		r, w, seen := prepare(t)
		r.jump(40 * day)
		r.see()
		r.sit(time.Hour, time.Minute)
		same(t, "forward: one run, at once", w.times(), "07T04:00")
		r.jump(-40 * day)
		r.see()
		same(t, "next is the coming morning", r.stateOf("backup").Next, time.Date(2026, 3, 29, 3, 17, 0, 0, time.UTC))
		r.sit(3*day, time.Minute)
		same(t, "back: one a day", w.times(), "29T03:17 30T03:17 31T03:17")
		same(t, "jumps seen", len(*seen), 2)
		same(t, "the first", (*seen)[0], 40*day)
		same(t, "the second", (*seen)[1], -40*day)
	})
	t.Run("+40 days, and back while nothing runs", func(t *testing.T) {
		t.Parallel()
		r, w, _ := prepare(t)
		r.jump(40 * day)
		r.see()
		w.times()
		r.restart(-40 * day)
		r.see()
		r.sit(2*day, time.Minute)
		same(t, "one a day", w.times(), "29T03:17 30T03:17")
	})
	t.Run("-2 h after the day's run", func(t *testing.T) {
		t.Parallel()
		r, w, seen := prepare(t)
		r.jump(-2 * time.Hour) // 28T02:00
		r.see()
		r.sit(day+12*time.Hour, time.Minute) // 29T14:00
		same(t, "not twice that day, and not one lost", w.times(), "29T03:17")
		same(t, "jumps seen", len(*seen), 1)
	})
	t.Run("-2 h before it", func(t *testing.T) {
		t.Parallel()
		r, w, _ := prepare(t)
		r.sit(23*time.Hour, time.Minute) // 29T03:00
		r.jump(-2 * time.Hour)
		r.see()
		r.sit(day, time.Minute)
		same(t, "runs", w.times(), "29T03:17")
	})
	t.Run("+2 h over its time", func(t *testing.T) {
		t.Parallel()
		r, w, _ := prepare(t)
		r.sit(22*time.Hour, time.Minute) // 29T02:00
		r.jump(2 * time.Hour)
		r.see()
		r.jump(-2 * time.Hour)
		r.see()
		r.sit(day, time.Minute)
		same(t, "once", w.times(), "29T04:00")
	})
	t.Run("ten minutes are no jump", func(t *testing.T) {
		t.Parallel()
		r, _, seen := prepare(t)
		for _, by := range []time.Duration{JumpOver, -JumpOver} {
			r.jump(by)
			r.see()
		}
		same(t, "jumps seen", len(*seen), 0)
		r.jump(JumpOver + time.Millisecond)
		_, err := r.Start(context.Background(), Request{Job: "backup", By: "op"}) // a request looks as well
		ok(t, "start", err)
		r.runs.Wait()
		same(t, "jumps seen", len(*seen), 1)
	})
	t.Run("all that is known lies in the future", func(t *testing.T) {
		t.Parallel()
		r, w, _ := prepare(t)
		r.restart(-100 * day)
		r.see()
		same(t, "runs", w.times(), "18T04:00")
		r.sit(day, time.Minute)
		same(t, "and goes on", w.times(), "19T03:17")
	})
}

// A run that failed is tried again, later and later, across restarts too.
func TestAFailingJobBacksOff(t *testing.T) {
	t.Parallel()
	r, w := daily(t)
	w.fail = context.DeadlineExceeded
	r.sit(15*time.Hour+17*time.Minute, time.Minute)
	same(t, "at its time", w.times(), "28T03:17")
	same(t, "next", r.stateOf("backup").Next, time.Date(2026, 3, 28, 3, 22, 0, 0, time.UTC))
	r.sit(4*time.Hour, time.Minute)
	same(t, "again", w.times(), "28T03:22 28T03:37 28T04:37 28T05:37 28T06:37")
	r.restart(5 * time.Minute) // 07:22
	r.see()
	r.sit(20*time.Minute, time.Minute)
	same(t, "after a restart", w.times(), "28T07:37")
	r.restart(-40 * day) // a failure in the future waits as if it were one of now
	r.see()
	same(t, "after a jump", w.times(), "")
	r.sit(70*time.Minute, time.Minute)
	same(t, "an hour later", w.times(), "16T08:42")
	r.jump(40*day - time.Hour)
	r.see()
	w.fail = nil
	r.sit(2*day, time.Minute)
	same(t, "well again", w.times(), "28T08:42 29T03:17 30T03:17")
}
