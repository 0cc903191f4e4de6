package sqlite

import (
	"fmt"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

// On a full device a store that is opened for each drop, as by one command after
// another, goes on to drop: what one of them wrote to the log is room for the next.
func TestFullDeviceOpenedAgainAndAgain(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, 16)
	o := testOptions(dir)
	o.Free = nil
	s := mustOpen(t, o)
	const items = 20
	tell(t, s, hosts)
	for i := range items {
		id := fmt.Sprint("m", i)
		tell(t, s, func(tx store.Tx) error { return push(tx, storetest.Mail(key("beta"), key("alpha"), id, 40_000)) }, heldNow("beta", id, early, "op"))
	}
	checkedClose(t, s)
	if err := fill(dir + "/filler"); err != nil {
		t.Fatal(err)
	}
	for i := range items {
		if free := freeBytes(t, dir); i == 0 && free > 0 {
			t.Fatalf("%d bytes are free; want none", free)
		}
		s := mustOpen(t, o)
		err := s.Update(t.Context(), func(tx store.Tx) error {
			h, err := tx.HeldItem(key("beta"), int64(i+1))
			if err != nil {
				return err
			}
			h.Item.Held = true
			if err := tx.Drop(h.Item); err != nil {
				return err
			}
			n := storetest.Mail(key("alpha"), key("relay"), fmt.Sprint("notice", i), 300)
			n.Kind = store.KindExpired
			if _, err := tx.Insert(n); err != nil {
				return err
			}
			return tx.AppendLog(late, "discard", []byte("{}"))
		})
		if err != nil {
			t.Fatalf("drop %d of %d: %v", i+1, items, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
