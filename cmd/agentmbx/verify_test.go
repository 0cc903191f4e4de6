package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

// An encrypted backup is opened with its identity; with another one it is not
// called bad, which nobody can know.
func TestVerifyEncrypted(t *testing.T) {
	dir, keys := t.TempDir(), t.TempDir()
	p := serve(t, dir)
	p.kill()
	var files []string
	var ids []*age.X25519Identity
	for _, name := range []string{"mine.txt", "others.txt"} {
		id, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		files, ids = append(files, filepath.Join(keys, name)), append(ids, id)
		if err := os.WriteFile(files[len(files)-1], []byte(id.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sealed := filepath.Join(keys, "sealed.db")
	if code, _, errw := command(t, []string{"MBX_BACKUP_AGE_RECIPIENT=" + ids[0].Recipient().String()}, "relay", "backup", sealed, "--store-dir", dir); code != 0 {
		t.Fatalf("backup: got code %d, %q", code, errw)
	}
	verify := func(args ...string) (int, string, string) {
		return command(t, nil, append([]string{"relay", "verify", sealed, "--store-dir", dir}, args...)...)
	}
	if code, out, errw := verify("--identity", files[0]); code != 0 || errw != "" || !strings.HasSuffix(out, ": a good backup\n") {
		t.Errorf("its identity: got code %d, %q, %q; want it good", code, out, errw)
	}
	const says = "cannot be opened with these identities"
	if code, out, errw := verify("--identity", files[1]); code != 5 || !strings.Contains(out, says) || !strings.Contains(errw, says) || strings.Contains(strings.ToLower(out+errw), "not a good") {
		t.Errorf("another identity: got code %d, %q, %q; want 5 and %q", code, out, errw, says)
	}
	if code, _, errw := verify(); code != 2 || !strings.Contains(errw, "--identity") {
		t.Errorf("no identity: got code %d, %q; want 2 and --identity", code, errw)
	}
	if code, _, errw := verify("--identity", filepath.Join(keys, "none.txt")); code != 2 || strings.Count(errw, "\n") != 1 {
		t.Errorf("no such identity file: got code %d, %q; want 2 and a line", code, errw)
	}
	if err := os.Truncate(sealed, 1000); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := verify("--identity", files[1]); code != 5 || !strings.Contains(out, "NOT a good backup") {
		t.Errorf("cut off, another identity: got code %d, %q; want 5 and that it is bad", code, out)
	}
}
