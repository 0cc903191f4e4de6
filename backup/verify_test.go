package backup

import (
	"bytes"
	"context"
	sqldriver "database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	driver "modernc.org/sqlite"
)

// flip turns n bytes of a file around, from an offset on.
func flip(t testing.TB, path string, at int64, n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 0xff
	}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func otherStore(t testing.TB, key wire.PublicKey) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Options{Dir: t.TempDir(), Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// run has SQLite run statements on a file, as somebody with a shell would.
func run(t testing.TB, path string, statements ...string) {
	t.Helper()
	c, err := (&driver.Driver{}).Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, q := range statements {
		s, err := c.Prepare(q)
		if err != nil {
			t.Fatalf("%s: %v", q, err)
		}
		if _, err := s.(sqldriver.StmtExecContext).ExecContext(t.Context(), nil); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
		_ = s.Close()
	}
}

func cut(t testing.TB, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// find answers where in the file some bytes stand.
func find(t testing.TB, path, text string) int64 {
	t.Helper()
	at := bytes.Index(mustRead(t, path), []byte(text))
	if at < 0 {
		t.Fatalf("%q is not in %s", text, path)
	}
	return int64(at)
}

// findLast is for what migrations left older copies of.
func findLast(t testing.TB, path, text string) int64 {
	t.Helper()
	at := bytes.LastIndex(mustRead(t, path), []byte(text))
	if at < 0 {
		t.Fatalf("%q is not in %s", text, path)
	}
	return int64(at)
}

// root is the number of the page at which a table begins.
func root(t testing.TB, path, table string) (page int64) {
	t.Helper()
	c, err := (&driver.Driver{}).Open("file:" + path + "?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rows, err := c.(sqldriver.QueryerContext).QueryContext(t.Context(), "SELECT rootpage FROM sqlite_schema WHERE name = '"+table+"'", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	row := make([]sqldriver.Value, 1)
	if err := rows.Next(row); err != nil {
		t.Fatal(err)
	}
	return row[0].(int64)
}

// badFiles lists what can be wrong with a backup: what is done to a good one, the
// checks that fail with its receipt beside it and without, and what is said.
var badFiles = []struct {
	name          string
	spoil         func(t *testing.T, path string)
	with, without string
	says          string
}{
	{"a zero-byte file", func(t *testing.T, p string) { cut(t, p, 0) }, "file", "file", "it is empty"},
	{"a header and no more", func(t *testing.T, p string) { cut(t, p, 100) }, "sha256, store", "store", "it is cut off"},
	{"half a header", func(t *testing.T, p string) { cut(t, p, 50) }, "sha256, store", "store", "not an SQLite database"},
	{"the first page", func(t *testing.T, p string) { cut(t, p, 8192) }, "sha256, store", "store", "it is cut off"},
	{"half of its pages", func(t *testing.T, p string) {
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		cut(t, p, st.Size()/2/8192*8192)
	}, "sha256, store", "store", "it is cut off"},
	{"its last byte is gone", func(t *testing.T, p string) { cut(t, p, int64(len(mustRead(t, p))-1)) }, "sha256, store", "store", "it is cut off"},
	{"something after its end", func(t *testing.T, p string) { mustWrite(t, p, append(mustRead(t, p), "more"...)) }, "sha256, checksum", "checksum", "something was added"},
	{"20 flipped bytes in the header", func(t *testing.T, p string) { flip(t, p, 20, 20) }, "sha256, store", "store", "changed"},
	{"20 flipped bytes in the name of the format", func(t *testing.T, p string) { flip(t, p, 0, 20) }, "sha256, store", "store", "not an SQLite database"},
	{"20 flipped bytes in the table of tables", func(t *testing.T, p string) { flip(t, p, findLast(t, p, "CREATE TABLE items"), 20) }, "sha256, store", "store", "it is damaged"},
	{"20 flipped bytes in a page of a tree", func(t *testing.T, p string) { flip(t, p, 8192*(root(t, p, "totals")-1), 20) }, "sha256, checksum, facts", "checksum, facts", "changed"},
	{"20 flipped bytes in an item's body", func(t *testing.T, p string) { flip(t, p, find(t, p, "item-30 item-30 item-30 item-30")+40, 20) },
		"sha256, checksum, items", "checksum, items", "changed"},
	{"20 flipped bytes in the log", func(t *testing.T, p string) { flip(t, p, find(t, p, "nothing but a log line"), 20) }, "sha256, checksum", "checksum", "changed"},
	{"20 flipped bytes in a signed record", func(t *testing.T, p string) { flip(t, p, find(t, p, `{"enc_pub":"`)+20, 20) }, "sha256, checksum, items, records", "checksum, records", "changed"},
	{"20 flipped bytes in free space", func(t *testing.T, p string) { flip(t, p, freeSpace(t, p), 20) }, "sha256, checksum", "checksum", "changed"},
	{"a text file", func(t *testing.T, p string) { mustWrite(t, p, bytes.Repeat([]byte("no database\n"), 2000)) }, "sha256, store", "store", "not an SQLite database"},
	{"another program's database", func(t *testing.T, p string) {
		_ = os.Remove(p)
		run(t, p, "CREATE TABLE cats (name TEXT)", "INSERT INTO cats VALUES ('Tom')")
	}, "sha256, store", "store", "another program's database"},
	{"another program's database with our number in it", func(t *testing.T, p string) {
		_ = os.Remove(p)
		run(t, p, "CREATE TABLE cats (name TEXT)", fmt.Sprintf("PRAGMA application_id = %d", 0x4d425852))
	}, "sha256, store", "store", "it holds no store"},
	{"a view in the place of a table", func(t *testing.T, p string) {
		run(t, p, "DROP TABLE meta", "CREATE VIEW meta AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k FROM n) SELECT k, k AS v FROM n")
	}, "sha256, store", "store", "it holds no store"},
	{"a trigger of somebody's", func(t *testing.T, p string) {
		run(t, p, "CREATE TRIGGER evil AFTER INSERT ON items BEGIN DELETE FROM enrolments; END")
	}, "sha256, store", "store", "not those of schema"},
	{"another relay's store", func(t *testing.T, p string) {
		_ = os.Remove(p)
		if err := otherStore(t, secret("another").Public()).Copy(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
	}, "sha256, relay key, facts, items", "relay key", "it is another relay's store"},
	{"an older backup under this one's name", func(t *testing.T, p string) {
		_ = os.Remove(p)
		if err := otherStore(t, relayKey).Copy(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
	}, "sha256, facts, items", "", "the receipt says"},
	{"a newer schema", func(t *testing.T, p string) { run(t, p, "UPDATE meta SET v = 99 WHERE k = 'schema_version'") }, "sha256, store", "store", "newer agentmbx"},
	{"no schema", func(t *testing.T, p string) { run(t, p, "DELETE FROM meta WHERE k = 'schema_version'") }, "sha256, store", "store", "no schema"},
	{"no epoch", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "DELETE FROM meta WHERE k = 'epoch'")
	}, "sha256, facts", "facts", "no epoch"},
	{"an item that was deleted", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "DELETE FROM items WHERE seq = (SELECT max(seq) FROM items)")
	}, "sha256, integrity", "integrity", "counter"},
	{"an item that was changed", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE items SET wire = CAST(zeroblob(bytes) AS BLOB) WHERE seq = (SELECT max(seq) FROM items)")
	}, "sha256, items", "items", "not what was accepted"},
	{"a sender list that nobody signed", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE sender_lists SET sig = (SELECT sig FROM enc_ad_records)")
	}, "sha256, items, records", "records", "sender list"},
	{"a rotation of another key", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "DELETE FROM listed_senders", "DELETE FROM sender_lists", "UPDATE rotations SET new_pubkey = zeroblob(32)")
	}, "sha256, items, records", "records", "key rotation"},
	{"a last sign of life after the year 9999", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE meta SET v = 9223372036854775807 WHERE k = 'heartbeat'")
	}, "sha256, times", "times", "in heartbeat"},
	{"a last sign of life before 1970", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE meta SET v = -1 WHERE k = 'heartbeat'")
	}, "sha256, times", "times", "in heartbeat"},
	{"a birth after the year 9999", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE meta SET v = 253402300800000 WHERE k = 'created_at'")
	}, "sha256, times", "times", "in created_at"},
	{"an expiry clock after the year 9999", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE meta SET v = 253402300800000 WHERE k = 'expiry_from'")
	}, "sha256, times", "times", "in expiry_from"},
	{"items from before 1970", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE items SET accepted_at = -1", "UPDATE seqs SET oldest = -1 WHERE oldest IS NOT NULL")
	}, "sha256, items, times", "times", "19 times"},
	{"an item that expires after the year 9999", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE items SET expires_at = 253402300800000 WHERE seq = (SELECT max(seq) FROM items)")
	}, "sha256, items, times", "times", "1 times"},
	{"an item that was held in the year 292 million", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE quarantine SET held_at = 9223372036854775807")
	}, "sha256, items, times", "times", "in held"},
	{"a host that enrolled before 1970", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE enrolments SET enrolled_at = -9223372036854775808 WHERE revoked_at IS NULL")
	}, "sha256, items, times", "times", "in enrolments"},
	{"a log of the future", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "UPDATE ops SET at = 9223372036854775807")
	}, "sha256, times", "times", "in ops"},
	{"a run of the future", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "INSERT INTO job_runs VALUES (1, 'x', 'x', 'x', 1, 9223372036854775807, 'ok', '')")
	}, "sha256, times", "times", "in job_runs"},
	{"a host that was seen in the future", func(t *testing.T, p string) {
		run(t, p, "PRAGMA user_version = 0", "INSERT INTO last_seen VALUES (zeroblob(32), 253402300800000)")
	}, "sha256, times", "times", "in last_seen"},
	{"a log beside it", func(t *testing.T, p string) { mustWrite(t, p+"-wal", []byte("x")) }, "file", "file", "a live store's database"},
	{"a journal beside it", func(t *testing.T, p string) { mustWrite(t, p+"-journal", []byte("x")) }, "file", "file", "a live store's database"},
	{"a folder", func(t *testing.T, p string) {
		if err := errors.Join(os.Remove(p), os.Mkdir(p, 0o700)); err != nil {
			t.Fatal(err)
		}
	}, "file", "file", "it is a folder"},
	{"a symbolic link", func(t *testing.T, p string) {
		if err := errors.Join(os.Rename(p, p+".real"), os.Symlink(p+".real", p)); err != nil {
			t.Fatal(err)
		}
	}, "file", "file", "it is a symbolic link"},
	{"a link to nothing", func(t *testing.T, p string) {
		if err := errors.Join(os.Remove(p), os.Symlink(p+".gone", p)); err != nil {
			t.Fatal(err)
		}
	}, "file", "file", "it is a symbolic link"},
}

// freeSpace finds zeroes within a page, which SQLite's own check never looks at.
func freeSpace(t testing.TB, path string) int64 {
	t.Helper()
	b := mustRead(t, path)
	for at := len(b) - 8192; at > 8192; at -= 8192 {
		if b[at] == 13 { // a leaf of a table
			if free := at + 8 + 2*int(binary.BigEndian.Uint16(b[at+3:])) + 100; bytes.Equal(b[free:free+40], make([]byte, 40)) {
				return int64(free)
			}
		}
	}
	t.Fatal("no page has free space")
	return 0
}

// Verification's table of bad files: each named for what it is, with its receipt
// beside it and without.
func TestVerifyBadFiles(t *testing.T) {
	s := filled(t, t.TempDir())
	good := take(t, folder(t, s), s)
	for _, c := range badFiles {
		for _, receipt := range []bool{true, false} {
			name, want := c.name+" with its receipt", c.with
			if !receipt {
				name, want = c.name+" alone", c.without
			}
			t.Run(name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "backup.db")
				mustWrite(t, path, mustRead(t, good.File))
				if receipt {
					mustWrite(t, path+".json", mustRead(t, good.File+".json"))
				}
				c.spoil(t, path)
				before := names(t, filepath.Dir(path))
				r, err := Verify(t.Context(), path, Want{Key: relayKey, Now: func() time.Time { return day0 }})
				if err != nil {
					t.Fatal(err)
				}
				if got := failures(r); got != want || r.Good != (want == "") {
					t.Errorf("got failures %q, good %v; want %q: %+v", got, r.Good, want, r.Checks)
				}
				if texts := fmt.Sprint(r.Checks); want != "" && !strings.Contains(texts, c.says) && receipt {
					t.Errorf("got %s; want %q in it", texts, c.says)
				}
				if (r.Err() == nil) != r.Good || !r.Good && !errors.Is(r.Err(), ErrBad) {
					t.Errorf("got %v; want ErrBad for a bad file", r.Err())
				}
				if got := names(t, filepath.Dir(path)); fmt.Sprint(got) != fmt.Sprint(before) {
					t.Errorf("got %v beside the file; want %v", got, before)
				}
			})
		}
	}
}

// SQLite's integrity check, which is content with most of the table above, never
// passes anything alone: without our own checks these would be good.
func TestVerifyIntegrityCheckAloneSeesNothing(t *testing.T) {
	s := filled(t, t.TempDir())
	good := take(t, folder(t, s), s)
	for _, c := range badFiles {
		switch c.name {
		case "20 flipped bytes in free space", "20 flipped bytes in an item's body", "a newer schema", "another program's database",
			"an item that was changed", "another relay's store":
		default:
			continue
		}
		path := filepath.Join(t.TempDir(), "backup.db")
		mustWrite(t, path, mustRead(t, good.File))
		c.spoil(t, path)
		if got := sqliteSays(t, path); got != "ok" {
			t.Errorf("%s: got %q from integrity_check; want ok, or this shows nothing", c.name, got)
		}
		if r, err := Verify(t.Context(), path, Want{Key: relayKey}); err != nil || r.Good {
			t.Errorf("%s: got good %v, %v; want a bad file", c.name, r.Good, err)
		}
	}
}

func sqliteSays(t testing.TB, path string) string {
	t.Helper()
	c, err := (&driver.Driver{}).Open("file:" + path + "?immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st, err := c.Prepare("PRAGMA integrity_check")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	rows, err := st.(sqldriver.StmtQueryContext).QueryContext(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	said := make([]sqldriver.Value, 1)
	if err := rows.Next(said); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return fmt.Sprint(said[0])
}

// A good file passes every check, as it lies in the folder, alone, and with no key
// to compare with; a missing one is an error.
func TestVerifyGoodFile(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	good := take(t, f, s)
	all := "file, receipt, sha256, store, checksum, relay key, facts, integrity, items, records, times, date"
	alone := filepath.Join(t.TempDir(), "elsewhere.db")
	mustWrite(t, alone, mustRead(t, good.File))
	for _, path := range []string{good.File, alone} {
		for _, key := range []wire.PublicKey{relayKey, {}} {
			r, err := Verify(t.Context(), path, Want{Key: key})
			var got []string
			for _, c := range r.Checks {
				got = append(got, c.Name)
			}
			if err != nil || !r.Good || strings.Join(got, ", ") != all || r.Contents != good.Contents || r.SHA256 != good.SHA256 || r.Totals.Items != 20 || r.Rows["items"] != 19 {
				t.Errorf("%s: got %+v, %v; want every check to pass", path, r, err)
			}
		}
	}
	if _, err := Verify(t.Context(), filepath.Join(f.Dir, "none.db"), Want{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: got %v; want that it does not exist", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if r, err := Verify(ctx, good.File, Want{}); !errors.Is(err, context.Canceled) || r.Good {
		t.Errorf("stopped: got good %v, %v; want no verdict", r.Good, err)
	}
}

// The database of a store that is in use is refused before a byte of it is read:
// to open and close it would take the locks from whoever has it.
func TestVerifyLiveStore(t *testing.T) {
	s := filled(t, t.TempDir())
	r, err := Verify(t.Context(), filepath.Join(s.Dir(), sqlite.FileName), Want{Key: relayKey})
	if err != nil || failures(r) != "file" || r.SHA256 != "" || !strings.Contains(r.Fault(), "live store") {
		t.Errorf("got %+v, %v; want it refused unread", r, err)
	}
	put(t, s, secret("beta").Public(), "after", 100)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r, err = Verify(t.Context(), filepath.Join(s.Dir(), sqlite.FileName), Want{Key: relayKey})
	if err != nil || !r.Good || !strings.Contains(fmt.Sprint(r.Checks), "it carries none") {
		t.Errorf("at rest: got %+v, %v; want it good, without a checksum", r, err)
	}
}

// A store that grew out of a backup does not carry the backup's checksum.
func TestVerifyStoreFromABackup(t *testing.T) {
	s := filled(t, t.TempDir())
	good := take(t, folder(t, s), s)
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, sqlite.FileName), mustRead(t, good.File))
	grown := openStore(t, dir)
	put(t, grown, secret("beta").Public(), "newer", 5000)
	if err := grown.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(t.Context(), filepath.Join(dir, sqlite.FileName), Want{Key: relayKey}); err != nil || !r.Good {
		t.Errorf("got %+v, %v; want it good", r, err)
	}
}

// A backup from the future is told and not refused: it may be the only one.
func TestVerifyFutureIsAWarning(t *testing.T) {
	s := filled(t, t.TempDir())
	f := folder(t, s)
	f.Now = func() time.Time { return day0.AddDate(0, 0, 40) }
	good := take(t, f, s)
	r, err := Verify(t.Context(), good.File, Want{Key: relayKey, Now: func() time.Time { return day0 }})
	last := r.Checks[len(r.Checks)-1]
	if err != nil || !r.Good || last.Name != CheckDate || !strings.Contains(last.Text, "WARNING") {
		t.Errorf("got %+v, %v; want a good file with a warning", r, err)
	}
}

// A receipt that cannot be used is a fault of its own; the file is looked at all
// the same.
func TestVerifyBadReceipt(t *testing.T) {
	s := filled(t, t.TempDir())
	good := take(t, folder(t, s), s)
	text := string(mustRead(t, good.File+".json"))
	for name, receipt := range map[string]string{
		"empty":             "",
		"no JSON":           "relay backup",
		"huge":              text + strings.Repeat(" ", maxReceipt),
		"another type":      strings.Replace(text, "relay-backup", "relay-restore", 1),
		"a newer one":       strings.Replace(text, `"v": 1`, `"v": 2`, 1),
		"a member twice":    strings.Replace(text, `"v": 1,`, `"v": 1, "v": 1,`, 1),
		"a number too big":  strings.Replace(text, `"n": 1`, `"n": 9223372036854775807`, 1),
		"a negative number": strings.Replace(text, `"n": 1`, `"n": -1`, 1),
		"a hash in capital": strings.Replace(text, good.SHA256, strings.ToUpper(good.SHA256), 1),
		"another key's":     strings.Replace(text, good.Fingerprint, secret("x").Public().Fingerprint(), 1),
		"no file":           strings.Replace(text, good.File, "", 1),
	} {
		path := filepath.Join(t.TempDir(), "backup.db")
		mustWrite(t, path, mustRead(t, good.File))
		mustWrite(t, path+".json", []byte(receipt))
		r, err := Verify(t.Context(), path, Want{Key: relayKey})
		if err != nil || failures(r) != "receipt" {
			t.Errorf("%s: got %q, %v; want a bad receipt alone: %+v", name, failures(r), err, r.Checks)
		}
	}
	path := filepath.Join(t.TempDir(), "backup.db")
	mustWrite(t, path, mustRead(t, good.File))
	if err := os.Mkdir(path+".json", 0o700); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(t.Context(), path, Want{Key: relayKey}); err != nil || failures(r) != "receipt" {
		t.Errorf("a folder: got %q, %v; want a bad receipt", failures(r), err)
	}
}

// A receipt that lies about one thing is found out, and by which check.
func TestVerifyLyingReceipt(t *testing.T) {
	s := filled(t, t.TempDir())
	good := take(t, folder(t, s), s)
	for name, c := range map[string]struct {
		lie  func(*Receipt)
		want string
	}{
		"the size":     {func(r *Receipt) { r.Bytes++ }, "sha256"},
		"the hash":     {func(r *Receipt) { r.SHA256 = r.Contents }, "sha256"},
		"the epoch":    {func(r *Receipt) { r.Epoch = "another" }, "facts"},
		"the items":    {func(r *Receipt) { r.Items++ }, "facts"},
		"the hosts":    {func(r *Receipt) { r.Enrolments-- }, "facts"},
		"the schema":   {func(r *Receipt) { r.Schema = 1 }, "facts"},
		"the contents": {func(r *Receipt) { r.Contents = r.SHA256 }, "items"},
		"the key": {func(r *Receipt) {
			k := secret("another").Public()
			r.RelayKey, r.Fingerprint = k.String(), k.Fingerprint()
		}, "facts"},
		"encryption": {func(r *Receipt) { r.Encrypted, r.PlainSHA256 = true, r.SHA256 }, "receipt"},
	} {
		path := filepath.Join(t.TempDir(), "backup.db")
		mustWrite(t, path, mustRead(t, good.File))
		lying := good
		c.lie(&lying)
		b, err := lying.encode()
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, path+".json", b)
		if r, err := Verify(t.Context(), path, Want{Key: relayKey}); err != nil || failures(r) != c.want {
			t.Errorf("%s: got %q, %v; want %s", name, failures(r), err, c.want)
		}
	}
}

func FuzzReceipt(f *testing.F) {
	r := Receipt{V: 1, Type: receiptType, At: day0, File: "/b/relay-20261130T031700Z-000001.db", N: 1, Bytes: 1, SHA256: strings.Repeat("0a", 32),
		RelayKey: relayKey.String(), Fingerprint: relayKey.Fingerprint(), Schema: 2, Verified: true}
	b, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"v":1,"type":"relay-backup","file":"../../etc/passwd"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseReceipt(b)
		if err != nil {
			return
		}
		if r.N < 0 || r.N > maxN || r.Bytes < 1 || r.Fingerprint != r.key.Fingerprint() || filepath.Base(r.File) == "/" {
			t.Errorf("got %+v; want it refused", r)
		}
		again, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxReceipt {
			return
		}
		if r2, err := parseReceipt(again); err != nil || r2.N != r.N || r2.key != r.key || r2.SHA256 != r.SHA256 {
			t.Errorf("got %+v, %v; want what was written", r2, err)
		}
	})
}

// A store that no relay served for days has an old heartbeat, and its backup is of
// today all the same.
func TestTakenAt(t *testing.T) {
	beat := day0
	for _, tt := range []struct {
		name    string
		receipt *Receipt
		want    time.Time
	}{
		{"no receipt", nil, beat},
		{"taken later", &Receipt{At: beat.Add(72 * time.Hour)}, beat.Add(72 * time.Hour)},
		{"by a clock that was behind", &Receipt{At: beat.Add(-time.Hour)}, beat},
	} {
		r := Report{Receipt: tt.receipt}
		r.Info.Heartbeat = beat
		if got := r.TakenAt(); !got.Equal(tt.want) {
			t.Errorf("%s: got %v; want %v", tt.name, got, tt.want)
		}
	}
}
