package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func newAdminItems(e env) *cobra.Command {
	const parent = "items"
	cmd := newGroup(&cobra.Command{
		Use:   parent,
		Short: "List items, hold, release and discard them",
		Long: `List items: whose, from whom, of what kind, how large, since when. Their bodies are
sealed, and not shown. An item is named by TARGET and SEQ, as the list has them.`,
		Example: `  agentmbx relay admin items --target laptop
  agentmbx relay admin items list --sender desktop --json-lines | agentmbx relay admin items hold - --reason "a loop" --yes`,
	}, newAdminItemsList(e), newAdminItemsShow(e), newItemDeed(e, parent, deedHold), newItemDeed(e, parent, deedRelease), newItemDeed(e, parent, deedDiscard))
	listItems(e, cmd)
	return cmd
}

func newAdminItemsList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List queued items, by queue, the first to be fetched first",
		Long: `List queued items, by queue, the first to be fetched first. Held ones are listed by
agentmbx relay admin quarantine.

What --json-lines prints can be piped into items hold -.`,
		Example: `  agentmbx relay admin items list --target laptop --older-than 7d
  agentmbx relay admin items list --kind receipt --all --json-lines`,
	}
	listItems(e, cmd)
	return cmd
}

// itemFlags select items.
type itemFlags struct{ target, sender, kind, id, olderThan string }

// listItems makes cmd list them.
func listItems(e env, cmd *cobra.Command) {
	var f itemFlags
	var filter admin.ItemFilter
	cmd.Flags().StringVar(&f.target, "target", "", "only those for this `host`")
	cmd.Flags().StringVar(&f.sender, "sender", "", "only those that this `host` pushed")
	cmd.Flags().StringVar(&f.kind, "kind", "", "only those of this `kind`: envelope, receipt or expired")
	cmd.Flags().StringVar(&f.id, "id", "", "only those with this item `id`")
	cmd.Flags().StringVar(&f.olderThan, "older-than", "", "only those accepted longer ago than this `span`, such as 24h or 7d")
	check := func() (err error) {
		filter, err = f.filter(time.Now())
		return err
	}
	listCommand(e, cmd, "after", check, func(ctx context.Context, svc admin.Service) (l list[admin.Item], err error) {
		if filter.Target, err = findKey(ctx, svc, f.target); err != nil {
			return l, err
		}
		if filter.Sender, err = findKey(ctx, svc, f.sender); err != nil {
			return l, err
		}
		return list[admin.Item]{
			one: "item", many: "items",
			heading: "HOST\tTARGET\tSEQ\tKIND\tID\tSENDER\tBYTES\tACCEPTED\tEXPIRES",
			cells: func(i admin.Item) []string {
				return []string{cmp.Or(i.TargetHost.Name, "-"), i.TargetHost.Fingerprint, fmt.Sprint(i.Seq), i.Kind, i.ID,
					itemSender(i), fmt.Sprint(i.Bytes), timeOr(i.AcceptedAt), timeOr(i.ExpiresAt)}
			},
			page: func(p admin.Paging) (admin.Page[admin.Item], error) {
				filter.Paging = p
				return svc.Items(ctx, filter)
			},
		}, nil
	})
}

// filter is what of the flags needs no desk.
func (f itemFlags) filter(now time.Time) (admin.ItemFilter, error) {
	filter := admin.ItemFilter{Kind: f.kind, ID: f.id}
	switch f.kind {
	case "", wire.KindEnvelope, wire.KindReceipt, wire.KindExpired:
	default:
		return filter, usage(fmt.Errorf("--kind is %s: want envelope, receipt or expired", quoteValue(f.kind)))
	}
	if f.olderThan != "" {
		d, err := span(f.olderThan, "--older-than")
		if err != nil {
			return filter, err
		}
		filter.OlderThan = now.Add(-d)
	}
	return filter, nil
}

// itemSender names who pushed an item, as it is called now, or was then.
func itemSender(i admin.Item) string {
	return cmp.Or(i.Sender.Name, i.SenderHost, i.Sender.Fingerprint, "-")
}

func newAdminItemsShow(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show TARGET SEQ",
		Short: "Show what is known of one item, queued or held",
		Long: `Show what is known of one item, queued or held: never its body, which is sealed.
The exit code is 4 when it is gone.`,
		Example: `  agentmbx relay admin items show laptop 17
  agentmbx relay admin items show 1f3a-09bc-77d0-e214 17 --json`,
		Args: refPair,
	}
	at := bindDesk(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			key, err := findKey(cmd.Context(), svc, args[0])
			if err != nil {
				return err
			}
			seq, err := seqArg(args[1])
			if err != nil {
				return err
			}
			it, err := svc.Item(cmd.Context(), relay.ItemRef{Target: key, Seq: seq})
			if err != nil {
				return deskError(err)
			}
			if *asJSON {
				return printJSON(e.out, it)
			}
			return printItem(e, it)
		})
	}
	return cmd
}

// refPair takes one TARGET and its SEQ.
func refPair(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return fmt.Errorf("no SEQ follows %q: see %s -h", args[0], cmd.CommandPath())
	}
	if err := nArgs(2, 2, "TARGET")(cmd, args); err != nil {
		return err
	}
	_, err := seqArg(args[1])
	return err
}

func printItem(e env, i admin.Item) error {
	lines := [][2]string{
		{"target", named(i.TargetHost)}, {"seq", fmt.Sprint(i.Seq)}, {"id", i.ID}, {"kind", i.Kind},
		{"sender", named(i.Sender)}, {"sent as", i.SenderHost}, {"sha256", i.Hash}, {"bytes", fmt.Sprint(i.Bytes)},
		{"accepted", timeOr(i.AcceptedAt)}, {"expires", timeOr(i.ExpiresAt)},
	}
	if h := i.Held; h != nil {
		lines = append(lines, [2]string{"held", fmt.Sprintf("%s by %s: %s", timeOr(h.At), h.Actor, cmp.Or(h.Reason, "-"))})
	}
	return facts(e.out, lines...)
}
