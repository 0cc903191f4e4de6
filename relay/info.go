package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Info is what the relay tells anyone of itself, and a caller of itself.
type Info struct {
	Key     wire.PublicKey
	Epoch   string
	Version string
	Limits  Limits
	You     *You
}

// You is where a caller stands.
type You struct {
	Host         string
	Key          wire.PublicKey
	HeadSeq      int64
	AckedThrough int64
	Ad           *AdInfo // nil: nothing published
}

// AdInfo says what a host has published of its sealing keys.
type AdInfo struct {
	EncPub string // of the v2 record, or ""
	Exp    time.Time
	V1     string // of the v1 pair, or ""
}

// Info answers about the relay, and about who when it is not nil.
func (r *Relay) Info(ctx context.Context, who *Caller) (in Info, err error) {
	in = Info{Key: r.pub, Version: r.version, Limits: r.limits}
	err = r.store.View(ctx, func(v store.Reader) error {
		si, err := v.Info()
		if err != nil {
			return err
		}
		in.Epoch = si.Epoch
		if who == nil {
			return nil
		}
		you := &You{Host: who.Name, Key: who.Key}
		if you.HeadSeq, err = v.Head(who.Key); err != nil {
			return err
		}
		if you.AckedThrough, err = v.Acked(who.Key); err != nil {
			return err
		}
		if you.Ad, err = adInfo(v, who.Enrolment, r.now()); err != nil {
			return err
		}
		in.You = you
		return nil
	})
	return in, storeError(err)
}

func adInfo(v store.Reader, e store.Enrolment, now time.Time) (*AdInfo, error) {
	var a AdInfo
	v1, err := currentEncKey(v, e)
	if err != nil {
		return nil, err
	}
	a.V1 = v1.EncPub
	ad, err := v.EncAd(e.Key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if err == nil {
		if p, err := wire.ParseEncAd(ad.Record, ad.Sig, e.Name, e.Key, now); err == nil {
			a.EncPub, a.Exp = p.EncPub.String(), p.Exp
		}
	}
	if a.EncPub == "" && a.V1 == "" {
		return nil, nil
	}
	return &a, nil
}

// Status is what an operator sees of a running relay.
type Status struct {
	Version     string       `json:"version"`
	StartedAt   time.Time    `json:"started_at"`
	Epoch       string       `json:"epoch"`
	Fingerprint string       `json:"fingerprint"`
	Key         string       `json:"relay_pubkey"`
	Heartbeat   time.Time    `json:"heartbeat"`
	Totals      store.Totals `json:"totals"`
	Store       store.Size   `json:"store"`
	Schema      int          `json:"schema"`
	LongPolls   int          `json:"long_polls"`
	Clock       *ClockStatus `json:"clock,omitempty"` // the clock is suspected
	Problems    []string     `json:"problems"`        // empty when healthy
}

// Status answers from counters; it costs the same in any store.
func (r *Relay) Status(ctx context.Context) (s Status, err error) {
	s = Status{Version: r.version, StartedAt: r.started, Key: r.pub.String(), Fingerprint: r.pub.Fingerprint(), LongPolls: r.polls.count()}
	var doubt *suspicion
	err = r.store.View(ctx, func(v store.Reader) error {
		in, err := v.Info()
		if err != nil {
			return err
		}
		s.Epoch, s.Heartbeat, s.Schema = in.Epoch, in.Heartbeat, in.Schema
		if s.Totals, err = v.Totals(); err != nil {
			return err
		}
		doubt, err = r.suspicion(v)
		return err
	})
	if err != nil {
		return s, storeError(err)
	}
	if s.Store, err = r.store.Size(ctx); err != nil {
		return s, err
	}
	s.Problems = []string{}
	if !r.Fresh() {
		s.Problems = append(s.Problems, "the store has not taken a heartbeat for a while")
	}
	if s.Store.Low {
		s.Problems = append(s.Problems, "the disk is nearly full: new mail is refused")
	}
	if doubt != nil {
		s.Clock = doubt.status()
		if !doubt.HeldSince.IsZero() {
			s.Problems = append(s.Problems, doubt.held().Error())
		}
	}
	return s, nil
}

// ForAnyone is what is wrong in words for those who only ask whether the relay is
// well: no counts and no commands.
func (s Status) ForAnyone() []string {
	list := slices.Clone(s.Problems)
	if s.Clock != nil && !s.Clock.HeldUntil.IsZero() && len(list) > 0 {
		list[len(list)-1] = "a sweep is held after a jump of the clock"
	}
	return list
}
