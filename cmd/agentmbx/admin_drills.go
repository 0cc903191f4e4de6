package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/backup/drill"
)

func newAdminDrills(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "drills",
		Short: "List the drills, and run one",
		Long: `List the drills, the last one first: what was drilled, whether it passed, the age of
the backup (RPO) and how long a restore took (RTO). --json has every check of each.`,
		Example: `  agentmbx relay admin drills --store-dir ./data
  agentmbx relay admin drills run`,
	}, newAdminDrillsList(e), newAdminDrillsRun(e))
	listDrills(e, cmd)
	return cmd
}

func newAdminDrillsList(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the drills, the last one first",
		Example: `  agentmbx relay admin drills list --limit 1 --json`,
	}
	listDrills(e, cmd)
	return cmd
}

// drilled is a drill in the relay log.
type drilled struct {
	ID      int64         `json:"id"` // of its line in the log
	At      time.Time     `json:"at"`
	Receipt drill.Receipt `json:"receipt"`
}

// listDrills makes cmd list them.
func listDrills(e env, cmd *cobra.Command) {
	listCommand(e, cmd, "before", nil, func(ctx context.Context, svc admin.Service) (list[drilled], error) {
		return list[drilled]{
			one: "drill", many: "drills",
			heading: "ID\tAT\tRESULT\tRPO\tRTO\tBACKUP\tFAULT",
			cells: func(d drilled) []string {
				r := d.Receipt
				result, fault := "passed", ""
				if !r.Passed {
					result, fault = "FAILED", r.FirstFault()
				}
				return []string{fmt.Sprint(d.ID), timeOr(d.At), result, drill.Span(r.RPO), drill.Span(r.RTO),
					cmp.Or(filepath.Base(r.File), "-"), fault}
			},
			page: func(p admin.Paging) (admin.Page[drilled], error) {
				return backwards(p, func(d drilled) int64 { return d.ID }, func(before int64, limit int) ([]drilled, bool, error) {
					return drillsOf(ctx, svc, before, limit)
				})
			},
		}, nil
	})
}

func drillsOf(ctx context.Context, svc admin.Service, before int64, limit int) (found []drilled, more bool, err error) {
	lines, more, err := admin.LogPage(ctx, svc, admin.LogFilter{Op: admin.JobDrill, Before: before, Limit: limit})
	if err != nil {
		return nil, false, err
	}
	found = make([]drilled, len(lines))
	for i, l := range lines {
		found[i] = drilled{ID: l.ID, At: l.At}
		if err := json.Unmarshal(l.Receipt, &found[i].Receipt); err != nil {
			return nil, false, fmt.Errorf("line %d of the relay log is no drill's receipt: %w", l.ID, err)
		}
	}
	return found, more, nil
}

func newAdminDrillsRun(e env) *cobra.Command {
	var identity string
	cmd := &cobra.Command{
		Use:   "run [FILE]",
		Short: "Rehearse a restore of a backup now",
		Long: `Rehearse a restore of the newest verified backup, or of FILE, which is a file of the
machine that has the store. See agentmbx relay drill, which does the same. The exit
code is 5 when a check fails.`,
		Example: `  agentmbx relay admin drills run --store-dir ./data
  agentmbx relay admin drills run data/backups/relay-20261130T031700Z-000017.db --json`,
		Args: nArgs(0, 1, "the backup to drill; see agentmbx relay admin backups"),
	}
	at := bindDesk(cmd, "backup-dir")
	cmd.Flags().StringVar(&identity, "identity", "", "age identity `file` that opens an encrypted backup")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		a := admin.DrillArgs{Identity: identity}
		if len(args) > 0 {
			if args[0] == "" {
				return usage(fmt.Errorf("FILE is empty"))
			}
			a.File = args[0]
		}
		for _, path := range []*string{&a.File, &a.Identity} { // the relay that does it is elsewhere
			if *path == "" {
				continue
			}
			if *path, err = filepath.Abs(*path); err != nil {
				return err
			}
		}
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			return drillNow(cmd.Context(), e, svc, a, *asJSON)
		})
	}
	return cmd
}
