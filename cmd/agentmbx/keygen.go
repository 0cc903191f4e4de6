package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func newKeygen(e env) *cobra.Command {
	return &cobra.Command{
		Use:   "keygen",
		Short: "Make a relay key: private key on stdout, fingerprint on stderr",
		Long: `Make a relay key and print its private half, for MBX_RELAY_KEY or a
relay.key file of mode 0600, and the fingerprint that hosts check on stderr.
Nothing is stored: keep the key, a store cannot be served without it.`,
		Example: `  (umask 077; agentmbx relay keygen > relay.key)`,
		RunE:    func(*cobra.Command, []string) error { return runKeygen(e) },
	}
}

func runKeygen(e env) error {
	key, err := wire.GenerateKey()
	if err != nil {
		return fmt.Errorf("make a relay key: %w", err)
	}
	if _, err := fmt.Fprintln(e.out, key.Seed()); err != nil {
		return fmt.Errorf("print the relay key: %w", err)
	}
	_, err = fmt.Fprintln(e.errw, "fingerprint:", key.Public().Fingerprint())
	return err
}
