package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/authority/devissuer"
)

// issuerFlags are what `accounts dev` is told.
type issuerFlags struct {
	listen    string
	base      string
	remote    bool
	push      bool
	noPush    bool
	logFormat string
	options   devissuer.Options
}

func newAccountsDev(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run an accounts issuer for development",
		Long: `Run a small accounts issuer until it is told to stop. It is for development: whoever
can run commands on its folder decides who gets an account. It listens on loopback
and refuses to listen elsewhere without --allow-remote; there it needs TLS in front
and its https address in --base-url, since relays and hosts take nothing else.

Keys, hosts and revocations are kept in the folder. For the relay:
  MBX_RELAY_AUTHORITY=jwks  MBX_RELAY_ISSUER=URL of this  MBX_RELAY_PUBLIC_URL=--relay`,
		Example: `  agentmbx accounts dev --dir ./issuer --relay http://127.0.0.1:7374
  agentmbx accounts dev --dir ./issuer --relay https://relay.example --base-url https://accounts.example --listen 0.0.0.0:7380 --allow-remote`,
	}
	var f issuerFlags
	flags := cmd.Flags()
	flags.StringVar(&f.options.Dir, "dir", "", "`folder` for keys, hosts and revocations")
	flags.StringVar(&f.options.Relay, "relay", "", "public `URL` of the relay that the tokens are for")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:7380", "`address` to listen on, port 0 for any free one")
	flags.StringVar(&f.base, "base-url", "", "`URL` where relays and hosts reach this (default http:// and where it listens)")
	flags.StringVar(&f.options.API, "api", "", "`URL` of the API that the other tokens are for (default the base URL and /api)")
	flags.DurationVar(&f.options.TTL, "ttl", 10*time.Minute, "life of a token, 1s to 15m")
	flags.StringVar(&f.options.Alg, "alg", "EdDSA", "`algorithm` of new keys, EdDSA or ES256")
	flags.BoolVar(&f.options.Auto, "auto-approve", false, "let every login in, for account dev")
	flags.BoolVar(&f.remote, "allow-remote", false, "listen beyond loopback")
	flags.BoolVar(&f.push, "push-deny", true, "tell the relay of each revocation at once")
	flags.BoolVar(&f.noPush, "no-push-deny", false, "let the relay pull the list")
	for _, name := range []string{"dir", "relay"} {
		_ = cmd.MarkFlagRequired(name) // fails only for a flag that is not there
	}
	cmd.MarkFlagsMutuallyExclusive("push-deny", "no-push-deny")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.options.NoPush = f.noPush || !f.push
		if err := f.check(); err != nil {
			return usage(err)
		}
		return runAccountsDev(cmd.Context(), e, f)
	}
	return cmd
}

// check refuses what can be seen before anything is taken.
func (f *issuerFlags) check() error {
	f.logFormat = "text"
	if v := os.Getenv("MBX_LOG_FORMAT"); v != "" && setOneOf(&f.logFormat, "text", "json")(v) != nil {
		return fmt.Errorf("MBX_LOG_FORMAT is %s: want text or json", quoteValue(v))
	}
	host, port, err := net.SplitHostPort(f.listen)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("--listen is %s: want an address and a port, such as 127.0.0.1:7380", quoteValue(f.listen))
	}
	if !devissuer.Loopback(host) {
		switch {
		case !f.remote:
			return fmt.Errorf("--listen is %s: this issuer is for development and listens on loopback; --allow-remote lets it listen there", quoteValue(f.listen))
		case f.base == "":
			return errors.New("--base-url is missing: beyond loopback an issuer needs the URL where relays and hosts reach it")
		}
	}
	for name, v := range map[string]string{"--relay": f.options.Relay, "--base-url": f.base, "--api": f.options.API} {
		var to string
		if (v != "" || name == "--relay") && setURL(&to)(v) != nil {
			return fmt.Errorf("%s is %s: want an http or https URL without user, query and fragment", name, quoteValue(v))
		}
	}
	if d := f.options.TTL; d < time.Second || d > devissuer.LongestTTL {
		return fmt.Errorf("--ttl is %s: want 1s to %s", d, devissuer.LongestTTL)
	}
	if a := f.options.Alg; a != "EdDSA" && a != "ES256" {
		return fmt.Errorf("--alg is %s: want EdDSA or ES256", quoteValue(a))
	}
	return nil
}

func runAccountsDev(ctx context.Context, e env, f issuerFlags) (err error) {
	network := "tcp"
	if a, err := netip.ParseAddrPort(f.listen); err == nil && a.Addr().Is4() {
		network = "tcp4" // as "tcp" 0.0.0.0 would be every address of both kinds
	}
	l, err := net.Listen(network, f.listen)
	if err != nil {
		return addressError(err, "--listen")
	}
	o := f.options
	o.Base = f.base
	if o.Base == "" {
		o.Base = "http://" + l.Addr().String()
	}
	o.Log = newLog(f.logFormat, e.errw, e.errw)
	issuer, err := devissuer.New(o)
	if err != nil {
		return errors.Join(issuerError(err), l.Close())
	}
	defer func() { err = errors.Join(err, issuer.Close()) }()
	o.Log.Warn("this issuer is for development: whoever has its folder decides who gets an account")
	if o.Auto {
		o.Log.Warn("every login is let in, for account dev")
	}
	if !devissuer.Reachable(o.Base) {
		o.Log.Warn("relays and hosts take an issuer only at https, or at http on loopback: put TLS in front and set --base-url", "base", issuer.Base())
	}
	return issuer.Serve(ctx, l, func() error {
		_, err := fmt.Fprintf(e.out, "agentmbx accounts %s, for development\nlistening on http://%s\nissuer       %s\nrelay        %s\nfolder       %s\n",
			version, l.Addr(), issuer.Base(), o.Relay, o.Dir)
		return err
	})
}
