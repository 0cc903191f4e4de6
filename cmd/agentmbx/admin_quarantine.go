package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
)

func newAdminQuarantine(e env) *cobra.Command {
	const parent = "quarantine"
	cmd := newGroup(&cobra.Command{
		Use:   parent,
		Short: "List what needs a person: held items, refused pushes",
		Long: `List what needs a person. Held items were taken out of their queues by an operator;
release puts them back, discard drops them and tells their senders. Refused pushes
are a sample of what hosts sent that was malformed or another item under a known id;
dismiss takes them off the list.`,
		Example: `  agentmbx relay admin quarantine --store-dir ./data
  agentmbx relay admin quarantine --kind refused --sender laptop
  agentmbx relay admin quarantine list --kind held --json-lines | agentmbx relay admin quarantine release - --reason "sorted out" --yes`,
	}, newAdminQuarantineList(e), newItemDeed(e, parent, deedRelease), newItemDeed(e, parent, deedDiscard), newAdminDismiss(e))
	listAdminQuarantine(e, cmd)
	return cmd
}

func newAdminQuarantineList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List held items, the last held first, then refused pushes",
		Example: `  agentmbx relay admin quarantine list --kind held --target laptop --json-lines`,
	}
	listAdminQuarantine(e, cmd)
	return cmd
}

// listAdminQuarantine makes cmd list it.
func listAdminQuarantine(e env, cmd *cobra.Command) {
	var f admin.QuarantineFilter
	var target, sender string
	cmd.Flags().StringVar(&f.Kind, "kind", "", "only those of this `kind`: held or refused")
	cmd.Flags().StringVar(&target, "target", "", "only held items for this `host`")
	cmd.Flags().StringVar(&sender, "sender", "", "only what this `host` pushed")
	check := func() error {
		if !slices.Contains([]string{"", admin.QuarantineHeld, admin.QuarantineRefused}, f.Kind) {
			return usage(fmt.Errorf("--kind is %s: want held or refused", quoteValue(f.Kind)))
		}
		return nil
	}
	listCommand(e, cmd, "after", check, func(ctx context.Context, svc admin.Service) (l list[admin.Quarantined], err error) {
		if f.Target, err = findKey(ctx, svc, target); err != nil {
			return l, err
		}
		if f.Sender, err = findKey(ctx, svc, sender); err != nil {
			return l, err
		}
		return list[admin.Quarantined]{
			one: "entry in quarantine", many: "entries in quarantine",
			heading: "KIND\tHOST\tTARGET\tSEQ OR ID\tITEM\tSENDER\tSINCE\tBY\tREASON",
			cells:   quarantineCells,
			page: func(p admin.Paging) (admin.Page[admin.Quarantined], error) {
				f.Paging = p
				return svc.Quarantine(ctx, f)
			},
		}, nil
	})
}

// quarantineCells is an entry in the columns of the list: of a refused push its
// number in the sample stands where the SEQ of an item does.
func quarantineCells(q admin.Quarantined) []string {
	switch {
	case q.Item != nil:
		i, held := *q.Item, admin.Hold{}
		if i.Held != nil {
			held = *i.Held
		}
		return []string{q.Kind, cmp.Or(i.TargetHost.Name, "-"), i.TargetHost.Fingerprint, fmt.Sprint(i.Seq), i.ID, itemSender(i),
			timeOr(held.At), cmp.Or(held.Actor, "-"), held.Reason}
	case q.Refusal != nil:
		r := q.Refusal
		return []string{q.Kind, "-", "-", fmt.Sprint(r.ID), cmp.Or(r.ItemID, "-"), fmt.Sprintf("%s (%s)", cmp.Or(r.Name, "-"), r.Sender.Fingerprint()),
			timeOr(r.At), "-", fmt.Sprintf("%s (%s)", r.Reason, counted(r.Count, "push", "pushes"))}
	}
	return []string{q.Kind, "-", "-", "-", "-", "-", "-", "-", ""}
}

// dismissed is what `relay admin quarantine dismiss --json` prints.
type dismissed struct {
	admin.DismissResult
	Asked int `json:"asked,omitempty"` // how many were named
}

func newAdminDismiss(e env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "dismiss {ID... | --all}",
		Short: "Take refused pushes off the list",
		Long: `Take refused pushes off the list, by the numbers it has them under, or all of them.
They were refused and stay so.

` + deedCodes,
		Example: `  agentmbx relay admin quarantine dismiss 3 4 --yes
  agentmbx relay admin quarantine dismiss --all --reason "the host was mended" --yes`,
		Args: func(cmd *cobra.Command, args []string) error {
			for _, a := range args {
				if _, err := wantID(a, "a refused push: see agentmbx relay admin quarantine"); err != nil {
					return err
				}
			}
			return nil
		},
	}
	at := bindDesk(cmd)
	f := bindDeed(cmd, false)
	cmd.Flags().BoolVar(&all, "all", false, "all of them")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 0) {
			return usage(errors.New("say which: the numbers of refused pushes, or --all"))
		}
		var ids []int64
		for _, a := range args {
			id, err := rowID(a, "ID")
			if err != nil {
				return err
			}
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			return runDismiss(cmd.Context(), e, svc, f, ids)
		})
	}
	return cmd
}

func runDismiss(ctx context.Context, e env, svc admin.Service, f *deedFlags, ids []int64) error {
	what := "all refused pushes"
	if len(ids) > 0 {
		what = counted(len(ids), "refused push", "refused pushes")
	}
	fmt.Fprintf(e.errw, "dismiss %s%s\n", what, f.because())
	if err := f.agreed(e); err != nil {
		return err
	}
	r, err := svc.Dismiss(ctx, admin.DismissAction{Action: f.action(), IDs: ids, DryRun: f.dryRun})
	if err != nil {
		return deskError(err)
	}
	if f.json {
		err = printJSON(e.out, dismissed{r, len(ids)})
	} else {
		text := fmt.Sprintf("%s %d", f.would("dismissed", "dismiss"), r.Dismissed)
		if len(ids) > 0 {
			text += fmt.Sprintf(" of %d", len(ids))
		}
		_, err = fmt.Fprintln(e.out, text)
	}
	switch gone := len(ids) - r.Dismissed; {
	case err != nil:
		return err
	case gone > 0 && r.Dismissed == 0:
		return notFound(fmt.Errorf("none of them is there: see agentmbx relay admin quarantine"))
	case gone > 0:
		return fmt.Errorf("%d of %d were not there", gone, len(ids))
	}
	return nil
}
