package sqlite

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

// continues reports whether the replaced store went on from what the backup
// holds: it is the same store by its birth, and its log has the newest line of
// the backup's that it need not have dropped. A store that was restored from an
// older backup since is of the same birth, and did not; nor did one of an older
// schema.
func (c *carry) continues() (bool, error) {
	mine, err := c.t.Info()
	if err != nil {
		return false, err
	}
	theirs, err := c.from.Info()
	if err != nil || !mine.CreatedAt.Equal(theirs.CreatedAt) || mine.RelayKey != theirs.RelayKey || c.schema < c.backup {
		return false, err
	}
	lines, err := c.t.lines()
	if err != nil {
		return false, err
	}
	now, err := c.from.lines()
	if err != nil {
		return false, err
	}
	byID, oldest, kept := map[int64]store.Op{}, map[string]int64{}, map[string]int{}
	for _, l := range slices.Backward(now) {
		byID[l.ID], oldest[l.Op] = l, l.ID
		kept[l.Op]++
	}
	for _, l := range slices.Backward(lines) {
		if there, ok := byID[l.ID]; ok {
			return sameLine(l, there), nil
		}
		if kept[l.Op] < store.LogKeep || l.ID > oldest[l.Op] {
			return false, nil
		}
	}
	return true, nil
}

// lines are the whole log, oldest first.
func (r reader) lines() (list []store.Op, err error) {
	err = r.c.query(func(row row) error {
		list = append(list, store.Op{ID: row.int(0), At: row.time(1), Op: row.text(2), Receipt: []byte(row.text(3))})
		return nil
	}, "SELECT id, at, op, receipt FROM ops ORDER BY id")
	return list, err
}

func sameLine(a, b store.Op) bool {
	return a.At.Equal(b.At) && a.Op == b.Op && string(a.Receipt) == string(b.Receipt)
}

// log goes on: the replaced store's lines, and of the backup's those that it
// does not have. Where the two are no continuation of each other they are put in
// order of time, under new ids.
func (c *carry) log() error {
	mine, err := c.t.lines()
	if err != nil {
		return err
	}
	theirs, err := c.from.lines()
	if err != nil {
		return err
	}
	type text struct{ at, op, receipt any }
	words := func(l store.Op) text { return text{l.At, l.Op, string(l.Receipt)} }
	known, next := map[text]bool{}, int64(1)
	for _, l := range mine {
		known[words(l)] = true
		next = max(next, l.ID+1)
	}
	all := slices.Clone(mine)
	for _, l := range theirs {
		next = max(next, l.ID+1)
		if !known[words(l)] {
			all = append(all, l)
			c.done.LogLines++
		}
	}
	if !c.descends {
		slices.SortStableFunc(all, func(a, b store.Op) int { return a.At.Compare(b.At) })
		for i := range all {
			all[i].ID = next + int64(i)
		}
	}
	if _, err := c.t.c.exec("DELETE FROM ops"); err != nil {
		return err
	}
	for _, l := range all {
		if _, err := c.t.c.exec("INSERT OR REPLACE INTO ops (id, at, op, receipt) VALUES (?, ?, ?, ?)", l.ID, l.At, l.Op, string(l.Receipt)); err != nil {
			return err
		}
	}
	_, err = c.t.c.exec(`DELETE FROM ops WHERE id IN (SELECT id FROM
		(SELECT id, row_number() OVER (PARTITION BY op ORDER BY id DESC) n FROM ops) WHERE n > ?)`, store.LogKeep)
	return err
}

func (r reader) everyRun() (list []store.Run, err error) {
	err = r.c.query(func(row row) error { list = append(list, run(row)); return nil }, "SELECT "+runColumns+" FROM job_runs ORDER BY id")
	return list, err
}

// runs goes on with the history of jobs: that of the replaced store, and when it
// did not go on from the backup, of both in the order of time.
func (c *carry) runs() error {
	all, err := c.from.everyRun()
	if err != nil {
		return err
	}
	if !c.descends {
		mine, err := c.t.everyRun()
		if err != nil {
			return err
		}
		next := int64(1)
		for _, r := range append(mine, all...) {
			next = max(next, r.ID+1)
		}
		same := func(a, b store.Run) bool {
			return a.Job == b.Job && a.Holder == b.Holder && a.StartedAt.Equal(b.StartedAt)
		}
		mine = slices.DeleteFunc(mine, func(m store.Run) bool {
			return slices.ContainsFunc(all, func(r store.Run) bool { return same(m, r) })
		})
		all = append(mine, all...)
		slices.SortStableFunc(all, func(a, b store.Run) int { return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID)) })
		for i := range all {
			all[i].ID = next + int64(i)
		}
	}
	if _, err := c.t.c.exec("DELETE FROM job_runs"); err != nil {
		return err
	}
	for _, r := range all {
		c.crashed(&r)
		if _, err := c.t.c.exec(`INSERT INTO job_runs (id, job, asked_by, holder, started_at, finished_at, outcome, detail)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, r.ID, r.Job, r.AskedBy, r.Holder, r.StartedAt, r.FinishedAt, r.Outcome, r.Detail); err != nil {
			return err
		}
	}
	return nil
}

const endedEarly = "its process ended before it did"

// crashed ends a run that nobody runs any more.
func (c *carry) crashed(r *store.Run) {
	if r.FinishedAt.IsZero() {
		r.FinishedAt, r.Outcome, r.Detail = c.r.At, store.OutcomeCrashed, endedEarly
	}
}

// endRuns ends those that the backup found running.
func (c *carry) endRuns() error {
	_, err := c.t.c.exec("UPDATE job_runs SET finished_at = ?, outcome = ?, detail = ? WHERE finished_at IS NULL",
		c.r.At, store.OutcomeCrashed, endedEarly)
	return err
}

// state takes over what the program remembers between its runs: the replaced
// store's word is newer. What a process suspected, wanted or trusted when the backup
// was taken goes; the consumed paths of both stay consumed.
func (c *carry) state() error {
	mine, err := restoredPaths(c.t.reader)
	if err != nil {
		return also(err, errBackup)
	}
	theirs, err := restoredPaths(c.from)
	if err != nil {
		return err
	}
	for path, at := range theirs {
		if _, ok := mine[path]; !ok {
			c.done.RestoredPaths++
		}
		mine[path] = at
	}
	if _, err := c.t.c.exec("DELETE FROM state WHERE name IN (?, ?) OR substr(name, 1, ?) = ?", stateClock, stateKeys, len(stateWanted), stateWanted); err != nil {
		return err
	}
	if err := c.from.c.query(func(r row) error {
		return c.t.SetState(r.text(0), []byte(r.text(1)))
	}, "SELECT name, value FROM state"); err != nil {
		return err
	}
	if len(mine) == 0 {
		return nil
	}
	return c.t.setJSON(stateRestored, mine)
}

// restoredPaths are the paths that MBX_RELAY_RESTORE_FROM restored, and when.
func restoredPaths(r reader) (map[string]time.Time, error) {
	paths := map[string]time.Time{}
	value, err := r.State(stateRestored)
	if errors.Is(err, store.ErrNotFound) {
		return paths, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(value, &paths); err != nil || paths == nil {
		return nil, also(fmt.Errorf("the list of restored paths cannot be read: %.100q", value), ErrDamaged)
	}
	return paths, nil
}
