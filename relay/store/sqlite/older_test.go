package sqlite

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

// changed is a dumped store that a statement has changed, at rest.
func changed(t *testing.T, dump string, queries ...string) string {
	t.Helper()
	path := foldedAt(t, restoreDump(t, dump))
	c, err := openConn(path, "rw", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queries {
		if _, err := c.exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if err := Fold(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func openFile(t *testing.T, path string) *File {
	t.Helper()
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// A file of an earlier schema sums up to what the binaries of that schema said,
// whose receipts are beside the backups, and to what it has once it is migrated.
func TestContentsOfOlderSchemas(t *testing.T) {
	t.Parallel()
	sums := map[string]string{
		"schema_001.sql": "173a1615f0719fc0b04491d9bcffa55ca3bf595c55ce503a2a62db91ba9f5fcb",
		"schema_002.sql": "5708c4748c09cbfe27b9b8af6ec959192f6df0c8519a71957d3712d2a8ca6cd0",
		"schema_003.sql": "f7164b81f4631e102ff642a12f382d4a4e7f6ff9a476ced3f7269a15ddc30cda",
	}
	sum := func(c Contents) string {
		h := sha256.New()
		for _, name := range slices.Sorted(maps.Keys(c.Parts)) {
			fmt.Fprintln(h, name, c.Parts[name].Rows, c.Parts[name].Digest)
		}
		return fmt.Sprintf("%x", h.Sum(nil))
	}
	for _, dump := range releasedSchemas(t) {
		before, err := openFile(t, foldedAt(t, restoreDump(t, dump))).Contents(t.Context(), Look{Wires: true})
		if want := sums[filepath.Base(dump)]; err != nil || sum(before) != want {
			t.Errorf("%s: got %s, %v; want %s", dump, sum(before), err, want)
		}
		after := mustContents(t, mustOpen(t, testOptions(restoreDump(t, dump))), Look{})
		if d := differing(before, after); d != nil || before.Live != after.Live || before.Revoked != after.Revoked {
			t.Errorf("%s: migrated, got %v different, %d live and %d revoked; want all as it was", dump, d, after.Live, after.Revoked)
		}
	}
}

// A file of an earlier schema is read as it is: its hosts, and who signed a list
// that a rotation moved before it was imported.
func TestFilesOfOlderSchemas(t *testing.T) {
	t.Parallel()
	mallory := storetest.Key("mallory")
	for _, dump := range releasedSchemas(t) {
		f := openFile(t, changed(t, dump, fmt.Sprintf(`UPDATE sender_lists SET record = CAST('{"host_pubkey":"%s"}' AS BLOB)`, mallory)))
		if err := f.View(func(r store.Reader) error {
			e, err := r.Enrolment(mallory)
			list, err2 := r.LiveByName("alpha", 9)
			one, err3 := r.LiveInAccount("acme", "alpha")
			if e.Live() || len(list) != 1 || one != list[0] || one.ClientID != "" || !one.SessionEnds.IsZero() {
				t.Errorf("%s: got %+v, %+v, %+v; want mallory revoked and alpha found", dump, e, list, one)
			}
			return errors.Join(err, err2, err3)
		}); err != nil {
			t.Errorf("%s: %v", dump, err)
		}
		lists := 0
		if err := f.Signed(t.Context(), func(s Signed) error {
			if s.What == SignedSenders {
				lists++
				if !oneOf(s.Signers, mallory) {
					t.Errorf("%s: got signers %v; want the revoked key, which the list names", dump, s.Signers)
				}
			}
			return nil
		}); err != nil || lists == 0 {
			t.Errorf("%s: %d lists, %v", dump, lists, err)
		}
		if err := f.Check(t.Context()); err != nil {
			t.Errorf("%s: check: %v", dump, err)
		}
		if n, table, err := f.BadTimes(t.Context()); n != 0 || err != nil {
			t.Errorf("%s: bad times: got %d in %s, %v", dump, n, table, err)
		}
	}
}
