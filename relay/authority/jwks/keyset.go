package jwks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
)

const (
	usableFor  = time.Hour   // after the last good fetch
	missEvery  = time.Minute // between fetches for unknown key ids
	clockError = time.Minute // a set from further ahead is of unknown age
	stateName  = "jwks"      // of the row in the store
)

// keySet is what the issuer's keys are, and how they are kept fresh. A token with
// a key that is known never waits; for all others there is at most one fetch at a
// time, and one a minute.
type keySet struct {
	issuer, url string
	web         *web
	store       store.Store
	now         func() time.Time
	log         *slog.Logger

	mu        sync.Mutex
	keys      map[string]publicKey // replaced whole, never changed
	fetchedAt time.Time
	missAt    time.Time // the last fetch for an unknown key id
	flight    *flight   // the fetch that is running
	trouble   trouble   // of the last answer
	troubleAt time.Time // since when there is any
}

// flight is one fetch, for all who wait for it. The rest is set before done is
// closed.
type flight struct {
	done   chan struct{}
	detail string
	err    error
}

// find is the key of a kid. When there is none, or the set is too old, it waits
// for the fetch that runs, or makes one if one is due.
func (s *keySet) find(ctx context.Context, kid string) (key publicKey, known, usable bool) {
	s.mu.Lock()
	key, known = s.keys[kid]
	now := s.now()
	if usable = s.usable(now); usable && known {
		s.mu.Unlock()
		return key, true, true
	}
	f, due := s.flight, s.missDue(now)
	mine := f == nil && due
	if mine {
		s.missAt = now
		f = s.takeOff()
	}
	s.mu.Unlock()
	switch {
	case mine:
		s.log.Info("fetching the key set for a token", "kid", quote(kid), "usable", usable)
		s.fly(context.WithoutCancel(ctx), f) // others wait for it: it must not end with this request
	case f == nil:
		return key, known, usable
	default:
		select {
		case <-f.done:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key, known = s.keys[kid]
	return key, known, s.usable(s.now())
}

// usable reports whether the set is young enough. The mutex is held.
func (s *keySet) usable(now time.Time) bool {
	age := now.Sub(s.fetchedAt)
	return len(s.keys) > 0 && -clockError <= age && age < usableFor
}

// missDue reports whether a miss may fetch. A clock that was set back must not
// stop it for that long. The mutex is held.
func (s *keySet) missDue(now time.Time) bool {
	return now.Before(s.missAt) || now.Sub(s.missAt) >= missEvery
}

// refresh fetches the set, whatever is known.
func (s *keySet) refresh(ctx context.Context) (string, error) {
	s.mu.Lock()
	f := s.flight
	mine := f == nil
	if mine {
		f = s.takeOff()
	}
	s.mu.Unlock()
	if mine {
		s.fly(ctx, f)
		return f.detail, f.err
	}
	select {
	case <-f.done:
		return f.detail, f.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// takeOff announces a fetch. The mutex is held.
func (s *keySet) takeOff() *flight {
	s.flight = &flight{done: make(chan struct{})}
	return s.flight
}

// fly makes the fetch that was announced.
func (s *keySet) fly(ctx context.Context, f *flight) {
	defer func() {
		s.mu.Lock()
		s.flight = nil
		s.mu.Unlock()
		close(f.done)
	}()
	f.err = errors.New("the fetch of the key set broke off")
	at := s.now() // the answer may be as old as the question
	keys, err := s.fetch(ctx)
	if err != nil {
		f.err = fmt.Errorf("fetch the key set: %w", err)
		s.failed(err)
		return
	}
	f.detail, f.err = s.replace(keys, at), nil
	if err := s.save(ctx, keys, at); err != nil {
		s.log.Warn("the key set could not be saved; a restart would begin without it", "err", err)
	}
}

func (s *keySet) fetch(ctx context.Context) (map[string]publicKey, error) {
	got, err := s.web.get(ctx, s.url, "", largestSet)
	if err != nil {
		return nil, err
	}
	if got.status != 200 {
		return nil, badStatus(got.status)
	}
	return readKeySet(got.body)
}

// failed keeps the set and remembers what was wrong. The log gets a line when that
// changes, not for each try.
func (s *keySet) failed(err error) {
	var t trouble
	if !errors.As(err, &t) {
		return // stopped by us: nothing is known of the issuer
	}
	s.mu.Lock()
	news := t != s.trouble
	if s.trouble == "" {
		s.troubleAt = s.now()
	}
	s.trouble = t
	since := s.fetchedAt
	s.mu.Unlock()
	if news {
		s.log.Warn("no good key set from the accounts issuer", "trouble", string(t), "last_good", since)
	}
}

// replace puts a new set in force, at once and whole, and says what changed.
func (s *keySet) replace(keys map[string]publicKey, at time.Time) (detail string) {
	s.mu.Lock()
	was, had := s.keys, s.trouble
	s.keys, s.fetchedAt, s.trouble, s.troubleAt = keys, at, "", time.Time{}
	s.mu.Unlock()
	if had != "" {
		s.log.Info("the accounts issuer answers with a good key set again")
	}
	var added, changed, gone []string
	for kid, key := range keys {
		if old, known := was[kid]; !known {
			added = append(added, quote(kid))
		} else if !key.same(old) {
			changed = append(changed, quote(kid))
		}
	}
	for kid := range was {
		if _, stays := keys[kid]; !stays {
			gone = append(gone, quote(kid))
		}
	}
	detail = fmt.Sprintf("%d keys", len(keys))
	if len(keys) == 1 {
		detail = "1 key"
	}
	if len(added)+len(changed)+len(gone) == 0 {
		return detail
	}
	for _, kids := range [][]string{added, changed, gone} {
		slices.Sort(kids)
	}
	s.log.Info("the issuer's keys changed", "added", added, "changed", changed, "gone", gone)
	return fmt.Sprintf("%s: %d new, %d changed, %d gone", detail, len(added), len(changed), len(gone))
}

// saved is the row in the store.
type saved struct {
	Issuer    string      `json:"issuer"`
	URL       string      `json:"jwks_url"`
	FetchedAt time.Time   `json:"fetched_at"`
	Keys      []publicJWK `json:"keys"`
}

func (s *keySet) save(ctx context.Context, keys map[string]publicKey, at time.Time) error {
	row := saved{Issuer: s.issuer, URL: s.url, FetchedAt: at}
	for _, kid := range slices.Sorted(maps.Keys(keys)) {
		row.Keys = append(row.Keys, keys[kid].jwk)
	}
	b, err := json.Marshal(row)
	if err != nil {
		return err
	}
	return s.store.Update(ctx, func(tx store.Tx) error { return tx.SetState(stateName, b) })
}

// load takes the set that was saved. Another issuer's, or one that cannot be read,
// is as good as none.
func (s *keySet) load(ctx context.Context) error {
	var b []byte
	err := s.store.View(ctx, func(v store.Reader) (err error) {
		b, err = v.State(stateName)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the saved key set: %w", err)
	}
	var row saved
	if err := json.Unmarshal(b, &row); err != nil {
		s.log.Warn("the saved key set cannot be read; the next fetch replaces it")
		return nil
	}
	if row.Issuer != s.issuer || row.URL != s.url {
		return nil
	}
	keys, err := readKeySet(b) // which reads only its keys
	if err != nil {
		s.log.Warn("the saved key set cannot be used; the next fetch replaces it", "trouble", err)
		return nil
	}
	s.keys, s.fetchedAt = keys, row.FetchedAt.UTC()
	return nil
}

func (s *keySet) state() relay.IssuerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return relay.IssuerState{
		Issuer: s.issuer, URL: s.url,
		Keys:      append([]string{}, slices.Sorted(maps.Keys(s.keys))...),
		FetchedAt: s.fetchedAt, Usable: s.usable(s.now()),
		Trouble: string(s.trouble), TroubleAt: s.troubleAt,
	}
}
