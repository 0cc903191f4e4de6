package relay

import (
	"sync"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// polls are the long polls that wait, by target. A waiter is woken by the
// commit that brings it something, never by looking at the store; a poll that
// waits costs nothing but its place here.
type polls struct {
	perKey, most int
	mu           sync.Mutex
	waiting      map[wire.PublicKey][]chan struct{}
	total        int
	closed       bool
}

func newPolls(perKey, most int) *polls {
	return &polls{perKey: perKey, most: most, waiting: map[wire.PublicKey][]chan struct{}{}}
}

// wait registers a waiter, whose channel is closed when there may be something
// for it. ok is false when too many wait already: then nobody waits. done must
// be called once.
func (p *polls) wait(key wire.PublicKey) (woken <-chan struct{}, done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.total >= p.most || len(p.waiting[key]) >= p.perKey {
		return nil, nil, false
	}
	ch := make(chan struct{})
	p.waiting[key] = append(p.waiting[key], ch)
	p.total++
	return ch, func() { p.leave(key, ch) }, true
}

func (p *polls) leave(key wire.PublicKey, ch chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.waiting[key]
	for i, c := range list {
		if c == ch {
			p.total--
			if list = append(list[:i], list[i+1:]...); len(list) == 0 {
				delete(p.waiting, key)
			} else {
				p.waiting[key] = list
			}
			return
		}
	}
}

// wake ends the waits of a target.
func (p *polls) wake(key wire.PublicKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(key)
}

func (p *polls) end(key wire.PublicKey) {
	for _, ch := range p.waiting[key] {
		close(ch)
		p.total--
	}
	delete(p.waiting, key)
}

// wakeAll ends every wait.
func (p *polls) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.waiting {
		p.end(key)
	}
}

// close ends every wait and lets nobody wait again.
func (p *polls) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wakeAll()
}

func (p *polls) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}
