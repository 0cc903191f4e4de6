package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
)

// VerifyArgs ask for a verification of a backup: one of the folder by its name, any
// other by its absolute path. Identity is the path of an age identity file.
type VerifyArgs struct {
	File     string `json:"file"`
	Identity string `json:"identity"`
}

// verify checks a backup in full. One that is not good is a failure, with the report.
func (l *Local) verify(ctx context.Context, t *jobs.Task) (string, error) {
	var a VerifyArgs
	if err := args(t, &a); err != nil {
		return "", err
	}
	path := a.File
	if !filepath.IsAbs(path) {
		if filepath.Base(path) != path || path == "." || path == ".." {
			return "", fmt.Errorf("%w: file: want the name of a backup in %s, or an absolute path", ErrBadRequest, l.o.Backups.Dir)
		}
		path = filepath.Join(l.o.Backups.Dir, path)
	}
	if a.Identity != "" && !filepath.IsAbs(a.Identity) {
		return "", fmt.Errorf("%w: identity: want an absolute path", ErrBadRequest)
	}
	ids, err := l.identities(a.Identity)
	if err != nil {
		return "", err
	}
	report, err := backup.Verify(ctx, path, backup.Want{
		Key: l.o.Backups.Key, Identities: ids, Scratch: l.scratch(), Progress: t.Progress, Now: l.o.Now,
	})
	if len(report.Checks) > 0 {
		t.Result = report
	}
	if bad := l.judge(context.WithoutCancel(ctx), report); bad != nil && err == nil {
		return "", fmt.Errorf("what was found could not be remembered: %w", bad)
	}
	if err == nil || errors.Is(err, backup.ErrEncrypted) && report.Fault() != "" { // bad, whatever it holds
		err = report.Err()
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s: %d checks passed", filepath.Base(path), report.Verdict(), len(report.Checks)), nil
}

// scratch is where an encrypted backup is opened: the folder of the backups is swept
// after a crash, and has room.
func (l *Local) scratch() string {
	if st, err := os.Stat(l.o.Backups.Dir); err == nil && st.IsDir() {
		return l.o.Backups.Dir
	}
	return os.TempDir()
}
