package relay

import (
	"errors"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// When a host was last there is noted in memory with each hop that verifies, and
// stored with the heartbeat: of each host at most once in seenEvery, of seenBatch
// hosts at a time.
const (
	seenEvery = time.Hour
	seenBatch = 1000
)

type seen struct {
	most int // hosts remembered
	mu   sync.Mutex
	at   map[wire.PublicKey]sighting
	due  []wire.PublicKey // to be stored, the first noted first
}

// sighting has times in Unix milliseconds.
type sighting struct {
	at, stored int64
	due        bool
}

func newSeen(most int) *seen { return &seen{most: most, at: map[wire.PublicKey]sighting{}} }

func (s *seen) note(key wire.PublicKey, now time.Time) {
	ms := now.UnixMilli()
	s.mu.Lock()
	defer s.mu.Unlock()
	m, known := s.at[key]
	if known && ms <= m.at {
		return
	}
	if !known && len(s.at) >= s.most {
		s.forgetOne()
	}
	m.at = ms
	if !m.due && ms-m.stored >= seenEvery.Milliseconds() {
		m.due = true
		s.due = append(s.due, key)
	}
	s.at[key] = m
}

// forgetOne makes room: keys come and go with rotations, and the store has those
// that stay.
func (s *seen) forgetOne() {
	for key := range s.at {
		delete(s.at, key)
		return
	}
}

func (s *seen) last(key wire.PublicKey) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.at[key]; ok {
		return time.UnixMilli(m.at).UTC()
	}
	return time.Time{}
}

// sightingOf is a host to be stored.
type sightingOf struct {
	key        wire.PublicKey
	at, stored time.Time // stored: what the store has then
}

// batch lists the hosts that are to be stored next.
func (s *seen) batch() []sightingOf {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]sightingOf, 0, min(len(s.due), seenBatch))
	for _, key := range s.due[:cap(list)] {
		list = append(list, sightingOf{key: key, at: time.UnixMilli(s.at[key].at).UTC()})
	}
	return list
}

// stored notes that a batch is in the store.
func (s *seen) stored(list []sightingOf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = s.due[len(list):]
	for _, l := range list {
		if m, ok := s.at[l.key]; ok {
			m.stored, m.due = l.stored.UnixMilli(), false
			s.at[l.key] = m
		}
	}
}

// saw stores a batch. What the store has of the last hour is left alone: it may
// be from before a restart.
func (c *change) saw(list []sightingOf) error {
	for i := range list {
		l := &list[i]
		if l.at.UnixMilli() == 0 { // it was forgotten again
			continue
		}
		var err error
		if l.stored, err = c.Seen(l.key); err != nil {
			return err
		}
		if l.at.Sub(l.stored) < seenEvery {
			continue
		}
		l.stored = l.at
		if err := c.SetSeen(l.key, l.at); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// LastSeen is when a host was last there, as far as this process and the store
// know: to the hour after a restart, zero when never.
func (r *Relay) LastSeen(v store.Reader, key wire.PublicKey) (time.Time, error) {
	stored, err := v.Seen(key)
	if err != nil {
		return stored, err
	}
	if at := r.seen.last(key); at.After(stored) {
		return at, nil
	}
	return stored, nil
}
