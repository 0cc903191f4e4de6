package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
)

func newAdminDeny(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "deny",
		Short: "List who is refused, and remove refusals",
		Long: `List the refusals that need not be for ever, the last one first: blocks by an
operator, and others by where they come from. A revocation is for ever and is not
among them.`,
		Example: `  agentmbx relay admin deny --store-dir ./data
  agentmbx relay admin deny --over --host laptop
  agentmbx relay admin deny remove 3 --yes`,
	}, newAdminDenyList(e), newAdminDenyRemove(e))
	listDenials(e, cmd)
	return cmd
}

func newAdminDenyList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List who is refused, the last one first",
		Example: `  agentmbx relay admin deny list --json`,
	}
	listDenials(e, cmd)
	return cmd
}

// listDenials makes cmd list them.
func listDenials(e env, cmd *cobra.Command) {
	var f admin.DenialFilter
	var host string
	cmd.Flags().BoolVar(&f.All, "over", false, "those that are over, too")
	cmd.Flags().StringVar(&host, "host", "", "only those that name this `host`")
	listCommand(e, cmd, "after", nil, func(ctx context.Context, svc admin.Service) (l list[admin.Denial], err error) {
		if host != "" {
			h, err := findRefused(ctx, svc, host)
			if err != nil {
				return l, err
			}
			f.HostFP = h.Fingerprint
		}
		return list[admin.Denial]{
			one: "denial", many: "denials",
			heading: "ID\tHOST\tCLIENT\tBY\tADDED\tUNTIL\tIN FORCE\tREASON",
			cells: func(d admin.Denial) []string {
				return []string{fmt.Sprint(d.ID), cmp.Or(d.HostFP, "any"), cmp.Or(d.ClientID, "any"), d.Source,
					timeOr(d.AddedAt), timeOr(d.Until), yesNo(d.InForce), d.Reason}
			},
			page: func(p admin.Paging) (admin.Page[admin.Denial], error) {
				f.Paging = p
				return svc.Denials(ctx, f)
			},
		}, nil
	})
}

func newAdminDenyRemove(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "remove ID",
		Short:   "Remove a refusal",
		Example: `  agentmbx relay admin deny remove 3 --reason "sorted out" --yes`,
		Args:    nArgs(1, 1, "the number of a denial"),
	}
	at := bindDesk(cmd)
	f := bindDeed(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := wantID(args[0], "a denial: see agentmbx relay admin deny")
		if err != nil {
			return err
		}
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			fmt.Fprintf(e.errw, "remove denial %d%s\n", id, f.because())
			return removeDenials(cmd.Context(), e, svc, f, []admin.Denial{{ID: id}})
		})
	}
	return cmd
}

// wantID reads the number of a row that an argument names.
func wantID(text, of string) (int64, error) {
	id, err := rowID(text, "it")
	if err != nil || id == 0 {
		return 0, usage(fmt.Errorf("%s is not the number of %s", quoteValue(text), of))
	}
	return id, nil
}

// removeDenials removes what a plan named, once it is agreed to.
func removeDenials(ctx context.Context, e env, svc admin.Service, f *deedFlags, denials []admin.Denial) error {
	if err := f.agreed(e); err != nil {
		return err
	}
	done := unblocked{Removed: []admin.Denial{}, DryRun: f.dryRun}
	var failed error
	for _, d := range denials {
		removed, err := svc.Unblock(ctx, admin.UnblockAction{Action: f.action(), ID: d.ID, HostFP: d.HostFP, AddedAt: d.AddedAt, DryRun: f.dryRun})
		if failed = deskError(err); failed != nil {
			break
		}
		done.Removed = append(done.Removed, removed)
	}
	if failed != nil && len(done.Removed) == 0 {
		return failed
	}
	if f.json {
		if err := printJSON(e.out, done); err != nil {
			return err
		}
		return failed
	}
	for _, d := range done.Removed {
		if _, err := fmt.Fprintf(e.out, "%s denial %d of %s\n", f.would("removed", "remove"), d.ID, printable(cmp.Or(d.HostFP, d.ClientID, "any"))); err != nil {
			return err
		}
	}
	return failed
}
