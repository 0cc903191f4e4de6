package relay

import (
	"crypto/rand"
	"encoding/base64"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// challenges are the open enrolment challenges, in memory and bounded: a
// restart only makes clients ask again (seed 000 §2).
type challenges struct {
	most int
	life time.Duration
	mu   sync.Mutex
	open map[wire.PublicKey]challenge
	ends []ending // in order of time; stale ones are skipped
}

type challenge struct {
	text string
	ends time.Time
}

type ending struct {
	key wire.PublicKey
	at  time.Time
}

func newChallenges(most int, life time.Duration) *challenges {
	return &challenges{most: most, life: life, open: map[wire.PublicKey]challenge{}}
}

// issue opens a challenge for a key in place of its older one. ok is false
// when too many others are open.
func (c *challenges) issue(key wire.PublicKey, now time.Time) (text string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	if _, has := c.open[key]; !has && len(c.open) >= c.most {
		return "", false
	}
	text = base64.RawURLEncoding.EncodeToString(randomBytes(24))
	ch := challenge{text: text, ends: now.Add(c.life)}
	c.open[key] = ch
	c.ends = append(c.ends, ending{key, ch.ends})
	if len(c.ends) > 2*c.most+16 { // one key asking again and again
		c.compact()
	}
	return text, true
}

// expire forgets what has ended. A clock set back may keep some a little longer.
func (c *challenges) expire(now time.Time) {
	for len(c.ends) > 0 && !c.ends[0].at.After(now) {
		e := c.ends[0]
		c.ends = c.ends[1:]
		if ch, has := c.open[e.key]; has && !ch.ends.After(now) {
			delete(c.open, e.key)
		}
	}
}

func (c *challenges) compact() {
	kept := make([]ending, 0, len(c.open))
	for _, e := range c.ends {
		if ch, has := c.open[e.key]; has && ch.ends.Equal(e.at) {
			kept = append(kept, e)
		}
	}
	c.ends = kept
}

// find answers the key's open challenge.
func (c *challenges) find(key wire.PublicKey, now time.Time) (challenge, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	ch, has := c.open[key]
	return ch, has
}

// use takes a challenge away; it is false when another call was first.
func (c *challenges) use(key wire.PublicKey, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch, has := c.open[key]; !has || ch.text != text {
		return false
	}
	delete(c.open, key)
	return true
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails: the runtime ends the process instead
	return b
}
