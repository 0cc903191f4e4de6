package sqlite

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
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
	queue := store.Queue{Target: a, Usage: store.Usage{Items: 9, Bytes: 9 << 20}, Oldest: at}
	queuesBy := func(by store.QueueOrder, after *store.Queue) func(store.Tx) error {
		return func(tx store.Tx) error { return tx.Queues(by, after, func(store.Queue) bool { return true }) }
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
		{"release", func(tx store.Tx) error {
			_, err := tx.Release(a, 2)
			return errors.Join(err, tx.Hold(a, 3, at, "operator", "reason"))
		},
			[]string{items + "(target_pubkey=?)", held + " (target_pubkey=? AND seq=?)", "PRIMARY KEY (sender_pubkey=? AND item_id=? AND target_pubkey=?)"}, false},
		{"a queue", func(tx store.Tx) error { _, err := tx.Queue(a); return err },
			[]string{"acked"}, false},
		{"a queue of a view", func(tx store.Tx) error { _, err := own(tx).reader.Queue(a); return err },
			[]string{"SEARCH s USING PRIMARY KEY (target_pubkey=?)", "SEARCH a USING PRIMARY KEY (target_pubkey=?)"}, false},
		{"queues by depth", queuesBy(store.ByDepth, nil), []string{"seqs_depth (items>?)"}, false},
		{"queues by size", queuesBy(store.ByBytes, nil), []string{"seqs_mib (mib>?)"}, false},
		{"queues by age", queuesBy(store.ByOldest, nil), []string{"seqs_oldest (oldest>?)"}, false},
		{"queues by depth, further", queuesBy(store.ByDepth, &queue), []string{"seqs_depth (items=? AND target_pubkey>?)", "seqs_depth (items>? AND items<?)"}, false},
		{"queues by size, further", queuesBy(store.ByBytes, &queue), []string{"seqs_mib (mib=? AND target_pubkey>?)", "seqs_mib (mib>? AND mib<?)"}, false},
		{"queues by age, further", queuesBy(store.ByOldest, &queue), []string{"seqs_oldest (oldest=? AND target_pubkey>?)", "seqs_oldest (oldest>?)"}, false},
		{"shares", func(tx store.Tx) error {
			return tx.Shares(a, sender, func(wire.PublicKey, store.Usage) bool { return true })
		}, []string{"PRIMARY KEY (target_pubkey=? AND sender_pubkey>?)"}, false},
		{"shares of a sender", func(tx store.Tx) error {
			return tx.SharesOf(sender, a, func(wire.PublicKey, store.Usage) bool { return true })
		}, []string{"shares_sender (sender_pubkey=? AND target_pubkey>?)"}, false},
		{"items", func(tx store.Tx) error {
			return tx.Items(store.ItemMark{Target: a, Seq: 9}, func(store.Item) bool { return true })
		}, []string{items + "(target_pubkey=? AND seq>?)", items + "(target_pubkey>?)"}, false},
		{"an item", func(tx store.Tx) error { _, err := tx.Item(a, 1); return err }, []string{items + "(target_pubkey=? AND seq=?)"}, false},
		{"a held item", func(tx store.Tx) error { _, err := tx.HeldItem(a, 3); return err }, []string{held + " (target_pubkey=? AND seq=?)"}, false},
		{"quarantine", func(tx store.Tx) error { return tx.Quarantine(nil, func(store.HeldItem) bool { return true }) },
			[]string{"quarantine_held (held_at<?)"}, false},
		{"quarantine, further", func(tx store.Tx) error {
			return tx.Quarantine(&store.HeldItem{Item: store.Item{Target: a, Seq: 9}, HeldAt: at.Add(1)}, func(store.HeldItem) bool { return true })
		}, []string{"quarantine_held (held_at=? AND target_pubkey=? AND seq>?)", "quarantine_held (held_at=? AND target_pubkey>?)",
			"quarantine_held (held_at<?)"}, false},
		{"enrolments", func(tx store.Tx) error { return tx.Enrolments(nil, func(store.Enrolment) bool { return true }) },
			[]string{"enrolments_list (<expr>>?)"}, false},
		{"enrolments, further", func(tx store.Tx) error {
			return tx.Enrolments(&store.Enrolment{Name: "0"}, func(store.Enrolment) bool { return true })
		}, []string{"enrolments_list (<expr>=? AND host_pubkey>?)", "enrolments_list (<expr>>?)"}, false},
		{"live by name", func(tx store.Tx) error { _, err := tx.LiveByName("a", 5); return err }, []string{"enrolments_name (<expr>=?)"}, false},
		{"live in an account", func(tx store.Tx) error { _, err := tx.LiveInAccount("a", "a"); return gone(err) },
			[]string{"enrolments_account (account=? AND <expr>=?)"}, false},
		{"by fingerprint", func(tx store.Tx) error { _, err := tx.ByFingerprint(a.Fingerprint(), 5); return err }, []string{"enrolments_fp (host_fp=?)"}, false},
		{"seen", func(tx store.Tx) error {
			_, err := tx.Seen(a)
			return errors.Join(err, tx.SetSeen(a, at))
		}, []string{"PRIMARY KEY (host_pubkey=?)"}, false},
		{"denials", func(tx store.Tx) error { return tx.Denials("", 0, func(store.Denial) bool { return true }) }, []string{"INTEGER PRIMARY KEY (rowid<?)"}, false},
		{"denials of a host", func(tx store.Tx) error { return tx.Denials("fp", 9, func(store.Denial) bool { return true }) },
			[]string{"deny_host_fp (host_fp=? AND rowid<?)"}, false},
		{"denied", func(tx store.Tx) error { _, err := tx.Denied("fp", "", at); return gone(err) },
			[]string{"deny_host_ends (host_fp=? AND client_id=? AND <expr>>?)"}, false},
		{"denied with a credential", func(tx store.Tx) error { _, err := tx.Denied("fp", "client", at); return gone(err) },
			[]string{"deny_host_ends (host_fp=? AND client_id=? AND <expr>>?)", "deny_client_ends (client_id=? AND <expr>>?)"}, false},
		{"denials naming a host", func(tx store.Tx) error { return tx.DenialsNaming("fp", "", func(store.Denial) bool { return true }) },
			[]string{"deny_names (host_fp=? AND client_id=?)"}, false},
		{"denials naming both", func(tx store.Tx) error {
			return tx.DenialsNaming("fp", "client", func(store.Denial) bool { return true })
		},
			[]string{"deny_names (host_fp=? AND client_id=?)"}, false},
		{"denials naming a credential", func(tx store.Tx) error {
			return tx.DenialsNaming("", "client", func(store.Denial) bool { return true })
		},
			[]string{"deny_client_id (client_id=?)"}, false},
		{"prune denials", func(tx store.Tx) error { _, err := tx.PruneDenials(at, at, 10); return err },
			[]string{"COVERING INDEX deny_until (until<", "INTEGER PRIMARY KEY (rowid=?)"}, false},
		{"a deny list", func(tx store.Tx) error {
			_, err := tx.DenyList("jti")
			return errors.Join(gone(err), tx.PutDenyList(store.DenyList{ID: "jti", Source: "issuer", IAT: at, Expires: at}))
		}, []string{"PRIMARY KEY (jti=?)"}, false},
		{"the newest deny list", func(tx store.Tx) error { _, err := tx.NewestDenyList("issuer"); return err },
			[]string{"deny_lists_newest (source=?)"}, false},
		{"forget deny lists", func(tx store.Tx) error { _, err := tx.ForgetDenyLists(at); return err },
			[]string{"deny_lists_expires (expires<?)", "deny_lists_newest (source=?)"}, false},
		{"hosts of a credential", func(tx store.Tx) error { _, err := tx.ByClientID("client", 9); return err },
			[]string{"enrolments_client (client_id=?)"}, false},
		{"rotated to", func(tx store.Tx) error { _, err := tx.RotatedTo(a, 9); return err }, []string{"PRIMARY KEY (old_pubkey=?)"}, false},
		{"undeny", func(tx store.Tx) error { return gone(tx.RemoveDenial(1)) }, []string{"INTEGER PRIMARY KEY (rowid=?)"}, false},
		{"sender lists", func(tx store.Tx) error {
			return tx.SenderLists(wire.PublicKey{}, func(store.SenderList) bool { return true })
		}, []string{"sqlite_autoindex_sender_lists_1 (target_pubkey>?)"}, false},
		{"log", func(tx store.Tx) error { _, err := tx.Log("", 9, 5); return err }, []string{"INTEGER PRIMARY KEY (rowid<?)"}, false},
		{"log of a kind", func(tx store.Tx) error { _, err := tx.Log("sweep", 0, 5); return err }, []string{"ops_kind (op=? AND id<?)"}, false},
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
		{"runs of a job", func(tx store.Tx) error { _, err := tx.Runs("job", 0, 10); return err }, []string{job + "(job=? AND id<?)"}, false},
		{"runs", func(tx store.Tx) error { _, err := tx.Runs("", 0, 10); return err }, []string{"INTEGER PRIMARY KEY (rowid<?)"}, false},
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

// Whether a host is denied costs the same however many denials there are, of others or
// of itself that are over: each way to be denied is one step into an index that has
// all that it asks for in its order.
func TestDeniedIsOneStepForEachWay(t *testing.T) {
	t.Parallel()
	var sent string
	o := testOptions(t.TempDir())
	o.fault = func(query string, done bool) error { sent = query; return nil }
	s := mustOpen(t, o)
	const host, client = "SEARCH deny USING INDEX deny_host_ends (host_fp=? AND client_id=? AND <expr>>?)", "SEARCH deny USING INDEX deny_client_ends (client_id=? AND <expr>>?)"
	for credential, want := range map[string][]string{"": {host}, "client": {host, host, client}} {
		var query string
		if err := s.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.Denied("fp", credential, time.UnixMilli(1))
			query = sent
			return gone(err)
		}); err != nil {
			t.Fatal(err)
		}
		steps := slices.DeleteFunc(explain(t, s, query), func(p string) bool { return !strings.HasPrefix(p, "SEARCH") && !strings.HasPrefix(p, "SCAN") })
		if !slices.Equal(steps, want) {
			t.Errorf("credential %q: got %q; want %q", credential, steps, want)
		}
	}
}

// The order by size is written only where a queue has a MiB more or less: the
// bytecode of any other push does not open its index.
func TestPushLeavesTheOrderBySizeAlone(t *testing.T) {
	t.Parallel()
	var update string
	o := testOptions(t.TempDir())
	o.fault = func(query string, done bool) error {
		if strings.HasPrefix(query, "UPDATE seqs") {
			update = query
		}
		return nil
	}
	s := mustOpen(t, o)
	for _, tt := range []struct {
		name   string
		size   int
		writes bool
	}{{"first", 10, false}, {"small", 10, false}, {"large", 1 << 20, true}, {"small on large", 10, false}} {
		update = ""
		if err := s.Update(t.Context(), bigMail("a", tt.name, tt.size)); err != nil {
			t.Fatal(err)
		}
		if tt.name == "first" { // it makes the row
			continue
		}
		opened := map[string]bool{}
		looks(t, s, func(r store.Reader) error {
			names := map[int64]string{}
			c := r.(reader).c
			err := c.query(func(r row) error { names[r.int(0)] = r.text(1); return nil }, "SELECT rootpage, name FROM sqlite_schema")
			return errors.Join(err, c.query(func(r row) error {
				if r.text(1) == "OpenWrite" {
					opened[names[r.int(3)]] = true
				}
				return nil
			}, "EXPLAIN "+update, make([]any, strings.Count(update, "?"))...))
		})
		if opened["seqs_mib"] != tt.writes || !opened["seqs_depth"] {
			t.Errorf("%s: %q opens %v; want seqs_mib %v, and seqs_depth", tt.name, update, opened, tt.writes)
		}
	}
}
