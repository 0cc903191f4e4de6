package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
)

func newAdminDeny(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "deny",
		Short: "List who is refused, and add or remove refusals",
		Long: `List the refusals that need not be for ever, the last one first: those of an
operator, and those of the accounts issuer (issuer, pushed; issuer-list, pulled). A
revocation is for ever and is not among them.`,
		Example: `  agentmbx relay admin deny --store-dir ./data
  agentmbx relay admin deny --over --host laptop
  agentmbx relay admin deny add --client-id laptop-7 --for 24h --reason "stolen" --yes
  agentmbx relay admin deny remove 3 --yes`,
	}, newAdminDenyList(e), newAdminDenyAdd(e), newAdminDenyRemove(e))
	listDenials(e, cmd)
	return cmd
}

func newAdminDenyList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List who is refused, the last one first",
		Example: `  agentmbx relay admin deny list --json
  agentmbx relay admin deny list --client-id laptop-7`,
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
	cmd.Flags().StringVar(&f.ClientID, "client-id", "", "only those that name this account's credential, by its whole `id`")
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

func newAdminDenyAdd(e env) *cobra.Command {
	var host, clientID, forSpan, until string
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Refuse a host, or whoever comes with an account's credential",
		Long: `Refuse a host, or every host that comes with an account's credential, for a time
or until the refusal is removed; with both only that host with that credential. Who
is refused can neither enrol, push nor fetch, and open requests end at once. Mail
waits. HOST is a name, a fingerprint or a key, and need not have come yet. Whoever is
refused is told the reason.`,
		Example: `  agentmbx relay admin deny add --client-id laptop-7 --for 24h --reason "stolen" --yes
  agentmbx relay admin deny add --host 1f3a-09bc-77d0-e214 --reason "floods others" --dry-run`,
		Args: nArgs(0, 0, ""),
	}
	at := bindDesk(cmd)
	f := bindDeed(cmd, true)
	cmd.Flags().Lookup("reason").Usage = "why, for the relay log and for who is refused, who is told"
	cmd.Flags().StringVar(&host, "host", "", "refuse this `host`")
	cmd.Flags().StringVar(&clientID, "client-id", "", "refuse whoever comes with this account's credential, by its whole `id`")
	cmd.Flags().StringVar(&forSpan, "for", "", "how long: a `span` such as 90m, 24h or 7d")
	cmd.Flags().StringVar(&until, "until", "", "until this `time`, such as 2027-01-01T00:00:00Z")
	cmd.MarkFlagsMutuallyExclusive("for", "until")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		end, err := blockEnd(forSpan, until, time.Now())
		if err != nil {
			return err
		}
		if host == "" && clientID == "" {
			return usage(errors.New("nobody is named: give --host, --client-id or both"))
		}
		return at.with(ctx, e, func(svc admin.Service, _ bool) error {
			a := admin.DenyAction{Action: f.action(), ClientID: clientID, Until: end, DryRun: f.dryRun}
			var h admin.Host
			if host != "" {
				if h, err = findRefused(ctx, svc, host); err != nil {
					return err
				}
				a.HostFP = h.Fingerprint
			}
			when := "until it is removed"
			if !end.IsZero() {
				when = "until " + timeOr(end)
			}
			fmt.Fprintf(e.errw, "deny %s %s%s\n", printable(refusedWho(h, clientID)), when, f.because())
			if err := f.agreed(e); err != nil {
				return err
			}
			r, err := svc.Deny(ctx, a)
			if err != nil {
				return deskError(err)
			}
			if f.json {
				return printJSON(e.out, r)
			}
			text := fmt.Sprintf("%s %s, %s", f.would("denied", "deny"), refusedWho(h, clientID), denialText(r.Denial))
			if !r.Changed {
				text = fmt.Sprintf("%s was denied already, %s", refusedWho(h, clientID), denialText(r.Denial))
			}
			_, err = fmt.Fprintln(e.out, printable(text))
			return err
		})
	}
	return cmd
}

// refusedWho names who a denial refuses; h is nobody where it names no host.
func refusedWho(h admin.Host, clientID string) string {
	switch {
	case h.Fingerprint == "":
		return "client " + clientID
	case clientID != "":
		return named(h) + " as client " + clientID
	}
	return named(h)
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
