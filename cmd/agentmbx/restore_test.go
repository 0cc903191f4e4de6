package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/backup"
)

// backedUp is a relay that runs, with a backup that holds one of the two messages
// in beta's queue.
func backedUp(t *testing.T) (p *process, dir, file string, beta *client) {
	t.Helper()
	dir, file = t.TempDir(), filepath.Join(t.TempDir(), "it's a backup.db")
	p = serve(t, dir)
	alpha, beta := newClient("alpha"), newClient("beta")
	alpha.enrol(t, p.url)
	beta.enrol(t, p.url)
	push := func() {
		t.Helper()
		if r, err := alpha.push(p.url, relayKey(t, p.url), alpha.item(beta)); err != nil || r[0].Status != "accepted" {
			t.Fatalf("push: got %+v, %v", r, err)
		}
	}
	push()
	if code, _, stderr := command(t, nil, "relay", "backup", "--store-dir", dir, file); code != 0 {
		t.Fatalf("backup: exit %d: %s", code, stderr)
	}
	push()
	return p, dir, file, beta
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Fatalf("stop: exit %d: %s", code, p.stderr)
	}
}

func wantPull(t *testing.T, c *client, p *process, want int) {
	t.Helper()
	if page, code, err := c.pull(p.url, 0, ""); err != nil || code != 200 || len(page.Items) != want {
		t.Errorf("pull: got %d items, %d, %v; want %d", len(page.Items), code, err, want)
	}
}

func TestE1_RestoreCommand(t *testing.T) {
	p, dir, file, beta := backedUp(t)
	db := filepath.Join(dir, "relay.db")
	restore := func(env []string, args ...string) (int, string, string) {
		return command(t, env, append([]string{"relay", "restore", "--store-dir", dir}, args...)...)
	}
	code, _, stderr := restore(nil, file)
	if code != codeRefused || !strings.Contains(stderr, "RELAY_RUNNING") || !strings.Contains(stderr, "pid") {
		t.Errorf("while running: got %d, %q; want 3 and who runs", code, stderr)
	}
	p.stop(t)
	was, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	junk := filepath.Join(t.TempDir(), "junk.db")
	if err := os.WriteFile(junk, []byte(strings.Repeat("junk", 4000)), 0o600); err != nil {
		t.Fatal(err)
	}
	sealed := filepath.Join(t.TempDir(), "sealed.db.age")
	if err := os.WriteFile(sealed, []byte("age-encryption.org/v1\n-> X25519 sealed to somebody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := command(t, []string{"MBX_RELAY_KEY=verysecretjunk"}, "relay", "verify", "--store-dir", dir, file); code != codeUsage || strings.Contains(stderr, "verysecretjunk") {
		t.Errorf("verify with a key that is none: got %d, %q; want 2 and nothing of it", code, stderr)
	}
	_, otherKey, _ := command(t, nil, "relay", "keygen")
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
		text string
	}{
		{"missing", nil, []string{filepath.Join(dir, "none.db")}, codeNotFound, "no backup at"},
		{"a folder", nil, []string{dir}, codeUnhealthy, "it is a folder"},
		{"junk", nil, []string{junk}, codeUnhealthy, "not a good backup"},
		{"no argument", nil, nil, codeUsage, "the backup to restore is missing: see agentmbx relay restore -h"},
		{"an empty argument", nil, []string{""}, codeUsage, "FILE is empty"},
		{"a key that is none", []string{"MBX_RELAY_KEY=verysecretjunk"}, []string{file}, codeUsage, "MBX_RELAY_KEY: not a relay key"},
		{"encrypted, no identity", nil, []string{sealed}, codeUsage, "with --identity FILE"},
		{"an identity that is not there", nil, []string{sealed, "--identity", junk + ".none"}, codeUsage, "age identities"},
		{"the store itself", nil, []string{db}, codeRefused, "the store itself"},
		{"another key", []string{"MBX_RELAY_KEY=" + strings.TrimSpace(otherKey)}, []string{file}, codeRefused, "another relay key"},
		{"no identities", nil, []string{file, "--identity", junk}, codeUsage, "age identities"},
	} {
		code, stdout, stderr := restore(c.env, c.args...)
		if code != c.code || !strings.Contains(stderr, c.text) || stdout != "" || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "verysecretjunk") {
			t.Errorf("%s: got %d, %q, %q; want %d and one line with %q", c.name, code, stdout, stderr, c.code, c.text)
		}
	}
	code, stdout, stderr := restore(nil, "--dry-run", file)
	if code != 0 || !strings.Contains(stdout, "nothing was changed") || !strings.Contains(stdout, "1 queued items must come back") || strings.Contains(stdout, "to go back") {
		t.Errorf("dry run: got %d, %q, %q; want what would happen", code, stdout, stderr)
	}
	if now, err := os.ReadFile(db); err != nil || !bytes.Equal(now, was) {
		t.Errorf("got another relay.db, %v; want it as it was", err)
	}
	code, stdout, stderr = restore(nil, "--json", file)
	var r backup.RestoreReceipt
	if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil {
		t.Fatalf("restore: got %d, %q, %q, %v", code, stdout, stderr, err)
	}
	if r.From != p.epoch || r.NewerMail != 1 || r.Carried.SeqFloors != 1 || r.Actor == "" || r.Undo == "" {
		t.Errorf("got %+v; want the old epoch, one newer message, one floor", r)
	}
	p = serve(t, dir)
	if p.epoch != r.To {
		t.Errorf("epoch: got %s; want %s", p.epoch, r.To)
	}
	wantPull(t, beta, p, 1)
	p.stop(t)

	// The command that goes back is one that a shell takes.
	undo := exec.Command("sh", "-c", strings.Replace(r.Undo, "agentmbx", binary(t), 1))
	if out, err := undo.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("it takes a backup at once")) {
		t.Fatalf("%s: %v\n%s", r.Undo, err, out)
	}
	p = serve(t, dir)
	wantPull(t, beta, p, 2)
}

// A box that has nothing but the backup and the relay's key.
func TestRestoreOnANewBox(t *testing.T) {
	p, dir, file, beta := backedUp(t)
	p.kill()
	fingerprint := relayFingerprint(t, file)
	fresh := filepath.Join(t.TempDir(), "new", "data")
	for _, args := range [][]string{{file}, {"--dry-run", file}} {
		code, _, stderr := command(t, nil, append([]string{"relay", "restore", "--store-dir", fresh}, args...)...)
		if code != codeRefused || !strings.Contains(stderr, fingerprint) {
			t.Errorf("without the key: got %d, %q; want 3 and the fingerprint to look for", code, stderr)
		}
		if _, err := os.Lstat(filepath.Dir(fresh)); !os.IsNotExist(err) {
			t.Errorf("got %v; want no folder made", err)
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, "relay.key"))
	if err != nil {
		t.Fatal(err)
	}
	secret := "MBX_RELAY_KEY=" + string(key)
	if code, stdout, stderr := command(t, []string{secret}, "relay", "restore", "--store-dir", fresh, file); code != 0 || !strings.Contains(stdout, "no store that could be read") {
		t.Fatalf("got %d, %q, %q; want it restored", code, stdout, stderr)
	}
	wantPull(t, beta, serve(t, fresh, secret), 1)
}

func relayFingerprint(t *testing.T, file string) string {
	t.Helper()
	r, err := backup.ReadReceipt(file)
	if err != nil {
		t.Fatal(err)
	}
	return r.Fingerprint
}

// A heartbeat of just now in a folder that never had a lock file may be that of a
// relay which knows no lock. A refusal does not make the file it missed.
func TestRestoreOverAFreshHeartbeat(t *testing.T) {
	p, dir, file, _ := backedUp(t)
	p.stop(t)
	lock := filepath.Join(dir, "relay.lock")
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{file}, {"--dry-run", file}, {file}} {
		code, _, stderr := command(t, nil, append([]string{"relay", "restore", "--store-dir", dir}, args...)...)
		if code != codeRefused || !strings.Contains(stderr, "never had a lock file") {
			t.Errorf("got %d, %q; want 3", code, stderr)
		}
		if _, err := os.Lstat(lock); !os.IsNotExist(err) {
			t.Errorf("lock file: got %v; want none", err)
		}
	}
	if code, _, stderr := command(t, nil, "relay", "restore", "--store-dir", dir, "--force", file); code != 0 {
		t.Errorf("with force: got %d, %q; want 0", code, stderr)
	}
}

// MBX_RELAY_RESTORE_FROM restores once for each path, however often the service
// starts.
func TestRestoreFromIsConsumed(t *testing.T) {
	p, dir, file, beta := backedUp(t)
	p.kill() // its log stays beside the store
	bad, stdout := start(t, dir, "MBX_RELAY_RESTORE_FROM="+file+".none")
	bad.drain(stdout)
	if code := bad.wait(); code != codeNotFound || !strings.Contains(bad.stderr.String(), "MBX_RELAY_RESTORE_FROM: no backup at") {
		t.Errorf("missing file: got %d, %q; want 4", code, bad.stderr)
	}
	first := serve(t, dir, "MBX_RELAY_RESTORE_FROM="+file)
	if first.epoch == p.epoch {
		t.Error("got the old epoch; want a new one")
	}
	wantPull(t, beta, first, 1)
	first.kill()
	if err := os.Remove(file); err != nil { // it is not even looked for
		t.Fatal(err)
	}
	second := serve(t, dir, "MBX_RELAY_RESTORE_FROM="+file)
	if second.epoch != first.epoch {
		t.Errorf("got epoch %s; want %s: the path is consumed", second.epoch, first.epoch)
	}
	second.stop(t) // all that it said is here
	if !strings.Contains(second.stderr.String(), "was restored before") {
		t.Errorf("got %q; want it said", second.stderr)
	}
}

// What stands in the way of a restore's own work is refused.
func TestRestoreBesideOthersFiles(t *testing.T) {
	p, dir, file, _ := backedUp(t)
	p.stop(t)
	work := filepath.Join(dir, "restore.partial")
	for name, make := range map[string]func() error{
		"a file": func() error { return os.WriteFile(work, []byte("mine"), 0o600) },
		"a link": func() error { return os.Symlink(file, work) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := command(t, nil, "relay", "restore", "--store-dir", dir, file); code != codeRefused || !strings.Contains(stderr, "move it away") {
			t.Errorf("%s: got %d, %q; want 3", name, code, stderr)
		}
		serves, stdout := start(t, dir)
		serves.drain(stdout)
		if code := serves.wait(); code != codeRefused {
			t.Errorf("%s: serve: got %d, %q; want 3", name, code, serves.stderr)
		}
		if err := os.Remove(work); err != nil {
			t.Error(err)
		}
	}
}

// A restore that is done says so and how to go back, though nobody takes its
// output.
func TestRestoreWhoseOutputFails(t *testing.T) {
	p, dir, file, _ := backedUp(t)
	p.stop(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no device that is always full: ", err)
	}
	defer full.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Close(); err != nil { // a reader that went away
		t.Fatal(err)
	}
	for name, out := range map[string]*os.File{"full": full, "a broken pipe": w} {
		for _, more := range [][]string{nil, {"--json"}} {
			cmd := exec.Command(binary(t), append([]string{"relay", "restore", "--store-dir", dir, file}, more...)...)
			var stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = out, &stderr
			if err := cmd.Run(); cmd.ProcessState.ExitCode() != codeFailed {
				t.Errorf("%s: got %v; want 1", name, err)
			}
			if said := stderr.String(); !strings.Contains(said, "is restored") || !strings.Contains(said, "to go back: agentmbx relay restore") {
				t.Errorf("%s: got %q; want it said that it is restored, and the way back", name, said)
			}
		}
	}
}

// MBX_RELAY_RESTORE_FROM tells what is missing in words of its own settings.
func TestRestoreFromTellsWhatIsMissing(t *testing.T) {
	p, dir, file, _ := backedUp(t)
	p.kill()
	sealed, identities := filepath.Join(t.TempDir(), "sealed.db.age"), filepath.Join(t.TempDir(), "none.txt")
	if err := os.WriteFile(sealed, []byte("age-encryption.org/v1\n-> X25519 sealed to somebody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	for name, b := range map[string][]byte{"relay.db": []byte(strings.Repeat("junk", 4000)), "relay.key": mustReadFile(t, filepath.Join(dir, "relay.key"))} {
		if err := os.WriteFile(filepath.Join(damaged, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, dir string
		env       []string
		code      int
		texts     []string
	}{
		{"no key on a new box", t.TempDir(), []string{"MBX_RELAY_RESTORE_FROM=" + file}, codeRefused, []string{relayFingerprint(t, file), "MBX_RELAY_KEY"}},
		{"no identity", dir, []string{"MBX_RELAY_RESTORE_FROM=" + sealed}, codeUsage, []string{"MBX_BACKUP_AGE_IDENTITY_FILE"}},
		{"no file of identities", dir, []string{"MBX_RELAY_RESTORE_FROM=" + sealed, "MBX_BACKUP_AGE_IDENTITY_FILE=" + identities}, codeUsage, []string{"MBX_BACKUP_AGE_IDENTITY_FILE"}},
		{"a damaged store", damaged, []string{"MBX_RELAY_RESTORE_FROM=" + file}, codeRefused, []string{"unset MBX_RELAY_RESTORE_FROM", "agentmbx relay restore", "--force"}},
	} {
		p, stdout := start(t, c.dir, c.env...)
		p.drain(stdout)
		code, said := p.wait(), p.stderr.String()
		for _, text := range c.texts {
			if code != c.code || !strings.Contains(said, text) {
				t.Errorf("%s: got %d, %q; want %d and %q", c.name, code, said, c.code, text)
			}
		}
	}
}

func mustReadFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
