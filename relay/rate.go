package relay

import (
	"sync"
	"time"
)

// rate counts calls a minute by key, in windows that begin with a key's first
// call. It holds at most as many keys as it was made for: when they are all
// taken, the oldest window makes room, so that a flood of keys costs memory
// nor locks anybody out.
type rate struct {
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

const rateWindow = time.Minute

func newRate(most, keys int) *rate {
	return &rate{most: most, keys: keys, windows: map[string]*window{}}
}

// allow counts a call and reports whether it is within the rate.
func (r *rate) allow(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 && r.order[0].over(now) {
		r.dropOldest()
	}
	w, ok := r.windows[key]
	if !ok {
		if len(r.order) >= r.keys {
			r.dropOldest()
		}
		w = &window{key: key, began: now}
		r.windows[key] = w
		r.order = append(r.order, w)
	}
	w.calls++
	return w.calls <= r.most
}

func (r *rate) dropOldest() {
	delete(r.windows, r.order[0].key)
	r.order[0] = nil
	r.order = r.order[1:]
}

// over reports whether the window has ended. A clock that was set back ends it
// too: better a window too short than a caller shut out for a day.
func (w *window) over(now time.Time) bool {
	age := now.Sub(w.began)
	return age >= rateWindow || age < 0
}
