package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// mail is one item of the crash test and all that was ever answered about it.
type mail struct {
	item   pushItem
	target *client
	round  int   // in which it was pushed
	seq    int64 // of an accept, 0: never answered
	pulled int64 // the seq it was pulled under, 0: never
}

// TestCrashDuringPushes kills the relay while eight hosts push to four, which
// pull and ack, and looks after each restart that what was answered accepted is
// there exactly once, that what was not answered is there once after its retry,
// that sequence numbers only grow, and that the epoch stays (scenario F1).
func TestCrashDuringPushes(t *testing.T) {
	rounds := envInt(t, "MBX_TORTURE_ROUNDS", 3)
	seed := uint64(envInt(t, "MBX_TORTURE_SEED", int(time.Now().UnixNano()&0x7fffffff)))
	t.Logf("MBX_TORTURE_SEED=%d MBX_TORTURE_ROUNDS=%d", seed, rounds)
	rnd := rand.New(rand.NewPCG(seed, 1))

	dir := t.TempDir()
	p := serve(t, dir)
	epoch, key := p.epoch, relayKey(t, p.url)
	c := &crash{t: t, key: key, byID: map[string]*mail{}, acked: map[*client]int64{}}
	for i := range 8 {
		c.senders = append(c.senders, newClient(fmt.Sprintf("sender%d", i)))
		c.senders[i].enrol(t, p.url)
	}
	for i := range 4 {
		c.targets = append(c.targets, newClient(fmt.Sprintf("target%d", i)))
		c.targets[i].enrol(t, p.url)
	}
	highest := map[*client]int64{}
	for round := range rounds {
		c.round = round
		c.load(p, 50+rnd.IntN(250), rnd)
		p = serve(t, dir)
		if p.epoch != epoch {
			t.Fatalf("round %d: got epoch %s; want %s as before the crash", round, p.epoch, epoch)
		}
		c.retry(p)
		c.drain(p)
		for _, m := range c.byID {
			if m.seq <= highest[m.target] && m.round == round {
				t.Errorf("round %d: %s has seq %d, not above the %d of an earlier round", round, m.item.ID, m.seq, highest[m.target])
			}
		}
		for _, m := range c.byID {
			highest[m.target] = max(highest[m.target], m.seq)
		}
		c.everythingOnce(round)
	}
}

func envInt(t *testing.T, name string, def int) int {
	t.Helper()
	if v := os.Getenv(name); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	return def
}

type crash struct {
	t                *testing.T
	key              wire.PublicKey
	senders, targets []*client
	round            int
	mu               sync.Mutex
	byID             map[string]*mail
	open             []openMail        // pushed and not answered
	acked            map[*client]int64 // by answered acks
}

type openMail struct {
	from *client
	m    *mail
}

// load lets all hosts work until so many items were accepted, then kills the
// relay in the middle of it.
func (c *crash) load(p *process, accepts int, rnd *rand.Rand) {
	var accepted atomic.Int64
	var once sync.Once
	var wg sync.WaitGroup
	for _, s := range c.senders {
		r := rand.New(rand.NewPCG(rnd.Uint64(), 2))
		wg.Go(func() {
			for c.pushSome(p, s, r, &accepted) {
				if accepted.Load() >= int64(accepts) {
					once.Do(func() { _ = p.cmd.Process.Kill() })
				}
			}
		})
	}
	for _, target := range c.targets {
		wg.Go(func() {
			for c.pullSome(p, target) == nil {
			}
		})
	}
	wg.Wait()
	p.kill()
}

// pushSome pushes a batch of new items and notes the answer; it is false once
// the relay is gone.
func (c *crash) pushSome(p *process, s *client, r *rand.Rand, accepted *atomic.Int64) bool {
	var items []pushItem
	var mails []*mail
	for range 1 + r.IntN(5) {
		target := c.targets[r.IntN(len(c.targets))]
		m := &mail{item: s.item(target), target: target, round: c.round}
		items, mails = append(items, m.item), append(mails, m)
	}
	c.mu.Lock()
	for _, m := range mails {
		c.byID[m.item.ID] = m
	}
	c.mu.Unlock()
	results, err := s.push(p.url, c.key, items...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		for _, m := range mails {
			c.open = append(c.open, openMail{s, m})
		}
		return false
	}
	for i, res := range results {
		if res.Status != "accepted" {
			c.t.Errorf("%s: got status %s; want accepted", res.ItemID, res.Status)
			continue
		}
		mails[i].seq = res.Targets[0].Seq
	}
	accepted.Add(int64(len(results)))
	return true
}

// pullSome pulls from what the target last acked, then acks.
func (c *crash) pullSome(p *process, target *client) error {
	c.mu.Lock()
	after := c.acked[target]
	c.mu.Unlock()
	pg, code, err := target.pull(p.url, after, "&limit=50")
	if err != nil || code != 200 {
		return fmt.Errorf("pull: status %d: %w", code, err)
	}
	c.note(target, pg, after)
	if len(pg.Items) == 0 {
		return nil
	}
	if err := target.ack(p.url, pg.Epoch, pg.LastSeq); err != nil {
		return err
	}
	c.mu.Lock()
	c.acked[target] = pg.LastSeq
	c.mu.Unlock()
	return nil
}

// note records what a pull brought: each item always under the same seq, in
// order, and never again once it was acked.
func (c *crash) note(target *client, pg page, after int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := after
	for _, it := range pg.Items {
		m := c.byID[it.ID]
		switch {
		case m == nil:
			c.t.Errorf("pulled %s, which nobody pushed", it.ID)
			continue
		case it.Seq <= last:
			c.t.Errorf("pulled seq %d after %d", it.Seq, last)
		case m.pulled != 0 && m.pulled != it.Seq:
			c.t.Errorf("pulled %s under seq %d and %d: it is there twice", it.ID, m.pulled, it.Seq)
		case m.target != target || it.Wire != m.item.Targets[0].Wire:
			c.t.Errorf("pulled %s: not for this target, or not the bytes pushed", it.ID)
		}
		m.pulled, last = it.Seq, it.Seq
	}
}

// retry pushes again, byte for byte, what the crash left unanswered.
func (c *crash) retry(p *process) {
	for _, o := range c.open {
		results, err := o.from.push(p.url, c.key, o.m.item)
		if err != nil {
			c.t.Fatalf("retry: %v", err)
		}
		if s := results[0].Status; s != "accepted" && s != "duplicate" {
			c.t.Errorf("retry of %s: got %s; want accepted or duplicate", o.m.item.ID, s)
			continue
		}
		o.m.seq = results[0].Targets[0].Seq
	}
	c.open = nil
}

// drain pulls and acks until every queue is empty.
func (c *crash) drain(p *process) {
	for _, target := range c.targets {
		for {
			pg, code, err := target.pull(p.url, c.acked[target], "")
			if err != nil || code != 200 {
				c.t.Fatalf("pull: status %d: %v", code, err)
			}
			c.note(target, pg, c.acked[target])
			if len(pg.Items) == 0 {
				break
			}
			if err := target.ack(p.url, pg.Epoch, pg.LastSeq); err != nil {
				c.t.Fatal(err)
			}
			c.acked[target] = pg.LastSeq
		}
	}
}

func (c *crash) everythingOnce(round int) {
	var lost []string
	for id, m := range c.byID {
		if m.pulled == 0 {
			lost = append(lost, id)
		} else if m.pulled != m.seq {
			c.t.Errorf("round %d: %s was accepted under seq %d and pulled under %d", round, id, m.seq, m.pulled)
		}
	}
	if len(lost) > 0 {
		c.t.Errorf("round %d: %d of %d items are lost: %s", round, len(lost), len(c.byID), strings.Join(lost[:min(5, len(lost))], " "))
	}
	c.t.Logf("round %d: %d items so far, each once", round, len(c.byID))
}
