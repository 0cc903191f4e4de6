package backup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Fresh takes a plain copy of the store that is no backup, for a drill where
// every backup is encrypted to somebody else. done removes it; what a crash
// leaves, SweepPartials removes.
func (f *Folder) Fresh(ctx context.Context, src Source, progress func(stage string, done, total int64)) (path string, done func() error, err error) {
	if err := f.prepare(); err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp(f.Dir, DrillPrefix(f.Key))
	if err != nil {
		return "", nil, fmt.Errorf("take a copy to drill: %w", err)
	}
	done = func() error { return os.RemoveAll(dir) }
	path = filepath.Join(dir, "copy.db")
	if err := src.Copy(ctx, path, func(n, total int64) { progress("copy", n, total) }); err != nil {
		_ = done()
		return "", nil, err
	}
	return path, done, nil
}
