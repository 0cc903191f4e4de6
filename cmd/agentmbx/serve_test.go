package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// command runs the program and answers its exit code.
func command(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errw bytes.Buffer
	cmd := exec.Command(binary(t), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errw
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errw.String()
}

// await polls until ok or the time is over.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		<-tick.C
	}
}

// The second relay on a store waits, says who has it, and takes over soon
// after the first was killed, with the epoch and the mail of the first.
func TestSecondServeTakesOver(t *testing.T) {
	dir := t.TempDir()
	first := serve(t, dir, "RAILWAY_DEPLOYMENT_ID=dep-1")
	second, stdout := start(t, dir)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the second says that it waits, and for whom", func() bool {
		said := second.stderr.String()
		return strings.Contains(said, fmt.Sprintf("pid=%d", first.cmd.Process.Pid)) &&
			strings.Contains(said, "host="+host) && strings.Contains(said, "deployment=dep-1")
	})
	first.kill()
	killed := time.Now()
	second.awaitServing(stdout)
	t.Logf("took over %s after the kill", time.Since(killed))
	if second.epoch != first.epoch {
		t.Errorf("got epoch %s; want %s", second.epoch, first.epoch)
	}
}

// A clean stop ends long polls first, exits 0, and leaves no socket behind.
func TestStopsCleanly(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			dir := t.TempDir()
			p := serve(t, dir)
			host := newClient("host")
			host.enrol(t, p.url)
			polled := make(chan error, 1)
			go func() {
				_, code, err := host.pull(p.url, 0, "&wait=25")
				if err == nil && code != 200 {
					err = fmt.Errorf("status %d", code)
				}
				polled <- err
			}()
			await(t, "a long poll waits", func() bool {
				_, out, _ := command(t, nil, "relay", "status", "--json", "--store-dir", dir)
				return strings.Contains(out, `"long_polls": 1`)
			})
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := <-polled; err != nil {
				t.Errorf("long poll: got %v; want an empty answer", err)
			}
			if code := p.wait(); code != 0 {
				t.Errorf("got exit code %d; want 0\n%s", code, p.stderr)
			}
			if _, err := os.Stat(filepath.Join(dir, "admin.sock")); !os.IsNotExist(err) {
				t.Errorf("admin.sock: got %v; want it gone", err)
			}
		})
	}
}

// What the store needs is there with tight modes, whatever the umask.
func TestStoreFileModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	p := serve(t, dir)
	defer p.kill()
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("folder: got %v, %v; want mode 0700", st.Mode(), err)
	}
	for _, name := range []string{"relay.db", "relay.db-wal", "relay.db-shm", "relay.key", "relay.lock", "admin.sock", "reserve"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if st.Mode().Perm() != 0o600 {
			t.Errorf("%s: got mode %v; want 0600", name, st.Mode().Perm())
		}
	}
}

// The key given in the environment is the relay's, is written nowhere, and
// cannot be read from the process afterwards.
func TestKeyFromEnvironment(t *testing.T) {
	key, err := wire.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := serve(t, dir, "MBX_RELAY_KEY="+key.Seed())
	if got := relayKey(t, p.url); got != key.Public() {
		t.Errorf("got relay key %s; want %s", got, key.Public())
	}
	if runtime.GOOS == "linux" {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(b, []byte("MBX_RELAY_LIMIT_PUSHES")) {
			t.Errorf("environ: got %d bytes without what was set; want the rest of it untouched", len(b))
		}
		if bytes.Contains(b, []byte(key.Seed())) {
			t.Error("the key stands in /proc/PID/environ")
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "relay.key")); !os.IsNotExist(err) {
		t.Errorf("relay.key: got %v; want none", err)
	}
	p.kill()
	code, out, errw := command(t, nil, "relay", "serve", "--port", "0", "--store-dir", dir)
	if code != 3 || !strings.Contains(errw, "MBX_RELAY_KEY") {
		t.Errorf("without its key: got code %d, %q; want 3 and what to do", code, errw)
	}
	other, _ := wire.GenerateKey()
	code, out2, errw2 := command(t, []string{"MBX_RELAY_KEY=" + other.Seed()}, "relay", "serve", "--port", "0", "--store-dir", dir)
	if code != 3 || !strings.Contains(errw2, key.Public().Fingerprint()) {
		t.Errorf("with another key: got code %d, %q; want 3 and the fingerprint of the store's", code, errw2)
	}
	code, out3, errw3 := command(t, []string{"MBX_RELAY_KEY=" + other.Seed()[:30] + "!!"}, "relay", "serve", "--port", "0", "--store-dir", dir)
	if code != 1 {
		t.Errorf("with junk: got code %d; want 1", code)
	}
	for _, s := range []string{out, errw, out2, errw2, out3, errw3} {
		for _, secret := range []string{key.Seed(), other.Seed(), other.Seed()[:30]} {
			if strings.Contains(s, secret) {
				t.Errorf("a message shows key material: %q", s)
			}
		}
	}
}

// The operator's commands speak to the relay that runs, and do the work
// themselves under the lock when none does.
func TestDeskCommands(t *testing.T) {
	dir := t.TempDir()
	if code, _, errw := command(t, nil, "relay", "status", "--store-dir", dir); code != 5 || !strings.Contains(errw, "no relay is running") {
		t.Errorf("status without a store: got code %d, %q; want 5", code, errw)
	}
	if code, _, errw := command(t, nil, "relay", "log", "--store-dir", dir); code != 4 || !strings.Contains(errw, "there is no store") {
		t.Errorf("log without a store: got code %d, %q; want 4", code, errw)
	}
	p := serve(t, dir)
	code, out, errw := command(t, nil, "relay", "status", "--json", "--store-dir", dir)
	var facts statusFacts
	if err := json.Unmarshal([]byte(out), &facts); err != nil || code != 0 || !facts.Running || !facts.Healthy || facts.Relay.Epoch != p.epoch {
		t.Errorf("status: got code %d, %q, %q, %v; want 0 and the epoch %s", code, out, errw, err, p.epoch)
	}
	code, out, errw = command(t, nil, "relay", "rotate-epoch", "--reason", "a test", "--store-dir", dir)
	m := regexp.MustCompile(`^epoch (\S+)\n$`).FindStringSubmatch(out)
	if code != 0 || m == nil || m[1] == p.epoch {
		t.Fatalf("rotate-epoch: got code %d, %q, %q; want 0 and a new epoch", code, out, errw)
	}
	if got := infoEpoch(t, p.url); got != m[1] {
		t.Errorf("the running relay has epoch %s; want %s", got, m[1])
	}
	p.kill()
	code, out, errw = command(t, nil, "relay", "rotate-epoch", "--store-dir", dir)
	if code != 0 || out == "epoch "+m[1]+"\n" {
		t.Errorf("rotate-epoch without a relay: got code %d, %q, %q; want 0 and a new epoch", code, out, errw)
	}
	code, out, _ = command(t, nil, "relay", "log", "--json", "--op", "rotate-epoch", "--store-dir", dir)
	var entries []struct {
		Op      string
		Receipt struct{ From, To, Actor, Reason string }
	}
	if err := json.Unmarshal([]byte(out), &entries); err != nil || code != 0 || len(entries) != 2 {
		t.Fatalf("log: got code %d, %q, %v; want 0 and two entries", code, out, err)
	}
	if r := entries[1].Receipt; r.From != p.epoch || r.To != m[1] || r.Reason != "a test" || !strings.HasPrefix(r.Actor, "cli:") {
		t.Errorf("the first rotation: got %+v; want from, to, actor and reason", r)
	}
	again := serve(t, dir)
	if want := strings.TrimSpace(strings.TrimPrefix(entries[0].Receipt.To, "")); again.epoch != want {
		t.Errorf("served after it: got epoch %s; want %s", again.epoch, want)
	}
}

func infoEpoch(t *testing.T, base string) string {
	t.Helper()
	resp, err := http.Get(base + "/v2/relay/info")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var in struct{ Epoch string }
	if err := json.NewDecoder(resp.Body).Decode(&in); err != nil {
		t.Fatal(err)
	}
	return in.Epoch
}

// A store whose folder's path is too long for a socket is served all the same.
func TestLongStorePath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 25))
	p := serve(t, dir)
	if code, out, errw := command(t, nil, "relay", "status", "--store-dir", dir); code != 0 || !strings.Contains(out, p.epoch) {
		t.Errorf("status: got code %d, %q, %q; want 0", code, out, errw)
	}
	addr, err := os.ReadFile(filepath.Join(dir, "admin.addr"))
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Dir(strings.TrimSpace(string(addr)))
	if st, err := os.Stat(private); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%s: got %v, %v; want a folder of mode 0700", private, st, err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait()
	if _, err := os.Stat(private); !os.IsNotExist(err) {
		t.Errorf("%s: got %v; want it gone", private, err)
	}
}

// An end that nobody asked for is no exit 0, and a port that is taken is said.
func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	code, _, errw := command(t, nil, "relay", "serve", "--port", port, "--store-dir", t.TempDir())
	if code != 1 || !strings.Contains(errw, port) {
		t.Errorf("got code %d, %q; want 1 and the port", code, errw)
	}
}

// As JSON, all that the relay says is a record a line on stdout, with the
// members that platforms look for.
func TestJSONLogs(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(binary(t), "relay", "serve", "--store-dir", dir, "--port", "0")
	cmd.Env = append(os.Environ(), "MBX_LOG_FORMAT=json")
	out := &lockedBuffer{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "it serves", func() bool { return strings.Contains(out.String(), `"message":"serving"`) })
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v; want exit 0", err)
	}
	for line := range strings.Lines(out.String()) {
		var rec map[string]any
		if err := json.Unmarshal([]byte(line), &rec); err != nil || rec["message"] == nil || rec["level"] != "info" {
			t.Errorf("got line %q, %v; want JSON with message and level", line, err)
		}
	}
}

// A stop that is asked for while the store is another's is a clean one.
func TestStopWhileWaiting(t *testing.T) {
	dir := t.TempDir()
	first := serve(t, dir)
	second, stdout := start(t, dir)
	go second.drain(stdout)
	await(t, "the second waits", func() bool { return strings.Contains(second.stderr.String(), "waiting") })
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := second.wait(); code != 0 {
		t.Errorf("got exit code %d; want 0\n%s", code, second.stderr)
	}
	if got := infoEpoch(t, first.url); got != first.epoch {
		t.Errorf("the first: got epoch %s; want %s", got, first.epoch)
	}
}

// Without its lock file a relay still has its store: its socket answers.
func TestLockFileRemoved(t *testing.T) {
	dir := t.TempDir()
	first := serve(t, dir)
	if err := os.Remove(filepath.Join(dir, "relay.lock")); err != nil {
		t.Fatal(err)
	}
	code, _, errw := command(t, nil, "relay", "serve", "--port", "0", "--store-dir", dir)
	if code != 3 || !strings.Contains(errw, "still runs") {
		t.Errorf("got code %d, %q; want 3", code, errw)
	}
	if code, _, errw := command(t, nil, "relay", "status", "--store-dir", dir); code != 0 {
		t.Errorf("status of the first: got code %d, %q; want 0", code, errw)
	}
	if got := infoEpoch(t, first.url); got != first.epoch {
		t.Errorf("the first: got epoch %s; want %s", got, first.epoch)
	}
}

// A relay whose socket was removed is no relay that is not there.
func TestStatusWithoutSocket(t *testing.T) {
	dir := t.TempDir()
	p := serve(t, dir)
	if err := os.Remove(filepath.Join(dir, "admin.sock")); err != nil {
		t.Fatal(err)
	}
	code, _, errw := command(t, nil, "relay", "status", "--store-dir", dir)
	if code != 5 || !strings.Contains(errw, fmt.Sprintf("pid %d", p.cmd.Process.Pid)) {
		t.Errorf("got code %d, %q; want 5 and the process", code, errw)
	}
}

// What a relay cannot keep it does not accept: not into a store that was
// deleted or replaced under it.
func TestStoreTakenAway(t *testing.T) {
	for name, take := range map[string]func(dir string) error{
		"deleted": os.RemoveAll,
		"replaced": func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, "relay.db"))
			if err != nil {
				return err
			}
			path := filepath.Join(dir, "other")
			if err := os.WriteFile(path, b, 0o600); err != nil {
				return err
			}
			return os.Rename(path, filepath.Join(dir, "relay.db"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			p := serve(t, dir)
			alpha, beta := newClient("alpha"), newClient("beta")
			alpha.enrol(t, p.url)
			beta.enrol(t, p.url)
			if err := take(dir); err != nil {
				t.Fatal(err)
			}
			var answer struct{ Code string }
			in := map[string]any{"items": []pushItem{alpha.item(beta)}}
			code, err := alpha.call(p.url, "POST", "/v2/relay/items", in, &answer)
			if err != nil || code != 503 || answer.Code != "STORE_GONE" {
				t.Errorf("push: got %d %q, %v; want 503 STORE_GONE", code, answer.Code, err)
			}
		})
	}
}

// A key that others may read is made private, and what a crash left of one is
// swept.
func TestKeyFileIsMadePrivate(t *testing.T) {
	dir := t.TempDir()
	key, err := wire.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	path, partial := filepath.Join(dir, "relay.key"), filepath.Join(dir, "relay.key.1.partial")
	for _, p := range []string{path, partial} {
		if err := os.WriteFile(p, wire.FormatKeyFile(key), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(partial, old, old); err != nil {
		t.Fatal(err)
	}
	p := serve(t, dir)
	if got := relayKey(t, p.url); got != key.Public() {
		t.Errorf("got relay key %s; want %s", got, key.Public())
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("relay.key: got %v, %v; want mode 0600", st.Mode(), err)
	}
	if _, err := os.Stat(partial); !os.IsNotExist(err) {
		t.Errorf("partial: got %v; want it gone", err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("folder: got %v, %v; want mode 0700", st.Mode(), err)
	}
}

// The hop of a body of control characters takes six times its size to verify;
// many at once must not take many times that.
func TestHopsOfHostileBodies(t *testing.T) {
	p := serve(t, t.TempDir())
	host := newClient("host")
	host.enrol(t, p.url)
	body := bytes.Repeat([]byte{1}, 8<<20)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			req, err := http.NewRequest("POST", p.url+"/v2/relay/items", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			ts, _ := wire.SignHop(host.Key, "POST", "/v2/relay/items", nil, time.Now())
			req.Header.Set(wire.HeaderKey, host.Pub().String())
			req.Header.Set(wire.HeaderTS, ts)
			req.Header.Set(wire.HeaderSig, wire.EncodeBase64(make([]byte, 64)))
			resp, err := host.http.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != 401 && resp.StatusCode != 503 {
				t.Errorf("got %d; want 401, or 503 BUSY", resp.StatusCode)
			}
		})
	}
	all.Wait()
	if runtime.GOOS != "linux" {
		return
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no VmHWM in %s", b)
	}
	if kb, _ := strconv.Atoi(string(m[1])); kb > 400<<10 {
		t.Errorf("got a peak of %d MiB; want at most 400", kb>>10)
	}
}

// A second signal does not wait for what the first is waiting for.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	p := serve(t, t.TempDir())
	host := newClient("host")
	host.enrol(t, p.url)
	addr := strings.TrimPrefix(p.url, "http://")
	c, err := net.Dial("tcp", addr) // a body that does not come holds the stop
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ts, sig := wire.SignHop(host.Key, "POST", "/v2/relay/ack", nil, time.Now())
	fmt.Fprintf(c, "POST /v2/relay/ack HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n%s: %s\r\n%s: %s\r\n%s: %s\r\n\r\n",
		wire.HeaderKey, host.Pub(), wire.HeaderTS, ts, wire.HeaderSig, sig)
	if code, err := host.call(p.url, "GET", "/healthz", nil, nil); err != nil || code != 200 {
		t.Fatalf("healthz: got %d, %v; want 200", code, err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "the port is closed", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != -1 {
		t.Errorf("got exit code %d; want the end by the signal itself\n%s", code, p.stderr)
	}
}
