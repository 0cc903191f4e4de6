package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// A clock that is far ahead makes a sweep expire nearly everything at once, and
// nothing brings it back. So a jump of the clock is remembered, and the first
// sweep after it that would expire more than half of all items, and more than
// holdOver, waits for holdFor or for a person. One that would expire less shows
// that the clock is plausible, and ends the suspicion.
const (
	holdFor    = time.Hour
	holdOver   = 100
	clockStale = 7 * 24 * time.Hour // a start on an older heartbeat is a jump
	clockAhead = 10 * time.Minute   // and so is one on a heartbeat this far ahead

	clockName = "clock" // of the state in the store
)

// Kinds of lines in the relay log.
const (
	opClockJump    = "clock-jump"
	opClockSettled = "clock-settled"
	opSweepHeld    = "sweep-held"
	opConfirmed    = "sweep-confirmed"
)

// HeldSweepError is a sweep that did nothing, since it would expire too much at
// once after a jump of the clock.
type HeldSweepError struct {
	Until  time.Time // when it runs by itself
	Expire int64     // how many items would go
	Of     int64     // how many there are
	Why    string    // what was seen of the clock
}

func (e *HeldSweepError) Error() string {
	return fmt.Sprintf("%d of %d items would expire after a clock jump: the sweep is held until %s; check the clock, then run: agentmbx relay admin jobs run sweep --confirm",
		e.Expire, e.Of, e.Until.UTC().Format(time.RFC3339))
}

// ClockStatus is the suspicion that the clock is wrong.
type ClockStatus struct {
	Why       string    `json:"why"`
	Since     time.Time `json:"since"`
	HeldUntil time.Time `json:"sweep_held_until,omitzero"` // zero: no sweep is held
	Expire    int64     `json:"would_expire,omitempty"`    // as the held sweep counted them
	Of        int64     `json:"of_items,omitempty"`
}

// suspicion is what the store remembers of a jump.
type suspicion struct {
	Why       string    `json:"why"`
	Since     time.Time `json:"since"`
	HeldSince time.Time `json:"held_since,omitzero"`
	Expire    int64     `json:"would_expire,omitempty"`
	Of        int64     `json:"of_items,omitempty"`
}

func (s *suspicion) held() *HeldSweepError {
	return &HeldSweepError{Until: s.HeldSince.Add(holdFor), Expire: s.Expire, Of: s.Of, Why: s.Why}
}

func (s *suspicion) status() *ClockStatus {
	c := &ClockStatus{Why: s.Why, Since: s.Since, Expire: s.Expire, Of: s.Of}
	if !s.HeldSince.IsZero() {
		c.HeldUntil = s.HeldSince.Add(holdFor)
	}
	return c
}

// clockWatch serialises what is decided about the clock, and keeps what the
// store could not take.
type clockWatch struct {
	deciding sync.Mutex
	mu       sync.Mutex
	unsaved  *suspicion
}

func (w *clockWatch) keep(s *suspicion) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsaved = s
}

func (w *clockWatch) kept() *suspicion {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unsaved == nil {
		return nil
	}
	s := *w.unsaved
	return &s
}

// suspicion answers what is remembered of a jump, nil for nothing.
func (r *Relay) suspicion(v store.Reader) (*suspicion, error) {
	if s := r.watch.kept(); s != nil {
		return s, nil
	}
	value, err := v.State(clockName)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s suspicion
	if err := json.Unmarshal(value, &s); err != nil {
		return &suspicion{Why: "a jump whose record can't be read", Since: r.now()}, nil
	}
	return &s, nil
}

// SuspectClock remembers that the clock jumped. A hold that stands begins anew:
// its hour was measured by that clock. What the store does not take holds for
// this process, and is logged.
func (r *Relay) SuspectClock(ctx context.Context, why string) error {
	r.watch.deciding.Lock()
	defer r.watch.deciding.Unlock()
	r.log.Warn("the clock is suspected: a sweep that would expire most of the mail will be held", "why", why)
	now := r.now()
	if err := r.remember(ctx, &suspicion{Why: why, Since: now}, now, opClockJump, why); err != nil {
		return fmt.Errorf("record a jump of the clock: %w", err)
	}
	return nil
}

// remember stores a suspicion and writes a line of the log; op "" writes none.
func (r *Relay) remember(ctx context.Context, s *suspicion, now time.Time, op, reason string) error {
	err := r.update(ctx, func(c *change) error {
		value, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if err := c.SetState(clockName, value); err != nil || op == "" {
			return err
		}
		return c.logClock(now, op, s, reason)
	})
	if err == nil {
		r.watch.keep(nil)
		return nil
	}
	r.watch.keep(s)
	r.log.Error("the suspicion of the clock could not be stored; it holds until this process ends", "err", err)
	return err
}

// settle ends a suspicion. A store that does not take that must not keep the
// sweep from making room in it.
func (r *Relay) settle(ctx context.Context, s *suspicion, now time.Time, op, reason string) {
	r.watch.keep(nil)
	err := r.update(ctx, func(c *change) error {
		if err := c.SetState(clockName, nil); err != nil {
			return err
		}
		return c.logClock(now, op, s, reason)
	})
	if err != nil {
		r.log.Error("the end of the suspicion of the clock could not be stored", "err", err)
	}
	r.log.Warn("the clock is no longer suspected", "why", s.Why, "reason", reason)
}

func (c *change) logClock(now time.Time, op string, s *suspicion, reason string) error {
	line := struct {
		*suspicion
		Reason string `json:"reason,omitempty"`
	}{s, reason}
	receipt, err := json.Marshal(line)
	if err != nil {
		return err
	}
	return c.AppendLog(now, op, receipt)
}

// mayExpire answers a *HeldSweepError while a sweep must not run, and whether the
// clock is sure. A sweep that expires little says nothing of the clock where there
// is little to expire: the suspicion lasts for holdFor then.
func (r *Relay) mayExpire(ctx context.Context, now time.Time) (sure bool, err error) {
	if r.detached() {
		return true, nil
	}
	r.watch.deciding.Lock()
	defer r.watch.deciding.Unlock()
	var s *suspicion
	var expire, of int64
	err = r.store.View(ctx, func(v store.Reader) (err error) {
		if s, err = r.suspicion(v); s == nil || err != nil {
			return err
		}
		expire, of, err = wouldExpire(v, now)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("sweep: %w", storeError(err))
	}
	if s == nil {
		return true, nil
	}
	if expire <= holdOver || 2*expire <= of {
		if of <= holdOver && now.Sub(s.Since).Abs() < holdFor {
			return false, nil
		}
		r.settle(ctx, s, now, opClockSettled, fmt.Sprintf("%d of %d items are over", expire, of))
		return true, nil
	}
	before := *s
	s.Expire, s.Of = expire, of
	op := ""
	if s.HeldSince.IsZero() || s.HeldSince.After(now) { // a time to come is none that was
		s.HeldSince, op = now, opSweepHeld
	}
	held := s.held()
	if !now.Before(held.Until) {
		r.settle(ctx, s, now, opClockSettled, fmt.Sprintf("the sweep was held for %s and nobody stopped it", holdFor))
		return true, nil
	}
	if *s != before || r.watch.kept() != nil {
		_ = r.remember(ctx, s, now, op, "") // logged there; the sweep is held all the same
	}
	r.log.Error("the sweep is held", "would_expire", expire, "of", of, "until", held.Until.Format(time.RFC3339), "why", s.Why,
		"check", "the clock, then run: agentmbx relay admin jobs run sweep --confirm")
	return false, held
}

func wouldExpire(v store.Reader, now time.Time) (expire, of int64, err error) {
	in, err := v.Info()
	if err != nil {
		return 0, 0, err
	}
	if expire, err = v.CountExpired(in.ExpiryFrom, now); err != nil {
		return 0, 0, err
	}
	t, err := v.Totals()
	return expire, t.Items, err
}

// SweepConfirmed is a sweep that a person wants, however much it expires. It
// ends the suspicion of the clock.
func (r *Relay) SweepConfirmed(ctx context.Context) (SweepReceipt, error) {
	now := r.now()
	if err := r.confirm(ctx, now); err != nil {
		return SweepReceipt{At: wire.FormatTime(now)}, fmt.Errorf("sweep: %w", storeError(err))
	}
	return r.sweep(ctx, now, true)
}

func (r *Relay) confirm(ctx context.Context, now time.Time) error {
	if r.detached() {
		return ErrDetached
	}
	r.watch.deciding.Lock()
	defer r.watch.deciding.Unlock()
	var s *suspicion
	err := r.store.View(ctx, func(v store.Reader) (err error) { s, err = r.suspicion(v); return err })
	if err == nil && s != nil {
		r.settle(ctx, s, now, opConfirmed, "a person confirmed the sweep")
	}
	return err
}
