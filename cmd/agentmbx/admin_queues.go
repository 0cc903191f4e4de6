package main

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/store"
)

func newAdminQueues(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "queues",
		Short: "List the queues that hold something, the fullest first",
		Long: `List the queues that hold something: how many items and bytes, how many of the
items are held in quarantine, and since when the first one waits, which its host
gets next: after a release others behind it may have waited longer.`,
		Example: `  agentmbx relay admin queues --store-dir ./data
  agentmbx relay admin queues --sort oldest --limit 10
  agentmbx relay admin queues show laptop`,
	}, newAdminQueuesList(e), newAdminQueuesShow(e))
	listQueues(e, cmd)
	return cmd
}

func newAdminQueuesList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the queues that hold something, the fullest first",
		Example: `  agentmbx relay admin queues list --sender desktop --json`,
	}
	listQueues(e, cmd)
	return cmd
}

// listQueues makes cmd list them.
func listQueues(e env, cmd *cobra.Command) {
	var f admin.QueueFilter
	var sort, sender string
	cmd.Flags().StringVar(&sort, "sort", string(store.ByDepth), "the `order`: depth, oldest, or bytes: the largest first, to the MiB, without those below 1 MiB")
	cmd.Flags().StringVar(&f.Text, "text", "", "only those whose host's name, fingerprint or account has this `text`")
	cmd.Flags().StringVar(&sender, "sender", "", "only those that hold mail of this `host`, in the order of keys")
	cmd.MarkFlagsMutuallyExclusive("sort", "sender")
	check := func() (err error) {
		f.Sort, err = queueOrder(sort)
		return err
	}
	listCommand(e, cmd, "after", check, func(ctx context.Context, svc admin.Service) (l list[admin.Queue], err error) {
		if f.Sender, err = findKey(ctx, svc, sender); err != nil {
			return l, err
		}
		return list[admin.Queue]{
			one: "queue", many: "queues",
			heading: "HOST\tFINGERPRINT\tSTATE\tITEMS\tBYTES\tHELD\tOLDEST\tACCOUNT",
			cells: func(q admin.Queue) []string {
				return []string{cmp.Or(q.Target.Name, "-"), q.Target.Fingerprint, queueState(q), fmt.Sprint(q.Items), fmt.Sprint(q.Bytes),
					fmt.Sprint(q.HeldItems), timeOr(q.Oldest), cmp.Or(q.Account, "-")}
			},
			page: func(p admin.Paging) (admin.Page[admin.Queue], error) {
				f.Paging = p
				return svc.Queues(ctx, f)
			},
		}, nil
	})
}

func queueOrder(text string) (store.QueueOrder, error) {
	switch o := store.QueueOrder(text); o {
	case store.ByDepth, store.ByBytes, store.ByOldest:
		return o, nil
	}
	return "", usage(fmt.Errorf("--sort is %s: want depth, bytes or oldest", quoteValue(text)))
}

func queueState(q admin.Queue) string {
	if q.Live {
		return admin.StateLive
	}
	return "gone" // revoked, or never enrolled here
}

// queueFacts is what `relay admin queues show --json` prints.
type queueFacts struct {
	Queue   admin.Queue   `json:"queue"`
	Senders []admin.Share `json:"senders"`
	Next    string        `json:"next,omitempty"` // there are more senders
}

func newAdminQueuesShow(e env) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "show HOST",
		Short: "Show one queue, and whose mail stands in it",
		Example: `  agentmbx relay admin queues show laptop
  agentmbx relay admin queues show 1f3a-09bc-77d0-e214 --json`,
		Args: nArgs(1, 1, "the name, fingerprint or key of a host"),
	}
	at := bindDesk(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "how many senders at most")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := limitFlag(limit); err != nil {
			return err
		}
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			q, err := oneQueue(cmd.Context(), svc, args[0])
			if err != nil {
				return err
			}
			f := queueFacts{Queue: q, Senders: []admin.Share{}}
			for len(f.Senders) < limit {
				page, err := svc.Shares(cmd.Context(), admin.ShareFilter{Paging: admin.Paging{After: f.Next, Limit: limit - len(f.Senders)}, Target: q.Target.Key})
				if err != nil {
					return deskError(err)
				}
				f.Senders, f.Next = append(f.Senders, page.Items...), page.Next
				if f.Next == "" {
					break
				}
			}
			if *asJSON {
				return printJSON(e.out, f)
			}
			return printQueue(e, f)
		})
	}
	return cmd
}

// oneQueue finds the queue of a host; one that holds nothing is no error.
func oneQueue(ctx context.Context, svc admin.Service, text string) (q admin.Queue, err error) {
	key, err := findKey(ctx, svc, text)
	if err != nil {
		return q, err
	}
	page, err := svc.Queues(ctx, admin.QueueFilter{Paging: admin.Paging{Limit: 1}, Target: key})
	if err != nil {
		return q, deskError(err)
	}
	if len(page.Items) > 0 {
		return page.Items[0], nil
	}
	h, err := svc.Enrolment(ctx, key)
	if err != nil {
		return q, deskError(err)
	}
	return admin.Queue{Target: h.Host, Live: h.RevokedAt.IsZero(), Account: h.Account}, nil
}

func printQueue(e env, f queueFacts) error {
	q := f.Queue
	err := facts(e.out, [2]string{"host", named(q.Target)}, [2]string{"key", q.Target.Key.String()}, [2]string{"state", queueState(q)},
		[2]string{"account", cmp.Or(q.Account, "-")}, [2]string{"items", fmt.Sprintf("%d, %d bytes", q.Items, q.Bytes)},
		[2]string{"held", fmt.Sprintf("%d of them, %d bytes", q.HeldItems, q.HeldBytes)}, [2]string{"oldest", timeOr(q.Oldest)},
		[2]string{"head", fmt.Sprint(q.Head)}, [2]string{"acked", fmt.Sprint(q.Acked)})
	if err != nil || len(f.Senders) == 0 {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nSENDER\tFINGERPRINT\tITEMS\tBYTES")
	for _, s := range f.Senders {
		fmt.Fprintln(w, tabbed(cmp.Or(s.Sender.Name, "-"), s.Sender.Fingerprint, fmt.Sprint(s.Items), fmt.Sprint(s.Bytes)))
	}
	if err := w.Flush(); err != nil || f.Next == "" {
		return err
	}
	_, err = fmt.Fprintf(e.errw, "the first %d senders; more with --limit\n", len(f.Senders))
	return err
}
