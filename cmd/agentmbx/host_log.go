package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// eventList is what `log --json` prints.
type eventList struct {
	Events []host.Event `json:"events"`
}

func newHostLog(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Show what happened to this host's keys, peers and mail",
		Long: `Show what happened that nobody asked for just then: pairings, rotations, a relay's
new epoch, enrolments, refusals, what left quarantine. The newest 10,000 entries
are kept.`,
		Example: `  agentmbx log
  agentmbx log --event relay.push_rejected --json`,
	}
	at := bindHome(cmd)
	event := cmd.Flags().String("event", "", "only entries of this `kind`")
	limit := cmd.Flags().Int("limit", 20, "how many at most, newest first")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := limitFlag(*limit); err != nil {
			return err
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			events, err := here.Audit(cmd.Context(), *event, *limit)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, eventList{events})
			}
			w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
			for _, ev := range events {
				fmt.Fprintf(w, "%s\t%s\t%s\n", wire.FormatTime(ev.At), ev.Event, printable(ev.Detail))
			}
			return w.Flush()
		})
	}
	return cmd
}
