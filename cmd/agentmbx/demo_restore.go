package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/admin/api"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/host"
)

// demoCommandLimit ends a command of the demo that hangs.
const demoCommandLimit = time.Minute

// takeBackup takes a backup from the serving relay, with a message waiting in it,
// and lets mail go on that the backup knows nothing of.
func (d *demo) takeBackup(ctx context.Context) error {
	// What was pulled a moment ago may not be acknowledged yet, and would be in it, too.
	if err := d.until(ctx, quick, "the relay's queues were empty", func() (bool, error) {
		c, err := api.Dial(ctx, d.relay.dir)
		if err != nil {
			return false, err
		}
		s, err := c.Status(ctx)
		return s.Totals.Items == 0, err
	}); err != nil {
		return err
	}
	if err := d.work.stop(); err != nil {
		return err
	}
	id, err := d.send(ctx, d.home, d.work, "a message that is in the backup")
	if err != nil {
		return err
	}
	if err := d.reaches(ctx, d.home, id, "relay-accepted"); err != nil {
		return err
	}
	var r backup.Receipt
	if err := d.command(ctx, &r, "relay", "backup", "--store-dir", d.relay.dir, "--json"); err != nil {
		return err
	}
	d.relay.backup = r.File
	d.facts.Backups++
	d.note("agentmbx relay backup      while the relay serves: verified, one message in it\n%s", filepath.Base(r.File))
	if r.Items != 1 {
		return fmt.Errorf("the backup holds %d messages; want the one that waited", r.Items)
	}
	if err := d.daemon(ctx, d.work, false); err != nil {
		return err
	}
	if err := d.reaches(ctx, d.home, id, host.StateDelivered); err != nil {
		return err
	}
	if id, err = d.send(ctx, d.work, d.home, "a message delivered after the backup"); err != nil {
		return err
	}
	if err := d.reaches(ctx, d.work, id, host.StateDelivered); err != nil {
		return err
	}
	if err := d.work.stop(); err != nil {
		return err
	}
	if id, err = d.send(ctx, d.home, d.work, "a message that only the lost store has"); err != nil {
		return err
	}
	if err := d.reaches(ctx, d.home, id, "relay-accepted"); err != nil {
		return err
	}
	d.note("Mail goes on: one more is delivered, and one waits in the relay that no backup has.")
	return nil
}

// loseStore kills the relay, deletes its store and restores the backup.
func (d *demo) loseStore(ctx context.Context) error {
	d.relay.kill()
	d.facts.RelayKills++
	for _, name := range []string{"relay.db", "relay.db-wal", "relay.db-shm"} {
		if err := os.Remove(filepath.Join(d.relay.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	d.note("kill -9 of the relay; rm relay.db relay.db-wal relay.db-shm")
	var r backup.RestoreReceipt
	if err := d.command(ctx, &r, "relay", "restore", "--store-dir", d.relay.dir, "--json", d.relay.backup); err != nil {
		return err
	}
	d.facts.Restores++
	d.note("agentmbx relay restore     a new epoch: senders push again what is not confirmed,\nreceivers read from the start, and what they have already they know by its id.")
	if err := d.serve(ctx); err != nil {
		return err
	}
	if err := d.daemon(ctx, d.work, false); err != nil {
		return err
	}
	_, err := d.send(ctx, d.work, d.home, "the first message after the restore")
	return err
}

// command runs a command of this program to its end and reads what it prints as
// JSON into facts.
func (d *demo) command(ctx context.Context, facts any, args ...string) error {
	ctx, stop := context.WithTimeout(ctx, demoCommandLimit)
	defer stop()
	cmd := exec.CommandContext(ctx, d.exe, args...)
	cmd.Dir, cmd.Env = d.dir, d.childEnv()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	tie(cmd)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("agentmbx %s %s: %w: %.300s", args[0], args[1], err, exit.Stderr)
		}
		return err
	}
	return json.Unmarshal(out, facts)
}
