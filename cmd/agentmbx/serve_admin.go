package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/api"
)

// deskDoor is the desk over TCP; nothing of it happens where it is off.
type deskDoor struct {
	door *api.Door // nil: off
	l    net.Listener
}

// newDeskDoor checks the settings before anything is taken.
func newDeskDoor(a AdminSettings, log *slog.Logger) (*deskDoor, error) {
	if a.Listen == "" {
		return &deskDoor{}, nil
	}
	d := &api.Door{Address: a.Listen, Token: a.Token, ReadOnlyToken: a.ReadOnlyToken, CertFile: a.TLSCert, KeyFile: a.TLSKey, Log: log}
	if err := d.Check(); err != nil {
		return nil, usage(fmt.Errorf("MBX_ADMIN_LISTEN is %s: %w", a.Listen, err))
	}
	return &deskDoor{door: d}, nil
}

func (d *deskDoor) listen(svc admin.Service) (err error) {
	if d.door == nil {
		return nil
	}
	d.door.Service = svc
	if d.l, err = d.door.Listen(); err != nil {
		return fmt.Errorf("%w: stop what has it, or choose another MBX_ADMIN_LISTEN", err)
	}
	return nil
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
