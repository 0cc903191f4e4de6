package host

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The crash drills: the process that works on a home is a child, this test
// binary again, and kills itself with SIGKILL at a point of its work. Nobody
// else has the home open meanwhile, so what is found afterwards is what a crash
// leaves on the disk. The relay runs on in the test's own process.

const crashChildEnv = "MBX_CRASH_CHILD" // a childTask as JSON

// childTask says what a child does.
type childTask struct {
	Do    string // tick, rotate or relay
	Home  string
	Relay string // URL
	Now   int64  // its clock, which stands still
	At    string // where it kills itself, "" for nowhere
	Group int    // of Host.group, 0 for the usual

	Relayed relayTask // for relay
}

func TestMain(m *testing.M) {
	v := os.Getenv(crashChildEnv)
	if v == "" {
		os.Exit(m.Run())
	}
	var task childTask
	err := json.Unmarshal([]byte(v), &task)
	if err == nil && task.Do == "relay" {
		err = task.Relayed.run()
	} else if err == nil {
		err = task.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// die ends this process as a crash does: nothing is closed, nothing deferred runs.
func die() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {}
}

// run works on the home and prints what came of it as JSON.
func (c childTask) run() error {
	ctx := context.Background()
	h, err := Open(ctx, Options{Home: c.Home, RelayURL: c.Relay, Now: func() time.Time { return time.UnixMilli(c.Now).UTC() }})
	if err != nil {
		return err
	}
	h.at = func(point string) {
		if point == c.At {
			die()
		}
	}
	if c.Group > 0 {
		h.group = c.Group
	}
	var out any
	if c.Do == "rotate" {
		out, err = h.RotateKey(ctx)
	} else {
		out, err = h.Tick(ctx)
	}
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(out), h.Close())
}

// child lets a child work on the host's home, which is closed meanwhile, and
// reads what it printed into out; with c.At it must have been killed.
func (h *testHost) child(c childTask, out any) {
	h.w.t.Helper()
	c.Home, c.Relay, c.Now = h.opts.Home, h.opts.RelayURL, h.opts.Now().UnixMilli()
	port := h.lanPort
	noError(h.w.t, h.Close())
	defer func() {
		h.w.t.Helper()
		h.Host = must(Open(context.Background(), h.opts))
		h.lanPort = port
		noError(h.w.t, h.db.check(context.Background()))
	}()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashChildEnv+"="+string(must(json.Marshal(c))))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.ExitCode() == -1
	switch {
	case c.At != "" && !killed:
		h.w.t.Errorf("killed at %s: got %v, it said %s%s; want it killed there", c.At, err, stdout.String(), stderr.String())
	case c.At == "" && err != nil:
		h.w.t.Errorf("%s in a child: %v\n%s", c.Do, err, stderr.String())
	case c.At == "":
		noError(h.w.t, json.Unmarshal(stdout.Bytes(), out))
	}
}

// killedAt ticks in a child that is killed at a point.
func (h *testHost) killedAt(point string) {
	h.w.t.Helper()
	h.child(childTask{Do: "tick", At: point, Group: 1}, nil)
}

// restarted ticks in a child that lives on.
func (h *testHost) restarted() (r Report) {
	h.w.t.Helper()
	h.child(childTask{Do: "tick"}, &r)
	return r
}

// held lists what waits at the relay for a host.
func (r *testRelay) held(h *testHost) (items []store.Item) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) error {
		return v.Page(h.Key(), 0, 100, func(it store.Item) bool {
			items = append(items, it)
			return true
		})
	}))
	return items
}

// ackedBy is how far a host has acked at the relay.
func (r *testRelay) ackedBy(h *testHost) (through int64) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(context.Background(), func(v store.Reader) (err error) {
		through, err = v.Acked(h.Key())
		return err
	}))
	return through
}

// One message: its delivery and the position are one transaction, so that
// boundary (d) is in the next test.
func TestF2_CrashOfHostsAtEachBoundary(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick() // enrols
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()

	alpha.killedAt("push:stored")
	hash := ask[string](alpha, "SELECT hash FROM wires WHERE msg = ?", msg)
	same(t, "(a) outbox", alpha.outbox(), 1)
	same(t, "(a) hash stored", hash, wire.HashHex(ask[[]byte](alpha, "SELECT wire FROM wires WHERE msg = ?", msg)))
	same(t, "(a) at the relay", w.relay.queued(beta), 0)

	alpha.killedAt("push:answered")
	same(t, "(b) outbox", alpha.outbox(), 1)
	same(t, "(b) relay_sent", ask[int64](alpha, "SELECT count(*) FROM relay_sent"), 0)
	same(t, "(b) at the relay", w.relay.queued(beta), 1)
	item := w.relay.held(beta)[0]
	same(t, "(b) hash at the relay", hex.EncodeToString(item.Hash[:]), hash)

	same(t, "(c) accepted", alpha.restarted().Relay.Accepted, 1)
	same(t, "(c) outbox", alpha.outbox(), 0)
	same(t, "(c) state", alpha.sentState(msg), "relay-accepted")
	same(t, "(c) seq", ask[int64](alpha, "SELECT seq FROM relay_sent WHERE msg = ?", msg), item.Seq)
	same(t, "(c) at the relay", w.relay.queued(beta), 1)

	beta.killedAt("receive:checkpointed")
	same(t, "(e) inbox", beta.inbox(), 1)
	same(t, "(e) position", beta.relayRow().position, item.Seq)
	same(t, "(e) at the relay", w.relay.queued(beta), 1)

	beta.killedAt("receive:acked")
	same(t, "(f) at the relay", w.relay.queued(beta), 0)
	same(t, "(f) acked", w.relay.ackedBy(beta), item.Seq)

	same(t, "(g) accepted", beta.restarted().Relay.Received, 0)
	same(t, "(g) inbox", beta.inbox(), 1)
	same(t, "(g) ack noted", beta.relayRow().acked, item.Seq)

	r := alpha.restarted()
	same(t, "(h) receipts applied", r.Relay.Receipts, 1)
	same(t, "(h) state", alpha.sentState(msg), "settled")
	same(t, "(h) unconfirmed", r.Unconfirmed, 0)
	same(t, "(h) bytes kept", ask[int64](alpha, "SELECT count(*) FROM wires"), 0)
	same(t, "alerts", len(alpha.alerts("builder")), 0)
	same(t, "in quarantine", ask[int64](beta, "SELECT count(*) FROM quarantine"), 0)
}

// Two messages, each received in a transaction of its own: between them there
// is a delivery whose checkpoint is not written.
func TestF2_CrashBetweenDeliveryAndCheckpoint(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msgs := []string{alpha.send(beta, "first"), alpha.send(beta, "second")}
	alpha.lanFailedTwice()
	same(t, "accepted", alpha.restarted().Relay.Accepted, 2)
	items := w.relay.held(beta)
	same(t, "at the relay", len(items), 2)

	for _, again := range []string{"once", "again"} {
		beta.killedAt("receive:delivered")
		same(t, "(d) inbox, "+again, beta.inbox(), 1)
		same(t, "(d) position, "+again, beta.relayRow().position, 0)
		same(t, "(d) at the relay, "+again, w.relay.queued(beta), 2)
	}

	beta.killedAt("receive:checkpointed")
	same(t, "(e) inbox", beta.inbox(), 2)
	same(t, "(e) position", beta.relayRow().position, items[1].Seq)
	same(t, "(e) at the relay", w.relay.queued(beta), 2)

	beta.killedAt("receive:acked")
	same(t, "(f) at the relay", w.relay.queued(beta), 0)
	same(t, "(f) acked", w.relay.ackedBy(beta), items[1].Seq)

	same(t, "(g) accepted", beta.restarted().Relay.Received, 0)
	same(t, "(g) inbox", beta.inbox(), 2)

	r := alpha.restarted()
	same(t, "(h) unconfirmed", r.Unconfirmed, 0)
	for _, m := range msgs {
		same(t, "(h) state", alpha.sentState(m), "settled")
	}
}

// A receipt is pushed as mail is: a crash on either side of the push sends the
// same one again, and the sender applies it once.
func TestF2_CrashWhileReceiptsAreSent(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	alpha.restarted()
	same(t, "received", beta.restarted().Relay.Received, 1)

	owed := func() int64 { return ask[int64](beta, "SELECT count(*) FROM receipts_out") }
	beta.killedAt("push:stored")
	same(t, "owed before the push", owed(), 1)
	same(t, "at the relay before the push", w.relay.queued(alpha), 0)
	beta.killedAt("push:answered")
	same(t, "owed after the answer", owed(), 1)
	same(t, "at the relay after the answer", w.relay.queued(alpha), 1)
	same(t, "sent by the next start", beta.restarted().Relay.ReceiptsSent, 1)
	same(t, "owed after it", owed(), 0)
	same(t, "at the relay after it", w.relay.queued(alpha), 1)

	alpha.killedAt("receive:checkpointed")
	same(t, "state", alpha.sentState(msg), "settled")
	same(t, "receipts in the next start", alpha.restarted().Relay.Receipts, 0)
	same(t, "confirmations", ask[int64](alpha, "SELECT count(*) FROM confirmations"), 1)
	same(t, "at the relay at the end", w.relay.queued(alpha), 0)
}

// A rotation that a crash cut short is completed with the key that was made,
// and mail that was sealed for the key before it still arrives once.
func TestCrashWhileKeysRotate(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.tick()
	beta.tick()
	beta.send(alpha, "for the key of before")
	beta.lanFailedTwice()
	same(t, "accepted", beta.relayOnly().Accepted, 1)
	first := alpha.Key()

	alpha.child(childTask{Do: "rotate", At: "rotate:staged"}, nil)
	same(t, "key after the crash", alpha.Key(), first)
	staged := must(readKeys(filepath.Join(alpha.opts.Home, nextKeys))).key.Public()
	var r Rotated
	alpha.child(childTask{Do: "rotate"}, &r)
	same(t, "resumed", r.Resumed, true)
	same(t, "key", alpha.Key(), staged)

	alpha.child(childTask{Do: "rotate", At: "rotate:renamed"}, nil)
	last := alpha.Key()
	if last == staged {
		t.Error("key after the crash: got the one of before; want the new one")
	}
	same(t, "rotations", ask[int64](alpha, "SELECT count(*) FROM rotations"), 2)
	same(t, "peers to tell", ask[int64](alpha, "SELECT count(*) FROM rotation_peers"), 2)

	same(t, "received", alpha.restarted().Relay.Received, 1)
	same(t, "received again", alpha.restarted().Relay.Received, 0)
	same(t, "in quarantine", ask[int64](alpha, "SELECT count(*) FROM quarantine"), 0)
	for key, live := range map[wire.PublicKey]bool{first: false, staged: false, last: true} {
		noError(t, w.relay.store.View(context.Background(), func(v store.Reader) error {
			e, err := v.Enrolment(key)
			if errors.Is(err, store.ErrNotFound) { // it never met the relay
				return nil
			}
			same(t, "enrolment of "+key.Fingerprint()+" live", e.Live(), live)
			return err
		}))
	}
}
