package sqlite

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
)

// releasedSchemas are dumps of stores as binaries of each schema wrote them.
func releasedSchemas(t *testing.T) []string {
	t.Helper()
	dumps, err := filepath.Glob("testdata/schema_*.sql")
	steps, err2 := migrations()
	if err != nil || err2 != nil || len(dumps) != len(steps)-1 {
		t.Fatalf("got dumps %v of %d schemas, %v; want one of each but the newest", dumps, len(steps), errors.Join(err, err2))
	}
	return dumps
}

// restoreDump makes the store of a dump in a folder of its own.
func restoreDump(t *testing.T, dump string) (dir string) {
	t.Helper()
	dir = memDir(t)
	c, err := openConn(filepath.Join(dir, FileName), "rwc", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range newStore {
		if err := c.query(func(row) error { return nil }, q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.exec(string(readFile(t, dump))); err != nil {
		t.Fatalf("%s: %v", dump, err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rowsOf are the rows of a table by the columns that were asked for.
type rowsOf struct {
	columns []string
	rows    []string
}

// content lists the rows of all tables, save for the number of the schema; of a
// table that is in before, its columns of then.
func content(t *testing.T, c *conn, before map[string]rowsOf) map[string]rowsOf {
	t.Helper()
	read := func(query string, args ...any) (list []string) {
		t.Helper()
		if err := c.query(func(r row) error { list = append(list, r.text(0)); return nil }, query, args...); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return list
	}
	tables := map[string]rowsOf{}
	for _, table := range read("SELECT name FROM sqlite_schema WHERE type = 'table'") {
		columns := before[table].columns
		if columns == nil {
			columns = read("SELECT 'quote(' || name || ')' FROM pragma_table_info(?)", table)
		}
		rows := read("SELECT " + strings.Join(columns, " || ', ' || ") + " FROM " + table)
		tables[table] = rowsOf{columns, slices.DeleteFunc(rows, func(r string) bool { return strings.HasPrefix(r, "'schema_version'") })}
	}
	return tables
}

func contentAt(t *testing.T, dir string, before map[string]rowsOf) map[string]rowsOf {
	t.Helper()
	c, err := openConn(filepath.Join(dir, FileName), "rw", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	return content(t, c, before)
}

// sameRows fails the test unless all that stood before stands there now. Totals
// and sequences may have become more.
func sameRows(t *testing.T, when string, before, after map[string]rowsOf) {
	t.Helper()
	for _, table := range slices.Sorted(maps.Keys(before)) {
		was, is := before[table].rows, after[table].rows
		if table == "sqlite_sequence" || table == "totals" {
			is = slices.DeleteFunc(slices.Clone(is), func(r string) bool { return !slices.Contains(was, r) })
		}
		if !slices.Equal(was, is) {
			t.Errorf("%s: %s: got %q; want %q", when, table, is, was)
		}
	}
}

// A store of any earlier schema is brought to the newest with all it holds, and
// goes on as one that was made with it.
func TestReleasedSchemasAreMigrated(t *testing.T) {
	t.Parallel()
	steps, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	for i, dump := range releasedSchemas(t) {
		t.Run(filepath.Base(dump), func(t *testing.T) {
			dir := restoreDump(t, dump)
			before := contentAt(t, dir, nil)
			if items, meta := len(before["items"].rows), len(before["meta"].rows); items < 5 || meta < 5 {
				t.Fatalf("got %d items, %d rows of meta in the dump; want a store with some of everything", items, meta)
			}
			s := mustOpen(t, testOptions(dir))
			if err := s.Check(t.Context()); err != nil {
				t.Errorf("check: %v", err)
			}
			if err := s.View(t.Context(), func(r store.Reader) error {
				in, err := r.Info()
				if in.Schema != len(steps) || in.Epoch != "epoch-1" || in.RelayKey != relayKey {
					t.Errorf("got %+v; want schema %d and the rest as it was in %d", in, len(steps), i+1)
				}
				sameRows(t, "migrated", before, content(t, r.(reader).c, before))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			goesOn(t, s)
			checkedClose(t, s)
			again := mustOpen(t, testOptions(dir))
			if got := queued(t, again, "alpha"); !slices.Equal(got, []string{"for ever", "receipt", "new"}) {
				t.Errorf("reopened: got %v; want what was left", got)
			}
		})
	}
}

// goesOn does with a dumped store what came with later schemas.
func goesOn(t *testing.T, s *Store) {
	t.Helper()
	alpha, beta := storetest.Key("alpha"), storetest.Key("beta")
	at := time.Date(2026, 10, 3, 12, 0, 0, 0, time.UTC)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for id, seq := range map[string]int64{"acked": 1, "queued": 2} {
			if d, err := tx.Dedup(beta, id, alpha); err != nil || d.Seq != seq {
				t.Errorf("dedup of %s: got %+v, %v; want seq %d", id, d, err, seq)
			}
		}
		if seq, err := tx.Insert(storetest.Mail(alpha, beta, "new", 10)); err != nil || seq != 5 {
			t.Errorf("insert: got seq %d, %v; want 5", seq, err)
		}
		_, err := tx.StartRun(store.Run{Job: "sweep", Holder: "p", StartedAt: at})
		session := store.Enrolment{Key: storetest.Key("epsilon"), Name: "epsilon", Account: "acme", AuthorizedBy: "jwks", ClientID: "client-1", EnrolledAt: at, SessionEnds: at.Add(time.Minute)}
		if err := tx.PutEnrolment(session); err != nil {
			return err
		}
		if list, err := tx.ByClientID("client-1", 9); err != nil || len(list) != 1 || list[0] != session {
			t.Errorf("hosts of a credential: got %+v, %v; want %+v", list, err, session)
		}
		if err := tx.PutDenyList(store.DenyList{ID: "jti", Source: "issuer", IAT: at, Expires: at.Add(time.Minute)}); err != nil {
			return err
		}
		return errors.Join(err, tx.Hold(alpha, 2, at, "operator", "reason"), tx.SetState("a", []byte("1")))
	}); err != nil {
		t.Fatalf("after the migration: %v", err)
	}
	looks(t, s, func(r store.Reader) error {
		for _, label := range []string{"alpha", "beta", "gamma", "gamma 2"} {
			list, err := r.ByFingerprint(storetest.Key(label).Fingerprint(), 5)
			if err != nil || len(list) != 1 || list[0].Key != storetest.Key(label) {
				t.Errorf("fingerprint of %s: got %+v, %v; want it found", label, list, err)
			}
		}
		first := at.AddDate(0, 0, -1) // of all that the dumps hold
		for what, want := range map[[2]string]string{{"fp", ""}: "blocked", {"x", "client"}: "listed", {"x", ""}: ""} {
			if d, err := r.Denied(what[0], what[1], first); gone(err) != nil || d.Reason != want {
				t.Errorf("denial of %q: got %+v, %v; want reason %q", what, d, err, want)
			}
		}
		if e, err := r.Enrolment(alpha); err != nil || e.ClientID != "" || !e.SessionEnds.IsZero() {
			t.Errorf("got %+v, %v; want neither credential nor session", e, err)
		}
		want := store.Queue{Target: alpha, Usage: store.Usage{Items: 4, Bytes: 150}, Held: store.Usage{Items: 1, Bytes: 60}, Oldest: first, Head: 5, Acked: 1}
		if q, err := r.Queue(alpha); err != nil || q != want {
			t.Errorf("got %+v, %v; want %+v", q, err, want)
		}
		return nil
	})
}

// What schema 2 held is counted as held, and can be released.
func TestHeldItemsOfSchema2(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testOptions(restoreDump(t, "testdata/schema_002.sql")))
	first := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	gamma, nobody := storetest.Key("gamma 2"), storetest.Key("nobody")
	looks(t, s, func(r store.Reader) error {
		for _, want := range []store.Queue{
			{Target: gamma, Usage: store.Usage{Items: 3, Bytes: 126}, Held: store.Usage{Items: 2, Bytes: 86}, Oldest: first.Add(time.Minute), Head: 3},
			{Target: nobody, Usage: store.Usage{Items: 1, Bytes: 25}, Held: store.Usage{Items: 1, Bytes: 25}, Head: 1},
		} {
			if q, err := r.Queue(want.Target); err != nil || q != want {
				t.Errorf("got %+v, %v; want %+v", q, err, want)
			}
		}
		if n, err := r.Totals(); err != nil || n.Held != 3 || n.Items != 8 {
			t.Errorf("totals: got %+v, %v; want 3 of 8 held", n, err)
		}
		return nil
	})
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		seq, err := tx.Release(gamma, 1)
		if seq != 4 {
			t.Errorf("released: got seq %d; want 4", seq)
		}
		_, err2 := tx.Release(nobody, 1)
		return errors.Join(err, err2, tx.RemoveDenial(1))
	}); err != nil {
		t.Fatal(err)
	}
}

// What schema 3 denied is denied, and a number that it gave to a denial that was
// removed is given to no other.
func TestDenialsOfSchema3(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, testOptions(restoreDump(t, "testdata/schema_003.sql")))
	at, mallory := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC), storetest.Key("mallory").Fingerprint()
	tell(t, s, denial4("new", "operator", "new"))
	looks(t, s, func(r store.Reader) error {
		for _, tt := range []struct {
			client string
			at     time.Time
			want   int64
		}{{"", at, 4}, {"", at.AddDate(9, 0, 0), 4}, {"client", at, 4}} {
			if d, err := r.Denied(mallory, tt.client, tt.at); err != nil || d.ID != tt.want {
				t.Errorf("denied with %q at %s: got %+v, %v; want number %d", tt.client, tt.at, d, err, tt.want)
			}
		}
		if d, err := r.Denied("new", "", at); err != nil || d.ID != 6 {
			t.Errorf("a new one: got %+v, %v; want number 6", d, err)
		}
		return r.DenialsNaming(mallory, "client", func(d store.Denial) bool {
			if d.ID != 3 || d.Reason != "both" {
				t.Errorf("naming both: got %+v; want number 3", d)
			}
			return true
		})
	})
}

// A migration that fails at any statement leaves the schema before it or, once
// it is committed, the one after it; the next start goes on from there.
func TestMigrationFailsWhole(t *testing.T) {
	t.Parallel()
	for i, dump := range releasedSchemas(t) {
		try := func(at int, applied bool) (f *injector, dir string, err error) {
			t.Helper()
			dir = restoreDump(t, dump)
			c, err := openConn(filepath.Join(dir, FileName), "rw", nil)
			if err != nil {
				t.Fatal(err)
			}
			f = &injector{}
			f.arm(at, applied, "")
			c.fault = f.hook
			err = migrate(c, false, testOptions(dir))
			if e := c.close(); e != nil {
				t.Fatal(e)
			}
			return f, dir, err
		}
		whole, _, err := try(-1, false)
		if err != nil {
			t.Fatal(err)
		}
		before := contentAt(t, restoreDump(t, dump), nil)
		writes := 0
		for at, query := range whole.record {
			if count(whole.record[:at], "COMMIT") > 0 {
				break // a step commits alone, and the next one is the next dump's
			}
			for _, applied := range []bool{false, true} {
				if storetest.RaceDetector && at%4 != 0 && query != "COMMIT" {
					continue // one goroutine: without the detector it is whole
				}
				if applied && (strings.HasPrefix(query, "SELECT") || strings.HasPrefix(query, "PRAGMA")) {
					continue // a read takes no place
				}
				what := fmt.Sprintf("%s: statement %d (applied %v) %.30q", filepath.Base(dump), at, applied, query)
				f, dir, err := try(at, applied)
				if !f.fired || !errors.Is(err, errInjected) {
					t.Errorf("%s: got %v, fired %v; want the fault answered", what, err, f.fired)
				}
				c, err := openConn(filepath.Join(dir, FileName), "rw", nil)
				if err != nil {
					t.Fatal(err)
				}
				in, err := reader{c}.Info()
				want := i + 1
				if query == "COMMIT" && applied {
					want++
				}
				if err != nil || in.Schema != want {
					t.Errorf("%s: got schema %d, %v; want %d", what, in.Schema, err, want)
				}
				if err := check(c, want); err != nil {
					t.Errorf("%s: check as of schema %d: %v", what, want, err)
				}
				if err := c.close(); err != nil {
					t.Fatal(err)
				}
				after := contentAt(t, dir, before)
				sameRows(t, what, before, after)
				if want == i+1 && len(after) != len(before) {
					t.Errorf("%s: got tables %v; want none of a later schema", what, slices.Sorted(maps.Keys(after)))
				}
				checkedClose(t, mustOpen(t, testOptions(dir))) // the next start
				if applied {
					writes++
				}
			}
		}
		if writes < 4 && !storetest.RaceDetector { // begin, the schema, its number, commit
			t.Errorf("%s: got %d writes of a migration; want more", dump, writes)
		}
	}
}
