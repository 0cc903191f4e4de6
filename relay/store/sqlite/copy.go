package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	driverpkg "modernc.org/sqlite"
)

// A copy goes in steps of copyStep pages, 2 MiB. Each is made durable before the
// next, and then the disk belongs to others for as long as the step took: whoever
// leaves a gigabyte to be flushed at the end keeps every commit waiting for it.
const (
	copyStep  = 256
	longPause = 100 * time.Millisecond // between two steps
)

// Copy writes the store as it is at one moment to path, a file that must not
// exist yet, and makes it durable there. Writers are not kept waiting. What it
// leaves is one file in rollback form, which needs no log beside it. After an
// error the file is gone again; a crash leaves a part of it, which OpenFile
// refuses. progress may be nil.
func (s *Store) Copy(ctx context.Context, path string, progress func(done, total int64)) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			err = fmt.Errorf("copy the store to %s: %w", path, errors.Join(err, os.Remove(path)))
		}
	}()
	if err := s.copyPages(ctx, path, f, progress); err != nil {
		return plain(err, path)
	}
	// The copy says of itself, at bytes 18 and 19, that it has a write-ahead
	// log: whoever only reads it would make one beside it.
	if _, err := f.WriteAt([]byte{1, 1}, 18); err != nil {
		return err
	}
	if err := seal(ctx, f); err != nil {
		return err
	}
	err = errors.Join(f.Sync(), f.Close())
	f = nil
	return err
}

// copyPages copies from a connection of its own, inside one read transaction:
// without it every commit in between would begin the copy anew. Only the last
// step's word that nothing remains makes it a copy; Finish is content with less.
func (s *Store) copyPages(ctx context.Context, path string, f *os.File, progress func(done, total int64)) (err error) {
	c, err := openConn(s.path, "ro", readerPragmas())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if _, err := c.exec("BEGIN"); err != nil {
		return err
	}
	if _, err := (reader{c}).Info(); err != nil { // the first read takes the snapshot
		return err
	}
	to, err := address(path, "rw", []string{"journal_mode(off)", "synchronous(off)"}) // f.Sync makes it durable
	if err != nil {
		return err
	}
	b, err := c.c.(interface {
		NewBackup(string) (*driverpkg.Backup, error)
	}).NewBackup(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Finish()) }()
	for more := true; more; {
		began := time.Now()
		if more, err = b.Step(copyStep); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if progress != nil {
			total := int64(b.PageCount()) * pageSize
			progress(total-int64(b.Remaining())*pageSize, total)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(time.Since(began), longPause)):
		}
	}
	return nil
}
