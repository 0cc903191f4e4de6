package drill

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// A backup that somebody or something changed does not pass, and the receipt says
// what is wrong with it.
func TestDrillOfATamperedBackup(t *testing.T) {
	s := newSite(t)
	good := must(os.ReadFile(s.backup()))
	another := newSite(t)
	for _, c := range []struct {
		name  string
		make  func(path string)
		fails string
		text  string
	}{
		{"bytes flipped in a body", func(path string) {
			b := slices.Clone(good)
			at := strings.Index(string(b), `"enc_body"`)
			if at < 0 {
				at = strings.LastIndex(string(b), `"body"`)
			}
			for i := range 20 {
				b[at+12+i] ^= 1
			}
			write(t, path, b)
		}, "backup: ", ""},
		{"a row is missing", func(path string) {
			write(t, path, good)
			change(t, path, "PRAGMA user_version = 0", "DELETE FROM items WHERE rowid = (SELECT min(rowid) FROM items)")
		}, "backup: integrity", "counter"},
		{"cut off", func(path string) { write(t, path, good[:len(good)/2]) }, "backup: ", ""},
		{"empty", func(path string) { write(t, path, nil) }, "backup: file", "empty"},
		{"a folder", func(path string) { must(0, os.Mkdir(path, 0o700)) }, "backup: file", "folder"},
		{"another relay's", func(path string) {
			must(0, os.Rename(another.backup(), path))
		}, "backup: relay key", another.key.Public().Fingerprint()},
		{"another program's", func(path string) {
			write(t, path, []byte("%PDF-1.4 and so on, no database at all"))
		}, "backup: store", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "relay.db")
			c.make(path)
			r, err := s.drill(t.Context(), s.options(path))
			if err != nil || r.Passed || len(r.Failed()) == 0 {
				t.Fatalf("got %v, %s; want a drill that fails", err, text(r))
			}
			if !slices.ContainsFunc(r.Checks, func(k backup.Check) bool {
				return !k.OK && strings.HasPrefix(k.Name, c.fails) && strings.Contains(k.Text, c.text)
			}) {
				t.Errorf("got\n%s; want %q to fail with %q", text(r), c.fails, c.text)
			}
			if slices.Contains(names(r), "restore") {
				t.Error("it was restored all the same")
			}
		})
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Without the relay's key there is no restore: the drill names the key it needs.
func TestDrillWithoutTheKey(t *testing.T) {
	s := newSite(t)
	o := s.options(s.backup())
	o.Key = wire.PrivateKey{}
	r, err := s.drill(t.Context(), o)
	if c := checkOf(r, "relay key"); err != nil || r.Passed || c == nil || c.OK || !strings.Contains(c.Text, s.key.Public().Fingerprint()) {
		t.Errorf("no key: got %v, %s", err, text(r))
	}
	o.Key = must(wire.GenerateKey())
	r, err = s.drill(t.Context(), o)
	c := checkOf(r, "backup: relay key")
	if err != nil || r.Passed || c == nil || c.OK || !strings.Contains(c.Text, s.key.Public().Fingerprint()) || !strings.Contains(c.Text, o.Key.Public().Fingerprint()) {
		t.Errorf("another key: got %v, %s", err, text(r))
	}
}

// Each check notices what it is there for: the restored store is changed under
// the drill, as a restore with a fault in it would have left it.
func TestEveryCheckCanFail(t *testing.T) {
	s := newSite(t)
	file := s.backup()
	first := "(SELECT min(rowid) FROM items)"
	own := func(name string) string {
		return "(SELECT host_pubkey FROM enrolments WHERE host_name = '" + name + "')"
	}
	for _, c := range []struct {
		at, fails, text string
		sql             []string
	}{
		{"open", "open", "another relay key", []string{"UPDATE meta SET v = zeroblob(32) WHERE k = 'relay_pubkey'"}},
		{"integrity", "integrity", "counter", []string{"DELETE FROM items WHERE rowid = " + first}},
		{"compare", "same items", "231 in the restored", []string{"DELETE FROM items WHERE rowid = " + first}},
		{"compare", "same items", "not the same", []string{"UPDATE items SET sender_pubkey = zeroblob(32) WHERE rowid = " + first}},
		{"compare", "same held", "2 in the restored", []string{"DELETE FROM quarantine WHERE seq = (SELECT min(seq) FROM quarantine)"}},
		{"compare", "same dedup", "", []string{"DELETE FROM dedup WHERE seq = (SELECT min(seq) FROM dedup)"}},
		{"compare", "same enrolments", "", []string{"UPDATE enrolments SET revoked_at = NULL WHERE host_name = 'host-04'"}},
		{"compare", "revoked stay revoked", "", []string{"UPDATE enrolments SET revoked_at = NULL WHERE host_name = 'host-04'"}},
		{"compare", "same denials", "0 in the restored", []string{"DELETE FROM deny"}},
		{"compare", "same deny lists", "0 in the restored", []string{"DELETE FROM deny_lists"}},
		{"compare", "same sender lists", "", []string{"DELETE FROM sender_lists"}},
		{"compare", "same v1 sealing keys", "", []string{"UPDATE enc_ads SET sig = 'x'"}},
		{"compare", "same v2 sealing keys", "", []string{"UPDATE enc_ad_records SET sig = 'x'"}},
		{"compare", "same rotations", "", []string{"DELETE FROM rotations"}},
		{"compare", "same acks", "", []string{"UPDATE acked SET acked_through = 0"}},
		{"compare", "same heads", "", []string{"UPDATE seqs SET next_seq = next_seq - 1"}},
		{"compare", "wire bytes", "1 items", []string{"UPDATE items SET wire = zeroblob(bytes) WHERE rowid = " + first}},
		{"pull", "pull", "did not come", []string{"DELETE FROM items WHERE seq = (SELECT max(seq) FROM items WHERE target_pubkey = " + own("drill-b") + ")"}},
		{"pull", "pull", "byte for byte", []string{"UPDATE items SET wire = randomblob(bytes) WHERE target_pubkey = " + own("drill-c")}},
		{"pull", "pull", "came as", []string{"UPDATE items SET sender_pubkey = zeroblob(32) WHERE target_pubkey = " + own("drill-a")}},
		{"ack", "ack", "was answered 79", []string{"DELETE FROM items WHERE seq = (SELECT max(seq) FROM items WHERE target_pubkey = " + own("drill-c") + ")"}},
		{"ack", "push after ack", "accepted", []string{"DELETE FROM dedup WHERE target_pubkey = " + own("drill-c")}},
		{"epoch", "epoch", "hosts would not notice", []string{"UPDATE meta SET v = 'EPOCH' WHERE k = 'epoch'"}},
		{"untouched", "untouched", "items", []string{"DELETE FROM items WHERE rowid = " + first}},
		{"untouched", "untouched", "enrolments", []string{"UPDATE enrolments SET owner_fp = 'x' WHERE host_name = 'host-08'"}},
	} {
		t.Run(c.at+" "+c.fails+" "+c.text, func(t *testing.T) {
			o := s.options(file)
			epoch := ""
			if err := s.store.View(t.Context(), func(r store.Reader) error { in, err := r.Info(); epoch = in.Epoch; return err }); err != nil {
				t.Fatal(err)
			}
			o.step = func(name string) error {
				if name == c.at {
					for _, q := range c.sql {
						change(t, filepath.Join(scratchIn(o.Scratch)[0], "store", sqlite.FileName), strings.ReplaceAll(q, "EPOCH", epoch))
					}
				}
				return nil
			}
			r, err := s.drill(t.Context(), o)
			if k := checkOf(r, c.fails); err != nil || r.Passed || k == nil || k.OK || !strings.Contains(k.Text, c.text) {
				t.Errorf("got %v\n%s; want %s to fail with %q", err, text(r), c.fails, c.text)
			}
		})
	}
}
