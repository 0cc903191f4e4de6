package sqlite

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/agentmbx/agentmbx/relay/store"
)

// A File is a store at rest: one finished file that nobody writes to, such as a
// backup. It is opened for reading only and leaves nothing beside it. Not safe
// for concurrent use.
type File struct {
	path string
	c    *conn
	info store.Info
}

// OpenFile opens the store file at path. It refuses, and names, what is none:
// ErrNotAStore for another program's database, an empty file or a copy that was
// abandoned, ErrNewerSchema, and a file that has a write-ahead log beside it,
// which is a live store or a part of one.
func OpenFile(path string) (_ *File, err error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	for _, suffix := range []string{"-wal", "-journal"} {
		if log, err := os.Lstat(path + suffix); err == nil && log.Size() > 0 {
			return nil, fmt.Errorf("%s: %w: a live store's database, whose newest changes stand in %s; take a backup of that store instead",
				path, ErrNotAtRest, path+suffix)
		}
	}
	if st.Size() == 0 {
		return nil, fmt.Errorf("%s: %w: the file is empty", path, ErrNotAStore)
	}
	if err := refuseForeign(path); err != nil {
		return nil, err
	}
	if err := refuseCut(path, st.Size()); err != nil {
		return nil, err
	}
	addr, err := address(path, "ro", filePragmas())
	if err != nil {
		return nil, err
	}
	c, err := openAddress(addr+"&immutable=1", path) // no lock, no log, no trace
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(plain(err, path), c.close())
		}
	}()
	f := &File{path: path, c: c}
	tables, err := reader{c}.pragma("schema_version")
	if err != nil {
		return nil, err
	}
	id, err := reader{c}.pragma("application_id")
	if err != nil {
		return nil, err
	}
	meta := false // a table, so that reading it runs nobody's view
	if _, err := c.one(func(row) { meta = true }, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'meta'"); err != nil {
		return nil, err
	}
	if tables == 0 || id != applicationID || !meta {
		return nil, fmt.Errorf("%w: it holds no store", ErrNotAStore)
	}
	if f.info, err = (reader{c}).Info(); err != nil {
		return nil, err
	}
	steps, err := migrations()
	if err != nil {
		return nil, err
	}
	switch {
	case f.info.Schema > len(steps):
		return nil, fmt.Errorf("%w: it has schema %d, this binary knows %d; use the newer binary", ErrNewerSchema, f.info.Schema, len(steps))
	case f.info.Schema < 1:
		return nil, fmt.Errorf("%w: it has no schema of ours", ErrNotAStore)
	}
	if err := checkTables(c, f.info.Schema); err != nil {
		return nil, err
	}
	if f.info.Schema < len(steps) {
		c.schema = f.info.Schema
	}
	return f, nil
}

// filePragmas are for a file that may be damaged or made to harm: pages are looked
// over before they are used, and what has to be sorted goes to disk.
func filePragmas() []string {
	return []string{"query_only(on)", "trusted_schema(off)", "cell_size_check(on)", "temp_store(file)", "cache_size(-16384)"}
}

// refuseCut refuses a file that is shorter than its own header says: a copy that
// was cut off.
func refuseCut(path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var h [100]byte
	if _, err := f.ReadAt(h[:], 0); err != nil {
		return fmt.Errorf("%s: %w: it is cut off in its header", path, ErrNotAStore)
	}
	page := int64(binary.BigEndian.Uint16(h[16:]))
	if page == 1 {
		page = 1 << 16
	}
	if want := page * int64(binary.BigEndian.Uint32(h[28:])); size < want {
		return fmt.Errorf("%s: %w: it is cut off: %d of %d bytes are there", path, ErrNotAStore, size, want)
	}
	return nil
}

// Info is what the file knows of itself.
func (f *File) Info() store.Info { return f.info }

// View runs fn over the file's content. A file of an older schema has no tables
// for what came later: fn must ask only for what Info().Schema has.
func (f *File) View(fn func(store.Reader) error) error {
	f.c.failed = nil
	return plain(fn(reader{f.c}), f.path)
}

// Check is Store.Check for a file at rest.
func (f *File) Check(ctx context.Context) error {
	f.c.failed = nil
	return f.c.during(ctx, func() error { return check(f.c, f.info.Schema) })
}

// Rows counts the rows of every table.
func (f *File) Rows() (map[string]int64, error) {
	var tables []string
	if err := f.c.query(func(r row) error { tables = append(tables, r.text(0)); return nil },
		"SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"); err != nil {
		return nil, plain(err, f.path)
	}
	rows := map[string]int64{}
	for _, t := range tables {
		if _, err := f.c.one(func(r row) { rows[t] = r.int(0) }, `SELECT count(*) FROM "`+t+`"`); err != nil {
			return nil, plain(err, f.path)
		}
	}
	return rows, nil
}

// Close lets the file go.
func (f *File) Close() error { return f.c.close() }
