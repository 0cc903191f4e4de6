package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/server"
)

func newServe(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the relay",
		Long: `Run the relay on one store until it is told to stop.

The relay's key comes from MBX_RELAY_KEY, else from relay.key in the store's
folder; the first start makes one. SIGTERM or an interrupt ends long polls,
answers what is at hand and exits 0; a second one exits at once.`,
		Example: `  agentmbx relay serve --store-dir ./data
  agentmbx relay serve --bind 0.0.0.0 --port 7374 --trust-proxy=xff`,
	}
	r := bindSettings(cmd.Flags(), "store-dir", "port", "bind", "trust-proxy", "public-url", "backup-dir")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		if err := s.checkAccounts(); err != nil {
			return err
		}
		return runServe(cmd.Context(), e, s)
	}
	return cmd
}

// lockWait is how long a start waits for the process that has the store: an
// old container may outlive its replacement's start.
const lockWait = time.Minute

func runServe(ctx context.Context, e env, s Settings) (err error) {
	log := newLog(s.LogFormat, e.out, e.errw)
	door, err := newDeskDoor(s, log)
	if err != nil {
		return err
	}
	st, key, source, err := openStore(ctx, e, s, log)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		log.Info("stopped while waiting for the store")
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if _, err := api.Dial(ctx, s.StoreDir); err == nil {
		return refused(fmt.Errorf("a relay still runs on %s, though its lock file is gone: stop it first", s.StoreDir))
	}
	who, issuer, err := newAuthority(ctx, s, st, log)
	if err != nil {
		return err
	}
	r, err := relay.New(ctx, relay.Options{Store: st, Key: key, Version: version, Limits: s.Limits, Authority: who, Log: log})
	if err != nil {
		return err
	}
	l, err := listen(s)
	if err != nil {
		return err
	}
	desk, err := newLocal(s, st, r, issuer, key.Public(), key, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	desk.Begin()
	if err := door.listen(desk); err != nil {
		return errors.Join(err, l.Close())
	}
	sock, err := api.Listen(s.StoreDir)
	if err != nil {
		return errors.Join(err, l.Close(), door.close())
	}
	srv := server.New(server.Options{Relay: r, Trust: server.TrustMode(s.TrustProxy), Log: log, Problems: desk.Problems})
	if err := announce(ctx, e, s, r, l.Addr(), door.place(), source, log); err != nil {
		return errors.Join(err, l.Close(), door.close(), sock.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return srv.Serve(ctx, l) })
	g.Go(func() error { return api.Serve(ctx, sock, desk, log) })
	g.Go(func() error { return door.serve(ctx) })
	g.Go(func() error { return desk.RunJobs(ctx) })
	err = g.Wait()
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// listen takes the port. An IPv4 address means IPv4: as "tcp" 0.0.0.0 would be
// every address of both.
func listen(s Settings) (net.Listener, error) {
	network := "tcp"
	if a, err := netip.ParseAddr(s.Bind); err == nil && a.Is4() {
		network = "tcp4"
	}
	l, err := net.Listen(network, net.JoinHostPort(s.Bind, strconv.Itoa(s.Port)))
	if err != nil {
		return nil, addressError(err, "--port or --bind")
	}
	return l, nil
}

// announce says where the relay and its desk are, and what it runs on.
func announce(ctx context.Context, e env, s Settings, r *relay.Relay, addr net.Addr, desk, source string, log *slog.Logger) error {
	in, err := r.Info(ctx, nil)
	if err != nil {
		return err
	}
	if s.LogFormat == "json" {
		log.Info("serving", "address", addr.String(), "store", s.StoreDir, "epoch", in.Epoch,
			"fingerprint", in.Key.Fingerprint(), "key_source", source, "version", version)
		if s.Accounts.hosted() {
			log.Info("accounts let hosts in", "issuer", s.Accounts.Issuer, "audience", s.PublicURL)
		}
		if desk != "" {
			log.Info("desk over TCP", "address", desk)
		}
		return nil
	}
	if desk != "" {
		desk = "desk         " + desk + "\n"
	}
	accounts := ""
	if s.Accounts.hosted() {
		accounts = fmt.Sprintf("accounts     of %s, for %s\n", s.Accounts.Issuer, s.PublicURL)
	}
	_, err = fmt.Fprintf(e.out, "agentmbx relay %s\nlistening on http://%s\n%sstore        %s\nepoch        %s\nrelay key    %s (from %s)\n%s",
		version, addr, desk, s.StoreDir, in.Epoch, in.Key.Fingerprint(), source, accounts)
	return err
}
