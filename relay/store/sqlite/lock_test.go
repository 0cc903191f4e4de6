package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestLockChild is not a test but the other process of the tests below: it
// takes the lock of the folder it is given, says so, and holds it until its
// stdin ends or it is killed.
func TestLockChild(t *testing.T) {
	dir := os.Getenv("MBX_LOCK_CHILD_DIR")
	if dir == "" {
		t.Skip("only run by the lock tests")
	}
	l, err := AcquireLock(t.Context(), dir, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("locked")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
}

// lockChild starts a process that holds the lock of dir, and returns once it
// has it. It is killed, and waited for, by kill or at the end of the test.
func lockChild(t *testing.T, dir string) (pid int, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestLockChild$")
	cmd.Env = append(os.Environ(), "MBX_LOCK_CHILD_DIR="+dir, "RAILWAY_DEPLOYMENT_ID=dep-1")
	if _, err := cmd.StdinPipe(); err != nil { // kept open: the child waits for its end
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		if sc.Text() == "locked" {
			return cmd.Process.Pid, kill
		}
	}
	t.Fatal("the child ended without the lock")
	return 0, nil
}

func mustLock(t *testing.T, dir string) *Lock {
	t.Helper()
	l, err := AcquireLock(t.Context(), dir, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustRelease(t *testing.T, l *Lock) {
	t.Helper()
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

func TestLockTakenOverFromKilledProcess(t *testing.T) {
	dir := t.TempDir()
	pid, kill := lockChild(t, dir)

	var told []Holder
	began := time.Now()
	var killed time.Time
	l, err := AcquireLock(t.Context(), dir, 30*time.Second, func(h Holder) {
		told = append(told, h)
		killed = time.Now()
		kill() // SIGKILL, only now that somebody waits
	})
	if err != nil {
		t.Fatal(err)
	}
	defer mustRelease(t, l)
	if took := time.Since(killed); took > 2*time.Second {
		t.Errorf("got the lock %v after the kill (%v in all); want it within 2s", took, time.Since(began))
	}
	if len(told) != 1 || told[0].PID != pid || told[0].DeploymentID != "dep-1" || told[0].Since.IsZero() {
		t.Errorf("notified of %+v; want once, of pid %d in dep-1", told, pid)
	}
	h, held, err := ReadHolder(dir)
	if err != nil || !held || h.PID != os.Getpid() {
		t.Errorf("ReadHolder: got %+v, %v, %v; want this process", h, held, err)
	}
}

func TestLockTimesOut(t *testing.T) {
	dir := t.TempDir()
	pid, _ := lockChild(t, dir)
	host, _ := os.Hostname()

	for _, wait := range []time.Duration{0, 250 * time.Millisecond} {
		notified := 0
		_, err := AcquireLock(t.Context(), dir, wait, func(Holder) { notified++ })
		var locked *LockedError
		if !errors.As(err, &locked) {
			t.Fatalf("after %v: got %v; want a *LockedError", wait, err)
		}
		for _, part := range []string{filepath.Join(dir, lockName), "pid " + strconv.Itoa(pid), host, "dep-1", "try again"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("after %v: got %q; want %q in it", wait, err, part)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("got %q; want one line", err)
		}
		if want := min(1, int(wait)); notified != want {
			t.Errorf("after %v: notified %d times; want %d", wait, notified, want)
		}
	}
}

func TestLockWaitEndsWithContext(t *testing.T) {
	dir := t.TempDir()
	l := mustLock(t, dir)
	defer mustRelease(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := AcquireLock(ctx, dir, time.Hour, func(Holder) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want context.Canceled", err)
	}
}

func TestReadHolderDoesNotDisturb(t *testing.T) {
	dir := t.TempDir()
	h, held, err := ReadHolder(dir)
	if h != (Holder{}) || held || err != nil {
		t.Errorf("without a file: got %+v, %v, %v; want nobody", h, held, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, lockName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadHolder made the file: %v", err)
	}

	l := mustLock(t, dir)
	for range 3 {
		if h, held, err = ReadHolder(dir); !held || err != nil || h.PID != os.Getpid() {
			t.Errorf("held: got %+v, %v, %v; want this process", h, held, err)
		}
	}
	if _, err := AcquireLock(t.Context(), dir, 0, nil); err == nil {
		t.Error("a second lock was had after ReadHolder looked; want it refused")
	}
	mustRelease(t, l)

	if h, held, err = ReadHolder(dir); held || err != nil || h != (Holder{}) {
		t.Errorf("released: got %+v, %v, %v; want nobody", h, held, err)
	}
	mustRelease(t, mustLock(t, dir))
}

func TestLockFileIsPrivate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, lockName)
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := mustLock(t, dir)
	defer mustRelease(t, l)
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode() != 0o600 {
		t.Errorf("got mode %v, %v; want 0600", fi.Mode(), err)
	}
}

func TestLockRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, lockName)
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func() error{
		"link to a file": func() error { return os.Symlink(victim, path) },
		"dangling link":  func() error { return os.Symlink(filepath.Join(dir, "nowhere"), path) },
		"folder":         func() error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := make(); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(path)
			if _, err := AcquireLock(t.Context(), dir, 0, nil); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("AcquireLock: got %v; want a refusal that names %s", err, path)
			}
			if _, _, err := ReadHolder(dir); err == nil {
				t.Error("ReadHolder: got nil; want a refusal")
			}
		})
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("behind the link: got %q, %v; want it untouched", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("behind the dangling link: got %v; want no file", err)
	}
}

// A lock file that was removed and made again under a waiter's feet must not
// leave two holders that each lock a file of their own.
func TestLockFileReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, lockName)
	old, err := tryLock(path)
	if err != nil || old == nil {
		t.Fatal(old, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l := mustLock(t, dir)
	defer mustRelease(t, l)
	mustRelease(t, old) // its file is gone: this must not free the new one
	if l, err := tryLock(path); l != nil || err != nil {
		t.Errorf("got %v, %v; want the lock still held", l, err)
	}
}

func TestReadHolderText(t *testing.T) {
	since := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name, text string
		want       Holder
	}{
		{"whole", `{"pid":7,"host":"h","deployment_id":"d","since":"2026-10-02T12:00:00Z"}`, Holder{7, "h", "d", since}},
		{"empty", "", Holder{}},
		{"garbage", "\x00\xff{", Holder{}},
		{"cut", `{"pid":7,"host":"h`, Holder{}},
		{"no pid", `{"host":"h"}`, Holder{}},
		{"two lines", `{"pid":7,"host":"a\nb"}`, Holder{}},
		{"escape codes", `{"pid":7,"host":"\u001b[2J"}`, Holder{}},
		{"too long", `{"pid":7,"host":"` + strings.Repeat("h", 257) + `"}`, Holder{}},
		{"endless", `{"pid":7,"host":"h","x":"` + strings.Repeat("x", maxHolder) + `"}`, Holder{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), lockName)
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := readHolder(path); got != tt.want {
				t.Errorf("got %+v; want %+v", got, tt.want)
			}
		})
	}
}

func TestLockedErrorSaysWhatToDo(t *testing.T) {
	since := time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name string
		h    Holder
		want string
	}{
		{"a process", Holder{PID: 7, Host: "box", Since: since},
			"/s/relay.lock is held by pid 7 on host box, since 2026-10-02T12:00:00Z: stop that process, then try again"},
		{"a deployment", Holder{PID: 7, Host: "box", DeploymentID: "d1", Since: since},
			"/s/relay.lock is held by pid 7 on host box, deployment d1, since 2026-10-02T12:00:00Z: wait for that deployment to end, or remove it, then try again"},
		{"nobody known", Holder{},
			"/s/relay.lock is held by another process, which left no name: find it with `fuser /s/relay.lock` and stop it, then try again"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&LockedError{"/s/relay.lock", tt.h}).Error(); got != tt.want {
				t.Errorf("got %q; want %q", got, tt.want)
			}
		})
	}
}
