package admin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/admin"
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
