package admin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/agentmbx/agentmbx/relay/store"
)

// maxLogBytes is the most that the receipts of one answer hold together.
const maxLogBytes = 16 << 20

// Log lists the relay log, newest first.
func (l *Local) Log(ctx context.Context, f LogFilter) ([]LogEntry, error) {
	if err := cmp.Or(checkLimit(f.Limit), checkText("op", f.Op), checkText("text", f.Text)); err != nil {
		return nil, err
	}
	entries := []LogEntry{}
	text := []byte(strings.ToLower(f.Text))
	err := l.o.Store.View(ctx, func(r store.Reader) error {
		for looked, size := 0, 0; len(entries) < f.Limit && looked < MaxLook; {
			n := min(lookAhead, MaxLook-looked)
			lines, err := r.Log(f.Op, f.Before, n)
			if err != nil {
				return err
			}
			for _, o := range lines {
				f.Before = o.ID
				if len(entries) < f.Limit && (bytes.Contains(bytes.ToLower(o.Receipt), text) || bytes.Contains([]byte(o.Op), text)) {
					entries = append(entries, LogEntry{ID: o.ID, At: o.At, Op: o.Op, Receipt: o.Receipt})
					size += len(o.Receipt)
				}
			}
			if size > maxLogBytes {
				return fmt.Errorf("%w: the last %d lines hold over %d MiB: ask for fewer at once", ErrBadRequest, len(entries), maxLogBytes>>20)
			}
			if looked += len(lines); len(lines) < n {
				return nil
			}
		}
		return ctx.Err()
	})
	return entries, err
}
