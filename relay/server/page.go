package server

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"sync"
	"time"
)

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

// page is a large answer on its way: it is encoded into one buffer of fixed
// size, which is sent each time it is full. A page that fits is sent whole,
// with its length.
type page struct {
	c     *call
	b     []byte // at most chunk is kept unsent; its capacity is pageBuffer
	until time.Time
	err   error // of the first write that failed; nothing is sent after it
}

// pageBuffer leaves room to append what is small without looking.
const pageBuffer = chunk + 8<<10

var pageBuffers = sync.Pool{New: func() any { b := make([]byte, 0, pageBuffer); return &b }}

// sendPage sends what encode appends.
func (c *call) sendPage(encode func(p *page)) {
	buf := pageBuffers.Get().(*[]byte)
	p := &page{c: c, b: (*buf)[:0], until: time.Now().Add(c.times.Answer)}
	encode(p)
	if c.status == 0 {
		c.answer(http.StatusOK, p.b)
	} else {
		p.send()
	}
	c.cut = p.err != nil
	*buf = p.b[:0]
	pageBuffers.Put(buf)
}

// full sends the buffer once a chunk is in it.
func (p *page) full() {
	if len(p.b) >= chunk {
		p.send()
	}
}

func (p *page) send() {
	if p.err == nil {
		p.c.mayWrite(p.until)
		if p.c.status == 0 {
			p.c.header(http.StatusOK, -1)
		}
		_, p.err = p.c.w.Write(p.b)
	}
	p.b = p.b[:0]
}

// bytes appends b as it is.
func (p *page) bytes(b []byte) {
	for len(b) > 0 {
		n := min(len(b), cap(p.b)-len(p.b))
		p.b = append(p.b, b[:n]...)
		b = b[n:]
		p.full()
	}
}

// base64 appends b in base64.
func (p *page) base64(b []byte) {
	for len(b) > 0 {
		n := min(len(b), (cap(p.b)-len(p.b))/4*3) // whole groups: only the last piece is padded
		p.b = base64.StdEncoding.AppendEncode(p.b, b[:n])
		b = b[n:]
		p.full()
	}
}
