package sqlite

import (
	"context"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, c storetest.Config) func() (store.Store, error) {
		o := Options{Dir: t.TempDir(), Key: c.Key, Now: c.Now, SeqNow: c.SeqFloor, Free: plenty}
		return func() (store.Store, error) { return Open(context.Background(), o) }
	})
}

// plenty is a device with room for all, and so small that its reserve is too.
func plenty(string) (free, size int64, err error) { return 1 << 40, 1 << 20, nil }
