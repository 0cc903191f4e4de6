package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Where something that makes a store was cut off, a start makes neither a key nor
// an empty store: under the same address that would silence every host.
func TestCutOffStoreIsNotBegunAnew(t *testing.T) {
	for _, tt := range []struct{ name, left, again string }{
		{"an import", "relay.db.import.partial", "relay import again"},
		{"a restore", "restore.partial/relay.db", "relay restore again"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			left := filepath.Join(dir, tt.left)
			if err := os.MkdirAll(filepath.Dir(left), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a supervisor tries again
				code, _, errw := command(t, nil, "relay", "serve", "--store-dir", dir, "--port", "0")
				if code != codeRefused || !strings.Contains(errw, tt.again) {
					t.Fatalf("got code %d, %q; want %d and %q", code, errw, codeRefused, tt.again)
				}
			}
			for _, name := range []string{"relay.key", "relay.db"} {
				if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
					t.Errorf("%s: got %v; want none", name, err)
				}
			}
			if _, err := os.Lstat(left); err != nil {
				t.Errorf("got %v; want what was left as it was", err)
			}
		})
	}
}
