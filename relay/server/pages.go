package server

import (
	"sync"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// pages divides the memory for pages on their way out. Each takes what its
// queue holds, at most a full page, and nothing for an empty queue; one host has
// pagesPerKey at once, so that one which never reads takes nobody else's.
type pages struct {
	share *share
	most  int64 // of one page
	mu    sync.Mutex
	held  map[wire.PublicKey]int
}

const pagesPerKey = 4

func newPages(s *share, most int64) *pages {
	return &pages{share: s, most: most, held: map[wire.PublicKey]int{}}
}

// heldPage is the share of one page.
type heldPage struct {
	from  *pages
	key   wire.PublicKey
	bytes int64
}

// holdPage takes a share for the caller's next page, or answers errBusy.
func (c *call) holdPage() (*heldPage, error) {
	waiting, err := c.relay.Waiting(c.ctx, c.who)
	if err != nil {
		return nil, err
	}
	h := &heldPage{from: c.pages, key: c.who.Key}
	if waiting == 0 {
		return h, nil
	}
	if !c.pages.enter(h.key) {
		return nil, errBusy
	}
	if h.bytes, err = c.pages.share.take(c.ctx, min(waiting, c.pages.most)); err != nil {
		c.pages.leave(h.key)
		return nil, err
	}
	return h, nil
}

func (p *pages) enter(key wire.PublicKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[key] >= pagesPerKey {
		return false
	}
	p.held[key]++
	return true
}

func (p *pages) leave(key wire.PublicKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[key]--; p.held[key] == 0 {
		delete(p.held, key)
	}
}

// release gives all of it back.
func (h *heldPage) release() {
	if h.bytes > 0 {
		h.from.share.Release(h.bytes)
		h.from.leave(h.key)
		h.bytes = 0
	}
}

// fit gives back what the page did not need, and answers how to give back the
// rest once it was sent.
func (h *heldPage) fit(p relay.Page) (done func()) {
	need := int64(0)
	for i := range p.Items {
		need += p.Items[i].Size
	}
	if 0 < need && need < h.bytes {
		h.from.share.Release(h.bytes - need)
		h.bytes = need
	}
	return h.release
}
