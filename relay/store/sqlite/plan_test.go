package sqlite

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

// What runs while others wait finds its rows by an index and never sorts: each
// call's statements are caught as they are sent and explained.
func TestPlans(t *testing.T) {
	t.Parallel()
	var sent []string
	o := testOptions(t.TempDir())
	o.fault = func(query string, done bool) error {
		if !done {
			sent = append(sent, query)
		}
		return nil
	}
	s := mustOpen(t, o)
	a, sender := storetest.Key("a"), storetest.Key("s")
	at := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		err := tx.PutEnrolment(store.Enrolment{Key: a, Name: "a", AuthorizedBy: "test", EnrolledAt: at})
		for _, id := range []string{"1", "2", "3"} {
			_, err2 := tx.Insert(storetest.Mail(a, sender, id, 10))
			err = errors.Join(err, err2)
		}
		_, err2 := tx.StartRun(store.Run{Job: "job", Holder: "before", StartedAt: at})
		return errors.Join(err, err2)
	}); err != nil {
		t.Fatal(err)
	}
	const items, held, job, outcome = "sqlite_autoindex_items_1 ", "sqlite_autoindex_quarantine_1", "job_runs_job ", "job_runs_outcome "
	for _, tt := range []struct {
		name  string
		call  func(tx store.Tx) error
		uses  []string // in the plans of its statements
		scans bool     // all of a table is what it is for
	}{
		{"expired", func(tx store.Tx) error { _, err := tx.Expired(at, at, 10); return err }, []string{"items_expiry (expires_at<", "quarantine_expiry (expires_at<"}, false},
		{"count expired", func(tx store.Tx) error { _, err := tx.CountExpired(at, at); return err }, []string{"items_expiry (expires_at<", "quarantine_expiry (expires_at<"}, false},
		{"prunable", func(tx store.Tx) error { _, err := tx.Prunable(at, 10); return err },
			[]string{"dedup_age (accepted_at<", items + "(target_pubkey=? AND seq=?)", held + " (target_pubkey=? AND seq=?)"}, false},
		{"forget", func(tx store.Tx) error {
			_, err := tx.Forget([]store.DedupKey{{Sender: sender, ItemID: "1", Target: a}}, at)
			return err
		}, []string{"PRIMARY KEY (sender_pubkey=? AND item_id=? AND target_pubkey=?)", items + "(target_pubkey=? AND seq=?)", held + " (target_pubkey=? AND seq=?)"}, false},
		{"page", func(tx store.Tx) error { return tx.Page(a, 0, 10, func(store.Item) bool { return true }) }, []string{items + "(target_pubkey=? AND seq>?)"}, false},
		{"hold", func(tx store.Tx) error { return tx.Hold(a, 2, at, "operator", "reason") }, []string{items + "(target_pubkey=? AND seq=?)"}, false},
		{"held", func(tx store.Tx) error { return tx.Held(func(store.HeldItem) bool { return true }) }, []string{held}, true},
		{"rotate", func(tx store.Tx) error {
			_, err := tx.Rotate(store.Rotation{Old: a, New: storetest.Key("b"), Name: "a", Record: []byte("{}"), At: at})
			return err
		}, []string{items + "(target_pubkey=?)", held + " (target_pubkey=?)", items + "(target_pubkey=? AND seq=?)", held + " (target_pubkey=? AND seq=?)"}, false},
		{"drop", func(tx store.Tx) error { return tx.Drop(store.Item{Target: storetest.Key("b"), Seq: 2, Held: true}) },
			[]string{held + " (target_pubkey=? AND seq=?)"}, false},
		{"ack", func(tx store.Tx) error { _, err := tx.AckThrough(storetest.Key("b"), 1); return err }, []string{items + "(target_pubkey=? AND seq<?)"}, false},
		{"start a run", func(tx store.Tx) error {
			_, err := tx.StartRun(store.Run{Job: "job", Holder: "after", StartedAt: at})
			return err
		}, []string{"(job=? AND outcome=?)", "INTEGER PRIMARY KEY (rowid=?)"}, false},
		{"finish a run", func(tx store.Tx) error {
			last, err := tx.LastRun("job", "")
			last.FinishedAt, last.Outcome = at, store.OutcomeOK
			return errors.Join(err, tx.FinishRun(last, 1))
		}, []string{"INTEGER PRIMARY KEY (rowid=?)", job + "(job=?)", outcome + "(job=? AND outcome=?)"}, false},
		{"the last run", func(tx store.Tx) error { _, err := tx.LastRun("job", store.OutcomeOK); return err }, []string{outcome + "(job=? AND outcome=?)"}, false},
		{"a run", func(tx store.Tx) error {
			last, _ := tx.LastRun("job", store.OutcomeOK)
			_, err := tx.Run(last.ID)
			return err
		},
			[]string{"INTEGER PRIMARY KEY (rowid=?)"}, false},
		{"runs of a job", func(tx store.Tx) error { _, err := tx.Runs("job", 10); return err }, []string{job + "(job=?)"}, false},
		{"runs", func(tx store.Tx) error { _, err := tx.Runs("", 10); return err }, nil, true},
		{"state", func(tx store.Tx) error {
			err := tx.SetState("a", []byte("1"))
			_, err2 := tx.State("a")
			return errors.Join(err, err2, tx.SetState("a", nil))
		}, []string{"PRIMARY KEY (name=?)"}, false},
	} {
		if err := s.Update(t.Context(), func(tx store.Tx) error { sent = nil; return tt.call(tx) }); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var plans []string
		for _, query := range slices.Clone(sent) {
			if verb, _, _ := strings.Cut(strings.TrimSpace(query), " "); slices.Contains([]string{"SELECT", "INSERT", "UPDATE", "DELETE"}, verb) {
				plans = append(plans, explain(t, s, query)...)
			}
		}
		all := strings.Join(plans, "\n")
		for _, use := range tt.uses {
			if !strings.Contains(all, use) {
				t.Errorf("%s: got\n%s\nwant it to use %s", tt.name, all, use)
			}
		}
		for _, p := range plans {
			if strings.HasPrefix(p, "SCAN") && p != "SCAN CONSTANT ROW" && !tt.scans || strings.Contains(p, "TEMP B-TREE") {
				t.Errorf("%s: got %q in\n%s\nwant neither a scan nor a sort", tt.name, p, all)
			}
		}
	}
}

func explain(t *testing.T, s *Store, query string) (plan []string) {
	t.Helper()
	if err := s.View(t.Context(), func(r store.Reader) error {
		return r.(reader).c.query(func(r row) error { plan = append(plan, r.text(3)); return nil },
			"EXPLAIN QUERY PLAN "+query, make([]any, strings.Count(query, "?"))...)
	}); err != nil {
		t.Fatalf("explain %s: %v", query, err)
	}
	return plan
}
