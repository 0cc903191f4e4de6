package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/backup/drill"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// rig is the desk of a real store, with a clock of its own.
type rig struct {
	*admin.Local
	t     *testing.T
	now   atomic.Int64
	relay *relay.Relay
	store *sqlite.Store
	dir   string
	refs  map[string]relay.ItemRef // what put has queued, by id
}

func newRig(t *testing.T, change ...func(o *admin.Options)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), refs: map[string]relay.ItemRef{}}
	r.now.Store(time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC).UnixMilli())
	clock := func() time.Time { return time.UnixMilli(r.now.Load()).UTC() }
	key, err := wire.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	free := func(string) (int64, int64, error) { return 40 << 20, 40 << 20, nil }
	if r.store, err = sqlite.Open(t.Context(), sqlite.Options{Dir: r.dir, Key: key.Public(), Now: clock, Free: free}); err != nil {
		t.Fatal(err)
	}
	rl, err := relay.New(t.Context(), relay.Options{Store: r.store, Key: key, Version: "test", Limits: relay.DefaultLimits(),
		Authority: authority.HostKey{}, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	r.relay = rl
	log := slog.New(slog.DiscardHandler)
	o := admin.Options{Relay: rl, Store: r.store, Key: key, Version: "test", Now: clock, BackupSchedule: "17 3 * * *", DrillSchedule: "43 4 * * 0",
		Backups: &backup.Folder{Dir: filepath.Join(r.dir, "backups"), StoreDir: r.dir, Key: key.Public(), Keep: 2, Version: "test", Log: log, Now: clock}}
	for _, f := range change {
		f(&o)
	}
	if r.Local, err = admin.NewLocal(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), r.store.Check(context.Background()), r.store.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// run has a job run and waits for its end.
func (r *rig) run(job string, args any) jobs.Run {
	r.t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		r.t.Fatal(err)
	}
	run, err := r.StartJob(r.t.Context(), jobs.Request{Job: job, By: "test", Args: b})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.await(run)
}

// await waits for the end of a run.
func (r *rig) await(run jobs.Run) jobs.Run {
	r.t.Helper()
	var err error
	for tick := time.NewTicker(5 * time.Millisecond); run.Outcome == ""; <-tick.C {
		if run, err = r.Run(r.t.Context(), run.ID); err != nil {
			r.t.Fatal(err)
		}
	}
	return run
}

// logged lists the relay log, newest first.
func (r *rig) logged(op string) []admin.LogEntry {
	r.t.Helper()
	list, err := r.Log(r.t.Context(), admin.LogFilter{Op: op, Limit: 100})
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// A backup is verified, logged, listed, counted in the status and pruned after
// the next ones; a drill of it is logged with its checks.
func TestBackupAndDrillJobs(t *testing.T) {
	r := newRig(t)
	for range 3 {
		r.now.Add(time.Minute.Milliseconds())
		if run := r.run(admin.JobBackup, nil); run.Outcome != "ok" || !strings.Contains(run.Detail, "relay-") {
			t.Fatalf("got %+v; want a backup", run)
		}
	}
	list, err := r.Backups(t.Context())
	if err != nil || len(list) != 2 || list[0].Receipt.N != 3 || list[1].Receipt.N != 2 {
		t.Fatalf("got %+v, %v; want the last two", list, err)
	}
	var receipt backup.Receipt
	if l := r.logged("backup"); len(l) != 3 {
		t.Errorf("got %d receipts; want 3", len(l))
	} else if err := json.Unmarshal(l[0].Receipt, &receipt); err != nil || receipt.SHA256 != list[0].Receipt.SHA256 || !receipt.Verified {
		t.Errorf("got %s, %v; want the newest backup's receipt", l[0].Receipt, err)
	}
	if l := r.logged("backup-prune"); len(l) != 1 || !strings.Contains(string(l[0].Receipt), `"removed"`) {
		t.Errorf("got %v; want the prune after the third backup", l)
	}

	run := r.run(admin.JobDrill, admin.DrillArgs{})
	var drilled drill.Receipt
	if err := json.Unmarshal(run.Result, &drilled); err != nil || run.Outcome != "ok" || !drilled.Passed || drilled.Source != drill.FromBackup {
		t.Fatalf("got %+v, %v; want a drill that passed", run, err)
	}
	if l := r.logged("drill"); len(l) != 1 || !strings.Contains(string(l[0].Receipt), `"rto_seconds"`) {
		t.Errorf("got %v; want the drill's receipt", l)
	}
	s, err := r.Status(t.Context())
	if err != nil || s.Job(admin.JobBackup).LastOK == nil || s.Job(admin.JobDrill).LastOK == nil {
		t.Errorf("got %+v, %v; want the last backup and drill", s.Jobs, err)
	}
	for _, p := range s.Problems {
		if strings.Contains(p, "backup") || strings.Contains(p, "drill") {
			t.Errorf("got problem %q; want none of backups and drills", p)
		}
	}
}

// What failed says so, with the kind that a command turns into its exit code.
func TestJobsThatFail(t *testing.T) {
	r := newRig(t)
	there := filepath.Join(r.dir, "there.db")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, job string
		args      any
		code      string
		part      string
	}{
		{"a backup over a file", admin.JobBackupFile, admin.BackupArgs{File: there}, "REFUSED", "exists"},
		{"a backup beside nothing", admin.JobBackupFile, admin.BackupArgs{File: "here.db"}, "BAD_REQUEST", "absolute"},
		{"unknown arguments", admin.JobBackup, map[string]int{"n": 1}, "BAD_REQUEST", "unknown field"},
		{"a drill of nothing", admin.JobDrill, admin.DrillArgs{}, "NOT_FOUND", "no verified backup"},
		{"a drill of no backup", admin.JobDrillFile, admin.DrillArgs{File: there}, "UNHEALTHY", "failed"},
		{"a drill of no file", admin.JobDrillFile, admin.DrillArgs{File: there + "x"}, "", ""},
		{"an identity that is none", admin.JobDrill, admin.DrillArgs{Identity: there}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := r.run(tt.job, tt.args)
			if run.Outcome != "failed" || tt.code != "" && run.Code != tt.code || !strings.Contains(run.Detail, tt.part) {
				t.Errorf("got %+v; want it to fail as %s with %q", run, tt.code, tt.part)
			}
		})
	}
	if b, err := os.ReadFile(there); string(b) != "mine" {
		t.Errorf("got %q, %v; want the file as it was", b, err)
	}
	s, err := r.Status(t.Context())
	if err != nil || !strings.Contains(strings.Join(s.Problems, "\n"), "the last backup failed: ") {
		t.Errorf("got %q, %v; want the failed backup among the problems", s.Problems, err)
	}
	// /readyz is for anyone: it tells as much without a path.
	if got := r.Problems(t.Context()); !slices.Equal(got, []string{"the last backup failed", "the last drill failed"}) {
		t.Errorf("for anyone: got %q; want both failures and no detail", got)
	}
}

// A backup that is older than a day and two hours is a problem; so is a store of
// that age without one. Without a schedule neither is.
func TestOverdueBackup(t *testing.T) {
	for _, tt := range []struct {
		name     string
		schedule string
		backup   bool
		age      time.Duration
		want     string
	}{
		{"none yet", "17 3 * * *", false, 25 * time.Hour, ""},
		{"none for long", "17 3 * * *", false, 27 * time.Hour, "there was no good backup yet, and the store is 27h0m0s old"},
		{"a day old", "17 3 * * *", true, 25 * time.Hour, ""},
		{"over a day old", "17 3 * * *", true, 27 * time.Hour, "the last good backup was 27h0m0s ago"},
		{"a weekend in a schedule of five days", "17 3 * * 1-5", true, 60 * time.Hour, ""}, // from Friday noon
		{"two days of a week, the second missed", "0 3 * * 6,0", true, 41*time.Hour + time.Minute, "the last good backup was 41h0m0s ago"},
		{"a week's schedule", "17 3 * * 1", true, 60 * time.Hour, ""},
		{"over a week's schedule", "17 3 * * 1", true, 72 * time.Hour, "the last good backup was 72h0m0s ago"},
		{"never by itself", "", true, 1000 * time.Hour, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(o *admin.Options) { o.BackupSchedule = tt.schedule })
			if tt.backup {
				r.run(admin.JobBackup, nil)
			}
			r.now.Add(tt.age.Milliseconds())
			s, err := r.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range s.Problems {
				if strings.Contains(p, "good backup") {
					got = p
				}
			}
			if !strings.HasPrefix(got, tt.want) || (tt.want == "") != (got == "") {
				t.Errorf("got %q; want %q", got, tt.want)
			}
		})
	}
}

// A sweep that a clock jump holds is refused, said in the status, and done once
// somebody confirms it.
func TestHeldSweep(t *testing.T) {
	r := newRig(t)
	at := time.UnixMilli(r.now.Load()).UTC()
	body := []byte("sealed")
	if err := r.store.Update(t.Context(), func(tx store.Tx) error {
		for n := range 150 {
			if _, err := tx.Insert(store.Item{Target: wire.PublicKey{1}, Kind: store.KindReceipt, ID: fmt.Sprintf("item number %04d", n), Sender: wire.PublicKey{2},
				Hash: wire.Hash(body), AcceptedAt: at, ExpiresAt: at.Add(time.Hour), Wire: body}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.now.Add((40 * 24 * time.Hour).Milliseconds())
	if err := r.relay.SuspectClock(t.Context(), "a test"); err != nil {
		t.Fatal(err)
	}
	run := r.run(admin.JobSweep, nil)
	if run.Outcome != "failed" || run.Code != "REFUSED" || !strings.Contains(run.Detail, "150 of 150") {
		t.Errorf("got %+v; want the sweep held", run)
	}
	s, err := r.Status(t.Context())
	if err != nil || !strings.Contains(strings.Join(s.Problems, "\n"), "relay admin jobs run sweep --confirm") || s.Totals.Items != 150 {
		t.Errorf("got %+v, %v; want all items, and the hold among the problems", s.Status, err)
	}
	q := jobs.Request{Job: admin.JobSweep, By: "test", Confirm: true}
	if run, err = r.StartJob(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if run = r.await(run); run.Outcome != "ok" || !strings.HasPrefix(run.Detail, "150 expired") {
		t.Errorf("got %+v; want it done", run)
	}
}

func TestRequestsAreChecked(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct {
		name string
		q    jobs.Request
		want error
	}{
		{"nobody asks", jobs.Request{Job: admin.JobSweep}, admin.ErrBadRequest},
		{"the schedule asks", jobs.Request{Job: admin.JobSweep, By: jobs.BySchedule}, admin.ErrBadRequest},
		{"no such job", jobs.Request{Job: "tidy", By: "me"}, jobs.ErrNoJob},
	} {
		if _, err := r.StartJob(t.Context(), tt.q); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v; want %v", tt.name, err, tt.want)
		}
	}
	if _, err := r.Runs(t.Context(), admin.RunFilter{}); !errors.Is(err, admin.ErrBadRequest) {
		t.Errorf("no limit: got %v; want a bad request", err)
	}
	if _, err := r.PruneBackups(t.Context(), false, admin.Action{}); !errors.Is(err, admin.ErrBadRequest) {
		t.Errorf("a prune by nobody: got %v; want a bad request", err)
	}
}
