package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Store is what the desk needs of a store besides what the relay does with it.
type Store interface {
	jobs.Store
	backup.Source
	Maintain(ctx context.Context) error
}

// Options are what the desk of a store is made of.
type Options struct {
	Relay   *relay.Relay
	Store   Store
	Backups *backup.Folder
	// Key is the relay's private key, for drills; zero where it is not known.
	Key wire.PrivateKey
	// IdentityFile opens encrypted backups for the drill that nobody asked for.
	IdentityFile string
	// BackupSchedule and DrillSchedule are in cron's five fields, UTC; "" for none.
	BackupSchedule, DrillSchedule string
	// Hosted says that sessions of hosts end: accounts let them in. Issuer is those
	// accounts' in the process that serves the relay, else nil.
	Hosted  bool
	Issuer  Issuer
	Version string
	Now     func() time.Time // nil means time.Now
	Since   func() time.Duration
}

// Local is the Service in the process that has the store.
type Local struct {
	o       Options
	started time.Time
	jobs    *jobs.Runner
	folder  chan struct{} // holds a token while somebody adds to the folder of the backups or takes from it
}

var _ Service = (*Local)(nil)

// Begin sweeps away what an earlier process left of a backup or a drill. The
// store's lock is ours and none of our own runs yet. What cannot be swept is in
// nobody's way: it is only logged.
func (l *Local) Begin() {
	if err := l.o.Backups.SweepPartials(); err != nil {
		l.o.Backups.Log.Warn("leftovers of an earlier backup or drill stay", "err", err)
	}
}

// RunJobs does the store's periodic work until ctx ends.
func (l *Local) RunJobs(ctx context.Context) error { return l.jobs.Run(ctx) }

// Close ends the runs that are not finished.
func (l *Local) Close() error { return l.jobs.Close() }

func checkLimit(n int) error {
	if n < 1 || n > MaxLog {
		return fmt.Errorf("%w: limit: want 1 to %d", ErrBadRequest, MaxLog)
	}
	return nil
}

// RotateEpoch gives the store a new epoch.
func (l *Local) RotateEpoch(ctx context.Context, a Action) (string, error) {
	if err := a.check(); err != nil {
		return "", err
	}
	return l.o.Relay.RotateEpoch(ctx, a.Actor, a.Reason)
}

// Jobs lists the jobs and how each stands.
func (l *Local) Jobs(ctx context.Context) ([]jobs.State, error) { return l.jobs.States(ctx) }

// Runs lists runs, newest first.
func (l *Local) Runs(ctx context.Context, f RunFilter) ([]jobs.Run, error) {
	if err := checkLimit(f.Limit); err != nil {
		return nil, err
	}
	return l.jobs.Runs(ctx, f.Job, f.Before, f.Limit)
}

// StartJob begins a run.
func (l *Local) StartJob(ctx context.Context, q jobs.Request) (jobs.Run, error) {
	if err := (Action{Actor: q.By}).check(); err != nil {
		return jobs.Run{}, err
	}
	if q.By == jobs.BySchedule {
		return jobs.Run{}, fmt.Errorf("%w: nobody is called %q", ErrBadRequest, q.By)
	}
	return l.jobs.Start(ctx, q)
}

// Run tells how a run stands.
func (l *Local) Run(ctx context.Context, id int64) (jobs.Run, error) { return l.jobs.Find(ctx, id) }

// Backups lists the backups in the folder, newest first.
func (l *Local) Backups(ctx context.Context) ([]backup.Entry, error) {
	list, _, err := l.backups(ctx)
	return list, err
}

// PruneBackups removes the backups that are not to be kept, or only says which.
func (l *Local) PruneBackups(ctx context.Context, dryRun bool, a Action) ([]backup.Decision, error) {
	if dryRun {
		return l.o.Backups.Plan(ctx)
	}
	if err := a.check(); err != nil {
		return nil, err
	}
	select {
	case l.folder <- struct{}{}:
	default:
		return nil, fmt.Errorf("%w: a backup is being taken, and older ones are pruned after it", ErrRefused)
	}
	defer l.leave()
	done, err := l.o.Backups.Prune(ctx)
	return done, errors.Join(err, l.logPrune(ctx, done, a))
}

// enter waits for the folder of the backups, which may lie on a device that hangs.
func (l *Local) enter(ctx context.Context) error {
	select {
	case l.folder <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another backup has been at work all the time: %w", ctx.Err())
	}
}

func (l *Local) leave() { <-l.folder }

// logPrune writes to the log what a prune removed; one that removed nothing is
// no news.
func (l *Local) logPrune(ctx context.Context, done []backup.Decision, a Action) error {
	removed := []string{}
	for _, d := range done {
		if d.Remove {
			removed = append(removed, d.Path)
		}
	}
	if len(removed) == 0 {
		return nil
	}
	return l.log(ctx, "backup-prune", map[string]any{
		"v": 1, "type": "relay-backup-prune", "actor": a.Actor, "reason": a.Reason, "removed": removed, "kept": len(done) - len(removed),
	})
}

// askedLine is what the relay log says of a run that a person asked for.
type askedLine struct {
	V       int             `json:"v"`
	Type    string          `json:"type"`
	At      string          `json:"at"`
	Actor   string          `json:"actor"`
	Job     string          `json:"job"`
	Args    json.RawMessage `json:"args,omitempty"`
	Run     int64           `json:"run"`
	Confirm bool            `json:"confirm,omitempty"`
}

// logAsked writes into the relay log that somebody had a job run.
func logAsked(tx store.Tx, r jobs.Run, q jobs.Request) error {
	b, err := json.Marshal(askedLine{V: 1, Type: "relay-run-job", At: wire.FormatTime(r.StartedAt), Actor: q.By, Job: q.Job, Run: r.ID, Confirm: q.Confirm, Args: q.Args})
	if err != nil {
		return err
	}
	return tx.AppendLog(r.StartedAt.UTC(), "run-job", b)
}

// log writes a receipt to the relay log.
func (l *Local) log(ctx context.Context, op string, receipt any) error {
	b, err := json.Marshal(receipt)
	if err != nil {
		return err
	}
	// What was done was done, whoever has stopped to wait for it.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	at := l.o.Now().UTC()
	return l.o.Store.Update(ctx, func(tx store.Tx) error { return tx.AppendLog(at, op, b) })
}
