package tui

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/x/term"

	_ "github.com/agentmbx/agentmbx/tui/noquery"
)

// ErrLost: the terminal went away, as it does when an ssh connection ends.
var ErrLost = errors.New("the terminal is gone")

// Terminal says from the environment how a terminal is drawn to: with colour
// unless NO_COLOR holds anything, and in ASCII unless the locale has UTF-8.
func Terminal(getenv func(string) string) (colour, ascii bool) {
	locale := ""
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale = getenv(name); locale != "" {
			break
		}
	}
	locale = strings.ToLower(locale)
	return getenv("NO_COLOR") == "", !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")
}

// IsTerminal reports whether keys can be read from v, or screens drawn on it.
func IsTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(f.Fd())
}

const (
	// fps is how often a second the screen is drawn at most.
	fps = 30
	// patience is how long the end may take: a terminal that takes no more bytes
	// must not keep the process.
	patience = time.Second
)

// Run shows the screens until the operator leaves or ctx ends, and answers nil
// then. It answers ErrLost as soon as the terminal is gone: by SIGHUP, or when it
// can't be read or written any more.
func Run(ctx context.Context, o Options) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	lost := func() { end(ErrLost) }
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	go func() {
		select {
		case <-hup:
			lost()
		case <-ctx.Done():
		}
	}()

	out := watchedOut(o.Out, lost)
	o.copy = func(s string) {
		_, _ = out.Write([]byte("\x1b]52;c;" + base64.StdEncoding.EncodeToString([]byte(s)) + "\a")) // a loss is seen by whoever watches
	}
	p := tea.NewProgram(newApp(o), tea.WithContext(ctx), tea.WithInput(watchedIn(o.In, lost)), tea.WithOutput(out),
		tea.WithAltScreen(), tea.WithoutSignalHandler(), tea.WithFPS(fps))
	done := make(chan error, 1)
	go func() {
		_, err := p.Run()
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(patience):
		}
	}
	switch {
	case errors.Is(context.Cause(ctx), ErrLost):
		return ErrLost
	case ctx.Err() != nil:
		return nil
	}
	return err
}

// watchedIn is what keys come from. A terminal stays one for bubbletea.
func watchedIn(r io.Reader, lost func()) io.Reader {
	if f, ok := r.(*os.File); ok {
		return &terminal{File: f, lost: lost}
	}
	return &watchedReader{r, lost}
}

func watchedOut(w io.Writer, lost func()) io.Writer {
	if f, ok := w.(*os.File); ok {
		return &terminal{File: f, lost: lost}
	}
	return &watchedWriter{w: w, lost: lost}
}

// terminal is a terminal that says so when it is gone. Each write is a whole one,
// also beside others.
type terminal struct {
	*os.File
	lost func()
	mu   sync.Mutex
}

func (t *terminal) Read(p []byte) (int, error) {
	n, err := t.File.Read(p)
	if err != nil {
		t.lost()
	}
	return n, err
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.File.Write(p)
	if err != nil {
		t.lost()
	}
	return n, err
}

func (t *terminal) WriteString(s string) (int, error) { return t.Write([]byte(s)) }

type watchedReader struct {
	r    io.Reader
	lost func()
}

func (w *watchedReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil {
		w.lost()
	}
	return n, err
}

type watchedWriter struct {
	w    io.Writer
	lost func()
	mu   sync.Mutex
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.w.Write(p)
	if err != nil {
		w.lost()
	}
	return n, err
}
