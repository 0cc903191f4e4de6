package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// bench is one run.
type bench struct {
	config
	dir    string
	disk   disk
	binary string // the real relay

	senderHosts, targetHosts []*host
	mail                     *mail
	wireSize                 int
	made                     int // stores
	running                  []*process
	table                    []line
	notes                    []string
}

// line is one line of the table.
type line struct{ what, relay, naive, ratio, target, limit string }

// begin makes the hosts and the mail, once.
func (b *bench) begin() (err error) {
	if b.mail != nil {
		return nil
	}
	if b.senderHosts, err = newHosts("sender", b.senders); err != nil {
		return err
	}
	if b.targetHosts, err = newHosts("target", b.targets); err != nil {
		return err
	}
	if b.mail, err = newMail(b.senderHosts[0], b.targetHosts[0], b.plain); err != nil {
		return err
	}
	b.wireSize = len(b.mail.sealed[0])
	return nil
}

// fresh starts a relay on a new store. more is what else the store is to hold,
// and how many items that is.
func (b *bench) fresh(ctx context.Context, kind string, items int64, more func(*sqlite.Store) error) (*subject, error) {
	if err := b.begin(); err != nil {
		return nil, err
	}
	dir, err := b.newStore(ctx, kind, slices.Concat(b.senderHosts, b.targetHosts), more)
	if err != nil {
		return nil, err
	}
	p, err := b.start(ctx, kind, dir)
	if err != nil {
		return nil, err
	}
	return b.meet(p, items)
}

// bodies makes n pushes of some items each. One push goes to one target: the
// mail of a host is for few.
func (b *bench) bodies(n, each int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		at := i % len(b.targetHosts)
		list[i] = b.mail.body(each, b.targetHosts[at:at+1])
	}
	return list
}

// enough is how many pushes last a window at the rate of a sample.
func enough(s sample, window time.Duration, each int) int {
	return int(s.rate()*window.Seconds()*1.5)/each + 64
}

// contest is relays that take the same load in turns.
type contest struct {
	subjects []*subject
	samples  [][]sample // by subject, then round
	depth    []int      // to which each subject's queues are acked before a window
	each     int
}

func (b *bench) runContest(ctx context.Context, c *contest) error {
	if c.depth == nil {
		c.depth = make([]int, len(c.subjects))
	}
	c.samples = make([][]sample, len(c.subjects))
	// A round that does not count: it warms everything and tells how much mail
	// a window takes.
	most := 0
	for _, s := range c.subjects {
		got, err := b.load(ctx, s, b.bodies(max(3000/c.each, 48), c.each), c.each, b.window/2)
		if err != nil {
			return err
		}
		most = max(most, enough(got, b.window, c.each))
	}
	for round := range b.rounds {
		for i := range c.subjects {
			n := (i + round) % len(c.subjects)
			s := c.subjects[n]
			if err := b.trim(ctx, s, c.depth[n]); err != nil {
				return err
			}
			got, err := b.load(ctx, s, b.bodies(most, c.each), c.each, b.window)
			if err != nil {
				return err
			}
			c.samples[n] = append(c.samples[n], got)
			fmt.Fprintf(b.talk, "  round %d %-7s %7.0f items/s, relay %5.1f µs of processor an item, p50 %s p99 %s\n", round+1, s.name,
				got.rate(), float64(got.cpu.Microseconds())/float64(got.items), show(percentile(got.latency, 50)), show(percentile(got.latency, 99)))
		}
	}
	return nil
}

// rate is the middle rate of a subject.
func (c *contest) rate(n int) float64 {
	return median(c.samples[n], func(s sample) float64 { return s.rate() })
}

// cpu is a relay's processor time an item, in microseconds.
func (c *contest) cpu(n int) float64 {
	return median(c.samples[n], func(s sample) float64 { return float64(s.cpu.Microseconds()) / float64(s.items) })
}

// ratio is the middle of the rounds' ratios of two subjects' rates.
func (c *contest) ratio(a, b int) float64 {
	var r []float64
	for i := range c.samples[a] {
		r = append(r, c.samples[a][i].rate()/c.samples[b][i].rate())
	}
	return median(r, func(v float64) float64 { return v })
}

func (c *contest) latency(n int) (all []time.Duration) {
	for _, s := range c.samples[n] {
		all = append(all, s.latency...)
	}
	return all
}

func median[T any](list []T, f func(T) float64) float64 {
	var v []float64
	for _, x := range list {
		v = append(v, f(x))
	}
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(len(d)*p/100, len(d)-1)]
}

func show(d time.Duration) string {
	if d.Abs() < 10*time.Millisecond {
		return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1000)
}

func (b *bench) add(l line) { b.table = append(b.table, l) }

func (b *bench) note(format string, a ...any) { b.notes = append(b.notes, fmt.Sprintf(format, a...)) }

// against sets relay, naive and bare against each other.
func (b *bench) against(ctx context.Context, each int) (*contest, error) {
	c := &contest{each: each}
	kinds := []string{realRelay, naiveRelay, bareRelay}
	if b.other != "" {
		kinds = append(kinds, otherBuild)
	}
	for _, kind := range kinds {
		s, err := b.fresh(ctx, kind, 0, nil)
		if err != nil {
			return nil, err
		}
		c.subjects = append(c.subjects, s)
	}
	if err := b.runContest(ctx, c); err != nil {
		return nil, err
	}
	if b.other != "" {
		b.note("%d a request, the other build: %.0f items/s, %.2f× the relay, %.2f× naive, processor %.0f µs an item.", each, c.rate(3), c.ratio(3, 0), c.ratio(3, 1), c.cpu(3))
	}
	return c, nil
}

func (b *bench) one(ctx context.Context) error {
	c, err := b.against(ctx, 1)
	if err != nil {
		return err
	}
	b.add(line{"push, 1 item a request", fmt.Sprintf("%.0f items/s", c.rate(0)), fmt.Sprintf("%.0f items/s", c.rate(1)),
		fmt.Sprintf("%.1f× (bare log %.1f×)", c.ratio(0, 1), c.ratio(2, 1)), "≥ 2.5×", "the processor, which the load shares, then the sync of the disk"})
	var p [2][2]time.Duration
	for n := range p {
		all := c.latency(n)
		p[n] = [2]time.Duration{percentile(all, 50), percentile(all, 99)}
	}
	b.add(line{"its p50 and p99, 16 senders", show(p[0][0]) + ", " + show(p[0][1]), show(p[1][0]) + ", " + show(p[1][1]),
		fmt.Sprintf("p99 %.2f×", p[0][1].Seconds()/p[1][1].Seconds()), "p99 ≤ 1×", "one sync, and the wait for the group before"})
	b.note("1 item a request: processor time of the relay %.0f µs an item (naive %.0f, bare %.0f).", c.cpu(0), c.cpu(1), c.cpu(2))
	return b.memory("push, 1 item a request", c.subjects[0])
}

func (b *bench) batch(ctx context.Context) error {
	c, err := b.against(ctx, b.many)
	if err != nil {
		return err
	}
	b.add(line{fmt.Sprintf("push, %d items a request", b.many), fmt.Sprintf("%.0f items/s", c.rate(0)), fmt.Sprintf("%.0f items/s", c.rate(1)),
		fmt.Sprintf("%.1f× (bare log %.1f×)", c.ratio(0, 1), c.ratio(2, 1)), "≥ 7×, aim 10×", "the single writer's time an item, beside signatures and base64 on two cores"})
	b.note("%d items a request: processor time of the relay %.0f µs an item (naive %.0f, bare %.0f).", b.many, c.cpu(0), c.cpu(1), c.cpu(2))
	return b.memory(fmt.Sprintf("push, %d items a request", b.many), c.subjects[0])
}

const mib = 1 << 20

// memory adds what a relay holds in memory after a load.
func (b *bench) memory(load string, s *subject) error {
	now, most, err := memoryOf(s.pid())
	if err != nil {
		return err
	}
	b.add(line{"memory under: " + load, fmt.Sprintf("%d MiB, at most %d MiB", now/mib, most/mib), "", "", "< 128 MiB", "bodies in flight and the garbage of the last requests"})
	return nil
}

// deep is the depth of a queue near the default limit of 10,000.
const deep = 9000

func (b *bench) depth(ctx context.Context) error {
	c := &contest{each: 1, depth: []int{b.scaled(deep), 10}}
	for _, depth := range c.depth {
		s, err := b.fresh(ctx, realRelay, 0, nil)
		if err != nil {
			return err
		}
		s.name = fmt.Sprintf("at %d", depth)
		c.subjects = append(c.subjects, s)
	}
	if err := b.deepen(ctx, c.subjects[0], c.depth[0]); err != nil {
		return err
	}
	if err := b.runContest(ctx, c); err != nil {
		return err
	}
	b.add(line{fmt.Sprintf("push at depth %d, beside depth 10", c.depth[0]), fmt.Sprintf("%.0f and %.0f items/s", c.rate(0), c.rate(1)), "",
		fmt.Sprintf("%.2f×", c.ratio(0, 1)), "≥ 0.8×", "nothing: counters, not counts"})
	return nil
}

// scaled makes a number small in a smoke run.
func (b *bench) scaled(n int) int {
	if b.quick {
		return min(n, 50)
	}
	return n
}

// deepen pushes until every queue holds some items more.
func (b *bench) deepen(ctx context.Context, s *subject, items int) error {
	const each = 100
	n := (items + each - 1) / each * len(b.targetHosts)
	for n > 0 {
		k := min(n, 320)
		if _, err := b.load(ctx, s, b.bodies(k, each), each, time.Hour); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (b *bench) full(ctx context.Context) error {
	empty, err := b.fresh(ctx, realRelay, 0, nil)
	if err != nil {
		return err
	}
	full, err := b.fresh(ctx, realRelay, int64(b.items), func(st *sqlite.Store) error { return b.fill(ctx, st, b.enrolments, b.items) })
	if err != nil {
		return err
	}
	empty.name, full.name = "empty", "full"
	for _, each := range []int{1, b.many} {
		c := &contest{each: each, subjects: []*subject{full, empty}}
		if err := b.runContest(ctx, c); err != nil {
			return err
		}
		b.add(line{fmt.Sprintf("push, %d a request, %d hosts and %d items stored, beside an empty store", each, b.enrolments, b.items),
			fmt.Sprintf("%.0f and %.0f items/s", c.rate(0), c.rate(1)), "", fmt.Sprintf("%.2f×", c.ratio(0, 1)), "≥ 0.7×", "pages of large trees: more of them to read and to write back"})
	}
	b.note("The full store takes %.1f GiB on disk.", float64(sizeOf(full.dir))/(1<<30))
	return b.memory(fmt.Sprintf("push, %d items stored", b.items), full)
}

func (b *bench) pull(ctx context.Context) error {
	s, err := b.fresh(ctx, realRelay, 0, nil)
	if err != nil {
		return err
	}
	page := b.scaled(500)
	depths := []int{page + page/5, max(b.scaled(deep), 2*page)}
	type result struct {
		rate          float64
		pulled, acked time.Duration
	}
	results := [2][]result{}
	for round := range b.rounds * 4 {
		for i := range depths {
			n := (i + round) % 2
			h := b.targetHosts[n]
			if err := b.top(ctx, s, h, depths[n]); err != nil {
				return err
			}
			c, err := dial(s.addr, h)
			if err != nil {
				return err
			}
			if _, err := c.do("GET", "/v2/relay/info", nil); err != nil {
				return err
			}
			began := time.Now()
			answer, err := c.do("GET", fmt.Sprintf("/v2/relay/items?after=0&limit=%d&epoch=%s", page, s.epoch), nil)
			if err != nil {
				return err
			}
			pulled := time.Since(began)
			last, err := s.checkPage(answer, h, page)
			if err != nil {
				return err
			}
			before := time.Now()
			if _, err := c.do("POST", "/v2/relay/ack", fmt.Appendf(nil, `{"epoch":%q,"through":%d}`, s.epoch, last)); err != nil {
				return err
			}
			acked := time.Since(before)
			c.close()
			s.queued[h.text] = s.queued[h.text][page:]
			s.held -= int64(page)
			results[n] = append(results[n], result{rate: float64(page) / (pulled + acked).Seconds(), pulled: pulled, acked: acked})
		}
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	rate := func(n int) float64 { return median(results[n], func(r result) float64 { return r.rate }) }
	parts := func(n int) string {
		p := median(results[n], func(r result) float64 { return float64(r.pulled) })
		a := median(results[n], func(r result) float64 { return float64(r.acked) })
		return show(time.Duration(p)) + " + " + show(time.Duration(a))
	}
	ratio := median(results[0], func(r result) float64 { return r.rate })
	if ratio > 0 {
		ratio = rate(1) / ratio
	}
	b.add(line{fmt.Sprintf("pull of %d and its ack at depth %d, beside depth %d", page, depths[1], depths[0]),
		fmt.Sprintf("%.0f and %.0f rows/s", rate(1), rate(0)), "", fmt.Sprintf("%.2f×", ratio), "≥ 1×, within noise",
		fmt.Sprintf("base64 of the page and the deletes (pull + ack: %s and %s)", parts(1), parts(0))})
	return nil
}

// top brings one queue to a depth.
func (b *bench) top(ctx context.Context, s *subject, h *host, depth int) error {
	sender := b.senderHosts[0]
	for len(s.queued[h.text]) < depth {
		n := min(depth-len(s.queued[h.text]), 200)
		answer, err := once(s.addr, sender, "POST", "/v2/relay/items", b.mail.body(n, []*host{h}))
		if err != nil {
			return err
		}
		if got, err := s.read(answer, sender, true); err != nil || got != n {
			return fmt.Errorf("%d of %d items accepted: %w", got, n, err)
		}
	}
	slices.Sort(s.queued[h.text])
	return ctx.Err()
}

// checkPage finds the items of a page to be the oldest of the queue.
func (s *subject) checkPage(answer []byte, h *host, want int) (last int64, err error) {
	var p struct {
		Items []struct {
			Seq int64 `json:"seq"`
		} `json:"items"`
		Last int64 `json:"last_seq"`
	}
	if err := json.Unmarshal(answer, &p); err != nil {
		return 0, err
	}
	if len(p.Items) != want {
		return 0, fmt.Errorf("a page has %d items; want %d", len(p.Items), want)
	}
	for i, it := range p.Items {
		if it.Seq != s.queued[h.text][i] {
			return 0, fmt.Errorf("item %d of a page has seq %d; want %d", i, it.Seq, s.queued[h.text][i])
		}
	}
	return p.Last, nil
}

func (b *bench) poll(ctx context.Context) error {
	s, err := b.fresh(ctx, realRelay, 0, nil)
	if err != nil {
		return err
	}
	from, to := b.senderHosts[0], b.targetHosts[0]
	push, err := dial(s.addr, from)
	if err != nil {
		return err
	}
	defer push.close()
	wait, err := dial(s.addr, to)
	if err != nil {
		return err
	}
	defer wait.close()
	var gaps, pushes []time.Duration
	after := int64(0)
	for range b.scaled(1000) {
		type got struct {
			answer []byte
			at     time.Time
			err    error
		}
		arrived := make(chan got, 1)
		req := to.request("GET", fmt.Sprintf("/v2/relay/items?after=%d&epoch=%s&wait=20", after, s.epoch), nil)
		go func() {
			a, err := wait.send(req)
			arrived <- got{a, time.Now(), err}
		}()
		time.Sleep(3 * time.Millisecond) // it waits by now
		body := b.mail.body(1, []*host{to})
		sent := time.Now()
		answer, err := push.do("POST", "/v2/relay/items", body)
		if err != nil {
			return err
		}
		answered := time.Now()
		g := <-arrived
		if g.err != nil {
			return g.err
		}
		if n, err := s.read(answer, from, true); err != nil || n != 1 {
			return fmt.Errorf("%d of 1 items accepted: %w", n, err)
		}
		q := s.queued[to.text]
		var p struct {
			Items []struct {
				Seq int64 `json:"seq"`
			} `json:"items"`
		}
		if err := json.Unmarshal(g.answer, &p); err != nil {
			return err
		}
		if len(p.Items) != 1 || p.Items[0].Seq != q[len(q)-1] {
			return fmt.Errorf("a long poll answered %d items: %.200s", len(p.Items), g.answer)
		}
		after = p.Items[0].Seq
		gaps, pushes = append(gaps, g.at.Sub(answered)), append(pushes, answered.Sub(sent))
	}
	b.add(line{"long poll: from the push's answer to the poll's, p50 and p99", show(percentile(gaps, 50)) + ", " + show(percentile(gaps, 99)), "", "", "",
		fmt.Sprintf("one read of the queue; the push itself takes %s", show(percentile(pushes, 50)))})
	return s.check(ctx)
}

func (b *bench) idlePolls(ctx context.Context) error {
	if err := b.begin(); err != nil {
		return err
	}
	const perHost = 4
	hosts, err := newHosts("waiting", (b.polls+perHost-1)/perHost)
	if err != nil {
		return err
	}
	dir, err := b.newStore(ctx, realRelay, slices.Concat(b.senderHosts, hosts), nil)
	if err != nil {
		return err
	}
	p, err := b.start(ctx, realRelay, dir)
	if err != nil {
		return err
	}
	s, err := b.meet(p, 0)
	if err != nil {
		return err
	}
	memBefore, _, err := memoryOf(p.pid())
	if err != nil {
		return err
	}
	clients := make([]*client, b.polls)
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.close()
			}
		}
	}()
	var wg sync.WaitGroup
	errs := make(chan error, b.polls)
	gate := make(chan struct{}, 32)
	for i := range clients {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			c, err := dial(p.addr, hosts[i/perHost])
			if err != nil {
				errs <- err
				return
			}
			clients[i] = c
			req := c.h.request("GET", "/v2/relay/items?after=0&wait=120&epoch="+s.epoch, nil)
			if _, err := req.WriteTo(c.c); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	time.Sleep(min(3*time.Second, b.idle)) // they all wait by now
	before, err := cpuOf(p.pid())
	if err != nil {
		return err
	}
	began := time.Now()
	select {
	case <-time.After(b.idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	took := time.Since(began)
	after, err := cpuOf(p.pid())
	if err != nil {
		return err
	}
	now, most, err := memoryOf(p.pid())
	if err != nil {
		return err
	}
	// They waited, all of them: mail for one host answers its polls, and only those.
	answer, err := once(p.addr, b.senderHosts[0], "POST", "/v2/relay/items", b.mail.body(1, hosts[:1]))
	if err != nil {
		return err
	}
	if n, err := s.read(answer, b.senderHosts[0], true); err != nil || n != 1 {
		return fmt.Errorf("%d of 1 items accepted: %w", n, err)
	}
	for i, c := range clients {
		if i < perHost {
			_ = c.c.SetReadDeadline(time.Now().Add(5 * time.Second))
			a, err := c.answer()
			if err != nil || !strings.Contains(string(a), `"seq"`) {
				return fmt.Errorf("poll %d was not answered: %.200s %w", i, a, err)
			}
			continue
		}
		_ = c.c.SetReadDeadline(time.Now().Add(20 * time.Microsecond))
		if _, err := c.br.Peek(1); !isTimeout(err) {
			return fmt.Errorf("poll %d did not wait: %w", i, err)
		}
	}
	b.add(line{fmt.Sprintf("processor, %d open long polls", b.polls), fmt.Sprintf("%.2f %% of a core over %s", 100*(after-before).Seconds()/took.Seconds(), took.Round(time.Second)),
		"", "", "< 1 %", "the heartbeat"})
	b.add(line{fmt.Sprintf("memory, %d open long polls", b.polls), fmt.Sprintf("%d MiB, at most %d MiB (%d MiB before)", now/mib, most/mib, memBefore/mib),
		"", "", "", fmt.Sprintf("%d KiB a connection: net/http's buffers and the stacks of its two goroutines", (now-memBefore)>>10/int64(b.polls))})
	return nil
}
