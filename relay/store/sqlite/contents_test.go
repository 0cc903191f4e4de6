package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// fullStore is a store with something in every part.
func fullStore(t *testing.T) *Store {
	t.Helper()
	s := mustOpen(t, testOptions(t.TempDir()))
	at := time.UnixMilli(1_000_000).UTC()
	key := storetest.Key
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		var errs []error
		for _, name := range []string{"a", "b", "gone", "old"} {
			errs = append(errs, tx.PutEnrolment(store.Enrolment{Key: key(name), Name: name, AuthorizedBy: "test", EnrolledAt: at}))
		}
		for i := range 20 {
			_, err := tx.Insert(storetest.Mail(key("ab"[i%2:i%2+1]), key("old"), fmt.Sprint("mail ", i), 100+i))
			errs = append(errs, err)
		}
		_, err := tx.AckThrough(key("a"), 2)
		errs = append(errs, err, tx.Hold(key("b"), 3, at, "test", "why"),
			tx.PutDenyList(store.DenyList{ID: "jti", Source: "s", IAT: at, Expires: at}))
		_, err = tx.Revoke(key("gone"), at)
		errs = append(errs, err, tx.AddDenial(store.Denial{HostFP: "x", Reason: "r", Source: "s", AddedAt: at}),
			tx.PutSenderList(store.SenderList{Target: key("a"), Senders: []wire.PublicKey{key("b")}, IAT: at, Record: []byte("{}"), Sig: "s"}),
			tx.PutEncKey(key("a"), "a", store.EncKey{EncPub: "e", Sig: "s", At: at}),
			tx.PutEncAd(key("a"), store.EncAd{Record: []byte("{}"), Sig: "s", At: at}))
		_, err = tx.Rotate(store.Rotation{Old: key("old"), New: key("new"), Name: "old", Record: []byte("{}"), At: at})
		return errors.Join(append(errs, err)...)
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustContents(t *testing.T, s *Store, l Look) Contents {
	t.Helper()
	c, err := s.Contents(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// differing lists the parts of two contents that are not the same.
func differing(a, b Contents) (names []string) {
	for _, p := range parts {
		if a.Parts[p.name] != b.Parts[p.name] {
			names = append(names, p.name)
		}
	}
	return names
}

// What a copy holds is what its store holds, whatever is read of it.
func TestContentsOfACopy(t *testing.T) {
	t.Parallel()
	s := fullStore(t)
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Copy(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	told := int64(0)
	want := mustContents(t, s, Look{Wires: true, Progress: func(n int64) { told = n }})
	for _, wires := range []bool{false, true} {
		got, err := f.Contents(t.Context(), Look{Wires: wires})
		if d := differing(want, got); err != nil || d != nil {
			t.Errorf("wires %v: got %v different, %v; want nothing", wires, d, err)
		}
	}
	for _, p := range parts {
		if want.Parts[p.name].Rows == 0 {
			t.Errorf("%s: got no rows; want some, or this shows nothing", p.name)
		}
	}
	if want.Live != 3 || want.Revoked != 2 || want.Head != 10 || want.BadWires != 0 || len(want.Queues) != 2 {
		t.Errorf("got %+v", want)
	}
	if told != 0 { // fewer rows than it takes to tell
		t.Errorf("got told of %d rows", told)
	}
}

// A change of any value, or a row less, changes its part and no other.
func TestContentsNoticeEveryValue(t *testing.T) {
	t.Parallel()
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			s := fullStore(t)
			before := mustContents(t, s, Look{})
			first := fmt.Sprintf(" WHERE (%s) = (SELECT %s FROM %s ORDER BY %s LIMIT 1)", p.order, p.order, p.from, p.order)
			changes := []string{"DELETE FROM " + p.from + first}
			for column := range strings.SplitSeq(p.columns, ", ") {
				other := fmt.Sprintf("CASE typeof(%[1]s) WHEN 'integer' THEN %[1]s + 1000 WHEN 'blob' THEN randomblob(32) WHEN 'text' THEN %[1]s || 'x' ELSE '7' END", column)
				if column == "kind" {
					other = "'receipt'"
				}
				changes = append(changes, fmt.Sprintf("UPDATE %s SET %s = %s%s", p.from, column, other, first))
			}
			undo := errors.New("undo")
			for _, query := range changes {
				err := s.Update(t.Context(), func(x store.Tx) error {
					c := x.(*tx).c
					if n, err := c.exec(query); err != nil || n != 1 {
						return fmt.Errorf("%d rows: %w", n, err)
					}
					after, err := contents(t.Context(), c, 0, Look{})
					if err != nil {
						return err
					}
					if d := differing(before, after); len(d) != 1 || d[0] != p.name {
						t.Errorf("%s: got %v different; want %s", query, d, p.name)
					}
					return undo
				})
				if !errors.Is(err, undo) {
					t.Errorf("%s: %v", query, err)
				}
			}
		})
	}
}

func TestContentsNoticeAFlippedByte(t *testing.T) {
	t.Parallel()
	s := fullStore(t)
	undo := errors.New("undo")
	err := s.Update(t.Context(), func(x store.Tx) error {
		c := x.(*tx).c
		if _, err := c.exec("UPDATE items SET wire = zeroblob(bytes) WHERE seq = 4"); err != nil {
			return err
		}
		got, err := contents(t.Context(), c, 0, Look{Wires: true})
		if err != nil {
			return err
		}
		if want := "seq 4 for " + storetest.Key("a").Fingerprint(); got.BadWires != 2 || got.BadWire != want && got.BadWire != "seq 4 for "+storetest.Key("b").Fingerprint() {
			t.Errorf("got %d bad, the first %q; want 2", got.BadWires, got.BadWire)
		}
		return undo
	})
	if !errors.Is(err, undo) {
		t.Error(err)
	}
}

// What names an excepted key is as if it were not there.
func TestContentsExcept(t *testing.T) {
	t.Parallel()
	s := fullStore(t)
	before := mustContents(t, s, Look{})
	guest := storetest.Key("guest")
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		_, a := tx.Insert(storetest.Mail(guest, storetest.Key("a"), "to", 10))
		_, b := tx.Insert(storetest.Mail(guest, guest, "own", 10))
		return errors.Join(a, b,
			tx.PutEnrolment(store.Enrolment{Key: guest, Name: "guest", AuthorizedBy: "test", EnrolledAt: time.UnixMilli(1)}),
			tx.PutSenderList(store.SenderList{Target: guest, IAT: time.UnixMilli(1), Record: []byte("{}"), Sig: "s"}))
	}); err != nil {
		t.Fatal(err)
	}
	if d := differing(before, mustContents(t, s, Look{})); len(d) == 0 {
		t.Error("got no difference without the exception; want some, or this shows nothing")
	}
	after := mustContents(t, s, Look{Except: []wire.PublicKey{guest}})
	if d := differing(before, after); d != nil || after.Live != before.Live || after.Head != before.Head {
		t.Errorf("got %v different and %+v; want all as before", d, after)
	}
}

// A read of everything ends with its context, and the store goes on.
func TestLongReadsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := fullStore(t)
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Copy(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err = f.Contents(ctx, Look{})
	for what, err := range map[string]error{"contents": err, "check": f.Check(ctx)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v; want context.Canceled", what, err)
		}
	}
	if err := f.Check(t.Context()); err != nil {
		t.Errorf("the file, looked at again: %v", err)
	}
	if err := s.send(t.Context(), &call{direct: func(c *conn) error { // one statement that takes for ever
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, stop)
		err := c.during(ctx, func() error {
			return c.query(func(row) error { return nil }, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("an endless statement: got %v; want context.Canceled", err)
		}
		c.failed = nil
		return nil
	}}); err != nil {
		t.Error(err)
	}
	mustInsert(t, s, "a", "after an interrupt")
}
