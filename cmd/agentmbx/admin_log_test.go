package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
)

// longLog is a desk with a log of long receipts, newest first.
type longLog struct {
	admin.Service
	entries []admin.LogEntry
}

func (l longLog) Log(_ context.Context, f admin.LogFilter) (list []admin.LogEntry, _ error) {
	size := 0
	for _, e := range l.entries {
		if f.Before != 0 && e.ID >= f.Before || f.Op != "" && e.Op != f.Op {
			continue
		}
		if len(list) == f.Limit || size > admin.MaxLogBytes {
			break
		}
		size += len(e.Receipt)
		list = append(list, e)
	}
	return list, nil
}

// pieces remembers what was printed, and the largest piece of it.
type pieces struct {
	bytes.Buffer
	most int
}

func (p *pieces) Write(b []byte) (int, error) {
	p.most = max(p.most, len(b))
	return p.Buffer.Write(b)
}

// A log of long receipts is printed whole, an answer of the desk at a time.
func TestLogsOfLongReceipts(t *testing.T) {
	t.Parallel()
	var l longLog
	for i := range 100 {
		l.entries = append(l.entries, admin.LogEntry{ID: int64(100 - i), At: time.Unix(1800000000, 0).UTC(), Op: "hold", Receipt: []byte(`{"x":"` + strings.Repeat("x", 111_000) + `"}`)})
	}
	list := list[admin.LogEntry]{one: "line", many: "lines", heading: "ID\tRECEIPT",
		cells: func(l admin.LogEntry) []string { return []string{fmt.Sprint(l.ID), string(l.Receipt)} },
		page: func(p admin.Paging) (admin.Page[admin.LogEntry], error) {
			return backwards(p, func(l admin.LogEntry) int64 { return l.ID }, func(before int64, limit int) ([]admin.LogEntry, bool, error) {
				return admin.LogPage(t.Context(), l, admin.LogFilter{Before: before, Limit: limit})
			})
		}}
	for _, tt := range []struct {
		name  string
		print func(out io.Writer) error
		lines int
		doc   bool
	}{
		{"relay log", func(out io.Writer) error {
			return printLog(t.Context(), out, l, admin.LogFilter{Limit: admin.MaxLog}, false)
		}, 100, false},
		{"relay log --json", func(out io.Writer) error {
			return printLog(t.Context(), out, l, admin.LogFilter{Limit: admin.MaxLog}, true)
		}, 100, true},
		{"relay log --limit 57 --json", func(out io.Writer) error { return printLog(t.Context(), out, l, admin.LogFilter{Limit: 57}, true) }, 57, true},
		{"relay log --op none --json", func(out io.Writer) error {
			return printLog(t.Context(), out, l, admin.LogFilter{Op: "none", Limit: 50}, true)
		}, 0, true},
		{"relay admin log --all --json", func(out io.Writer) error {
			return printList(env{out: out, errw: io.Discard}, &listing{all: true, cursor: "before", json: true}, list)
		}, 100, false},
		{"relay admin log --all --json-lines", func(out io.Writer) error {
			return printList(env{out: out, errw: io.Discard}, &listing{all: true, cursor: "before", jsonLines: true}, list)
		}, 100, false},
		{"relay admin log --limit 57", func(out io.Writer) error {
			return printList(env{out: out, errw: io.Discard}, &listing{limit: 57, cursor: "before"}, list)
		}, 57, false},
	} {
		var out pieces
		if err := tt.print(&out); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if n := strings.Count(out.String(), strings.Repeat("x", 111_000)); n != tt.lines {
			t.Errorf("%s: got %d lines; want %d", tt.name, n, tt.lines)
		}
		if out.most > 2*admin.MaxLogBytes {
			t.Errorf("%s: got %d bytes printed at once; want an answer of the desk", tt.name, out.most)
		}
		if tt.doc {
			var got []admin.LogEntry
			if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != tt.lines {
				t.Errorf("%s: got %d entries, %v; want %d", tt.name, len(got), err, tt.lines)
			}
		}
	}
}

// A list says whether there is more, also where it ends just there.
func TestLogSaysWhetherThereIsMore(t *testing.T) {
	t.Parallel()
	var l longLog
	for i := range 3 {
		l.entries = append(l.entries, admin.LogEntry{ID: int64(3 - i), Op: "hold", Receipt: []byte(`{}`)})
	}
	for limit, want := range map[int]string{2: "2 lines; more with --before 2\n", 3: "3 lines\n", 4: "3 lines\n"} {
		var told bytes.Buffer
		err := printList(env{out: io.Discard, errw: &told}, &listing{limit: limit, cursor: "before"}, list[admin.LogEntry]{one: "line", many: "lines",
			cells: func(admin.LogEntry) []string { return nil },
			page: func(p admin.Paging) (admin.Page[admin.LogEntry], error) {
				return backwards(p, func(l admin.LogEntry) int64 { return l.ID }, func(before int64, limit int) ([]admin.LogEntry, bool, error) {
					return admin.LogPage(t.Context(), l, admin.LogFilter{Before: before, Limit: limit})
				})
			}})
		if err != nil || told.String() != want {
			t.Errorf("limit %d: got %q, %v; want %q", limit, told.String(), err, want)
		}
	}
}
