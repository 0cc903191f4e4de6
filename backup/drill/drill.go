// Package drill rehearses a restore: it restores a backup into a scratch folder,
// serves it on a loopback port and does what hosts would do, without touching the
// live store or its port.
//
// The real queues are compared in the store, row by row and before and after; the
// mail that is sent is between hosts of the drill's own, which hold keys that
// nobody has. The scratch relay does nothing by itself: it has no sweep, no alerts
// and no backups.
package drill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Options say what is drilled.
type Options struct {
	File       string    // the backup, absolute
	Source     string    // what File is: FromFile (also ""), FromBackup or FromFresh
	TakenAt    time.Time // of a copy without a receipt; zero: what the file says
	Scratch    string    // a folder of ours to make the scratch folder in
	Key        wire.PrivateKey
	Limits     relay.Limits
	Identities []age.Identity
	Version    string
	Log        *slog.Logger
	Now        func() time.Time
	Progress   func(stage string, done, total int64)
	// Free tells the bytes left on a device; nil asks the system.
	Free func(dir string) (int64, error)

	step func(name string) error // for tests: asked as each step begins
}

// Receipt says how a drill went. It stands in the relay log under "drill".
type Receipt struct {
	V       int            `json:"v"`    // 1
	Type    string         `json:"type"` // "relay-drill"
	At      time.Time      `json:"at"`
	File    string         `json:"file"`
	SHA256  string         `json:"sha256"`
	Source  string         `json:"source"`
	Passed  bool           `json:"passed"`
	TakenAt time.Time      `json:"taken_at,omitzero"` // see backup.Report.TakenAt
	RPO     float64        `json:"rpo_seconds"`       // the age of the backup: what of the mail would have to come back from its senders
	RTO     float64        `json:"rto_seconds"`       // from the beginning until the scratch relay answered
	Took    float64        `json:"took_seconds"`
	Items   int64          `json:"items"` // queued and held, of real hosts
	Checks  []backup.Check `json:"checks"`
}

// Failed lists the names of the checks that failed.
func (r Receipt) Failed() (names []string) {
	for _, c := range r.Checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

// Verdict is the drill in one line.
func (r Receipt) Verdict() string {
	if failed := r.Failed(); len(failed) > 0 {
		return fmt.Sprintf("failed: %d of %d checks: %s", len(failed), len(r.Checks), strings.Join(failed, ", "))
	}
	if !r.Passed {
		return "not finished"
	}
	return fmt.Sprintf("passed: %d checks; the backup is %s old and served again after %s", len(r.Checks), Span(r.RPO), Span(r.RTO))
}

// Span is a number of seconds for people.
func Span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1f days", d.Hours()/24)
}

// A step is one part of a drill. An error that it returns is a failed check of
// its name; errStop says that the failed check stands in the receipt already.
// What comes after a step that failed is left out.
type step struct {
	name string
	run  func(*drill, context.Context) error
}

var errStop = errors.New("a check failed")

var steps = []step{
	{"verify", (*drill).verify},
	{"restore", (*drill).restore},
	{"open", (*drill).open},
	{"serve", (*drill).serve},
	{"integrity", (*drill).integrity},
	{"compare", (*drill).compare},
	{"enrol", (*drill).enrol},
	{"push", (*drill).push},
	{"pull", (*drill).pull},
	{"ack", (*drill).ack},
	{"epoch", (*drill).staleEpoch},
	{"sequence", (*drill).sequence},
	{"untouched", (*drill).untouched},
}

// drill is one drill while it runs.
type drill struct {
	Options
	r     Receipt
	began time.Time // by the monotonic clock: Now may jump
	dir   string    // the scratch folder

	report   backup.Report // of the verification
	restored backup.RestoreReceipt

	lock   *sqlite.Lock // until the store has it
	st     *sqlite.Store
	relay  *relay.Relay
	client *relayclient.Client
	stop   func() error // ends the server

	hosts []*host
	mail  []*letter
}

// Run drills. A drill that fails is no error but a receipt that says so; an error
// means that the drill could not be done: no such file, no room, an encrypted
// backup without an identity that opens it, or the end of ctx. Whatever happens,
// nothing is left of it; what a crash leaves, backup.Folder.SweepPartials removes.
func Run(ctx context.Context, o Options) (Receipt, error) {
	d := &drill{Options: o.withDefaults(), began: time.Now()}
	d.r = Receipt{V: 1, Type: "relay-drill", At: d.Now().UTC().Truncate(time.Millisecond), File: d.File, Source: d.Source, Checks: []backup.Check{}}
	err := d.prepare()
	done := false
	if err == nil {
		done, err = d.runAll(ctx)
		err = errors.Join(err, d.end())
	}
	d.r.Took = time.Since(d.began).Seconds()
	d.r.Passed = done && err == nil && len(d.r.Failed()) == 0
	if err != nil {
		return d.r, fmt.Errorf("drill %s: %w", d.File, err)
	}
	return d.r, nil
}

func (o Options) withDefaults() Options {
	if o.Source == "" {
		o.Source = FromFile
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	if o.Free == nil {
		o.Free = free
	}
	if o.step == nil {
		o.step = func(string) error { return nil }
	}
	return o
}

// runAll does the steps in order and reports whether it did them all.
func (d *drill) runAll(ctx context.Context) (done bool, err error) {
	for i, s := range steps {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		d.Progress(s.name, int64(i), int64(len(steps)))
		err := d.guarded(ctx, s)
		switch {
		case err == nil:
			continue
		case errors.Is(err, errStop):
			return false, nil
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.Is(err, backup.ErrNoRoom), errors.Is(err, backup.ErrEncrypted), errors.Is(err, syscall.ENOSPC), errors.Is(err, store.ErrFull):
			return false, err // says nothing about the backup
		}
		d.failed(s.name, "%v", err)
		return false, nil
	}
	d.Progress("done", int64(len(steps)), int64(len(steps)))
	return true, nil
}

// guarded runs a step. A panic in it is a failed check like any other, and what
// was begun is still cleaned up.
func (d *drill) guarded(ctx context.Context, s step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			d.Log.Error("panic in a drill", "step", s.name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if err := d.step(s.name); err != nil {
		return err
	}
	return s.run(d, ctx)
}

// check notes what was looked at.
func (d *drill) check(name string, ok bool, format string, args ...any) {
	d.r.Checks = append(d.r.Checks, backup.Check{Name: name, OK: ok, Text: fmt.Sprintf(format, args...)})
}

// passed and failed are check; failed answers what ends a step.
func (d *drill) passed(name, format string, args ...any) { d.check(name, true, format, args...) }

func (d *drill) failed(name, format string, args ...any) error {
	d.check(name, false, format, args...)
	return errStop
}

// margin is the room that a drill needs besides its copies: the scratch store's
// log and reserve, and what a relay keeps free.
const margin = 128 << 20

// prepare makes the scratch folder, if there is room for what will stand in it.
func (d *drill) prepare() error {
	st, err := os.Stat(d.File)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.Scratch, 0o700); err != nil {
		return err
	}
	need := st.Size() + margin
	if len(d.Identities) > 0 {
		need += st.Size() // a decrypted one beside the restored one
	}
	if left, err := d.Free(d.Scratch); err != nil {
		return fmt.Errorf("look for room in %s: %w", d.Scratch, err)
	} else if left < need {
		return fmt.Errorf("%w: %s has %d MiB free, a drill of this backup needs %d MiB; make room there and drill again",
			backup.ErrNoRoom, d.Scratch, left>>20, need>>20)
	}
	d.dir, err = os.MkdirTemp(d.Scratch, backup.DrillPrefix(d.Key.Public())) // mode 0700
	return err
}

func free(dir string) (int64, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(dir, &st)
	return int64(st.Bavail) * int64(st.Bsize), err
}

// end stops what runs and removes what was made.
func (d *drill) end() error {
	var errs []error
	if d.client != nil {
		d.client.Close()
	}
	if d.stop != nil {
		errs = append(errs, d.stop())
	}
	if d.st != nil {
		errs = append(errs, d.st.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Release())
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// keys are those of the drill's own hosts.
func (d *drill) keys() (keys []wire.PublicKey) {
	for _, h := range d.hosts {
		keys = append(keys, h.caller.Key.Public())
	}
	return slices.Clip(keys)
}
