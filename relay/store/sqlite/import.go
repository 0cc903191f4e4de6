package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Errors of Import that a command may test for.
var (
	ErrStoreThere = errors.New("there is a store already")
	ErrInUse      = errors.New("the store is in use")
	// ErrDoubt comes with what was imported: the new store stands.
	ErrDoubt = errors.New("the store is imported, but perhaps not safe from a power cut yet")
)

// What an import that was cut off leaves in the store folder: the store being
// built, and a private copy of the source with its log.
const (
	importPartial = FileName + ".import.partial"
	importSource  = FileName + ".import.source.partial"
)

// freshBeat is how old the last heartbeat is of a relay that has surely ended:
// three times as old as its relay would let it become.
const freshBeat = 90 * time.Second

// ImportOptions say what is imported, and where to.
type ImportOptions struct {
	File string // the relay.db of a TypeScript relay that was stopped
	Dir  string // the folder of the new store
	// Lock is the store's lock, which the caller holds and keeps. PreviewImport
	// needs none.
	Lock *Lock
	Key  wire.PublicKey // of the relay: a store of another key is refused
	// Force goes on over a heartbeat so young that the relay may still run.
	Force    bool
	Actor    string
	Now      func() time.Time                         // nil means time.Now
	Free     func(string) (free, size int64, _ error) // nil asks the system
	Progress func(stage string, done, total int64)
	// Before, which may be nil, runs once the new store is whole and before it
	// gets its name; its error ends the import.
	Before func() error

	step  func(name string)                   // for tests: what was just done
	fault func(query string, done bool) error // for tests: fails a statement
	was   os.FileInfo                         // of real, when it was opened
	real  string                              // File without links: SQLite looks for a log beside that
}

// Imported says what an import took over. It stands in the relay log under
// "import".
type Imported struct {
	V           int       `json:"v"`    // 1
	Type        string    `json:"type"` // "relay-import"
	At          time.Time `json:"at"`
	Actor       string    `json:"actor"`
	Source      string    `json:"source"`
	Schema      int       `json:"source_schema"`
	RelayKey    string    `json:"relay_pubkey"`
	Fingerprint string    `json:"relay_fingerprint"`
	Epoch       string    `json:"epoch"`
	// LastSign is the newest heartbeat of the source; zero when it had none.
	LastSign      time.Time `json:"last_sign,omitzero"`
	Enrolments    int64     `json:"enrolments"`
	Revoked       int64     `json:"revoked"` // of them
	SenderLists   int64     `json:"sender_lists"`
	EncAds        int64     `json:"enc_ads"`            // v1
	EncAdRecords  int64     `json:"enc_ad_records"`     // v2
	Unsigned      int64     `json:"unsigned,omitempty"` // of both, left behind: their hosts did not sign them
	Items         int64     `json:"items"`
	ItemBytes     int64     `json:"item_bytes"`
	Dedup         int64     `json:"dedup"`
	DedupAdded    int64     `json:"dedup_added"` // for queued items that had none
	Queues        int64     `json:"queues"`
	Acked         int64     `json:"acked"`
	LogLines      int64     `json:"log_lines"`
	RestoredPaths int64     `json:"restored_paths"`
	Warnings      []string  `json:"warnings,omitempty"`
}

// Import makes a new store in o.Dir out of a TypeScript relay's: the same relay
// key, epoch and sequence numbers, every queued item byte for byte, so that no
// host notices. It is all or nothing: until one rename there is no store, after
// it the whole one. The source is only read.
//
// It refuses, and leaves nothing: ErrStoreThere, ErrInUse for a source that a
// relay has open or had open a moment ago, ErrOtherKey, ErrForeign for what is no
// such store or is damaged (it names table and row), ErrNewerSchema,
// store.ErrFull.
func Import(ctx context.Context, o ImportOptions) (_ Imported, err error) {
	o.defaults()
	if o.Lock == nil {
		return Imported{}, errors.New("import: the caller has to hold the store's lock")
	}
	if err := emptyFolder(o.Dir); err != nil {
		return Imported{}, err
	}
	if err := sweepImport(o.Dir); err != nil {
		return Imported{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sweepImport(o.Dir))
		}
	}()
	if err := o.room(); err != nil {
		return Imported{}, err
	}
	f, done, err := o.source(filepath.Join(o.Dir, importSource))
	if err != nil {
		return Imported{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	path := filepath.Join(o.Dir, importPartial)
	did, err := o.build(ctx, f, path)
	if err != nil {
		return did, err
	}
	if err := o.unchanged(); err != nil {
		return did, err
	}
	if o.Before != nil {
		if err := o.Before(); err != nil {
			return did, err
		}
	}
	o.step("before rename")
	if err := os.Rename(path, filepath.Join(o.Dir, FileName)); err != nil {
		return did, err
	}
	o.step("renamed")
	if err := syncDir(o.Dir); err != nil {
		return did, fmt.Errorf("%w: the device said of %s: %w; look at it before you start the relay, and do not import again", ErrDoubt, o.Dir, err)
	}
	return did, nil
}

// PreviewImport does all that Import does, but in a folder of its own that is
// gone afterwards: it says what would come over, or why nothing would.
func PreviewImport(ctx context.Context, o ImportOptions) (_ Imported, err error) {
	o.defaults()
	if err := emptyFolder(o.Dir); err != nil {
		return Imported{}, err
	}
	scratch, err := os.MkdirTemp("", "agentmbx-import-")
	if err != nil {
		return Imported{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	o.Dir = scratch
	if err := o.room(); err != nil {
		return Imported{}, err
	}
	f, done, err := o.source(filepath.Join(scratch, importSource))
	if err != nil {
		return Imported{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	did, err := o.build(ctx, f, filepath.Join(scratch, importPartial))
	if err != nil {
		return did, err
	}
	return did, o.unchanged()
}

func (o *ImportOptions) defaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Free == nil {
		o.Free = statfs
	}
	if o.step == nil {
		o.step = func(string) {}
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	o.real = o.File
	if path, err := filepath.EvalSymlinks(o.File); err == nil { // what is wrong with it, the opening says
		o.real = path
	}
}

// emptyFolder refuses a folder that has a store, or parts of one: an old log
// beside a new database would be played into it.
func emptyFolder(dir string) error {
	st, err := os.Lstat(filepath.Join(dir, FileName))
	switch {
	case err == nil && (st.Size() > 0 || !st.Mode().IsRegular()):
		return fmt.Errorf("%s: %w: an import never overwrites one; choose another --store-dir", filepath.Join(dir, FileName), ErrStoreThere)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal"} {
		if _, err := os.Lstat(filepath.Join(dir, FileName+suffix)); err == nil {
			return fmt.Errorf("%s: %w, or was: move %s%s away, or choose another --store-dir", dir, ErrStoreThere, FileName, suffix)
		}
	}
	return nil
}

// ErrCutOff: something that makes a store here was cut off before there was one.
var ErrCutOff = errors.New("it was cut off")

// CutImport refuses a folder where an import was cut off: a new, empty store in
// its place would serve under its address.
func CutImport(dir string) error {
	exists, err := Exists(dir)
	if err != nil || exists {
		return err
	}
	path := filepath.Join(dir, importPartial)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return fmt.Errorf("an import into %s: %w: run agentmbx relay import again, or remove %s to begin with an empty store", dir, ErrCutOff, path)
}

// sweepImport removes what an import that was cut off left. The store's lock is
// held.
func sweepImport(dir string) error {
	if err := os.Remove(filepath.Join(dir, importPartial)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(filepath.Join(dir, importSource))
}

// build writes the new store to path: every row in one transaction, then the
// check, then the disk.
func (o *ImportOptions) build(ctx context.Context, f *foreign, path string) (did Imported, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return did, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	o.step("begun")
	// Without a journal: what does not come to its end is thrown away whole.
	c, err := openConn(path, "rw", []string{"page_size(" + fmt.Sprint(pageSize) + ")", "auto_vacuum(incremental)", "journal_mode(off)",
		"synchronous(off)", "trusted_schema(off)", "temp_store(file)", "cache_size(-32768)", "locking_mode(exclusive)"})
	if err != nil {
		return did, err
	}
	c.fault = o.fault
	err = c.during(ctx, func() error {
		return f.c.during(ctx, func() (err error) {
			did, err = o.fill(ctx, f, c)
			if err != nil {
				return err
			}
			o.step("committed")
			o.Progress("checking", 0, 1)
			if err := check(c, 0); err != nil {
				return fmt.Errorf("the new store does not agree with itself: %w", err)
			}
			// Last, so that a start soon after finds it fresh and keeps the epoch.
			return newTx(c, nil, nil).SetHeartbeat(o.Now().UTC().Truncate(time.Millisecond))
		})
	})
	if code(err) != 0 && !errors.Is(err, ErrForeign) { // the new file's; the foreign one's says so itself
		err = plain(err, path)
	}
	if err := errors.Join(err, c.close()); err != nil {
		return did, err
	}
	o.step("checked")
	err = file.Sync()
	o.step("synced")
	return did, err
}

// fill makes the schema and copies everything.
func (o *ImportOptions) fill(ctx context.Context, f *foreign, c *conn) (did Imported, err error) {
	m, err := f.meta(ctx)
	if err != nil {
		return did, err
	}
	now := o.Now().UTC().Truncate(time.Millisecond)
	if m.key != o.Key {
		return did, fmt.Errorf("%s: %w: it belongs to %s, the key given is %s", f.path, ErrOtherKey, m.key.Fingerprint(), o.Key.Fingerprint())
	}
	if age := now.Sub(m.heartbeat); !m.heartbeat.IsZero() && age < freshBeat && !o.Force {
		if age < 0 { // no wait makes it older
			return did, fmt.Errorf("%s: %w: its relay's last sign of life is %s in the future; stop that relay first, look at both clocks, and say --force if no relay runs",
				f.path, ErrInUse, (-age).Round(time.Second))
		}
		return did, fmt.Errorf("%s: %w: its relay gave a sign of life %s ago; stop that relay first and wait %s, or say --force if it has ended",
			f.path, ErrInUse, age.Round(time.Second), freshBeat)
	}
	o.Progress("looking over the source", 0, 1)
	if err := f.integrity(); err != nil {
		return did, err
	}
	if err := migrate(c, true, Options{Key: o.Key, Now: func() time.Time { return now }}); err != nil {
		return did, err
	}
	total, err := f.count()
	if err != nil {
		return did, err
	}
	did = Imported{V: 1, Type: "relay-import", At: now, Actor: o.Actor, Source: f.path, Schema: f.schema, RelayKey: m.key.String(),
		Fingerprint: m.key.Fingerprint(), Epoch: m.epoch, LastSign: m.heartbeat, RestoredPaths: int64(len(m.paths)), Warnings: m.warnings(f, now)}
	if _, err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return did, err
	}
	i := importer{ctx: ctx, f: f, t: newTx(c, func() int64 { return 1 << 62 }, nil), did: &did, now: now, step: o.step,
		tick: func(done int64) { o.Progress("importing", done, total) }}
	if err := i.all(m); err != nil {
		return did, err
	}
	receipt, err := json.Marshal(did)
	if err != nil {
		return did, err
	}
	if err := i.t.AppendLog(now, "import", receipt); err != nil {
		return did, err
	}
	_, err = c.exec("COMMIT")
	return did, err
}

// syncDir makes a rename in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
