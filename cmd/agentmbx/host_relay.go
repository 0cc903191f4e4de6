package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/host/account"
)

func newRelaySet(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set [URL]",
		Short: "Use a relay, and pin its key",
		Long: `Make the relay at URL the one of this host and pin its key. With --key only that
key is pinned: have its owner tell it to you. Without, the key that the relay
shows first is. A relay that shows another key than the pinned one is not used
until its owner confirms the new key and it is set with --key.

A relay that can't be reached now is set all the same; with --key only that key
will be pinned when it can.

Without URL it is the relay that the sign-in names (agentmbx login).`,
		Example: `  agentmbx relay set https://relay.example --key 1f3a-09bc-77d0-e214
  agentmbx relay set`,
		Args: nArgs(0, 1, ""),
	}
	at := bindHome(cmd)
	key := cmd.Flags().String("key", "", "`fingerprint` of the relay's key, or the key itself")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		url := ""
		if len(args) > 0 {
			var err error
			if url, err = host.ParseRelayURL(args[0]); err != nil {
				return usage(err)
			}
		}
		if *key == "" && cmd.Flags().Changed("key") {
			return usage(fmt.Errorf("--key is empty: %w", host.ErrBadRelayKey))
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			if len(args) == 0 {
				named, err := here.AccountRelay()
				if errors.Is(err, account.ErrNoRecord) {
					return usage(errors.New("the URL of a relay is missing, and no sign-in names one: see agentmbx relay set -h"))
				}
				if err != nil {
					return err
				}
				url = named
			}
			s, err := here.SetRelay(cmd.Context(), url, *key)
			if err != nil {
				return err
			}
			if used := here.RelayURL(); used != s.URL {
				fmt.Fprintf(e.errw, "MBX_RELAY_URL wins while it is set: %s\n", used)
			}
			if *asJSON {
				return printJSON(e.out, s)
			}
			_, err = fmt.Fprintf(e.out, "relay  %s\nkey    %s\n", s.URL, pinned(s))
			return err
		})
	}
	return cmd
}

// pinned says which key of a relay is trusted, and on whose word.
func pinned(s host.RelaySet) string {
	words := ""
	switch {
	case s.Pinned && s.Source == "owner":
		words = s.Fingerprint + " (pinned on its owner's word)"
	case s.Pinned:
		words = s.Fingerprint + " (pinned at first use: have its owner confirm it)"
	case s.Fingerprint != "":
		words = s.Fingerprint + " (expected: no other one will be pinned)"
	default:
		words = "not known yet: the one that it shows first will be pinned"
	}
	if !s.Reachable {
		words += "; the relay can't be reached now"
	}
	return words
}

// relayURLFacts is what `relay unset --json` prints.
type relayURLFacts struct {
	RelayURL *string `json:"relay_url"` // in use now; null for none
}

func newRelayUnset(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unset",
		Short: "Use no relay any more",
		Long: `Use no relay any more. What is known of it stays: its pinned key first of all, so
that setting it again does not trust another one.`,
		Example: `  agentmbx relay unset`,
	}
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			if err := here.UnsetRelay(); err != nil {
				return err
			}
			used := here.RelayURL()
			if used != "" {
				fmt.Fprintf(e.errw, "MBX_RELAY_URL wins while it is set: %s\n", used)
			}
			if *asJSON {
				return printJSON(e.out, relayURLFacts{orNull(used)})
			}
			if used == "" {
				used = "none"
			}
			_, err := fmt.Fprintf(e.out, "relay  %s\n", used)
			return err
		})
	}
	return cmd
}
