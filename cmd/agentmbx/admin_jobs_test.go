package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
)

// desktop runs a command on a store and answers what it printed and its exit code.
func desktop(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errw bytes.Buffer
	cmd := exec.Command(binary(t), append(args, "--store-dir", dir)...)
	cmd.Stdout, cmd.Stderr = &out, &errw
	_ = cmd.Run() // its exit code says more
	return out.String(), errw.String(), cmd.ProcessState.ExitCode()
}

// Jobs are listed and run over the socket of the relay that runs, and under the
// store's lock when none does.
func TestAdminJobs(t *testing.T) {
	dir := t.TempDir()
	p := serve(t, dir)
	list := func(running bool) map[string]jobs.State {
		t.Helper()
		out, errw, code := desktop(t, dir, "relay", "admin", "jobs", "--json")
		var states []jobs.State
		if err := json.Unmarshal([]byte(out), &states); err != nil || code != 0 {
			t.Fatalf("jobs: got code %d, %v, %q, %q; want 0 and JSON", code, err, out, errw)
		}
		named := map[string]jobs.State{}
		for _, s := range states {
			named[s.Name] = s
			if running && s.Schedule != "" && s.Next.IsZero() && s.Running == nil {
				t.Errorf("%s: got no next time; want one of %q", s.Name, s.Schedule)
			}
		}
		for _, name := range []string{admin.JobHeartbeat, admin.JobSweep, admin.JobBackup, admin.JobDrill, admin.JobCheckpoint, admin.JobDisk} {
			if _, ok := named[name]; !ok {
				t.Errorf("jobs: got %v; want %s among them", named, name)
			}
		}
		return named
	}
	list(true)
	out, errw, code := desktop(t, dir, "relay", "admin", "jobs", "run", "sweep", "--confirm")
	if code != 0 || !strings.HasPrefix(out, "sweep: run ") || errw != "" {
		t.Errorf("run sweep: got code %d, %q, %q; want 0 and how it went", code, out, errw)
	}
	out, errw, code = desktop(t, dir, "relay", "admin", "jobs", "run", "backup", "--json")
	var run jobs.Run
	if err := json.Unmarshal([]byte(out), &run); err != nil || code != 0 || run.Outcome != "ok" || !strings.HasPrefix(run.AskedBy, "cli:") || len(run.Result) == 0 {
		t.Errorf("run backup: got code %d, %v, %+v, %q; want an ok run with its receipt", code, err, run, errw)
	}
	if last := list(true)[admin.JobBackup].LastOK; last == nil || last.ID != run.ID {
		t.Errorf("the last backup that went well: got %+v; want run %d", last, run.ID)
	}
	out, _, code = desktop(t, dir, "relay", "admin", "jobs")
	for _, want := range []string{"JOB", "17 3 * * *", "every 30s", "backup", " ok "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("jobs: got code %d, %q; want %q in it", code, out, want)
		}
	}
	_, errw, code = desktop(t, dir, "relay", "admin", "jobs", "run", "no-such")
	if code != 4 || !strings.Contains(errw, "no such job") || strings.Count(errw, "\n") != 1 {
		t.Errorf("an unknown job: got code %d, %q; want 4 and one line", code, errw)
	}
	p.kill()

	list(false)
	out, errw, code = desktop(t, dir, "relay", "admin", "jobs", "run", "checkpoint")
	if code != 0 || !strings.HasPrefix(out, "checkpoint: run ") {
		t.Errorf("run checkpoint without a relay: got code %d, %q, %q; want 0", code, out, errw)
	}
	for _, job := range []string{"sweep", "heartbeat"} { // the work of a relay that runs
		_, errw, code = desktop(t, dir, "relay", "admin", "jobs", "run", job)
		if code != 3 || !strings.Contains(errw, "agentmbx relay serve") || strings.Count(errw, "\n") != 1 {
			t.Errorf("run %s without a relay: got code %d, %q; want 3 and one line that says what to do", job, code, errw)
		}
	}
	if out, _, _ = desktop(t, dir, "relay", "admin", "jobs"); !strings.Contains(out, "needs a relay") {
		t.Errorf("jobs without a relay: got %q; want it to say that none runs by itself", out)
	}
}
