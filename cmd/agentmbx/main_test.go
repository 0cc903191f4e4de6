package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"agentmbx": main})
}

// TestScripts runs the real Main in a process of its own, under the scripts of
// testdata/script. They may say `exits CODE COMMAND...` and what
// host_script_test.go and admin_script_test.go add, and ask whether [race] the race
// detector is at work. Scripts that prove a situation of the scenarios
// begin with its letter and number.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Condition: func(cond string) (bool, error) {
			if cond != "race" {
				return false, fmt.Errorf("unknown condition %s", cond)
			}
			return raceDetector, nil
		},
		// Scripts get an environment of their own, which may not say how the detector ends.
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "start": startScript, "end": endScript, "until": untilScript, "capture": captureScript,
			"mail": mailScript, "spoil": spoilScript, "fetch": fetchScript, "accept": acceptScript,
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("got exit code %d; want %d", got, want)
	}
}

// eachCommand calls f for every command of the tree, cobra's own included.
func eachCommand(t *testing.T, f func(t *testing.T, cmd *cobra.Command)) {
	t.Helper()
	root := newRoot(env{in: strings.NewReader(""), out: io.Discard, errw: io.Discard})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		t.Run(cmd.CommandPath(), func(t *testing.T) { f(t, cmd) })
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root)
}

func TestEveryCommandHasHelp(t *testing.T) {
	eachCommand(t, func(t *testing.T, cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("Short: got %q; want a line without full stop", cmd.Short)
		}
		if !strings.Contains(cmd.Example, "agentmbx ") {
			t.Fatalf("Example: got %q; want a command line", cmd.Example)
		}
		for _, args := range [][]string{{"-h"}, {"--help"}} {
			var out, errw bytes.Buffer
			args = append(strings.Fields(cmd.CommandPath())[1:], args...)
			code := Main(args, strings.NewReader(""), &out, &errw)
			if code != 0 || errw.Len() > 0 || !strings.Contains(out.String(), cmd.Example) {
				t.Errorf("%v: got code %d, stderr %q, stdout %q; want 0 and the example on stdout", args, code, errw.String(), out.String())
			}
		}
	})
}

// Whatever is wrong with a command line, it is exit code 2 and one line.
func TestUsageErrors(t *testing.T) {
	eachCommand(t, func(t *testing.T, cmd *cobra.Command) {
		for _, bad := range []string{"--no-such-flag", "no-such-word"} {
			if bad == "no-such-word" && cmd.Args != nil && cmd.Args(cmd, []string{bad}) == nil && cmd.Name() != "help" {
				continue // takes an argument
			}
			var out, errw bytes.Buffer
			code := Main(append(strings.Fields(cmd.CommandPath())[1:], bad), strings.NewReader(""), &out, &errw)
			msg := errw.String()
			if code != 2 || out.Len() > 0 || strings.Count(msg, "\n") != 1 || !strings.HasPrefix(msg, "agentmbx: ") || !strings.Contains(msg, bad) {
				t.Errorf("%s: got code %d, stdout %q, stderr %q; want 2 and one line that names it", bad, code, out.String(), msg)
			}
		}
	})
}

func TestExitCode(t *testing.T) {
	base := errors.New("no")
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"done", nil, 0},
		{"failed", base, 1},
		{"usage", usage(base), 2},
		{"refused", refused(base), 3},
		{"not found", notFound(base), 4},
		{"unhealthy", unhealthy(base), 5},
		{"wrapped", fmt.Errorf("serve: %w", refused(base)), 3},
		{"usage of nil", usage(nil), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := exitCode(tt.err); got != tt.want {
				t.Errorf("got %d; want %d", got, tt.want)
			}
			if tt.want != 0 && !errors.Is(tt.err, base) {
				t.Errorf("got %v; want it to wrap %v", tt.err, base)
			}
		})
	}
}

func TestOneLine(t *testing.T) {
	if got, want := oneLine(errors.New("a\n\n\tb\r\nc")), "a; b; c"; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
}
