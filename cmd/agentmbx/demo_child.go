package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a process of the demo: this program again. It ends with the demo,
// whatever becomes of that.
type child struct {
	name string
	cmd  *exec.Cmd
	log  *childLog
	done chan struct{} // closed when it has ended
}

// start runs a command of this program and waits until it has printed a line
// that begins with ready. It returns the child and all it has printed so far.
// What it prints goes to NAME.log in the demo's folder.
func (d *demo) start(ctx context.Context, name, ready string, args ...string) (*child, string, error) {
	f, err := os.OpenFile(filepath.Join(d.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, "", err
	}
	seen := make(chan string, 1)
	c := &child{
		name: name, cmd: exec.Command(d.exe, args...), done: make(chan struct{}),
		log: &childLog{file: f, ready: []byte("\n" + ready), seen: seen},
	}
	c.cmd.Dir, c.cmd.Env = d.dir, d.childEnv()
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	tie(c.cmd)
	if err := c.cmd.Start(); err != nil {
		return nil, "", errors.Join(fmt.Errorf("start %s: %w", name, err), f.Close())
	}
	go func() {
		_ = c.cmd.Wait() // how it ended stands in the log
		_ = f.Close()
		close(c.done)
	}()
	select {
	case text := <-seen:
		return c, text, nil
	case <-c.done:
		return nil, "", c.ended()
	case <-ctx.Done():
		c.kill()
		return nil, "", ctx.Err()
	}
}

// childEnv is all that a child sees of the environment: nothing of a host or a
// relay that is set up on this machine.
func (d *demo) childEnv() []string {
	env := []string{"HOME=" + d.dir, "MBX_LOG_FORMAT=text"}
	for _, name := range []string{"TMPDIR", "TEMP", "TMP", "SYSTEMROOT"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// ended says how a child ended that should not have.
func (c *child) ended() error {
	return fmt.Errorf("the process %s ended by itself (%s): %s", c.name, c.cmd.ProcessState, c.log.last())
}

// check returns an error when the child has ended. A nil child is none.
func (c *child) check() error {
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return c.ended()
	default:
		return nil
	}
}

// kill ends the child as kill -9 does. A nil child is none.
func (c *child) kill() {
	if c == nil {
		return
	}
	_ = c.cmd.Process.Kill() // fails only when it has ended
	<-c.done
}

// stop ends the child in good order.
func (c *child) stop() error {
	if c == nil {
		return nil
	}
	if err := c.check(); err != nil {
		return err
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.kill()
		return nil
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(10 * time.Second):
		c.kill()
		return fmt.Errorf("the process %s did not end within 10 seconds of SIGTERM", c.name)
	}
}

// childLog writes what a child prints to its log and looks out for a line.
type childLog struct {
	mu    sync.Mutex
	file  *os.File
	ready []byte        // a newline, then how the line begins
	text  []byte        // all so far; a child of the demo prints little
	seen  chan<- string // gets text once the line is whole; nil then
}

func (l *childLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if l.seen != nil {
		whole := append([]byte("\n"), l.text...)
		if i := bytes.Index(whole, l.ready); i >= 0 && bytes.IndexByte(whole[i+1:], '\n') >= 0 {
			l.seen <- string(l.text)
			l.seen = nil
		}
	}
	return l.file.Write(p)
}

// last is the last line.
func (l *childLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(string(l.text))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// freePort finds a port that nobody listens at. It is below those that outgoing
// calls are given, so that none has it while the demo's own process is dead.
func freePort() (int, error) {
	for range 200 {
		port := 20000 + rand.IntN(10000)
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port between 20000 and 30000 on 127.0.0.1")
}

// until asks often whether something is so, while the children live. It
// returns what was waited for as an error when the time is over.
func (d *demo) until(ctx context.Context, limit time.Duration, what string, is func() (bool, error)) error {
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := is(); ok || err != nil {
			return err
		}
		for _, c := range []*child{d.relay.proc, d.home.proc, d.work.proc} {
			if err := c.check(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%w: waited %s until %s: %s", errSlow, limit, what, d.why(ctx))
		case <-tick.C:
		}
	}
}

// errSlow is returned by until when the time is over.
var errSlow = errors.New("too slow")
