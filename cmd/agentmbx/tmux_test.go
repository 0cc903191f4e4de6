package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// tmux is a terminal that a test types into and reads.
type tmux struct {
	t      *testing.T
	socket string
}

// newTmux runs a command on a terminal of its own. Where tmux is missing the test
// is skipped, unless MBX_TEST_TMUX says that it is required.
func newTmux(t *testing.T, w, h int, env []string, args ...string) *tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("MBX_TEST_TMUX") == "required" {
			t.Fatalf("MBX_TEST_TMUX=required, and there is no tmux: %v", err)
		}
		t.Skipf("needs tmux to type into a terminal and to read it: %v", err)
	}
	m := &tmux{t, filepath.Join(t.TempDir(), "tmux.sock")}
	var words []string
	for _, a := range append(append([]string{"env"}, env...), args...) {
		words = append(words, "'"+strings.ReplaceAll(a, "'", `'\''`)+"'")
	}
	// The shell stays, to say how the command ended.
	line := strings.Join(words, " ") + `; echo "ended with $?"; exec cat`
	m.run("-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(w), "-y", strconv.Itoa(h), line)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", m.socket, "kill-server").Run() })
	return m
}

func (m *tmux) run(args ...string) string {
	m.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// keys presses keys, by tmux's names.
func (m *tmux) keys(names ...string) { m.t.Helper(); m.run(append([]string{"send-keys"}, names...)...) }

func (m *tmux) resize(w, h int) {
	m.t.Helper()
	m.run("resize-window", "-x", strconv.Itoa(w), "-y", strconv.Itoa(h))
}

// screen is what the terminal shows, codes for colours with it when asked.
func (m *tmux) screen(codes bool) string {
	m.t.Helper()
	args := []string{"capture-pane", "-p"}
	if codes {
		args = append(args, "-e")
	}
	return m.run(args...)
}

// sees waits until the terminal shows all of the texts.
func (m *tmux) sees(texts ...string) {
	m.t.Helper()
	m.await(fmt.Sprintf("%q", texts), func(s string) bool {
		for _, text := range texts {
			if !strings.Contains(s, text) {
				return false
			}
		}
		return true
	})
}

func (m *tmux) await(what string, ok func(screen string) bool) {
	m.t.Helper()
	last := ""
	defer func() {
		if m.t.Failed() {
			m.t.Logf("the terminal shows\n%s", last)
		}
	}()
	await(m.t, what, func() bool { last = m.screen(false); return ok(last) })
}

// The screens of the real program, before a real relay: each one, small windows
// and large ones, a relay that is killed and one that comes back, and the end.
func TestScreensInATerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := serve(t, dir)
	a, b := newClient("studio"), newClient("reviewer")
	a.enrol(t, p.url)
	b.enrol(t, p.url)
	if _, err := a.push(p.url, relayKey(t, p.url), a.item(b), a.item(b)); err != nil {
		t.Fatal(err)
	}
	m := newTmux(t, 100, 30, []string{"LANG=C.UTF-8", "LC_ALL=C.UTF-8", "NO_COLOR="}, binary(t), "relay", "admin", "--store-dir", dir, "--refresh", "300ms")
	m.sees("[1 Overview]", "no alarms", p.epoch, "2 enrolled", "2 items", "reviewer")
	if s := m.screen(true); !strings.Contains(s, "\x1b[") {
		t.Errorf("got no colour in\n%s", s)
	}
	for i, want := range [][]string{2: {"[2 Queues]", "reviewer"}, 3: {"[3 Enrolments]", "reviewer", "studio"}, 4: {"[4 Quarantine]"}, 5: {"[5 Backups & drills]"}, 6: {"[6 Jobs]", "17 3 * * *"}, 7: {"[7 Log]"}} {
		if want != nil {
			m.keys(strconv.Itoa(i))
			m.sees(want...)
		}
	}
	m.keys("2")
	m.sees("[2 Queues]")
	m.keys("Enter")
	m.sees("Queues › ", "envelope")
	m.keys("?")
	m.sees("Everywhere", "ctrl+c")
	m.keys("q")
	m.sees("Queues › ", "envelope")
	for _, size := range [][2]int{{80, 24}, {30, 5}, {1, 1}, {200, 60}, {79, 24}, {100, 30}} {
		m.resize(size[0], size[1])
		switch {
		case size[0] >= 80:
			m.sees("[2 Queues]", "envelope", "q quit")
		case size[0] > 20:
			m.sees("80×24")
		}
	}
	m.keys("q", "1")
	m.sees("[1 Overview]")

	p.kill()
	m.sees("relay gone since", "waiting", "GONE", p.epoch)
	again := serve(t, dir)
	m.await("the relay that is back", func(s string) bool {
		return !strings.Contains(s, "gone since") && strings.Contains(s, again.epoch) && strings.Contains(s, "healthy")
	})
	m.keys("q")
	m.sees("ended with 0")
}

// Without colour, and where the terminal shows no UTF-8.
func TestScreensWithoutColourOrUTF8(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := newTmux(t, 80, 24, []string{"LANG=C", "LC_ALL=C", "NO_COLOR=yes"}, binary(t), "relay", "admin", "--store-dir", dir, "--read-only")
	m.sees("Waiting for a relay", "agentmbx relay serve --store-dir", "read-only")
	serve(t, dir)
	m.sees("[1 Overview]", "no alarms", "healthy")
	for _, r := range m.screen(true) {
		if r != '\n' && (r < ' ' || r > '~') {
			t.Fatalf("got %q; want neither colour nor UTF-8 in\n%s", r, m.screen(true))
		}
	}
	m.keys("C-c")
	m.sees("ended with 0")
}
