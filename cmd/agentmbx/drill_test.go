package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/backup/drill"
)

// `relay drill` on a real backup prints its checks and exits 0, on a tampered one
// 5; with a relay running and without, it leaves its receipt in the log.
func TestDrillCommand(t *testing.T) {
	dir := t.TempDir()
	p := serve(t, dir)
	a, b := newClient("alpha"), newClient("beta")
	key := relayKey(t, p.url)
	a.enrol(t, p.url)
	b.enrol(t, p.url)
	for range 5 {
		if _, err := a.push(p.url, key, a.item(b)); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := filepath.Join(t.TempDir(), "kept.db")
	if out, errw, code := desktop(t, dir, "relay", "backup", elsewhere); code != 0 {
		t.Fatalf("backup: got code %d, %q, %q", code, out, errw)
	}
	if out, errw, code := desktop(t, dir, "relay", "backup"); code != 0 {
		t.Fatalf("backup: got code %d, %q, %q", code, out, errw)
	}
	for _, running := range []bool{true, false} {
		if !running {
			p.kill()
		}
		out, errw, code := desktop(t, dir, "relay", "drill")
		if code != 0 || errw != "" || !strings.Contains(out, "\ndrill passed: ") || !strings.Contains(out, "RPO ") || !strings.Contains(out, "RTO ") {
			t.Errorf("running %v: got code %d, %q, %q; want 0, checks and a verdict", running, code, out, errw)
		}
		var r drill.Receipt
		out, errw, code = desktop(t, dir, "relay", "drill", elsewhere, "--json")
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || !r.Passed || r.File != elsewhere || r.Items != 5 {
			t.Errorf("running %v: a file: got code %d, %v, %q, %q", running, code, err, out, errw)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "backups", ".drill-*")); len(left) > 0 {
			t.Errorf("running %v: got %v left", running, left)
		}
	}
	if out, _, code := desktop(t, dir, "relay", "log", "--op", "drill"); code != 0 || strings.Count(out, `"relay-drill"`) != 4 {
		t.Errorf("log: got code %d, %q; want 4 receipts", code, out)
	}

	whole, err := os.ReadFile(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		whole[len(whole)/2+i] ^= 1
	}
	if err := os.WriteFile(elsewhere, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	out, errw, code := desktop(t, dir, "relay", "drill", elsewhere)
	if code != 5 || !strings.Contains(out, "FAIL") || !strings.Contains(out, "\ndrill failed: ") || strings.Count(errw, "\n") != 1 {
		t.Errorf("tampered: got code %d, %q, %q; want 5 and a failed check", code, out, errw)
	}
	if out, errw, code := desktop(t, dir, "relay", "drill", elsewhere+"x"); code != 4 || out != "" {
		t.Errorf("no such file: got code %d, %q, %q; want 4", code, out, errw)
	}
	if out, errw, code := desktop(t, dir, "relay", "drill", elsewhere, "--identity", elsewhere); code != 2 || out != "" {
		t.Errorf("an identity that is none: got code %d, %q, %q; want 2", code, out, errw)
	}
}

// A backup that is kept elsewhere is drilled where there is no store, with the
// relay's key; a relay without a backup has nothing to drill.
func TestDrillWithoutAStore(t *testing.T) {
	dir, empty := t.TempDir(), filepath.Join(t.TempDir(), "none")
	if out, errw, code := desktop(t, empty, "relay", "drill"); code != 4 || out != "" {
		t.Errorf("no store: got code %d, %q, %q; want 4", code, out, errw)
	}
	p := serve(t, dir)
	p.kill()
	if out, errw, code := desktop(t, dir, "relay", "drill", "--backup-dir", t.TempDir()); code != 4 || !strings.Contains(errw, "agentmbx relay backup") {
		t.Errorf("no backup: got code %d, %q, %q; want 4 and what to do", code, out, errw)
	}
	file := filepath.Join(t.TempDir(), "kept.db")
	if out, errw, code := desktop(t, dir, "relay", "backup", file); code != 0 {
		t.Fatalf("backup: got code %d, %q, %q", code, out, errw)
	}
	if out, errw, code := desktop(t, empty, "relay", "drill", file); code != 3 || out != "" || !strings.Contains(errw, "MBX_RELAY_KEY") {
		t.Errorf("no key: got code %d, %q, %q; want 3", code, out, errw)
	}
	key, err := os.ReadFile(filepath.Join(dir, "relay.key"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary(t), "relay", "drill", file, "--store-dir", empty)
	cmd.Env = append(os.Environ(), "MBX_RELAY_KEY="+strings.TrimSpace(string(key)))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\ndrill passed: ") || !strings.Contains(string(out), "stands in no log") || strings.Contains(string(out), strings.TrimSpace(string(key))) {
		t.Errorf("with the key: got %v, %s", err, out)
	}
	if _, err := os.Stat(empty); !os.IsNotExist(err) {
		t.Errorf("got %v; want no folder made for a store that is not there", err)
	}
}
