// Package tui is the operator's terminal: seven screens over admin.Service.
//
// Every screen is a model with a pure update: what it shows follows from the
// messages it got. All that asks the Service runs in commands, elsewhere.
package tui

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// Options are what a terminal is made of.
type Options struct {
	Service  admin.Service
	Actor    string               // who acts, for the relay log
	Where    string               // the store's folder or the relay's URL, shown
	StoreDir string               // for the commands that a screen tells to run; "" for a relay elsewhere
	ReadOnly bool                 // shown, and keys that change something are off; the Service enforces it
	Refresh  time.Duration        // how often the screen asks anew; 0 means DefaultRefresh
	Gone     func(err error) bool // err says that there is no relay to answer; nil: none does
	Unsent   func(err error) bool // err says that a call reached no relay: nothing was done; nil: none does
	Colour   bool                 // the terminal's own sixteen
	ASCII    bool                 // the terminal shows no UTF-8
	In       io.Reader
	Out      io.Writer
	Now      func() time.Time // nil means time.Now

	copy  func(s string) // puts a text on the terminal's clipboard
	after func(time.Duration, func(time.Time) tea.Msg) tea.Cmd
}

// How often the screens ask anew.
const (
	DefaultRefresh = 2 * time.Second
	MinRefresh     = 200 * time.Millisecond
	MaxRefresh     = time.Hour
)

// whole fills in what was left out.
func (o Options) whole() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Gone == nil {
		o.Gone = func(error) bool { return false }
	}
	if o.Unsent == nil {
		o.Unsent = func(error) bool { return false }
	}
	if o.Refresh == 0 {
		o.Refresh = DefaultRefresh
	}
	o.Refresh = max(MinRefresh, min(MaxRefresh, o.Refresh))
	return o
}

// onceLines is how many lines a screen takes of a snapshot at most, onceLoads how
// often it may ask for them.
const (
	onceLines = 40
	onceLoads = 4
)

// Once draws every screen's first view as plain text, w columns wide.
func Once(ctx context.Context, o Options, w int) (string, error) {
	o.Colour = false
	m := newApp(o)
	m.w, m.h = max(w, minWidth), onceLines+frameLines
	m, _ = m.take(tea.WindowSizeMsg{Width: m.w, Height: m.h})
	var b strings.Builder
	fmt.Fprintf(&b, "agentmbx relay · %s · %s\n\n", clean(o.Where), stamp(m.now))
	for i, t := range m.tabs {
		s, err := loadOnce(ctx, t.screen)
		if err != nil {
			return b.String(), fmt.Errorf("%s: %w", t.title(), err)
		}
		fmt.Fprintf(&b, "== %d %s ==\n", i+1, t.title())
		lines := strings.Split(exactly(s.view(m.w, onceLines), m.w, onceLines), "\n")
		for j := range lines {
			if rest, chosen := strings.CutPrefix(lines[j], "▸"); chosen { // nobody chooses here
				lines[j] = " " + rest
			}
			lines[j] = strings.TrimRight(lines[j], " ")
		}
		b.WriteString(strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n\n")
	}
	return m.last(strings.TrimRight(b.String(), "\n") + "\n"), nil
}

// loadOnce has a screen load until it asks for no more.
func loadOnce(ctx context.Context, s screen) (screen, error) {
	for range onceLoads {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		load := s.load()
		if load == nil {
			return s, nil
		}
		msg := load()
		if err := failure(msg); err != nil {
			return s, err
		}
		next, cmd := s.update(msg)
		if s = next; cmd == nil {
			return s, nil
		}
		if _, more := cmd().(reloadMsg); !more {
			return s, nil
		}
	}
	return s, nil
}
