package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// adminCommands are what the desk's screens can do, for scripts.
func adminCommands(e env) []*cobra.Command {
	return []*cobra.Command{
		newAdminOverview(e), newAdminQueues(e), newAdminItems(e), newAdminEnrolments(e), newAdminSenders(e), newAdminQuarantine(e),
		newAdminDeny(e), newAdminJobs(e), newAdminBackups(e), newAdminDrills(e), newAdminLog(e),
		newAdminToken(e),
	}
}

func newAdminJobs(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "jobs",
		Short: "List the periodic jobs, when each runs next and how it went",
		Long: `List the periodic jobs: their schedules (UTC), when each runs next, and how its
last run went. Without a running relay nothing runs by itself.`,
		Example: `  agentmbx relay admin jobs --store-dir ./data
  agentmbx relay admin jobs runs backup
  agentmbx relay admin jobs run backup`,
	}, newAdminJobsRun(e), newAdminJobsRuns(e))
	at := bindDesk(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, running bool) error {
			list, err := svc.Jobs(cmd.Context())
			if err != nil {
				return deskError(err)
			}
			if *asJSON {
				return printJSON(e.out, list)
			}
			return printJobs(e.out, list, running)
		})
	}
	return cmd
}

func printJobs(out io.Writer, list []jobs.State, running bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "JOB\tSCHEDULE\tNEXT\tLAST\tENDED\tDETAIL")
	for _, j := range list {
		last, ended, detail := "-", "-", ""
		if r := j.Last; r != nil {
			last, detail = r.Outcome, r.Detail
			if !r.FinishedAt.IsZero() {
				ended = wire.FormatTime(r.FinishedAt)
			}
		}
		if j.Wanted != "" {
			detail = fmt.Sprintf("wanted after %s; %s", j.Wanted, detail)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", j.Name, cmp.Or(j.Schedule, "on request"), nextRun(j, running), last, ended, printable(detail))
	}
	return w.Flush()
}

// nextRun says when a job runs next, as far as it will by itself.
func nextRun(j jobs.State, running bool) string {
	switch {
	case j.Running != nil:
		return "runs since " + wire.FormatTime(j.Running.StartedAt)
	case !running:
		return "needs a relay"
	case j.Next.IsZero():
		return "-"
	case j.Next.Before(time.Now()):
		return "now"
	}
	return wire.FormatTime(j.Next)
}

func newAdminJobsRun(e env) *cobra.Command {
	var confirm bool
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a job now and wait for its end",
		Long: `Run a job now and wait for its end. A job that runs already is not started twice
(exit code 3).

--confirm runs a sweep that is held after a jump of the clock: check the clock
first, since what a sweep expires is gone.`,
		Example: `  agentmbx relay admin jobs run backup --store-dir ./data
  agentmbx relay admin jobs run sweep --confirm`,
		Args: nArgs(1, 1, "the name of a job"),
	}
	at := bindDesk(cmd, "backup-dir")
	cmd.Flags().BoolVar(&confirm, "confirm", false, "do what would otherwise be held")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			return runJob(cmd.Context(), e, svc, jobs.Request{Job: args[0], Confirm: confirm}, *asJSON)
		})
	}
	return cmd
}

func newAdminJobsRuns(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runs [NAME]",
		Short: "List the runs of the jobs, or of one, the last one first",
		Example: `  agentmbx relay admin jobs runs backup --limit 10
  agentmbx relay admin jobs runs --json`,
		Args: nArgs(0, 1, ""),
	}
	var job string
	listCommand(e, cmd, "before", nil, func(ctx context.Context, svc admin.Service) (list[jobs.Run], error) {
		return list[jobs.Run]{
			one: "run", many: "runs",
			heading: "ID\tJOB\tSTARTED\tENDED\tOUTCOME\tASKED BY\tDETAIL",
			cells: func(r jobs.Run) []string {
				return []string{fmt.Sprint(r.ID), r.Job, timeOr(r.StartedAt), timeOr(r.FinishedAt), cmp.Or(r.Outcome, "runs"), r.AskedBy, r.Detail}
			},
			page: func(p admin.Paging) (admin.Page[jobs.Run], error) {
				return backwards(p, func(r jobs.Run) int64 { return r.ID }, func(before int64, limit int) ([]jobs.Run, bool, error) {
					runs, err := svc.Runs(ctx, admin.RunFilter{Job: job, Before: before, Limit: limit + 1}) // one more tells whether there are more
					return runs[:min(len(runs), limit)], len(runs) > limit, err
				})
			},
		}, nil
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			job = args[0]
		}
		return run(cmd, args)
	}
	return cmd
}

func runJob(ctx context.Context, e env, svc admin.Service, q jobs.Request, asJSON bool) error {
	run, failed := followJob(ctx, e, svc, q)
	if run.ID == 0 { // it never began
		return failed
	}
	if asJSON {
		if err := printJSON(e.out, run); err != nil {
			return err
		}
		return failed
	}
	if failed != nil {
		return failed
	}
	took := run.FinishedAt.Sub(run.StartedAt).Round(time.Millisecond)
	_, err := fmt.Fprintf(e.out, "%s: run %d %s in %s: %s\n", run.Job, run.ID, run.Outcome, took, printable(cmp.Or(run.Detail, "done")))
	return err
}
