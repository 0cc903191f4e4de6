package main

import (
	"context"
	"log/slog"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/authority/jwks"
	"github.com/agentmbx/agentmbx/relay/store"
)

// newAuthority makes what decides who may enrol; issuer is nil unless accounts do.
func newAuthority(ctx context.Context, s Settings, st store.Store, log *slog.Logger) (who relay.EnrolmentAuthority, issuer admin.Issuer, err error) {
	a := s.Accounts
	if !a.hosted() {
		return authority.HostKey{}, nil, nil
	}
	accounts, err := jwks.New(ctx, jwks.Options{Issuer: a.Issuer, Audience: s.PublicURL, URL: a.keysURL(), DenyURL: a.DenyURL, Store: st, Log: log})
	if err != nil {
		return nil, nil, err
	}
	return accounts, accounts, nil
}
