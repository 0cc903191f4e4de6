package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// listing is which part of a list is wanted, and in which form.
type listing struct {
	limit     int
	all       bool
	cursor    string // how the flag is called that says where to begin: after or before
	from      string
	json      bool
	jsonLines bool
}

// bindListing gives a command the flags of a list of the desk.
func bindListing(cmd *cobra.Command, cursor string) *listing {
	f := &listing{cursor: cursor}
	cmd.Flags().IntVar(&f.limit, "limit", 50, "how many at most")
	cmd.Flags().BoolVar(&f.all, "all", false, "list to the end")
	cmd.Flags().StringVar(&f.from, cursor, "", "go on where a list ended: the `place` it named")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&f.jsonLines, "json-lines", false, "print one JSON object a line")
	cmd.MarkFlagsMutuallyExclusive("json", "json-lines")
	cmd.MarkFlagsMutuallyExclusive("limit", "all")
	return f
}

func (f *listing) check() error {
	if f.limit < 1 || f.limit > admin.MaxPage {
		return usage(fmt.Errorf("--limit is %d: want 1 to %d, or --all", f.limit, admin.MaxPage))
	}
	return nil
}

// list is how rows of one kind are fetched and shown.
type list[T any] struct {
	one, many string // what a row is called
	heading   string // columns, with tabs between them
	cells     func(T) []string
	page      func(p admin.Paging) (admin.Page[T], error)
}

// printList prints rows as they come, a page of the Service at a time, until there
// are as many as were asked for. A page may have few rows, or none, and go on.
func printList[T any](e env, f *listing, l list[T]) error {
	out := rows[T]{list: l, json: f.json, lines: f.jsonLines}
	from := f.from
	for {
		p := admin.Paging{After: from, Limit: admin.MaxPage}
		if !f.all {
			p.Limit = f.limit - out.n
		}
		page, err := l.page(p)
		if err == nil && page.Next != "" && page.Next == from {
			err = errors.New("the desk answers the same page again and again")
		}
		if err != nil {
			return deskError(err)
		}
		from = page.Next
		if err := out.add(page.Items); err != nil {
			return err
		}
		out.looked += page.Looked
		over := from == "" || !f.all && out.n >= f.limit
		if over {
			out.end(from)
		}
		if err := out.flush(e.out); err != nil {
			return err
		}
		if over {
			return out.tell(e.errw, f.cursor, from)
		}
	}
}

// rows prints rows in one of three forms, piece by piece.
type rows[T any] struct {
	list[T]
	json, lines bool
	bare        bool // the document is the list alone
	n           int
	looked      int64
	buf         bytes.Buffer
}

func (r *rows[T]) add(items []T) error {
	if !r.json && !r.lines {
		r.addTable(items)
		return nil
	}
	for _, it := range items {
		if r.json {
			r.buf.WriteString(r.before())
		}
		enc := json.NewEncoder(&r.buf)
		enc.SetEscapeHTML(false)
		if r.json {
			enc.SetIndent(r.indent(), "  ")
		}
		if err := enc.Encode(it); err != nil {
			return err
		}
		if r.json {
			r.buf.Truncate(r.buf.Len() - 1) // the newline: a comma may follow
		}
		r.n++
	}
	return nil
}

// before is what stands before the next element of the document.
func (r *rows[T]) before() string {
	switch {
	case r.n > 0:
		return ",\n" + r.indent()
	case r.bare:
		return "[\n" + r.indent()
	}
	return "{\n  \"items\": [\n" + r.indent()
}

func (r *rows[T]) indent() string {
	if r.bare {
		return "  "
	}
	return "    "
}

func (r *rows[T]) addTable(items []T) {
	if len(items) == 0 {
		return
	}
	w := tabwriter.NewWriter(&r.buf, 0, 8, 2, ' ', 0)
	if r.n == 0 {
		fmt.Fprintln(w, r.heading)
	}
	for _, it := range items {
		fmt.Fprintln(w, tabbed(r.cells(it)...))
	}
	_ = w.Flush() // into memory
	r.n += len(items)
}

// tabbed makes a line of a table. Whatever a cell holds, it stays in its place.
func tabbed(cells ...string) string {
	for i, c := range cells {
		cells[i] = printable(c)
	}
	return strings.Join(cells, "\t")
}

// end finishes a document.
func (r *rows[T]) end(next string) {
	switch {
	case !r.json:
		return
	case r.bare && r.n == 0:
		r.buf.WriteString("[]\n")
		return
	case r.bare:
		r.buf.WriteString("\n]\n")
		return
	}
	if r.n == 0 {
		r.buf.WriteString("{\n  \"items\": []")
	} else {
		r.buf.WriteString("\n  ]")
	}
	if next != "" {
		at, _ := json.Marshal(next) // a string
		fmt.Fprintf(&r.buf, ",\n  \"next\": %s", at)
	}
	fmt.Fprintf(&r.buf, ",\n  \"looked\": %d\n}\n", r.looked)
}

func (r *rows[T]) flush(out io.Writer) error {
	b := r.buf.Bytes()
	if r.json || r.lines {
		b = escapeJSON(b)
	}
	_, err := out.Write(b)
	r.buf.Reset()
	return err
}

// tell says how many there were, and how to go on. A document says so itself.
func (r *rows[T]) tell(errw io.Writer, cursor, next string) error {
	if r.json {
		return nil
	}
	text := r.count()
	if next != "" {
		text += fmt.Sprintf("; more with --%s %s", cursor, printable(next))
	}
	_, err := fmt.Fprintln(errw, text)
	return err
}

func (r *rows[T]) count() string {
	if r.n == 0 {
		return "no " + r.many
	}
	return counted(r.n, r.one, r.many)
}

func counted[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// timeOr is a time for people, "-" when there is none.
func timeOr(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return wire.FormatTime(t)
}

// backwards makes pages of a list that is told by the ids of its rows, the newest
// first: a place in it is the last id that was seen. fetch tells whether there are
// more rows than it found.
func backwards[T any](p admin.Paging, id func(T) int64, fetch func(before int64, limit int) (found []T, more bool, err error)) (page admin.Page[T], err error) {
	before, err := rowID(p.After, "--before")
	if err != nil {
		return page, err
	}
	found, more, err := fetch(before, p.Limit)
	if err != nil {
		return page, err
	}
	page.Items, page.Looked = found, int64(len(found))
	if more {
		page.Next = fmt.Sprint(id(found[len(found)-1]))
	}
	return page, nil
}

// facts prints names and values, a line each.
func facts(out io.Writer, lines ...[2]string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, l := range lines {
		fmt.Fprintf(w, "%s\t%s\n", l[0], printable(l[1]))
	}
	return w.Flush()
}

// listCommand makes cmd a list of the desk. What can be said of its flags without
// the desk is checked before it is reached, by check.
func listCommand[T any](e env, cmd *cobra.Command, cursor string, check func() error, of func(ctx context.Context, svc admin.Service) (list[T], error)) {
	at := bindDesk(cmd)
	f := bindListing(cmd, cursor)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := f.check(); err != nil || check == nil {
			return err
		}
		return check()
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return at.with(cmd.Context(), e, func(svc admin.Service, _ bool) error {
			l, err := of(cmd.Context(), svc)
			if err != nil {
				return err
			}
			return printList(e, f, l)
		})
	}
}
