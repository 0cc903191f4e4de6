package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
)

func newAdminBackups(e env) *cobra.Command {
	cmd := newGroup(&cobra.Command{
		Use:   "backups",
		Short: "List the backups, take one, verify one",
		Long: `List the backups in the backup folder, newest first, with whether each was verified.
A restore is made with the relay stopped: see agentmbx relay restore -h.`,
		Example: `  agentmbx relay admin backups --store-dir ./data
  agentmbx relay admin backups run`,
	}, newAdminBackupsRun(e), newAdminBackupsVerify(e))
	at := bindDesk(cmd, "backup-dir")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, running bool) error {
			ownSettings(e, running, at.settings.given("backup.dir"))
			return showBackups(cmd.Context(), e, svc, *asJSON)
		})
	}
	return cmd
}

func newAdminBackupsRun(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Take a backup now and verify it",
		Long: `Take a backup into the backup folder now and verify it, as agentmbx relay backup
does.`,
		Example: `  agentmbx relay admin backups run --store-dir ./data --json`,
	}
	at := bindDesk(cmd, "backup-dir")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, running bool) error {
			ownSettings(e, running, at.settings.given("backup.dir", "backup.age_recipient"))
			return backupNow(cmd.Context(), e, svc, jobs.Request{Job: admin.JobBackup}, *asJSON)
		})
	}
	return cmd
}

func newAdminBackupsVerify(e env) *cobra.Command {
	var identity string
	cmd := &cobra.Command{
		Use:   "verify NAME",
		Short: "Check a backup in full",
		Long: `Check a backup in full: one of the backup folder by its name, any other by its
absolute path, on the machine that has the store. The exit code is 5 for a bad file,
4 for a missing one, 2 for an encrypted one without its identity.`,
		Example: `  agentmbx relay admin backups verify relay-20261130T031700Z-000017.db --store-dir ./data
  agentmbx relay admin backups verify /mnt/usb/relay.db --json`,
		Args: nArgs(1, 1, "the name of a backup; see agentmbx relay admin backups"),
	}
	at := bindDesk(cmd, "backup-dir")
	cmd.Flags().StringVar(&identity, "identity", "", "age identity `file` of an encrypted backup, by its absolute path")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "" {
			return usage(errors.New("NAME is empty"))
		}
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			return verifyNow(cmd.Context(), e, svc, admin.VerifyArgs{File: args[0], Identity: identity}, *asJSON)
		})
	}
	return cmd
}

// verifyNow has a backup verified and prints what was found.
func verifyNow(ctx context.Context, e env, svc admin.Service, a admin.VerifyArgs, asJSON bool) error {
	asked, err := json.Marshal(a)
	if err != nil {
		return err
	}
	run, failed := followJob(ctx, e, svc, jobs.Request{Job: admin.JobVerify, Args: asked})
	if len(run.Result) == 0 {
		return failed
	}
	var report backup.Report
	if err := json.Unmarshal(run.Result, &report); err != nil {
		return errors.Join(failed, fmt.Errorf("the relay answered no report of a verification: %w", err))
	}
	if asJSON {
		err = printJSON(e.out, report)
	} else {
		err = printReport(e.out, report)
	}
	return cmp.Or(err, failed)
}
