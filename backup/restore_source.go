package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

// folders looks at where the work is to be done.
func (w *restoring) folders() error {
	if w.Lock == nil {
		return fmt.Errorf("%w: a restore needs the store's lock", ErrRefused)
	}
	st, err := os.Stat(w.StoreDir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%w: %s is not a folder", ErrRefused, w.StoreDir)
	}
	old := filepath.Join(w.StoreDir, rollbackFolder)
	if st, err = os.Lstat(old); err == nil && !st.IsDir() {
		return fmt.Errorf("%w: %s is not a folder, and replaced stores are kept there: move it away", ErrRefused, old)
	}
	if st, err = os.Lstat(w.db); err == nil && !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a regular file: restore into the folder that has the store itself", ErrRefused, w.db)
	}
	return nil
}

// source refuses, at a glance, what cannot be a backup or is the store itself.
func (w *restoring) source() error {
	st, err := os.Lstat(w.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no backup at %s: %w; see: agentmbx relay backups", w.File, fs.ErrNotExist)
	case err != nil:
		return err
	case st.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s: %w: it is a symbolic link: name the file it leads to", w.File, ErrBad)
	case st.IsDir():
		return fmt.Errorf("%s: %w: it is a folder: name the file in it", w.File, ErrBad)
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s: %w: it is not a regular file", w.File, ErrBad)
	}
	if live, err := os.Lstat(w.db); err == nil && os.SameFile(live, st) {
		return fmt.Errorf("%w: %s is the store itself: name a backup of it", ErrRefused, w.File)
	}
	return nil
}

// room looks whether what is going to be written fits, before it is.
func (w *restoring) room() error {
	need := w.report.Bytes + w.report.Bytes/4 + 4<<20 // the copy, and the journal of what changes in it
	var old int64
	for _, suffix := range []string{"", "-wal"} {
		if st, err := os.Lstat(w.db + suffix); err == nil {
			old += st.Size()
		}
	}
	if old > 0 && (w.dry || w.current.copied || !w.canLink()) {
		need += old // a copy of the current store
	}
	free, err := w.Free(w.StoreDir)
	if err != nil {
		return fmt.Errorf("look at the room in %s: %w", w.StoreDir, err)
	}
	if free < need {
		return fmt.Errorf("%w; make room there and try again", noRoom(w.StoreDir, need, free, "for a restore"))
	}
	return nil
}

// canLink reports whether the file system gives a file a second name.
func (w *restoring) canLink() bool {
	probe := filepath.Join(w.work, "probe")
	return w.link(w.db, probe) == nil && os.Remove(probe) == nil
}

// copySource copies, or decrypts, the backup into the work folder. It must be the
// bytes that were verified.
func (w *restoring) copySource(ctx context.Context) (err error) {
	in, st, err := openRegular(w.File)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(w.new, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	read := newDigest()
	tee := io.TeeReader(in, read)
	from := &ageReader{r: tee}
	if w.report.Encrypted {
		if from.r, err = age.Decrypt(tee, w.Identities...); err != nil {
			return fmt.Errorf("%s: %w", w.File, &decryptError{err})
		}
	}
	var halted error
	if _, err := stream(ctx, out, from, func(n int64) {
		w.Progress("copy", n, st.Size())
		if w.step != nil && halted == nil {
			halted = w.step("copying", false)
		}
	}); err != nil {
		return fmt.Errorf("copy %s: %w", w.File, err)
	}
	if halted != nil {
		return halted
	}
	if _, err := stream(ctx, io.Discard, tee, nil); err != nil { // what an age file has after its end
		return err
	}
	if read.hex() != w.report.SHA256 {
		return fmt.Errorf("%s: %w: it changed while it was restored", w.File, ErrBad)
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return sqliteRest(w.new)
}

// sqliteRest makes sure that nothing stands beside a database.
func sqliteRest(path string) error {
	beside, err := sqlite.Sidecars(path)
	if err == nil && len(beside) > 0 {
		err = fmt.Errorf("%s stands beside a copy that was just made", beside[0])
	}
	return err
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
