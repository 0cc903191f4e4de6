package main

import (
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// What scripts may say beside testscript's own commands.
//
//	start NAME ARG...       runs agentmbx ARG... in the background until the script
//	                        ends, waits until it serves, and sets $NAME to where:
//	                        a relay's URL, a daemon's LAN address
//	end NAME                tells it to stop; it must exit 0. Its output is then
//	                        that of the last command
//	until REGEXP COMMAND... repeats a command until its stdout matches
//	capture VAR REGEXP      sets $VAR to the first group found in the last stdout

// scripted is a process of a script.
type scripted struct {
	cmd  *exec.Cmd
	out  *lockedBuffer
	done chan struct{} // closed when it has ended
}

// running holds them by script and name.
var running sync.Map

type runningKey struct {
	ts   *testscript.TestScript
	name string
}

var serves = regexp.MustCompile(`(?m)^listening on (\S+)|^ready: .*, LAN (\S+), relay |"msg":"ready"|"message":"ready"`)

func startScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME ARG...")
	}
	path, err := exec.LookPath("agentmbx")
	ts.Check(err)
	p := &scripted{cmd: exec.Command(path, args[1:]...), out: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"HOME", "PATH", "MBX_HOME", "MBX_RELAY_URL", "MBX_LOG_FORMAT", "GORACE", envTokenCommand, envTokenFile} {
		if v := ts.Getenv(name); v != "" {
			p.cmd.Env = append(p.cmd.Env, name+"="+v)
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	ts.Check(p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	ts.Defer(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	running.Store(runningKey{ts, args[0]}, p)
	poll(ts, 10*time.Millisecond, "it says that it serves", func() bool {
		select {
		case <-p.done:
			ts.Fatalf("it ended: %s", p.out)
		default:
		}
		m := serves.FindStringSubmatch(p.out.String())
		if m != nil {
			ts.Setenv(args[0], m[1]+m[2])
		}
		return m != nil
	})
}

func endScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: end NAME")
	}
	v, ok := running.LoadAndDelete(runningKey{ts, args[0]})
	if !ok {
		ts.Fatalf("%s was not started", args[0])
	}
	p := v.(*scripted)
	ts.Check(p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		ts.Fatalf("it does not end: %s", p.out)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		ts.Fatalf("got exit code %d; want 0: %s", code, p.out)
	}
	_, err := ts.Stdout().Write([]byte(p.out.String()))
	ts.Check(err)
}

func untilScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND...")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	poll(ts, 100*time.Millisecond, strings.Join(args[1:], " ")+" says "+args[0], func() bool {
		return ts.Exec(args[1], args[2:]...) == nil && want.MatchString(ts.ReadFile("stdout"))
	})
}

func captureScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture VAR REGEXP")
	}
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	m := re.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(m) < 2 {
		ts.Fatalf("no group of %s in stdout", args[1])
	}
	ts.Setenv(args[0], m[1])
}

// poll waits until ok, for a while.
func poll(ts *testscript.TestScript, every time.Duration, what string, ok func() bool) {
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			ts.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}
