package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal: what is at its other end, and the terminal.
func openTerminal(t *testing.T, w, h uint16) (other, terminal *os.File) {
	t.Helper()
	other, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs /dev/ptmx to make a terminal: %v", err)
	}
	t.Cleanup(func() { _ = other.Close() })
	n, err := unix.IoctlGetInt(int(other.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(other.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(other.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: h, Col: w}); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	// A descriptor that was asked for is a blocking one, which Close does not wake.
	if err := syscall.SetNonblock(int(other.Fd()), true); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(dup(t, other)), "ptmx"), terminal
}

func dup(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	return fd
}

// onTerminal runs the program on a terminal. read gives what it has written so far.
func onTerminal(t *testing.T, attr *syscall.SysProcAttr, args ...string) (cmd *exec.Cmd, other *os.File, out *lockedBuffer, done chan error) {
	t.Helper()
	other, terminal := openTerminal(t, 80, 24)
	cmd = exec.Command(binary(t), args...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor", "LC_ALL=C.UTF-8")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = terminal, terminal, terminal, attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close() // the program's is the last one
	out, done = &lockedBuffer{}, make(chan error, 1)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := other.Read(buf)
			_, _ = out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = other.Close()
	})
	return cmd, other, out, done
}

// A terminal that goes away takes the program with it within two seconds: by
// SIGHUP where it is the program's own, else because nothing can be read any more.
func TestClosedTerminalEndsTheScreens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir)
	for _, tt := range []struct {
		name string
		attr *syscall.SysProcAttr
	}{
		{"its own", &syscall.SysProcAttr{Setsid: true, Setctty: true}},
		{"of others", &syscall.SysProcAttr{Setsid: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd, other, out, done := onTerminal(t, tt.attr, "relay", "admin", "--store-dir", dir)
			await(t, "the overview", func() bool { return strings.Contains(out.String(), "no alarms") })
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-done:
			case <-time.After(2 * time.Second):
				t.Fatal("two seconds after the terminal went away: the program is still there")
			}
			if code := cmd.ProcessState.ExitCode(); code != codeFailed {
				t.Errorf("got exit code %d; want %d", code, codeFailed)
			}
			if used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); used > 2*time.Second {
				t.Errorf("got %s of CPU used; want no spin", used)
			}
		})
	}
}

// A signal to end ends the screens in order: the terminal is as it was.
func TestSignalEndsTheScreens(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		cmd, _, out, done := onTerminal(t, &syscall.SysProcAttr{Setsid: true, Setctty: true}, "relay", "admin", "--store-dir", t.TempDir())
		await(t, "the screens", func() bool { return strings.Contains(out.String(), "Waiting for a relay") })
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: the program is still there", sig)
		}
		await(t, "the end of the other screen, and the cursor", func() bool {
			return strings.Contains(out.String(), "\x1b[?1049l") && strings.Contains(out.String(), "\x1b[?25h")
		})
	}
}

// No command asks the terminal for its colours: an answer would be taken for keys.
// The mouse stays off, and the colours are the sixteen.
func TestTerminalIsNotAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir)
	_, other, out, done := onTerminal(t, &syscall.SysProcAttr{Setsid: true, Setctty: true}, "relay", "admin", "--store-dir", dir)
	await(t, "the overview", func() bool { return strings.Contains(out.String(), "no alarms") })
	if _, err := other.WriteString("y"); err != nil {
		t.Fatal(err)
	}
	await(t, "the clipboard", func() bool { return strings.Contains(out.String(), "\x1b]52;c;") })
	if _, err := other.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("q: got %v; want exit code 0", err)
	}
	_, _, version, done := onTerminal(t, &syscall.SysProcAttr{Setsid: true, Setctty: true}, "version")
	<-done
	await(t, "a version", func() bool { return strings.Contains(version.String(), "agentmbx") })
	for _, said := range []string{out.String(), version.String()} {
		for _, never := range []string{"\x1b]11;", "\x1b]10;", "\x1b[6n", "\x1b[c", "\x1b[?1000h", "\x1b[?1002h", "\x1b[?1003h", "38;5", "38;2", "48;5", "48;2"} {
			if strings.Contains(said, never) {
				t.Errorf("got %q written to the terminal; want it never", never)
			}
		}
	}
}

// Where there are no screens, one line says which commands do the same.
func TestNoTerminalForTheScreens(t *testing.T) {
	t.Parallel()
	refused := func(what string, out []byte, cmd *exec.Cmd) {
		t.Helper()
		if code := cmd.ProcessState.ExitCode(); code != codeUsage || !bytes.Contains(out, []byte("agentmbx relay admin overview")) || !bytes.Contains(out, []byte("--once")) || bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%s: got code %d, %q; want %d and one line that names commands", what, code, out, codeUsage)
		}
	}
	cmd := exec.Command(binary(t), "relay", "admin", "--store-dir", t.TempDir())
	out, _ := cmd.CombinedOutput() // its exit code says more
	refused("no terminal", out, cmd)

	_, terminal := openTerminal(t, 80, 24)
	cmd = exec.Command(binary(t), "relay", "admin", "--store-dir", t.TempDir())
	cmd.Env = append(os.Environ(), "TERM=dumb")
	var errw bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, &errw
	_ = cmd.Run()
	refused("TERM=dumb", errw.Bytes(), cmd)
}
