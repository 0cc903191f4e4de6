package relay

import (
	"context"
	"errors"
	"time"
)

// Run writes heartbeats and sweeps until ctx ends. A failure of either is
// logged and tried again at its next time: it must not end the relay, which
// may still serve pulls.
func (r *Relay) Run(ctx context.Context) error {
	beat := time.NewTicker(BeatEvery)
	defer beat.Stop()
	sweep := time.NewTicker(SweepEvery)
	defer sweep.Stop()
	r.sweepAndLog(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			if err := r.Beat(ctx); err != nil && ctx.Err() == nil {
				r.log.Error("heartbeat not written", "err", err)
			}
		case <-sweep.C:
			r.sweepAndLog(ctx)
		}
	}
}

func (r *Relay) sweepAndLog(ctx context.Context) {
	s, err := r.Sweep(ctx)
	switch {
	case err != nil && !errors.Is(err, context.Canceled):
		r.log.Error("sweep failed", "err", err)
	case err == nil && s != (SweepReceipt{At: s.At}):
		r.log.Info("sweep", "expired_envelopes", s.Expired.Envelopes, "expired_receipts", s.Expired.Receipts,
			"notices", s.Notices, "not_enrolled", s.Skipped.NotEnrolled, "over_cap", s.Skipped.OverCap, "pruned", s.Pruned, "more", s.More)
	}
}
