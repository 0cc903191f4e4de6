// Package api carries the operator's Service over a Unix socket in the store's
// folder, so that no command ever writes beside a running relay, and over TCP to
// whoever has a token (Door). Client is the same Service at the other end.
//
// One table (routes) is both ends of every call: a read is a GET whose query is
// decoded strictly, whatever may change something a POST of one strict JSON
// object. Errors keep their text and their kind.
package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
)

const (
	socketName  = "admin.sock"
	addressName = "admin.addr" // where the socket is, when it cannot be in the store's folder
	// maxPath is the longest socket path that every system takes.
	maxPath = 100
)

// Listen makes the socket of the store in dir. The caller holds the store's
// lock, so whatever an earlier process left there is stale. Closing the
// listener removes the socket.
func Listen(dir string) (net.Listener, error) {
	path, addrFile := filepath.Join(dir, socketName), filepath.Join(dir, addressName)
	if err := clear(path, addrFile); err != nil {
		return nil, err
	}
	private := ""
	if len(path) > maxPath {
		var err error
		if private, err = os.MkdirTemp("", "agentmbx-"); err != nil { // mode 0700
			return nil, err
		}
		path = filepath.Join(private, socketName)
		if err := os.WriteFile(addrFile, []byte(path+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &listener{l, addrFile, private}, nil
}

// clear removes what an earlier process left.
func clear(path, addrFile string) error {
	if old, err := address(addrFile); err == nil {
		if base := filepath.Dir(old); strings.HasPrefix(filepath.Base(base), "agentmbx-") {
			_ = os.Remove(old)
			_ = os.Remove(base) // only if it is empty; nothing of value is in it
		}
	}
	for _, p := range []string{path, addrFile} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func address(addrFile string) (string, error) {
	b, err := os.ReadFile(addrFile)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// listener hands over only connections of this user or root.
type listener struct {
	net.Listener
	addrFile, private string
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(c)
		if err == nil && (uid == 0 || uid == os.Getuid()) {
			return c, nil
		}
		_ = c.Close() // a stranger gets no answer
	}
}

func (l *listener) Close() error {
	err := l.Listener.Close()
	if l.private != "" {
		_ = os.Remove(l.addrFile)
		_ = os.Remove(l.private)
	}
	return err
}
