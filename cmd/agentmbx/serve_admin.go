package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// deskDoor is the desk over TCP; nothing of it happens where it is off.
type deskDoor struct {
	door *api.Door // nil: off
	l    net.Listener
}

// newDeskDoor checks the settings, and whether the address can be had, before
// anything is taken.
func newDeskDoor(s Settings, log *slog.Logger) (*deskDoor, error) {
	a := s.Admin
	if a.Listen == "" {
		if names := a.idle(); len(names) > 0 {
			log.Warn("settings of the desk over TCP have no effect until MBX_ADMIN_LISTEN is set", "settings", strings.Join(names, " "))
		}
		return &deskDoor{}, nil
	}
	d := &deskDoor{door: &api.Door{Address: a.Listen, Token: a.Token, ReadOnlyToken: a.ReadOnlyToken, CertFile: a.TLSCert, KeyFile: a.TLSKey, Log: log}}
	if err := d.door.Check(); err != nil {
		return nil, usage(fmt.Errorf("MBX_ADMIN_LISTEN is %s: %w", a.Listen, err))
	}
	if clashes(s) {
		return nil, usage(fmt.Errorf("MBX_ADMIN_LISTEN is %s: the relay itself listens there (--bind %s, --port %d): choose another port for one of the two", a.Listen, s.Bind, s.Port))
	}
	return d, d.try(s.StoreDir)
}

// clashes reports whether the desk is to listen where the relay does. A name that
// cannot be resolved is for whoever listens on it to refuse.
func clashes(s Settings) bool {
	relay, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(s.Bind, strconv.Itoa(s.Port)))
	if err != nil {
		return false
	}
	desk, err := net.ResolveTCPAddr("tcp", s.Admin.Listen)
	if err != nil || desk.Port != relay.Port || desk.Port == 0 {
		return false
	}
	covers := func(a, b net.IP) bool { // :: is every address of both kinds
		return a == nil || a.Equal(net.IPv6unspecified) || a.Equal(net.IPv4zero) && b.To4() != nil
	}
	return desk.IP.Equal(relay.IP) || covers(desk.IP, relay.IP) || covers(relay.IP, desk.IP)
}

// try takes the address for a moment, so that one that cannot be had stops the
// start before a store is made. On a store that is there the port may be that of
// the relay whose end this one is about to wait for.
func (d *deskDoor) try(storeDir string) error {
	l, err := d.door.Listen()
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		if exists, failed := sqlite.Exists(storeDir); exists || failed != nil {
			return nil
		}
	}
	return addressError(err, "MBX_ADMIN_LISTEN")
}

func (d *deskDoor) listen(svc admin.Service) (err error) {
	if d.door == nil {
		return nil
	}
	d.door.Service = svc
	if d.l, err = d.door.Listen(); err != nil {
		return addressError(err, "MBX_ADMIN_LISTEN")
	}
	return nil
}

// addressError says what is to be done about an address that cannot be had.
func addressError(err error, setting string) error {
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: this machine has no such address: choose another %s", err, setting)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: stop what has it, or choose another %s", err, setting)
	}
	return fmt.Errorf("%w: choose another %s", err, setting)
}

func (d *deskDoor) serve(ctx context.Context) error {
	if d.l == nil {
		return nil
	}
	return d.door.Serve(ctx, d.l)
}

func (d *deskDoor) close() error {
	if d.l == nil {
		return nil
	}
	return d.l.Close()
}

// place says where the desk is and which tokens there are; "" where it is off.
func (d *deskDoor) place() string {
	if d.l == nil {
		return ""
	}
	scheme, tokens := "http", "full token only"
	if d.door.CertFile != "" {
		scheme = "https"
	}
	switch (api.TokenHash{}) {
	case d.door.Token:
		tokens = "read-only token only"
	case d.door.ReadOnlyToken:
	default:
		tokens = "full and read-only token"
	}
	return fmt.Sprintf("%s://%s (%s)", scheme, d.l.Addr(), tokens)
}
