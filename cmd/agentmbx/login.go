package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/host/account"
)

// promptFacts is what `login --json` prints first, while it waits.
type promptFacts struct {
	Page     string    `json:"verification_uri"`
	Complete string    `json:"verification_uri_complete,omitempty"`
	Code     string    `json:"user_code"`
	Expires  time.Time `json:"expires_at"`
}

// loginFacts is what `login --json` prints when it is done.
type loginFacts struct {
	Base     string  `json:"base"`
	HostID   string  `json:"host_id"`
	ClientID string  `json:"client_id"`
	Relay    *string `json:"relay"`     // that the account has; null for none
	RelayURL *string `json:"relay_url"` // in use now; null for none
}

func newLogin(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Sign this host in at an accounts issuer",
		Long: `Sign this host in at the accounts issuer of a hosted relay: it prints a page and
a code, and waits until somebody has entered the code there, on any machine.

What it leaves in the home: cloud.key, a key of its own for tokens, made once, and
account.json, which holds no secret. The session in which it was approved is ended
before the command is.`,
		Example: `  agentmbx login --base-url https://accounts.example
  agentmbx relay set`,
	}
	at := bindHome(cmd)
	base := cmd.Flags().String("base-url", "", "`URL` of the issuer")
	asJSON := jsonFlag(cmd)
	_ = cmd.MarkFlagRequired("base-url")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := account.ParseBase(*base)
		if err != nil {
			return usage(fmt.Errorf("--base-url is %w", err)) // the value may hold a password
		}
		log := slog.New(slog.NewTextHandler(e.errw, &slog.HandlerOptions{Level: slog.LevelWarn}))
		return at.withLog(cmd.Context(), log, func(here *host.Host, _ string) error {
			r, err := here.Login(cmd.Context(), url, func(p account.Prompt) error { return showPrompt(e, p, *asJSON) })
			switch {
			case errors.Is(err, context.Canceled):
				return errors.New("the sign-in was broken off: nothing was stored; run it again when you like")
			case err != nil:
				return err
			}
			used := here.RelayURL()
			if *asJSON {
				return printJSON(e.out, loginFacts{r.Base, r.HostID, r.ClientID, orNull(r.Resources.Relay), orNull(used)})
			}
			fmt.Fprintf(e.out, "signed in  %s\nclient     %s\n", printable(r.Base), printable(r.ClientID))
			switch relay := printable(r.Resources.Relay); {
			case relay == "":
				_, err = fmt.Fprintln(e.out, "relay      none is named")
			case used == r.Resources.Relay:
				_, err = fmt.Fprintf(e.out, "relay      %s, in use\n", relay)
			default:
				_, err = fmt.Fprintf(e.out, "relay      %s\nnext       agentmbx relay set %s\n", relay, relay)
			}
			return err
		})
	}
	return cmd
}

// showPrompt says what to do. With --json it is a document of its own.
func showPrompt(e env, p account.Prompt, asJSON bool) error {
	if asJSON {
		return printJSON(e.out, promptFacts{p.Page, p.Complete, p.Code, p.Expires.UTC().Truncate(time.Second)})
	}
	_, err := fmt.Fprintf(e.out, "open       %s\ncode       %s\n", printable(p.Page), printable(p.Code))
	if err == nil && p.Complete != "" {
		_, err = fmt.Fprintf(e.out, "or open    %s\n", printable(p.Complete))
	}
	fmt.Fprintf(e.errw, "waiting until %s for the code to be entered; interrupt to give up\n", p.Expires.Local().Format("15:04:05"))
	return err
}

func newLogout(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logout",
		Short: "Forget the sign-in at the accounts issuer",
		Long: `Forget the sign-in: this host asks for no more tokens by itself. A session that it
has with a relay goes on until its token ends. cloud.key stays: with it the host is
the same one to its issuer after the next login.`,
		Example: `  agentmbx logout`,
	}
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			if err := here.Logout(cmd.Context()); err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, struct {
					Removed string `json:"removed"`
					Kept    string `json:"kept"`
				}{account.File, account.KeyFile})
			}
			_, err := fmt.Fprintf(e.out, "removed  %s\nkept     %s\n", account.File, account.KeyFile)
			return err
		})
	}
	return cmd
}
