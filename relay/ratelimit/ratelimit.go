// Package ratelimit counts calls a minute by key, for a bounded number of keys.
package ratelimit

import (
	"sync"
	"time"
)

// Limiter counts in windows that begin with a key's first call. It holds at
// most as many keys as it was made for: when they are all taken, the oldest
// window makes room, so that a flood of keys neither costs memory nor locks
// anybody out. Safe for concurrent use.
type Limiter struct {
	most, keys int
	mu         sync.Mutex
	windows    map[string]*window
	order      []*window // by age; at head those that end first
}

type window struct {
	key   string
	began time.Time
	calls int
}

const length = time.Minute // of a window

// New makes a limiter that allows each of at most keys keys so many calls a minute.
func New(most, keys int) *Limiter {
	return &Limiter{most: most, keys: keys, windows: map[string]*window{}}
}

// Allow counts a call and reports whether it is within the rate.
func (l *Limiter) Allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.order) > 0 && l.order[0].over(now) {
		l.dropOldest()
	}
	w, ok := l.windows[key]
	if !ok {
		if len(l.order) >= l.keys {
			l.dropOldest()
		}
		w = &window{key: key, began: now}
		l.windows[key] = w
		l.order = append(l.order, w)
	}
	w.calls++
	return w.calls <= l.most
}

// Spent reports, without counting, whether a call now would be beyond the rate:
// for who counts only calls that went wrong.
func (l *Limiter) Spent(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.windows[key]
	return ok && !w.over(now) && w.calls >= l.most
}

func (l *Limiter) dropOldest() {
	delete(l.windows, l.order[0].key)
	l.order[0] = nil
	l.order = l.order[1:]
}

// over reports whether the window has ended. A clock that was set back ends it
// too: better a window too short than a caller shut out for a day.
func (w *window) over(now time.Time) bool {
	age := now.Sub(w.began)
	return age >= length || age < 0
}
