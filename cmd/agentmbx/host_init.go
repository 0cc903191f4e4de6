package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// hostFacts is what `init --json` prints.
type hostFacts struct {
	Host        string         `json:"host"`
	Fingerprint string         `json:"fingerprint"`
	Key         wire.PublicKey `json:"host_pubkey"`
	Home        string         `json:"home"`
}

func newInit(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make this machine a host: keys, a database and the mailbox owner",
		Long: `Make a host in a folder that has none: its keys, its database and the mailbox
owner. The fingerprint is what other hosts know it by. Keep a copy of keys.json:
without it every paired host has to be paired again.`,
		Example: `  agentmbx init
  agentmbx init --name laptop --home /srv/agentmbx`,
	}
	at := bindHome(cmd)
	name := cmd.Flags().String("name", "", "`name` of the host (default the machine's)")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := at.options()
		if err != nil {
			return err
		}
		if *name == "" && !cmd.Flags().Changed("name") {
			machine, err := os.Hostname()
			if *name = hostNameOf(machine); err != nil || *name == "" {
				return usage(errors.New("this machine's own name can't name a host: use --name"))
			}
		}
		if !wire.ValidHostName(*name) {
			return usage(fmt.Errorf("--name is %s: want 1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first", quoteValue(*name)))
		}
		err = host.Init(cmd.Context(), o, *name)
		if errors.Is(err, host.ErrExists) {
			return refused(fmt.Errorf("%w: %s: use it, or choose another folder with --home", err, o.Home))
		}
		if err != nil {
			return hostError(err)
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			f := hostFacts{Host: here.Name(), Fingerprint: here.Key().Fingerprint(), Key: here.Key(), Home: o.Home}
			if *asJSON {
				return printJSON(e.out, f)
			}
			_, err := fmt.Fprintf(e.out, "host         %s\nfingerprint  %s\nhome         %s\n", f.Host, f.Fingerprint, f.Home)
			return err
		})
	}
	return cmd
}

// hostNameOf brings a machine's name to the form of a host's: its first label,
// with what is not allowed replaced. It returns "" when nothing is left.
func hostNameOf(machine string) string {
	label, _, _ := strings.Cut(machine, ".")
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
			return r
		}
		return '-'
	}, label)
	name = strings.Trim(name, "-_")
	return strings.TrimRight(name[:min(len(name), 63)], "-_")
}
