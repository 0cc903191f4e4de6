package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
)

func newAdminLog(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "List the relay log: who did what, and why",
		Long: `List the relay log, the last line first: backups, restores, drills, epochs, sweeps,
and what operators did, each with its receipt. --json has the receipts whole.`,
		Example: `  agentmbx relay admin log --store-dir ./data --limit 20
  agentmbx relay admin log --op hold --json
  agentmbx relay admin log --text laptop --before 1200`,
	}
	var f admin.LogFilter
	cmd.Flags().StringVar(&f.Op, "op", "", "only lines of this `kind`, such as backup, hold or revoke")
	cmd.Flags().StringVar(&f.Text, "text", "", "only lines whose kind or receipt has this `text`")
	listCommand(e, cmd, "before", nil, func(ctx context.Context, svc admin.Service) (list[admin.LogEntry], error) {
		return list[admin.LogEntry]{
			one: "line", many: "lines",
			heading: "ID\tAT\tOP\tRECEIPT",
			cells: func(l admin.LogEntry) []string {
				return []string{fmt.Sprint(l.ID), timeOr(l.At), l.Op, string(l.Receipt)}
			},
			page: func(p admin.Paging) (admin.Page[admin.LogEntry], error) {
				return backwards(p, func(l admin.LogEntry) int64 { return l.ID }, func(before int64, limit int) ([]admin.LogEntry, bool, error) {
					f.Before, f.Limit = before, limit
					return admin.LogPage(ctx, svc, f)
				})
			},
		}, nil
	})
	return cmd
}
