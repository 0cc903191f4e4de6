package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/agentmbx/agentmbx/relay/store"
)

// A backup leaves as much room as the store itself wants before it takes new
// mail: a backup that stops the mail is no help.
const mostLeft = 32 << 20

// margin is what stays free on a device besides a backup: mostLeft, or a tenth of
// a small device. size 0 is not known.
func margin(size int64) int64 {
	if size > 0 {
		return min(mostLeft, size/10)
	}
	return mostLeft
}

func statfs(dir string) (free, size int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}

// free tells the room in dir, and the size of its device where that is known.
func (f *Folder) free(dir string) (free, size int64, err error) {
	if f.Free != nil {
		free, err = f.Free(dir)
		return free, 0, err
	}
	return statfs(dir)
}

func noRoom(dir string, need, free int64, what string) error {
	return fmt.Errorf("%w in %s %s: it needs %s, %s are free", ErrNoRoom, dir, what, mebibytes(need), mebibytes(free))
}

// mebibytes rounds up, so that what is asked for is enough.
func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }

// makeRoom looks, before anything is written, whether a backup of src fits into
// the folder. It removes older backups when that is enough, and never the newest
// verified one.
func (f *Folder) makeRoom(ctx context.Context, src Source) (removed []string, err error) {
	copies := int64(1)
	if len(f.Recipients) > 0 {
		copies = 2 // the plain copy stays until the encrypted one is whole
	}
	missing, err := f.missing(ctx, src, f.Dir, copies)
	if missing == 0 {
		return nil, err
	}
	short := fmt.Errorf("%w; make room there, or set MBX_BACKUP_DIR to a folder on a larger disk", err)
	list, err := f.List(ctx)
	if err != nil {
		return nil, err
	}
	if _, room := f.spare(list, missing); room < missing {
		return nil, short
	}
	if list, err = f.proven(ctx, list); err != nil {
		return nil, err
	}
	spare, room := f.spare(list, missing)
	if room < missing {
		return nil, short
	}
	for _, e := range spare {
		f.log().Warn("removing a backup to make room for the next", "file", e.Path, "bytes", e.Receipt.Bytes)
		if err := f.remove(e); err != nil {
			return removed, err
		}
		removed = append(removed, e.Path)
	}
	return removed, nil
}

// roomFor is makeRoom for a backup to a file in dir. Nothing is removed for it.
func (f *Folder) roomFor(ctx context.Context, src Source, dir string) error {
	copies := int64(1)
	if len(f.Recipients) > 0 { // the plain copy is made in the folder
		if sameDevice(dir, f.Dir) {
			copies = 2
		} else if _, err := f.missing(ctx, src, f.Dir, 1); err != nil {
			return fmt.Errorf("%w; a plain copy is made there first: make room there, or set MBX_BACKUP_DIR to a folder on a larger disk", err)
		}
	}
	if _, err := f.missing(ctx, src, dir, copies); err != nil {
		return fmt.Errorf("%w; name a file on a larger disk", err)
	}
	return nil
}

// missing tells the bytes that dir lacks for so many copies of src, with ErrNoRoom;
// 0 and nil when they fit.
func (f *Folder) missing(ctx context.Context, src Source, dir string, copies int64) (int64, error) {
	z, err := src.Size(ctx)
	if err != nil {
		return 0, err
	}
	free, size, err := f.free(dir)
	if err != nil {
		return 0, fmt.Errorf("look at the room in %s: %w", dir, err)
	}
	need := copies*(z.Data+z.Log) + margin(size) // the log may hold as many new pages
	if free >= need {
		return 0, nil
	}
	return need - free, noRoom(dir, need, free, "for a backup")
}

func sameDevice(a, b string) bool {
	var sa, sb syscall.Stat_t
	return syscall.Stat(a, &sa) == nil && syscall.Stat(b, &sb) == nil && sa.Dev == sb.Dev
}

// spare picks the oldest verified backups that make up for want bytes; the newest
// is never one of them. room is what they take.
func (f *Folder) spare(list []Entry, want int64) (spare []Entry, room int64) {
	kept := verified(list)
	for i := len(kept) - 1; i > 0 && room < want; i-- {
		spare = append(spare, kept[i])
		room += kept[i].Receipt.Bytes
	}
	return spare, room
}

// full puts a disk that filled up while a backup was written into words that
// cannot be taken for the store's own disk.
func full(err error, dir string) error {
	if errors.Is(err, store.ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w in %s: it filled up while the backup was written, and nothing of that was kept; make room there, or set MBX_BACKUP_DIR to a folder on a larger disk", ErrNoRoom, dir)
	}
	return err
}

// notWritable says what to do where a backup cannot be written.
func (f *Folder) notWritable(err error, dir string) error {
	if err == nil || errors.Is(err, ErrRefused) || !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EPERM) {
		return err
	}
	if dir == f.Dir {
		return fmt.Errorf("the backup folder %s cannot be written to: %w; make it writable for uid %d, or set MBX_BACKUP_DIR to another folder", dir, err, os.Getuid())
	}
	return fmt.Errorf("the folder %s cannot be written to: %w; make it writable for uid %d, or name a file elsewhere", dir, err, os.Getuid())
}

// prepare makes the folder, and refuses one that others could put files into.
func (f *Folder) prepare() error {
	if !filepath.IsAbs(f.Dir) {
		return fmt.Errorf("%w: the backup folder %s is no absolute path", ErrRefused, f.Dir)
	}
	st, err := os.Lstat(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(f.Dir, 0o700); err != nil {
			return fmt.Errorf("make the backup folder: %w", err)
		}
		if err := syncDir(filepath.Dir(f.Dir)); err != nil {
			return err
		}
		st, err = os.Lstat(f.Dir)
	}
	if err != nil {
		return fmt.Errorf("look at the backup folder: %w", err)
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%w: the backup folder %s is a symbolic link: name the folder it leads to", ErrRefused, f.Dir)
	case !st.IsDir():
		return f.noFolder()
	case st.Mode().Perm()&0o077 == 0:
		return nil
	}
	mine := ownedByUs(st)
	if ours, err := f.onlyOurs(); err != nil {
		return err
	} else if mine && ours {
		return os.Chmod(f.Dir, 0o700)
	}
	if st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: others may write to the backup folder %s (mode %04o): run chmod 700 on it, or set MBX_BACKUP_DIR to a folder of its own",
			ErrRefused, f.Dir, st.Mode().Perm())
	}
	return nil // others may look at its names; the files in it are 0600
}

func (f *Folder) noFolder() error {
	return fmt.Errorf("%w: the backup folder %s is not a folder: move it away, or set MBX_BACKUP_DIR", ErrRefused, f.Dir)
}

// onlyOurs reports whether nothing stands in the folder but what we put there.
func (f *Folder) onlyOurs() (bool, error) {
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return false, fmt.Errorf("look at the backup folder: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if name != "lost+found" && name != f.noteName() && !ownName.MatchString(name) && !f.partial().MatchString(name) {
			return false, nil
		}
	}
	return true, nil
}

func ownedByUs(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Getuid()
}

// syncDir makes what was renamed in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
