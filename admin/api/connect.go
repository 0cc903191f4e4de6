package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/agentmbx/agentmbx/admin"
)

// connect reaches the socket of the relay that runs on the store in dir.
// ErrNotRunning when nobody listens; refused when it is not the store's own.
func connect(ctx context.Context, dir string) (net.Conn, error) {
	path := filepath.Join(dir, socketName)
	if other, err := address(filepath.Join(dir, addressName)); err == nil {
		path = other
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), len(path) > maxPath && errors.Is(err, syscall.EINVAL):
		return nil, ErrNotRunning
	case err != nil:
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := checkOwners(c, dir, path); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// checkOwners refuses the socket of a stranger before a byte is said to it.
func checkOwners(c net.Conn, dir, path string) error {
	store, err := owner(os.Stat, dir)
	if err != nil {
		return err
	}
	folder, err := owner(os.Stat, filepath.Dir(path))
	if err != nil {
		return err
	}
	socket, err := owner(os.Lstat, path)
	if err != nil {
		return err
	}
	peer, err := peerUID(c)
	if err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	for _, f := range []struct {
		what string
		uid  int
	}{{dir, store}, {filepath.Dir(path), folder}, {path, socket}, {"the process behind " + path, peer}} {
		if !trusted(f.uid, os.Getuid(), store) {
			return admin.OfKind("REFUSED", fmt.Sprintf("%s belongs to uid %d, which is neither yours nor root: it may be no relay", f.what, f.uid))
		}
	}
	return nil
}

// trusted reports whether a client of user me may talk to what belongs to uid:
// its own or root's. Root looks after the stores of others, too, and then trusts
// the owner of the store.
func trusted(uid, me, store int) bool {
	return uid == 0 || uid == me || me == 0 && uid == store
}

// owner answers for a path that is gone meanwhile as for one that never was.
func owner(stat func(string) (os.FileInfo, error), path string) (uid int, err error) {
	st, err := stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrNotRunning
	}
	if err != nil {
		return 0, fmt.Errorf("admin socket: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("admin socket: %s: its owner cannot be read here", path)
	}
	return int(sys.Uid), nil
}
