package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// demoRoom is what a demo wants to be free: two homes, a store and their logs,
// and what a relay keeps clear of.
const demoRoom = 200 << 20

// makeDemoDir makes the demo's folder in tmp, for this user only. free says how
// many bytes a folder has room for.
func makeDemoDir(tmp string, free func(dir string) (int64, error)) (string, error) {
	dir, err := os.MkdirTemp(tmp, "agentmbx-demo-") // mode 0700
	if err != nil {
		var cause *fs.PathError
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return "", fmt.Errorf("no folder can be made in %s (%w): set TMPDIR to a folder you may write in, with %d MB free", tmp, err, demoRoom>>20)
	}
	if n, err := free(dir); err == nil && n < demoRoom {
		err = fmt.Errorf("%s has %d MB free, the demo wants %d: make room, or set TMPDIR to another folder", tmp, n>>20, demoRoom>>20)
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
