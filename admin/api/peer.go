package api

import (
	"errors"
	"net"
)

// peerUID is the user at the other end of a Unix socket.
func peerUID(c net.Conn) (uid int, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var asked error
	if err := raw.Control(func(fd uintptr) { uid, asked = peerOf(int(fd)) }); err != nil {
		return 0, err
	}
	return uid, asked
}
