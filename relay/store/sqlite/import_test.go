package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const fixtureDir = "testdata/typescript-relay"

// fixtureNow is a time soon after the fixture's relay was stopped.
var fixtureNow = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func fixtureKey(t *testing.T) wire.PublicKey {
	t.Helper()
	k, err := wire.ParseKeyFile(readFile(t, filepath.Join(fixtureDir, "relay.key")))
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

// tsStore is a copy of the fixture, changed by statements.
func tsStore(t *testing.T, statements ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "relay.db")
	writeFile(t, file, readFile(t, filepath.Join(fixtureDir, "relay.db")))
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range statements {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

func importOptions(t *testing.T, file, dir string) ImportOptions {
	t.Helper()
	return ImportOptions{File: file, Dir: dir, Key: fixtureKey(t), Actor: "test", Now: func() time.Time { return fixtureNow }, Free: plenty}
}

// importInto imports into dir and answers what Import did.
func importInto(t *testing.T, o ImportOptions) (Imported, error) {
	t.Helper()
	o.Lock = mustLock(t, o.Dir)
	defer mustRelease(t, o.Lock)
	return Import(t.Context(), o)
}

type expectedItem struct {
	Target     wire.PublicKey
	Seq        int64
	Kind       string
	ID         string `json:"item_id"`
	Sender     wire.PublicKey
	SenderHost string `json:"sender_host"`
	Hash       string
	At         time.Time
	Expires    *time.Time
}

type expectedStore struct {
	Epoch string
	Acked int64 `json:"acked_through_home"`
	Home  int64 `json:"head_home"`
	Work  int64 `json:"head_work"`
	Items []expectedItem
}

func expected(t *testing.T) (e expectedStore) {
	t.Helper()
	if err := json.Unmarshal(readFile(t, filepath.Join(fixtureDir, "expected.json")), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestImportOfTheFixture compares the new store with expected.json, and with what
// else the TypeScript relay's store holds.
func TestImportOfTheFixture(t *testing.T) {
	t.Parallel()
	dir, want := t.TempDir(), expected(t)
	did, err := importInto(t, importOptions(t, filepath.Join(fixtureDir, "relay.db"), dir))
	if err != nil {
		t.Fatal(err)
	}
	counts := Imported{V: 1, Type: "relay-import", At: fixtureNow, Actor: "test", Source: filepath.Join(fixtureDir, "relay.db"), Schema: 2,
		RelayKey: fixtureKey(t).String(), Fingerprint: "2241-28fe-77cd-67ad", Epoch: want.Epoch, LastSign: time.UnixMilli(1795161660000).UTC(),
		Enrolments: 3, Revoked: 1, SenderLists: 1, EncAds: 1, EncAdRecords: 1, Items: 6, ItemBytes: 5*809 + 247, Dedup: 7, Queues: 2, Acked: 1,
		LogLines: 1, RestoredPaths: 1, Warnings: did.Warnings}
	if got, want := fmt.Sprintf("%+v", did), fmt.Sprintf("%+v", counts); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if st, err := os.Stat(filepath.Join(dir, FileName)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the new store: %v, %v; want mode 0600", st, err)
	}
	o := testOptions(dir)
	o.Key = fixtureKey(t)
	s := mustOpen(t, o)
	defer checkedClose(t, s)
	home, work := want.Items[0].Target, want.Items[5].Target
	err = s.View(t.Context(), func(r store.Reader) error {
		in, err := r.Info()
		if err != nil {
			return err
		}
		if in.Epoch != want.Epoch || !in.Heartbeat.Equal(fixtureNow) || in.ExpiryFrom.Format(time.RFC3339Nano) != "2026-11-20T08:00:02.5Z" ||
			in.CreatedAt.Format(time.RFC3339) != "2026-11-20T08:00:00Z" {
			t.Errorf("meta: got %+v", in)
		}
		var items []store.Item
		for _, target := range []wire.PublicKey{home, work} {
			if err := r.Page(target, 0, 100, func(it store.Item) bool { items = append(items, it); return true }); err != nil {
				return err
			}
		}
		if len(items) != len(want.Items) {
			t.Fatalf("got %d items; want %d", len(items), len(want.Items))
		}
		for n, w := range want.Items {
			got := items[n]
			expires := w.Expires == nil && got.ExpiresAt.IsZero() || w.Expires != nil && w.Expires.Equal(got.ExpiresAt)
			if got.Target != w.Target || got.Seq != w.Seq || got.Kind != w.Kind || got.ID != w.ID || got.Sender != w.Sender || got.SenderHost != w.SenderHost ||
				hex.EncodeToString(got.Hash[:]) != w.Hash || wire.HashHex(got.Wire) != w.Hash || !got.AcceptedAt.Equal(w.At) || !expires {
				t.Errorf("item %d: got %+v; want %+v", n, got, w)
			}
		}
		for _, target := range []wire.PublicKey{home, work} {
			q, err := r.Queue(target)
			i := slices.IndexFunc(items, func(it store.Item) bool { return it.Target == target })
			if err != nil || (i < 0) != q.Oldest.IsZero() || i >= 0 && !q.Oldest.Equal(items[i].AcceptedAt) || q.Held.Items != 0 {
				t.Errorf("queue: got %+v, %v; want the time of its first item", q, err)
			}
			if list, err := r.ByFingerprint(target.Fingerprint(), 2); err != nil || len(list) != 1 {
				t.Errorf("by fingerprint: got %+v, %v; want the host", list, err)
			}
		}
		for target, head := range map[wire.PublicKey]int64{home: want.Home, work: want.Work} {
			if got, err := r.Head(target); err != nil || got != head {
				t.Errorf("head: got %d, %v; want %d", got, err, head)
			}
		}
		if got, err := r.Acked(home); err != nil || got != want.Acked {
			t.Errorf("acked: got %d, %v; want %d", got, err, want.Acked)
		}
		d, err := r.Dedup(work, "01JB2Q3R4S5T6V7W8X9YZAB001", home)
		if err != nil || d.Seq != want.Acked || !strings.HasPrefix(hex.EncodeToString(d.Hash[:]), "d3a31206") {
			t.Errorf("dedup of the acked item: got %+v, %v", d, err)
		}
		if listed, named, err := r.Accepts(home, work); err != nil || !listed || !named {
			t.Errorf("home's list: got %t, %t, %v; want one that names work", listed, named, err)
		}
		if k, err := r.EncKey(home); err != nil || k.EncPub != "u7II+UVSif3nm6E0SapmyhB0gmjkvk9G9s/qKyIBPUg=" {
			t.Errorf("v1 key: got %+v, %v", k, err)
		}
		if ad, err := r.EncAd(home); err != nil || !json.Valid(ad.Record) || !home.Verify(ad.Record, ad.Sig) {
			t.Errorf("v2 ad: got %+v, %v", ad, err)
		}
		if b, err := r.State("restored_paths"); err != nil || string(b) != `{"/data/backups/old.db":"2026-11-19T00:00:00Z"}` {
			t.Errorf("restored paths: got %s, %v", b, err)
		}
		if b, err := r.State("job-wanted:backup"); err != nil || string(b) != `"an import"` {
			t.Errorf("wanted backup: got %s, %v", b, err)
		}
		log, err := r.Log("", 0, 10)
		if err != nil || len(log) != 2 || log[0].Op != "import" || log[1].Op != "backup" ||
			string(log[1].Receipt) != `{"v": 1, "type": "relay-backup", "at": "2026-11-20T08:00:30.000Z"}` {
			t.Errorf("log: got %+v, %v", log, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOnly(t, dir, "relay.db", "relay.db-shm", "relay.db-wal", "relay.lock", "reserve")
}

// wantOnly fails when something else stands in a folder.
func wantOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	if got := dirEntries(t, dir); strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("the folder holds %v; want %v", got, names)
	}
}

// schema1 are the statements that make the fixture a store of schema 1.
var schema1 = []string{
	"UPDATE meta SET v = '1' WHERE k = 'schema_version'",
	"DELETE FROM meta WHERE k IN ('heartbeat', 'expiry_from', 'restored_paths')",
	"DROP TABLE enc_ad_records", "DROP TABLE ops",
	"ALTER TABLE items DROP COLUMN sender_host", "ALTER TABLE items DROP COLUMN expires_at",
	"ALTER TABLE enc_ads DROP COLUMN host_name",
}

// TestImportOfSchema1 takes over a store that lacks what schema 2 brought.
func TestImportOfSchema1(t *testing.T) {
	t.Parallel()
	dir, want := t.TempDir(), expected(t)
	did, err := importInto(t, importOptions(t, tsStore(t, schema1...), dir))
	if err != nil {
		t.Fatal(err)
	}
	if did.Schema != 1 || did.Items != 6 || did.EncAds != 1 || did.EncAdRecords != 0 || did.LogLines != 0 || !did.LastSign.IsZero() || len(did.Warnings) != 0 {
		t.Errorf("got %+v", did)
	}
	o := testOptions(dir)
	o.Key = fixtureKey(t)
	s := mustOpen(t, o)
	defer checkedClose(t, s)
	if err := s.View(t.Context(), func(r store.Reader) error {
		in, err := r.Info()
		if err != nil || !in.ExpiryFrom.Equal(fixtureNow) {
			t.Errorf("got expiry from %s, %v; want from the import on", in.ExpiryFrom, err)
		}
		return r.Page(want.Items[0].Target, 0, 1, func(it store.Item) bool {
			if it.SenderHost != "work" || !it.ExpiresAt.IsZero() {
				t.Errorf("got %+v; want the name of its sender's enrolment, and no expiry", it)
			}
			return true
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// TestImportOddities tells of what stays behind, adds what only
// makes a retry a duplicate, and takes over what rotations at the old relay left.
func TestImportOddities(t *testing.T) {
	t.Parallel()
	stranger, home := "G3flv64QxS6VsmLG8M7/JF3yU72xBnLhrlePh3fFASo=", "GRSk+RixrMyVG2FtIphVfZFE9hSj/TODWe1qALH5PK8="
	file := tsStore(t,
		"CREATE TABLE plugins (x)", "ALTER TABLE seqs ADD COLUMN colour TEXT", "INSERT INTO meta VALUES ('motd', 'hello')",
		"DELETE FROM dedup WHERE item_id LIKE '%B003'",
		"UPDATE enc_ads SET sig = replace(sig, 'U', 'V')",
		"UPDATE items SET accepted_at = '2026-11-20T08:00:03.0009Z' WHERE item_id LIKE '%B003'",
		// home rotated to the stranger's key, which took its list
		"UPDATE enrolments SET account = 'acme', revoked_at = CASE host_pubkey WHEN '"+home+"' THEN '2026-11-20T08:00:20.000Z' END",
		"UPDATE sender_lists SET target_pubkey = '"+stranger+"'",
	)
	dir := t.TempDir()
	did, err := importInto(t, importOptions(t, file, dir))
	if err != nil {
		t.Fatal(err)
	}
	if did.DedupAdded != 1 || did.Unsigned != 1 || did.EncAds != 0 {
		t.Errorf("got %+v; want one dedup row added and one key left behind", did)
	}
	f, err := OpenFile(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Signed(t.Context(), func(r Signed) error {
		if r.What != SignedSenders {
			return nil
		}
		for _, k := range r.Signers { // or no backup of this store would verify
			if _, err := wire.ParseSenderList(r.Record, r.Sig, k, r.At); err == nil {
				return nil
			}
		}
		return fmt.Errorf("nobody of %v signed the list", r.Signers)
	}), f.Close()); err != nil {
		t.Error(err)
	}
	warned := strings.Join(did.Warnings, "\n")
	for _, want := range []string{"last sign of life is 59m0s old", `table "plugins"`, `column "colour" of table seqs`, `"motd" of meta`} {
		if !strings.Contains(warned, want) {
			t.Errorf("warnings: got %s; want %q in them", warned, want)
		}
	}
	o := testOptions(dir)
	o.Key = fixtureKey(t)
	s := mustOpen(t, o)
	defer checkedClose(t, s)
	key := func(text string) wire.PublicKey {
		k, err := wire.ParsePublicKey(text)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if err := s.View(t.Context(), func(r store.Reader) error {
		u, err := r.AccountUsage("acme")
		if err != nil || u != (store.Usage{Items: 6, Bytes: 5*809 + 247}) {
			t.Errorf("account: got %+v, %v", u, err)
		}
		if listed, _, err := r.Accepts(key(stranger), key(home)); err != nil || !listed {
			t.Errorf("a list that a rotation moved: got %t, %v", listed, err)
		}
		return r.Page(key(home), 1795161602000, 1, func(it store.Item) bool {
			if it.AcceptedAt.Format(time.RFC3339Nano) != "2026-11-20T08:00:03Z" {
				t.Errorf("accepted at: got %s; want it cut to the millisecond", it.AcceptedAt)
			}
			return true
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// TestImportRefuses has every kind of file that cannot be taken over: each named
// for what it is, and nothing left behind.
func TestImportRefuses(t *testing.T) {
	t.Parallel()
	const items = "not a relay store that can be imported: table items, row "
	tests := []struct {
		name       string
		statements []string
		is         error
		want       string
	}{
		{"another program's database", []string{"DROP TABLE meta"}, ErrForeign, "it has no table meta"},
		{"our own store", []string{"PRAGMA application_id = 0x4d425852"}, ErrForeign, "agentmbx relay restore"},
		{"a newer schema", []string{"UPDATE meta SET v = '3' WHERE k = 'schema_version'"}, ErrNewerSchema, "it has schema 3 of the TypeScript relay"},
		{"schema 02", []string{"UPDATE meta SET v = '02' WHERE k = 'schema_version'"}, ErrForeign, `schema_version is "02"`},
		{"no schema", []string{"DELETE FROM meta WHERE k = 'schema_version'"}, ErrForeign, "schema_version"},
		{"no epoch", []string{"DELETE FROM meta WHERE k = 'epoch'"}, ErrForeign, "meta has no epoch"},
		{"no key", []string{"DELETE FROM meta WHERE k = 'relay_pubkey'"}, ErrForeign, "meta has no relay_pubkey"},
		{"a bad key", []string{"UPDATE meta SET v = 'x' WHERE k = 'relay_pubkey'"}, ErrForeign, `table meta, row`},
		{"another relay's", []string{"UPDATE meta SET v = 'mYicUuf2X90cNTVZI+5IupRnLkq86d+DhtsgOTmETCk=' WHERE k = 'relay_pubkey'"}, ErrOtherKey,
			"it belongs to 5f2c-d4aa-3799-c121, the key given is 2241-28fe-77cd-67ad"},
		{"a fresh heartbeat", []string{"UPDATE meta SET v = '1795165170000' WHERE k = 'heartbeat'"}, ErrInUse, "a sign of life 30s ago"},
		{"a heartbeat ahead", []string{"UPDATE meta SET v = '2026-11-20T10:00:00.000Z' WHERE k = 'heartbeat'"}, ErrInUse, "1h0m0s in the future"},
		{"a heartbeat that is none", []string{"UPDATE meta SET v = 'soon' WHERE k = 'heartbeat'"}, ErrForeign, "it is no time"},
		{"restored paths that are none", []string{`UPDATE meta SET v = '{"/a": 7}' WHERE k = 'restored_paths'`}, ErrForeign, "no list of paths and times"},
		{"no items", []string{"DROP TABLE items"}, ErrForeign, "it has no table items"},
		{"a column is missing", []string{"ALTER TABLE items DROP COLUMN expires_at"}, ErrForeign, "table items has no column expires_at"},
		{"a table without its key", []string{"ALTER TABLE dedup RENAME TO old", "CREATE TABLE dedup AS SELECT * FROM old"}, ErrForeign, "table dedup has the primary key ()"},
		{"a view for a table", []string{"ALTER TABLE acked RENAME TO old", "CREATE VIEW acked AS SELECT * FROM old"}, ErrForeign, "it has no table acked"},
		{"a host key that is none", []string{"UPDATE enrolments SET host_pubkey = 'short' WHERE host_name = 'work'"}, ErrForeign, "table enrolments, row 3 (host_pubkey \"short\"): host_pubkey: it is no key"},
		{"a host key as bytes", []string{"UPDATE enrolments SET host_pubkey = x'00ff' WHERE host_name = 'work'"}, ErrForeign, "host_pubkey: it is not text"},
		{"a host name that is none", []string{"UPDATE enrolments SET host_name = 'a b' WHERE host_name = 'work'"}, ErrForeign, "host_name: it is no host name"},
		{"a name of bad bytes", []string{"UPDATE enrolments SET owner_fp = CAST(x'ff' AS TEXT)"}, ErrForeign, "owner_fp: it is not valid UTF-8"},
		{"an account with a line break", []string{"UPDATE enrolments SET account = 'a' || char(10)"}, ErrForeign, "account: it is not a short line"},
		{"a name twice in an account", []string{"UPDATE enrolments SET account = 'a', host_name = 'x', revoked_at = NULL"}, ErrForeign, "it stands there twice"},
		{"a time that is none", []string{"UPDATE enrolments SET enrolled_at = 'yesterday'"}, ErrForeign, "enrolled_at: it is no time"},
		{"a time before 1970", []string{"UPDATE enrolments SET enrolled_at = '0001-01-01T00:00:00.000Z'"}, ErrForeign, "enrolled_at: it is no time"},
		{"an item with other bytes", []string{"UPDATE items SET wire = zeroblob(809) WHERE seq = 1795161603000"}, ErrForeign,
			items + `2 (target_pubkey "GRSk+RixrMyVG2FtIphVfZFE9hSj/TODWe1qALH5PK8=", seq 1795161603000): wire_hash: it is not the hash of the wire`},
		{"a size that is not the wire's", []string{"UPDATE items SET bytes = 1"}, ErrForeign, "bytes: it is 1, but the wire has 809"},
		{"a negative size", []string{"UPDATE items SET bytes = -1"}, ErrForeign, "bytes: it is -1, which is out of range"},
		{"a huge wire", []string{"UPDATE items SET wire = zeroblob(70000000) WHERE seq = 1795161603000"}, ErrForeign, "wire: it is too large"},
		{"a huge id", []string{"UPDATE items SET item_id = hex(zeroblob(4000)) WHERE seq = 1795161603000"}, ErrForeign, "item_id: it is too large"},
		{"an empty id", []string{"UPDATE items SET item_id = '' WHERE seq = 1795161603000"}, ErrForeign, "item_id: it is no item id"},
		{"a kind that is none", []string{"UPDATE items SET kind = 'virus'"}, ErrForeign, `kind: it is "virus"; want envelope, receipt or expired`},
		{"a seq of text", []string{"UPDATE items SET seq = 'x' WHERE seq = 1795161603000"}, ErrForeign, "seq: it is not a whole number"},
		{"a seq of 0", []string{"UPDATE items SET seq = 0 WHERE seq = 1795161603000"}, ErrForeign, "seq: it is 0, which is out of range"},
		{"a seq beyond the head", []string{"UPDATE seqs SET next_seq = 1795161604000"}, ErrForeign, "seq: it is not below the next one of its queue, 1795161604000"},
		{"a queue without a row", []string{"DELETE FROM seqs", "DELETE FROM acked"}, ErrForeign, "it has no row in seqs"},
		{"a number of a seq that is huge", []string{"UPDATE seqs SET next_seq = 9223372036854775807"}, ErrForeign, "next_seq: it is 9223372036854775807, which is out of range"},
		{"an ack beyond the head", []string{"UPDATE acked SET acked_through = 1795161606001"}, ErrForeign, "acked_through: it is beyond"},
		{"an acked item", []string{"UPDATE acked SET acked_through = 1795161602000"}, ErrForeign, "seq: it was acknowledged"},
		{"a hash that is none", []string{"UPDATE dedup SET wire_hash = upper(wire_hash)"}, ErrForeign, "table dedup, row 1"},
		{"a list of no keys", []string{"UPDATE sender_lists SET senders = '[\"x\"]'"}, ErrForeign, "senders: it is no list of keys"},
		{"a list that is null", []string{"UPDATE sender_lists SET senders = 'null'"}, ErrForeign, "senders: it is no list of keys"},
		{"a list of another host", []string{"UPDATE sender_lists SET record = replace(record, 'GRSk', 'GRSx')"}, ErrForeign, "record: it is the list of another host"},
		{"a list that was changed", []string{"UPDATE sender_lists SET record = replace(record, '2026', '2025'), iat = '2025-11-20T08:00:00.000Z'"}, ErrForeign, "record: it is no sender list that its host signed"},
		{"an ad that is no JSON", []string{"UPDATE enc_ad_records SET record = '{'"}, ErrForeign, "record: it is not JSON"},
		{"a signature that is none", []string{"UPDATE enc_ad_records SET sig = 'x'"}, ErrForeign, "sig: it is no signature"},
		{"a receipt that is no JSON", []string{"UPDATE ops SET receipt = 'done'"}, ErrForeign, "table ops, row 1: receipt: it is not JSON"},
		{"a receipt too deep for SQLite", []string{"UPDATE ops SET receipt = replace(hex(zeroblob(1000)), '00', '[') || replace(hex(zeroblob(1000)), '00', ']')"}, ErrForeign, "table ops, row 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file, dir := tsStore(t, tt.statements...), t.TempDir()
			o := importOptions(t, file, dir)
			_, err := importInto(t, o)
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), file) {
				t.Errorf("got %v; want %v that names the file and says %q", err, tt.is, tt.want)
			}
			wantOnly(t, dir, "relay.lock")
			if _, err := PreviewImport(t.Context(), o); !errors.Is(err, tt.is) {
				t.Errorf("preview: got %v; want %v", err, tt.is)
			}
		})
	}
}

// TestImportRefusesFiles has what is no database, or not whole.
func TestImportRefusesFiles(t *testing.T) {
	t.Parallel()
	whole := readFile(t, filepath.Join(fixtureDir, "relay.db"))
	flipped := append([]byte(nil), whole...)
	at := bytes.Index(flipped, []byte(`"kind":"message"`)) // in the wire bytes of an item
	for n := range 20 {
		flipped[at+n] ^= 0xff
	}
	tests := []struct {
		name string
		make func(file string) error
		is   error
		want string
	}{
		{"a file that is not there", func(string) error { return nil }, os.ErrNotExist, ""},
		{"an empty one", func(f string) error { return os.WriteFile(f, nil, 0o600) }, ErrForeign, "it is empty"},
		{"a folder", func(f string) error { return os.Mkdir(f, 0o700) }, ErrForeign, "it is not a file"},
		{"text", func(f string) error { return os.WriteFile(f, []byte(strings.Repeat("not a database. ", 500)), 0o600) }, ErrForeign, "no SQLite database"},
		{"half of one", func(f string) error { return os.WriteFile(f, whole[:len(whole)/2], 0o600) }, ErrForeign, "damaged"},
		{"flipped bytes", func(f string) error { return os.WriteFile(f, flipped, 0o600) }, ErrForeign, "wire_hash"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file, dir := filepath.Join(t.TempDir(), "relay.db"), t.TempDir()
			if err := tt.make(file); err != nil {
				t.Fatal(err)
			}
			_, err := importInto(t, importOptions(t, file, dir))
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v; want %v that says %q", err, tt.is, tt.want)
			}
			wantOnly(t, dir, "relay.lock")
		})
	}
}

// TestImportOverwritesNothing: a folder with a store, or with parts of one.
func TestImportOverwritesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{FileName, FileName + "-wal", FileName + "-shm"} {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, name), []byte("mail"))
		_, err := importInto(t, importOptions(t, filepath.Join(fixtureDir, "relay.db"), dir))
		if !errors.Is(err, ErrStoreThere) {
			t.Errorf("%s: got %v; want ErrStoreThere", name, err)
		}
		if b := readFile(t, filepath.Join(dir, name)); string(b) != "mail" {
			t.Errorf("%s: got %q; want it as it was", name, b)
		}
	}
}

// TestImportWithoutRoom says so before it begins.
func TestImportWithoutRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := importOptions(t, filepath.Join(fixtureDir, "relay.db"), dir)
	o.Free = func(string) (int64, int64, error) { return 100_000, 1 << 30, nil }
	if _, err := importInto(t, o); !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v; want ErrFull", err)
	}
	wantOnly(t, dir, "relay.lock")
}

// TestImportFails undoes everything when the last word is no.
func TestImportFails(t *testing.T) {
	t.Parallel()
	dir, no := t.TempDir(), errors.New("no")
	o := importOptions(t, filepath.Join(fixtureDir, "relay.db"), dir)
	o.Before = func() error { return no }
	if _, err := importInto(t, o); !errors.Is(err, no) {
		t.Errorf("got %v; want %v", err, no)
	}
	wantOnly(t, dir, "relay.lock")
	ctx, cancel := context.WithCancel(t.Context())
	o.Before, o.step = nil, func(name string) {
		if name == "first item" {
			cancel()
		}
	}
	o.Lock = mustLock(t, dir)
	defer mustRelease(t, o.Lock)
	if _, err := Import(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want it ended", err)
	}
	wantOnly(t, dir, "relay.lock")
}

// TestPreviewImportChangesNothing, not even a folder that is not there.
func TestPreviewImportChangesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	o := importOptions(t, filepath.Join(fixtureDir, "relay.db"), dir)
	did, err := PreviewImport(t.Context(), o)
	if err != nil || did.Items != 6 {
		t.Errorf("got %+v, %v; want 6 items", did, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store folder: got %v; want it not made", err)
	}
	wantOnly(t, fixtureDir, "expected.json", "relay.db", "relay.key")
}
