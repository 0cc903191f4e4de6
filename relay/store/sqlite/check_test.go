package sqlite

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Check is what every other test trusts, so it is shown to find each fault.
func TestCheckFindsFaults(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, sql, want string }{
		{"queue items", "UPDATE seqs SET items = items + 1", "a queue's counter"},
		{"queue bytes", "UPDATE seqs SET bytes = bytes - 1", "a queue's counter"},
		{"queue row gone", "DELETE FROM seqs", "a queue's counter"},
		{"share", "UPDATE shares SET bytes = bytes + 1", "a sender's share"},
		{"share gone", "DELETE FROM shares", "a sender's share"},
		{"share of nothing", "INSERT INTO shares SELECT sender_pubkey, target_pubkey, 1, 1 FROM shares", "a sender's share"},
		{"account", "UPDATE accounts SET items = items + 1", "an account's counter"},
		{"account gone", "DELETE FROM accounts", "an account's counter"},
		{"account of nothing", "INSERT INTO accounts VALUES ('ghost', 1, 1)", "an account's counter"},
		{"total items", "UPDATE totals SET value = value + 1 WHERE name = 'items'", "a total"},
		{"total bytes", "UPDATE totals SET value = value + 1 WHERE name = 'bytes'", "a total"},
		{"total enrolments", "UPDATE totals SET value = value + 1 WHERE name = 'enrolments'", "a total"},
		{"total gone", "DELETE FROM totals WHERE name = 'bytes'", "a total"},
		{"size", "UPDATE items SET bytes = 7", "an item's size"},
		{"seq at the next", "UPDATE seqs SET next_seq = 1", "a seq is not below"},
		{"ack beyond the head", "INSERT INTO acked SELECT target_pubkey, next_seq FROM seqs", "an ack is beyond"},
		{"acked and queued", "INSERT INTO acked SELECT target_pubkey, 1 FROM seqs", "an acked item"},
		{"held item gone", "DELETE FROM quarantine", "a queue's counter"},
		{"held size", "UPDATE quarantine SET bytes = 7", "an item's size"},
		{"held seq at the next", "UPDATE quarantine SET seq = 3", "a seq is not below"},
		{"held and queued", "UPDATE quarantine SET seq = 1", "queued and held"},
		{"held counter", "UPDATE seqs SET held_bytes = held_bytes - 1", "a queue's counter of held items"},
		{"held counter of nothing", `INSERT INTO seqs (target_pubkey, next_seq, items, bytes, held_items) VALUES (zeroblob(32), 9, 1, 1, 1)`, "a queue's counter of held items"},
		{"oldest", "UPDATE seqs SET oldest = oldest + 1", "a queue's oldest"},
		{"oldest of another item", "UPDATE items SET accepted_at = accepted_at + 1", "a queue's oldest"},
		{"queue size", "PRAGMA ignore_check_constraints = on; UPDATE seqs SET mib = mib + 1", "a queue's MiB"},
		{"total held", "UPDATE totals SET value = value + 1 WHERE name = 'held'", "the total of held items"},
		{"total held gone", "DELETE FROM totals WHERE name = 'held'", "the total of held items"},
		{"fingerprint", "UPDATE enrolments SET host_fp = upper(host_fp)", "has the fingerprint"},
		{"fingerprint missing", "UPDATE enrolments SET host_fp = ''", "has the fingerprint"},
		{"denial of nobody", "PRAGMA ignore_check_constraints = on; UPDATE deny SET host_fp = NULL", "a denial names nobody"},
		{"denial of an empty name", "UPDATE deny SET host_fp = ''", "a denial names nobody"},
		{"denial's number", "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'deny'", "a denial's number"},
		{"denial's numbers forgotten", "DELETE FROM sqlite_sequence WHERE name = 'deny'", "a denial's number"},
		{"credential without a name", "PRAGMA ignore_check_constraints = on; UPDATE enrolments SET client_id = ''", "has no name"},
		{"deny list without a name", "PRAGMA ignore_check_constraints = on; INSERT INTO deny_lists VALUES ('', 's', 1, 1)", "has no name"},
		{"listed sender gone", "DELETE FROM listed_senders", "not indexed"},
		{"listed sender too many", "INSERT INTO listed_senders VALUES (zeroblob(32), zeroblob(32))", "in no list"},
	}
	a, s := storetest.Key("a"), storetest.Key("s")
	at := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	st := mustOpen(t, testOptions(t.TempDir()))
	if err := st.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.Insert(storetest.Mail(a, s, "1", 100))
		_, err2 := tx.Insert(storetest.Mail(a, s, "2", 100))
		return errors.Join(err, err2, tx.Hold(a, 2, at, "operator", "reason"),
			tx.PutEnrolment(store.Enrolment{Key: a, Name: "alpha", Account: "acme", AuthorizedBy: "jwks", EnrolledAt: at}),
			tx.AddDenial(store.Denial{HostFP: "fp", Reason: "r", Source: "s", AddedAt: at}),
			tx.PutSenderList(store.SenderList{Target: a, Senders: []wire.PublicKey{s}, IAT: at, Record: []byte("{}")}))
	}); err != nil {
		t.Fatal(err)
	}
	checkedClose(t, st)
	whole := readFile(t, st.path)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, FileName), whole)
			st, err := Open(t.Context(), testOptions(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			if err := st.send(t.Context(), &call{direct: func(c *conn) error { _, err := c.exec(tt.sql); return err }}); err != nil {
				t.Fatalf("%s: %v", tt.sql, err)
			}
			if err := st.Check(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v; want a fault with %q", err, tt.want)
			}
		})
	}
}
