package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host"
)

// demoRun is a running demo whose user has a host and a relay of their own.
type demoRun struct {
	cmd          *exec.Cmd
	out          io.Reader
	errw         *lockedBuffer
	tmp, userDir string
}

func startDemo(t *testing.T, args ...string) *demoRun {
	t.Helper()
	d := &demoRun{cmd: exec.Command(binary(t), append([]string{"demo"}, args...)...), errw: &lockedBuffer{}, tmp: t.TempDir(), userDir: t.TempDir()}
	d.cmd.Env = append(os.Environ(),
		"TMPDIR="+d.tmp, "HOME="+d.userDir, "MBX_HOME="+filepath.Join(d.userDir, "other"), "MBX_RELAY_URL=http://127.0.0.1:1",
		"MBX_RELAY_DIR="+filepath.Join(d.userDir, "store"), "MBX_RELAY_KEY=not a key", "MBX_RELAY_PORT=1", "MBX_RELAY_NO_SUCH=1", "MBX_LOG_FORMAT=json")
	d.cmd.Stderr = d.errw
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.out = out
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	})
	return d
}

// left checks that there is nothing in a folder.
func left(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	const n = 24
	d := startDemo(t, "--messages", "24", "--json")
	out, err := io.ReadAll(d.out)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Fatalf("got %v; want exit 0\n%s%s", err, out, d.errw)
	}
	var got demoFacts
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatalf("stdout %q: %v", out, err)
	}
	want := demoFacts{counts: counts{Sent: n, Delivered: n, Confirmed: n}, RelayKills: 3, HostKills: 1, Rotations: 1, Backups: 1, Restores: 1, Seconds: got.Seconds}
	if got != want {
		t.Errorf("got %+v; want %+v", got, want)
	}
	if got.Seconds <= 0 || got.Seconds > 60 {
		t.Errorf("got %.1f seconds; want under a minute", got.Seconds)
	}
	if dec.More() || d.errw.String() != "" {
		t.Errorf("got stdout %q, stderr %q; want one value and silence", out, d.errw)
	}
	left(t, d.tmp)
	left(t, d.userDir)
}

// The relay of a demo that ends at any moment ends with it.
func TestDemoEndsItsChildren(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		signal syscall.Signal
		clean  bool // the folder, too
	}{
		{"interrupt", syscall.SIGINT, true},
		{"SIGTERM", syscall.SIGTERM, true},
		{"SIGKILL", syscall.SIGKILL, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.signal == syscall.SIGKILL && runtime.GOOS != "linux" {
				t.Skip("only Linux ends the children of a process that was killed")
			}
			d := startDemo(t, "--messages", "2000")
			said := regexp.MustCompile(`http://(127\.0\.0\.1:\d+)`)
			relay, story := "", ""
			for sc := bufio.NewScanner(d.out); sc.Scan(); {
				story += sc.Text() + "\n"
				if m := said.FindStringSubmatch(sc.Text()); m != nil {
					relay = m[1]
				}
				if strings.HasPrefix(sc.Text(), "4. ") { // both daemons run
					if err := d.cmd.Process.Signal(tt.signal); err != nil {
						t.Fatal(err)
					}
				}
			}
			err := d.cmd.Wait()
			if !strings.Contains(story, "\n4. ") || relay == "" {
				t.Fatalf("got %v\n%s%s; want step 4 with a relay", err, story, d.errw)
			}
			if tt.clean {
				if code := d.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(d.errw.String(), "interrupted") {
					t.Errorf("got code %d, stderr %q; want 1 and that it was interrupted", code, d.errw)
				}
				left(t, d.tmp)
			}
			await(t, "the relay is gone", func() bool {
				c, err := net.Dial("tcp", relay)
				if err == nil {
					c.Close()
				}
				return err != nil
			})
		})
	}
}

// With the fewest messages, too, all that is killed is killed with mail on its
// way; and what is no terminal gets lines, and nothing written over.
func TestDemoKillsInFlight(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--messages", "14")
	out, err := io.ReadAll(d.out)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Fatalf("got %v; want exit 0\n%s%s", err, out, d.errw)
	}
	kills := regexp.MustCompile(`kill -9 of .*; on their way: (\d+)`).FindAllStringSubmatch(string(out), -1)
	if len(kills) != 3 {
		t.Errorf("got %d kills; want 3\n%s", len(kills), out)
	}
	for _, k := range kills {
		if k[1] == "0" {
			t.Errorf("got %q; want mail on its way", k[0])
		}
	}
	if bytes.ContainsRune(out, '\r') || d.errw.String() != "" {
		t.Errorf("got stdout %q, stderr %q; want lines and silence", out, d.errw)
	}
}

// A reader that goes away ends the demo in order: it leaves nothing behind.
func TestDemoWithoutAReader(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	if _, err := bufio.NewReader(d.out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := d.out.(io.Closer).Close(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait()
	if code := d.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(d.errw.String(), "the story could not be printed") {
		t.Errorf("got %s, stderr %q; want code 1 and why", d.cmd.ProcessState, d.errw)
	}
	left(t, d.tmp)
}

// Where no folder can be made, or none that is large enough, the demo says so
// before it starts anything.
func TestDemoFolder(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	free := func(n int64) func(string) (int64, error) {
		return func(string) (int64, error) { return n, nil }
	}
	for _, tt := range []struct {
		name, tmp string
		free      int64
		want      string
	}{
		{"missing", filepath.Join(tmp, "none"), 1 << 40, "no such file or directory): set TMPDIR to a folder"},
		{"small", tmp, demoRoom - 1, "has 199 MB free, the demo wants 200: make room, or set TMPDIR"},
	} {
		if dir, err := makeDemoDir(tt.tmp, free(tt.free)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %q, %v; want %q", tt.name, dir, err, tt.want)
		}
	}
	left(t, tmp)
	dir, err := makeDemoDir(tmp, free(demoRoom))
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v; want a folder for its user only", fi, err)
	}
}

// Who waits in vain reads how the relay stands at each host.
func TestDemoSaysWhy(t *testing.T) {
	t.Parallel()
	d := &demo{dir: t.TempDir(), relay: &demoRelay{}}
	for name, to := range map[string]**site{"home": &d.home, "work": &d.work} {
		s, err := d.newSite(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		*to = s
	}
	err := d.until(t.Context(), time.Millisecond, "it was so", func() (bool, error) { return false, nil })
	if !errors.Is(err, errSlow) || !strings.Contains(err.Error(), "until it was so: home: relay none is set") || !strings.Contains(err.Error(), "work: relay none is set") {
		t.Errorf("got %v; want that it was too slow, and each host's word of the relay", err)
	}
}

// A progress word is cleared before the count, and a dumb terminal gets none.
func TestDemoProgress(t *testing.T) {
	var both bytes.Buffer
	d := &demo{env: env{out: &both, errw: &both}, showing: true}
	if err := d.verdict(); err != nil {
		t.Fatal(err)
	}
	if got := both.String(); !strings.HasPrefix(got, "\r"+strings.Repeat(" ", 63)+"\r   sent ") {
		t.Errorf("got %q; want a cleared line, then the count", got)
	}
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as terminals are
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for term, want := range map[string]bool{"xterm": true, "dumb": false} {
		t.Setenv("TERM", term)
		d := &demo{env: env{out: f, errw: f}}
		if d.show("word"); d.showing != want {
			t.Errorf("TERM=%s: got shown %v; want %v", term, d.showing, want)
		}
		d = &demo{env: env{out: &both, errw: f}}
		if d.show("word"); d.showing {
			t.Errorf("TERM=%s: shown beside a story that goes elsewhere", term)
		}
	}
}

// here is what two hosts hold when everything went well.
func here() ([]letter, ledgers) {
	letters := []letter{
		{"id1", "one", "home", "work"},
		{"id2", "two", "work", "home"},
		{"id3", "three", "home", "work"},
	}
	l := ledgers{map[string][]host.Message{}, map[string][]host.SentMessage{}}
	for _, w := range letters {
		m := host.Message{ID: w.id, Subject: w.subject}
		l.inbox[w.to] = append(l.inbox[w.to], m)
		l.sent[w.from] = append(l.sent[w.from], host.SentMessage{Message: m,
			Routes:        []host.Route{{Host: w.to, State: "confirmed"}},
			Confirmations: []host.Confirmation{{Recipient: "owner@" + w.to, State: host.StateDelivered}}})
	}
	return letters, l
}

// What is lost, doubled or unconfirmed is counted, said and exit code 5.
func TestDemoCounts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(l ledgers)
		want   counts
		says   string
	}{
		{"all well", func(ledgers) {}, counts{3, 3, 0, 0, 3}, ""},
		{"other mail does not count", func(l ledgers) {
			l.inbox["work"] = append(l.inbox["work"], host.Message{ID: "id9", Subject: "Undelivered to home: x"})
		}, counts{3, 3, 0, 0, 3}, ""},
		{"lost", func(l ledgers) { l.inbox["work"] = l.inbox["work"][1:] }, counts{3, 2, 1, 0, 3}, "1 were lost"},
		{"at the wrong host", func(l ledgers) {
			l.inbox["home"] = append(l.inbox["home"], l.inbox["work"][0])
			l.inbox["work"] = l.inbox["work"][1:]
		}, counts{3, 2, 1, 0, 3}, "1 were lost"},
		{"twice", func(l ledgers) { l.inbox["work"] = append(l.inbox["work"], l.inbox["work"][0]) }, counts{3, 3, 0, 1, 3}, "1 duplicated"},
		{"three times", func(l ledgers) { l.inbox["home"] = append(l.inbox["home"], l.inbox["home"][0], l.inbox["home"][0]) }, counts{3, 3, 0, 2, 3}, "2 duplicated"},
		{"twice, under another id", func(l ledgers) {
			l.inbox["work"] = append(l.inbox["work"], host.Message{ID: "id8", Subject: "one"})
		}, counts{3, 3, 0, 1, 3}, "1 duplicated"},
		{"one lost, one twice", func(l ledgers) { l.inbox["work"][0] = l.inbox["work"][1] }, counts{3, 2, 1, 1, 3}, "1 were lost, 1 duplicated"},
		{"no receipt", func(l ledgers) { l.sent["home"][0].Confirmations = nil }, counts{3, 3, 0, 0, 2}, "1 not confirmed"},
		{"still on its way", func(l ledgers) { l.sent["home"][0].Routes[0].State = "relay-accepted" }, counts{3, 3, 0, 0, 2}, "1 not confirmed"},
		{"its sender does not know of it", func(l ledgers) { l.sent["work"] = nil }, counts{3, 3, 0, 0, 2}, "1 not confirmed"},
		{"nothing there", func(l ledgers) { clear(l.inbox); clear(l.sent) }, counts{3, 0, 3, 0, 0}, "3 were lost"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			letters, l := here()
			tt.change(l)
			c := tally(letters, l)
			if c != tt.want {
				t.Errorf("got %+v; want %+v", c, tt.want)
			}
			var out bytes.Buffer
			d := &demo{env: env{out: &out}, facts: demoFacts{counts: c}}
			err := d.verdict()
			want := 0
			if tt.says != "" {
				want = 5
			}
			if code := exitCode(err); code != want {
				t.Errorf("got exit code %d (%v); want %d", code, err, want)
			}
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %q; want %q in it", err, tt.says)
			}
			if !strings.Contains(out.String(), "lost") {
				t.Errorf("got %q; want the counts, also when they are bad", out.String())
			}
		})
	}
}

func TestDemoFlags(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"13", "2001", "-1"} {
		var out, errw bytes.Buffer
		if code := Main([]string{"demo", "--messages", bad}, strings.NewReader(""), &out, &errw); code != 2 {
			t.Errorf("--messages %s: got code %d, stderr %q; want 2", bad, code, errw.String())
		}
	}
}
