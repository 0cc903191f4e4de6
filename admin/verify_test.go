package admin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
)

// A backup is verified by its name in the folder or by its path; a bad one is found
// unhealthy, with all that was looked at.
func TestVerifyJob(t *testing.T) {
	t.Parallel()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	sealed := false
	var folder *backup.Folder
	r := newRig(t, func(o *admin.Options) { folder = o.Backups })
	r.enrol("Alpha", "beta")
	r.put("beta", "b0", "Alpha")
	take := func() string {
		t.Helper()
		if sealed {
			folder.Recipients = []age.Recipient{identity.Recipient()}
		}
		if run := r.run(admin.JobBackup, nil); run.Outcome != "ok" {
			t.Fatalf("got %+v; want a backup", run)
		}
		list, err := r.Backups(t.Context())
		if err != nil || len(list) == 0 {
			t.Fatalf("got %v, %v; want a backup", list, err)
		}
		return list[0].Path
	}
	good := take()
	bad := filepath.Join(r.dir, "bad.db")
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(bad, b, 0o600); err != nil {
		t.Fatal(err)
	}
	sealed = true
	encrypted := take()
	ids := filepath.Join(r.dir, "identity.txt")
	if err := os.WriteFile(ids, []byte(identity.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args any
		code string // "" for one that went well
		part string // of its detail
	}{
		{"by name", admin.VerifyArgs{File: filepath.Base(good)}, "", "a good backup"},
		{"by path", admin.VerifyArgs{File: good}, "", "a good backup"},
		{"an encrypted one", admin.VerifyArgs{File: filepath.Base(encrypted), Identity: ids}, "", "a good backup"},
		{"an encrypted one that is not opened", admin.VerifyArgs{File: encrypted}, "BAD_REQUEST", "identity"},
		{"a bad one", admin.VerifyArgs{File: bad}, "UNHEALTHY", "not a good backup"},
		{"none", admin.VerifyArgs{File: "relay-20260101T000000Z-000009.db"}, "NOT_FOUND", "relay-20260101T000000Z-000009.db"},
		{"nothing named", admin.VerifyArgs{}, "BAD_REQUEST", "absolute path"},
		{"the folder", admin.VerifyArgs{File: "."}, "BAD_REQUEST", "absolute path"},
		{"beside the folder", admin.VerifyArgs{File: "../bad.db"}, "BAD_REQUEST", "absolute path"},
		{"an identity beside nothing", admin.VerifyArgs{File: good, Identity: "identity.txt"}, "BAD_REQUEST", "absolute path"},
		{"unknown arguments", map[string]int{"n": 1}, "BAD_REQUEST", "unknown field"},
	} {
		run := r.run(admin.JobVerify, tt.args)
		if (run.Outcome == "ok") != (tt.code == "") || run.Code != tt.code || !strings.Contains(run.Detail, tt.part) {
			t.Errorf("%s: got %+v; want kind %q and %q", tt.name, run, tt.code, tt.part)
		}
		var report backup.Report
		if looked := tt.code == "" || tt.code == "UNHEALTHY"; looked && (json.Unmarshal(run.Result, &report) != nil || len(report.Checks) < 2 || report.Good != (tt.code == "")) {
			t.Errorf("%s: got %s; want the report", tt.name, run.Result)
		}
	}
	if s, err := r.Status(t.Context()); err != nil || strings.Contains(strings.Join(s.Problems, " "), "verify") {
		t.Errorf("got %q, %v; want no problem of somebody's question", s.Problems, err)
	}
}

// A backup that a verification found bad is shown as bad, is an alarm and is not
// taken for the newest good one, until it verifies well again or goes.
func TestBadVerdictIsRemembered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enrol("Alpha", "beta")
	r.put("beta", "b0", "Alpha")
	newest := func() (e backup.Entry, alarms string, good *backup.Entry) {
		t.Helper()
		list, err := r.Backups(t.Context())
		s, err2 := r.Status(t.Context())
		if err != nil || err2 != nil || len(list) == 0 {
			t.Fatalf("got %v, %v, %v; want backups and a status", list, err, err2)
		}
		return list[0], strings.Join(s.Problems, "\n"), s.Backup
	}
	for range 2 {
		if run := r.run(admin.JobBackup, nil); run.Outcome != "ok" {
			t.Fatalf("got %+v; want a backup", run)
		}
	}
	e, _, _ := newest()
	name := filepath.Base(e.Path)
	b, err := os.ReadFile(e.Path)
	if err != nil {
		t.Fatal(err)
	}
	rot := func(where int) {
		t.Helper()
		b[where] ^= 1
		if err := os.WriteFile(e.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rot(len(b) / 2)
	if _, alarms, _ := newest(); strings.Contains(alarms, name) {
		t.Errorf("before anybody looked: got %q", alarms)
	}
	if run := r.run(admin.JobVerify, admin.VerifyArgs{File: name}); run.Code != "UNHEALTHY" {
		t.Fatalf("got %+v; want it found bad", run)
	}
	bad, alarms, good := newest()
	if bad.Verified || !strings.Contains(bad.Problem, "found bad 20") || !strings.Contains(alarms, name) || good == nil || good.Path == e.Path {
		t.Errorf("found bad: got %+v, alarms %q, the newest good one %+v", bad, alarms, good)
	}
	rot(len(b) / 2) // as it was
	if run := r.run(admin.JobVerify, admin.VerifyArgs{File: e.Path}); run.Outcome != "ok" {
		t.Fatalf("got %+v; want it good", run)
	}
	if e, alarms, _ := newest(); !e.Verified || strings.Contains(alarms, name) {
		t.Errorf("verified well: got %+v, alarms %q", e, alarms)
	}
	rot(len(b) / 2)
	r.run(admin.JobVerify, admin.VerifyArgs{File: name})
	for _, f := range []string{e.Path, e.Path + ".json"} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	if _, alarms, _ := newest(); strings.Contains(alarms, name) {
		t.Errorf("gone: got alarms %q", alarms)
	}
}

// Whoever has a job run stands in the relay log, and so does whoever had a backup
// taken.
func TestAskedRunsAreLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run, err := r.StartJob(t.Context(), jobs.Request{Job: admin.JobBackup, By: "cli:ann"})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := r.Log(t.Context(), admin.LogFilter{Op: "run-job", Limit: 5})
	if err != nil || len(lines) != 1 {
		t.Fatalf("got %+v, %v; want one line", lines, err)
	}
	want := fmt.Sprintf(`"actor":"cli:ann","job":"backup","run":%d}`, run.ID)
	if got := string(lines[0].Receipt); !strings.Contains(got, `"type":"relay-run-job"`) || !strings.Contains(got, want) {
		t.Errorf("got %s; want %s", got, want)
	}
	if run = r.await(run); run.Outcome != "ok" {
		t.Fatalf("got %+v; want a backup", run)
	}
	lines, err = r.Log(t.Context(), admin.LogFilter{Op: "backup", Limit: 5})
	if err != nil || len(lines) != 1 || !strings.Contains(string(lines[0].Receipt), `"asked_by":"cli:ann"`) {
		t.Errorf("got %+v, %v; want who asked", lines, err)
	}
}
