package main

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func newQuarantine(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "quarantine",
		Short: "See to what a relay delivered and this host could not accept",
		Long: `See to what a relay delivered and this host could not accept: nothing of it is
dropped. What came from a host that was not paired is tried again by itself once
that host is paired.`,
		Example: `  agentmbx relay quarantine
  agentmbx relay quarantine show 3
  agentmbx relay quarantine retry 3`,
	}, newQuarantineList(e), newQuarantineShow(e), newQuarantineRetry(e), newQuarantineDiscard(e))
	listQuarantine(e, cmd)
	return cmd
}

func newQuarantineList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List what is in quarantine, oldest first",
		Example: `  agentmbx relay quarantine list --after 20 --json`,
	}
	listQuarantine(e, cmd)
	return cmd
}

// quarantinePage is what `relay quarantine --json` prints.
type quarantinePage struct {
	Items []host.Quarantined `json:"items"`
	More  bool               `json:"more"` // ask again with --after the last id
}

// listQuarantine makes cmd list it.
func listQuarantine(e env, cmd *cobra.Command) {
	at := bindHome(cmd)
	after := cmd.Flags().Int64("after", 0, "list what comes after this `number`")
	limit := cmd.Flags().Int("limit", 50, "how many at most")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := limitFlag(*limit); err != nil {
			return err
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			items, err := here.Quarantine(cmd.Context(), *after, *limit+1)
			if err != nil {
				return err
			}
			page := quarantinePage{items[:min(len(items), *limit)], len(items) > *limit}
			if *asJSON {
				return printJSON(e.out, page)
			}
			return printQuarantine(e, page)
		})
	}
}

func printQuarantine(e env, page quarantinePage) error {
	if len(page.Items) == 0 {
		_, err := fmt.Fprintln(e.errw, "nothing is in quarantine")
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NUMBER\tSINCE\tKIND\tCLAIMS TO BE FROM\tREASON")
	for _, q := range page.Items {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", q.ID, wire.FormatTime(q.At), printable(q.Kind), printable(q.Claims), printable(q.Reason))
	}
	if err := w.Flush(); err != nil || !page.More {
		return err
	}
	_, err := fmt.Fprintf(e.errw, "there is more: --after %d\n", page.Items[len(page.Items)-1].ID)
	return err
}

func newQuarantineShow(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show an item in quarantine, with its bytes",
		Example: `  agentmbx relay quarantine show 3
  agentmbx relay quarantine show 3 --raw > item.json`,
		Args: nArgs(1, 1, "the number of an item"),
	}
	at := bindHome(cmd)
	raw := cmd.Flags().Bool("raw", false, "write the bytes alone, as they came")
	asJSON := jsonFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("raw", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := quarantineIDs(args)
		if err != nil {
			return err
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			q, err := here.Quarantined(cmd.Context(), ids[0])
			if err != nil {
				return err
			}
			if *raw {
				_, err := e.out.Write(q.Wire)
				return err
			}
			if *asJSON {
				return printJSON(e.out, q)
			}
			w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
			for _, line := range [][2]string{
				{"number", strconv.FormatInt(q.ID, 10)}, {"since", wire.FormatTime(q.At)}, {"reason", q.Reason},
				{"kind", q.Kind}, {"item", q.ItemID}, {"claims from", q.Claims}, {"pushed by", q.Sender},
				{"relay", q.Relay}, {"epoch", q.Epoch}, {"seq", strconv.FormatInt(q.Seq, 10)},
				{"wire", base64.StdEncoding.EncodeToString(q.Wire)},
			} {
				fmt.Fprintf(w, "%s\t%s\n", line[0], printable(line[1]))
			}
			return w.Flush()
		})
	}
	return cmd
}

// retryFacts is what `relay quarantine retry --json` prints.
type retryFacts struct {
	ID     int64  `json:"id"`
	Result string `json:"result"`
	Gone   bool   `json:"released"` // from quarantine
}

func newQuarantineRetry(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry ID",
		Short: "Judge an item again, now",
		Long: `Judge an item again. It is delivered and leaves quarantine; or it stays, with the
reason of now, and the exit code is 1.`,
		Example: `  agentmbx relay quarantine retry 3`,
		Args:    nArgs(1, 1, "the number of an item"),
	}
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := quarantineIDs(args)
		if err != nil {
			return err
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			result, err := here.RetryQuarantined(cmd.Context(), ids[0])
			if err != nil {
				return err
			}
			f := retryFacts{ids[0], result, !strings.HasPrefix(result, "rejected:")}
			if *asJSON {
				err = printJSON(e.out, f)
			} else if f.Gone {
				_, err = fmt.Fprintf(e.out, "%d  %s\n", f.ID, result)
			}
			if err == nil && !f.Gone {
				err = fmt.Errorf("%d stays in quarantine: %s", f.ID, result)
			}
			return err
		})
	}
	return cmd
}

// discardedFacts is what `relay quarantine discard --json` prints.
type discardedFacts struct {
	Discarded []int64 `json:"discarded"`
}

func newQuarantineDiscard(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "discard ID...",
		Short:   "Drop items for good",
		Example: `  agentmbx relay quarantine discard 3 4`,
		Args:    nArgs(1, -1, "the number of an item"),
	}
	at := bindHome(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := quarantineIDs(args)
		if err != nil {
			return err
		}
		return at.with(cmd.Context(), func(here *host.Host) error {
			for _, id := range ids { // all of them, or none
				if _, err := here.Quarantined(cmd.Context(), id); err != nil {
					return err
				}
			}
			for _, id := range ids {
				if err := here.DiscardQuarantined(cmd.Context(), id); err != nil {
					return err
				}
			}
			if *asJSON {
				return printJSON(e.out, discardedFacts{ids})
			}
			_, err := fmt.Fprintf(e.out, "discarded %s\n", strings.Join(args, ", "))
			return err
		})
	}
	return cmd
}

// quarantineIDs reads the numbers of items, each once.
func quarantineIDs(args []string) (ids []int64, err error) {
	seen := map[int64]bool{}
	for _, a := range args {
		id, err := strconv.ParseInt(a, 10, 64)
		if err != nil || id < 1 {
			return nil, usage(fmt.Errorf("%s is not the number of an item in quarantine: see agentmbx relay quarantine", quoteValue(a)))
		}
		if !seen[id] {
			ids = append(ids, id)
		}
		seen[id] = true
	}
	return ids, nil
}
