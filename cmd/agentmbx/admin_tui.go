package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/tui"
)

// onceWidth is how wide a snapshot is drawn.
const onceWidth = 120

func newRelayAdmin(e env) *cobra.Command {
	var o tuiOptions
	cmd := newGroup(&cobra.Command{
		Use:   "admin",
		Short: "Look after a relay: on a terminal, or step by step",
		Long: `Look after a relay. Alone it opens the terminal screens: overview, queues,
enrolments, quarantine, backups and drills, jobs, and the log. Its commands do the
same step by step, for scripts.

The screens are those of a running relay: without one they wait for it. --once and
the commands open the store themselves then, under its lock. Keys are shown with ?,
and nothing is changed without being asked first.`,
		Example: `  agentmbx relay admin --store-dir ./data
  agentmbx relay admin --read-only --refresh 5s
  agentmbx relay admin --once > snapshot.txt
  agentmbx relay admin queues --sort oldest --json`,
	}, adminCommands(e)...)
	cmd.PersistentPreRunE = noEmptyFlags
	at := bindDesk(cmd)
	cmd.Flags().BoolVar(&o.readOnly, "read-only", false, "change nothing")
	cmd.Flags().BoolVar(&o.once, "once", false, "print every screen once as text, and end")
	cmd.Flags().DurationVar(&o.refresh, "refresh", tui.DefaultRefresh, "how often the screens ask anew")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.refresh < tui.MinRefresh || o.refresh > tui.MaxRefresh {
			return usage(fmt.Errorf("--refresh is %s: want %s to %s", o.refresh, tui.MinRefresh, tui.MaxRefresh))
		}
		if o.once {
			return o.snapshot(cmd.Context(), e, at)
		}
		return o.screens(cmd.Context(), e, at)
	}
	return cmd
}

// noEmptyFlags refuses a flag that was given without a value: a script whose variable
// is not set must not list, hold or block more than was meant.
func noEmptyFlags(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) { // those that were given
		if err == nil && strings.TrimSpace(f.Value.String()) == "" {
			err = usage(fmt.Errorf("--%s is empty: want a value; see %s -h", f.Name, cmd.CommandPath()))
		}
	})
	return err
}

// tuiOptions are how the screens are shown.
type tuiOptions struct {
	readOnly, once bool
	refresh        time.Duration
}

// options are those of the screens, over a desk.
func (o tuiOptions) options(svc admin.Service) tui.Options {
	if o.readOnly {
		svc = admin.ReadOnly(svc)
	}
	return tui.Options{Service: svc, Actor: "tui:" + strings.TrimPrefix(actor(), "cli:"), ReadOnly: o.readOnly, Refresh: o.refresh,
		Gone: func(err error) bool { return errors.Is(err, api.ErrNotRunning) }, Unsent: api.Unsent}
}

// snapshot prints every screen once.
func (o tuiOptions) snapshot(ctx context.Context, e env, at *deskReader) error {
	d, err := at.service() // only for its place
	if err != nil {
		return err
	}
	return at.with(ctx, e, func(svc admin.Service, _ bool) error {
		t := o.options(svc)
		t.Where = d.Where
		_, t.ASCII = tui.Terminal(os.Getenv)
		text, err := tui.Once(ctx, t, onceWidth)
		if err != nil {
			return deskError(err)
		}
		_, err = io.WriteString(e.out, text)
		return err
	})
}

// screens opens the terminal screens.
func (o tuiOptions) screens(ctx context.Context, e env, at *deskReader) error {
	if why := noScreens(e); why != "" {
		return usage(fmt.Errorf("the screens need a terminal, and %s: agentmbx relay admin overview says how the relay does, and agentmbx relay admin --once prints every screen as text", why))
	}
	d, err := at.service()
	if err != nil {
		return err
	}
	t := o.options(d.Service)
	t.Where, t.StoreDir, t.In, t.Out = d.Where, d.StoreDir, e.in, e.out
	t.Colour, t.ASCII = tui.Terminal(os.Getenv)
	return tui.Run(ctx, t)
}

// noScreens says why there is no terminal to draw screens on, "" when there is one.
func noScreens(e env) string {
	switch {
	case os.Getenv("TERM") == "dumb":
		return "TERM is dumb"
	case !tui.IsTerminal(e.in):
		return "stdin is none"
	case !tui.IsTerminal(e.out):
		return "stdout is none"
	}
	return ""
}
