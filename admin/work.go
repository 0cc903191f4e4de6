package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/backup/drill"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Names of the jobs.
const (
	JobHeartbeat = "heartbeat"
	JobSweep     = "sweep"
	JobBackup    = "backup"
	JobDrill     = "drill"
	// What somebody does with a file of their own says nothing of whether the
	// folder's backups are taken and can be restored, so these are other jobs.
	JobBackupFile = "backup-file"
	JobDrillFile  = "drill-file"
	JobVerify     = "verify"
	JobCheckpoint = "checkpoint"
	JobDisk       = "disk"
	JobJWKS       = "jwks" // on a hosted relay alone
	JobDeny       = "deny"
)

// NewLocal makes the desk of a store that this process has.
func NewLocal(o Options) (*Local, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Local{o: o, started: o.Now(), folder: make(chan struct{}, 1)}
	var err error
	l.jobs, err = jobs.New(jobs.Options{
		Store: o.Store, Code: Kind, Asked: logAsked, Now: o.Now, Since: o.Since, Log: o.Backups.Log,
		Jumped: func(ctx context.Context, by time.Duration) {
			// What it cannot write it has logged; the next jump, or start, says it again.
			_ = o.Relay.SuspectClock(ctx, fmt.Sprintf("the clock moved by %s while the relay ran", by.Round(time.Second)))
		},
		Jobs: l.work(),
	})
	return l, err
}

// work lists the jobs of a store.
func (l *Local) work() []jobs.Job {
	list := []jobs.Job{
		{Name: JobHeartbeat, Every: relay.BeatEvery, Timeout: time.Minute, Do: l.heartbeat},
		{Name: JobSweep, Every: relay.SweepEvery, AtStart: true, Do: l.sweep},
		{Name: JobBackup, Cron: l.o.BackupSchedule, Timeout: 6 * time.Hour, Do: l.backup},
		{Name: JobDrill, Cron: l.o.DrillSchedule, Timeout: 6 * time.Hour, Do: l.drill},
		{Name: JobBackupFile, Timeout: 6 * time.Hour, Do: l.backupFile},
		{Name: JobDrillFile, Timeout: 6 * time.Hour, Do: l.drillFile},
		{Name: JobVerify, Timeout: 6 * time.Hour, Do: l.verify},
		{Name: JobCheckpoint, Every: 5 * time.Minute, Timeout: 10 * time.Minute, Do: l.checkpoint},
		{Name: JobDisk, Every: time.Minute, Timeout: time.Minute, Do: l.disk},
		{Name: JobDeny, Every: time.Minute, Timeout: time.Minute, Do: l.deny},
	}
	if l.o.Issuer != nil {
		list = append(list, jobs.Job{Name: JobJWKS, Every: 10 * time.Minute, AtStart: true, Timeout: time.Minute, Do: l.refreshKeys})
	}
	return list
}

func (l *Local) heartbeat(ctx context.Context, _ *jobs.Task) (string, error) {
	return "", l.o.Relay.Beat(ctx)
}

// sweep expires what is over. One that a clock jump holds has failed until
// somebody confirms it, or its hour is over.
func (l *Local) sweep(ctx context.Context, t *jobs.Task) (string, error) {
	do := l.o.Relay.Sweep
	if t.Confirm {
		do = l.o.Relay.SweepConfirmed
	}
	r, err := do(ctx)
	if err != nil {
		var held *relay.HeldSweepError
		if errors.As(err, &held) {
			return "", fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return "", err
	}
	t.Result = r
	return fmt.Sprintf("%d expired, %d notices, %d dedup rows pruned", r.Expired.Envelopes+r.Expired.Receipts+r.Expired.Notices, r.Notices, r.Pruned), nil
}

// args reads what a request asks for.
func args(t *jobs.Task, to any) error {
	if len(t.Args) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(t.Args))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return nil
}

// BackupArgs ask for a backup to a file.
type BackupArgs struct {
	File string `json:"file"`
}

func (l *Local) backupFile(ctx context.Context, t *jobs.Task) (string, error) {
	var a BackupArgs
	if err := args(t, &a); err != nil {
		return "", err
	}
	if !filepath.IsAbs(a.File) {
		return "", fmt.Errorf("%w: file: want an absolute path", ErrBadRequest)
	}
	if err := l.enter(ctx); err != nil {
		return "", err
	}
	defer l.leave()
	r, detail, err := l.create(ctx, a.File, t)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s", r.File, detail), nil
}

// troubled stands in the detail of a backup that is good, before what went wrong
// after it.
const troubled = "; WARNING: "

// What the relay log says of a backup and of a drill: its receipt, and who asked.
type (
	backupLine struct {
		backup.Receipt
		AskedBy string `json:"asked_by"`
	}
	drillLine struct {
		drill.Receipt
		AskedBy string `json:"asked_by"`
	}
)

// create takes a backup and logs its receipt. From then on nothing that fails makes
// it a failed one: it would be taken again and again.
func (l *Local) create(ctx context.Context, file string, t *jobs.Task) (r backup.Receipt, detail string, err error) {
	if r, err = l.o.Backups.Create(ctx, l.o.Store, file, t.Progress); err != nil {
		return r, "", err
	}
	t.Result = r
	detail = fmt.Sprintf("%d items, %d hosts, %d bytes", r.Items, r.Enrolments, r.Bytes)
	if err := l.log(ctx, "backup", backupLine{r, t.AskedBy}); err != nil {
		detail += troubled + "the relay log does not have it: " + err.Error()
	}
	return r, detail, nil
}

// backup takes a backup of the folder's own and then removes what is not to be
// kept any more.
func (l *Local) backup(ctx context.Context, t *jobs.Task) (string, error) {
	if err := args(t, &struct{}{}); err != nil {
		return "", err
	}
	if err := l.enter(ctx); err != nil {
		return "", err
	}
	defer l.leave()
	r, detail, err := l.create(ctx, "", t)
	if err != nil {
		return "", err
	}
	detail = fmt.Sprintf("%s: %s", filepath.Base(r.File), detail)
	done, err := l.o.Backups.PruneAfter(ctx, r)
	if err = errors.Join(err, l.logPrune(ctx, done, Action{Actor: t.AskedBy, Reason: "after a backup"})); err != nil {
		detail += troubled + "older ones could not be removed: " + err.Error()
	}
	return detail, nil
}

// DrillArgs ask for a drill of a file; "" is the newest verified backup. Identity
// is the path of an age identity file.
type DrillArgs struct {
	File     string `json:"file"`
	Identity string `json:"identity"`
}

func (l *Local) drill(ctx context.Context, t *jobs.Task) (string, error) {
	var a DrillArgs
	if err := args(t, &a); err != nil {
		return "", err
	}
	if a.File != "" {
		return "", fmt.Errorf("%w: a file is drilled by the job %s", ErrBadRequest, JobDrillFile)
	}
	return l.rehearse(ctx, t, a)
}

func (l *Local) drillFile(ctx context.Context, t *jobs.Task) (string, error) {
	var a DrillArgs
	if err := args(t, &a); err != nil {
		return "", err
	}
	if a.File == "" {
		return "", fmt.Errorf("%w: file: want an absolute path", ErrBadRequest)
	}
	return l.rehearse(ctx, t, a)
}

// rehearse rehearses a restore and logs how it went.
func (l *Local) rehearse(ctx context.Context, t *jobs.Task, a DrillArgs) (string, error) {
	for _, p := range []string{a.File, a.Identity} {
		if p != "" && !filepath.IsAbs(p) {
			return "", fmt.Errorf("%w: want absolute paths", ErrBadRequest)
		}
	}
	if (l.o.Key == wire.PrivateKey{}) {
		return "", fmt.Errorf("%w: a drill needs the relay's key: put relay.key back or set MBX_RELAY_KEY", ErrRefused)
	}
	ids, err := l.identities(a.Identity)
	if err != nil {
		return "", err
	}
	file, source, done, err := l.toDrill(ctx, a.File, ids, t)
	if err != nil {
		return "", err
	}
	var taken time.Time
	if source == drill.FromFresh || source == drill.FromNone {
		taken = t.Started
	}
	r, err := drill.Run(ctx, drill.Options{
		File: file, Source: source, TakenAt: taken, Scratch: l.o.Backups.Dir, Key: l.o.Key, Limits: l.o.Relay.Limits(), Identities: ids,
		Version: l.o.Version, Log: l.o.Backups.Log, Now: l.o.Now, Progress: t.Progress,
	})
	if err := errors.Join(err, done()); err != nil {
		return "", err
	}
	t.Result = r
	if err := l.log(ctx, "drill", drillLine{r, t.AskedBy}); err != nil {
		return "", err
	}
	if !r.Passed {
		return "", fmt.Errorf("%w: the drill of %s failed: %s", ErrUnhealthy, filepath.Base(r.File), r.FirstFault())
	}
	return fmt.Sprintf("%s: %d checks passed, served after %.1f s", filepath.Base(r.File), len(r.Checks), r.RTO), nil
}

// identities reads what opens an encrypted backup, when it is needed: mail does not
// depend on it. "" is the file in the settings, if any.
func (l *Local) identities(file string) ([]age.Identity, error) {
	if file = cmp.Or(file, l.o.IdentityFile); file == "" {
		return nil, nil
	}
	return backup.ReadIdentities(file)
}

// toDrill finds the file to drill. When nobody named one and the newest backup
// is encrypted to others, or the schedule asks and there is none, a fresh copy of
// the store takes its place: done removes it.
func (l *Local) toDrill(ctx context.Context, file string, ids []age.Identity, t *jobs.Task) (path, source string, done func() error, err error) {
	none := func() error { return nil }
	if file != "" {
		return file, drill.FromFile, none, nil
	}
	list, _, err := l.backups(ctx)
	if err != nil {
		return "", "", nil, err
	}
	for _, e := range list {
		switch {
		case !e.Verified:
		case e.Receipt.Encrypted && len(ids) == 0:
			path, done, err := l.o.Backups.Fresh(ctx, l.o.Store, t.Progress)
			return path, drill.FromFresh, done, err
		default:
			return e.Path, drill.FromBackup, none, nil
		}
	}
	if t.AskedBy == jobs.BySchedule { // a store that came with its age, and the first backup is on its way
		path, done, err := l.o.Backups.Fresh(ctx, l.o.Store, t.Progress)
		return path, drill.FromNone, done, err
	}
	return "", "", nil, fmt.Errorf("%w: there is no verified backup to drill in %s: take one first with agentmbx relay backup", ErrNotFound, l.o.Backups.Dir)
}

func (l *Local) checkpoint(ctx context.Context, _ *jobs.Task) (string, error) {
	return "", l.o.Store.Maintain(ctx)
}

// disk looks at the room that is left. The store refuses new mail by itself when
// it is scarce; this is what says so while nobody pushes.
func (l *Local) disk(ctx context.Context, _ *jobs.Task) (string, error) {
	z, err := l.o.Store.Size(ctx)
	if err != nil {
		return "", err
	}
	detail := fmt.Sprintf("%d bytes free, %d of data, %d of log", z.Free, z.Data, z.Log)
	if z.Low {
		return "", fmt.Errorf("%w: the disk is nearly full: new mail is refused: %s", ErrUnhealthy, detail)
	}
	return detail, nil
}
