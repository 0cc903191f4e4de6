package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func newBackups(e env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "backups",
		Short: "List the backups that are kept",
		Long: `List the backups in the backup folder, newest first. The number decides which is
newer: clocks lie. A running relay answers, otherwise the store is opened.`,
		Example: `  agentmbx relay backups --store-dir ./data
  agentmbx relay backups prune --dry-run`,
	}
	r := bindSettings(cmd.Flags(), "store-dir", "backup-dir")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		return withDesk(cmd.Context(), e, s, func(svc admin.Service, running bool) error {
			ownSettings(e, running, r.given("backup.dir"))
			return showBackups(cmd.Context(), e, svc, asJSON)
		})
	}
	cmd.AddCommand(newPruneBackups(e))
	return cmd
}

func showBackups(ctx context.Context, e env, svc admin.Service, asJSON bool) error {
	list, err := svc.Backups(ctx)
	if err != nil {
		return deskError(err)
	}
	switch {
	case asJSON:
		return printJSON(e.out, append([]backup.Entry{}, list...))
	case len(list) == 0:
		_, err = fmt.Fprintln(e.out, "no backups yet; take one with: agentmbx relay backup")
		return err
	}
	return printBackups(e.out, list)
}

// given names those of the settings that this command was given as a flag or in
// the environment.
func (r *settingsReader) given(keys ...string) (list []string) {
	for _, st := range new(Settings).table() {
		if !slices.Contains(keys, st.key) {
			continue
		}
		if f := r.flags.Lookup(st.flag); f != nil && f.Changed {
			list = append(list, "--"+st.flag)
			continue
		}
		for _, name := range st.env {
			if os.Getenv(name) != "" {
				list = append(list, name)
			}
		}
	}
	return list
}

// ownSettings says that a relay which does the work has settings of its own.
func ownSettings(e env, running bool, given []string) {
	if running && len(given) > 0 {
		fmt.Fprintf(e.errw, "agentmbx: a relay runs on this store: its own settings apply, not the %s given here\n", strings.Join(given, " and "))
	}
}

func printBackups(out io.Writer, list []backup.Entry) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "N\tTAKEN\tAGE\tBYTES\tITEMS\tVERIFIED\tENCRYPTED\tFILE\tPROBLEM")
	for _, b := range list {
		n, taken, age := "-", "-", "-"
		if b.Receipt.N > 0 {
			n = fmt.Sprint(b.Receipt.N)
		}
		if !b.Receipt.At.IsZero() {
			taken, age = wire.FormatTime(b.Receipt.At), ageText(b.Age)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", n, taken, age, b.Receipt.Bytes, b.Receipt.Items,
			yesNo(b.Verified), yesNo(b.Receipt.Encrypted), printable(filepath.Base(b.Path)), printable(b.Problem))
	}
	return w.Flush()
}

// ageText is how long ago something was, in its largest units.
func ageText(d time.Duration) string {
	switch {
	case d < 0:
		return "in the future"
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
	return d.Round(time.Second).String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// pruned is what `relay backups prune --json` prints.
type pruned struct {
	DryRun    bool              `json:"dry_run"`
	Kept      int               `json:"kept"`
	Removed   int               `json:"removed"`
	Decisions []backup.Decision `json:"decisions"`
}

func newPruneBackups(e env) *cobra.Command {
	var asJSON, dryRun bool
	var reason string
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove backups beyond those that are kept",
		Long: `Remove the backups beyond the number that is kept (MBX_BACKUP_KEEP), as every
backup does by itself, and say of each why it stays or goes. Only files that this
relay made go, by their receipts; the newest verified one never does.`,
		Example: `  agentmbx relay backups prune --dry-run
  agentmbx relay backups prune --store-dir ./data --json`,
	}
	r := bindSettings(cmd.Flags(), "store-dir", "backup-dir")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would go")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the relay log")
	cmd.PreRunE = func(*cobra.Command, []string) error { return isText(admin.Action{Actor: actor(), Reason: reason}) }
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := r.read()
		if err != nil {
			return err
		}
		return runPruneBackups(cmd.Context(), e, s, r.given("backup.dir", "backup.keep"), pruned{DryRun: dryRun}, reason, asJSON)
	}
	return cmd
}

func runPruneBackups(ctx context.Context, e env, s Settings, given []string, p pruned, reason string, asJSON bool) error {
	return withDesk(ctx, e, s, func(svc admin.Service, running bool) error {
		ownSettings(e, running, given)
		list, err := svc.PruneBackups(ctx, p.DryRun, admin.Action{Actor: actor(), Reason: reason})
		if err != nil {
			return deskError(err)
		}
		p.Decisions = append([]backup.Decision{}, list...)
		for _, d := range list {
			if d.Remove {
				p.Removed++
			} else {
				p.Kept++
			}
		}
		if asJSON {
			return printJSON(e.out, p)
		}
		return printPruned(e.out, p)
	})
}

func printPruned(out io.Writer, p pruned) error {
	verb, sum := "removed", "%d removed, %d kept\n"
	if p.DryRun {
		verb, sum = "remove", "%d would be removed, %d kept\n"
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, d := range p.Decisions {
		what := "keep"
		if d.Remove {
			what = verb
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", what, printable(filepath.Base(d.Path)), printable(d.Why))
	}
	fmt.Fprintf(w, sum, p.Removed, p.Kept)
	return w.Flush()
}
