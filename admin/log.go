package admin

import (
	"bytes"
	"cmp"
	"context"
	"strings"

	"github.com/agentmbx/agentmbx/relay/store"
)

// MaxLogBytes is how much the receipts of one answer hold before it ends early.
const MaxLogBytes = 2 << 20

// logAhead is how many lines are read from the store at a time: a receipt of 500
// items is no short line.
const logAhead = 50

// Log lists the relay log, newest first.
func (l *Local) Log(ctx context.Context, f LogFilter) ([]LogEntry, error) {
	if err := cmp.Or(checkLimit(f.Limit), checkText("op", f.Op), checkText("text", f.Text)); err != nil {
		return nil, err
	}
	entries := []LogEntry{}
	text := []byte(strings.ToLower(f.Text))
	err := l.o.Store.View(ctx, func(r store.Reader) error {
		size := 0
		for looked := 0; looked < MaxLook; {
			n := min(logAhead, MaxLook-looked)
			if f.Text == "" {
				n = min(n, f.Limit-len(entries))
			}
			lines, err := r.Log(f.Op, f.Before, n)
			if err != nil {
				return err
			}
			for _, o := range lines {
				if !bytes.Contains([]byte(o.Op), text) && !bytes.Contains(bytes.ToLower(o.Receipt), text) {
					continue
				}
				entries = append(entries, LogEntry{ID: o.ID, At: o.At, Op: o.Op, Receipt: o.Receipt})
				if size += len(o.Receipt); len(entries) == f.Limit || size > MaxLogBytes {
					return nil
				}
			}
			if len(lines) < n {
				return nil
			}
			looked, f.Before = looked+n, lines[n-1].ID
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return nil
	})
	return entries, err
}

// LogPage asks a desk for lines of its log, and whether older ones follow.
func LogPage(ctx context.Context, svc Service, f LogFilter) (list []LogEntry, more bool, err error) {
	if list, err = svc.Log(ctx, f); err != nil || len(list) == 0 {
		return list, false, err
	}
	f.Before, f.Limit = list[len(list)-1].ID, 1
	older, err := svc.Log(ctx, f)
	return list, len(older) > 0, err
}
