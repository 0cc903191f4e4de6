package tui

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"os/signal"
	"strings"
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
	// A line that a terminal takes for longer than it was counted must not go on in
	// the next one, and scroll the screen away.
	noWrap, wrapAgain = "\x1b[?7l", "\x1b[?7h"
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

	w := &line{lost: lost, leave: func() { end(nil) }}
	in, out := w.input(o.In), w.output(o.Out)
	w.in = in
	o.copy = func(s string) {
		_, _ = out.Write([]byte("\x1b]52;c;" + base64.StdEncoding.EncodeToString([]byte(s)) + "\a")) // a loss is seen by whoever watches
	}
	p := tea.NewProgram(newApp(o), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out),
		tea.WithAltScreen(), tea.WithoutSignalHandler(), tea.WithFPS(fps))
	done := make(chan error, 1)
	go func() {
		_, _ = out.Write([]byte(noWrap)) // a loss is seen by whoever watches
		_, err := p.Run()
		_, _ = out.Write([]byte(wrapAgain))
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
