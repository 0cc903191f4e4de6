package host

import "fmt"

// maxDue is how many rows of a queue one tick takes.
const maxDue = 200

// queue is a table of rows that wait for a host, each until its next_at.
type queue struct {
	nextHost string   // the first host after one
	hasDue   string   // whether a host has a row that is due
	rows     []string // a host's rows that are due, most urgent first
}

// A row is due when its time has come, and when it waits for longer than any
// backoff: a clock that was ahead has put it there.
var (
	timeHasCome = "fold = ?1 AND next_at <= ?2"
	tooFarAhead = fmt.Sprintf("fold = ?1 AND next_at > ?2 + %d", maxBackoff.Milliseconds())
)

var (
	mailQueue    = newQueue("outbox", "msg, state = 'repush', attempts")
	receiptQueue = newQueue("receipts_out", "msg, recipient, seq, wire, attempts, relay")
)

func newQueue(table, columns string) queue {
	rows := func(when string) string {
		return "SELECT " + columns + " FROM " + table + " WHERE " + when + " ORDER BY next_at, msg LIMIT ?3"
	}
	return queue{
		nextHost: "SELECT min(fold) FROM " + table + " WHERE fold > ?",
		hasDue:   "SELECT 1 FROM " + table + " WHERE " + timeHasCome + " UNION ALL SELECT 1 FROM " + table + " WHERE " + tooFarAhead + " LIMIT 1",
		rows:     []string{rows(timeHasCome), rows(tooFarAhead)},
	}
}

// due gives take the rows that are due, at most maxDue in all, shared out evenly
// over the hosts that have any: one host's backlog keeps nobody else's waiting.
// It reports whether there are more.
func (q queue) due(t *tx, take func(fold string, scan func(...any) error) error) (more bool, err error) {
	folds, err := q.hosts(t)
	if err != nil || len(folds) == 0 {
		return false, err
	}
	share, total := max(1, maxDue/len(folds)), 0
	for _, fold := range folds {
		n := 0
		for _, rows := range q.rows {
			err := t.each(rows, []any{fold, t.now, share + 1 - n}, func(scan func(...any) error) error {
				if n++; n > share || total == maxDue {
					more = true
					return nil
				}
				total++
				return take(fold, scan)
			})
			if err != nil {
				return false, err
			}
		}
	}
	return more, nil
}

// hosts are those that have due rows. It steps from host to host in the index:
// what it costs grows with the hosts, not with the rows.
func (q queue) hosts(t *tx) (folds []string, err error) {
	for last := ""; ; {
		var next *string
		if _, err := t.get(q.nextHost, []any{last}, &next); err != nil || next == nil {
			return folds, err
		}
		last = *next
		var one int
		found, err := t.get(q.hasDue, []any{last, t.now}, &one)
		if err != nil {
			return nil, err
		}
		if found {
			folds = append(folds, last)
		}
	}
}
