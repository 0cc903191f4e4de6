package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentmbx/agentmbx/admin"
)

// asStranger runs fn on a thread of another user. The thread ends with it.
func asStranger(t *testing.T, fn func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		// Not syscall.Setresuid, which changes every thread.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 4242, 4242, 4242); errno != 0 {
			done <- errno
			return
		}
		done <- fn()
	}()
	return <-done
}

// The kernel says who is at the other end: a stranger's call gets no answer, and
// a stranger's listener no call, whoever owns the files.
func TestStrangerAtTheSocket(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("", "desk") // not t.TempDir, which a stranger cannot enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, socketName)
	if err := os.Chmod(socket, 0o666); err != nil { // as if the mode did not protect it
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, &fake{}, slog.New(slog.DiscardHandler)) }()
	err = asStranger(t, func() error {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
		if b, err := io.ReadAll(c); err == nil && len(b) > 0 {
			t.Errorf("the stranger got %q; want nothing", b)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}

	var theirs net.Listener
	err = asStranger(t, func() (err error) { theirs, err = net.Listen("unix", socket); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := os.Chown(socket, 0, 0); err != nil { // as if the file said nothing
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), dir); !errors.Is(err, admin.ErrRefused) {
		t.Errorf("Dial: got %v; want a refusal", err)
	}
}
