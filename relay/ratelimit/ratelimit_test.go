package ratelimit

import (
	"testing"
	"time"
)

var day = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

func TestLimiter(t *testing.T) {
	l := New(2, 3)
	for i, want := range []bool{true, true, false} {
		if got := l.Allow("a", day); got != want {
			t.Errorf("call %d: got %v; want %v", i, got, want)
		}
	}
	for _, key := range []string{"b", "c", "d"} { // d takes the place of a
		if !l.Allow(key, day) {
			t.Errorf("%s was refused", key)
		}
	}
	if len(l.windows) != 3 || len(l.order) != 3 || !l.Allow("a", day) {
		t.Errorf("got %d windows; want 3, and a made anew", len(l.windows))
	}
	l.Allow("d", day)
	if l.Allow("d", day.Add(time.Minute-1)) || !l.Allow("d", day.Add(time.Minute)) {
		t.Error("want a window of one minute")
	}
	l = New(1, 3)
	if l.Allow("a", day); !l.Allow("a", day.Add(-time.Hour)) {
		t.Error("a clock set back shuts out")
	}
}

func TestSpent(t *testing.T) {
	l := New(2, 3)
	for i, want := range []bool{false, false, true, true} {
		if got := l.Spent("a", day); got != want {
			t.Errorf("after %d calls: got %v; want %v", i, got, want)
		}
		l.Allow("a", day)
	}
	if l.Spent("b", day) || l.Spent("a", day.Add(time.Minute)) {
		t.Error("got spent; want another key and another minute free")
	}
}
