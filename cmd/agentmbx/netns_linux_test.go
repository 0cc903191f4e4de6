package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The hosts home and work are in networks of their own, each with one wire, to
// the relay's. There is no way from one to the other. Addresses exist in these
// namespaces only.
const (
	relayAddr = "10.77.0.1" // reached over either wire
	homeAddr  = "10.77.1.2"
	workAddr  = "10.77.2.2"
	lanPort   = "7373"
	relayPort = "7374"
)

// TestTwoNetworks is the proof of mail from home to work: two hosts that can't
// reach each other pair, part, and exchange mail over a relay that is killed in
// the middle of it. Every message arrives once and every receipt comes back.
//
// It needs root and network namespaces, and is skipped without; with
// MBX_TEST_NETNS=required it fails instead.
func TestTwoNetworks(t *testing.T) {
	t.Parallel()
	n := newNetworks(t)
	home, work := newHome(t, "home"), newHome(t, "work")

	// On one network first, under the addresses that they will have: there they pair.
	home.netns, work.netns = n.relay, n.relay
	n.ip("-n", n.relay, "address", "add", homeAddr+"/32", "dev", "lo")
	home.start("--lan-bind", homeAddr, "--lan-port", lanPort)
	joinHomes(t, home, work, homeAddr+":"+lanPort, workAddr+":"+lanPort)
	home.end()
	n.ip("-n", n.relay, "address", "del", homeAddr+"/32", "dev", "lo")

	n.connect()
	home.netns, work.netns = n.home, n.work
	dir := t.TempDir()
	relay := serveIn(t, n.relay, dir, relayAddr+":"+relayPort)
	epoch := relay.epoch
	for _, h := range []*homeDir{home, work} {
		h.run("relay", "set", relay.url)
		h.start("--lan-bind", "0.0.0.0", "--lan-port", lanPort)
	}

	// Each daemon listens, and the other host can't get there.
	for _, c := range []struct {
		netns, addr string
		want        error
	}{
		{n.home, homeAddr, nil},
		{n.work, workAddr, nil},
		{n.home, workAddr, unix.ENETUNREACH},
		{n.work, homeAddr, unix.ENETUNREACH},
	} {
		if err := dialFrom(c.netns, c.addr); !errors.Is(err, c.want) {
			t.Errorf("connect to %s from %s: got %v; want %v", c.addr, c.netns, err, c.want)
		}
	}

	send := func(from, to *homeDir, subject string) string {
		id, err := from.send(to, subject)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	// The first mail tries the LAN twice before it goes to the relay.
	began := time.Now()
	first := []string{send(home, work, "home first"), send(work, home, "work first")}
	arrives(t, home, work, first[0])
	arrives(t, work, home, first[1])
	t.Logf("the first messages took %s: two attempts over the LAN come before the relay", time.Since(began).Round(time.Millisecond))

	for _, side := range [][2]*homeDir{{home, work}, {work, home}} {
		var whole, stored []time.Duration
		for i := range 10 {
			began := time.Now()
			id := send(side[0], side[1], fmt.Sprintf("%s timed %d", side[0].name, i))
			arrives(t, side[0], side[1], id)
			whole = append(whole, time.Since(began))
			at := func(h *homeDir) int64 { return column[int64](h, "SELECT at FROM messages WHERE id = ?", id)[0] }
			stored = append(stored, time.Duration(at(side[1])-at(side[0]))*time.Millisecond)
		}
		t.Logf("from %s to %s over the relay: %s from the start of `agentmbx send`, %s from stored to stored (medians of %d, slowest %s)",
			side[0].name, side[1].name, median(whole).Round(time.Millisecond), median(stored), len(whole), slices.Max(whole).Round(time.Millisecond))
	}

	// Both send at once; the relay is killed while mail is on its way.
	const each = 20
	var wg sync.WaitGroup
	half := make(chan struct{}, 2)
	for _, side := range [][2]*homeDir{{home, work}, {work, home}} {
		wg.Go(func() {
			for i := range each {
				if _, err := side[0].send(side[1], fmt.Sprintf("%s in flight %d", side[0].name, i)); err != nil {
					t.Error(err)
				}
				if i == each/2 {
					half <- struct{}{}
				}
			}
		})
	}
	<-half
	relay.kill()
	<-half
	wg.Wait() // sent while there was no relay
	waiting := column[int64](home, "SELECT count(*) FROM outbox")[0] + column[int64](work, "SELECT count(*) FROM outbox")[0]
	if waiting == 0 {
		t.Error("got nothing on its way when the relay was killed; want mail in the outboxes")
	}
	relay = serveIn(t, n.relay, dir, relayAddr+":"+relayPort)
	if relay.epoch != epoch {
		t.Errorf("got epoch %s; want %s as before the crash", relay.epoch, epoch)
	}
	for _, side := range [][2]*homeDir{{home, work}, {work, home}} {
		id := side[1].sent[0]
		side[0].run("ack", id, "--note", "seen")
		side[0].acked[id] = true
	}
	converge(t, 3*time.Minute, home, work)
	t.Logf("%d messages from home and %d from work, each once; %d were waiting when the relay came back", len(home.sent), len(work.sent), waiting)

	for _, h := range []*homeDir{home, work} {
		if n := column[int64](h, "SELECT count(*) FROM routes r WHERE NOT EXISTS (SELECT 1 FROM relay_sent s WHERE s.msg = r.msg AND s.fold = r.fold)")[0]; n > 0 {
			t.Errorf("%s has %d messages that did not go over the relay", h.name, n)
		}
		if n := column[int64](h, "SELECT lan_failures FROM peers")[0]; n < 2 {
			t.Errorf("%s: got %d attempts over the LAN that reached nobody; want 2 or more", h.name, n)
		}
		h.end()
	}
}

// arrives waits until a message is in the mailbox of the other host.
func arrives(t *testing.T, from, to *homeDir, id string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for len(column[string](to, "SELECT msg FROM deliveries WHERE msg = ?", id)) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not arrive at %s\n%s\n%s", id, to.name, from.daemon.stderr, to.daemon.stderr)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// networks are three network namespaces, named for this run.
type networks struct {
	t                 *testing.T
	relay, home, work string
}

// newNetworks makes the namespaces, each with its loopback only.
func newNetworks(t *testing.T) *networks {
	t.Helper()
	run := fmt.Sprintf("mbx-%d-%06x-", os.Getpid(), rand.IntN(1<<24))
	n := &networks{t: t, relay: run + "relay", home: run + "home", work: run + "work"}
	for _, ns := range []string{n.relay, n.home, n.work} {
		out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput()
		if err == nil {
			t.Cleanup(func() { // after the processes in it, which are newer, have ended
				if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
					t.Errorf("ip netns del %s: %v: %s", ns, err, out)
				}
			})
			out, err = exec.Command("ip", "-n", ns, "link", "set", "lo", "up").CombinedOutput()
		}
		if err == nil { // processes can be started there, too
			out, err = exec.Command("ip", "netns", "exec", ns, "true").CombinedOutput()
		}
		switch {
		case err == nil:
		case os.Getenv("MBX_TEST_NETNS") == "required":
			t.Fatalf("network namespaces: %v: %s", err, out)
		default:
			t.Skipf("no network namespaces here: %v: %s", err, strings.TrimSpace(string(out)))
		}
	}
	return n
}

// ip runs the command ip.
func (n *networks) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// connect lays a wire from each host's namespace to the relay's.
func (n *networks) connect() {
	n.t.Helper()
	n.ip("-n", n.relay, "address", "add", relayAddr+"/32", "dev", "lo")
	for _, c := range []struct{ ns, name, addr, gateway string }{
		{n.home, "home", homeAddr, "10.77.1.1"},
		{n.work, "work", workAddr, "10.77.2.1"},
	} {
		n.ip("link", "add", c.name, "netns", n.relay, "type", "veth", "peer", "name", "relay", "netns", c.ns)
		n.ip("-n", n.relay, "address", "add", c.gateway+"/30", "dev", c.name)
		n.ip("-n", n.relay, "link", "set", c.name, "up")
		n.ip("-n", c.ns, "address", "add", c.addr+"/30", "dev", "relay")
		n.ip("-n", c.ns, "link", "set", "relay", "up")
		n.ip("-n", c.ns, "route", "add", relayAddr+"/32", "via", c.gateway)
	}
}

// dialFrom connects from a namespace to where a daemon would listen.
func dialFrom(netns, addr string) error {
	done := make(chan error)
	go func() {
		// The thread changes its network and ends with this goroutine.
		runtime.LockOSThread()
		done <- func() error {
			ns, err := unix.Open("/run/netns/"+netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(ns)
			if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
				return err
			}
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			to := unix.SockaddrInet4{Port: 7373}
			if _, err := fmt.Sscanf(addr, "%d.%d.%d.%d", &to.Addr[0], &to.Addr[1], &to.Addr[2], &to.Addr[3]); err != nil {
				return err
			}
			return unix.Connect(s, &to)
		}()
	}()
	return <-done
}
