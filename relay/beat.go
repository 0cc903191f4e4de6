package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// The heartbeat tells a restored copy of a store from a store that was only
// restarted: it is written every BeatEvery, and a store whose last one is older
// than beatStale, or ahead of the clock, gets a new epoch at start.
const (
	BeatEvery = 30 * time.Second
	beatStale = 10 * time.Minute
	beatAhead = time.Minute // clocks that agree to the minute are not "from the future"
)

// firstBeat rotates the epoch if the last heartbeat asks for it, and writes a
// new one. A heartbeat far away says as well that the clock may be wrong, now or
// then: that is stored first, since a crash after the new heartbeat would hide it.
func (r *Relay) firstBeat(ctx context.Context, last time.Time) error {
	why := ""
	switch age := r.now().Sub(last); {
	case last.IsZero():
		why = "the store has no heartbeat"
	case age > beatStale:
		why = fmt.Sprintf("the last heartbeat is %s old", age.Round(time.Second))
	case age < -beatAhead:
		why = fmt.Sprintf("the last heartbeat is %s ahead of the clock", (-age).Round(time.Second))
	}
	if why == "" {
		return r.Beat(ctx)
	}
	if age := r.now().Sub(last); !last.IsZero() && (age > clockStale || age < -clockAhead) {
		_ = r.SuspectClock(ctx, why) // it is logged, and what follows says whether the store takes anything
	}
	_, err := r.RotateEpoch(ctx, "start", why)
	return err
}

// Beat writes a heartbeat, and with it what waits to be stored: when hosts were
// last seen, and the sample of refused pushes. ErrDetached.
func (r *Relay) Beat(ctx context.Context) error {
	if r.detached() {
		return fmt.Errorf("heartbeat: %w", ErrDetached)
	}
	r.refusals.storing.Lock()
	defer r.refusals.storing.Unlock()
	now := r.now()
	refused, version, changed := r.refusals.now()
	hosts := r.seen.batch()
	var room bool
	err := r.update(ctx, func(c *change) error {
		if err := c.SetHeartbeat(now); err != nil {
			return err
		}
		if room = c.Room(); !room { // what room there is belongs to the heartbeat and to acks
			return nil
		}
		if changed {
			if err := c.storeRefusals(refused); err != nil {
				return err
			}
		}
		return c.saw(hosts)
	})
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	if room {
		r.refusals.isStored(version)
		r.seen.stored(hosts)
	}
	r.heartbeat.Store(now.UnixMilli())
	return nil
}

// Fresh reports whether the last heartbeat is recent: the store takes writes.
func (r *Relay) Fresh() bool {
	return r.now().Sub(time.UnixMilli(r.heartbeat.Load())) < 3*BeatEvery
}

// RotateEpoch gives the store a new epoch: senders push again what is
// unconfirmed, receivers pull from the start (seed 000 §5). It is what must
// follow any restore that this program did not make itself.
func (r *Relay) RotateEpoch(ctx context.Context, actor, reason string) (epoch string, err error) {
	epoch = uuid.NewString()
	now := r.now()
	err = r.update(ctx, func(c *change) error {
		in, err := c.Info()
		if err != nil {
			return err
		}
		if err := c.SetEpoch(epoch); err != nil {
			return err
		}
		if err := c.SetHeartbeat(now); err != nil {
			return err
		}
		receipt, err := json.Marshal(map[string]string{"from": in.Epoch, "to": epoch, "actor": actor, "reason": reason})
		if err != nil {
			return err
		}
		if err := c.AppendLog(now, "rotate-epoch", receipt); err != nil {
			return err
		}
		return c.did(Effect{Kind: EpochRotated, At: now, Epoch: epoch})
	})
	if err != nil {
		return "", fmt.Errorf("rotate the epoch: %w", err)
	}
	r.heartbeat.Store(now.UnixMilli())
	r.log.Warn("epoch rotated", "epoch", epoch, "actor", actor, "reason", reason)
	return epoch, nil
}
