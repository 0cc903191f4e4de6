package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
	driverpkg "modernc.org/sqlite"
)

// conn is one SQLite connection with its prepared statements. It speaks to the
// driver itself: database/sql costs as much per statement as SQLite does, and
// its pool may hand a statement another connection. Not safe for concurrent use.
type conn struct {
	c     driver.Conn
	stmts map[string]statement
	args  []driver.NamedValue

	// failed is the first error of a statement since the last clear. After it
	// every other statement answers the same: when SQLite rolls a transaction
	// back by itself (as on a full disk), what follows would commit alone.
	failed error

	// schema of a file that is read as it is, where that is an older one; else 0.
	schema int

	// ctx ends the queries of a long read; see during.
	ctx context.Context

	// fault, set in tests, is asked before and after each statement.
	fault func(query string, done bool) error
}

type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// newStore are the statements that make a database, before its first page is
// written: in a connection's address they would come after it. Pages of 8 KiB
// hold two envelopes each and halve the writes of a batch; the next size costs
// single items more than it saves.
var newStore = []string{fmt.Sprintf("PRAGMA page_size = %d", pageSize), "PRAGMA auto_vacuum = incremental", "PRAGMA journal_mode = wal"}

const pageSize = 8192

// Connection pragmas go into the address: one sent later would reach only the
// connection it was sent on.
func writerPragmas(logPages int64) []string {
	return []string{
		"journal_mode(wal)", "synchronous(full)", "busy_timeout(5000)",
		"foreign_keys(on)", "trusted_schema(off)", "temp_store(memory)", "cache_size(-16384)",
		fmt.Sprintf("journal_size_limit(%d)", 2*logPages*pageSize), fmt.Sprintf("wal_autocheckpoint(%d)", logPages),
	}
}

func readerPragmas() []string {
	return []string{"query_only(on)", "busy_timeout(5000)", "trusted_schema(off)", "temp_store(memory)", "cache_size(-4096)"}
}

// address is the file URI of a database. Only a URI can be opened read-only:
// with a plain path the driver ignores mode=ro and creates the file.
func address(path, mode string, pragmas []string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	q := url.Values{"mode": {mode}, "_pragma": pragmas}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs), RawQuery: q.Encode()}).String(), nil
}

func openConn(path, mode string, pragmas []string) (*conn, error) {
	addr, err := address(path, mode, pragmas)
	if err != nil {
		return nil, err
	}
	return openAddress(addr, path)
}

func openAddress(addr, path string) (*conn, error) {
	c, err := (&driverpkg.Driver{}).Open(addr)
	if err != nil {
		return nil, plain(err, path)
	}
	return &conn{c: c, stmts: map[string]statement{}}, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.c.Close())...)
}

// ready finds the prepared statement and lays out its arguments.
func (c *conn) ready(query string, args []any) (statement, error) {
	if c.failed != nil {
		return nil, c.failed
	}
	s, ok := c.stmts[query]
	if !ok {
		p, err := c.c.Prepare(query)
		if err != nil {
			return nil, err
		}
		s = p.(statement)
		c.stmts[query] = s
	}
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: value(a)})
	}
	return s, nil
}

// value is how a Go value is bound.
func value(a any) driver.Value {
	switch v := a.(type) {
	case wire.PublicKey:
		return v[:]
	case [32]byte:
		return v[:]
	case time.Time:
		if v.IsZero() {
			return nil
		}
		return v.UnixMilli()
	case int:
		return int64(v)
	}
	return a
}

// optional binds an empty string as NULL.
func optional(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (c *conn) fail(err error) error {
	if err != nil && c.failed == nil {
		c.failed = err
	}
	return err
}

func (c *conn) exec(query string, args ...any) (affected int64, err error) {
	return c.execute(context.Background(), query, args)
}

// execLong is exec for a statement that writes as much as a whole store holds:
// it ends with the context of during, and SQLite rolls its transaction back then.
func (c *conn) execLong(query string, args ...any) (affected int64, err error) {
	return c.execute(c.context(), query, args)
}

func (c *conn) context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

func (c *conn) execute(ctx context.Context, query string, args []any) (affected int64, err error) {
	if c.fault != nil {
		if err := c.fault(query, false); err != nil {
			return 0, c.fail(err)
		}
	}
	s, err := c.ready(query, args)
	if err != nil {
		return 0, c.fail(err)
	}
	res, err := s.ExecContext(ctx, c.args)
	if err == nil && c.fault != nil {
		err = c.fault(query, true)
	}
	if err != nil {
		return 0, c.fail(err)
	}
	return res.RowsAffected()
}

// query calls each for every row until it answers an error.
func (c *conn) query(each func(r row) error, query string, args ...any) (err error) {
	if c.fault != nil {
		if err := c.fault(query, false); err != nil {
			return c.fail(err)
		}
		defer func() {
			if err == nil {
				err = c.fail(c.fault(query, true))
			}
		}()
	}
	s, err := c.ready(query, args)
	if err != nil {
		return c.fail(err)
	}
	ctx := c.context()
	rows, err := s.QueryContext(ctx, c.args)
	if err != nil {
		return c.fail(err)
	}
	defer func() {
		if e := rows.Close(); e != nil && err == nil {
			err = c.fail(e)
		}
	}()
	for n := len(rows.Columns()); ; {
		dest := make(row, n)
		if err := rows.Next(dest); err == io.EOF {
			return nil
		} else if err != nil {
			return c.fail(err)
		}
		if err := ctx.Err(); err != nil { // the driver looks at it for the first row only
			return err
		}
		if err := each(dest); err != nil {
			return err
		}
	}
}

// during runs fn, whose queries end with ctx: a statement that reads a whole store
// takes longer than anybody who stops the process will wait.
func (c *conn) during(ctx context.Context, fn func() error) error {
	c.ctx = ctx
	defer func() { c.ctx = nil }()
	err := fn()
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // whatever the interrupted statement said
	}
	return err
}

// one reads a single row and reports whether there was one.
func (c *conn) one(get func(r row), query string, args ...any) (found bool, err error) {
	err = c.query(func(r row) error {
		get(r)
		found = true
		return errStop
	}, query, args...)
	if err == errStop {
		err = nil
	}
	return found, err
}

var errStop = errors.New("enough rows")

// row is one row as the driver hands it over. The accessors answer the zero
// value for NULL; the schema is STRICT, so no other type can stand there.
type row []driver.Value

func (r row) int(i int) int64 { v, _ := r[i].(int64); return v }

func (r row) text(i int) string { v, _ := r[i].(string); return v }

func (r row) bytes(i int) []byte { v, _ := r[i].([]byte); return v }

func (r row) key(i int) (k wire.PublicKey) { copy(k[:], r.bytes(i)); return k }

func (r row) hash(i int) (h [32]byte) { copy(h[:], r.bytes(i)); return h }

func (r row) time(i int) time.Time {
	if v, ok := r[i].(int64); ok {
		return time.UnixMilli(v).UTC()
	}
	return time.Time{}
}
