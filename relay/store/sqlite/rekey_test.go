package sqlite

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/storetest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func mustKey(t *testing.T) wire.PrivateKey {
	t.Helper()
	k, err := wire.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestRekey binds a store to a new key: its mail, numbers and hosts stay, every
// notice that waits, in a queue or held, verifies by the new key alone, and what
// a sender was told before is not told again.
func TestRekey(t *testing.T) {
	t.Parallel()
	old, next := mustKey(t), mustKey(t)
	o := testOptions(t.TempDir())
	o.Key = old.Public()
	s := mustOpen(t, o)
	defer checkedClose(t, s)
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	host, other := storetest.Key("host"), storetest.Key("other")
	notice := func(id string) store.Item {
		id, body := wire.MakeExpiryNotice(old, id, other, at, at.Add(time.Hour))
		return store.Item{Target: host, Kind: store.KindExpired, ID: id, Sender: old.Public(), Hash: wire.Hash(body), Size: int64(len(body)),
			AcceptedAt: at, ExpiresAt: at.Add(1000 * time.Hour), Wire: body}
	}
	broken := notice("broken")
	broken.Wire = []byte("no notice at all")
	broken.Hash, broken.Size = wire.Hash(broken.Wire), int64(len(broken.Wire))
	seqs := map[string]int64{}
	var before store.Info
	if err := s.Update(t.Context(), func(tx store.Tx) (err error) {
		if before, err = tx.Info(); err != nil {
			return err
		}
		if err := tx.PutEnrolment(store.Enrolment{Key: host, Name: "host", Account: "acme", AuthorizedBy: "test", EnrolledAt: at}); err != nil {
			return err
		}
		for _, it := range []store.Item{notice("taken"), notice("queued"), notice("held"), broken, storetest.Mail(host, other, "mail", 500)} {
			if seqs[it.ID], err = tx.Insert(it); err != nil {
				return err
			}
			if it.ID == notice("taken").ID {
				if _, err := tx.AckThrough(host, seqs[it.ID]); err != nil {
					return err
				}
			}
		}
		return tx.Hold(host, seqs[notice("held").ID], at, "operator", "reason")
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Rekey(t.Context(), next.Public(), next, at, "test", ""); !errors.Is(err, ErrOtherKey) {
		t.Errorf("from another key: got %v; want ErrOtherKey", err)
	}
	did, err := s.Rekey(t.Context(), old.Public(), next, at.Add(time.Minute), "test", "the key was lost")
	if err != nil {
		t.Fatal(err)
	}
	if did.Notices != 2 || did.NoticesLeft != 1 || did.From != old.Public().Fingerprint() || did.To != next.Public().Fingerprint() ||
		did.FromEpoch != before.Epoch || did.Epoch == before.Epoch {
		t.Errorf("got %+v", did)
	}
	if err := s.View(t.Context(), func(r store.Reader) error {
		in, err := r.Info()
		if err != nil || in.RelayKey != next.Public() || in.Epoch != did.Epoch || !in.Heartbeat.Equal(at.Add(time.Minute)) {
			t.Errorf("info: got %+v, %v", in, err)
		}
		var items []store.Item
		if err := r.Page(host, 0, 100, func(it store.Item) bool { items = append(items, it); return true }); err != nil {
			return err
		}
		if err := r.Held(func(h store.HeldItem) bool { items = append(items, h.Item); return true }); err != nil {
			return err
		}
		if len(items) != 4 {
			t.Fatalf("got %d items; want 4", len(items))
		}
		for _, it := range items {
			if it.Seq != seqs[it.ID] || it.Hash != wire.Hash(it.Wire) {
				t.Errorf("%s: got seq %d; want %d, and the hash of its wire", it.ID, it.Seq, seqs[it.ID])
			}
			n, err := wire.ParseExpiryNotice(it.Wire, next.Public())
			if it.ID == notice("queued").ID || it.ID == notice("held").ID {
				if err != nil || n.ID() != it.ID || !n.AcceptedAt.Equal(at) || !n.ExpiredAt.Equal(at.Add(time.Hour)) {
					t.Errorf("%s: got %+v, %v; want the same notice by the new key", it.ID, n, err)
				}
			}
			if it.Kind == store.KindExpired && it.Sender != next.Public() {
				t.Errorf("%s: its sender is %s; want the relay's new key", it.ID, it.Sender)
			}
		}
		for _, id := range []string{"taken", "queued", "held"} {
			if _, err := r.Dedup(next.Public(), notice(id).ID, host); err != nil {
				t.Errorf("what is remembered of %s: %v", id, err)
			}
		}
		u, err := r.ShareUsage(host, old.Public())
		if err != nil || u != (store.Usage{}) {
			t.Errorf("the old key's share: got %+v, %v; want none", u, err)
		}
		log, err := r.Log("rekey", 0, 2)
		if err != nil || len(log) != 1 {
			t.Fatalf("log: got %v, %v", log, err)
		}
		var logged Rekeyed
		if err := json.Unmarshal(log[0].Receipt, &logged); err != nil || logged != did {
			t.Errorf("log: got %+v, %v; want %+v", logged, err, did)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRekeyOfManyNotices signs more of them than it has in memory at once.
func TestRekeyOfManyNotices(t *testing.T) {
	t.Parallel()
	old, next := mustKey(t), mustKey(t)
	o := testOptions(t.TempDir())
	o.Key = old.Public()
	s := mustOpen(t, o)
	defer checkedClose(t, s)
	targets := []wire.PublicKey{storetest.Key("one"), storetest.Key("two")}
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		for n := range noticesAtOnce {
			for _, target := range targets {
				id, body := wire.MakeExpiryNotice(old, fmt.Sprint("m", n), storetest.Key("three"), early, late)
				if _, err := tx.Insert(store.Item{Target: target, Kind: store.KindExpired, ID: id, Sender: old.Public(), Hash: wire.Hash(body),
					Size: int64(len(body)), AcceptedAt: early, ExpiresAt: restored, Wire: body}); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	did, err := s.Rekey(t.Context(), old.Public(), next, late, "test", "")
	if want := int64(2 * noticesAtOnce); err != nil || did.Notices != want || did.NoticesLeft != 0 {
		t.Errorf("got %+v, %v; want %d signed again", did, err, want)
	}
	looks(t, s, func(r store.Reader) error {
		for _, target := range targets {
			if u, err := r.ShareUsage(target, next.Public()); err != nil || u.Items != noticesAtOnce {
				t.Errorf("got %+v, %v; want all of them by the new key", u, err)
			}
		}
		return nil
	})
}
