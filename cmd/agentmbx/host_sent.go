package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// sentList is what `sent --json` prints.
type sentList struct {
	Messages []host.SentMessage `json:"messages"`
}

func newSent(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sent [ID]",
		Short: "Show where the mail sent from here is",
		Long: `Show the newest mail that went to other hosts and where it is, or all that is
known of one message. A message to a host is queued, then handed-over (the host
took it over the LAN) or relay-accepted (a relay holds it), then confirmed by
what its recipients did; or it ends undelivered, or unconfirmed when nobody
said in time that it arrived.`,
		Example: `  agentmbx sent
  agentmbx sent 01JAZ0Q8B3N4T5V6W7X8Y9Z0AB --json`,
		Args: nArgs(0, 1, ""),
	}
	at := bindHome(cmd)
	limit := cmd.Flags().Int("limit", 20, "how many at most, newest first")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := limitFlag(*limit); err != nil {
			return err
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			if len(args) == 1 {
				m, err := here.SentMail(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if *asJSON {
					return printJSON(e.out, m)
				}
				return printSentMail(e.out, m)
			}
			ms, err := here.SentMails(cmd.Context(), *limit)
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, sentList{ms})
			}
			return printSentList(e, ms)
		})
	}
	return cmd
}

func printSentList(e env, ms []host.SentMessage) error {
	if len(ms) == 0 {
		_, err := fmt.Fprintln(e.errw, "nothing was sent to other hosts")
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tWHERE\tSUBJECT")
	for _, m := range ms {
		var where []string
		for _, r := range m.Routes {
			where = append(where, whereNow(r, m.Confirmations)...)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.ID, printable(strings.Join(where, ", ")), printable(m.Subject))
	}
	return w.Flush()
}

// whereNow says what its recipients at one host did with a message, or else
// how far it is on its way there.
func whereNow(r host.Route, cs []host.Confirmation) (where []string) {
	for _, c := range cs {
		if _, at, _ := wire.SplitAddress(c.Recipient); wire.FoldName(at) == wire.FoldName(r.Host) {
			where = append(where, c.Recipient+" "+c.State)
		}
	}
	if len(where) == 0 {
		where = append(where, r.Host+" "+r.State)
	}
	return where
}

func printSentMail(out io.Writer, m host.SentMessage) error {
	if err := printMessage(out, m.Message); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, r := range m.Routes {
		more := ""
		if r.Attempts > 0 {
			more = fmt.Sprintf("\tafter %d attempts: %s", r.Attempts, printable(r.Error))
		} else if r.Error != "" {
			more = "\t" + printable(r.Error)
		}
		fmt.Fprintf(w, "%s\t%s\t%s%s\n", printable(r.Host), r.State, wire.FormatTime(r.At), more)
	}
	for _, c := range m.Confirmations {
		var said []string
		if c.Did != "" {
			said = append(said, "did: "+printable(c.Did))
		}
		if c.Note != "" {
			said = append(said, "note: "+printable(c.Note))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable(c.Recipient), c.State, wire.FormatTime(c.At), strings.Join(said, ", "))
	}
	return w.Flush()
}
