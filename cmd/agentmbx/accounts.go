package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/authority/devissuer"
)

func newAccounts(e env) *cobra.Command {
	return newGroup(&cobra.Command{
		Use:   "accounts",
		Short: "Run a small accounts issuer for development",
		Long: `Run a small accounts issuer, for development and tests of a hosted relay: its own
keys, sign-in of hosts, tokens, revocation. It has no web pages, no passwords and no
accounts but the names that a login is approved for.`,
		Example: `  agentmbx accounts dev --dir ./issuer --relay http://127.0.0.1:7374
  agentmbx accounts approve WDJB-MJHT --dir ./issuer --account alice
  agentmbx accounts revoke laptop --dir ./issuer --reason "lost"`,
	}, newAccountsDev(e), newAccountsApprove(e), newAccountsHosts(e), newAccountsRotate(e), newAccountsRevoke(e))
}

// issuerDir gives a command --dir, and calls the issuer that runs there.
type issuerDir struct{ dir *string }

func bindIssuer(cmd *cobra.Command) issuerDir {
	d := issuerDir{cmd.Flags().String("dir", "", "`folder` of the issuer")}
	_ = cmd.MarkFlagRequired("dir") // fails only for a flag that is not there
	return d
}

func (d issuerDir) with(fn func(*devissuer.Client) error) error {
	c, err := devissuer.Dial(*d.dir)
	if err == nil {
		err = fn(c)
	}
	return issuerError(err)
}

// issuerError gives an error of an issuer its exit code.
func issuerError(err error) error {
	switch {
	case errors.Is(err, devissuer.ErrNotFound):
		return notFound(err)
	case errors.Is(err, devissuer.ErrBadCall):
		return usage(err)
	case errors.Is(err, devissuer.ErrRefused), errors.Is(err, devissuer.ErrInUse):
		return refused(err)
	}
	return err
}

func newAccountsApprove(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve CODE",
		Short: "Let a host's login in, or deny it",
		Long: `Let a host's login in. CODE is what agentmbx login shows on the host: compare the
fingerprint that this prints with the host's.`,
		Example: `  agentmbx accounts approve WDJB-MJHT --dir ./issuer --account alice`,
		Args:    nArgs(1, 1, "the code that the host shows"),
	}
	at := bindIssuer(cmd)
	account := cmd.Flags().String("account", "dev", "`name` of the account that the host gets")
	org := cmd.Flags().String("org", "", "`name` of its organization (default that of the account)")
	deny := cmd.Flags().Bool("deny", false, "deny the login")
	cmd.MarkFlagsMutuallyExclusive("deny", "account")
	cmd.MarkFlagsMutuallyExclusive("deny", "org")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(func(c *devissuer.Client) (err error) {
			var l devissuer.Login
			if *deny {
				l, err = c.Deny(cmd.Context(), args[0])
			} else {
				l, err = c.Approve(cmd.Context(), args[0], *account, *org)
			}
			switch {
			case err != nil:
				return err
			case *asJSON:
				return printJSON(e.out, l)
			case l.Denied:
				_, err = fmt.Fprintf(e.out, "denied %s (%s)\n", l.Host, l.HostFP)
			default:
				_, err = fmt.Fprintf(e.out, "approved %s (%s) for account %s\n", l.Host, l.HostFP, l.Account)
			}
			return err
		})
	}
	return cmd
}

func newAccountsHosts(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "hosts",
		Short:   "List the hosts that have signed in, and their credentials",
		Example: `  agentmbx accounts hosts --dir ./issuer --json`,
	}
	at := bindIssuer(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(func(c *devissuer.Client) error {
			hosts, err := c.Hosts(cmd.Context())
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, map[string][]devissuer.Host{"hosts": append([]devissuer.Host{}, hosts...)})
			}
			w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "HOST\tFINGERPRINT\tACCOUNT\tCLIENT\tENROLLED\tREVOKED\tREASON")
			for _, h := range hosts {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(h.Name), h.HostFP, h.Account, h.ClientID,
					timeOr(h.EnrolledAt), timeOr(h.RevokedAt), printable(cmp.Or(h.Reason, "-")))
			}
			return w.Flush()
		})
	}
	return cmd
}

func newAccountsRotate(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Make a new key that signs from now on, or drop the old ones",
		Long: `Make a new key that signs from now on. The old ones stay in the key set, so that
tokens they signed are good until they end. With --drop no key is made; the old ones
leave the set, and what they signed stops verifying at each relay's next fetch.`,
		Example: `  agentmbx accounts rotate --dir ./issuer
  agentmbx accounts rotate --dir ./issuer --drop`,
	}
	at := bindIssuer(cmd)
	drop := cmd.Flags().Bool("drop", false, "take the old keys out of the set")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(func(c *devissuer.Client) error {
			r, err := c.Rotate(cmd.Context(), *drop)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, r)
			}
			for _, k := range r.Keys {
				does := "in the set"
				if k.Signs {
					does = "signs"
				}
				if _, err := fmt.Fprintf(e.out, "%s  %s  %s\n", k.ID, k.Alg, does); err != nil {
					return err
				}
			}
			if *drop {
				_, err = fmt.Fprintf(e.errw, "dropped %s\n", counted(r.Dropped, "key", "keys"))
			}
			return err
		})
	}
	return cmd
}

func newAccountsRevoke(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke HOST|CLIENT_ID",
		Short: "Take a host's credentials away, and tell the relay",
		Long: `Take a host's credentials away: all that a host (its name, fingerprint or id) has,
or the one of a client id. It gets no token any more, and the relay is told to refuse
it at once. Exit code 5 says that the revocation stands and the relay could not be
told: it hears of it when it pulls the list, or when this is run again.`,
		Example: `  agentmbx accounts revoke laptop --dir ./issuer --reason "lost on a train"`,
		Args:    nArgs(1, 1, "a host or a client id"),
	}
	at := bindIssuer(cmd)
	reason := cmd.Flags().String("reason", "", "`text` for the host's owner, at most 200 characters")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(func(c *devissuer.Client) error { return runRevoke(cmd.Context(), e, c, args[0], *reason, *asJSON) })
	}
	return cmd
}

func runRevoke(ctx context.Context, e env, c *devissuer.Client, who, reason string, asJSON bool) error {
	r, err := c.Revoke(ctx, who, reason)
	if err != nil {
		return err
	}
	if asJSON {
		err = printJSON(e.out, r)
	}
	for _, h := range r.Hosts {
		if asJSON || err != nil {
			break
		}
		_, err = fmt.Fprintf(e.out, "revoked %s (%s) of account %s: %s\n", printable(h.Name), h.HostFP, h.Account, h.ClientID)
	}
	switch {
	case err != nil:
		return err
	case r.Trouble != "":
		return unhealthy(fmt.Errorf("revoked, but the relay could not be told: %s: run this again, or let it pull the list", r.Trouble))
	case r.Pushed:
		fmt.Fprintf(e.errw, "the relay refuses it (%d added)\n", r.Added)
	default:
		fmt.Fprintln(e.errw, "the relay is not told: it hears of it when it pulls the list")
	}
	return nil
}
