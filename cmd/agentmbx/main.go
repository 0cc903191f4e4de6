// Command agentmbx is a host of agents' mail, a relay between hosts, and their
// tools.
//
// The files here parse a command line, call one service and print what it
// says; no rule of a host or a relay lives here.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Main runs one command line and returns the exit code of the process. It
// alone turns errors into exit codes (see exit.go) and prints them: one line
// on errw. Facts go to out, everything else to errw.
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
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(errw, "agentmbx:", printable(oneLine(err)))
	}
	return exitCode(err)
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
