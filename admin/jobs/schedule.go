package jobs

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Only its parser and its calendar: cron's own runner sleeps until the next time
// by the wall clock, and does not notice that the clock was set back.
var fiveFields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// CheckSchedule says what is wrong with a schedule.
func CheckSchedule(spec string) error {
	_, err := parseSchedule(spec)
	return err
}

// NextAfter is the first time of a schedule after another, zero for what is no
// schedule.
func NextAfter(spec string, at time.Time) time.Time {
	s, err := parseSchedule(spec)
	if err != nil {
		return time.Time{}
	}
	return s.Next(at)
}

func parseSchedule(spec string) (*cron.SpecSchedule, error) {
	bad := func(why error) error {
		text := strings.Trim(fmt.Sprintf("%.200q", why.Error()), `"`) // the parser repeats what it was given
		return fmt.Errorf("schedule %.80q: %s; want five fields (minute hour day-of-month month day-of-week, UTC), such as \"17 3 * * *\"", spec, text)
	}
	if strings.Contains(spec, "TZ=") { // and the parser panics on one that ends there
		return nil, bad(errors.New("it names a time zone, and schedules are in UTC"))
	}
	parsed, err := fiveFields.Parse(spec)
	if err != nil {
		return nil, bad(err)
	}
	s, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, bad(errors.New("it is none of the calendar"))
	}
	s.Location = time.UTC
	if s.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() { // 2000 and 2004 are leap years
		return nil, bad(errors.New("no such day ever comes"))
	}
	return s, nil
}

// dueAt is when a job is due by its schedule, zero for never. oks are the times
// of its successes, the newest run first, which need not be the latest time: the
// clock may have been set back. born is when the store was made.
func dueAt(s *cron.SpecSchedule, now time.Time, oks []time.Time, born time.Time) time.Time {
	if len(oks) > 0 && oks[0].After(now) {
		// A clock set back by less than a period: the run of this period took
		// place, and waiting for the next one is a wait that ends.
		next := s.Next(oks[0])
		if after := s.Next(s.Next(now)); !next.After(after) {
			return next
		}
	}
	for _, at := range oks {
		if !at.After(now) {
			return s.Next(at)
		}
	}
	if !born.After(now) && len(oks) == 0 {
		return s.Next(born)
	}
	return now // all that is known lies in the future: begin again here
}

// retryAfter is how long a job waits after its nth failure in a row.
func retryAfter(n int) time.Duration {
	switch {
	case n <= 0:
		return 0
	case n == 1:
		return 5 * time.Minute
	case n == 2:
		return 15 * time.Minute
	}
	return time.Hour
}
