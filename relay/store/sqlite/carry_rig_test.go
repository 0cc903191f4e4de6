package sqlite

import (
	"context"
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
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Times of the stories here: the backup is taken between the first two.
var (
	early    = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	late     = early.Add(time.Hour)
	restored = early.Add(48 * time.Hour)
)

// story is a write in a story; it may run more than once.
type story func(tx store.Tx) error

func all(parts ...story) story {
	return func(tx store.Tx) error {
		for _, p := range parts {
			if err := p(tx); err != nil {
				return err
			}
		}
		return nil
	}
}

func key(l string) wire.PublicKey { return storetest.Key(l) }

func enrol(label string) story { return enrolAs(label, label, "") }

func enrolAs(label, name, account string) story {
	return func(tx store.Tx) error {
		return tx.PutEnrolment(store.Enrolment{Key: key(label), Name: name, Account: account, AuthorizedBy: "host-key", EnrolledAt: early})
	}
}

func revoke(label string, at time.Time) story {
	return func(tx store.Tx) error { _, err := tx.Revoke(key(label), at); return err }
}

func pushed(target, sender, id string) story {
	return func(tx store.Tx) error { return push(tx, storetest.Mail(key(target), key(sender), id, 300)) }
}

func rotated(from, to string, at time.Time) story {
	return func(tx store.Tx) error {
		_, err := tx.Rotate(store.Rotation{Old: key(from), New: key(to), Name: from, Record: []byte("rotation " + from + to), At: at})
		return err
	}
}

func listed(target string, iat time.Time, senders ...string) story {
	l := store.SenderList{Target: key(target), IAT: iat, Record: []byte("list " + strings.Join(senders, " ")), Sig: "sig"}
	for _, s := range senders {
		l.Senders = append(l.Senders, key(s))
	}
	return func(tx store.Tx) error { return tx.PutSenderList(l) }
}

func advertised(host, what string, at time.Time) story {
	return func(tx store.Tx) error {
		return errors.Join(tx.PutEncKey(key(host), host, store.EncKey{EncPub: "v1 " + what, Sig: "sig", At: at}),
			tx.PutEncAd(key(host), store.EncAd{Record: []byte("v2 " + what), Sig: "sig", At: at}))
	}
}

func denial4(fp, source, reason string) story {
	return func(tx store.Tx) error {
		return tx.AddDenial(store.Denial{HostFP: fp, Source: source, Reason: reason, AddedAt: early})
	}
}

func noDenials(tx store.Tx) error { return tx.(*txOfTest).sql("DELETE FROM deny") }

func logged(op, receipt string, at time.Time) story {
	return func(tx store.Tx) error { return tx.AppendLog(at, op, []byte(receipt)) }
}

// heldNow holds an item of a queue by its id.
func heldNow(target, id string, at time.Time, actor string) story {
	return func(tx store.Tx) error {
		seq := int64(0)
		if err := tx.Page(key(target), 0, 1000, func(it store.Item) bool {
			if it.ID == id {
				seq = it.Seq
			}
			return seq == 0
		}); err != nil {
			return err
		}
		return tx.Hold(key(target), seq, at, actor, "why "+id)
	}
}

func stated(name, value string) story {
	return func(tx store.Tx) error { return tx.SetState(name, []byte(value)) }
}

func started(job, holder string, at time.Time) story {
	return func(tx store.Tx) error {
		_, err := tx.StartRun(store.Run{Job: job, AskedBy: "schedule", Holder: holder, StartedAt: at})
		return err
	}
}

func ran(job string, at time.Time) story {
	return func(tx store.Tx) error {
		id, err := tx.StartRun(store.Run{Job: job, AskedBy: "schedule", Holder: "h", StartedAt: at})
		if err != nil {
			return err
		}
		return tx.FinishRun(store.Run{ID: id, FinishedAt: at.Add(time.Second), Outcome: store.OutcomeOK, Detail: "fine"}, 200)
	}
}

// txOfTest is a transaction that reaches below the contract.
type txOfTest struct{ *tx }

func (t *txOfTest) sql(q string, args ...any) error { _, err := t.c.exec(q, args...); return err }

func tell(t *testing.T, s *Store, stories ...story) {
	t.Helper()
	for i, fn := range stories {
		if fn == nil {
			continue
		}
		if err := s.Update(t.Context(), func(x store.Tx) error { return fn(&txOfTest{x.(*tx)}) }); err != nil {
			t.Fatalf("part %d of the story: %v", i, err)
		}
	}
}

// replaced tells a story with a backup in its middle, and answers the backup and
// the store that went on, both at rest.
func replaced(t *testing.T, before, after story) (copied, current string) {
	t.Helper()
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	tell(t, s, before)
	copied = filepath.Join(t.TempDir(), "copy.db")
	if err := s.Copy(t.Context(), copied, nil); err != nil {
		t.Fatal(err)
	}
	tell(t, s, after)
	checkedClose(t, s)
	return copied, foldedAt(t, o.Dir)
}

func foldedAt(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, FileName)
	if err := Fold(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// another is a store of its own, as one that was begun anew after a loss.
func another(t *testing.T, at time.Time, parts story) string {
	t.Helper()
	o := testOptions(t.TempDir())
	o.Now = func() time.Time { return at }
	s := mustOpen(t, o)
	tell(t, s, parts)
	checkedClose(t, s)
	return foldedAt(t, o.Dir)
}

// renewed renews the copy and opens what it became.
func renewed(t *testing.T, copied, current string, r Renewal) (*Store, Carried) {
	t.Helper()
	if r.Epoch == "" {
		r.Epoch = "new epoch"
	}
	if r.At.IsZero() {
		r.At = restored
	}
	if r.Finish == nil {
		r.Finish = func(c Carried) ([]byte, error) { return json.Marshal(c) }
	}
	was := map[string][]byte{}
	if current != "" {
		was[current] = readFile(t, current)
	}
	done, err := Renew(t.Context(), copied, current, r)
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	for path, b := range was {
		if !slices.Equal(b, readFile(t, path)) {
			t.Error("the replaced store's file has changed; want it as it was")
		}
	}
	for _, path := range []string{copied, current} {
		if list, err := Sidecars(path); err != nil || len(list) > 0 {
			t.Errorf("beside %s: got %v, %v; want nothing", path, list, err)
		}
	}
	var seal Seal
	_, _ = seal.Write(readFile(t, copied))
	if sealed, _ := seal.Whole(); sealed {
		t.Error("it carries the checksum of the copy that it was")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), readFile(t, copied), 0o600); err != nil {
		t.Fatal(err)
	}
	return mustOpen(t, testOptions(dir)), done
}

// looks runs fn over a store.
func looks(t *testing.T, s *Store, fn func(r store.Reader) error) {
	t.Helper()
	if err := s.View(context.Background(), fn); err != nil {
		t.Error(err)
	}
}

func wantLive(t *testing.T, r store.Reader, label string, want bool) {
	t.Helper()
	e, err := r.Enrolment(key(label))
	if err != nil && !errors.Is(err, store.ErrNotFound) || (err == nil && e.Live()) != want {
		t.Errorf("%s: got %+v, %v; want live %v", label, e, err, want)
	}
}

func wantQueue(t *testing.T, r store.Reader, target string, want ...string) {
	t.Helper()
	var ids []string
	if err := r.Page(key(target), 0, 1000, func(it store.Item) bool { ids = append(ids, it.ID); return true }); err != nil {
		t.Error(err)
	}
	if !slices.Equal(ids, want) {
		t.Errorf("queue of %s: got %v; want %v", target, ids, want)
	}
}

// wantHeld compares what is held: id, target and actor of each.
func wantHeld(t *testing.T, r store.Reader, want ...string) {
	t.Helper()
	var got []string
	labels := map[wire.PublicKey]string{key("alpha"): "alpha", key("beta"): "beta", key("beta2"): "beta2", key("gamma2"): "gamma2"}
	if err := r.Held(func(h store.HeldItem) bool {
		got = append(got, fmt.Sprintf("%s %s %s", h.ID, labels[h.Target], h.Actor))
		if d, err := r.Dedup(h.Sender, h.ID, h.Target); err != nil || d.Seq != h.Seq {
			t.Errorf("dedup of %s: got %+v, %v; want its row with seq %d", h.ID, d, err, h.Seq)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("held: got %q; want %q", got, want)
	}
}
