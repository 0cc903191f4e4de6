package relay_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// mailbag queues items for a host: some that expire, some that never do.
func (r *rig) mailbag(from, to *wiretest.Host, expiring, lasting int) {
	r.t.Helper()
	for at := 0; at < expiring; at += 200 {
		var items []wire.PushItem
		for range min(200, expiring-at) {
			items = append(items, mail(from, to))
		}
		for _, res := range r.push(from, items...) {
			same(r.t, "pushed", res.Status, "accepted")
		}
	}
	var wires [][]byte
	for range lasting {
		wires = append(wires, wireOf(mail(from, to)))
	}
	if lasting > 0 {
		same(r.t, "v1 mail stored", r.pushV1(from, wires...).Stored, lasting)
	}
}

// held sweeps and expects to be held.
func (r *rig) held() *relay.HeldSweepError {
	r.t.Helper()
	before := r.totals()
	s, err := r.relay.Sweep(r.t.Context())
	var held *relay.HeldSweepError
	if !errors.As(err, &held) {
		r.t.Fatalf("sweep: got %+v, %v; want it held", s, err)
	}
	same(r.t, "items after a held sweep", r.totals(), before)
	same(r.t, "receipt of a held sweep", s, relay.SweepReceipt{At: s.At})
	return held
}

func (r *rig) suspect() {
	r.t.Helper()
	ok(r.t, "suspect the clock", r.relay.SuspectClock(r.t.Context(), "it moved by 960h"))
}

func (r *rig) status() relay.Status {
	r.t.Helper()
	s, err := r.relay.Status(r.t.Context())
	ok(r.t, "status", err)
	return s
}

func (r *rig) ops() string {
	r.t.Helper()
	var kinds []string
	for _, op := range r.log("") {
		if op.Op != "rotate-epoch" {
			kinds = append(kinds, op.Op)
		}
	}
	return strings.Join(kinds, " ")
}

// The first sweep after a jump waits when it would expire more than half of all
// items and more than 100, and only then.
func TestASweepAfterAClockJumpIsHeldWhenItIsBig(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name              string
		suspect           bool
		expiring, lasting int
		held              bool
	}{
		{"101 of 200", true, 101, 99, true},
		{"all of 101", true, 101, 0, true},
		{"exactly half", true, 110, 110, false},
		{"exactly 100", true, 100, 20, false},
		{"nothing at all", true, 0, 0, false},
		{"no jump", false, 150, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			alpha, beta := r.enrol("alpha"), r.enrol("beta")
			r.mailbag(alpha, beta, tt.expiring, tt.lasting)
			r.clock.Add(40 * day)
			ok(t, "beat", r.relay.Beat(t.Context()))
			if tt.suspect {
				r.suspect()
				same(t, "shown", r.status().Clock.Why, "it moved by 960h")
				same(t, "problems of a suspicion alone", len(r.status().Problems), 0)
			}
			if !tt.held {
				same(t, "expired", r.sweep().Expired.Envelopes, int64(tt.expiring))
				if tt.expiring+tt.lasting <= 100 && tt.suspect { // too little to judge a clock by
					same(t, "suspected after", r.status().Clock != nil, true)
					r.clock.Add(time.Hour)
					r.sweep()
				}
				same(t, "suspected after", r.status().Clock != nil, false)
				r.mailbag(alpha, beta, 150, 0)
				r.clock.Add(15 * day)
				r.sweep() // the suspicion is over, however big this one is
				same(t, "left", len(r.queue(beta)), tt.lasting)
				return
			}
			held := r.held()
			same(t, "count", fmt.Sprint(held.Expire, " of ", held.Of), fmt.Sprint(tt.expiring, " of ", tt.expiring+tt.lasting))
			same(t, "until", held.Until, r.clock.Now().Add(time.Hour))
			s := r.status()
			same(t, "problems", strings.Join(s.Problems, "|"), held.Error())
			contains(t, "problem", held.Error(), fmt.Sprintf("%d of %d items would expire after a clock jump", tt.expiring, tt.expiring+tt.lasting))
			contains(t, "problem", held.Error(), "relay admin jobs run sweep --confirm")
			same(t, "shown", *s.Clock, relay.ClockStatus{Why: "it moved by 960h", Since: r.clock.Now(), HeldUntil: held.Until, Expire: held.Expire, Of: held.Of})
			same(t, "log", r.ops(), "clock-jump sweep-held")
		})
	}
}

// bigHold is a rig with 150 items that a jump of 40 days has a sweep held over.
func bigHold(t *testing.T) (*rig, *wiretest.Host) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.mailbag(alpha, beta, 150, 20)
	r.clock.Add(40 * day)
	ok(t, "beat", r.relay.Beat(t.Context()))
	r.suspect()
	r.held()
	return r, beta
}

func TestAHeldSweepRunsAfterAnHour(t *testing.T) {
	t.Parallel()
	r, beta := bigHold(t)
	for range 5 {
		r.clock.Add(10 * time.Minute)
		r.held()
	}
	r.clock.Add(10*time.Minute - time.Millisecond)
	r.held()
	r.clock.Add(time.Millisecond)
	same(t, "expired", r.sweep().Expired.Envelopes, 150)
	same(t, "left", len(r.queue(beta)), 20)
	same(t, "suspected", r.status().Clock != nil, false)
	same(t, "log", r.ops(), "clock-jump sweep-held clock-settled sweep")
}

func TestAHeldSweepRunsWhenConfirmed(t *testing.T) {
	t.Parallel()
	r, beta := bigHold(t)
	s, err := r.relay.SweepConfirmed(t.Context())
	ok(t, "confirm", err)
	same(t, "expired", s.Expired.Envelopes, 150)
	same(t, "left", len(r.queue(beta)), 20)
	same(t, "problems", len(r.status().Problems), 0)
	same(t, "log", r.ops(), "clock-jump sweep-held sweep-confirmed sweep")
	_, err = r.relay.SweepConfirmed(t.Context()) // nothing to confirm: a sweep like any other
	ok(t, "confirm again", err)
	same(t, "log", r.ops(), "clock-jump sweep-held sweep-confirmed sweep")
}

// A clock that is set right again costs nothing: the mail is all there.
func TestAHeldSweepIsHarmlessAfterTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	r, beta := bigHold(t)
	r.clock.Add(-40 * day)
	r.suspect()
	same(t, "sweep", r.sweep().Expired, relay.ExpiredCounts{})
	same(t, "left", len(r.queue(beta)), 170)
	same(t, "suspected", r.status().Clock != nil, false)
	same(t, "log", r.ops(), "clock-jump sweep-held clock-jump clock-settled")
}

// The hour goes on through a restart, and through a sweep that would prune.
func TestAHoldSurvivesARestart(t *testing.T) {
	t.Parallel()
	r, beta := bigHold(t)
	first := r.held()
	r.clock.Add(5 * time.Minute)
	r.restart()
	same(t, "shown at once", r.status().Clock.HeldUntil, first.Until)
	same(t, "until", r.held().Until, first.Until)
	r.clock.Set(first.Until)
	same(t, "expired", r.sweep().Expired.Envelopes, 150)
	same(t, "left", len(r.queue(beta)), 20)
}

// A hold is counted in an hour of a clock that may jump again.
func TestAHoldBeginsAnewWhereItsTimeMakesNoSense(t *testing.T) {
	t.Parallel()
	r, _ := bigHold(t)
	r.clock.Add(-9 * time.Minute) // too little for a jump
	ok(t, "beat", r.relay.Beat(t.Context()))
	same(t, "held since a time to come", r.held().Until, r.clock.Now().Add(time.Hour))
	r.clock.Add(day)
	r.suspect()
	same(t, "after another jump", r.held().Until, r.clock.Now().Add(time.Hour))
	ok(t, "spoil the record", r.store.Update(t.Context(), func(tx store.Tx) error { return tx.SetState("clock", []byte(`["?"]`)) }))
	held := r.held()
	same(t, "a record that can't be read", held.Until, r.clock.Now().Add(time.Hour))
	contains(t, "why", held.Why, "can't be read")
}

// Dedup rows past their horizon wait with the mail: a clock far ahead must not
// make an item that was delivered look new.
func TestAHeldSweepKeepsDedupRows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	r.ack(beta, 1)
	r.mailbag(alpha, beta, 101, 0)
	r.clock.Add(40 * day)
	r.suspect()
	r.held()
	same(t, "known while held", r.dedup(alpha, it), true)
	_, err := r.relay.SweepConfirmed(t.Context())
	ok(t, "confirm", err)
	same(t, "known after", r.dedup(alpha, it), false)
}

// A start on a heartbeat far away is a jump too, and it is stored before a new
// heartbeat hides it.
func TestAStartOnAFarHeartbeatSuspectsTheClock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		away    time.Duration
		suspect bool
	}{
		{"an hour", time.Hour, false},
		{"7 days", 7 * day, false},
		{"over 7 days", 7*day + time.Millisecond, true},
		{"10 min ahead", -10 * time.Minute, false},
		{"over 10 min ahead", -10*time.Minute - time.Millisecond, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.clock.Add(tt.away)
			r.restart()
			same(t, "suspected", r.status().Clock != nil, tt.suspect)
			r.restart()
			same(t, "after another start", r.status().Clock != nil, tt.suspect)
			r.sweep()
			same(t, "after a sweep of an empty store", r.status().Clock != nil, tt.suspect)
			r.clock.Add(time.Hour)
			r.sweep()
			same(t, "after an hour", r.status().Clock != nil, false)
		})
	}
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.mailbag(alpha, beta, 150, 0)
	r.clock.Add(40 * day)
	r.restart()
	held := r.held()
	contains(t, "why", held.Why, "heartbeat is 960h")
	var line struct {
		Why       string
		Expire    int64     `json:"would_expire"`
		HeldSince time.Time `json:"held_since"`
	}
	ok(t, "decode", json.Unmarshal(r.log("sweep-held")[0].Receipt, &line))
	if line.Why != held.Why || line.Expire != 150 || !line.HeldSince.Equal(r.clock.Now()) {
		t.Errorf("line in the log: got %+v; want why, how many and since when", line)
	}
}

// What the store does not take holds in this process, and the hold is stored as
// soon as it does.
func TestASuspicionHoldsWhileTheStoreFails(t *testing.T) {
	t.Parallel()
	hook := &hookStore{}
	r := newRig(t, func(s *setup) { s.Wrap = hook.wrap })
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.mailbag(alpha, beta, 150, 0)
	r.clock.Add(40 * day)
	hook.failing.Store(true)
	if err := r.relay.SuspectClock(t.Context(), "it moved"); err == nil {
		t.Error("suspect on a failing store: got nil; want its error")
	}
	until := r.held().Until
	same(t, "shown", r.status().Clock.HeldUntil, until)
	r.clock.Add(10 * time.Minute)
	hook.failing.Store(false)
	same(t, "until", r.held().Until, until)
	ok(t, "beat", r.relay.Beat(t.Context()))
	r.restart()
	same(t, "until, after a restart", r.held().Until, until)
}

// Without the key there are no notices, and no heartbeat that hides an old copy.
func TestADetachedRelayNeitherSweepsNorBeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.pushed(alpha, mail(alpha, beta), "accepted")
	r.clock.Add(40 * day)
	d := relay.Detached(relay.Options{Store: r.store, Limits: relay.DefaultLimits(), Now: r.clock.Now})
	_, swept := d.Sweep(t.Context())
	_, confirmed := d.SweepConfirmed(t.Context())
	for i, err := range []error{swept, confirmed, d.Beat(t.Context())} {
		if !errors.Is(err, relay.ErrDetached) {
			t.Errorf("%d: got %v; want ErrDetached", i, err)
		}
	}
	same(t, "left", len(r.queue(beta)), 1)
}

// An empty queue says nothing of the clock: what the relay remembers of mail that
// was fetched is not forgotten by a clock that may be wrong, so that a late retry
// stays a duplicate.
func TestASuspectedClockForgetsNoDedupRow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	r.ack(beta, 1)
	r.clock.Add(40 * day)
	ok(t, "beat", r.relay.Beat(t.Context()))
	r.suspect()
	same(t, "pruned", r.sweep().Pruned, int64(0))
	same(t, "known", r.dedup(alpha, it), true)
	r.clock.Add(time.Hour)
	same(t, "pruned after an hour", r.sweep().Pruned, int64(1))
}
