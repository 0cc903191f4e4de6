package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// TestTortureRestores lets three hosts, whose only way is one relay, send to each
// other while backups are taken, the relay is killed, its store is replaced by
// backups old and new, by rollback copies, or lost altogether, and restores and
// backups are killed in the middle; meanwhile hosts change their keys.
//
// In the end every message stands once in the mailbox it is for, and its sender
// has the receipt or still waits for one that went with a replaced store; every
// restore has made an epoch that never was before, and
// nothing else has, but a store that began anew; a host that was revoked has
// stayed so, unless the store was lost and what replaced it did not know; every
// backup that is left verifies, and nothing half done is left.
func TestTortureRestores(t *testing.T) {
	t.Parallel()
	rounds := envInt(t, "MBX_TORTURE_ROUNDS", 2)
	seed := uint64(envInt(t, "MBX_TORTURE_SEED", int(time.Now().UnixNano()&0x7fffffff)))
	t.Logf("MBX_TORTURE_SEED=%d MBX_TORTURE_ROUNDS=%d", seed, rounds)
	x := newTorture(t, rand.New(rand.NewPCG(seed, 5)))

	stop := make(chan struct{})
	var senders sync.WaitGroup
	for i, h := range x.hosts {
		r := rand.New(rand.NewPCG(x.rnd.Uint64(), 6))
		others := slices.Delete(slices.Clone(x.hosts), i, i+1)
		senders.Go(func() { h.sendAll(others, r, stop) })
	}
	stopSenders := sync.OnceFunc(func() { close(stop); senders.Wait() })
	defer stopSenders()
	var deck []func()
	for round := range rounds {
		if len(deck) == 0 { // each of them once before any of them twice
			deck = x.deck()
			x.rnd.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		x.round = round
		x.whileItServes()
		x.stop()
		deck[0]()
		deck = deck[1:]
		x.tellRotation()
		if t.Failed() {
			break
		}
	}
	stopSenders()
	x.settle(3 * time.Minute)
	x.everyMessageOnce()
	x.leavesGoodBackupsOnly()
	t.Logf("did %v", x.did)
}

// torture is a relay with its hosts, and what must be true of them.
type torture struct {
	t     *testing.T
	rnd   *rand.Rand
	round int
	hosts []*tortured
	gone  *client // a host that was revoked

	dir, at string
	apart   string // a folder for backups to a file, which are never pruned
	oldest  string // a backup that does not know that gone is revoked
	relay   *process

	epoch   string            // of the store; "" when there is none
	since   time.Time         // when it was found
	epochs  map[string]bool   // all that ever were
	revoked bool              // the store knows that gone is revoked
	cut     string            // the file of a restore that was killed and may have taken place
	used    map[string]string // paths given to MBX_RELAY_RESTORE_FROM: done, or in doubt since the store was lost
	late    func()            // tells the hosts of a rotation that not all know of
	did     map[string]int
}

// tortured is a host: its daemon is a process of its own.
type tortured struct {
	*homeDir
	host *host.Host // beside the daemon, as any command is
	rw   *sql.DB
	sent map[string]letterOut
}

// letterOut is a message that a host took to be sent.
type letterOut struct {
	to string // a host
	at time.Time
}

func newTorture(t *testing.T, rnd *rand.Rand) *torture {
	x := &torture{t: t, rnd: rnd, dir: t.TempDir(), apart: t.TempDir(), at: net.JoinHostPort("127.0.0.1", quietPort(t)),
		gone: newClient("gone"), epochs: map[string]bool{}, used: map[string]string{}, did: map[string]int{}}
	for _, name := range []string{"home", "work", "shed"} {
		x.hosts = append(x.hosts, newTortured(t, name))
	}
	for i, printed := range x.hosts[:2] {
		addr := lanAddr.FindStringSubmatch(printed.start("--lan-bind", "127.0.0.1", "--lan-port", quietPort(t)))
		for _, joins := range x.hosts[i+1:] {
			joinHomes(t, printed.homeDir, joins.homeDir, addr[1], "127.0.0.1:1")
		}
		printed.end()
	}
	x.serve() // where gone enrols
	for _, h := range x.hosts {
		if _, err := h.host.SetRelay(t.Context(), x.relay.url, ""); err != nil {
			t.Fatal(err)
		}
		h.start("--no-lan")
	}
	x.oldest = filepath.Join(x.apart, "oldest.db")
	x.backup(x.oldest)
	x.stop()
	x.serve()
	return x
}

func newTortured(t *testing.T, name string) *tortured {
	h := &tortured{homeDir: newHome(t, name), sent: map[string]letterOut{}}
	var err error
	if h.host, err = host.Open(t.Context(), host.Options{Home: h.dir, Version: version}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.host.Close() })
	if h.rw, err = sql.Open("sqlite", "file:"+filepath.Join(h.dir, "host.db")+"?mode=rw&_pragma=busy_timeout(10000)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.rw.Close() })
	return h
}

// sendAll sends to the others, steadily, until stop.
func (h *tortured) sendAll(others []*tortured, r *rand.Rand, stop <-chan struct{}) {
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-pace.C:
		}
		to := others[r.IntN(len(others))]
		subject := fmt.Sprintf("%s %d", h.name, n)
		m, err := h.host.Send(context.Background(), host.Draft{To: []string{"owner@" + to.name}, Subject: subject, Body: "the body of " + subject})
		if err != nil {
			h.t.Errorf("%s sends: %v", h.name, err)
			return
		}
		h.sent[m.ID] = letterOut{to.name, time.Now()}
	}
}

// hurry lets pass the time that a host waits after an attempt that failed: it
// doubles, and a relay that is gone half of the time would have it wait for hours.
func (h *tortured) hurry() {
	h.t.Helper()
	for _, table := range []string{"outbox", "receipts_out"} {
		if _, err := h.rw.Exec("UPDATE " + table + " SET next_at = 0 WHERE next_at > 0"); err != nil {
			h.t.Fatalf("%s: %v", h.name, err)
		}
	}
}

// deck are the ways to go on from a relay that was stopped. Each ends with a
// relay that serves.
func (x *torture) deck() []func() {
	named := func(name string, do func()) func() {
		return func() {
			x.t.Logf("round %d: %s", x.round, name)
			do()
		}
	}
	return []func(){
		named("start again", func() { x.serve() }),
		named("restore the oldest", func() { x.restore(x.oldest); x.serve() }),
		named("restore, killed, then serve", func() { x.killedRestore(x.pick()); x.serve() }),
		named("restore, killed, then another", func() { x.killedRestore(x.pick()); x.restore(x.pick()); x.serve() }),
		named("restore, and go back", x.goBack),
		named("lose the store, restore", func() { x.lose(); x.restore(x.pick()); x.serve() }),
		named("lose the store, restore, killed, then serve", func() { x.lose(); x.killedRestore(x.pick()); x.serveAfterCut() }),
		named("lose the store, restore, killed, then another", func() {
			x.lose()
			x.killedRestore(x.pick())
			x.restore(x.pick())
			x.serve()
		}),
		named("MBX_RELAY_RESTORE_FROM", func() { x.restoreFrom(false) }),
		named("MBX_RELAY_RESTORE_FROM, killed", func() { x.restoreFrom(true) }),
		named("lose the store, MBX_RELAY_RESTORE_FROM", func() { x.lose(); x.restoreFrom(x.rnd.IntN(2) == 0) }),
	}
}

// whileItServes takes backups, to their end or not, and now and then changes a
// host's key.
func (x *torture) whileItServes() {
	x.t.Helper()
	for _, h := range x.hosts {
		h.hurry()
	}
	if x.rnd.IntN(3) == 0 {
		x.rotate()
	}
	if x.rnd.IntN(3) == 0 {
		x.backup(filepath.Join(x.apart, fmt.Sprintf("round %d.db", x.round)))
	}
	if x.rnd.IntN(2) == 0 {
		x.killedBackup()
	} else {
		x.backup("")
	}
}

// stop ends the relay, by a kill mostly, and has gone revoked where it is not.
func (x *torture) stop() {
	x.t.Helper()
	if x.rnd.IntN(4) > 0 {
		x.relay.kill()
	} else {
		x.relay.stop(x.t)
	}
	if !x.revoked {
		x.revoke()
	}
}

// revoke does what no command does yet.
func (x *torture) revoke() {
	x.t.Helper()
	s, err := sqlite.Open(x.t.Context(), sqlite.Options{Dir: x.dir, LockWait: 10 * time.Second})
	if err != nil {
		x.t.Fatal(err)
	}
	err = s.Update(x.t.Context(), func(tx store.Tx) (err error) {
		_, err = tx.Revoke(x.gone.Pub(), time.Now())
		return err
	})
	if err := errors.Join(err, s.Close()); err != nil {
		x.t.Fatal(err)
	}
	x.revoked = true
}

// serve starts the relay and holds its epoch, and what it thinks of gone,
// against what must be.
func (x *torture) serve(env ...string) {
	x.t.Helper()
	ip, port, _ := net.SplitHostPort(x.at)
	cmd := program(x.t, "", "relay", "serve", "--store-dir", x.dir, "--bind", ip, "--port", port)
	cmd.Env = append(cmd.Env, env...)
	p, m := spawn(x.t, cmd, said)
	p.url, p.epoch = m[1], m[2]
	x.relay = p
	x.found(p.epoch)
	want := 200
	if x.revoked {
		want = 403
	}
	if code := x.goneEnrols(); code != want {
		x.t.Errorf("round %d: the host that was revoked %v enrols: got %d; want %d", x.round, x.revoked, code, want)
	}
	if _, code, err := x.gone.pull(p.url, 0, ""); err != nil || (code == 200) == x.revoked {
		x.t.Errorf("round %d: the host that was revoked %v pulls: got %d, %v", x.round, x.revoked, code, err)
	}
	for _, h := range x.hosts {
		if h.daemon != nil {
			h.hurry()
		}
	}
}

// goneEnrols lets the host that was revoked try to enrol.
func (x *torture) goneEnrols() int {
	x.t.Helper()
	g := x.gone
	var ch struct{ Challenge string }
	if code, err := g.call(x.relay.url, "POST", "/v1/relay/challenge", map[string]any{"host": g.Name, "pubkey": g.Pub()}, &ch); err != nil || code != 200 {
		x.t.Fatalf("challenge: got %d, %v; want 200", code, err)
	}
	sig := g.Key.Sign(wire.EnrolPayload(ch.Challenge, g.Name, g.Pub(), ""))
	code, err := g.call(x.relay.url, "POST", "/v1/relay/enrol", map[string]any{"host": g.Name, "pubkey": g.Pub(), "owner_fp": "", "sig": sig}, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	return code
}

// found takes in the epoch that the store turns out to have: its own, or a new
// one where a restore was killed or no store stood.
func (x *torture) found(epoch string) {
	x.t.Helper()
	if epoch == x.epoch && epoch != "" {
		if x.cut != "" {
			x.did["cut off before the swap"]++
		}
		x.cut = ""
		return
	}
	switch {
	case x.epoch != "" && x.cut == "":
		x.t.Fatalf("round %d: got epoch %q; want %q, nothing was restored", x.round, epoch, x.epoch)
	case x.epochs[epoch]:
		x.t.Fatalf("round %d: the epoch %q is back", x.round, epoch)
	}
	x.revoked = x.revoked && x.epoch != "" || x.cut != "" && x.knowsRevoked(x.cut)
	if x.epoch != "" {
		x.did["replaced"]++
	}
	x.epoch, x.cut, x.since = epoch, "", time.Now()
	x.epochs[epoch] = true
}

// knowsRevoked reports whether the backup itself has gone revoked.
func (x *torture) knowsRevoked(file string) bool {
	x.t.Helper()
	f, err := sqlite.OpenFile(file)
	if err != nil {
		x.t.Fatal(err)
	}
	defer f.Close()
	var e store.Enrolment
	err = f.View(func(r store.Reader) (err error) { e, err = r.Enrolment(x.gone.Pub()); return err })
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		x.t.Fatal(err)
	}
	return !e.Live()
}

// backups are all that can be restored now, rollback copies too.
func (x *torture) backups() (files []string) {
	x.t.Helper()
	for _, dir := range []string{filepath.Join(x.dir, "backups"), filepath.Join(x.dir, "rollback"), x.apart} {
		receipts, err := filepath.Glob(filepath.Join(dir, "*.db.json"))
		if err != nil {
			x.t.Fatal(err)
		}
		for _, r := range receipts {
			files = append(files, strings.TrimSuffix(r, ".json"))
		}
	}
	return files
}

func (x *torture) pick() string {
	x.t.Helper()
	if x.rnd.IntN(4) == 0 {
		return x.oldest
	}
	files := x.backups()
	return files[x.rnd.IntN(len(files))]
}

// run runs a command of the relay on its store; it must succeed.
func (x *torture) run(facts any, args ...string) {
	x.t.Helper()
	code, stdout, stderr := command(x.t, nil, append([]string{"relay"}, append(args, "--store-dir", x.dir, "--json")...)...)
	if code != 0 {
		x.t.Fatalf("round %d: %q: exit %d: %s", x.round, args, code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), facts); err != nil {
		x.t.Fatalf("round %d: %q: %v: %s", x.round, args, err, stdout)
	}
}
