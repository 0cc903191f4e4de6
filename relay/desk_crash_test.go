package relay_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

const crashChild = "MBX_DESK_CRASH_CHILD" // the folder of the store

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashChild); dir != "" {
		fmt.Fprintln(os.Stderr, deskForEver(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// The hosts of the crash test, whose keys are files: three that push, one that
// pulls.
var crashSenders = []string{"alpha0", "alpha1", "alpha2"}

const crashTarget = "beta"

func crashKey(dir, name string) wire.PrivateKey {
	return must(wire.ParseKeyFile(must(os.ReadFile(filepath.Join(dir, name+".key")))))
}

func openCrashed(dir string) (*sqlite.Store, error) {
	return sqlite.Open(context.Background(), sqlite.Options{
		Dir: dir, Key: crashKey(dir, "relay").Public(), LockWait: 10 * time.Second, Free: smallDevice,
	})
}

// desk is the child: a relay under load, with an operator who holds, releases and
// discards what comes in. It says each thing once it was answered, and what it
// pulled before it acks that.
type desk struct {
	*relay.Relay
	beta *wiretest.Host
	mu   sync.Mutex
}

func (d *desk) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Printf(format+" .\n", args...); err != nil {
		os.Exit(1) // nobody listens
	}
}

func deskForEver(dir string) error {
	st, err := openCrashed(dir)
	if err != nil {
		return err
	}
	l := relay.DefaultLimits()
	l.MaxQueueItems, l.MaxSenderItems, l.PushesPerMinute = 1e6, 1e6, 1e9
	l.MaxQueueBytes, l.MaxSenderBytes = 1<<40, 1<<40
	r, err := relay.New(context.Background(), relay.Options{Store: st, Key: crashKey(dir, "relay"), Limits: l, Authority: authority.HostKey{}})
	if err != nil {
		return err
	}
	d := &desk{Relay: r, beta: wiretest.NewHost(crashTarget)}
	d.beta.Key = crashKey(dir, crashTarget)
	failed := make(chan error)
	begin := func(fn func() error) { go func() { failed <- fn() }() }
	for _, name := range crashSenders {
		h := wiretest.NewHost(name)
		h.Key = crashKey(dir, name)
		begin(func() error { return d.pushAndJudge(h) })
	}
	begin(d.pullAndAck)
	begin(func() error { return d.judgeTheHeld(st) })
	for {
		if err := <-failed; err != nil {
			return err
		}
	}
}

func callerOf(h *wiretest.Host) relay.Caller {
	return relay.Caller{Enrolment: store.Enrolment{Key: h.Pub(), Name: h.Name}}
}

// pushAndJudge pushes, and of every four items lets one pass, holds one, releases
// one and discards one; then it retries an older push, which must be known.
func (d *desk) pushAndJudge(h *wiretest.Host) error {
	for i := 0; ; i++ {
		it := mail(h, d.beta)
		res, err := d.Push(context.Background(), callerOf(h), []wire.PushItem{it})
		if err != nil || res[0].Status != "accepted" {
			return fmt.Errorf("push: %v, %v", res, err)
		}
		d.say("put %s %s", it.ID, h.Name)
		at := ref(d.beta, res[0].Targets[0].Seq, it)
		if i%4 > 0 {
			if err := d.judge(at, i%4); err != nil {
				return err
			}
		}
		res, err = d.Push(context.Background(), callerOf(h), []wire.PushItem{it})
		if err != nil || res[0].Status != "duplicate" {
			return fmt.Errorf("retry of %s: %v, %v", it.ID, res, err)
		}
	}
}

// judge holds an item unless it was acked already, and then: 1 leaves it there, 2
// releases and 3 discards it.
func (d *desk) judge(at relay.ItemRef, how int) error {
	list, err := d.Hold(context.Background(), []relay.ItemRef{at}, operator)
	if err != nil || !list[0].Done {
		return err
	}
	d.say("held %s %d", at.ID, at.Seq)
	return d.end(at, how)
}

func (d *desk) end(at relay.ItemRef, how int) error {
	switch how {
	case 2:
		list, err := d.Release(context.Background(), []relay.ItemRef{at}, operator)
		if err != nil || !list[0].Done {
			return errors.Join(err, fmt.Errorf("release: %+v", list))
		}
		d.say("released %s %d", at.ID, list[0].NewSeq)
	case 3:
		list, err := d.Discard(context.Background(), []relay.ItemRef{at}, operator)
		if err != nil || !list[0].Done {
			return errors.Join(err, fmt.Errorf("discard: %+v", list))
		}
		d.say("discarded %s", at.ID)
	}
	return nil
}

// judgeTheHeld ends two of three that the runs before left in quarantine.
func (d *desk) judgeTheHeld(st store.Store) error {
	var left []relay.ItemRef
	err := st.View(context.Background(), func(v store.Reader) error {
		return v.Held(func(it store.HeldItem) bool {
			left = append(left, relay.ItemRef{Target: it.Target, Seq: it.Seq, ID: it.ID})
			return true
		})
	})
	for i, at := range left {
		if err == nil {
			err = d.end(at, 1+i%3)
		}
	}
	return err
}

func (d *desk) pullAndAck() error {
	for after := int64(0); ; {
		p, err := d.Pull(context.Background(), callerOf(d.beta), relay.PullQuery{After: after, Limit: 8, Wait: time.Second})
		if err != nil {
			return err
		}
		for _, it := range p.Items {
			d.say("got %s %d", it.ID, it.Seq)
		}
		if after = p.LastSeq; len(p.Items) > 0 {
			if _, err := d.Ack(context.Background(), callerOf(d.beta), p.Epoch, float64(after)); err != nil {
				return err
			}
		}
	}
}

// crashLog is what all children said.
type crashLog struct {
	sender    map[string]string // of an item that was put
	held      map[string]int64  // the seq it was last held under, after which nothing was said of it
	discarded map[string]bool
	got       map[string]bool // "id seq"
	over      map[string]bool // it was found delivered or discarded, and never comes back
}

func (c *crashLog) read(line string) {
	f := strings.Fields(line)
	if len(f) == 0 || f[len(f)-1] != "." {
		return // cut off by the kill: not said
	}
	switch f[0] {
	case "put":
		c.sender[f[1]] = f[2]
	case "held":
		c.held[f[1]] = must(strconv.ParseInt(f[2], 10, 64))
	case "released":
		delete(c.held, f[1])
	case "discarded":
		c.discarded[f[1]] = true
		delete(c.held, f[1])
	case "got":
		c.got[f[1]+" "+f[2]] = true
	}
}

// TestCrashDesk kills a relay whose operator holds, releases and discards under
// load, again and again on one store: whatever was accepted is in exactly one
// place, queued, held, discarded with its notice queued, or pulled and acked.
// MBX_TORTURE_ROUNDS says how often.
func TestCrashDesk(t *testing.T) {
	t.Parallel()
	rounds := 3
	if raceDetector { // which a kill tells nothing
		rounds = 1
	}
	if n, err := strconv.Atoi(os.Getenv("MBX_TORTURE_ROUNDS")); err == nil && n > 0 {
		rounds = n
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(uint64(seed), 4))
	dir := t.TempDir()
	for _, name := range append([]string{"relay", crashTarget}, crashSenders...) {
		ok(t, "write a key", os.WriteFile(filepath.Join(dir, name+".key"), wire.FormatKeyFile(must(wire.GenerateKey())), 0o600))
	}
	st := must(openCrashed(dir))
	ok(t, "enrol", st.Update(t.Context(), func(tx store.Tx) error {
		for _, name := range append([]string{crashTarget}, crashSenders...) {
			if err := tx.PutEnrolment(store.Enrolment{Key: crashKey(dir, name).Public(), Name: name, AuthorizedBy: "test", EnrolledAt: time.Now().UTC().Truncate(time.Millisecond)}); err != nil {
				return err
			}
		}
		return nil
	}))
	ok(t, "close", st.Close())
	said := &crashLog{map[string]string{}, map[string]int64{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for round := range rounds {
		stopAt := 1 + rnd.IntN(500)
		killedAfter(t, dir, stopAt, said)
		said.verify(t, dir)
		if t.Failed() {
			t.Fatalf("round %d of %d, killed after %d lines", round+1, rounds, stopAt)
		}
	}
	t.Logf("%d rounds, %d items, %d discarded, %d held, %d over", rounds, len(said.sender), len(said.discarded), len(said.held), len(said.over))
}

// killedAfter runs a child until it has said n lines, and reads all that it said.
func killedAfter(t *testing.T, dir string, n int, said *crashLog) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), crashChild+"="+dir)
	var stderr strings.Builder
	child.Stderr = &stderr
	out, err := child.StdoutPipe()
	ok(t, "pipe", err)
	ok(t, "start", child.Start())
	lines := 0
	for sc := bufio.NewScanner(out); sc.Scan(); { // to its end: what was said before the kill counts
		said.read(sc.Text())
		if lines++; lines == n {
			ok(t, "kill", child.Process.Kill()) // SIGKILL: no defers, no Close
		}
	}
	_ = child.Wait() // "signal: killed"
	if lines < n {
		t.Fatalf("the child said %d lines; want %d; stderr: %s", lines, n, stderr.String())
	}
}

// verify opens what a killed relay left.
func (c *crashLog) verify(t *testing.T, dir string) {
	t.Helper()
	st, err := openCrashed(dir)
	ok(t, "open after the kill", err)
	defer func() {
		ok(t, "the store agrees with itself", st.Check(context.Background()))
		ok(t, "close", st.Close())
	}()
	beta := crashKey(dir, crashTarget).Public()
	places := map[string][]string{} // of each item
	ok(t, "look", st.View(t.Context(), func(v store.Reader) error {
		if err := v.Page(beta, 0, 1<<30, func(it store.Item) bool { places[it.ID] = append(places[it.ID], "queued"); return true }); err != nil {
			return err
		}
		if err := v.Held(func(it store.HeldItem) bool { places[it.ID] = append(places[it.ID], "held"); return true }); err != nil {
			return err
		}
		for _, name := range crashSenders {
			err := v.Page(crashKey(dir, name).Public(), 0, 1<<30, func(it store.Item) bool {
				n, err := wire.ParseExpiryNotice(it.Wire, crashKey(dir, "relay").Public())
				ok(t, "notice", err)
				places[n.ItemID] = append(places[n.ItemID], "discarded")
				return true
			})
			if err != nil {
				return err
			}
		}
		for id, sender := range c.sender {
			d, err := v.Dedup(crashKey(dir, sender).Public(), id, beta)
			if err != nil {
				return fmt.Errorf("dedup of %s: %w", id, err)
			}
			c.judge(t, id, d.Seq, places[id])
		}
		return nil
	}))
	for id, at := range places { // those that nobody was told of, too
		if len(at) > 1 {
			t.Errorf("%s is in %v; want it in one place", id, at)
		}
	}
}

// judge looks at one item that was accepted, by where it is and the seq that the
// relay remembers of it.
func (c *crashLog) judge(t *testing.T, id string, seq int64, at []string) {
	t.Helper()
	place := strings.Join(at, " and ")
	heldAs, held := c.held[id]
	switch {
	case c.discarded[id] && place != "discarded":
		t.Errorf("%s was discarded: got it %q; want its notice queued", id, place)
	case held && heldAs == seq && place != "held" && place != "discarded":
		t.Errorf("%s was held as %d and not released: got it %q; want it held, or discarded with its notice", id, seq, place)
	case place == "" && !c.got[fmt.Sprint(id, " ", seq)]:
		t.Errorf("%s, last as %d, is nowhere and was never pulled as that", id, seq)
	case c.over[id] && (place == "queued" || place == "held"):
		t.Errorf("%s was delivered or discarded, and is %s again", id, place)
	}
	if place == "" || place == "discarded" {
		c.over[id] = true
	}
}
