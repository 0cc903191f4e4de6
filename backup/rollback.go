package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// keepRollbacks is how many replaced stores are kept. Older ones go after a
// restore, known by the receipt beside them; what was set aside unread stays.
const keepRollbacks = 3

// rollbackName is how replaced stores are called; onlySafe makes the piece of the
// epoch in it.
var (
	rollbackName = regexp.MustCompile(`^relay-\d{8}T\d{6}Z-[0-9A-Za-z]{1,8}(-\d+)?\.db$`)
	onlySafe     = regexp.MustCompile(`[^0-9A-Za-z]`)
)

// nameRollback settles where the replaced store will be kept, and how to go back.
// The log of the new store tells it, so it is settled before.
func (w *restoring) nameRollback(ctx context.Context) error {
	w.r.Undo, w.r.RollbackBytes, w.r.RollbackSHA = "", 0, ""
	beside, err := sqlite.Sidecars(w.db)
	if err != nil || !w.current.exists && len(beside) == 0 {
		return err
	}
	epoch := "unread"
	if w.current.path != "" {
		epoch = cmp.Or(onlySafe.ReplaceAllString(w.current.info.Epoch, ""), epoch)
	}
	base := fmt.Sprintf("relay-%s-%.8s", w.at.Format("20060102T150405Z"), epoch)
	dir := filepath.Join(w.StoreDir, rollbackFolder)
	for i := 1; ; i++ {
		name := base
		if i > 1 {
			name += fmt.Sprintf("-%d", i)
		}
		w.r.Rollback = filepath.Join(dir, name+".db")
		taken, err := sqlite.Sidecars(w.r.Rollback)
		if err != nil {
			return err
		}
		if _, err := os.Lstat(w.r.Rollback); errors.Is(err, fs.ErrNotExist) && len(taken) == 0 {
			break
		}
	}
	if !w.current.good() { // it is set aside, and no way back
		if st, err := os.Lstat(w.db); err == nil {
			w.r.RollbackBytes = st.Size()
		}
		return nil
	}
	w.r.Undo = RestoreCommand(w.r.Rollback, w.StoreDir, false)
	if w.dry {
		return nil
	}
	sum := newDigest()
	in, st, err := openRegular(w.current.path)
	if err != nil {
		return err
	}
	defer in.Close()
	if _, err := stream(ctx, sum, in, func(n int64) { w.Progress("read the current store", n, st.Size()) }); err != nil {
		return err
	}
	w.r.RollbackBytes, w.r.RollbackSHA = sum.n, sum.hex()
	return nil
}

// keepOld readies the replaced store for its place among the others: by a second
// name, or a copy where the file system has none. Where it was folded in a copy
// that one is kept, at rest and with all that its log held.
func (w *restoring) keepOld(ctx context.Context) error {
	if w.r.Rollback == "" {
		return nil
	}
	dir := filepath.Join(w.work, rollbackFolder)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, filepath.Base(w.r.Rollback))
	switch {
	case w.foldedCopy():
		if err := os.Rename(w.current.path, path); err != nil {
			return err
		}
	case w.current.exists:
		// Another's file is not ours to change; a copy of it is.
		if err := os.Chmod(w.db, 0o600); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		} else if err != nil || w.link(w.db, path) != nil {
			sum, err := w.copyFile(ctx, w.db, path)
			if err != nil {
				return err
			}
			if w.r.RollbackSHA != "" && sum.hex() != w.r.RollbackSHA {
				return fmt.Errorf("%s changed while it was kept: another program writes to the store", w.db)
			}
		}
	}
	if w.current.good() {
		if err := w.writeReceipt(path); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(dir), syncDir(w.work))
}

// writeReceipt writes the receipt of the replaced store: it can be restored like
// any backup, though nothing but its counters and its integrity was looked at.
func (w *restoring) writeReceipt(path string) error {
	in := w.current.info
	r := Receipt{
		V: 1, Type: receiptType, At: w.at, File: w.r.Rollback, Bytes: w.r.RollbackBytes, SHA256: w.r.RollbackSHA,
		RelayKey: in.RelayKey.String(), Fingerprint: in.RelayKey.Fingerprint(), Epoch: in.Epoch, Schema: in.Schema, Version: w.Version,
		Items: w.r.Before.Items, ItemBytes: w.r.Before.Bytes, Enrolments: w.r.Before.Enrolments, Restore: w.r.Undo, N: 1,
	}
	list, err := rollbacks(w.StoreDir)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		r.N = min(list[0].N, maxN-1) + 1
	}
	b, err := r.encode()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+receiptSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// foldedCopy reports whether a copy of the replaced store stands for it.
func (w *restoring) foldedCopy() bool { return w.current.copied && w.current.good() }

// moveSidecars takes what stands beside a store that was not folded along with
// it: left there, SQLite would lay it over the restored one. What a folded copy
// has taken in goes with the work folder, once the new store stands.
func (w *restoring) moveSidecars() error {
	beside, err := sqlite.Sidecars(w.db)
	if err != nil || len(beside) == 0 {
		return err
	}
	dir, name := filepath.Join(w.work, rollbackFolder), filepath.Base(w.r.Rollback)
	if w.foldedCopy() {
		dir, name = filepath.Join(w.work, asideFolder), sqlite.FileName
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		_ = w.link(w.db, filepath.Join(dir, name)) // for oldStands, where there are links
		if err := syncDir(w.work); err != nil {
			return err
		}
	}
	for _, path := range beside {
		to := filepath.Join(dir, name+strings.TrimPrefix(path, w.db))
		if err := os.Rename(path, to); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(dir), syncDir(w.StoreDir))
}

// SweepRestore ends what a crash left of a restore in the folder of a store: one
// that had not yet put the new store in place is undone, one that had is
// completed. It is called under the store's lock, before the store is opened.
func SweepRestore(storeDir string) error {
	work := filepath.Join(storeDir, restoreWork)
	st, err := os.Lstat(work)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%w: %s is not a folder of ours: move it away", ErrRefused, work)
	}
	// The rename takes the new database out of the work folder, and the replaced
	// store is not there before the new one.
	_, err = os.Lstat(filepath.Join(work, sqlite.FileName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db := filepath.Join(storeDir, sqlite.FileName)
	if err == nil || oldStands(work, db) {
		return (&restoring{work: work, db: db}).discard()
	}
	return finishRestore(storeDir)
}

// oldStands reports whether what was kept of the old store is the store itself,
// as after a power cut on a file system that forgets one half of a rename.
func oldStands(work, db string) bool {
	st, err := os.Lstat(db)
	if err != nil {
		return false
	}
	entries, _ := os.ReadDir(filepath.Join(work, rollbackFolder)) // of what cannot be read, finishRestore tells
	aside, _ := os.ReadDir(filepath.Join(work, asideFolder))
	entries = append(entries, aside...)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		kept, err := e.Info()
		return err == nil && os.SameFile(st, kept)
	})
}

// discard leaves the store as it was: the old one's log goes back beside it, and
// the new database goes last, since it is what tells that it never took its place.
func (w *restoring) discard() error {
	for _, name := range []string{asideFolder, rollbackFolder} {
		if err := w.putBack(filepath.Join(w.work, name)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(w.work); err != nil {
		return err
	}
	return syncDir(filepath.Dir(w.db))
}

// putBack takes a folder away after what stood beside the store is there again.
func (w *restoring) putBack(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if i := strings.LastIndex(e.Name(), ".db-"); i >= 0 {
			if err := os.Rename(filepath.Join(dir, e.Name()), w.db+e.Name()[i+len(".db"):]); err != nil {
				return err
			}
		}
	}
	return errors.Join(syncDir(filepath.Dir(w.db)), os.RemoveAll(dir), syncDir(w.work))
}

// finishRestore gives the replaced store its place and takes the work folder away.
func finishRestore(storeDir string) error {
	work, to := filepath.Join(storeDir, restoreWork), filepath.Join(storeDir, rollbackFolder)
	from := filepath.Join(work, rollbackFolder)
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		if err := os.Mkdir(to, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := syncDir(storeDir); err != nil { // before what moves there is gone from where it was
			return err
		}
		for _, e := range entries {
			if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
		if err := errors.Join(syncDir(to), syncDir(from)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	return syncDir(storeDir)
}

// rollbacks lists the replaced stores of a folder that we know by their receipts,
// the newest first.
func rollbacks(storeDir string) (list []Receipt, err error) {
	dir := filepath.Join(storeDir, rollbackFolder)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !rollbackName.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		r, err := ReadReceipt(filepath.Join(dir, e.Name()))
		if err != nil || filepath.Base(r.File) != e.Name() {
			continue // not ours to judge
		}
		r.File = filepath.Join(dir, e.Name())
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Receipt) int { return cmp.Or(cmp.Compare(b.N, a.N), strings.Compare(b.File, a.File)) })
	return list, nil
}

// pruneRollbacks removes the oldest replaced stores beyond those that are kept,
// and never the one that was just restored.
func (w *restoring) pruneRollbacks() error {
	list, err := rollbacks(w.StoreDir)
	if err != nil || len(list) <= keepRollbacks {
		return err
	}
	source, err := os.Stat(w.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, r := range list[keepRollbacks:] {
		if st, err := os.Stat(r.File); err != nil || source != nil && os.SameFile(st, source) {
			continue
		}
		w.Log.Info("removing an old rollback copy", "file", r.File, "bytes", r.Bytes)
		if err := errors.Join(os.Remove(r.File), os.Remove(r.File+receiptSuffix)); err != nil {
			return err
		}
	}
	return syncDir(filepath.Join(w.StoreDir, rollbackFolder))
}
