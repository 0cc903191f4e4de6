package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// RestoreOptions say what is restored, and where.
type RestoreOptions struct {
	File     string // the backup, absolute
	StoreDir string
	// Key is the relay's own; a backup of another key is refused. The zero key
	// stands for that of the current store, which must be readable then.
	Key wire.PublicKey
	// Lock is the store's lock, which the caller holds and keeps.
	Lock       *sqlite.Lock
	Identities []age.Identity
	// Force goes on over a current store that is damaged, and over a fresh
	// heartbeat in a store that never had a lock file (HadLock false).
	Force   bool
	HadLock bool // relay.lock stood in the folder before the caller took it
	// Consume records File as restored by MBX_RELAY_RESTORE_FROM.
	Consume  bool
	Actor    string
	Version  string
	Log      *slog.Logger
	Now      func() time.Time
	Progress func(stage string, done, total int64)
	// Free tells the bytes left on a device; nil asks the system.
	Free func(dir string) (int64, error)

	// step, for tests, is told of each step before and after it is done; its
	// error is the step's.
	step func(name string, done bool) error
	link func(old, new string) error // os.Link, but in tests of file systems without
}

// RestoreReceipt says what a restore did, or would do. It stands in the relay
// log under "restore".
type RestoreReceipt struct {
	V             int            `json:"v"`    // 1
	Type          string         `json:"type"` // "relay-restore"
	At            time.Time      `json:"at"`
	Actor         string         `json:"actor"`
	Version       string         `json:"version"` // of agentmbx
	Source        string         `json:"source"`  // the file
	SHA256        string         `json:"sha256"`
	TakenAt       time.Time      `json:"taken_at"` // see Report.TakenAt
	AgeSeconds    int64          `json:"age_seconds"`
	From          string         `json:"from"`         // the epoch of the store that was replaced; "" if there was none
	BackupEpoch   string         `json:"backup_epoch"` // the one in the backup
	To            string         `json:"to"`           // the new epoch
	Before        *store.Totals  `json:"before"`       // of the store that was replaced; null if there was none that could be read
	After         store.Totals   `json:"after"`
	NewerMail     int64          `json:"newer_mail"` // items queued before that the backup does not know
	Carried       sqlite.Carried `json:"carried"`
	Rollback      string         `json:"rollback,omitempty"` // where the replaced store is kept
	RollbackBytes int64          `json:"rollback_bytes,omitempty"`
	RollbackSHA   string         `json:"rollback_sha256,omitempty"`
	Undo          string         `json:"undo_command,omitempty"`
	Warnings      []string       `json:"warnings,omitempty"`
}

// Restore makes the store in StoreDir what the backup holds, under a new epoch,
// with the authority that was taken away since the backup still taken away. It is
// all or nothing: until one rename the old store stands, after it the new one.
//
// ErrBad, ErrEncrypted and an error that wraps fs.ErrNotExist are about the
// backup, ErrRefused and sqlite.ErrOtherKey protect a store. An error after that
// rename is ErrRestored, and comes with the receipt.
func Restore(ctx context.Context, o RestoreOptions) (RestoreReceipt, error) {
	return restore(ctx, o, false)
}

// Preview is Restore up to that rename: it says what would happen and changes
// nothing.
func Preview(ctx context.Context, o RestoreOptions) (RestoreReceipt, error) {
	return restore(ctx, o, true)
}

// ErrRestored marks an error that came after that rename.
var ErrRestored = errors.New("the backup is restored")

// Names in a store's folder.
const (
	restoreWork    = "restore.partial" // what is being restored; see SweepRestore
	rollbackFolder = "rollback"
	asideFolder    = "aside" // in the work folder: the parts of a store that a folded copy of it is kept of
)

// restoring is the work of one restore. All of it stands in one folder in the
// store's own until the rename.
type restoring struct {
	RestoreOptions
	dry     bool
	work    string // the folder
	db, new string // the store's database, and what will replace it
	report  Report // of the backup
	current current
	r       RestoreReceipt
	at      time.Time
	told    []string // warnings from before the new store's transaction
	began   bool     // something was written that a failure leaves out again
	swapped bool     // the new store stands
}

func restore(ctx context.Context, o RestoreOptions, dry bool) (_ RestoreReceipt, err error) {
	w := &restoring{
		RestoreOptions: o, dry: dry, work: filepath.Join(o.StoreDir, restoreWork), db: filepath.Join(o.StoreDir, sqlite.FileName),
	}
	w.new = filepath.Join(w.work, sqlite.FileName)
	w.defaults()
	if err := w.folders(); err != nil {
		return RestoreReceipt{}, err
	}
	if err := SweepRestore(w.StoreDir); err != nil {
		return RestoreReceipt{}, fmt.Errorf("sweep what an earlier restore left: %w", err)
	}
	if err := w.source(); err != nil {
		return RestoreReceipt{}, err
	}
	if err := os.Mkdir(w.work, 0o700); err != nil {
		return RestoreReceipt{}, err
	}
	defer func() {
		if !w.swapped {
			err = errors.Join(w.asItWas(err), w.discard())
		}
	}()
	if err := w.prepare(ctx); err != nil || dry {
		return w.r, err
	}
	return w.r, w.replace(ctx)
}

func (w *restoring) defaults() {
	if w.Log == nil {
		w.Log = slog.New(slog.DiscardHandler)
	}
	if w.Now == nil {
		w.Now = time.Now
	}
	if w.Progress == nil {
		w.Progress = func(string, int64, int64) {}
	}
	if w.Free == nil {
		w.Free = func(dir string) (int64, error) { free, _, err := statfs(dir); return free, err }
	}
	if w.link == nil {
		w.link = os.Link
	}
	w.at = w.Now().UTC().Truncate(time.Millisecond)
	w.r = RestoreReceipt{V: 1, Type: "relay-restore", At: w.at, Actor: w.Actor, Version: w.Version, Source: w.File, To: uuid.NewString()}
}

// do is one step, by the name that tests know.
func (w *restoring) do(name string, fn func() error) error {
	if w.step == nil {
		return fn()
	}
	if err := w.step(name, false); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	return w.step(name, true)
}

// prepare does all that leaves the store as it is, and ends with the whole new
// one in the work folder.
func (w *restoring) prepare(ctx context.Context) (err error) {
	if w.report, err = Verify(ctx, w.File, Want{Identities: w.Identities, Scratch: w.work, Progress: w.Progress, Now: w.Now}); err != nil {
		return err
	}
	in := w.report.Info
	if !in.RelayKey.IsZero() && !w.Key.IsZero() && in.RelayKey != w.Key {
		return fmt.Errorf("%s: %w: it is of the relay %s, and this relay's key is %s; a store is restored with its own key only",
			w.File, sqlite.ErrOtherKey, in.RelayKey.Fingerprint(), w.Key.Fingerprint())
	}
	if err := w.report.Err(); err != nil {
		return fmt.Errorf("%w; try another: agentmbx relay backups", err)
	}
	if y := in.Heartbeat.Year(); y < 0 || y > 9999 { // no receipt could tell it
		return fmt.Errorf("%s: %w: its last sign of life is dated in the year %d; try another: agentmbx relay backups", w.File, ErrBad, y)
	}
	w.r.SHA256, w.r.BackupEpoch, w.r.TakenAt = w.report.SHA256, in.Epoch, w.report.TakenAt()
	w.r.AgeSeconds = int64(w.at.Sub(w.r.TakenAt) / time.Second)
	if ahead := in.Heartbeat.Sub(w.at); ahead > wire.MaxAhead {
		w.warn("the backup is dated in the future: its last sign of life is %s ahead of this clock; one of the two is or was wrong", ahead.Round(time.Second))
	}
	if err := w.room(); err != nil {
		return err
	}
	if err := w.look(ctx); err != nil {
		return err
	}
	if w.Key.IsZero() && w.current.path == "" {
		return fmt.Errorf("%w: a store cannot be served without its key, which is not here: put the relay.key whose fingerprint is %s into %s, or set MBX_RELAY_KEY to it",
			ErrRefused, in.RelayKey.Fingerprint(), w.StoreDir)
	}
	if err := w.nameRollback(ctx); err != nil {
		return err
	}
	w.began = true
	if err := w.do("copy", func() error { return w.copySource(ctx) }); err != nil {
		return err
	}
	w.Progress("carry", 0, 0)
	w.told = w.r.Warnings
	if err := w.do("renew", func() error { return w.renew(ctx) }); err != nil {
		return err
	}
	return errors.Join(syncFile(w.new), syncDir(w.work))
}

// renew makes the copy the successor of the current store. What a damaged one no
// longer tells is given up only where the caller said so, and an error of the new
// file is never taken for one of the current store.
func (w *restoring) renew(ctx context.Context) error {
	r := sqlite.Renewal{Epoch: w.r.To, At: w.at, Now: w.Now, Finish: w.finish}
	if w.Consume {
		r.Consume = w.File
	}
	c, err := sqlite.Renew(ctx, w.new, w.current.path, r)
	if errors.Is(err, sqlite.ErrReplaced) {
		if err = w.judge(w.named(err, w.current.path)); err != nil {
			return err
		}
		w.current.path = ""
		if err = w.nameRollback(ctx); err != nil {
			return err
		}
		c, err = sqlite.Renew(ctx, w.new, "", r)
	}
	if err != nil {
		return fmt.Errorf("make the backup the next store: %w", err)
	}
	w.r.Carried, w.r.After = c, c.After
	return nil
}

// finish completes the receipt for the log, inside the new store's transaction.
func (w *restoring) finish(c sqlite.Carried) ([]byte, error) {
	w.r.Warnings = slices.Clone(w.told) // it is asked again when a damaged store could not be carried from
	w.r.Carried, w.r.After, w.r.NewerMail = c, c.After, c.NewerMail
	switch {
	case w.current.fault != nil && w.current.path == "":
		w.warn("nothing could be carried from the store that is replaced (%s): hosts revoked and denied since the backup are let in again unless you revoke them again", firstLine(w.current.fault))
	case w.current.fault != nil:
		w.warn("the store that is replaced is damaged (%s): check what was carried from it", firstLine(w.current.fault))
	case !w.current.exists:
		w.warn("there was no store to carry anything from: what was revoked or denied since the backup is not known here")
	}
	if c.NewerMail > 0 {
		w.warn("mail accepted after the backup must come back from its senders: %d items that the replaced store has queued are not in the backup", c.NewerMail)
	}
	if c.HeldAgain > 0 {
		w.warn("%d items are held again that were held when the backup was taken, and were released or discarded since", c.HeldAgain)
	}
	if c.Discarded > 0 {
		w.warn("%d items that were discarded after the backup are held: discard them again, or release them", c.Discarded)
	}
	w.r.Warnings = append(w.r.Warnings, c.Warnings...)
	if w.step != nil { // in the middle of the transaction
		if err := w.step("renewing", false); err != nil {
			return nil, err
		}
	}
	return json.Marshal(w.r)
}

// asItWas says of a failure before the rename what it left: nothing.
func (w *restoring) asItWas(err error) error {
	switch {
	case err == nil:
		return nil
	case interrupted(err):
		return interruption{err}
	case filledUp(err):
		return fmt.Errorf("%w in %s: it filled up during the restore; the store is as it was: make room there and try again", ErrNoRoom, w.StoreDir)
	case !w.began:
		return err
	}
	return fmt.Errorf("%w; the store is as it was", err)
}

func filledUp(err error) bool {
	return errors.Is(err, store.ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// interruption is an end of the context, in words.
type interruption struct{ err error }

func (interruption) Error() string   { return "interrupted; the store is as it was" }
func (i interruption) Unwrap() error { return i.err }

func (w *restoring) warn(format string, args ...any) {
	w.r.Warnings = append(w.r.Warnings, fmt.Sprintf(format, args...))
}

// replace puts the new store in the old one's place. From the rename on there is
// no way back but forward: what is left to do, SweepRestore does as well.
func (w *restoring) replace(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.do("rollback", func() error { return w.keepOld(ctx) }); err != nil {
		return fmt.Errorf("keep the replaced store: %w", err)
	}
	if err := w.do("aside", w.moveSidecars); err != nil {
		return fmt.Errorf("move what stands beside the replaced store: %w", err)
	}
	var doubt error
	err := w.do("swap", func() error { return os.Rename(w.new, w.db) })
	if _, e := os.Lstat(w.new); e == nil {
		if err == nil {
			err = errors.New("the rename did not take place")
		}
		return fmt.Errorf("put the restored store in place: %w", err)
	}
	w.swapped = true
	if err := errors.Join(err, syncDir(w.StoreDir)); err != nil {
		doubt = fmt.Errorf("%w, but the device said of it: %w; look at the device before you start the relay", ErrRestored, err)
	}
	w.Log.Info("store restored", "from", w.File, "epoch", w.r.To, "rollback", w.r.Rollback)
	if err := errors.Join(w.do("keep", func() error { return finishRestore(w.StoreDir) }), w.do("prune", w.pruneRollbacks)); err != nil {
		doubt = errors.Join(doubt, fmt.Errorf("%w, but not all is tidy: %w; the next start of the relay sees to it", ErrRestored, err))
	}
	if doubt != nil && w.r.Undo != "" {
		doubt = fmt.Errorf("%w; to go back: %s", doubt, w.r.Undo)
	}
	return doubt
}
