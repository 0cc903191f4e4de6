// Command agentmbx is a host of agents' mail, a relay between hosts, and their
// tools.
//
// The files here parse a command line, call one service and print what it
// says; no rule of a host or a relay lives here.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/tui"
)

func main() {
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Main runs one command line and returns the exit code of the process. It
// alone turns errors into exit codes (see exit.go) and prints them: one line
// on errw (see errorLine). Facts go to out, everything else to errw.
//
// An interrupt or SIGTERM cancels the command's context; a second one ends
// the process at once.
func Main(args []string, in io.Reader, out, errw io.Writer) int {
	ctx, stop := untilSignal()
	defer stop()

	// net/http writes a word of its own to the standard logger when a server says
	// more than it was asked: text from outside, and nobody's line of log.
	log.SetOutput(io.Discard)

	root := newRoot(env{in: in, out: out, errw: errw})
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		say(errw, errorLine(cmd, err), errors.Is(err, tui.ErrLost))
	}
	return exitCode(err)
}

// sayWait is how long a terminal that may be gone has to take a line.
const sayWait = 300 * time.Millisecond

// say prints a line. One to a terminal that was lost may block for good.
func say(w io.Writer, text string, lost bool) {
	if !lost {
		fmt.Fprintln(w, text)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fmt.Fprintln(w, text)
	}()
	select {
	case <-done:
	case <-time.After(sayWait):
	}
}

// errorLine is an error as its one line on stderr: for a program that asked a
// command of the desk for JSON, as JSON.
func errorLine(cmd *cobra.Command, err error) string {
	if wantsJSON(cmd) {
		doc, bad := json.Marshal(errorFacts{oneLine(err), exitCode(err)})
		if bad == nil {
			return string(escapeJSON(doc))
		}
	}
	return "agentmbx: " + printable(oneLine(err))
}

// errorFacts is what a command of the desk prints on stderr when it fails, with
// --json and --json-lines.
type errorFacts struct {
	Error string `json:"error"`
	Code  int    `json:"code"` // the exit code
}

func wantsJSON(cmd *cobra.Command) bool {
	if cmd == nil || !strings.HasPrefix(cmd.CommandPath(), "agentmbx relay admin ") {
		return false
	}
	for _, name := range []string{"json", "json-lines"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Value.String() == "true" {
			return true
		}
	}
	return false
}

// untilSignal returns a context that an interrupt or SIGTERM ends. A second one
// ends the process as if nobody listened, however soon it comes.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	over := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-over:
			return
		}
		select {
		case s := <-signals:
			signal.Reset(s)
			if self, err := os.FindProcess(os.Getpid()); err != nil || self.Signal(s) != nil {
				os.Exit(codeFailed)
			}
		case <-over:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(over)
		cancel()
	}
}

// oneLine puts an error on one line: some of cobra's, and joined ones, have more.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	for i, l := range lines {
		lines[i] = strings.TrimSpace(l)
	}
	return strings.Join(lines, "; ")
}

// env is what a command may touch of the process that runs it.
type env struct {
	in   io.Reader
	out  io.Writer // facts
	errw io.Writer // talk
}

// exitCode returns the code for err, 0 for nil.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.code
	}
	return codeFailed
}
