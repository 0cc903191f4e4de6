package relay_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestC1_Restart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	ad, sig := wire.MakeEncAd(beta.Key, "beta", beta.Enc.Public(), t0, t0.Add(day))
	ok(t, "publish", r.relay.PutEncAd(t.Context(), r.caller(beta), ad, sig))
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	epoch := r.epoch()
	r.clock.Add(time.Minute)
	r.restart()

	same(t, "epoch", r.epoch(), epoch)
	r.caller(alpha)
	found, err := r.relay.EncKey(t.Context(), r.caller(alpha), "", "beta")
	if err != nil || found.Ad == nil || string(found.Ad.Record) != string(ad) {
		t.Errorf("ad: got %+v, %v; want the published one", found, err)
	}
	same(t, "queue", r.queued(beta), "1:"+it.ID)
	same(t, "next seq", r.pushed(alpha, mail(alpha, beta), "accepted").Targets[0].Seq, 2)

	other := must(wire.GenerateKey())
	if _, err := relay.New(t.Context(), relay.Options{Store: r.store, Key: other, Limits: relay.DefaultLimits()}); err == nil {
		t.Error("a relay of another key: got no error; want it refused")
	}
	ok(t, "close", r.store.Close())
	if _, err := sqlite.Open(t.Context(), sqlite.Options{Dir: r.dir, Key: other.Public()}); err == nil {
		t.Error("open with another key: got no error; want it refused")
	}
	r.open()
	same(t, "epoch after all that", r.epoch(), epoch)
}

// A store whose last sign of life is old, or from the future, may be an older
// copy: it gets a new epoch at start.
func TestHeartbeatAtStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, tt := range []struct {
		name    string
		away    time.Duration
		rotates bool
	}{
		{"at once", 0, false},
		{"10 min", 10 * time.Minute, false},
		{"over 10 min", 10*time.Minute + time.Millisecond, true},
		{"a week", 7 * day, true},
		{"clocks that agree to a second", -time.Second, false},
		{"from the future", -time.Hour, true},
	} {
		r.clock.Add(time.Minute)
		ok(t, "beat", r.relay.Beat(t.Context()))
		epoch, beaten, before := r.epoch(), r.clock.Now(), len(r.log("rotate-epoch"))
		r.close()
		r.clock.Add(tt.away)
		r.open()
		same(t, tt.name+": rotated", r.epoch() != epoch, tt.rotates)
		log := r.log("rotate-epoch")
		same(t, tt.name+": line in the log", len(log) > before, tt.rotates)
		if tt.rotates {
			var line struct{ From, To, Actor, Reason string }
			ok(t, "decode", json.Unmarshal(log[before].Receipt, &line))
			if line.From != epoch || line.To != r.epoch() || line.Actor != "start" || line.Reason == "" {
				t.Errorf("%s: got %+v in the log; want the two epochs and why", tt.name, line)
			}
		}
		r.view(func(v store.Reader) error {
			in, err := v.Info()
			same(t, tt.name+": heartbeat", in.Heartbeat, beaten.Add(tt.away))
			return err
		})
		same(t, tt.name+": fresh", r.relay.Fresh(), true)
	}
}

func TestRotateEpoch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	was := r.epoch()
	r.clock.Add(time.Hour)
	now, err := r.relay.RotateEpoch(t.Context(), "operator", "a volume was restored")
	ok(t, "rotate", err)
	if now == was || now != r.epoch() {
		t.Errorf("epoch: got %s after %s, stored %s; want a new one, stored", now, was, r.epoch())
	}
	_, err = r.relay.Pull(t.Context(), r.caller(beta), relay.PullQuery{Epoch: was})
	same(t, "position", *refused(t, "pull in the old epoch", err, relay.Conflict, "EPOCH").At, relay.Position{Epoch: now, Head: 1})
	_, err = r.relay.Ack(t.Context(), r.caller(beta), was, 1)
	refused(t, "ack in the old epoch", err, relay.Conflict, "EPOCH")
	// What was accepted is still there and still known: re-pushes and re-pulls are harmless.
	a := r.accept(alpha, it, r.pushed(alpha, it, "duplicate"))
	same(t, "epoch and at of the duplicate", a.Epoch+a.At, now+wire.FormatTime(t0))
	same(t, "pulled from the start", seqs(r.pull(beta, relay.PullQuery{Epoch: now}).Items), "1:"+it.ID)
	log := r.log("rotate-epoch")
	same(t, "log", len(log), 1)
	same(t, "its time", log[0].At, t0.Add(time.Hour))
	in, err := r.relay.Info(t.Context(), nil)
	ok(t, "info", err)
	same(t, "info", in.Epoch, now)
}

func TestBeatKeepsTheRelayFresh(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	same(t, "at start", r.relay.Fresh(), true)
	r.clock.Add(3 * relay.BeatEvery)
	same(t, "without a heartbeat", r.relay.Fresh(), false)
	s, err := r.relay.Status(t.Context())
	ok(t, "status", err)
	same(t, "problems", len(s.Problems), 1)
	ok(t, "beat", r.relay.Beat(t.Context()))
	same(t, "after one", r.relay.Fresh(), true)
	s, err = r.relay.Status(t.Context())
	ok(t, "status", err)
	same(t, "problems after one", len(s.Problems), 0)
	same(t, "heartbeat", s.Heartbeat, r.clock.Now())
	same(t, "started", s.StartedAt, t0)
}
