package main

import (
	"cmp"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

func newAdminOverview(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "overview",
		Short: "Show how the relay is, and what it has to do",
		Long: `Show how the relay is: what is wrong first, then its health, its traffic, the
fullest queues and those that wait longest. The exit code is 0 also when something
is wrong; agentmbx relay status tells that by its code.`,
		Example: `  agentmbx relay admin overview --store-dir ./data
  agentmbx relay admin overview --json`,
	}
	at := bindDesk(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, running bool) error {
			v, err := svc.Overview(cmd.Context())
			if err != nil {
				return deskError(err)
			}
			if *asJSON {
				return printJSON(e.out, v)
			}
			return printOverview(e, v, running)
		})
	}
	return cmd
}

func printOverview(e env, v admin.Overview, running bool) error {
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	for _, p := range v.Problems {
		fmt.Fprintf(w, "PROBLEM\t%s\n", printable(p))
	}
	up := "does not run"
	if running {
		up = "up " + time.Since(v.StartedAt).Round(time.Second).String()
	}
	fmt.Fprintf(w, "relay\t%s, %s\n", printable(v.Version), up)
	fmt.Fprintf(w, "epoch\t%s\n", printable(v.Epoch))
	fmt.Fprintf(w, "relay key\t%s\n", printable(v.Fingerprint))
	fmt.Fprintf(w, "heartbeat\t%s\n", timeOr(v.Heartbeat))
	fmt.Fprintf(w, "hosts\t%d enrolled, %d long polls\n", v.Totals.Enrolments, v.LongPolls)
	fmt.Fprintf(w, "queued\t%s, %d bytes; %d of them held\n", counted(v.Totals.Items, "item", "items"), v.Totals.Bytes, v.Totals.Held)
	fmt.Fprintf(w, "refused\t%s in the sample\n", counted(v.Refused, "push", "pushes"))
	if running {
		fmt.Fprintf(w, "traffic\t%d accepted, %d pulled in the last %s; %d and %d since the start\n", sum(v.Activity.Accepted), sum(v.Activity.Pulled),
			relay.ActivitySlot*relay.ActivitySlots, v.Activity.TotalAccepted, v.Activity.TotalPulled)
	}
	fmt.Fprintf(w, "disk\t%d bytes of data, %d of log, %d free\n", v.Store.Data, v.Store.Log, v.Store.Free)
	printIssuer(w, v.Issuer)
	printWork(w, &v.Status)
	for _, part := range []struct {
		title string
		list  []admin.Queue
	}{{"FULLEST", v.Deepest}, {"WAITING LONGEST", v.Longest}} {
		if len(part.list) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\tFINGERPRINT\tITEMS\tBYTES\tOLDEST\n", part.title)
		for _, q := range part.list {
			fmt.Fprintln(w, tabbed(cmp.Or(q.Target.Name, "-"), q.Target.Fingerprint, fmt.Sprint(q.Items), fmt.Sprint(q.Bytes), timeOr(q.Oldest)))
		}
	}
	return w.Flush()
}

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}
