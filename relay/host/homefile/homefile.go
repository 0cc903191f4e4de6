// Package homefile reads and writes the private files of a host's home: files
// that nobody else placed or can read, and that are never half written.
package homefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// MaxSize is how large a file may be that is read whole.
const MaxSize = 1 << 20

// ErrUnsafe matches the error for a home, or a file in it, that others may have
// placed, or may read.
var ErrUnsafe = errors.New("not safe to use")

// unsafeError is an ErrUnsafe that says what is wrong.
type unsafeError struct{ text string }

func (e *unsafeError) Error() string        { return e.text }
func (e *unsafeError) Is(target error) bool { return target == ErrUnsafe }

// Unsafe is an ErrUnsafe that says what is wrong.
func Unsafe(format string, args ...any) error { return &unsafeError{fmt.Sprintf(format, args...)} }

// Check refuses a file that others may have placed or may read. The error for a
// file that is not there matches os.ErrNotExist.
func Check(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	name := filepath.Base(path)
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		return Unsafe("%s is a symbolic link: put the file itself into the home", name)
	case !fi.Mode().IsRegular():
		return Unsafe("%s is not a regular file", name)
	case fi.Mode().Perm()&0o077 != 0:
		return Unsafe("%s can be read by others (mode %04o): run chmod 600 %s", name, fi.Mode().Perm(), path)
	}
	return nil
}

// Read reads a whole file that Check accepts.
func Read(path string) ([]byte, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Size() > MaxSize {
		return nil, fmt.Errorf("%s is over %d bytes", filepath.Base(path), MaxSize)
	}
	data := make([]byte, fi.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, err
	}
	return data, nil
}

// Write puts data under its final name in one step: a crash leaves the old file
// or the new one.
func Write(path string, data []byte) error { return put(path, data, os.Rename) }

// Make is Write for a name that is free. Of two that make it at once one wins;
// the error of the other matches os.ErrExist.
func Make(path string, data []byte) error { return put(path, data, os.Link) }

func put(path string, data []byte, name func(from, to string) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // after a rename there is nothing under it
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := name(tmp.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes what was renamed in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
