package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// DrillPrefix is how the scratch folders of a relay's drills begin: two relays may
// share a folder.
func DrillPrefix(key wire.PublicKey) string { return fmt.Sprintf(".drill-%x-", key[:4]) }

// SweepPartials removes what a crash left of backups and drills of this folder.
// It is called under the store's lock, when nothing of ours is being written.
// Only what bears a name of ours, belongs to us and is a plain file (or, of a
// drill, a folder) goes; a link is never followed.
func (f *Folder) SweepPartials() error {
	st, err := os.Lstat(f.Dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
		return nil // prepare says so when somebody wants to write there
	}
	if err != nil {
		return fmt.Errorf("sweep the backup folder: %w", err)
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return fmt.Errorf("sweep the backup folder: %w", err)
	}
	// A receipt decides what becomes of its backup, so receipts come first.
	partial := f.partial()
	var errs []error
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), receiptSuffix+f.suffix()); ok && partial.MatchString(e.Name()) {
			errs = append(errs, f.sweepOne(filepath.Join(f.Dir, name)))
		}
	}
	errs = append(errs, f.sweepNoted())
	decrypted := regexp.MustCompile(`^` + regexp.QuoteMeta(decryptedPrefix(f.Key)) + `\d+\.partial$`)
	for _, e := range entries {
		path := filepath.Join(f.Dir, e.Name())
		scratch := decrypted.MatchString(e.Name())
		switch {
		case scratch && inUse(path):
		case scratch || partial.MatchString(e.Name()):
			errs = append(errs, f.removeOurs(path))
		case strings.HasPrefix(e.Name(), DrillPrefix(f.Key)):
			if st, err := os.Lstat(path); err == nil && st.IsDir() && ownedByUs(st) {
				f.log().Info("removing what a drill left", "folder", path)
				errs = append(errs, os.RemoveAll(path)) // which follows no link
			}
		}
	}
	return errors.Join(append(errs, syncDir(f.Dir))...)
}

// sweepOne settles what a crash left of the backup to path. Where the backup has
// its name already its receipt gets it too; see Create.
func (f *Folder) sweepOne(path string) error {
	receipt := path + receiptSuffix
	aside := receipt + f.suffix()
	if st, err := os.Lstat(aside); err == nil && st.Mode().IsRegular() && ownedByUs(st) {
		b, err := readSmall(aside, maxReceipt)
		if err != nil {
			return err
		}
		r, err := parseReceipt(b)
		backup, statErr := os.Lstat(path)
		if err == nil && statErr == nil && backup.Mode().IsRegular() && backup.Size() == r.Bytes && r.key == f.Key && filepath.Base(r.File) == filepath.Base(path) {
			f.log().Info("a backup that was cut off after its last byte is whole: its receipt gets its name", "file", path)
			if _, err := rename(aside, receipt, f.removeFile); err != nil && !errors.Is(err, ErrExists) {
				return err
			}
		}
	}
	var errs []error
	for _, p := range []string{path, receipt} {
		errs = append(errs, f.removeOurs(p+f.suffix()))
	}
	return errors.Join(errs...)
}

// removeOurs removes a plain file of ours, when it is there.
func (f *Folder) removeOurs(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !st.Mode().IsRegular() || !ownedByUs(st) {
		return err
	}
	f.log().Info("removing an unfinished file", "file", path, "bytes", st.Size())
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// inUse reports whether a process has the decrypted copy at path: to verify a
// backup takes no lock of the store.
func inUse(path string) bool {
	f, _, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(lockFile(f), unix.EWOULDBLOCK)
}
