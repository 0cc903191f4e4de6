package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// itemDeed is something that is done to items.
type itemDeed struct {
	verb, past  string
	short, long string
	word        string // what to type before it, "" where y will do
	reason      bool   // has to be given
	do          func(admin.Service, context.Context, admin.ItemAction) (admin.ItemResult, error)
}

var (
	deedHold = itemDeed{
		verb: "hold", past: "held", reason: true,
		short: "Take items out of their queues, into the quarantine",
		long: `Take queued items out of their queues and into the quarantine: their hosts do not
get them until they are released. They stay charged to the queue, and expire at
their time like any other.`,
		do: admin.Service.Hold,
	}
	deedRelease = itemDeed{
		verb: "release", past: "released",
		short: "Put held items back, at the end of their queues",
		long: `Put held items back into their queues: at the end, under a new SEQ, which is
printed.`,
		do: admin.Service.Release,
	}
	deedDiscard = itemDeed{
		verb: "discard", past: "discarded", word: "discard", reason: true,
		short: "Drop held items for good, and tell their senders",
		long: `Drop held items for good. The sender of each message is told, with the signed
notice of an expiry. Only held items can be discarded.`,
		do: admin.Service.Discard,
	}
)

// deedCodes tells how the exit codes of what is done to several things count.
const deedCodes = `What would be done is said first, and done with --yes; at a terminal you are asked.
Exit codes: 0 all was done; 1 some were not done, or the work failed midway, as on a
full disk or when the relay is gone: the last line says how many are done; 4 none,
since all of them are gone; 3 none, for another reason. Without --yes and a terminal
nothing is done, and it is 2.`

func newItemDeed(e env, parent string, d itemDeed) *cobra.Command {
	line := fmt.Sprintf("  agentmbx relay admin %s %s", parent, d.verb)
	source := "quarantine list --kind held"
	if d.verb == deedHold.verb {
		source = "items list --sender desktop"
	}
	cmd := &cobra.Command{
		Use:   d.verb + " {TARGET SEQ... | -}",
		Short: d.short,
		Long: d.long + `

- reads the items from stdin, as lists print them with --json-lines: any number, at
most 500 and 8 MiB in one transaction, in the order of their queues. A line that names
no item is an error, and nothing is done. An item that is not there any more, under
the id it had, is gone: the others are done. With --dry-run each such part is undone
before the next, so that later parts may come out differently when it is done.

` + deedCodes,
		Example: line + ` laptop 17 --reason "asked by its owner" --yes
  agentmbx relay admin ` + source + ` --json-lines | ` + line[2:] + ` - --reason "a loop" --yes`,
		Args: refArgs,
	}
	at := bindDesk(cmd)
	f := bindDeed(cmd, d.reason)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var refs []relay.ItemRef
		fromStdin := args[0] == "-"
		if fromStdin {
			if byHand(e.in) {
				return usage(errors.New("nothing is piped in: - reads what items list --json-lines prints"))
			}
			var err error
			if refs, err = readRefs(e.in); err != nil {
				return err
			}
		}
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			var gone []relay.Outcome
			if !fromStdin {
				var err error
				if refs, gone, err = refsOf(cmd.Context(), svc, args); err != nil {
					return err
				}
			}
			return runItemDeed(cmd.Context(), e, svc, d, f, refs, gone)
		})
	}
	return cmd
}

// itemsDone is what the commands on items print with --json.
type itemsDone struct {
	admin.ItemResult
	Unknown  int `json:"unknown"`   // of a call that failed: they may be done or not
	NotTried int `json:"not_tried"` // of the calls after it, and of one that was refused as a whole
	parts    int
}

func runItemDeed(ctx context.Context, e env, svc admin.Service, d itemDeed, f *deedFlags, refs []relay.ItemRef, gone []relay.Outcome) error {
	result := itemsDone{ItemResult: admin.ItemResult{Outcomes: append([]relay.Outcome{}, gone...), Failed: len(gone), DryRun: f.dryRun}}
	slices.SortFunc(refs, relay.ItemRef.Compare) // mail keeps its order, part after part
	var failed error
	if len(refs) > 0 {
		planItems(e, d, f, refs)
		var words []string
		if d.word != "" {
			words = []string{d.word}
		}
		if err := f.agreed(e, words...); err != nil {
			return err
		}
		failed = doItems(ctx, e, svc, d, f, refs, &result)
	}
	if f.dryRun && result.parts > 1 {
		fmt.Fprintf(e.errw, "tried in %d parts of at most %d items and %d MiB, each undone before the next: later parts may come out differently\n",
			result.parts, relay.MaxItems, relay.MaxDeedBytes>>20)
	}
	total := len(refs) + len(gone)
	if failed != nil && len(result.Outcomes) == 0 {
		return failed
	}
	if err := printItemResult(e, d, f, result, total); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return judge(result.ItemResult, d.past)
}

// planItems says what is about to be done: how many items, and the first of them.
func planItems(e env, d itemDeed, f *deedFlags, refs []relay.ItemRef) {
	const shown = 10
	targets := map[any]bool{}
	for _, r := range refs {
		targets[r.Target] = true
	}
	fmt.Fprintf(e.errw, "%s %s of %s%s\n", d.verb, counted(len(refs), "item", "items"), counted(len(targets), "queue", "queues"), f.because())
	w := tabwriter.NewWriter(e.errw, 0, 8, 2, ' ', 0)
	for _, r := range refs[:min(len(refs), shown)] {
		fmt.Fprintln(w, "  "+tabbed(r.Target.Fingerprint(), fmt.Sprint(r.Seq), r.ID))
	}
	_ = w.Flush() // talk
	if more := len(refs) - shown; more > 0 {
		fmt.Fprintf(e.errw, "  and %d more\n", more)
	}
}

// doItems does it, as many at a time as one call takes.
func doItems(ctx context.Context, e env, svc admin.Service, d itemDeed, f *deedFlags, refs []relay.ItemRef, result *itemsDone) error {
	show, finish := progressBar(e, d.verb)
	defer finish()
	total := len(refs)
	for len(refs) > 0 {
		show("items", int64(total-len(refs)), int64(total))
		part := refs[:min(len(refs), relay.MaxItems)]
		r, err := d.do(svc, ctx, admin.ItemAction{Action: f.action(), Items: part, DryRun: f.dryRun})
		seen := 0
		if err == nil {
			if seen = result.add(r.Outcomes); seen == 0 {
				err = errors.New("the desk left all of them for another call")
			}
		}
		if err != nil {
			if result.NotTried = len(refs); admin.Kind(err) == "" {
				result.Unknown, result.NotTried = len(part), len(refs)-len(part)
			}
			err = deskError(err)
			if done := total - len(refs); done > 0 {
				err = withCode(exitCode(err), fmt.Errorf("%w; %d of %d items were seen to before", err, done, total))
			}
			return err
		}
		result.parts++
		refs = refs[seen:]
	}
	return nil
}

// add counts what became of items, without those that were left for another call,
// which are the last of them. It answers how many it counted.
func (r *itemsDone) add(outcomes []relay.Outcome) (n int) {
	for _, o := range outcomes {
		switch {
		case o.Problem == relay.ProblemLater:
			continue
		case o.Done:
			r.Done++
		default:
			r.Failed++
		}
		r.Outcomes = append(r.Outcomes, o)
		n++
	}
	return n
}

// manyOutcomes is from how many on only those that were not done are listed.
const manyOutcomes = 50

func printItemResult(e env, d itemDeed, f *deedFlags, r itemsDone, total int) error {
	if f.json {
		return printJSON(e.out, r)
	}
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	for _, o := range r.Outcomes {
		if !o.Done || total <= manyOutcomes {
			fmt.Fprintln(w, tabbed(o.Target.Fingerprint(), fmt.Sprint(o.Seq), o.ID, outcomeText(d, f, o)))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text := fmt.Sprintf("%s %d of %s", f.would(d.past, d.verb), r.Done, counted(total, "item", "items"))
	gone := goneOf(r.ItemResult)
	for _, c := range []struct {
		n    int
		what string
	}{{gone, "gone"}, {r.Failed - gone, "refused"}, {r.Unknown, "unknown"}, {r.NotTried, "not tried"}} {
		if c.n > 0 {
			text += fmt.Sprintf("; %d %s", c.n, c.what)
		}
	}
	_, err := fmt.Fprintln(e.out, text)
	return err
}

// outcomeText is what became of one item.
func outcomeText(d itemDeed, f *deedFlags, o relay.Outcome) string {
	switch {
	case !o.Done:
		return "not " + d.past + ": " + o.Problem
	case o.NewSeq > 0:
		return fmt.Sprintf("%s as %d", f.would(d.past, d.verb), o.NewSeq)
	case o.Notice != "":
		return fmt.Sprintf("%s, notice: %s", f.would(d.past, d.verb), o.Notice)
	}
	return f.would(d.past, d.verb)
}

func goneOf(r admin.ItemResult) (n int) {
	for _, o := range r.Outcomes {
		if !o.Done && o.Problem == relay.ProblemGone {
			n++
		}
	}
	return n
}

// judge turns what was not done into an error with its exit code (see deedCodes).
func judge(r admin.ItemResult, past string) error {
	gone := goneOf(r)
	switch {
	case r.Failed == 0:
		return nil
	case r.Done > 0:
		return fmt.Errorf("%d of %d items were not %s", r.Failed, r.Done+r.Failed, past)
	case gone == r.Failed:
		return notFound(fmt.Errorf("%s gone: nothing was done; list them anew", counted(gone, "item is", "items are")))
	}
	return refused(fmt.Errorf("none of the items was %s: %s", past, firstProblem(r)))
}

func firstProblem(r admin.ItemResult) string {
	for _, o := range r.Outcomes {
		if !o.Done && o.Problem != relay.ProblemGone {
			return o.Problem
		}
	}
	return relay.ProblemGone
}
