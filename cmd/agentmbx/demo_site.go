package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/agentmbx/agentmbx/relay/host"
)

// demoBox is the mailbox that all mail of the demo is for.
const demoBox = "owner"

// site is one of the two hosts: its home, its daemon, and this process beside
// it, as any agentmbx command is.
type site struct {
	name string
	dir  string
	port int // of its LAN server
	host *host.Host
	proc *child // the daemon; nil when none runs
}

func (s *site) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// newSite makes a host.
func (d *demo) newSite(ctx context.Context, name string) (*site, error) {
	s := &site{name: name, dir: filepath.Join(d.dir, name)}
	o := host.Options{Home: s.dir, Version: version}
	var err error
	if s.port, err = freePort(); err != nil {
		return nil, err
	}
	if err := host.Init(ctx, o, name); err != nil {
		return nil, err
	}
	s.host, err = host.Open(ctx, o)
	return s, err
}

// daemon starts the host's daemon, on the LAN or off it.
func (d *demo) daemon(ctx context.Context, s *site, lan bool) (err error) {
	args := []string{"daemon", "--home", s.dir, "--no-lan"}
	if lan {
		args = []string{"daemon", "--home", s.dir, "--lan-bind", "127.0.0.1", "--lan-port", strconv.Itoa(s.port)}
	}
	s.proc, _, err = d.start(ctx, s.name, "ready:", args...)
	return err
}

// daemons starts both daemons again, on the LAN or off it.
func (d *demo) daemons(ctx context.Context, lan bool) error {
	for _, s := range []*site{d.home, d.work} {
		if err := s.stop(); err != nil {
			return err
		}
	}
	for _, s := range []*site{d.home, d.work} {
		if err := d.daemon(ctx, s, lan); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) stop() error {
	p := s.proc
	s.proc = nil
	return p.stop()
}

func (s *site) kill() {
	s.proc.kill()
	s.proc = nil
}

func (s *site) close() error {
	s.kill()
	if s.host == nil {
		return nil
	}
	return s.host.Close()
}

// send sends a message to the other host's owner. When it returns, the message
// is on this host's disk and in the books.
func (d *demo) send(ctx context.Context, from, to *site, subject string) (id string, err error) {
	m, err := from.host.Send(ctx, host.Draft{To: []string{demoBox + "@" + to.name}, Subject: subject, Body: "This is " + subject + ".\n"})
	if err != nil {
		return "", err
	}
	d.sent = append(d.sent, letter{id: m.ID, subject: subject, from: from.name, to: to.name})
	return m.ID, nil
}

// demoRelay is the relay: a store that stays, and a process that does not.
type demoRelay struct {
	dir    string
	port   int
	url    string
	key    string // fingerprint
	backup string // the file of its backup
	proc   *child // nil when none runs
}

var demoServing = regexp.MustCompile(`listening on (http://\S+)(?s:.*)relay key +(\S+)`)

// serve starts the relay, each time on the same store and port.
func (d *demo) serve(ctx context.Context) error {
	r := d.relay
	p, text, err := d.start(ctx, "relay", "relay key",
		"relay", "serve", "--store-dir", r.dir, "--bind", "127.0.0.1", "--port", strconv.Itoa(r.port))
	if err != nil {
		return err
	}
	r.proc = p
	m := demoServing.FindStringSubmatch(text)
	if m == nil {
		return errors.New("the relay did not say where it listens")
	}
	if r.key != "" && m[2] != r.key {
		return fmt.Errorf("the relay came back with the key %s, not %s", m[2], r.key)
	}
	r.url, r.key = m[1], m[2]
	return nil
}

func (r *demoRelay) kill() {
	r.proc.kill()
	r.proc = nil
}
