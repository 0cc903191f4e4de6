package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// newStore makes a store with these hosts enrolled, and lets more put into it
// whatever else it is to hold.
func (b *bench) newStore(ctx context.Context, name string, hosts []*host, more func(st *sqlite.Store) error) (dir string, err error) {
	b.made++
	dir = filepath.Join(b.dir, fmt.Sprintf("%s-%d", name, b.made))
	key, _, err := relay.LoadKey(dir, "", false)
	if err != nil {
		return "", err
	}
	st, err := sqlite.Open(ctx, sqlite.Options{Dir: dir, Key: key.Public()})
	if err != nil {
		return "", err
	}
	err = st.Update(ctx, func(tx store.Tx) error {
		for _, h := range hosts {
			if err := enrol(tx, h.pub, h.name); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && more != nil {
		err = more(st)
	}
	return dir, errors.Join(err, st.Close())
}

func enrol(tx store.Tx, key wire.PublicKey, name string) error {
	return tx.PutEnrolment(store.Enrolment{Key: key, Name: name, AuthorizedBy: "host-key", EnrolledAt: time.Now()})
}

// fill enrols more hosts and puts items into all of their queues, a few from
// each of four senders. It goes by key, which leaves the same rows behind as
// mail in any other order would, and takes minutes less.
func (b *bench) fill(ctx context.Context, st *sqlite.Store, enrolments, items int) error {
	keys := make([]wire.PublicKey, enrolments)
	for i := range keys {
		if _, err := rand.Read(keys[i][:]); err != nil { // nobody will sign with these
			return err
		}
	}
	slices.SortFunc(keys, func(a, b wire.PublicKey) int { return bytes.Compare(a[:], b[:]) })
	began := time.Now()
	const step = 1000
	for at := 0; at < enrolments; at += step {
		if err := st.Update(ctx, func(tx store.Tx) error {
			for i := at; i < min(at+step, enrolments); i++ {
				if err := enrol(tx, keys[i], fmt.Sprintf("host-%d", i)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.talk, "  enrolled %d hosts in %s\n", enrolments, time.Since(began).Round(time.Second))
	for at := 0; at < items; at += step {
		now := time.Now().UTC().Truncate(time.Millisecond)
		if err := st.Update(ctx, func(tx store.Tx) error {
			for i := at; i < min(at+step, items); i++ {
				to := int(int64(i) * int64(enrolments) / int64(items))
				if err := b.insert(tx, keys[to], keys[(to+1+i%4)%enrolments], now); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if at%250_000 == 0 && at > 0 {
			fmt.Fprintf(b.talk, "  filled %d of %d items in %s\n", at, items, time.Since(began).Round(time.Second))
		}
	}
	return st.Maintain(ctx)
}

func (b *bench) insert(tx store.Tx, target, sender wire.PublicKey, now time.Time) error {
	id, w := b.mail.next()
	_, err := tx.Insert(store.Item{
		Target: target, Kind: store.KindEnvelope, ID: id, Sender: sender, SenderHost: "host", Hash: wire.Hash(w),
		Size: int64(len(w)), AcceptedAt: now, ExpiresAt: now.Add(14 * 24 * time.Hour), Wire: w,
	})
	return err
}

// countItems reads the store's own count beside the relay that runs on it.
func countItems(ctx context.Context, dir string) (n int64, err error) {
	db, err := openDB(filepath.Join(dir, sqlite.FileName), "ro")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return n, db.QueryRowContext(ctx, "SELECT value FROM totals WHERE name = 'items'").Scan(&n)
}

// sizeOf is the room that a store's files take.
func sizeOf(dir string) (n int64) {
	for _, name := range []string{sqlite.FileName, sqlite.FileName + "-wal"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil {
			n += st.Size()
		}
	}
	return n
}
