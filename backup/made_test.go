package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// secret is a key that is the same in every run and process.
func secret(label string) wire.PrivateKey {
	sum := sha256.Sum256([]byte("backup test " + label))
	k, err := wire.ParsePrivateKey(wire.EncodeBase64(sum[:]))
	if err != nil {
		panic(err)
	}
	return k
}

var relayKey = secret("relay").Public()

var day0 = time.Date(2026, 11, 30, 3, 17, 0, 0, time.UTC)

// openStore opens the store in dir, or makes one.
func openStore(t testing.TB, dir string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), sqlite.Options{Dir: dir, Key: relayKey, LockWait: 10 * time.Second, Now: func() time.Time { return day0 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && err != store.ErrClosed {
			t.Error(err)
		}
	})
	return s
}

// put queues an item of so many bytes.
func put(t testing.TB, s *sqlite.Store, target wire.PublicKey, id string, size int) {
	t.Helper()
	body := bytes.Repeat([]byte(id+" "), size/(len(id)+1)+1)[:size]
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Insert(store.Item{Target: target, Kind: store.KindEnvelope, ID: id, Sender: secret("alpha").Public(), SenderHost: "alpha",
			Hash: wire.Hash(body), AcceptedAt: day0, ExpiresAt: day0.AddDate(0, 0, 14), Wire: body})
		return err
	})
}

func update(t testing.TB, s *sqlite.Store, fn func(tx store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

// filled is a store with some of everything that a backup holds.
func filled(t testing.TB, dir string) *sqlite.Store {
	t.Helper()
	s := openStore(t, dir)
	alpha, beta, gamma, old := secret("alpha"), secret("beta"), secret("gamma"), secret("old beta")
	enc, err := wire.GenerateEncKey()
	if err != nil {
		t.Fatal(err)
	}
	pub := enc.Public()
	update(t, s, func(tx store.Tx) error {
		for name, k := range map[string]wire.PrivateKey{"alpha": alpha, "beta": old, "gamma": gamma} {
			if err := tx.PutEnrolment(store.Enrolment{Key: k.Public(), Name: name, OwnerFP: "owner", AuthorizedBy: "host-key", EnrolledAt: day0}); err != nil {
				return err
			}
		}
		list, sig := wire.MakeSenderList(old, []wire.PublicKey{alpha.Public()}, day0)
		if err := tx.PutSenderList(store.SenderList{Target: old.Public(), Senders: []wire.PublicKey{alpha.Public()}, IAT: day0, Record: list, Sig: sig}); err != nil {
			return err
		}
		ad, sig := wire.MakeEncAd(alpha, "alpha", pub, day0, day0.AddDate(0, 0, 30))
		if err := tx.PutEncAd(alpha.Public(), store.EncAd{Record: ad, Sig: sig, At: day0}); err != nil {
			return err
		}
		return tx.PutEncKey(alpha.Public(), "alpha", store.EncKey{EncPub: pub.String(), Sig: alpha.Sign(wire.EncKeyV1Payload("alpha", pub)), At: day0})
	})
	for i := range 40 {
		put(t, s, old.Public(), fmt.Sprintf("item-%02d", i), 200+i*300)
	}
	update(t, s, func(tx store.Tx) error {
		doc := wire.MakeRotation(old, beta, "beta", pub, day0)
		if _, err := tx.Rotate(store.Rotation{Old: old.Public(), New: beta.Public(), Name: "beta", Record: doc, At: day0}); err != nil {
			return err
		}
		if _, err := tx.Revoke(gamma.Public(), day0); err != nil {
			return err
		}
		if err := tx.AppendLog(day0, "test", []byte(`{"text":"nothing but a log line"}`)); err != nil {
			return err
		}
		head, err := tx.Head(beta.Public())
		if err != nil {
			return err
		}
		if _, err := tx.AckThrough(beta.Public(), head-20); err != nil {
			return err
		}
		return tx.Hold(beta.Public(), head-3, day0, "tester", "to look at")
	})
	return s
}

// folder is the backup folder of a store, with a clock that stands.
func folder(t testing.TB, s *sqlite.Store) *Folder {
	t.Helper()
	return &Folder{Dir: filepath.Join(s.Dir(), "backups"), StoreDir: s.Dir(), Key: relayKey, Keep: 7, Version: "test",
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return day0 }}
}

// take makes a backup in the folder.
func take(t testing.TB, f *Folder, s Source) Receipt {
	t.Helper()
	r, err := f.Create(t.Context(), s, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// names lists what stands in a folder, sorted.
func names(t testing.TB, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func mustWrite(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// failures are the names of the checks that failed.
func failures(r Report) string {
	var list []string
	for _, c := range r.Checks {
		if !c.OK {
			list = append(list, c.Name)
		}
	}
	return strings.Join(list, ", ")
}
