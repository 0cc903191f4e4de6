package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/backup"
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

// backup takes one from the relay that serves, after the one that is on its way
// if there is any: a restored store takes one by itself.
func (x *torture) backup(file string) {
	x.t.Helper()
	args := []string{"relay", "backup", "--store-dir", x.dir}
	if file != "" {
		args = append(args, file)
	}
	await(x.t, "a backup", func() bool {
		code, _, stderr := command(x.t, nil, args...)
		if code != 0 && !(code == codeRefused && strings.Contains(stderr, "is running")) {
			x.t.Fatalf("round %d: backup: exit %d: %s", x.round, code, stderr)
		}
		return code == 0
	})
	x.did["backup"]++
}

// killedBackup kills the command of a backup, which goes on in the relay, or the
// relay in the middle of it.
func (x *torture) killedBackup() {
	x.t.Helper()
	x.backup("") // what a restored store takes by itself is done then
	cmd := program(x.t, "", "relay", "backup", "--store-dir", x.dir)
	begun := func() bool {
		partial, _ := filepath.Glob(filepath.Join(x.dir, "backups", "*.partial"))
		return len(partial) > 0
	}
	if x.rnd.IntN(3) == 0 {
		x.killIt(cmd, begun, func() { _ = cmd.Process.Kill() })
		return
	}
	x.killIt(cmd, begun, x.relay.kill)
	x.serve()
}

// killIt runs a command and kills at a random moment: from its start on, or from
// the moment on when it is in the middle of its work. It reports whether the
// command did all of it before.
func (x *torture) killIt(cmd *exec.Cmd, begun func() bool, kill func()) (done bool) {
	x.t.Helper()
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	within := 400 * time.Millisecond
	if x.rnd.IntN(4) > 0 {
		within = 60 * time.Millisecond
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for !begun() && !said.MatchString(out.String()) { // a relay serves before it is seen at work, or instead
			select {
			case err := <-ended:
				kill()
				return err == nil
			case <-look.C:
			}
		}
	}
	select {
	case err := <-ended:
		kill()
		return err == nil
	case <-time.After(time.Duration(x.rnd.Int64N(int64(within)))):
	}
	kill()
	x.did["killed"]++
	err := <-ended
	if err != nil && cmd.ProcessState.Exited() && cmd.ProcessState.ExitCode() == 2 {
		x.t.Errorf("%q: %v: %s", cmd.Args, err, &out)
	}
	return err == nil
}

// lose deletes the store, and sometimes leaves what stands beside it.
func (x *torture) lose() {
	x.t.Helper()
	names := []string{"relay.db", "relay.db-wal", "relay.db-shm"}
	if x.rnd.IntN(3) == 0 {
		names = names[:1]
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(x.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			x.t.Fatal(err)
		}
	}
	x.epoch, x.revoked = "", false
	for path := range x.used {
		x.used[path] = "in doubt"
	}
}

// restore restores a file and holds the receipt against what must be.
func (x *torture) restore(file string) (r backup.RestoreReceipt) {
	x.t.Helper()
	x.run(&r, "restore", file)
	if r.From != "" {
		x.found(r.From)
	} else if x.epoch != "" || x.cut != "" {
		x.t.Errorf("round %d: restore found no store; want that of epoch %q", x.round, x.epoch)
	}
	x.cut = file
	x.found(r.To)
	return r
}

// killedRestore restores and is killed: nobody knows whether it took place.
func (x *torture) killedRestore(file string) {
	x.t.Helper()
	cmd := program(x.t, "", "relay", "restore", "--store-dir", x.dir, file)
	begun := func() bool {
		_, err := os.Lstat(filepath.Join(x.dir, "restore.partial"))
		return err == nil
	}
	done := x.killIt(cmd, begun, func() { _ = cmd.Process.Kill() })
	x.cut = file
	if exists, err := sqlite.Exists(x.dir); err != nil || done && !exists {
		x.t.Fatalf("the store: %v, %v", exists, err)
	} else if !exists {
		x.cut = "" // it did not
	}
}

// serveAfterCut serves what a killed restore left where no store was. Begun and
// not in place it is no store to serve: the start says so, and begins an empty
// one only when the operator does away with it.
func (x *torture) serveAfterCut() {
	x.t.Helper()
	work := filepath.Join(x.dir, "restore.partial")
	exists, err := sqlite.Exists(x.dir)
	if err != nil {
		x.t.Fatal(err)
	}
	if _, err := os.Lstat(work); err == nil && !exists {
		p, stdout := start(x.t, x.dir)
		go p.drain(stdout)
		if code := p.wait(); code != codeRefused || !strings.Contains(p.stderr.String(), "it was cut off") {
			x.t.Errorf("round %d: serve: got %d, %q; want 3", x.round, code, p.stderr)
		}
		x.did["refused to serve"]++
		if x.rnd.IntN(2) == 0 {
			x.restore(x.pick())
		} else if err := os.RemoveAll(work); err != nil {
			x.t.Fatal(err)
		}
	}
	x.serve()
}

// goBack restores, serves for a while perhaps, and then restores what the first
// one replaced.
func (x *torture) goBack() {
	x.t.Helper()
	first := x.restore(x.pick())
	if x.rnd.IntN(2) == 0 {
		x.serve()
		x.stop()
	}
	if x.rnd.IntN(2) == 0 {
		x.killedRestore(first.Rollback)
	}
	if _, err := os.Lstat(first.Rollback); err != nil {
		x.t.Fatalf("round %d: the rollback copy: %v", x.round, err)
	}
	x.restore(first.Rollback)
	x.serve()
}

// restoreFrom starts the relay with MBX_RELAY_RESTORE_FROM, twice: the second
// start must not restore again. With killed the first one is killed on its way.
func (x *torture) restoreFrom(killed bool) {
	x.t.Helper()
	file := x.pick()
	env := "MBX_RELAY_RESTORE_FROM=" + file
	was := x.epoch
	if killed {
		ip, port, _ := net.SplitHostPort(x.at)
		cmd := program(x.t, "", "relay", "serve", "--store-dir", x.dir, "--bind", ip, "--port", port)
		cmd.Env = append(cmd.Env, env)
		x.killIt(cmd, func() bool {
			_, err := os.Lstat(filepath.Join(x.dir, "restore.partial"))
			return err == nil
		}, func() { _ = cmd.Process.Kill() })
	}
	if was == "" || x.used[file] != "done" {
		x.cut = file
	}
	x.serve(env)
	if was == x.epoch && x.used[file] == "" {
		x.t.Errorf("round %d: got epoch %s still; want %s restored", x.round, was, file)
	}
	x.used[file] = "done"
	x.stop()
	x.serve(env) // x.found sees that it is the same store
}

// rotate gives a host new keys. Its record reaches the others, now or after what
// comes next, as it would over the LAN.
func (x *torture) rotate() {
	x.t.Helper()
	x.tellRotation()
	h := x.hosts[x.rnd.IntN(len(x.hosts))]
	if _, err := h.host.RotateKey(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	x.did["rotated"]++
	record := column[[]byte](h.homeDir, "SELECT record FROM rotations ORDER BY at DESC LIMIT 1")
	x.late = func() {
		for _, other := range x.hosts {
			if other == h {
				continue
			}
			if got, err := other.host.Rotate(x.t.Context(), record); err != nil || !slices.Equal(got, []string{"rotated"}) {
				x.t.Errorf("%s takes the rotation of %s: got %q, %v", other.name, h.name, got, err)
			}
		}
	}
	if x.rnd.IntN(2) == 0 {
		x.tellRotation()
	}
}

func (x *torture) tellRotation() {
	x.t.Helper()
	if tell := x.late; tell != nil {
		x.late = nil
		tell()
	}
}

// settle waits until nothing is on its way.
func (x *torture) settle(limit time.Duration) {
	x.t.Helper()
	x.tellRotation()
	began, hurried := time.Now(), time.Now()
	left := func() string {
		for _, h := range x.hosts {
			if what := x.onTheWay(h); what != "" {
				return what
			}
		}
		if n := x.queued(); n > 0 {
			return fmt.Sprintf("the relay has %d items", n)
		}
		return ""
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, h := range x.hosts {
		h.hurry()
	}
	tell := sync.OnceFunc(func() {
		for _, h := range x.hosts {
			x.t.Logf("%s\n%s\n%s", h.name, h.daemon.stderr, x.why(h))
		}
	})
	for what := left(); what != ""; what = left() {
		if time.Since(began) > limit/10 {
			tell()
		}
		if time.Since(began) > limit {
			x.t.Fatalf("after %s %s", limit, what)
		}
		if time.Since(hurried) > 2*time.Second {
			for _, h := range x.hosts {
				h.hurry()
			}
			hurried = time.Now()
		}
		<-tick.C
	}
	x.t.Logf("settled in %s", time.Since(began).Round(time.Millisecond))
}

// queued counts what the relay has for the hosts' keys. A store that was lost
// with a rotation may have more, for a key that nobody has any more: it expires.
func (x *torture) queued() (n int) {
	x.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(x.dir, sqlite.FileName)+"?mode=ro&_pragma=busy_timeout(10000)")
	if err != nil {
		x.t.Fatal(err)
	}
	defer db.Close()
	for _, h := range x.hosts {
		key, one := h.host.Key(), 0
		if err := db.QueryRow("SELECT count(*) FROM items WHERE target_pubkey = ?", key[:]).Scan(&one); err != nil {
			x.t.Fatal(err)
		}
		n += one
	}
	return n
}

// onTheWay is what a host still has to do. It keeps waiting for the receipt of a
// message that was delivered and acked before a backup: when the receipt is in
// none, it is lost, and the relay knows the message to be done (scenario E1, h).
func (x *torture) onTheWay(h *tortured) string {
	x.t.Helper()
	for _, q := range []struct{ what, query string }{
		{"rows in the outbox", "SELECT count(*) FROM outbox"},
		{"receipts to send", "SELECT count(*) FROM receipts_out"},
		{"routes neither confirmed nor with the relay", "SELECT count(*) FROM routes WHERE state NOT IN ('confirmed', 'relay-accepted')"},
		{"wire bytes kept of what is confirmed", "SELECT count(*) FROM wires WHERE (msg, fold) NOT IN (SELECT msg, fold FROM relay_sent WHERE state = 'relay-accepted')"},
		{"relays with an ack to send", "SELECT count(*) FROM relays WHERE acked < position"},
	} {
		if n := column[int64](h.homeDir, q.query)[0]; n > 0 {
			return fmt.Sprintf("%s has %d %s", h.name, n, q.what)
		}
	}
	for _, id := range column[string](h.homeDir, "SELECT msg FROM routes WHERE state <> 'confirmed'") {
		if l := h.sent[id]; l.at.After(x.since) {
			return fmt.Sprintf("%s of %s, sent after the last restore, is not confirmed", id, h.name)
		}
	}
	return ""
}

// why says what a host knows of what it still has to do.
func (x *torture) why(h *tortured) string {
	var all []string
	for _, q := range []string{
		"SELECT 'outbox ' || msg || ' ' || fold || ' ' || state || ' ' || attempts || ' ' || coalesce(error, '') FROM outbox LIMIT 5",
		"SELECT 'receipt ' || msg || ' ' || fold || ' ' || attempts || ' ' || coalesce(error, '') FROM receipts_out LIMIT 5",
		"SELECT 'relay ' || state || ' ' || detail || ' ' || epoch || ' ' || position || ' ' || acked FROM relays",
		"SELECT 'sent ' || msg || ' ' || fold || ' ' || state || ' ' || epoch FROM relay_sent WHERE state <> 'settled' LIMIT 5",
		"SELECT 'quarantine ' || item_id || ' ' || reason FROM quarantine LIMIT 5",
		"SELECT 'alert ' || subject FROM messages WHERE kind = 'alert' LIMIT 5",
	} {
		all = append(all, column[string](h.homeDir, q)...)
	}
	return strings.Join(all, "\n")
}

func (x *torture) everyMessageOnce() {
	x.t.Helper()
	total, waits := 0, 0
	for _, to := range x.hosts {
		there := map[string]int{}
		for _, id := range column[string](to.homeDir, "SELECT msg FROM deliveries d JOIN messages m ON m.id = d.msg WHERE d.mailbox = 'owner' AND m.origin <> ''") {
			there[id]++
		}
		for _, from := range x.hosts {
			for id, l := range from.sent {
				if l.to != to.name {
					continue
				}
				if total++; there[id] != 1 {
					x.t.Errorf("%s from %s is %d times in the mailbox at %s; want once", id, from.name, there[id], to.name)
				}
				delete(there, id)
				switch states := column[string](from.homeDir, "SELECT state FROM confirmations WHERE msg = ?", id); {
				case len(states) == 0 && l.at.Before(x.since):
					waits++
				case len(states) != 1 || states[0] != host.StateDelivered:
					x.t.Errorf("%s has states %q of %s; want delivered", from.name, states, id)
				}
			}
		}
		if len(there) > 0 {
			x.t.Errorf("%s has messages that nobody sent: %v", to.name, slices.Collect(maps.Keys(there)))
		}
		if twice := column[string](to.homeDir, "SELECT subject FROM messages WHERE origin <> '' GROUP BY subject HAVING count(*) > 1"); len(twice) > 0 {
			x.t.Errorf("%s has messages twice under different ids: %q", to.name, twice)
		}
		for _, q := range []struct{ what, query string }{
			{"items in quarantine", "SELECT item_id || ': ' || reason FROM quarantine"},
			{"alerts", "SELECT subject FROM messages WHERE kind = 'alert'"},
		} {
			if list := column[string](to.homeDir, q.query); len(list) > 0 {
				x.t.Errorf("%s has %d %s: %q; want none", to.name, len(list), q.what, list[:min(3, len(list))])
			}
		}
	}
	x.t.Logf("%d messages, each once; the receipts of %d went with a store", total, waits)
}

// leavesGoodBackupsOnly ends everything and looks at what is left.
func (x *torture) leavesGoodBackupsOnly() {
	x.t.Helper()
	for _, h := range x.hosts {
		h.end()
	}
	x.backup(filepath.Join(x.apart, "last.db"))
	x.relay.stop(x.t)
	files := x.backups()
	for _, file := range files {
		if code, stdout, stderr := command(x.t, nil, "relay", "verify", "--store-dir", x.dir, file); code != 0 {
			x.t.Errorf("verify %s: exit %d: %s%s", file, code, stdout, stderr)
		}
	}
	x.t.Logf("%d backups and rollback copies are good", len(files))
	for _, dir := range []string{x.dir, x.apart} {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			name := d.Name()
			if strings.Contains(name, ".partial") || strings.HasPrefix(name, ".drill-") || strings.HasPrefix(name, "restore.") {
				x.t.Errorf("%s is left", path)
			}
			return err
		}); err != nil {
			x.t.Error(err)
		}
	}
	s, err := sqlite.Open(x.t.Context(), sqlite.Options{Dir: x.dir, LockWait: 10 * time.Second})
	if err != nil {
		x.t.Fatal(err)
	}
	if err := errors.Join(s.Check(x.t.Context()), s.Close()); err != nil {
		x.t.Error(err)
	}
}
