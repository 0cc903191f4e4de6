package tui

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// size is a number of bytes for people.
func size(n int64) string {
	if n > -1024 && n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/1024, 0
	for f >= 999.95 || f <= -999.95 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTPE"[unit])
}

// count is a number with its thousands apart.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	from := 0
	if n < 0 {
		from = 1
	}
	for i := len(s) - 3; i > from; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counted is a number of things: "1 item", "2 items", "2 pushes".
func counted(n int64, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "h"):
		one += "e"
	}
	return count(n) + " " + one + "s"
}

// span is a duration for people, of two units at most.
func span(d time.Duration) string {
	if d < 0 {
		return "-" + span(-d)
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// ago is how long before now something was, or how long after: "never" for a zero
// time, "-" before the first tick.
func ago(now, at time.Time) string {
	switch {
	case at.IsZero():
		return "never"
	case now.IsZero():
		return "-"
	case at.After(now.Add(time.Second)):
		return "in " + span(at.Sub(now))
	}
	return span(max(0, now.Sub(at))) + " ago"
}

// age is how old something is, "-" for what is not.
func age(now, at time.Time) string {
	if at.IsZero() || now.IsZero() {
		return "-"
	}
	return span(max(0, now.Sub(at)))
}

// stamp is a time in UTC to the second, "-" for none.
func stamp(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format("2006-01-02 15:04:05Z")
}
