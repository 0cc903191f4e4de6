package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Create takes a backup, verifies it and gives it its name: one of the folder's
// own, or file when it is not "". Only a verified backup gets its final name.
// ErrExists, ErrNoRoom, ErrRefused; ErrBad when the copy does not verify: then
// the store itself is damaged.
//
// What a crash leaves. Everything is written under a name that ends in .partial,
// and is durable before it is renamed; the receipt is whole under such a name
// before the backup is renamed, and is renamed after it:
//
//	NAME.partial                      unfinished: swept
//	NAME.partial, NAME.json.partial   finished, not named: swept
//	NAME, NAME.json.partial           named: the receipt gets its name by the sweep
//	NAME, NAME.json                   a backup
//
// A note in the folder tells the sweep where a backup to a file of the operator's
// choosing was being written. What is not encrypted yet is only ever in the folder.
//
// A file without a receipt never counts, so none of these is taken for more than
// it is. Prune goes the same way back.
func (f *Folder) Create(ctx context.Context, src Source, file string, progress func(stage string, done, total int64)) (r Receipt, err error) {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	began := f.now()
	m := &making{Folder: f, src: src, progress: progress, dir: f.Dir}
	m.r = Receipt{V: 1, Type: receiptType, At: began.UTC().Truncate(time.Millisecond), RelayKey: f.Key.String(),
		Fingerprint: f.Key.Fingerprint(), Version: f.Version, Encrypted: len(f.Recipients) > 0}
	defer func() {
		if err != nil {
			err = full(errors.Join(f.notWritable(err, m.dir), m.undo()), m.dir)
		}
	}()
	if file == "" {
		err = m.inFolder(ctx)
	} else {
		err = m.toFile(ctx, file)
	}
	if err != nil {
		return Receipt{}, err
	}
	if err := m.write(ctx); err != nil {
		return Receipt{}, err
	}
	m.r.Took = max(f.now().Sub(began), 0)
	m.r.Verified = true
	if err := m.name(); err != nil {
		return Receipt{}, err
	}
	f.log().Info("backup taken", "file", m.path, "bytes", m.r.Bytes, "items", m.r.Items, "encrypted", m.r.Encrypted, "took", m.r.Took.String())
	return m.r, nil
}

// making is a backup on its way.
type making struct {
	*Folder
	src      Source
	progress func(stage string, done, total int64)
	path     string   // its final name
	plain    string   // where what is not encrypted goes first
	dir      string   // what is written to now
	made     []string // what was written for it and is to go when it fails
	noted    bool     // the note in the folder is ours
	r        Receipt
}

// inFolder settles where the folder's next backup goes.
func (m *making) inFolder(ctx context.Context) error {
	if err := m.prepare(); err != nil {
		return err
	}
	list, err := m.List(ctx)
	if err != nil {
		return err
	}
	if m.r.N, err = m.next(list); err != nil {
		return err
	}
	if m.r.Removed, err = m.makeRoom(ctx, m.src); err != nil {
		return err
	}
	m.path = filepath.Join(m.Dir, m.Folder.name(m.r.At, m.r.N))
	m.plain = strings.TrimSuffix(m.path, ".age") + m.suffix()
	if err := m.sweepOne(m.path); err != nil { // of a run that was killed in this very second
		return err
	}
	return m.absent()
}

// toFile looks at the place that the operator chose.
func (m *making) toFile(ctx context.Context, file string) error {
	if !filepath.IsAbs(file) {
		return fmt.Errorf("%w: %s is no absolute path", ErrRefused, file)
	}
	m.path = filepath.Clean(file)
	dir := filepath.Dir(m.path)
	m.dir = dir
	st, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("the folder of the backup: %w", err)
	case !st.IsDir():
		return fmt.Errorf("%w: %s is not a folder", ErrRefused, dir)
	}
	if err := m.mayBeCalled(dir, filepath.Base(m.path)); err != nil {
		return err
	}
	// What a crash left of an earlier run to this file.
	if err := m.sweepOne(m.path); err != nil {
		return err
	}
	if err := m.absent(); err != nil {
		return err
	}
	m.plain = m.path + m.suffix()
	if m.r.Encrypted {
		m.dir = m.Dir
		if err := m.prepare(); err != nil {
			return err
		}
		m.plain = m.plainCopy()
		if err := m.removeOurs(m.plain); err != nil { // of a run that was killed
			return err
		}
	}
	if err := m.roomFor(ctx, m.src, dir); err != nil {
		return err
	}
	m.note()
	return nil
}

// write makes the finished, verified file and its receipt, both under the names
// of unfinished ones.
func (m *making) write(ctx context.Context) error {
	m.at("copy")
	if err := m.copy(ctx, m.plain); err != nil {
		return err
	}
	m.at("verify")
	report, err := Verify(ctx, m.plain, Want{Key: m.Key, Now: m.now, Progress: func(stage string, done, total int64) {
		m.at("verify " + stage)
		m.progress("verify: "+stage, done, total)
	}})
	if err != nil {
		return err
	}
	if !report.Good {
		return fmt.Errorf("the copy of the store does not verify, so the store itself may be damaged: %w: %s", ErrBad, report.Fault())
	}
	m.r.Epoch, m.r.Schema, m.r.Contents = report.Info.Epoch, report.Info.Schema, report.Contents
	m.r.Items, m.r.ItemBytes, m.r.Enrolments = report.Totals.Items, report.Totals.Bytes, report.Totals.Enrolments
	m.r.Bytes, m.r.SHA256 = report.Bytes, report.SHA256
	m.r.File = m.path
	m.r.Restore = RestoreCommand(m.path, m.StoreDir, m.r.Encrypted)
	if m.r.Encrypted {
		if err := m.encrypt(ctx, m.plain); err != nil {
			return err
		}
	}
	return nil
}

func (m *making) copy(ctx context.Context, plain string) error {
	// Copy removes what it made when it fails, and what it did not make must stay.
	if err := m.src.Copy(ctx, plain, func(done, total int64) {
		m.at("copying")
		m.progress("copy", done, total)
	}); err != nil {
		return err
	}
	m.made = append(m.made, plain)
	return syncDir(filepath.Dir(plain))
}

func (m *making) encrypt(ctx context.Context, plain string) error {
	m.at("encrypt")
	m.r.PlainBytes, m.r.PlainSHA256 = m.r.Bytes, m.r.SHA256
	m.dir = filepath.Dir(m.path)
	to := m.path + m.suffix()
	out, err := encrypt(ctx, to, plain, m.r.SHA256, m.Recipients, func(done, total int64) {
		m.at("encrypting")
		m.progress("encrypt", done, total)
	})
	if err != nil {
		return err
	}
	m.made = append(m.made, to)
	m.r.Bytes, m.r.SHA256 = out.n, out.hex()
	m.at("remove plain copy")
	return m.removeFile(plain)
}

// name writes the receipt and gives both files their names; see Create.
func (m *making) name() error {
	b, err := m.r.encode()
	if err != nil {
		return err
	}
	if err := m.r.readBack(b, m.path); err != nil {
		return err
	}
	receipt, suffix := m.path+receiptSuffix, m.suffix()
	m.at("write receipt")
	if err := writeNew(receipt+suffix, b); err != nil {
		return err
	}
	m.made = append(m.made, receipt+suffix)
	dir := filepath.Dir(m.path)
	if err := syncDir(dir); err != nil {
		return err
	}
	m.at("name file")
	if err := m.rename(m.path+suffix, m.path); err != nil {
		return err
	}
	m.at("sync file")
	if err := syncDir(dir); err != nil {
		return err
	}
	m.at("name receipt")
	if err := m.rename(receipt+suffix, receipt); err != nil {
		return err
	}
	m.at("sync receipt")
	if err := syncDir(dir); err != nil {
		return err
	}
	m.at("remove note")
	m.unnote()
	return nil
}

// rename is the rename of something that was made. A name that it has by now is
// one more to take away, also when the old one could not be taken from it.
func (m *making) rename(from, to string) error {
	named, err := rename(from, to, m.removeFile)
	if named {
		m.made = append(m.made, to)
	}
	return err
}

// undo removes what was made, the last first: a receipt goes before its file.
// What it cannot remove the next sweep finds.
func (m *making) undo() (err error) {
	for i := len(m.made) - 1; i >= 0; i-- {
		if e := m.removeFile(m.made[i]); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err == nil {
		m.unnote()
	}
	return err
}

// writeNew writes a small file that must not exist, durably.
func writeNew(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// rename gives a file its name unless something has it by now. A link cannot
// replace what is there; a file system without links gets a look and a rename.
// named reports whether the file has its name, error or not.
func rename(from, to string, remove func(string) error) (named bool, err error) {
	err = os.Link(from, to)
	switch {
	case err == nil:
		return true, remove(from)
	case errors.Is(err, fs.ErrExist):
		return false, fmt.Errorf("%w: %s: it came while the backup was taken", ErrExists, to)
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%w: %s: it came while the backup was taken", ErrExists, to)
	}
	err = os.Rename(from, to)
	return err == nil, err
}
