package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

const runColumns = "id, job, asked_by, holder, started_at, finished_at, coalesce(outcome, ''), detail"

func run(row row) store.Run {
	return store.Run{ID: row.int(0), Job: row.text(1), AskedBy: row.text(2), Holder: row.text(3),
		StartedAt: row.time(4), FinishedAt: row.time(5), Outcome: row.text(6), Detail: row.text(7)}
}

func (r reader) Runs(job string, before int64, limit int) (list []store.Run, err error) {
	query, args := "SELECT "+runColumns+" FROM job_runs WHERE id < ? ORDER BY id DESC LIMIT ?", []any{from(before), limit}
	if job != "" {
		query, args = "SELECT "+runColumns+" FROM job_runs WHERE job = ? AND id < ? ORDER BY id DESC LIMIT ?", []any{job, from(before), limit}
	}
	err = r.c.query(func(row row) error { list = append(list, run(row)); return nil }, query, args...)
	return list, err
}

func (r reader) LastRun(job, outcome string) (last store.Run, err error) {
	ok, err := r.c.one(func(row row) { last = run(row) },
		"SELECT "+runColumns+" FROM job_runs WHERE job = ? AND outcome IS ? ORDER BY id DESC LIMIT 1", job, optional(outcome))
	return last, found(ok, err)
}

func (r reader) Run(id int64) (it store.Run, err error) {
	ok, err := r.c.one(func(row row) { it = run(row) }, "SELECT "+runColumns+" FROM job_runs WHERE id = ?", id)
	return it, found(ok, err)
}

func (r reader) State(name string) (value []byte, err error) {
	ok, err := r.c.one(func(row row) { value = []byte(row.text(0)) }, "SELECT value FROM state WHERE name = ?", name)
	return value, found(ok, err)
}

func (t *tx) StartRun(r store.Run) (int64, error) {
	left, err := t.LastRun(r.Job, "")
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return 0, err
	case left.Holder == r.Holder:
		return 0, fmt.Errorf("%w: %s, since %s", store.ErrRunning, r.Job, left.StartedAt.Format(time.RFC3339))
	default:
		if _, err := t.c.exec("UPDATE job_runs SET finished_at = ?, outcome = ?, detail = ? WHERE id = ?",
			r.StartedAt, store.OutcomeCrashed, "its process ended before it did", left.ID); err != nil {
			return 0, err
		}
	}
	var id int64
	err = t.c.query(func(row row) error { id = row.int(0); return nil },
		"INSERT INTO job_runs (job, asked_by, holder, started_at, detail) VALUES (?, ?, ?, ?, ?) RETURNING id",
		r.Job, r.AskedBy, r.Holder, r.StartedAt, r.Detail)
	return id, err
}

func (t *tx) FinishRun(r store.Run, keep int) error {
	ended, job := false, "" // as it was started: that says whose runs may go
	err := t.c.query(func(row row) error { ended, job = true, row.text(0); return nil },
		"UPDATE job_runs SET finished_at = ?, outcome = ?, detail = ? WHERE id = ? AND finished_at IS NULL RETURNING job",
		r.FinishedAt, r.Outcome, r.Detail, r.ID)
	if err := found(ended, err); err != nil {
		return err
	}
	_, err = t.c.exec(`DELETE FROM job_runs WHERE job = ?1 AND finished_at IS NOT NULL
		AND id <= (SELECT id FROM job_runs WHERE job = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)
		AND id IS NOT (SELECT max(id) FROM job_runs WHERE job = ?1 AND outcome = 'ok')`, job, keep)
	return err
}

func (t *tx) SetState(name string, value []byte) (err error) {
	if value == nil {
		_, err = t.c.exec("DELETE FROM state WHERE name = ?", name)
		return err
	}
	if bytes.IndexByte(value, 0) >= 0 { // SQLite's json_valid looks no further than there
		return t.c.fail(fmt.Errorf("state %s is no JSON: it has a zero byte", name))
	}
	_, err = t.c.exec("INSERT OR REPLACE INTO state (name, value) VALUES (?, ?)", name, string(value))
	return err
}
