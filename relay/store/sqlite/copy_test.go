package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// A copy that is made while others write holds one moment of the store, whole,
// and ends though the writers never do.
func TestCopyWhileOthersWrite(t *testing.T) {
	s := mustOpen(t, testOptions(t.TempDir()))
	put := func(from, to int) error {
		body := make([]byte, 4000)
		return s.Update(context.Background(), func(tx store.Tx) error {
			for n := from; n < to; n++ {
				if _, err := tx.Insert(store.Item{Target: relayKey, Kind: store.KindEnvelope, ID: fmt.Sprintf("copied %06d", n), Sender: relayKey,
					Hash: wire.Hash(body), AcceptedAt: time.UnixMilli(1), Wire: body}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := put(0, 1500); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	written := 1500
	writers.Go(func() {
		for ; ctx.Err() == nil; written++ {
			if err := put(written, written+1); err != nil {
				t.Error(err)
			}
		}
	})
	path := filepath.Join(t.TempDir(), "copy.db")
	steps := 0
	err := s.Copy(t.Context(), path, func(done, total int64) { steps++ })
	stop()
	writers.Wait()
	if err != nil || steps < 2 {
		t.Fatalf("got %v after %d steps; want nil after a few", err, steps)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Check(t.Context()); err != nil {
		t.Error(err)
	}
	rows, err := f.Rows()
	if n := rows["items"]; err != nil || n < 1500 || n > int64(written) {
		t.Errorf("got %d items, %v; want 1500 to %d", n, err, written)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v beside the copy; want nothing", entries, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v; want mode 0600", st.Mode(), err)
	}
}

// Ended early, a copy leaves nothing.
func TestCopyEndedEarly(t *testing.T) {
	s := mustOpen(t, testOptions(t.TempDir()))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Copy(ctx, path, nil); err == nil {
		t.Error("got nil; want an error")
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("got %v; want no file", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Copy(t.Context(), path, nil); err == nil {
		t.Error("over a file: got nil; want an error")
	}
	if b, err := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("got %q, %v; want the file as it was", b, err)
	}
}
