package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

const (
	lockName  = "relay.lock"
	lockPoll  = 100 * time.Millisecond // how often a waiter tries again
	maxHolder = 4 << 10                // bytes read of what a holder wrote
)

// A Holder says who holds a store's lock. It is information for people: the
// operating system's lock decides, never this.
type Holder struct {
	PID          int       `json:"pid"`
	Host         string    `json:"host"`
	DeploymentID string    `json:"deployment_id,omitempty"` // Railway's; "" elsewhere
	Since        time.Time `json:"since"`                   // when the lock was taken
}

// ThisProcess describes the calling process. Since is left zero: it is filled
// in when the lock is taken.
func ThisProcess() Holder {
	host, _ := os.Hostname() // a nameless host is still described by the rest
	return Holder{PID: os.Getpid(), Host: host, DeploymentID: os.Getenv("RAILWAY_DEPLOYMENT_ID")}
}

// String names the holder in a few words, for a line of text.
func (h Holder) String() string {
	if h.PID == 0 {
		return "another process, which left no name"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "pid %d", h.PID)
	if h.Host != "" {
		fmt.Fprintf(&b, " on host %s", h.Host)
	}
	if h.DeploymentID != "" {
		fmt.Fprintf(&b, ", deployment %s", h.DeploymentID)
	}
	if !h.Since.IsZero() {
		fmt.Fprintf(&b, ", since %s", h.Since.UTC().Format(time.RFC3339))
	}
	return b.String()
}

// LockedError reports that a store's lock was not had in time.
type LockedError struct {
	Path   string // the lock file
	Holder Holder // who has it, as far as is known
}

// Error is one line: who holds the store, and what to do next.
func (e *LockedError) Error() string {
	next := "stop that process"
	switch {
	case e.Holder.DeploymentID != "":
		next = "wait for that deployment to end, or remove it"
	case e.Holder.PID == 0:
		next = "find it with `fuser " + e.Path + "` and stop it"
	}
	return fmt.Sprintf("%s is held by %s: %s, then try again", e.Path, e.Holder, next)
}

// A Lock is the right to write to one store. The operating system keeps it
// with the open file, so it ends with the process, however that ends. The
// file stays behind on purpose: removing it would let two processes lock two
// files of one name.
type Lock struct {
	path string
	file *flock.Flock
	made bool // there was no lock file before
}

// AcquireLock takes the lock of the store in dir, waiting up to wait for its
// holder to let go, and then writes this process into the lock file. When it has to
// wait, it calls notify (which may be nil) once with the present holder, zero
// when that is not readable. It returns a *LockedError when the time is up,
// and ctx's cause when ctx ends first.
func AcquireLock(ctx context.Context, dir string, wait time.Duration, notify func(Holder)) (*Lock, error) {
	path := filepath.Join(dir, lockName)
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	end := time.NewTimer(wait)
	defer end.Stop()
	for waiting := false; ; waiting = true {
		l, err := tryLock(path)
		if err != nil {
			return nil, err
		}
		if l != nil {
			l.sign(ThisProcess())
			return l, nil
		}
		if wait <= 0 {
			return nil, &LockedError{Path: path, Holder: readHolder(path)}
		}
		if !waiting && notify != nil {
			notify(readHolder(path))
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", path, context.Cause(ctx))
		case <-end.C:
			return nil, &LockedError{Path: path, Holder: readHolder(path)}
		case <-tick.C:
		}
	}
}

// Made reports whether there was no lock file before this lock: no agentmbx has
// had the folder's store open yet.
func (l *Lock) Made() bool { return l.made }

// Undo gives the lock back as if it had never been taken: a lock file that it
// made goes, too. Who waits for the lock finds that out and makes another.
func (l *Lock) Undo() error {
	var err error
	if l.made {
		err = os.Remove(l.path)
	}
	return errors.Join(err, l.Release())
}

// Release lets the next process have the store.
func (l *Lock) Release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release %s: %w", l.path, err)
	}
	return nil
}

// ReadHolder reports whether the lock of the store in dir is held right now,
// and by whom; the Holder is zero when nobody holds it, or when the holder
// left nothing readable. It asks with a shared lock that it drops at once,
// which a holder never notices; a process that starts in that very moment
// tries again at its next turn.
func ReadHolder(dir string) (h Holder, held bool, err error) {
	path := filepath.Join(dir, lockName)
	if err := checkLockFile(path); err != nil {
		return Holder{}, false, err
	}
	f := flock.New(path, flock.SetFlag(os.O_RDONLY|unix.O_NOFOLLOW))
	ok, err := f.TryRLock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Holder{}, false, nil
	case err != nil:
		return Holder{}, false, fmt.Errorf("look at the store's lock: %w", err)
	case !ok:
		return readHolder(path), true, f.Close()
	}
	return Holder{}, false, f.Close()
}

// tryLock takes the lock at path, or returns nil when another has it.
func tryLock(path string) (*Lock, error) {
	if err := checkLockFile(path); err != nil {
		return nil, err
	}
	_, err := os.Lstat(path)
	made := errors.Is(err, fs.ErrNotExist)
	f := flock.New(path,
		flock.SetFlag(os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW),
		flock.SetPermissions(0o600))
	ok, err := f.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock the store: %w", err) // err names the path
	}
	if !ok {
		return nil, f.Close()
	}
	// Somebody may have replaced the file between our open and our lock: then
	// the lock we have is on a file that no other process will ever look at.
	locked, err := f.Stat()
	if err == nil {
		var now fs.FileInfo
		if now, err = os.Lstat(path); err == nil && os.SameFile(locked, now) {
			return &Lock{path: path, file: f, made: made}, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("lock the store: %w", err), f.Close())
	}
	return nil, f.Close()
}

// checkLockFile refuses what is not a plain file of its own: behind a link,
// two stores could share one lock, or a lock could overwrite another file.
func checkLockFile(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the store's lock: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: remove it and try again", path)
	}
	return nil
}

// sign writes h into the lock file, in place. Nothing depends on it, and the
// disk may be full, so a failure leaves a lock without a name, not no lock.
// Opening the file a second time is harmless: a flock belongs to the one open
// file that took it.
func (l *Lock) sign(h Holder) {
	if h.Since.IsZero() {
		h.Since = time.Now().UTC()
	}
	b, err := json.Marshal(h)
	if err != nil {
		return
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_ = f.Chmod(0o600)
	_, _ = f.Write(append(b, '\n'))
}

// readHolder returns what the lock file says, or a zero Holder when it says
// nothing that is fit to be shown.
func readHolder(path string) Holder {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Holder{}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHolder))
	if err != nil {
		return Holder{}
	}
	var h Holder
	if json.Unmarshal(b, &h) != nil || h.PID <= 0 || !shown(h.Host) || !shown(h.DeploymentID) {
		return Holder{}
	}
	return h
}

// shown reports whether s can be printed on a line: no control codes, not long.
func shown(s string) bool {
	return len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
