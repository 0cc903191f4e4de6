package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Bounds of `demo --messages`: fewer show nothing, more take over a minute.
const (
	demoMin     = 14
	demoMax     = 2000
	demoDefault = 200
)

// demoLimit ends a demo that hangs.
const demoLimit = 3 * time.Minute

type demoOptions struct {
	messages int
	keep     bool
	json     bool
}

func newDemo(e env) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a relay and two hosts lose nothing while they are killed",
		Long: `Run a relay and two hosts on this machine, in a temporary folder and on
loopback only: mail both ways, the relay and a host killed in mid-flight, a key
rotation, a backup, a store that is lost and restored, and the count of what was
lost and duplicated.

It takes about half a minute, uses nothing of a host that is set up here, and
leaves nothing behind. Exit 5 when a message was lost, duplicated or not
confirmed, 1 when the demo could not run to its end.`,
		Example: `  agentmbx demo
  agentmbx demo --messages 1000 --keep
  agentmbx demo --json`,
	}
	cmd.Flags().IntVar(&o.messages, "messages", demoDefault, fmt.Sprintf("how many messages, %d to %d", demoMin, demoMax))
	cmd.Flags().BoolVar(&o.keep, "keep", false, "keep the folder and say where it is")
	cmd.Flags().BoolVar(&o.json, "json", false, "print only the facts, as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.messages < demoMin || o.messages > demoMax {
			return usage(fmt.Errorf("--messages %d: want %d to %d", o.messages, demoMin, demoMax))
		}
		return runDemo(cmd.Context(), e, o)
	}
	return cmd
}

// demo is a relay, two hosts, and the story that is told about them.
type demo struct {
	env
	demoOptions
	exe     string // this program, which is the relay and the daemons
	dir     string
	began   time.Time
	relay   *demoRelay
	home    *site
	work    *site
	sent    []letter // what Send has promised to deliver
	facts   demoFacts
	showing bool                    // a progress word stands on the terminal
	cut     context.CancelCauseFunc // ends the story when it can't be told
}

// demoStep is a chapter of the story.
type demoStep struct {
	title string
	run   func(d *demo, ctx context.Context) error
}

var demoSteps = []demoStep{
	{"A relay starts.", (*demo).startRelay},
	{"Two hosts, home and work, meet on one network and pair.", (*demo).pairHosts},
	{"They part. Only the relay is between them now.", (*demo).partHosts},
	{"Mail goes both ways while things break.", (*demo).breakThings},
	{"home takes new keys.", (*demo).rotateKeys},
	{"The operator takes a backup while mail goes on.", (*demo).takeBackup},
	{"The relay's store is lost. The backup is restored.", (*demo).loseStore},
	{"The count, read from both hosts' databases.", (*demo).count},
}

func runDemo(ctx context.Context, e env, o demoOptions) (err error) {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	// Who reads the story may go away (`| head`): that is an error of a write, and
	// no reason to leave a folder with keys behind.
	signal.Ignore(syscall.SIGPIPE)
	dir, err := makeDemoDir(os.TempDir(), freeBytes)
	if err != nil {
		return err
	}
	d := &demo{env: e, demoOptions: o, exe: exe, dir: dir, began: time.Now()}
	defer func() { err = errors.Join(err, d.end()) }()
	if err := d.tell(ctx); err != nil {
		return err
	}
	return d.verdict()
}

// tell runs the steps in their order.
func (d *demo) tell(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, demoLimit)
	defer stop()
	ctx, d.cut = context.WithCancelCause(ctx)
	defer d.cut(nil)
	d.say("A relay and two hosts, each a process of its own, in %s.", d.dir)
	d.say("Nothing outside this folder is used; everything stays on this machine.")
	for i, s := range demoSteps {
		d.say("\n%d. %s", i+1, s.title)
		err := s.run(d, ctx)
		if unheard := (*unheardError)(nil); errors.As(context.Cause(ctx), &unheard) {
			return unheard
		}
		if err != nil {
			switch {
			case errors.Is(ctx.Err(), context.Canceled):
				return errors.New("interrupted: nothing is left running")
			case errors.Is(ctx.Err(), context.DeadlineExceeded):
				err = fmt.Errorf("it took over %s: is the machine very busy? try fewer --messages", demoLimit)
			}
			return fmt.Errorf("demo step %d: %w", i+1, err)
		}
	}
	return nil
}

// end ends what the demo has started and removes its folder.
func (d *demo) end() (err error) {
	d.unshow()
	if d.relay != nil {
		d.relay.proc.kill()
	}
	for _, s := range []*site{d.home, d.work} {
		if s != nil {
			err = errors.Join(err, s.close())
		}
	}
	if d.keep {
		d.say("\nKept in %s: the relay's store, two homes, three logs.\nLook around with: agentmbx inbox --all --home %s", d.dir, filepath.Join(d.dir, "work"))
		if d.json {
			fmt.Fprintln(d.errw, "kept in", d.dir) // the facts name it, too, if it came to them
		}
		return err
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// verdict prints the facts and is an error when they are not as promised.
func (d *demo) verdict() error {
	d.unshow()
	d.facts.Seconds = float64(time.Since(d.began).Milliseconds()) / 1000
	if d.keep {
		d.facts.Folder = d.dir
	}
	if d.json {
		if err := json.NewEncoder(d.out).Encode(d.facts); err != nil {
			return err
		}
	} else if _, err := io.WriteString(d.out, d.facts.String()); err != nil {
		return err
	}
	return d.facts.err()
}

// say tells a piece of the story.
func (d *demo) say(format string, args ...any) {
	if d.json {
		return
	}
	d.unshow()
	if _, err := fmt.Fprintf(d.out, format+"\n", args...); err != nil && d.cut != nil {
		d.cut(&unheardError{err})
	}
}

// unheardError ends a demo whose story nobody reads.
type unheardError struct{ err error }

func (e *unheardError) Error() string {
	return "the story could not be printed: " + e.err.Error() + ": nothing is left running"
}
func (e *unheardError) Unwrap() error { return e.err }

// note tells a detail, indented under its step.
func (d *demo) note(format string, args ...any) {
	d.say("   %s", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n   "))
}

// show puts a progress word on the terminal, if there is one and the story, when
// it is told, goes there, too.
func (d *demo) show(format string, args ...any) {
	if !isTerminal(d.errw) || !d.json && !isTerminal(d.out) {
		return
	}
	fmt.Fprintf(d.errw, "\r   %-60s", fmt.Sprintf(format, args...))
	d.showing = true
}

func (d *demo) unshow() {
	if d.showing {
		fmt.Fprintf(d.errw, "\r%63s\r", "")
		d.showing = false
	}
}

// isTerminal reports whether w is a terminal whose lines can be written over.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}
