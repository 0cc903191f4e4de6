// Package sqlite is the relay's store: one file, one writer process.
//
// When a write returns nil, its change survives a crash and a power cut; when
// it returns an error, nothing of it is stored (save for
// store.ErrUnknownOutcome, which says so). The process holds relay.lock for
// as long as the store is open. Safe for concurrent use.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	driverpkg "modernc.org/sqlite"
)

// Names of what stands in a store folder.
const (
	FileName    = "relay.db"
	reserveName = "reserve"
)

// Options say how a store is opened. The zero value of each field is usable.
type Options struct {
	Dir string
	// Key is the relay's public key. A new store is bound to it, another
	// store's key is refused. The zero key opens an existing store whatever
	// its key is, and never creates one.
	Key wire.PublicKey
	// LockWait is how long to wait for the process that has the store; Waiting
	// is called once with what the lock file says of it.
	LockWait time.Duration
	Waiting  func(Holder)
	// Lock is the store's lock when the caller has it already. It is Open's
	// from then on, whatever Open answers.
	Lock *Lock

	Log *slog.Logger
	Now func() time.Time
	// SeqNow is the floor of new sequence numbers in milliseconds; nil means Now.
	SeqNow func() int64
	// Free tells the bytes left on the device and its size; nil asks the system.
	Free func(dir string) (free, size int64, err error)

	fault func(query string, done bool) error // for tests: fails a statement
}

// Store is the SQLite backend of store.Store.
type Store struct {
	dir, path string
	file      os.FileInfo // of the database as it was opened
	lock      *Lock
	log       *slog.Logger
	space     *space
	seqNow    func() int64
	fault     func(query string, done bool) error

	calls   chan *call
	closing chan struct{}
	closed  atomic.Bool
	callers atomic.Int64  // how many are in send
	written chan struct{} // closed when the writer has ended

	// The writer's own.
	w      *conn
	tx     *tx
	crowd  int         // how many callers to expect in a group
	pause  *time.Timer // of nextCall
	folded bool        // the log was folded since room became scarce
	unfold bool        // it is not to be folded by a commit

	readers chan *viewer
	opened  int // how many readers there are, in use or not
}

var _ store.Store = (*Store)(nil)

const readerConns = 4

// Open opens the store in o.Dir and creates it when there is none. It holds
// the store's lock until Close.
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.SeqNow == nil {
		o.SeqNow = func() int64 { return o.Now().UnixMilli() }
	}
	l := o.Lock
	defer func() {
		if err != nil && l != nil {
			err = errors.Join(err, l.Release())
		}
	}()
	if err := prepareDir(o.Dir, o.Key != wire.PublicKey{}); err != nil {
		return nil, err
	}
	// fdatasync makes a commit as durable as fsync does and leaves out the time
	// stamp. Where a system has none, fsync stays in force.
	_, _ = driverpkg.Fdatasync(true)
	if l == nil {
		if l, err = AcquireLock(ctx, o.Dir, o.LockWait, o.Waiting); err != nil {
			return nil, err
		}
	}
	s := &Store{
		dir: o.Dir, path: filepath.Join(o.Dir, FileName), lock: l, log: o.Log,
		space:  newSpace(o.Dir, o.Free, o.Log),
		seqNow: o.SeqNow, fault: o.fault,
		pause: time.NewTimer(time.Hour), calls: make(chan *call), closing: make(chan struct{}), written: make(chan struct{}),
		readers: make(chan *viewer, readerConns),
	}
	l = nil // it is s's
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
		}
	}()
	if err := s.open(o); err != nil {
		return nil, err
	}
	go s.write()
	return s, nil
}

func (s *Store) open(o Options) error {
	s.space.beforeOpen()
	if err := CutImport(s.dir); err != nil {
		return err
	}
	if err := sweepImport(s.dir); err != nil { // beside a store it only takes up room
		s.log.Warn("what an import that was cut off left stays", "err", err)
	}
	isNew, err := s.create(o)
	if err != nil {
		return err
	}
	if err := refuseForeign(s.path); err != nil {
		return err
	}
	if s.w, err = openConn(s.path, "rw", writerPragmas(s.space.logPages())); err != nil {
		return err
	}
	if s.file, err = os.Stat(s.path); err != nil {
		return err
	}
	if err := checkVersion(s.w); err != nil {
		return err
	}
	if err := migrate(s.w, isNew, o); err != nil {
		return plain(err, s.path)
	}
	if err := unseal(s.w); err != nil { // for want of room, say: the next copy makes a checksum of its own
		s.w.failed = nil
		s.log.Warn("the checksum of the backup that this store came from stays in it", "err", err)
	}
	s.w.fault = s.fault
	s.tx = newTx(s.w, s.space.headroom, s.seqNow)
	for range readerConns {
		r, err := openConn(s.path, "ro", readerPragmas())
		if err != nil {
			return err
		}
		s.readers <- newViewer(r)
		s.opened++
	}
	s.space.afterOpen()
	// Whoever opens a log does not know that it was folded, and would write behind
	// what is in it: command after command would take what acks need.
	s.foldWhenLow()
	return nil
}

// Exists reports whether a store stands in dir. An empty file is what a crash
// left of a store that never began.
func Exists(dir string) (bool, error) {
	st, err := os.Stat(filepath.Join(dir, FileName))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return st.Size() > 0, nil
}

func noStore(dir string) error {
	return fmt.Errorf("%s: %w; start one with: agentmbx relay serve --store-dir %s", dir, ErrNoStore, dir)
}

// create makes a private file for a new store, so that SQLite never creates
// one that others may read (-wal and -shm take over its mode), and settles what
// can only be settled before the first page is written.
func (s *Store) create(o Options) (isNew bool, err error) {
	exists, err := Exists(s.dir)
	if err != nil {
		return false, err
	}
	if exists {
		for _, suffix := range []string{"", "-wal", "-shm"} { // copied back by hand, perhaps
			_ = os.Chmod(s.path+suffix, 0o600) // someone else's file will say so when it is opened
		}
		return false, nil
	}
	if (o.Key == wire.PublicKey{}) {
		return false, noStore(s.dir)
	}
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	if err := f.Close(); err != nil {
		return false, err
	}
	c, err := openConn(s.path, "rw", nil)
	if err != nil {
		return false, err
	}
	for _, q := range newStore {
		if err = c.query(func(row) error { return nil }, q); err != nil {
			break
		}
	}
	return true, plain(errors.Join(err, c.close()), s.path)
}

// onlyOurs reports whether nothing stands in a folder but what a relay puts
// there before its store.
func onlyOurs(entries []os.DirEntry) bool {
	for _, e := range entries {
		if name := e.Name(); name != "relay.key" && name != "relay.lock" && name != "agentmbx.yaml" && name != "lost+found" {
			return false
		}
	}
	return true
}

// prepareDir makes the folder, or tightens one that is ours to tighten: one
// that holds a store, or nothing that is not ours.
func prepareDir(dir string, create bool) error {
	ours, err := Exists(dir)
	if err == nil && !ours && !create {
		return noStore(dir) // before anything, such as a lock file, is made in it
	}
	st, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return MakeFolder(dir)
	}
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if (ours || onlyOurs(entries)) && st.Mode().Perm()&0o077 != 0 {
		_ = os.Chmod(dir, 0o700) // a folder of someone else's stays as it is; the files in it are 0600
	}
	return nil
}

// Maintain folds the log back into the database and gives free pages back to
// the system, a bounded step of each. It is a job of a few milliseconds.
func (s *Store) Maintain(ctx context.Context) error {
	return s.send(ctx, &call{direct: func(c *conn) error {
		if !s.space.room() { // the room there is belongs to acks; foldWhenLow does what can be done
			return nil
		}
		for _, q := range []string{"PRAGMA incremental_vacuum(1000)", "PRAGMA wal_checkpoint(PASSIVE)"} {
			if err := c.query(func(row) error { return nil }, q); err != nil {
				return plain(err, s.path)
			}
		}
		return nil
	}})
}

// Size tells what the store takes and what is left.
func (s *Store) Size(context.Context) (z store.Size, err error) {
	// os.Stat opens nothing, so it cannot disturb SQLite's locks.
	for path, n := range map[string]*int64{s.path: &z.Data, s.path + "-wal": &z.Log} {
		st, err := os.Stat(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return z, err
		}
		if err == nil {
			*n = st.Size()
		}
	}
	z.Free, _, err = s.space.free(s.dir)
	z.Low = s.space.low.Load()
	return z, err
}

// Dir is the store's folder.
func (s *Store) Dir() string { return s.dir }

// Close answers whoever is being served, then closes the database and gives
// the lock back.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return store.ErrClosed
	}
	close(s.closing)
	<-s.written
	return s.release()
}

// release closes what is open: readers first, so that the writer is the last
// connection and folds the log into the database. On a full disk that would
// use up the room that the next start needs: then the readers, which may not
// fold, are the last, and the log stays.
func (s *Store) release() error {
	var errs []error
	if s.w != nil && !s.space.room() {
		errs = append(errs, s.w.close())
		s.w = nil
	}
	for ; s.opened > 0; s.opened-- {
		v := <-s.readers // waits for a View that is still running
		errs = append(errs, v.close())
	}
	if s.w != nil {
		errs = append(errs, s.w.close())
		s.w = nil
	}
	return errors.Join(append(errs, s.lock.Release())...)
}

// minVersion is the oldest SQLite this store was tried with; older ones have a
// fault in the reset of the write-ahead log that loses commits.
const minVersion = "3.51.3"

func checkVersion(c *conn) error {
	var have string
	if _, err := c.one(func(r row) { have = r.text(0) }, "SELECT sqlite_version()"); err != nil {
		return err
	}
	if !atLeast(have, minVersion) {
		return fmt.Errorf("this binary carries SQLite %s, the store needs %s or newer", have, minVersion)
	}
	return nil
}

func atLeast(have, want string) bool {
	var h, w [3]int
	_, errH := fmt.Sscanf(have, "%d.%d.%d", &h[0], &h[1], &h[2])
	_, errW := fmt.Sscanf(want, "%d.%d.%d", &w[0], &w[1], &w[2])
	if errH != nil || errW != nil {
		return false
	}
	for i := range h {
		if h[i] != w[i] {
			return h[i] > w[i]
		}
	}
	return true
}
