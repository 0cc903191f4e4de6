package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	_ "net/http/pprof" // for -profile
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/server"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The bench runs itself again as the relays that are not the real one. The
// environment says so: a flag would stand in the help.
const (
	childEnv = "MBX_BENCH_CHILD" // the kind of relay to be
	dirEnv   = "MBX_BENCH_DIR"   // its store
)

// Kinds of relay.
const (
	realRelay  = "relay"
	naiveRelay = "naive"
	bareRelay  = "bare"
	otherBuild = "other"
	ownRelay   = "own" // the real relay inside the bench's child, for profiles
)

// lifted are limits that stop nothing.
func lifted() relay.Limits {
	l := relay.DefaultLimits()
	for _, f := range relay.LimitFields(&l) {
		switch f.Name {
		case "max_queue_items", "max_queue_bytes", "max_sender_items", "max_sender_bytes", "max_owner_items", "max_owner_bytes",
			"pushes_per_minute", "enrolments", "polls", "polls_per_key", "max_wait_s":
			*f.Value = f.Max
		}
	}
	return l
}

// liftedEnv is lifted as settings of the real relay.
func liftedEnv() (env []string) {
	l := lifted()
	for _, f := range relay.LimitFields(&l) {
		if *f.Value != f.Default {
			env = append(env, "MBX_RELAY_LIMIT_"+strings.ToUpper(f.Name)+"="+strconv.FormatInt(*f.Value, 10))
		}
	}
	return env
}

// process is a relay that runs.
type process struct {
	kind, addr, dir string
	cmd             *exec.Cmd
	waited          chan error
	profiles        chan string // where it serves profiles, once it does
}

// buildRelay builds the real binary.
func (b *bench) buildRelay(ctx context.Context) error {
	b.binary = filepath.Join(b.dir, "agentmbx")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.binary, "github.com/agentmbx/agentmbx/cmd/agentmbx")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the relay: %w\n%s", err, out)
	}
	return nil
}

// start runs a relay of a kind on a store folder and waits until it listens.
func (b *bench) start(ctx context.Context, kind, dir string) (*process, error) {
	var cmd *exec.Cmd
	if kind == realRelay || kind == otherBuild {
		binary := b.binary
		if kind == otherBuild {
			binary = b.other
		}
		cmd = exec.Command(binary, "relay", "serve", "--port", "0", "--store-dir", dir)
		cmd.Env = append(os.Environ(), liftedEnv()...)
	} else {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd = exec.Command(self)
		cmd.Env = append(os.Environ(), childEnv+"="+kind, dirEnv+"="+dir)
	}
	stderr, err := os.Create(dir + ".log")
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{kind: kind, dir: dir, cmd: cmd, waited: make(chan error, 1), profiles: make(chan string, 1)}
	addr := make(chan string, 1)
	go func() { // reads to the end, so that the child never waits for us
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			if _, at, ok := strings.Cut(sc.Text(), "listening on http://"); ok {
				addr <- at
			}
			if _, at, ok := strings.Cut(sc.Text(), "profiles on http://"); ok {
				p.profiles <- at
			}
		}
		close(addr)
		_, _ = io.Copy(io.Discard, out)
		p.waited <- cmd.Wait()
	}()
	select {
	case a, ok := <-addr:
		if !ok {
			said, _ := os.ReadFile(dir + ".log")
			return nil, fmt.Errorf("relay %s did not start: %w\n%s", kind, <-p.waited, said)
		}
		p.addr = a
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		return nil, ctx.Err()
	case <-time.After(90 * time.Second):
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("relay %s did not say where it listens", kind)
	}
	b.running = append(b.running, p)
	return p, nil
}

// stop ends a relay and waits for it.
func (p *process) stop() error {
	if p.cmd == nil {
		return nil
	}
	cmd := p.cmd
	p.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-p.waited:
		if err != nil {
			said, _ := os.ReadFile(p.dir + ".log")
			return fmt.Errorf("relay %s ended badly: %w\n%s", p.kind, err, said)
		}
		return nil
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		return fmt.Errorf("relay %s did not stop within a minute", p.kind)
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stopAll ends every relay and removes its store.
func (b *bench) stopAll() error {
	var errs []error
	for _, p := range b.running {
		errs = append(errs, p.stop(), os.RemoveAll(p.dir), os.RemoveAll(p.dir+".log"))
	}
	b.running = nil
	return errors.Join(errs...)
}

// child is the whole life of a relay that the bench runs itself as.
func child(kind string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir := os.Getenv(dirEnv)
	key, _, err := relay.LoadKey(dir, "", true)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serve := serveOwn
	switch kind {
	case bareRelay:
		serve = serveBare
	case naiveRelay:
		serve = serveNaive
	}
	fmt.Printf("listening on http://%s\n", l.Addr())
	return serve(ctx, l, dir, key)
}

// serveOwn is the real relay, with profiles.
func serveOwn(ctx context.Context, l net.Listener, dir string, key wire.PrivateKey) error {
	st, err := sqlite.Open(ctx, sqlite.Options{Dir: dir, Key: key.Public()})
	if err != nil {
		return err
	}
	r, err := relay.New(ctx, relay.Options{Store: st, Key: key, Version: "bench", Limits: lifted(), Authority: authority.HostKey{}})
	if err != nil {
		return errors.Join(err, st.Close())
	}
	profiles, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, st.Close())
	}
	fmt.Printf("profiles on http://%s\n", profiles.Addr())
	go func() { _ = http.Serve(profiles, nil) }() // ends with the process
	return errors.Join(server.New(server.Options{Relay: r}).Serve(ctx, l), st.Close())
}

func serveNaive(ctx context.Context, l net.Listener, dir string, key wire.PrivateKey) error {
	st, err := openNaive(filepath.Join(dir, sqlite.FileName))
	if err != nil {
		return err
	}
	r, err := relay.New(ctx, relay.Options{Store: st, Key: key, Version: "bench", Limits: lifted(), Authority: authority.HostKey{}})
	if err != nil {
		return errors.Join(err, st.Close())
	}
	in, err := r.Info(ctx, nil)
	if err != nil {
		return errors.Join(err, st.Close())
	}
	h := &handler{key: key.Public(), epoch: in.Epoch, hosts: r, take: oneByOne(r), ack: r.Ack}
	return errors.Join(serveHTTP(ctx, l, h), st.Close())
}

func serveBare(ctx context.Context, l net.Listener, dir string, key wire.PrivateKey) error {
	s, err := openBare(dir, key)
	if err != nil {
		return err
	}
	h := &handler{key: key.Public(), epoch: "bare", hosts: s, take: s.push, ack: s.ack}
	return errors.Join(serveHTTP(ctx, l, h), s.close())
}

// serveHTTP serves with the real relay's settings.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10,
	}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		c, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		stopped <- srv.Shutdown(c)
	})
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
