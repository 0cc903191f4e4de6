package host

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

const (
	applicationID = 0x4d425831 // "MBX1": another program's database is not ours
	schemaVersion = 2
	dbFile        = "host.db"
)

// Errors about host.db, each with what to do.
var (
	ErrForeignDB = errors.New("host.db is not an agentmbx host database: move it away, or set MBX_HOME to the right folder")
	ErrNewerDB   = errors.New("host.db was written by a newer agentmbx: use that version")
	ErrNoDB      = errors.New("host.db is missing: put back a copy of it; to start over without its mail and its peers, move config.json away and run agentmbx init")
	ErrDamagedDB = errors.New("host.db is damaged: move host.db, host.db-wal and host.db-shm away together and put back a copy of them")
)

// db is host.db: one connection that writes and two that read, with their
// prepared statements. Other processes may write at the same time; each waits
// up to ten seconds for its turn. Safe for concurrent use.
type db struct {
	pool    *sql.DB
	writer  *conn
	writing sync.Mutex
	readers chan *conn
	now     func() time.Time
}

// conn is one connection. Statements are prepared once.
type conn struct {
	c     *sql.Conn
	stmts map[string]*sql.Stmt
}

// openDB opens host.db in home. With create it makes one that is not there.
func openDB(ctx context.Context, home string, create bool, now func() time.Time) (*db, error) {
	path := filepath.Join(home, dbFile)
	switch err := homefile.Check(path); {
	case errors.Is(err, os.ErrNotExist) && !create:
		return nil, ErrNoDB
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	if create {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	pool, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, err
	}
	d := &db{pool: pool, readers: make(chan *conn, 2), now: now}
	if err := d.start(ctx, create); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// dsn carries every pragma of a connection: one sent later would reach one
// connection only. The journal's mode is the file's: see start.
func dsn(path string) string {
	q := url.Values{"_pragma": {
		"busy_timeout(10000)", "synchronous(full)", "foreign_keys(on)",
		"trusted_schema(off)", "temp_store(memory)", "cache_size(-8192)", "journal_size_limit(16777216)",
	}}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

func (d *db) start(ctx context.Context, create bool) error {
	var err error
	if d.writer, err = d.connect(ctx); err != nil {
		return err
	}
	if err := d.migrate(ctx, create); err != nil {
		return err
	}
	// Only now: it writes to the file, which may have been another program's.
	if _, err := d.writer.c.ExecContext(ctx, "PRAGMA journal_mode = wal"); err != nil {
		return dbError(err)
	}
	for range cap(d.readers) {
		c, err := d.connect(ctx)
		if err != nil {
			return err
		}
		d.readers <- c
	}
	return nil
}

func (d *db) connect(ctx context.Context) (*conn, error) {
	c, err := d.pool.Conn(ctx)
	if err != nil {
		return nil, dbError(err)
	}
	return &conn{c: c, stmts: map[string]*sql.Stmt{}}, nil
}

// schemaOf is the version of the database's schema, 0 for an empty one. It
// returns ErrForeignDB or ErrNewerDB for one that is not for us.
func schemaOf(t *tx) (version int64, err error) {
	var app, tables int64
	if _, err := t.get("SELECT count(*) FROM sqlite_schema", nil, &tables); err != nil {
		return 0, err
	}
	if _, err := t.get("PRAGMA application_id", nil, &app); err != nil {
		return 0, err
	}
	if _, err := t.get("PRAGMA user_version", nil, &version); err != nil {
		return 0, err
	}
	switch {
	case app != applicationID && (app != 0 || tables > 0 || version > 0):
		return 0, ErrForeignDB
	case version > schemaVersion:
		return 0, ErrNewerDB
	}
	return version, nil
}

// schemas are the scripts that lead from each version to the next.
var schemas = [schemaVersion]string{"001_host.sql", "002_sessions.sql"}

// migrate checks whose database this is and brings its schema up to date, in
// one transaction. An empty one is filled only when it was to be made: in a
// home that has a host it is all that is left of its mail.
func (d *db) migrate(ctx context.Context, create bool) error {
	return d.write(ctx, func(t *tx) error {
		version, err := schemaOf(t)
		switch {
		case err != nil || version == schemaVersion:
			return err
		case version == 0 && !create:
			return ErrDamagedDB
		}
		for _, name := range schemas[version:] {
			script, err := schemaFiles.ReadFile("schema/" + name)
			if err != nil {
				return err
			}
			if _, err := t.c.c.ExecContext(ctx, string(script)); err != nil {
				return err
			}
		}
		_, err = t.c.c.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, schemaVersion))
		return err
	})
}

// close closes every connection and its statements. The pool alone would leave
// those that are taken out of it open, and with them the log beside the database.
func (d *db) close() error {
	var errs []error
	if d.writer != nil {
		errs = append(errs, d.writer.close())
	}
	for {
		select {
		case c := <-d.readers:
			errs = append(errs, c.close())
			continue
		default:
		}
		return errors.Join(append(errs, d.pool.Close())...)
	}
}

// write runs fn in a transaction of its own and returns after its commit. When
// it returns an error, nothing of fn is stored. No caller's context reaches
// into it: half a transaction is no use to anyone.
func (d *db) write(ctx context.Context, fn func(t *tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	return dbError(d.writer.in("BEGIN IMMEDIATE", d.now(), fn))
}

// read runs fn over one snapshot.
func (d *db) read(ctx context.Context, fn func(t *tx) error) error {
	select {
	case c := <-d.readers:
		defer func() { d.readers <- c }()
		return dbError(c.in("BEGIN", d.now(), fn))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// changes is a number that moves when another process has committed. Asking
// costs microseconds.
func (d *db) changes() (n int64, err error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	st, err := d.writer.prepare("PRAGMA data_version")
	if err == nil {
		err = st.QueryRow().Scan(&n)
	}
	return n, dbError(err)
}

func (c *conn) in(begin string, now time.Time, fn func(t *tx) error) (err error) {
	ctx := context.Background()
	if _, err := c.c.ExecContext(ctx, begin); err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // fn failed, panicked, or the commit did: SQLite may have rolled back itself
			_, _ = c.c.ExecContext(ctx, "ROLLBACK")
		}
	}()
	t := &tx{c: c, now: now.UnixMilli()}
	if err := fn(t); err != nil {
		return err
	}
	if t.failed != nil {
		return t.failed
	}
	if _, err := c.c.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	done = true
	return nil
}

func (c *conn) close() error {
	var errs []error
	for _, st := range c.stmts {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, c.c.Close())...)
}

func (c *conn) prepare(query string) (*sql.Stmt, error) {
	if st := c.stmts[query]; st != nil {
		return st, nil
	}
	st, err := c.c.PrepareContext(context.Background(), query)
	if err == nil {
		c.stmts[query] = st
	}
	return st, err
}

// tx is a transaction. After a statement has failed every other one fails the
// same way: SQLite may have rolled the whole of it back (a full disk does it),
// and what follows would commit alone.
type tx struct {
	c      *conn
	now    int64 // milliseconds
	failed error
}

// exec runs a statement and says how many rows it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	if t.failed != nil {
		return 0, t.failed
	}
	st, err := t.c.prepare(query)
	if err != nil {
		return 0, t.fail(err)
	}
	r, err := st.Exec(args...)
	if err != nil {
		return 0, t.fail(err)
	}
	return r.RowsAffected()
}

// get reads the first row of a query into dest and says whether there was one.
func (t *tx) get(query string, args []any, dest ...any) (bool, error) {
	if t.failed != nil {
		return false, t.failed
	}
	st, err := t.c.prepare(query)
	if err != nil {
		return false, t.fail(err)
	}
	err = st.QueryRow(args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, t.fail(err)
	}
	return true, nil
}

// each calls fn for every row of a query.
func (t *tx) each(query string, args []any, fn func(scan func(dest ...any) error) error) (err error) {
	if t.failed != nil {
		return t.failed
	}
	st, err := t.c.prepare(query)
	if err != nil {
		return t.fail(err)
	}
	rows, err := st.Query(args...)
	if err != nil {
		return t.fail(err)
	}
	defer func() {
		if err2 := errors.Join(rows.Err(), rows.Close()); err == nil && err2 != nil {
			err = t.fail(err2)
		}
	}()
	for rows.Next() {
		if err := fn(rows.Scan); err != nil {
			return err
		}
	}
	return nil
}

// fail remembers the first error.
func (t *tx) fail(err error) error {
	t.failed = err
	return err
}

// savepoint runs fn so that its failure undoes its own work only. An error
// that SQLite answered by rolling back everything stays the transaction's.
func (t *tx) savepoint(fn func() error) error {
	if _, err := t.exec("SAVEPOINT item"); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		err = t.failed
	}
	if err == nil {
		_, err = t.exec("RELEASE item")
		return err
	}
	failed := t.failed
	t.failed = nil
	if _, back := t.exec("ROLLBACK TO item"); back != nil {
		t.failed = errors.Join(failed, back)
		return t.failed
	}
	_, back := t.exec("RELEASE item")
	return errors.Join(err, back)
}

// check looks for damage.
func (d *db) check(ctx context.Context) error {
	return d.read(ctx, func(t *tx) error {
		var word string
		if _, err := t.get("PRAGMA quick_check(1)", nil, &word); err != nil {
			return err
		}
		if word != "ok" {
			return ErrDamagedDB
		}
		return nil
	})
}

// Primary result codes of SQLite that people can do something about.
const (
	codeBusy       = 5
	codeReadOnly   = 8
	codeIO         = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCantOpen   = 14
	codeConstraint = 19
	codeNotADB     = 26
)

// dbError puts what SQLite says into plain words.
func dbError(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case codeBusy:
		return fmt.Errorf("host.db is busy: another agentmbx has been writing for ten seconds: %w", err)
	case codeReadOnly, codeCantOpen:
		return fmt.Errorf("host.db can't be opened for writing by uid %d: check the owner of its folder: %w", os.Getuid(), err)
	case codeCorrupt:
		return fmt.Errorf("%w: %w", ErrDamagedDB, err)
	case codeNotADB:
		return fmt.Errorf("%w: %w", ErrForeignDB, err)
	case codeFull:
		return fmt.Errorf("the disk is full: nothing was stored: %w", err)
	case codeIO:
		return fmt.Errorf("the disk failed under host.db: %w", err)
	}
	return err
}

// isConstraint reports an error that the data itself caused.
func isConstraint(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == codeConstraint
}
