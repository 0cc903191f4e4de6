package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	sqlite3 "modernc.org/sqlite/lib"
)

// Renewal says how a backup's file becomes the next store.
type Renewal struct {
	Epoch string    // the new one
	At    time.Time // of the restore
	// Now tells the time of the heartbeat, read when all is done: a start soon
	// after finds it fresh however long the restore took. Nil stands for At.
	Now     func() time.Time
	Consume string // a path restored through MBX_RELAY_RESTORE_FROM, or ""
	// Finish is asked, inside the transaction, for the receipt to log under
	// "restore"; nil logs none.
	Finish func(Carried) ([]byte, error)
}

// Carried counts what a restored store took over from the one it replaced.
type Carried struct {
	Revocations   int `json:"revocations"`
	Denials       int `json:"denials"`
	DenyLists     int `json:"deny_lists"`
	SenderLists   int `json:"sender_lists"`
	EncAds        int `json:"enc_ads"`        // v1
	EncAdRecords  int `json:"enc_ad_records"` // v2
	SeqFloors     int `json:"seq_floors"`
	Rotations     int `json:"rotations"`
	Held          int `json:"held"`
	Discarded     int `json:"discarded"` // after the backup, which has them: held
	LogLines      int `json:"log_lines"`
	RestoredPaths int `json:"restored_paths"`

	After     store.Totals `json:"-"` // of the renewed store
	NewerMail int64        `json:"-"` // queued in the replaced store, unknown to the backup
	HeldAgain int          `json:"-"` // held in the backup, no longer in the replaced store
	Warnings  []string     `json:"-"`
}

// ErrReplaced marks an error of Renew that is of the store which is replaced, and
// not of the one that is made. When it is Damaged too, that store holds what
// cannot be carried; a Renew without it goes through.
var ErrReplaced = errors.New("of the store that is replaced")

// errBackup marks an error of what the backup holds.
var errBackup = errors.New("of the backup")

// Names of what the state table keeps for a restore.
const (
	stateRestored = "restored_paths" // path -> time
	stateClock    = "clock"          // a suspicion about the clock, of the process that had it
	stateKeys     = "jwks"           // the issuer's keys: one that has left them stays away
	stateWanted   = "job-wanted:"    // then a job: it is due, whatever its schedule says
)

// Renew makes the store file at path, a fresh copy of a backup that nobody else
// opens, the successor of the store in the file current, which is at rest ("" for
// none): new epoch, new heartbeat, a backup due at once, and everything carried
// that seed 000 section 5 says. One transaction, checked in full before its
// commit; afterwards path is a finished file again.
func Renew(ctx context.Context, path, current string, r Renewal) (done Carried, err error) {
	var from *File
	if current != "" {
		if from, err = OpenFile(current); err != nil {
			return done, also(err, ErrReplaced)
		}
		defer func() { err = errors.Join(err, from.Close()) }()
	}
	if err := refuseForeign(path); err != nil {
		return done, err
	}
	c, err := openConn(path, "rw", renewPragmas)
	if err != nil {
		return done, err
	}
	defer func() {
		if !errors.Is(err, ErrReplaced) {
			err = plain(err, path)
		}
		err = errors.Join(err, c.close())
	}()
	backup, _ := (reader{c}).Info() // migrate says what is wrong with it
	c.failed = nil
	if err := migrate(c, false, Options{Now: func() time.Time { return r.At }}); err != nil {
		return done, err
	}
	t := newTx(c, func() int64 { return math.MaxInt64 }, func() int64 { return r.At.UnixMilli() })
	t.begin()
	if _, err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return done, err
	}
	y := &carry{t: t, r: r, backup: backup.Schema}
	if from != nil {
		y.from, y.schema = reader{from.c}, from.info.Schema
	}
	if err := y.during(ctx, func() error { return y.renew(ctx) }); err != nil {
		if from != nil && from.c.failed != nil && ctx.Err() == nil {
			err = also(plain(err, current), ErrReplaced)
		}
		c.failed = nil
		_, e := c.exec("ROLLBACK")
		return done, errors.Join(err, e)
	}
	_, err = c.exec("COMMIT")
	return y.done, err
}

// renewPragmas make a file that needs no log beside it once it is closed.
var renewPragmas = []string{
	"journal_mode(delete)", "synchronous(full)", "foreign_keys(on)", "trusted_schema(off)", "temp_store(file)", "cache_size(-16384)",
}

// carry is the work of one Renew.
type carry struct {
	t        *tx                     // on the copy of the backup
	from     reader                  // of the replaced store
	schema   int                     // of the replaced store, 0 when there is none
	backup   int                     // schema of the backup, as it was taken
	descends bool                    // the replaced store went on from what the backup holds
	still    map[store.ItemMark]bool // of the restored store: what the replaced one holds too
	r        Renewal
	done     Carried
}

// carriers take over one subject each, in an order that matters: no number is
// handed out before the floors stand; a name is free again once its revoked host
// gave it up; and what is told by key needs the rotations. since is the schema
// that the replaced store needs for it.
var carriers = []struct {
	what  string
	since int
	carry func(*carry) error
}{
	{"sequence floors", 1, (*carry).floors},
	{"revocations", 1, (*carry).revocations},
	{"rotations", 1, (*carry).rotations},
	{"denials", 1, (*carry).denials},
	{"deny lists", 4, (*carry).denyLists},
	{"sender lists", 1, (*carry).senderLists},
	{"v1 enc keys", 1, (*carry).encKeys},
	{"v2 enc ads", 1, (*carry).encAds},
	{"held items", 2, (*carry).held},
	{"discarded items", 3, (*carry).discarded},
	{"newer mail", 1, (*carry).newerMail},
	{"runs", 2, (*carry).runs},
	{"state", 2, (*carry).state},
	{"log", 1, (*carry).log},
}

// during runs fn, whose queries of either store end with ctx.
func (c *carry) during(ctx context.Context, fn func() error) error {
	if c.schema == 0 {
		return c.t.c.during(ctx, fn)
	}
	return c.t.c.during(ctx, func() error { return c.from.c.during(ctx, fn) })
}

func (c *carry) renew(ctx context.Context) (err error) {
	if c.schema > 0 {
		if c.descends, err = c.continues(); err != nil {
			return err
		}
	}
	for _, k := range carriers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.schema < k.since {
			continue
		}
		if err := k.carry(c); err != nil {
			return c.whose(fmt.Errorf("carry %s: %w", k.what, err))
		}
	}
	for _, set := range []func() error{
		func() error { return c.t.SetEpoch(c.r.Epoch) },
		c.endRuns, c.begin, c.report, c.t.counters.flush,
		func() error { return unseal(c.t.c) },
	} {
		if err := set(); err != nil {
			return err
		}
	}
	if err := check(c.t.c, 0); err != nil {
		err = fmt.Errorf("the restored store does not agree with itself: %w", err)
		if c.schema > 0 && errors.Is(err, ErrDamaged) { // the backup did, before anything was carried into it
			err = also(err, ErrReplaced)
		}
		return err
	}
	now := c.r.At
	if c.r.Now != nil {
		now = c.r.Now()
	}
	return errors.Join(c.t.SetHeartbeat(now), ctx.Err())
}

// whose marks an error of carrying that what is carried is at fault for: it does
// not fit, or cannot be decoded. A statement that failed is the fault of its own
// store otherwise, and Renew knows those of the replaced one.
func (c *carry) whose(err error) error {
	if c.from.c.failed != nil || errors.Is(err, errBackup) {
		return err
	}
	switch failed := c.t.c.failed; {
	case failed == nil:
	case code(failed) == sqlite3.SQLITE_CONSTRAINT, code(failed) == sqlite3.SQLITE_MISMATCH, code(failed) == sqlite3.SQLITE_TOOBIG:
	default:
		return err
	}
	return also(also(err, ErrDamaged), ErrReplaced)
}

// begin leaves the state a restored store starts with.
func (c *carry) begin() error {
	if c.r.Consume != "" {
		paths, err := restoredPaths(c.t.reader)
		if err != nil {
			return err
		}
		paths[c.r.Consume] = c.r.At.UTC()
		if err := c.t.setJSON(stateRestored, paths); err != nil {
			return err
		}
	}
	if c.schema < 2 { // what the process suspected and trusted that took the backup is long over
		if err := errors.Join(c.t.SetState(stateClock, nil), c.t.SetState(stateKeys, nil)); err != nil {
			return err
		}
	}
	return c.t.setJSON(stateWanted+"backup", "a restore")
}

// report logs the restore with what it carried.
func (c *carry) report() (err error) {
	if c.done.After, err = c.t.Totals(); err != nil || c.r.Finish == nil {
		return err
	}
	receipt, err := c.r.Finish(c.done)
	if err != nil {
		return err
	}
	return c.t.AppendLog(c.r.At, "restore", receipt)
}

func (t *tx) setJSON(name string, v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return t.SetState(name, value)
}

// floors keeps every sequence number above what either store handed out.
func (c *carry) floors() error {
	return c.from.c.query(func(r row) error {
		q, err := c.t.counters.queue(r.key(0))
		if err != nil {
			return err
		}
		if next := r.int(1); next > q.now.nextSeq {
			now := q.now
			now.nextSeq = next
			set(c.t.counters, q, now)
			c.done.SeqFloors++
		}
		return nil
	}, "SELECT target_pubkey, next_seq FROM seqs")
}

// newerMail counts what the replaced store had queued and the backup does not
// know: it comes back from its senders. The relay's own notices do not count.
func (c *carry) newerMail() error {
	return c.from.c.query(func(r row) error {
		_, err := c.t.Dedup(r.key(0), r.text(1), r.key(2))
		if errors.Is(err, store.ErrNotFound) {
			c.done.NewerMail++
			return nil
		}
		return err
	}, "SELECT sender_pubkey, item_id, target_pubkey FROM items WHERE kind <> ?", store.KindExpired)
}

// attempt undoes what fn did when it fails.
func (c *carry) attempt(fn func() error) error {
	c.t.next()
	if _, err := c.t.c.exec("SAVEPOINT attempt"); err != nil {
		return err
	}
	err := fn()
	if err != nil && c.t.c.failed == nil {
		c.t.back()
		if _, e := c.t.c.exec("ROLLBACK TO attempt"); e != nil {
			return errors.Join(err, e)
		}
	}
	if _, e := c.t.c.exec("RELEASE attempt"); e != nil {
		return errors.Join(err, e)
	}
	return err
}

func (c *carry) warn(format string, args ...any) {
	c.done.Warnings = append(c.done.Warnings, fmt.Sprintf(format, args...))
}

// rotatedAway reports whether a key has a successor.
func (c *carry) rotatedAway(key wire.PublicKey) (bool, error) {
	return c.t.c.one(func(row) {}, "SELECT 1 FROM rotations WHERE old_pubkey = ?", key)
}
