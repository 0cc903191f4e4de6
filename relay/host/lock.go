package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
)

// lock makes this process the home's only daemon. The operating system holds
// it, so that it ends with the process.
func (h *Host) lock() (*flock.Flock, error) {
	l := flock.New(filepath.Join(h.opts.Home, lockFile), flock.SetPermissions(0o600))
	// A command that looks whether a daemon runs holds it for a moment.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	ok, err := l.TryLockContext(ctx, 20*time.Millisecond)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, err
	}
	if !ok {
		return nil, ErrDaemonRuns
	}
	return l, nil
}

// ErrDaemonRuns is returned when another process is the home's daemon.
var ErrDaemonRuns = errors.New("a daemon runs on this home already: stop it first, or use it")

// DaemonRuns says whether a daemon has this home, and where the last one served
// the LAN: "" when it did not, or when none has run yet.
func (h *Host) DaemonRuns(ctx context.Context) (runs bool, addr string, err error) {
	if runs, err = daemonRuns(h.opts.Home); err != nil {
		return false, "", err
	}
	addr, err = h.lanAddr(ctx)
	return runs, addr, err
}

// daemonRuns reports whether a process is the home's daemon. It makes no file.
func daemonRuns(home string) (bool, error) {
	path := filepath.Join(home, lockFile)
	if err := homefile.Check(path); errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	// A shared lock, for a moment: a daemon that starts right now waits for it.
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	free, err := l.TryRLock()
	return !free && err == nil, errors.Join(err, l.Close())
}
