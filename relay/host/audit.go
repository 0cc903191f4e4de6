package host

import (
	"context"
	"time"
)

// maxAudit is how many entries are kept.
const maxAudit = 10_000

// Event is an entry of the host's audit: something that happened to its keys,
// its peers or its mail that nobody asked for just then.
type Event struct {
	At     time.Time `json:"at"`
	Event  string    `json:"event"`
	Detail string    `json:"detail"`
}

// audit writes an entry and drops the oldest one over the limit.
func audit(t *tx, event, detail string) error {
	if len(detail) > 500 {
		detail = detail[:500]
	}
	if _, err := t.exec("INSERT INTO audit (at, event, detail) VALUES (?, ?, ?)", t.now, event, printable(detail)); err != nil {
		return err
	}
	_, err := t.exec("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", maxAudit)
	return err
}

// Audit returns the newest entries, newest first; of one event, or of all for "".
func (h *Host) Audit(ctx context.Context, event string, limit int) (events []Event, err error) {
	events = []Event{}
	err = h.db.read(ctx, func(t *tx) error {
		return t.each(`SELECT at, event, detail FROM audit WHERE ?1 = '' OR event = ?1 ORDER BY id DESC LIMIT ?2`, []any{event, limit},
			func(scan func(...any) error) error {
				var e Event
				var at int64
				err := scan(&at, &e.Event, &e.Detail)
				e.At = time.UnixMilli(at).UTC()
				events = append(events, e)
				return err
			})
	})
	return events, err
}

// printable replaces what a terminal could take for a command.
func printable(s string) string {
	out := []rune(s)
	for i, r := range out {
		if r < 0x20 || 0x7f <= r && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfffd {
			out[i] = '?'
		}
	}
	return string(out)
}
