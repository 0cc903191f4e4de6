package tui

import (
	"bytes"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// line is the way to a terminal and back. It says when the terminal is gone. One
// that is there and takes no bytes keeps the program from reading keys: then the
// line reads them itself, for ctrl+c, and drops the others: what is typed on a
// screen that stands still is not done.
type line struct {
	lost  func() // the terminal is gone
	leave func() // ctrl+c was pressed on a terminal that takes no bytes
	in    io.Reader

	mu      sync.Mutex   // each write is a whole one, also beside others
	writes  atomic.Int64 // that began
	writing atomic.Bool  // the last one has not ended
	reads   atomic.Bool  // keys are read here
}

// stuckAfter is how long a write takes at least on a terminal that takes no bytes.
const stuckAfter = 500 * time.Millisecond

// ctrlC is the key in raw mode.
const ctrlC = '\x03'

// read takes keys, for the program or here.
func (l *line) read(r io.Reader, p []byte) (int, error) {
	n, err := r.Read(p)
	if err != nil {
		l.lost()
	}
	if bytes.IndexByte(p[:n], ctrlC) >= 0 {
		l.whileStuck(l.leave)
	}
	return n, err
}

func (l *line) write(w io.Writer, p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes.Add(1)
	l.writing.Store(true)
	defer l.writing.Store(false)
	l.whileStuck(l.listen)
	n, err := w.Write(p)
	if err != nil {
		l.lost()
	}
	return n, err
}

// whileStuck calls f when the write that is under way is so a while later, too.
func (l *line) whileStuck(f func()) {
	n := l.writes.Load()
	time.AfterFunc(stuckAfter, func() {
		if l.writing.Load() && l.writes.Load() == n {
			f()
		}
	})
}

// listen waits for ctrl+c as long as the terminal takes no bytes.
func (l *line) listen() {
	if !l.reads.CompareAndSwap(false, true) {
		return
	}
	defer l.reads.Store(false)
	for p := make([]byte, 256); l.writing.Load(); {
		n, err := l.in.Read(p)
		if err != nil {
			return
		}
		if bytes.IndexByte(p[:n], ctrlC) >= 0 {
			l.leave()
			return
		}
	}
}

// input is what keys come from. A terminal stays one for bubbletea.
func (l *line) input(r io.Reader) io.Reader {
	if f, ok := r.(*os.File); ok {
		return &terminal{f, l}
	}
	return &reader{r, l}
}

func (l *line) output(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		return &terminal{f, l}
	}
	return &writer{w, l}
}

type terminal struct {
	*os.File
	line *line
}

func (t *terminal) Read(p []byte) (int, error)        { return t.line.read(t.File, p) }
func (t *terminal) Write(p []byte) (int, error)       { return t.line.write(t.File, p) }
func (t *terminal) WriteString(s string) (int, error) { return t.Write([]byte(s)) }

type reader struct {
	r    io.Reader
	line *line
}

func (r *reader) Read(p []byte) (int, error) { return r.line.read(r.r, p) }

type writer struct {
	w    io.Writer
	line *line
}

func (w *writer) Write(p []byte) (int, error) { return w.line.write(w.w, p) }
