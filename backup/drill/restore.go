package drill

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// verify checks the backup as it lies there, for this relay.
func (d *drill) verify(ctx context.Context) error {
	var key wire.PublicKey
	if !d.Key.IsZero() {
		key = d.Key.Public()
	}
	rep, err := backup.Verify(ctx, d.File, backup.Want{
		Key: key, Identities: d.Identities, Scratch: d.dir, Progress: d.Progress, Now: d.Now,
	})
	if err != nil {
		return err
	}
	d.report, d.r.SHA256 = rep, rep.SHA256
	for _, c := range rep.Checks {
		d.check("backup: "+c.Name, c.OK, "%s", c.Text)
	}
	if key.IsZero() {
		needs := "the relay's key"
		if pub := rep.Info.RelayKey; !pub.IsZero() {
			needs = "the relay key " + pub.Fingerprint()
		}
		return d.failed("relay key", "a restore needs %s, which is not here: set MBX_RELAY_KEY or put relay.key back", needs)
	}
	if !rep.Good {
		return errStop
	}
	return nil
}

// restore restores the backup as a real restore does on a new machine: into an
// empty folder, under its lock.
func (d *drill) restore(ctx context.Context) (err error) {
	dir := d.storeDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if d.lock, err = sqlite.AcquireLock(ctx, dir, 0, nil); err != nil {
		return err
	}
	d.restored, err = backup.Restore(ctx, backup.RestoreOptions{
		File: d.File, StoreDir: dir, Key: d.Key.Public(), Lock: d.lock, Identities: d.Identities, Actor: "drill",
		Version: d.Version, Log: slog.New(slog.DiscardHandler), // a log that says "restored" would frighten its reader
		Now: d.Now, Progress: d.Progress, Free: d.Free,
	})
	if err != nil {
		return err
	}
	d.r.TakenAt = d.restored.TakenAt
	if d.r.TakenAt.IsZero() {
		d.r.TakenAt = d.report.TakenAt()
	}
	if !d.Options.TakenAt.IsZero() {
		d.r.TakenAt = d.Options.TakenAt
	}
	age := d.r.At.Sub(d.r.TakenAt)
	d.r.RPO = max(age, 0).Seconds()
	d.r.Items = d.restored.After.Items
	d.passed("restore", "%d items and %d hosts, into an empty folder", d.restored.After.Items, d.restored.After.Enrolments)
	if age < -time.Minute {
		d.passed("age", "the backup is dated %s in the future: a clock was or is wrong", Span(-age.Seconds()))
	} else {
		d.passed("age", "%s: mail that came since then would have to come back from its senders", Span(d.r.RPO))
	}
	return nil
}

func (d *drill) storeDir() string { return filepath.Join(d.dir, "store") }

// noReserve has the scratch store keep nothing back for a full disk: a drill that
// meets one is over.
func (d *drill) noReserve(dir string) (left, size int64, err error) {
	left, err = d.Free(dir)
	return left, 0, err
}

// open opens the restored store. It has an epoch of its own, or hosts would go on
// as if nothing had happened.
func (d *drill) open(ctx context.Context) (err error) {
	lock := d.lock
	d.lock = nil // the store's from here on, whatever Open answers
	d.st, err = sqlite.Open(ctx, sqlite.Options{Dir: d.storeDir(), Key: d.Key.Public(), Lock: lock, Now: d.Now, Free: d.noReserve})
	if err != nil {
		return err
	}
	var in store.Info
	if err := d.st.View(ctx, func(r store.Reader) (err error) { in, err = r.Info(); return err }); err != nil {
		return err
	}
	switch {
	case in.Epoch == "" || in.Epoch == d.report.Info.Epoch:
		return d.failed("new epoch", "the restored store has the backup's epoch %s: hosts would not notice the restore", in.Epoch)
	case in.Epoch != d.restored.To:
		return d.failed("new epoch", "the restored store has epoch %s, the restore said %s", in.Epoch, d.restored.To)
	}
	d.passed("new epoch", "%s, in place of %s", in.Epoch, d.report.Info.Epoch)
	return nil
}
