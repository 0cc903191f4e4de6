package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
)

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
