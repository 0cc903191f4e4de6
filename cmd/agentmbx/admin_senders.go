package main

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
)

func newAdminSenders(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "senders",
		Short: "List whom hosts take mail from",
		Long: `List the sender lists that hosts have published: the relay takes mail for such a
host from those in its list, and from nobody else.`,
		Example: `  agentmbx relay admin senders --store-dir ./data
  agentmbx relay admin senders show laptop`,
	}, newAdminSendersList(e), newAdminSendersShow(e))
	listSenders(e, cmd)
	return cmd
}

func newAdminSendersList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the sender lists that were published",
		Example: `  agentmbx relay admin senders list --all --json-lines`,
	}
	listSenders(e, cmd)
	return cmd
}

// listSenders makes cmd list them.
func listSenders(e env, cmd *cobra.Command) {
	listCommand(e, cmd, "after", nil, func(ctx context.Context, svc admin.Service) (list[admin.SenderList], error) {
		return list[admin.SenderList]{
			one: "sender list", many: "sender lists",
			heading: "HOST\tFINGERPRINT\tSENDERS\tISSUED",
			cells: func(s admin.SenderList) []string {
				return []string{cmp.Or(s.Target.Name, "-"), s.Target.Fingerprint, fmt.Sprint(s.Count), timeOr(s.IAT)}
			},
			page: func(p admin.Paging) (admin.Page[admin.SenderList], error) { return svc.SenderLists(ctx, p) },
		}, nil
	})
}

func newAdminSendersShow(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show HOST",
		Short:   "Show whom a host takes mail from",
		Long:    `Show whom a host takes mail from. The exit code is 4 when it has published no list.`,
		Example: `  agentmbx relay admin senders show laptop --json`,
		Args:    nArgs(1, 1, "the name, fingerprint or key of a host"),
	}
	at := bindDesk(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			key, err := findKey(cmd.Context(), svc, args[0])
			if err != nil {
				return err
			}
			s, err := svc.SenderList(cmd.Context(), key)
			if err != nil {
				return deskError(err)
			}
			if *asJSON {
				return printJSON(e.out, s)
			}
			return printSenders(e, s)
		})
	}
	return cmd
}

func printSenders(e env, s admin.SenderList) error {
	if err := facts(e.out, [2]string{"host", named(s.Target)}, [2]string{"issued", timeOr(s.IAT)}, [2]string{"senders", fmt.Sprint(s.Count)}); err != nil {
		return err
	}
	if len(s.Senders) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nSENDER\tFINGERPRINT")
	for _, h := range s.Senders {
		fmt.Fprintln(w, tabbed(cmp.Or(h.Name, "-"), h.Fingerprint))
	}
	return w.Flush()
}
