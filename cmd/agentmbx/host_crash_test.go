package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite" // to look into host.db from outside
)

// TestCrashOfHostsAndRelay lets the daemons of two hosts send, receive and
// acknowledge over a relay while one of the three processes at a time is killed
// at a random moment and started again. In the end every message that was
// confirmed to its sender is in the other mailbox exactly once and settled, and
// nothing is left on the way.
func TestCrashOfHostsAndRelay(t *testing.T) {
	t.Parallel()
	rounds := envInt(t, "MBX_TORTURE_ROUNDS", 3)
	seed := uint64(envInt(t, "MBX_TORTURE_SEED", int(time.Now().UnixNano()&0x7fffffff)))
	t.Logf("MBX_TORTURE_SEED=%d MBX_TORTURE_ROUNDS=%d", seed, rounds)
	rnd := rand.New(rand.NewPCG(seed, 3))

	relayDir, relayAt := t.TempDir(), net.JoinHostPort("127.0.0.1", quietPort(t))
	relay := serveAt(t, relayDir, relayAt)
	home, work := newHome(t, "home"), newHome(t, "work")
	pairHomes(t, home, work)
	for _, h := range []*homeDir{home, work} {
		h.run("relay", "set", relay.url)
		h.start("--no-lan")
	}

	stop := make(chan struct{})
	var sent atomic.Int64
	var wg sync.WaitGroup
	for _, side := range [][2]*homeDir{{home, work}, {work, home}} {
		r := rand.New(rand.NewPCG(rnd.Uint64(), 4))
		wg.Go(func() { side[0].exchange(side[1], r, &sent, stop) })
	}
	epoch := relay.epoch
	for round := range rounds {
		for until := sent.Load() + 2 + rnd.Int64N(12); sent.Load() < until && !t.Failed(); {
			<-time.After(time.Millisecond)
		}
		<-time.After(time.Duration(rnd.IntN(300)) * time.Millisecond) // then it is somewhere on its way
		victim := rnd.IntN(3)
		t.Logf("round %d: kill the %s", round, []string{"relay", "daemon of home", "daemon of work"}[victim])
		switch victim {
		case 0:
			relay.kill()
			relay = serveAt(t, relayDir, relayAt)
			if relay.epoch != epoch {
				t.Errorf("round %d: got epoch %s; want %s as before the crash", round, relay.epoch, epoch)
			}
		case 1:
			home.daemon.kill()
			home.start("--no-lan")
		case 2:
			work.daemon.kill()
			work.start("--no-lan")
		}
	}
	close(stop)
	wg.Wait()
	converge(t, 3*time.Minute, home, work)
	t.Logf("%d messages from home, %d from work, each once", len(home.sent), len(work.sent))
	for _, h := range []*homeDir{home, work} {
		if len(h.sent) == 0 {
			t.Errorf("%s has sent nothing", h.name)
		}
		h.end()
	}
}

// homeDir is a host: its home, and its daemon when one was started.
type homeDir struct {
	t      *testing.T
	name   string
	dir    string
	netns  string // network namespace its processes run in, "" for the test's own
	daemon *process
	db     *sql.DB

	sent  []string        // ids that send confirmed
	acked map[string]bool // ids of the other host's mail that was acked here
}

// newHome makes a host.
func newHome(t *testing.T, name string) *homeDir {
	t.Helper()
	h := &homeDir{t: t, name: name, dir: filepath.Join(t.TempDir(), name), acked: map[string]bool{}}
	h.run("init", "--name", name)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(h.dir, "host.db")+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	h.db = db
	t.Cleanup(func() { db.Close() })
	return h
}

// command is the program on this home, in its network.
func (h *homeDir) command(args ...string) *exec.Cmd {
	h.t.Helper()
	return program(h.t, h.netns, append(args, "--home", h.dir)...)
}

// run runs a command that must succeed and returns what it prints.
func (h *homeDir) run(args ...string) string {
	h.t.Helper()
	out, err := h.try(args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *homeDir) try(args ...string) (string, error) {
	h.t.Helper()
	cmd := h.command(args...)
	var out, errw bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errw
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: agentmbx %q: %w\n%s", h.name, args, err, errw.String())
	}
	return out.String(), nil
}

var (
	daemonReady = regexp.MustCompile(`(?m)^ready: .*$`)
	lanAddr     = regexp.MustCompile(`LAN (\S+:\d+)`)
	pairToken   = regexp.MustCompile(`\b[0-9A-Z]{4}-[0-9A-Z]{4}-[0-9A-Z]{4}\b`)
)

// start runs the host's daemon and returns what it says once it is ready.
func (h *homeDir) start(args ...string) string {
	h.t.Helper()
	p, ready := spawn(h.t, h.command(append([]string{"daemon"}, args...)...), daemonReady)
	h.daemon = p
	return ready[0]
}

// end asks the daemon to end, which it does by itself.
func (h *homeDir) end() {
	h.t.Helper()
	if err := h.daemon.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		h.t.Error(err)
	}
	if code := h.daemon.wait(); code != 0 {
		h.t.Errorf("the daemon of %s: got exit code %d; want 0\n%s", h.name, code, h.daemon.stderr)
	}
}

// send sends to the owner of another host and returns the id.
func (h *homeDir) send(to *homeDir, subject string) (string, error) {
	h.t.Helper()
	out, err := h.try("send", "owner@"+to.name, "--subject", subject, "--body", "the body of "+subject, "--json")
	if err != nil {
		return "", err
	}
	var sent struct{ ID string }
	if err := json.Unmarshal([]byte(out), &sent); err != nil || sent.ID == "" {
		return "", fmt.Errorf("%s: send printed %q: %w", h.name, out, err)
	}
	h.sent = append(h.sent, sent.ID)
	return sent.ID, nil
}

// exchange sends to the other host, counting, and acks what has come from it, until stop.
func (h *homeDir) exchange(other *homeDir, r *rand.Rand, sent *atomic.Int64, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		if _, err := h.send(other, fmt.Sprintf("%s %d", h.name, n)); err != nil {
			h.t.Error(err)
			return
		}
		sent.Add(1)
		open := column[string](h, "SELECT msg FROM deliveries WHERE mailbox = 'owner' AND state <> 'acked' ORDER BY msg LIMIT 5")
		if len(open) == 0 || r.IntN(2) == 0 {
			continue
		}
		id := open[r.IntN(len(open))]
		if _, err := h.try("ack", id, "--note", "done by "+h.name); err != nil {
			h.t.Error(err)
			return
		}
		h.acked[id] = true
	}
}

// column reads the first column of host.db's rows, as another process sees them.
func column[T any](h *homeDir, query string, args ...any) (all []T) {
	h.t.Helper()
	rows, err := h.db.Query(query, args...)
	if err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
	defer rows.Close()
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			h.t.Fatalf("%s: %v", h.name, err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
	return all
}

// onTheWay says what a host still has to do: "" when all that it sent is
// settled and all that it owes was sent.
func (h *homeDir) onTheWay() string {
	h.t.Helper()
	for _, q := range []struct{ what, query string }{
		{"rows in the outbox", "SELECT count(*) FROM outbox"},
		{"receipts to send", "SELECT count(*) FROM receipts_out"},
		{"messages that the relay holds and nobody confirmed", "SELECT count(*) FROM relay_sent WHERE state <> 'settled'"},
		{"routes not confirmed", "SELECT count(*) FROM routes WHERE state <> 'confirmed'"},
		{"wire bytes kept", "SELECT count(*) FROM wires"},
		{"relays with an ack to send", "SELECT count(*) FROM relays WHERE acked < position"},
	} {
		if n := column[int64](h, q.query)[0]; n > 0 {
			return fmt.Sprintf("%s has %d %s", h.name, n, q.what)
		}
	}
	return ""
}

// converge waits until nothing is on its way between two hosts, then checks
// that each has what the other sent, once, and knows what became of its own.
func converge(t *testing.T, limit time.Duration, a, b *homeDir) {
	t.Helper()
	deadline := time.Now().Add(limit)
	left := func() string {
		for _, side := range [][2]*homeDir{{a, b}, {b, a}} {
			if what := side[0].onTheWay(); what != "" {
				return what
			}
			for id := range side[1].acked {
				if states := column[string](side[0], "SELECT state FROM confirmations WHERE msg = ?", id); len(states) != 1 || states[0] != "acked" {
					return fmt.Sprintf("%s has states %q of %s; want acked", side[0].name, states, id)
				}
			}
		}
		return ""
	}
	for what := left(); what != ""; what = left() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s %s\nhome's daemon:\n%s\nwork's daemon:\n%s", limit, what, a.daemon.stderr, b.daemon.stderr)
		}
		<-time.After(20 * time.Millisecond)
	}
	for _, side := range [][2]*homeDir{{a, b}, {b, a}} {
		from, to := side[0], side[1]
		there := map[string]int{}
		for _, id := range column[string](to, "SELECT d.msg FROM deliveries d JOIN messages m ON m.id = d.msg WHERE d.mailbox = 'owner' AND m.origin = ?", from.name) {
			there[id]++
		}
		for _, id := range from.sent {
			if there[id] != 1 {
				t.Errorf("%s from %s is %d times in the mailbox at %s; want once", id, from.name, there[id], to.name)
			}
			delete(there, id)
		}
		if len(there) > 0 {
			t.Errorf("%s has %d messages that nobody sent at %s", to.name, len(there), from.name)
		}
		if twice := column[string](to, "SELECT subject FROM messages WHERE origin <> '' GROUP BY subject HAVING count(*) > 1"); len(twice) > 0 {
			t.Errorf("%s has messages twice under different ids: %q", to.name, twice)
		}
		for _, q := range []struct{ what, query string }{
			{"items in quarantine", "SELECT count(*) FROM quarantine"},
			{"alerts", "SELECT count(*) FROM messages WHERE kind = 'alert'"},
			{"unconfirmed messages", "SELECT count(*) FROM relay_sent WHERE state = 'unconfirmed'"},
		} {
			if n := column[int64](to, q.query)[0]; n > 0 {
				t.Errorf("%s has %d %s; want none", to.name, n, q.what)
			}
		}
	}
}

// pairHomes pairs two hosts over loopback with a token, as a person does.
func pairHomes(t *testing.T, printed, joins *homeDir) {
	t.Helper()
	ready := printed.start("--lan-bind", "127.0.0.1", "--lan-port", quietPort(t))
	addr := lanAddr.FindStringSubmatch(ready)
	if addr == nil {
		t.Fatalf("got %q; want the LAN address in it", ready)
	}
	joinHomes(t, printed, joins, addr[1], "127.0.0.1:1")
	printed.end()
}

// joinHomes joins one host to another whose daemon listens at addr; own is
// where the joining one says it listens.
func joinHomes(t *testing.T, printed, joins *homeDir, addr, own string) {
	t.Helper()
	token := pairToken.FindString(printed.run("pair"))
	if token == "" {
		t.Fatal("pair printed no token")
	}
	cmd := joins.command("join", addr, "--addr", own)
	cmd.Stdin = bytes.NewReader([]byte(token + "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("join: %v\n%s", err, out)
	}
}

// program is the real one, in a network namespace when there is one.
func program(t *testing.T, netns string, args ...string) *exec.Cmd {
	t.Helper()
	argv := append([]string{binary(t)}, args...)
	if netns != "" {
		argv = append([]string{"ip", "netns", "exec", netns}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), lifted...)
	return cmd
}

// spawn starts a process that is killed at the end of the test and waits until
// it says that it is ready; it returns what matched.
func spawn(t *testing.T, cmd *exec.Cmd, ready *regexp.Regexp) (*process, []string) {
	t.Helper()
	p := &process{t: t, cmd: cmd, stderr: &lockedBuffer{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.stderr, p.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	deadline := time.After(90 * time.Second)
	for {
		if m := ready.FindStringSubmatch(p.stderr.String()); m != nil {
			return p, m
		}
		select {
		case <-p.done:
			t.Fatalf("%q ended: %v\n%s", cmd.Args, p.err, p.stderr)
		case <-deadline:
			t.Fatalf("%q is not ready\n%s", cmd.Args, p.stderr)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// serveAt serves a relay at an address that stays the same over its crashes.
func serveAt(t *testing.T, dir, addr string) *process {
	t.Helper()
	return serveIn(t, "", dir, addr)
}

func serveIn(t *testing.T, netns, dir, addr string) *process {
	t.Helper()
	ip, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	p, m := spawn(t, program(t, netns, "relay", "serve", "--store-dir", dir, "--bind", ip, "--port", port), said)
	p.url, p.epoch = m[1], m[2]
	return p
}

// quietPort is a free port below those that the system gives to outgoing
// connections, so that it is still free when a process comes back to it.
func quietPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(10000))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}
