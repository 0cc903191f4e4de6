package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// What one reading of stdin may hold.
const (
	maxRefLine = 64 << 10
	maxRefs    = 100_000
)

// deedFlags are the flags of whatever changes something.
type deedFlags struct {
	reason string
	yes    bool
	dryRun bool
	json   bool
}

// bindDeed gives a command the flags of a deed.
func bindDeed(cmd *cobra.Command, wantsReason bool) *deedFlags {
	f := &deedFlags{}
	cmd.Flags().StringVar(&f.reason, "reason", "", "why, for the relay log")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do it, without asking")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "go all the way, undo it, and say what would have come of it")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	if wantsReason {
		_ = cmd.MarkFlagRequired("reason") // fails only for a flag that is not there
	}
	cmd.PreRunE = func(*cobra.Command, []string) error { return isText(f.action()) }
	return f
}

// isText refuses what JSON would carry in other letters than were given.
func isText(a admin.Action) error {
	switch {
	case !utf8.ValidString(a.Reason):
		return usage(errors.New("--reason is no text: want UTF-8"))
	case !utf8.ValidString(a.Actor):
		return usage(fmt.Errorf("the name of this user is no text, and the relay log could not tell it: %s", quoteValue(a.Actor)))
	}
	return nil
}

func (f *deedFlags) action() admin.Action { return admin.Action{Actor: actor(), Reason: f.reason} }

// because is the reason in a plan.
func (f *deedFlags) because() string {
	if f.reason == "" {
		return ""
	}
	return ", because: " + printable(f.reason)
}

// agreed returns nil when what a plan said is to be done: with --yes, and with
// --dry-run, which does nothing. Else a person at a terminal is asked, and types
// one of words, or y when there are none.
func (f *deedFlags) agreed(e env, words ...string) error {
	if f.yes || f.dryRun {
		return nil
	}
	if !byHand(e.in) {
		return usage(errors.New("nothing was done: add --yes to do it, or --dry-run to see what would come of it"))
	}
	if len(words) == 0 {
		fmt.Fprint(e.errw, "Do it? [y/N] ")
		words = []string{"y", "Y", "yes"}
	} else {
		fmt.Fprintf(e.errw, "This cannot be undone. Type %s to go on: ", printable(words[0]))
	}
	line, err := bufio.NewReader(io.LimitReader(e.in, 1000)).ReadString('\n')
	if err != nil {
		fmt.Fprintln(e.errw)
	}
	if !slices.Contains(words, strings.TrimSpace(line)) {
		return refused(errors.New("not confirmed: nothing was done"))
	}
	return nil
}

// would is how a deed is told: done, or only tried.
func (f *deedFlags) would(past, verb string) string {
	if f.dryRun {
		return "would " + verb
	}
	return past
}

// refArgs checks the arguments that name items: pairs of TARGET and SEQ, or "-".
func refArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return fmt.Errorf("no item is named: want TARGET SEQ, or - to read them from stdin; see %s -h", cmd.CommandPath())
	case len(args) == 1 && args[0] == "-":
		return nil
	case len(args)%2 == 1:
		return fmt.Errorf("no SEQ follows %q: want TARGET SEQ pairs, or - alone; see %s -h", args[len(args)-1], cmd.CommandPath())
	}
	for i := 1; i < len(args); i += 2 {
		if _, err := seqArg(args[i]); err != nil {
			return err
		}
	}
	return nil
}

func seqArg(text string) (int64, error) {
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 1 {
		return 0, usage(fmt.Errorf("%s is no SEQ: want a whole number from 1, as agentmbx relay admin items shows it", quoteValue(text)))
	}
	return seq, nil
}

// refsOf finds the items that arguments name, and pins each by its id. Those that
// are not there are gone.
func refsOf(ctx context.Context, svc admin.Service, args []string) (refs []relay.ItemRef, gone []relay.Outcome, err error) {
	keys := map[string]wire.PublicKey{}
	for i := 0; i+1 < len(args); i += 2 {
		key, known := keys[args[i]]
		if !known {
			if key, err = findKey(ctx, svc, args[i]); err != nil {
				return nil, nil, err
			}
			keys[args[i]] = key
		}
		seq, err := seqArg(args[i+1])
		if err != nil {
			return nil, nil, err
		}
		it, err := svc.Item(ctx, relay.ItemRef{Target: key, Seq: seq})
		switch {
		case admin.Kind(err) == "NOT_FOUND":
			gone = append(gone, relay.Outcome{ItemRef: relay.ItemRef{Target: key, Seq: seq}, Problem: relay.ProblemGone})
		case err != nil:
			return nil, nil, deskError(err)
		case !slices.Contains(refs, it.ItemRef):
			refs = append(refs, it.ItemRef)
		}
	}
	return refs, gone, nil
}

// refLine is what counts of a line that a list printed: of items, or of the
// quarantine.
type refLine struct {
	refFields
	Kind string     `json:"kind"`
	Item *refFields `json:"item"`
}

type refFields struct {
	Target *wire.PublicKey `json:"target"`
	Seq    *int64          `json:"seq"`
	ID     *string         `json:"id"`
}

// readRefs reads items from the lines that `items list --json-lines` and
// `quarantine list --json-lines` print, each item once. A line that names none is
// an error that tells its number; none at all is one, too.
func readRefs(in io.Reader) (refs []relay.ItemRef, err error) {
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 4096), maxRefLine)
	seen := map[store.ItemMark]string{}
	n := 0
	for sc.Scan() {
		n++
		line := strings.TrimSpace(sc.Text())
		if line == "" {
			continue
		}
		ref, err := parseRef([]byte(line))
		if err != nil {
			return nil, usage(fmt.Errorf("line %d on stdin %w: nothing was done", n, err))
		}
		place := store.ItemMark{Target: ref.Target, Seq: ref.Seq}
		switch id, again := seen[place]; {
		case again && id != ref.ID:
			return nil, usage(fmt.Errorf("line %d on stdin names an item under another id than a line before: nothing was done", n))
		case again:
			continue
		}
		if len(refs) == maxRefs {
			return nil, usage(fmt.Errorf("stdin names over %d items: nothing was done; do fewer at a time", maxRefs))
		}
		seen[place] = ref.ID
		refs = append(refs, ref)
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return nil, usage(fmt.Errorf("line %d on stdin is over %d bytes: nothing was done", n+1, maxRefLine))
	}
	if err := sc.Err(); err != nil || len(refs) > 0 {
		return refs, err
	}
	// The list before the pipe may have failed: that is no success.
	return nil, notFound(errors.New("no items came in on stdin: nothing was done"))
}

var errNoRef = errors.New("names no item: want target, seq and id, as agentmbx relay admin items list --json-lines prints them")

func parseRef(line []byte) (ref relay.ItemRef, err error) {
	var l refLine
	if err := wire.Decode(line, &l); err != nil {
		return ref, errNoRef // its text says less to whoever made the line
	}
	f := l.refFields
	switch {
	case l.Kind == admin.QuarantineRefused && l.Item == nil && f.Target == nil:
		return ref, errors.New("is a refused push, which is no item: list with --kind held")
	case l.Item != nil:
		f = *l.Item
	}
	if f.Target == nil || f.Seq == nil || f.ID == nil || *f.Seq < 1 || !wire.ValidItemID(*f.ID) {
		return ref, errNoRef
	}
	return relay.ItemRef{Target: *f.Target, Seq: *f.Seq, ID: *f.ID}, nil
}
