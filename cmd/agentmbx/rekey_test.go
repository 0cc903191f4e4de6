package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// ran is what a command printed, and its exit code.
type ran struct {
	out, errw string
	code      int
}

// runProgram runs the real program to its end.
func runProgram(t *testing.T, env []string, args ...string) ran {
	t.Helper()
	cmd := program(t, "", args...)
	cmd.Env = append(cmd.Env, env...)
	var out, errw bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errw
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{out.String(), errw.String(), cmd.ProcessState.ExitCode()}
}

func (r ran) want(t *testing.T, code int, says string) {
	t.Helper()
	if r.code != code || !strings.Contains(r.out+r.errw, says) {
		t.Fatalf("got exit code %d and\n%s%s\nwant %d and %q", r.code, r.out, r.errw, code, says)
	}
}

// TestRekeyEndToEnd loses a relay's key with mail on its way. The store gets a
// new key; hosts stop until their owners confirm it; then everything arrives,
// once.
func TestRekeyEndToEnd(t *testing.T) {
	t.Parallel()
	dir, at := t.TempDir(), net.JoinHostPort("127.0.0.1", quietPort(t))
	p := serveAt(t, dir, at)
	home, work := newHome(t, "home"), newHome(t, "work")
	pairHomes(t, home, work)
	for _, h := range []*homeDir{home, work} {
		h.run("relay", "set", p.url)
		h.run("daemon", "--once", "--no-lan") // enrols, publishes its key and list
	}
	if _, err := home.send(work, "before"); err != nil {
		t.Fatal(err)
	}
	home.run("daemon", "--once", "--no-lan") // the relay has it
	old := relayKey(t, p.url).Fingerprint()

	rekey := []string{"relay", "rekey", "--store-dir", dir, "--json", "--reason", "lost"}
	runProgram(t, nil, append(rekey, "--confirm", old)...).want(t, 3, "stop it first")
	p.kill()
	if err := os.Remove(filepath.Join(dir, relay.KeyFile)); err != nil {
		t.Fatal(err)
	}
	runProgram(t, nil, "relay", "serve", "--store-dir", dir, "--port", "0").want(t, 3, "its key is not")
	runProgram(t, nil, rekey...).want(t, 2, "--confirm "+old)
	runProgram(t, nil, append(rekey, "--confirm", "junk")...).want(t, 2, "not a fingerprint")
	runProgram(t, nil, append(rekey, "--confirm", "0000-0000-0000-0000")...).want(t, 3, "the store's present key is "+old)
	did := runProgram(t, nil, append(rekey, "--confirm", old)...)
	did.want(t, 0, `"confirm_on_hosts": "agentmbx relay set URL --key `)
	var facts rekeyFacts
	if err := json.Unmarshal([]byte(did.out), &facts); err != nil {
		t.Fatal(err)
	}
	if facts.From != old || facts.To == old || facts.OldKey != "" {
		t.Errorf("got %+v", facts)
	}
	p = serveAt(t, dir, at)
	if got := relayKey(t, p.url).Fingerprint(); got != facts.To || p.epoch != facts.Epoch {
		t.Errorf("got key %s and epoch %s; want %s and %s", got, p.epoch, facts.To, facts.Epoch)
	}
	if _, err := home.send(work, "between"); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*homeDir{home, work} {
		if out := h.run("daemon", "--once", "--no-lan", "--json"); !strings.Contains(out, `"state": "key-mismatch"`) {
			t.Errorf("%s: got %s; want the relay not used", h.name, out)
		}
	}
	for _, h := range []*homeDir{home, work} {
		h.run("relay", "set", p.url, "--key", facts.To)
		h.start("--no-lan")
	}
	converge(t, time.Minute, home, work)
	for _, h := range []*homeDir{home, work} {
		h.end()
	}
}

// keyedStore makes a store that is bound to a key in a file, and stopped.
func keyedStore(t *testing.T) (dir string, key wire.PublicKey) {
	t.Helper()
	dir = t.TempDir()
	k, _, err := relay.LoadKey(dir, "", false)
	if err != nil {
		t.Fatal(err)
	}
	st, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir, Key: k.Public()})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, k.Public()
}

// agree fails unless the store in dir, and the key that a start would take, are
// of one another, and nothing of a change is left.
func agree(t *testing.T, dir string) wire.PublicKey {
	t.Helper()
	st, err := sqlite.Open(t.Context(), sqlite.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	bound, err := boundTo(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	key, _, err := relay.LoadKey(dir, "", true)
	if err != nil || key.Public() != bound {
		t.Errorf("the store belongs to %s, relay.key is %s (%v)", bound.Fingerprint(), key.Public().Fingerprint(), err)
	}
	if relay.KeyStaged(dir) {
		t.Error("a staged key is left")
	}
	return bound
}

func oldKeys(t *testing.T, dir string) (list []string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "relay.key.*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i] = filepath.Base(list[i])
	}
	return list
}

// TestRekeyKeys has every way to give the next key.
func TestRekeyKeys(t *testing.T) {
	binary(t)
	t.Parallel()
	next, err := wire.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "next.key")
	if err := os.WriteFile(file, wire.FormatKeyFile(next), 0o600); err != nil {
		t.Fatal(err)
	}
	rekey := func(dir string, env []string, args ...string) ran {
		return runProgram(t, env, append([]string{"relay", "rekey", "--store-dir", dir}, args...)...)
	}
	t.Run("a new file", func(t *testing.T) {
		dir, old := keyedStore(t)
		before, err := os.ReadFile(filepath.Join(dir, relay.KeyFile))
		if err != nil {
			t.Fatal(err)
		}
		rekey(dir, nil, "--confirm", old.Fingerprint()).want(t, 0, "on each host  agentmbx relay set URL --key ")
		if agree(t, dir) == old {
			t.Error("the key is the same")
		}
		kept := filepath.Join(dir, "relay.key."+old.Fingerprint()+".old")
		st, err := os.Stat(kept)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v; want mode 0600", kept, st, err)
		}
		if after, err := os.ReadFile(kept); err != nil || !bytes.Equal(after, before) {
			t.Errorf("the old key's file: %v; want it as it was", err)
		}
	})
	t.Run("a file given", func(t *testing.T) {
		dir, old := keyedStore(t)
		rekey(dir, nil, "--confirm", old.Fingerprint(), "--key", file).want(t, 0, next.Public().Fingerprint())
		if agree(t, dir) != next.Public() {
			t.Error("the store has another key than the file")
		}
		rekey(dir, nil, "--confirm", next.Public().Fingerprint(), "--key", file).want(t, 3, "is the store's present one")
		rekey(dir, nil, "--confirm", next.Public().Fingerprint(), "--key", file+".none").want(t, 4, "--key")
		rekey(dir, nil, "--confirm", next.Public().Fingerprint(), "--key", "rekey_test.go").want(t, 2, "not a relay key")
	})
	t.Run("the environment", func(t *testing.T) {
		dir, old := keyedStore(t)
		secret := []string{"MBX_RELAY_KEY=" + next.Seed()}
		rekey(dir, secret, "--confirm", old.Fingerprint()).want(t, 0, "(from MBX_RELAY_KEY)")
		if _, err := os.Lstat(filepath.Join(dir, relay.KeyFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("relay.key: got %v; want it kept under its old name only", err)
		}
		if got := oldKeys(t, dir); len(got) != 1 {
			t.Errorf("got %v; want the old key", got)
		}
		rekey(dir, secret, "--confirm", next.Public().Fingerprint()).want(t, 2, "MBX_RELAY_KEY holds the store's present key")
		rekey(dir, []string{"MBX_RELAY_KEY=" + strings.Repeat("secret", 9)}, "--confirm", old.Fingerprint()).want(t, 2, "MBX_RELAY_KEY: ")
		if out := rekey(dir, []string{"MBX_RELAY_KEY=" + strings.Repeat("secret", 9)}); strings.Contains(out.errw, "secret") {
			t.Errorf("got %s; want nothing of the key", out.errw)
		}
	})
	t.Run("both", func(t *testing.T) {
		dir, old := keyedStore(t)
		other, err := wire.GenerateKey()
		if err != nil {
			t.Fatal(err)
		}
		rekey(dir, []string{"MBX_RELAY_KEY=" + other.Seed()}, "--confirm", old.Fingerprint(), "--key", file).want(t, 2, "unset one of them")
		if agree(t, dir) != old {
			t.Error("a refusal changed the key")
		}
	})
	t.Run("no store", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "none")
		rekey(dir, nil, "--confirm", "0000-0000-0000-0000").want(t, 4, "there is no store")
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v; want no folder made", err)
		}
	})
}

const rekeyChild = "MBX_REKEY_CHILD" // folder|fingerprint|step to be killed at

// TestRekeyChild is no test: it rekeys a store and waits at a step to be killed.
func TestRekeyChild(t *testing.T) {
	f := strings.Split(os.Getenv(rekeyChild), "|")
	if len(f) != 3 {
		t.Skip("a child of TestCrashRekey")
	}
	e := env{in: strings.NewReader(""), out: io.Discard, errw: io.Discard}
	err := runRekey(context.Background(), e, Settings{StoreDir: f[0]}, rekeyOptions{confirm: f[1], step: func(name string) {
		if name == f[2] {
			fmt.Println("at the step")
			select {}
		}
	}})
	fmt.Println("ended:", err)
}

// TestCrashRekey kills a rekey at each of its steps. What comes next, a start or
// another rekey, finds a store and a key that belong together, and the old key.
func TestCrashRekey(t *testing.T) {
	t.Parallel()
	for range envInt(t, "MBX_TORTURE_ROUNDS", 2) {
		for _, step := range []string{"staged", "bound", "kept", "finished"} {
			for _, next := range []string{"serve", "rekey"} {
				dir, old := keyedStore(t)
				cmd := exec.Command(os.Args[0], "-test.run", "^TestRekeyChild$")
				cmd.Env = append(os.Environ(), rekeyChild+"="+dir+"|"+old.Fingerprint()+"|"+step)
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				var said [11]byte
				_, err = io.ReadFull(out, said[:])
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				if err != nil || string(said[:]) != "at the step" {
					t.Fatalf("%s: the child said %q, %v", step, said, err)
				}
				if next == "serve" {
					serve(t, dir).kill()
				} else { // the confirmation is refused: what stands in the store by now may be the new key
					runProgram(t, nil, "relay", "rekey", "--store-dir", dir, "--confirm", "0000-0000-0000-0000").want(t, 3, "nothing was changed")
				}
				bound := agree(t, dir)
				if changed := bound != old; changed != (step != "staged") {
					t.Errorf("killed at %q, then %s: the key changed: %t", step, next, changed)
				}
				if step != "staged" {
					if got := oldKeys(t, dir); len(got) != 1 || got[0] != "relay.key."+old.Fingerprint()+".old" {
						t.Errorf("killed at %q, then %s: got %v; want the old key", step, next, got)
					}
				}
			}
		}
	}
}
