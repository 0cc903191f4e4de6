package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

// A rotation writes no more rows for a host with a history than for one
// without: what the host once sent and got stays where it is.
func TestRotationCostsNoHistory(t *testing.T) {
	t.Parallel()
	writes := 0
	o := testOptions(t.TempDir())
	o.fault = func(query string, done bool) error {
		if done && (strings.HasPrefix(query, "INSERT") || strings.HasPrefix(query, "UPDATE") || strings.HasPrefix(query, "DELETE")) {
			writes++
		}
		return nil
	}
	s := mustOpen(t, o)
	rotation := func(name string, history int) (cost int) {
		t.Helper()
		from, to := storetest.Key(name), storetest.Key(name+"'")
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			if err := tx.PutEnrolment(store.Enrolment{Key: from, Name: name, AuthorizedBy: "test", EnrolledAt: faultTime}); err != nil {
				return err
			}
			for i := range history { // to itself: both its ends are in the row
				if _, err := tx.Insert(storetest.Mail(from, from, fmt.Sprint(i), 10)); err != nil {
					return err
				}
			}
			head, err := tx.Head(from)
			if err != nil {
				return err
			}
			_, err = tx.AckThrough(from, head)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			before := writes
			_, err := tx.Rotate(store.Rotation{Old: from, New: to, Name: name, Record: []byte("{}"), At: faultTime})
			cost = writes - before
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.View(t.Context(), func(r store.Reader) error {
			for i := range history {
				if d, err := r.Dedup(to, fmt.Sprint(i), to); err != nil || d.Seq == 0 {
					return fmt.Errorf("item %d under the new key: %+v, %w", i, d, err)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		return cost
	}
	if none, much := rotation("young", 0), rotation("old", 2000); much > none {
		t.Errorf("got %d writes for a host with a history; want the %d of one without", much, none)
	}
}
