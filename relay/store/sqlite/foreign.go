package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrForeign: a file is no store of a TypeScript relay that could be taken over.
var ErrForeign = errors.New("not a relay store that can be imported")

// tsSchema is the newest schema of a TypeScript relay that is known here.
const tsSchema = 2

// foreign is the store of a TypeScript relay, read row by row. Nothing in it is
// trusted: its tables have no types that would hold, and any program may have
// written them.
type foreign struct {
	c      *conn
	path   string // as the operator named it
	schema int
	have   map[string]map[string]bool // tables and their columns
}

// A tsColumn is a column of a foreign table.
type tsColumn struct {
	name string
	most int64 // bytes it may have
	from int   // the schema that brought it: an older store may lack it
}

// Sizes that no relay's row exceeds. An item's is far above max_item_bytes.
const (
	tsShort = 1 << 12
	tsLong  = 1 << 20
	tsWire  = 64 << 20
)

// A tsTable is a table of a TypeScript relay's store: its columns in the order
// in which they are read here, and its primary key, in whose order its rows come.
type tsTable struct {
	name    string
	from    int
	columns []tsColumn
	key     string
}

// The tables, by name.
var tsTables = map[string]tsTable{
	"meta": {"meta", 1, []tsColumn{{"k", tsShort, 1}, {"v", tsLong, 1}}, "k"},
	"enrolments": {"enrolments", 1, []tsColumn{{"host_pubkey", tsShort, 1}, {"host_name", tsShort, 1}, {"owner_fp", tsShort, 1},
		{"enrolled_at", tsShort, 1}, {"revoked_at", tsShort, 1}, {"account", tsShort, 2}, {"org", tsShort, 3}, {"authorized_by", tsShort, 2}}, "host_pubkey"},
	"enc_ads": {"enc_ads", 1, []tsColumn{{"host_pubkey", tsShort, 1}, {"enc_pub", tsShort, 1}, {"sig", tsShort, 1}, {"at", tsShort, 1},
		{"host_name", tsShort, 2}}, "host_pubkey"},
	"enc_ad_records": {"enc_ad_records", 2, []tsColumn{{"host_pubkey", tsShort, 1}, {"record", tsLong, 1}, {"sig", tsShort, 1}, {"at", tsShort, 1}}, "host_pubkey"},
	"items": {"items", 1, []tsColumn{{"target_pubkey", tsShort, 1}, {"seq", tsShort, 1}, {"kind", tsShort, 1}, {"item_id", tsShort, 1},
		{"sender_pubkey", tsShort, 1}, {"wire_hash", tsShort, 1}, {"bytes", tsShort, 1}, {"accepted_at", tsShort, 1}, {"wire", tsWire, 1},
		{"expires_at", tsShort, 2}, {"sender_host", tsShort, 2}}, "target_pubkey,seq"},
	"dedup": {"dedup", 1, []tsColumn{{"sender_pubkey", tsShort, 1}, {"item_id", tsShort, 1}, {"target_pubkey", tsShort, 1}, {"wire_hash", tsShort, 1},
		{"seq", tsShort, 1}, {"accepted_at", tsShort, 1}}, "sender_pubkey,item_id,target_pubkey"},
	"seqs":  {"seqs", 1, []tsColumn{{"target_pubkey", tsShort, 1}, {"next_seq", tsShort, 1}}, "target_pubkey"},
	"acked": {"acked", 1, []tsColumn{{"target_pubkey", tsShort, 1}, {"acked_through", tsShort, 1}}, "target_pubkey"},
	"sender_lists": {"sender_lists", 2, []tsColumn{{"target_pubkey", tsShort, 1}, {"senders", tsLong, 1}, {"iat", tsShort, 1},
		{"record", tsLong, 1}, {"sig", tsShort, 1}}, "target_pubkey"},
	"ops": {"ops", 2, []tsColumn{{"id", tsShort, 1}, {"at", tsShort, 1}, {"op", tsShort, 1}, {"receipt", tsLong, 1}}, "id"},
}

// openForeign opens the store in the file at path, which nobody else writes to,
// and looks whether it is one. name is what to call it.
func openForeign(path, name string) (_ *foreign, err error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", name, ErrForeign, fmt.Sprintf(format, args...))
	}
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, bad("it is not a file")
	case st.Size() == 0:
		return nil, bad("it is empty")
	}
	addr, err := address(path, "ro", readerPragmas())
	if err != nil {
		return nil, err
	}
	c, err := openAddress(addr+"&immutable=1", path) // no lock, no log, no trace
	if err != nil {
		return nil, foreignError(name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	f := &foreign{c: c, path: name}
	id, err := reader{c}.pragma("application_id")
	if err != nil {
		return nil, foreignError(name, err)
	}
	if id == applicationID {
		return nil, bad("it is a store of this relay already; to restore a backup use: agentmbx relay restore %s", name)
	}
	if err := f.look(); err != nil {
		return nil, foreignError(name, err)
	}
	return f, nil
}

// foreignError says what a driver's error means for a foreign store. One that
// says it already stays as it is.
func foreignError(name string, err error) error {
	switch {
	case err == nil, errors.Is(err, ErrForeign), errors.Is(err, ErrNewerSchema):
		return err
	case errors.Is(err, ErrNotAStore):
		return fmt.Errorf("%s: %w: it is no SQLite database", name, ErrForeign)
	case code(err) == 0:
		return err
	}
	return fmt.Errorf("%s: %w: it is damaged: %w", name, ErrForeign, err)
}

// look finds out which tables and columns there are, and the schema.
func (f *foreign) look() error {
	f.have = map[string]map[string]bool{}
	keys := map[string][]string{}
	if err := f.c.query(func(r row) error {
		table := r.text(0)
		if f.have[table] == nil {
			f.have[table] = map[string]bool{}
		}
		f.have[table][r.text(1)] = true
		if r.int(2) > 0 {
			keys[table] = append(keys[table], r.text(1))
		}
		return nil
	}, `SELECT s.name, c.name, c.pk FROM sqlite_schema s JOIN pragma_table_xinfo(s.name) c
		WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY s.name, c.pk LIMIT 10000`); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", f.path, ErrForeign, fmt.Sprintf(format, args...))
	}
	if !f.have["meta"]["k"] || !f.have["meta"]["v"] {
		return bad("it has no table meta; want the relay.db of a TypeScript AgentMBX relay")
	}
	version := ""
	if _, err := f.c.one(func(r row) { version = r.text(0) }, "SELECT substr(v, 1, 20) FROM meta WHERE k = 'schema_version'"); err != nil {
		return err
	}
	if _, err := fmt.Sscanf(version, "%d", &f.schema); err != nil || f.schema < 1 || fmt.Sprint(f.schema) != version {
		return bad("its schema_version is %.20q; want 1 or 2", version)
	}
	if f.schema > tsSchema {
		return fmt.Errorf("%s: %w: it has schema %d of the TypeScript relay, this binary knows %d; use a newer agentmbx", f.path, ErrNewerSchema, f.schema, tsSchema)
	}
	for _, t := range tsTables {
		if f.have[t.name] == nil {
			if t.from <= f.schema {
				return bad("it has no table %s", t.name)
			}
			continue
		}
		for _, c := range t.columns {
			if c.from <= f.schema && !f.have[t.name][c.name] {
				return bad("table %s has no column %s", t.name, c.name)
			}
		}
		if strings.Join(keys[t.name], ",") != t.key {
			return bad("table %s has the primary key (%.100s); want (%s)", t.name, strings.Join(keys[t.name], ","), t.key)
		}
	}
	return nil
}

// unknown lists what stays behind: tables and columns that are not known here.
func (f *foreign) unknown() (list []string) {
	for table, columns := range f.have {
		t, ok := tsTables[table]
		if !ok {
			list = append(list, fmt.Sprintf("table %.60q", table))
			continue
		}
	columns:
		for c := range columns {
			for _, known := range t.columns {
				if known.name == c {
					continue columns
				}
			}
			list = append(list, fmt.Sprintf("column %.60q of table %s", c, table))
		}
	}
	return list
}

// integrity has SQLite look over the file.
func (f *foreign) integrity() error {
	var faults []string
	if err := f.c.query(func(r row) error {
		if r.text(0) != "ok" {
			faults = append(faults, r.text(0))
		}
		return nil
	}, "PRAGMA integrity_check(3)"); err != nil {
		return foreignError(f.path, err)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s: %w: it is damaged: %.300s", f.path, ErrForeign, strings.Join(faults, "; "))
	}
	return nil
}

// count counts the rows of all that will be read.
func (f *foreign) count() (total int64, err error) {
	for name := range tsTables {
		if f.have[name] == nil {
			continue
		}
		if _, err := f.c.one(func(r row) { total += r.int(0) }, "SELECT count(*) FROM "+name); err != nil {
			return 0, foreignError(f.path, err)
		}
	}
	return total, nil
}

// rows calls each for the rows of a table, in the order of its primary key. A
// value over its column's bound is never loaded. A table that is not there has
// none.
func (f *foreign) rows(ctx context.Context, table string, each func(r *tsRow) error) error {
	t := tsTables[table]
	if f.have[table] == nil {
		return nil
	}
	r := &tsRow{f: f, t: &t}
	var columns, over []string
	for _, c := range t.columns {
		if !f.have[table][c.name] {
			columns = append(columns, "NULL")
			continue
		}
		// Beside the bound, it hides the declared type, by which the driver might convert.
		columns = append(columns, fmt.Sprintf("CASE WHEN octet_length(%s) > %d THEN NULL ELSE %[1]s END", c.name, c.most))
		over = append(over, fmt.Sprintf("WHEN octet_length(%s) > %d THEN '%[1]s'", c.name, c.most))
	}
	columns = append(columns, "CASE "+strings.Join(over, " ")+" END")
	err := f.c.query(func(v row) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.n, r.v, r.err = r.n+1, v, nil
		if big, ok := v[len(t.columns)].(string); ok {
			return r.bad(big, "it is too large")
		}
		return each(r)
	}, "SELECT "+strings.Join(columns, ", ")+" FROM "+table+" ORDER BY "+t.key)
	return foreignError(f.path, err)
}
