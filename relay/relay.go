// Package relay is the relay's rules: who may enrol, what a push must be, what
// a pull serves, what expires. It knows no HTTP and no SQL.
//
// Every method that answers success answers it after the commit that carries
// its effect (seed 000 §2). Refusals are *Error values with a stable code.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/agentmbx/agentmbx/relay/ratelimit"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Options are what a relay is made of.
type Options struct {
	Store     store.Store
	Key       wire.PrivateKey
	Version   string
	Limits    Limits
	Authority EnrolmentAuthority // an Issuer makes it a hosted relay
	Observers []Observer
	Log       *slog.Logger
	Now       func() time.Time // nil means time.Now
	// ChallengeLife is how long an enrolment challenge stays open; zero means
	// five minutes.
	ChallengeLife time.Duration
}

// Relay applies the rules to one store. Safe for concurrent use.
type Relay struct {
	store     store.Store
	key       wire.PrivateKey
	pub       wire.PublicKey
	runs      bool // it is a running relay, and no Detached one
	version   string
	limits    Limits
	authority EnrolmentAuthority
	issuer    Issuer // the authority, on a hosted relay; else nil
	observers []Observer
	log       *slog.Logger
	clock     func() time.Time

	challenges *challenges
	pushes     *ratelimit.Limiter // by sender key
	enrols     *ratelimit.Limiter // by client address
	polls      *polls
	watch      clockWatch
	refusals   refusals
	seen       *seen
	activity   activity

	started   time.Time
	heartbeat atomic.Int64 // of the last one stored, Unix milliseconds
}

// New makes a relay on a store that is bound to its key. It rotates the epoch
// when the store's last sign of life is old or from the future: then this may
// be an older copy of the store (seed 000 §5).
func New(ctx context.Context, o Options) (*Relay, error) {
	r := Detached(o)
	r.runs = true
	var in store.Info
	err := o.Store.View(ctx, func(v store.Reader) (err error) {
		if r.refusals.sample, err = loadRefusals(v); err != nil {
			return err
		}
		in, err = v.Info()
		return err
	})
	if err != nil {
		return nil, err
	}
	if in.RelayKey != r.pub {
		return nil, fmt.Errorf("the store belongs to relay key %s, not %s", in.RelayKey.Fingerprint(), r.pub.Fingerprint())
	}
	return r, r.firstBeat(ctx, in.Heartbeat)
}

// ErrDetached: what was asked for is the work of a relay that runs.
var ErrDetached = errors.New("only a running relay does this: start it with: agentmbx relay serve")

// Detached is for commands that look after a store while no relay runs on it.
// Without a key in o it can do what needs no signature. It writes no
// heartbeat, which would make an old copy of a store look like one in use, and
// does not sweep: the start of a relay looks at the clock first.
func Detached(o Options) *Relay {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ChallengeLife == 0 {
		o.ChallengeLife = 5 * time.Minute
	}
	var pub wire.PublicKey
	if (o.Key != wire.PrivateKey{}) {
		pub = o.Key.Public()
	}
	issuer, _ := o.Authority.(Issuer)
	return &Relay{
		key: o.Key, pub: pub, store: o.Store, version: o.Version, limits: o.Limits,
		authority: o.Authority, issuer: issuer, observers: o.Observers, log: o.Log, clock: o.Now,
		challenges: newChallenges(int(o.Limits.OpenChallenges), o.ChallengeLife),
		pushes:     ratelimit.New(int(o.Limits.PushesPerMinute), int(o.Limits.RateKeys)),
		enrols:     ratelimit.New(int(o.Limits.EnrolPerMinute), int(o.Limits.RateKeys)),
		polls:      newPolls(int(o.Limits.PollsPerKey), int(o.Limits.Polls)),
		seen:       newSeen(int(o.Limits.Enrolments)),
		started:    o.Now(),
	}
}

func (r *Relay) detached() bool { return !r.runs }

// keyless reports whether the relay cannot sign.
func (r *Relay) keyless() bool { return r.pub == wire.PublicKey{} }

// now is the time as the store keeps it.
func (r *Relay) now() time.Time { return r.clock().UTC().Truncate(time.Millisecond) }

func (r *Relay) retention() time.Duration {
	return time.Duration(r.limits.RetentionDays) * 24 * time.Hour
}

// Limits are the limits in force.
func (r *Relay) Limits() Limits { return r.limits }

// Key is the relay's public key.
func (r *Relay) Key() wire.PublicKey { return r.pub }
