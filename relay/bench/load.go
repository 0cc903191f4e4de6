package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// host is one end of the mail.
type host struct {
	name string
	key  wire.PrivateKey
	pub  wire.PublicKey
	text string // pub as requests have it
	enc  wire.EncPrivateKey
}

func newHost(name string) (*host, error) {
	key, err := wire.GenerateKey()
	if err != nil {
		return nil, err
	}
	enc, err := wire.GenerateEncKey()
	return &host{name: name, key: key, pub: key.Public(), text: key.Public().String(), enc: enc}, err
}

func newHosts(prefix string, n int) ([]*host, error) {
	list := make([]*host, n)
	for i := range list {
		h, err := newHost(fmt.Sprintf("%s-%d", prefix, i+1))
		if err != nil {
			return nil, err
		}
		list[i] = h
	}
	return list, nil
}

// mail makes items of one size. Sealing one takes longer than a relay takes to
// store it, so that few are sealed and each item is a copy under an id of its
// own; its signature is then no longer right, which a relay never looks at.
type mail struct {
	sealed [][]byte // wires
	ids    []string // theirs
	last   uint64
	salt   string
}

func newMail(from, to *host, plain int) (*mail, error) {
	const different = 16
	m := &mail{salt: wire.NewID(time.Now())[:16]}
	text := strings.Repeat("The build is green. ", plain/20+1)[:plain]
	for range different {
		now := time.Now()
		id := wire.NewID(now)
		w, err := wire.Seal(wire.Envelope{
			V: 3, ID: id, TS: wire.FormatTime(now), From: "builder@" + from.name, To: []string{"reviewer@" + to.name},
			Thread: id, Kind: "message", Subject: "Build ok", Body: text,
		}, to.enc.Public(), from.key, from.name)
		if err != nil {
			return nil, err
		}
		m.sealed, m.ids = append(m.sealed, w), append(m.ids, id)
	}
	return m, nil
}

const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// next is an item nobody has seen.
func (m *mail) next() (id string, w []byte) {
	m.last++
	tail := []byte("0000000000")
	for i, n := len(tail)-1, m.last; n > 0; i, n = i-1, n/32 {
		tail[i] = crockford[n%32]
	}
	id = m.salt + string(tail)
	i := int(m.last) % len(m.sealed)
	return id, bytes.ReplaceAll(m.sealed[i], []byte(m.ids[i]), []byte(id))
}

// body is a push of n items to targets in turn.
func (m *mail) body(n int, targets []*host) []byte {
	b := make([]byte, 0, n*(4*len(m.sealed[0])/3+300)+16)
	b = append(b, `{"items":[`...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		id, w := m.next()
		b = append(b, `{"kind":"envelope","item_id":"`...)
		b = append(b, id...)
		b = append(b, `","targets":[{"host_pubkey":"`...)
		b = append(b, targets[i%len(targets)].text...)
		b = append(b, `","wire_b64":"`...)
		b = base64.StdEncoding.AppendEncode(b, w)
		b = append(b, `"}]}`...)
	}
	return append(b, `]}`...)
}

// client is a connection of one host to a relay. It writes HTTP itself, so
// that the load takes as little as it can of the processor that it shares with
// the relay. Not safe for concurrent use.
type client struct {
	c  net.Conn
	br *bufio.Reader
	h  *host
}

func dial(addr string, h *host) (*client, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &client{c: c, br: bufio.NewReaderSize(c, 16<<10), h: h}, nil
}

func (c *client) close() { _ = c.c.Close() }

// request is the head of a signed request and its body.
func (h *host) request(method, target string, body []byte) net.Buffers {
	ts, sig := wire.SignHop(h.key, method, target, body, time.Now())
	head := make([]byte, 0, 384)
	head = append(head, method...)
	head = append(head, ' ')
	head = append(head, target...)
	head = append(head, " HTTP/1.1\r\nHost: relay\r\nContent-Type: application/json\r\nX-Mbx-Host: "...)
	head = append(head, h.name...)
	head = append(head, "\r\nX-Mbx-Key: "...)
	head = append(head, h.text...)
	head = append(head, "\r\nX-Mbx-Ts: "...)
	head = append(head, ts...)
	head = append(head, "\r\nX-Mbx-Sig: "...)
	head = append(head, sig...)
	head = append(head, "\r\nContent-Length: "...)
	head = strconv.AppendInt(head, int64(len(body)), 10)
	head = append(head, "\r\n\r\n"...)
	return net.Buffers{head, body}
}

// send sends a request and reads its answer.
func (c *client) send(req net.Buffers) ([]byte, error) {
	if _, err := req.WriteTo(c.c); err != nil {
		return nil, err
	}
	return c.answer()
}

func (c *client) answer() ([]byte, error) {
	resp, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return nil, err
	}
	var b []byte
	if resp.ContentLength >= 0 {
		b = make([]byte, resp.ContentLength)
		_, err = io.ReadFull(resp.Body, b)
	} else {
		b, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the relay answered %s: %.300s", resp.Status, b)
	}
	return b, nil
}

func (c *client) do(method, target string, body []byte) ([]byte, error) {
	return c.send(c.h.request(method, target, body))
}

// once is do on a connection of its own.
func once(addr string, h *host, method, target string, body []byte) ([]byte, error) {
	c, err := dial(addr, h)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.do(method, target, body)
}

// subject is a relay under measurement, with what the harness knows it holds.
type subject struct {
	*process
	name   string // for the talk of a run
	key    wire.PublicKey
	epoch  string
	queued map[string][]int64 // by target: what is not acked, in order
	held   int64              // items the store must hold
	before int64              // of those, items not in queued
	logged int64              // bytes of a bare log that were counted
}

func (b *bench) meet(p *process, before int64) (*subject, error) {
	s := &subject{process: p, name: p.kind, queued: map[string][]int64{}, held: before, before: before}
	answer, err := once(p.addr, b.senderHosts[0], "GET", "/v2/relay/info", nil)
	if err != nil {
		return nil, err
	}
	var info struct {
		Key   wire.PublicKey `json:"relay_pubkey"`
		Epoch string         `json:"epoch"`
	}
	err = json.Unmarshal(answer, &info)
	s.key, s.epoch = info.Key, info.Epoch
	return s, err
}

// sample is what one window of load showed.
type sample struct {
	items   int64
	took    time.Duration
	cpu     time.Duration // of the relay
	latency []time.Duration
}

func (s sample) rate() float64 { return float64(s.items) / s.took.Seconds() }

// load has every sender push bodies until the time is over or none are left,
// and then checks what was answered. Nothing is left under way when the clock
// stops.
func (b *bench) load(ctx context.Context, s *subject, bodies [][]byte, each int, window time.Duration) (sample, error) {
	type worker struct {
		c       *client
		ready   []net.Buffers // signed before, with -presign
		answers [][]byte
		took    []time.Duration
		err     error
	}
	workers := make([]*worker, len(b.senderHosts))
	for i, h := range b.senderHosts {
		c, err := dial(s.addr, h)
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		workers[i] = &worker{c: c}
		if _, err := c.do("GET", "/v2/relay/info", nil); err != nil { // the connection is up, the keys are warm
			return sample{}, err
		}
	}
	if b.presign {
		for i, body := range bodies {
			w := workers[i%len(workers)]
			w.ready = append(w.ready, w.c.h.request("POST", "/v2/relay/items", body))
		}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	cpu, err := cpuOf(s.pid())
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	for _, w := range workers {
		wg.Go(func() {
			for time.Since(began) < window && ctx.Err() == nil {
				var req net.Buffers
				if b.presign {
					if len(w.ready) == 0 {
						return
					}
					req, w.ready = w.ready[0], w.ready[1:]
				} else {
					n := int(next.Add(1)) - 1
					if n >= len(bodies) {
						return
					}
					req = w.c.h.request("POST", "/v2/relay/items", bodies[n])
				}
				sent := time.Now()
				answer, err := w.c.send(req)
				if err != nil {
					w.err = err
					return
				}
				w.took = append(w.took, time.Since(sent))
				w.answers = append(w.answers, answer)
			}
		})
	}
	wg.Wait()
	out := sample{took: time.Since(began)}
	after, err := cpuOf(s.pid())
	if err != nil {
		return sample{}, err
	}
	out.cpu = after - cpu
	for _, w := range workers {
		if w.err != nil {
			return sample{}, w.err
		}
		out.latency = append(out.latency, w.took...)
		for i, a := range w.answers {
			n, err := s.read(a, w.c.h, i%50 == 0)
			if err != nil {
				return sample{}, err
			}
			if n != each {
				return sample{}, fmt.Errorf("%d of %d items were accepted: %.300s", n, each, a)
			}
			out.items += int64(n)
		}
	}
	if err := ctx.Err(); err != nil {
		return sample{}, err
	}
	return out, s.check(ctx)
}

// read takes in the answer to a push and counts what was accepted.
func (s *subject) read(answer []byte, from *host, verify bool) (accepted int, err error) {
	var a struct {
		Results []struct {
			ID      string `json:"item_id"`
			Status  string `json:"status"`
			Targets []struct {
				Key string `json:"host_pubkey"`
				Seq int64  `json:"seq"`
			} `json:"targets"`
			Accept json.RawMessage `json:"accept"`
			Sig    string          `json:"sig"`
		} `json:"results"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return 0, err
	}
	for i, r := range a.Results {
		if r.Status != "accepted" || len(r.Targets) != 1 {
			continue
		}
		accepted++
		s.held++
		s.queued[r.Targets[0].Key] = append(s.queued[r.Targets[0].Key], r.Targets[0].Seq)
		if verify && i == 0 {
			acc, err := wire.VerifyAccept(r.Accept, r.Sig, s.key)
			if err != nil {
				return 0, fmt.Errorf("an accept does not verify: %w", err)
			}
			if acc.ItemID != r.ID || acc.SenderPubkey != from.pub || len(acc.Targets) != 1 || acc.Targets[0].Seq != r.Targets[0].Seq {
				return 0, errors.New("an accept is not about its item")
			}
		}
	}
	return accepted, nil
}

// check compares what the relay's store counts with what it answered.
func (s *subject) check(ctx context.Context) error {
	if s.kind == bareRelay {
		n, end, err := bareCount(s.dir, s.logged)
		s.logged, s.before = end, s.before+n
		if err == nil && s.before != s.held {
			err = fmt.Errorf("the bare log holds %d items, accepted were %d", s.before, s.held)
		}
		return err
	}
	items, err := countItems(ctx, s.dir)
	if err == nil && items != s.held {
		err = fmt.Errorf("the store of %s counts %d items; accepted and not acked are %d", s.kind, items, s.held)
	}
	return err
}

// trim acks each queue down to a depth.
func (b *bench) trim(ctx context.Context, s *subject, depth int) error {
	for _, h := range b.targetHosts {
		if err := s.ackTo(h, depth); err != nil {
			return err
		}
	}
	return s.check(ctx)
}

func (s *subject) ackTo(h *host, depth int) error {
	q := s.queued[h.text]
	slices.Sort(q)
	if len(q) <= depth || s.kind == bareRelay {
		return nil
	}
	drop := len(q) - depth
	if err := s.ack(h, q[drop-1]); err != nil {
		return err
	}
	s.queued[h.text] = slices.Clone(q[drop:])
	s.held -= int64(drop)
	return nil
}

func (s *subject) ack(h *host, through int64) error {
	body := fmt.Sprintf(`{"epoch":%q,"through":%d}`, s.epoch, through)
	_, err := once(s.addr, h, "POST", "/v2/relay/ack", []byte(body))
	return err
}
