package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
)

// mailboxList is what `mailbox --json` prints.
type mailboxList struct {
	Mailboxes []host.Mailbox `json:"mailboxes"`
}

func newMailbox(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "mailbox",
		Short: "List the mailboxes of this host",
		Example: `  agentmbx mailbox
  agentmbx mailbox add reviewer --role review`,
	}, newMailboxAdd(e))
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			boxes, err := here.Mailboxes(cmd.Context())
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(e.out, mailboxList{boxes})
			}
			w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tOPEN\tROLES")
			for _, b := range boxes {
				fmt.Fprintf(w, "%s\t%d\t%s\n", b.Name, b.Open, strings.Join(b.Roles, ", "))
			}
			return w.Flush()
		})
	}
	return cmd
}

func newMailboxAdd(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a mailbox, or give one other roles",
		Long: `Make a mailbox, or give one that is there other roles. Mail for its bare name,
from here or from paired hosts, then reaches it, and mail for role:NAME of its
roles. Mail for name@thishost makes a mailbox by itself.

The roles given replace those it had. Without --role it keeps them: there is no
way back to none.`,
		Example: `  agentmbx mailbox add reviewer --role review --role triage`,
		Args:    nArgs(1, 1, "the name of a mailbox"),
	}
	at := bindHome(cmd)
	roles := cmd.Flags().StringArray("role", nil, "a role; may be repeated")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(cmd.Context(), func(here *host.Host) error {
			if err := here.AddMailbox(cmd.Context(), args[0], *roles); err != nil {
				return err
			}
			boxes, err := here.Mailboxes(cmd.Context())
			if err != nil {
				return err
			}
			for _, b := range boxes {
				if b.Name != args[0] {
					continue
				}
				if *asJSON {
					return printJSON(e.out, b)
				}
				line := "mailbox " + b.Name
				if len(b.Roles) > 0 {
					line += ", roles " + strings.Join(b.Roles, ", ")
				}
				_, err := fmt.Fprintln(e.out, line)
				return err
			}
			return nil
		})
	}
	return cmd
}
