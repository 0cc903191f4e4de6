package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
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

// An error after the store was replaced leaves the lock file that was made: else
// the command that goes back would be refused, for a heartbeat without a lock. Any
// other error leaves the folder as it was.
func TestLockAfterARestoreThatIsDone(t *testing.T) {
	for _, tt := range []struct {
		err  error
		left bool
	}{
		{fmt.Errorf("%w, but the device failed", backup.ErrRestored), true},
		{errors.New("the device failed"), false},
		{nil, false},
	} {
		dir := t.TempDir()
		lock, err := sqlite.AcquireLock(t.Context(), dir, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		told := tt.err
		if told != nil {
			told = restoreError(fmt.Errorf("MBX_RELAY_RESTORE_FROM: %w", told), "X")
		}
		if err := giveBack(lock, told); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "relay.lock")); (err == nil) != tt.left {
			t.Errorf("after %v: got %v; want the lock file left %v", tt.err, err, tt.left)
		}
	}
}
