package backup

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Every step at which a backup can be killed; "copying" and the like come again
// and again.
var (
	createSteps = []string{"copy", "copying", "verify", "verify read", "verify check", "verify items", "write receipt", "name file", "sync file",
		"name receipt", "sync receipt"}
	fileSteps    = []string{"remove note"} // of a backup to a file
	encryptSteps = []string{"encrypt", "encrypting", "remove plain copy"}
	pruneSteps   = []string{"set receipt aside", "sync receipt aside", "remove file", "sync removal", "remove receipt"}
)

// crashFolder is the folder as a child has it.
func crashFolder(dir, step string, n int, recipient string) (*Folder, error) {
	f := &Folder{Dir: filepath.Join(dir, "backups"), StoreDir: dir, Key: relayKey, Keep: 2, Version: "test", Now: time.Now, step: killAt(step, n)}
	var err error
	f.Recipients, err = ParseRecipients(recipient)
	return f, err
}

// createChild takes one backup: dir, file, step, its time, recipient.
func createChild(args []string) error {
	n, _ := strconv.Atoi(args[3])
	f, err := crashFolder(args[0], args[2], n, args[4])
	if err != nil {
		return err
	}
	s, err := sqlite.Open(context.Background(), sqlite.Options{Dir: args[0], LockWait: 10 * time.Second})
	if err != nil {
		return err
	}
	_, err = f.Create(context.Background(), s, args[1], nil)
	return err
}

// pruneChild prunes: dir, step, its time.
func pruneChild(args []string) error {
	n, _ := strconv.Atoi(args[2])
	f, err := crashFolder(args[0], args[1], n, "")
	if err != nil {
		return err
	}
	_, err = f.Prune(context.Background())
	return err
}

// crashed is a store with backups whose process was killed.
type crashed struct {
	f    *Folder
	ids  []age.Identity
	good map[string]bool // hashes of files that verified: what has the same bytes is as good
}

// counts checks, from outside, that each backup that counts is whole and the
// newest one is there, and answers their numbers, newest first.
func (c crashed) counts(t *testing.T, newest int64) (numbers []int64) {
	t.Helper()
	list, err := c.f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if !e.Verified {
			t.Errorf("got %+v; want no entry that is not a backup", e)
			continue
		}
		hash := wire.HashHex(mustRead(t, e.Path))
		if hash != e.Receipt.SHA256 || !c.good[hash] {
			r, err := Verify(t.Context(), e.Path, Want{Key: relayKey, Identities: c.ids, Scratch: t.TempDir()})
			if err != nil || !r.Good {
				t.Errorf("%s counts and is bad: %+v, %v", e.Path, r, err)
			}
			c.good[hash] = true
		}
		numbers = append(numbers, e.Receipt.N)
	}
	if len(numbers) == 0 || numbers[0] < newest {
		t.Errorf("got backups %v; want number %d at least", numbers, newest)
	}
	return numbers
}

// swept checks that after a sweep nothing stands in the folder but backups that
// count and their receipts.
func (c crashed) swept(t *testing.T) {
	t.Helper()
	if err := c.f.SweepPartials(); err != nil {
		t.Fatal(err)
	}
	list, err := c.f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, e := range list {
		want = append(want, filepath.Base(e.Path), filepath.Base(e.Path)+".json")
	}
	slices.Sort(want)
	if got := names(t, c.f.Dir); !slices.Equal(got, want) {
		t.Errorf("got %v; want %v: nothing half-done", got, want)
	}
}

// killsChildren leaves a test that kills one child after the other to the runs
// without the race detector: it sees nothing of a child, and makes it slow.
func killsChildren(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("kills children of its own: it runs without the race detector")
	}
}

// TestCrashCreate kills a process at each step of a backup, plain and encrypted,
// into the folder. The newest verified backup stays whole, nothing counts that is
// not whole, and the next backup works.
func TestCrashCreate(t *testing.T) {
	killsChildren(t)
	t.Parallel()
	id := identity(t)
	for _, recipient := range []string{"", id.Recipient().String()} {
		steps := createSteps
		if recipient != "" {
			steps = slices.Concat(createSteps, encryptSteps)
		}
		dir := t.TempDir()
		if err := filled(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
		f, err := crashFolder(dir, "", 0, recipient)
		if err != nil {
			t.Fatal(err)
		}
		c := crashed{f, []age.Identity{id}, map[string]bool{}}
		runChild(t, "create", dir, "", "", "0", recipient)
		newest := c.counts(t, 1)[0]
		for round := range rounds() {
			for _, step := range steps {
				n := 1
				if strings.HasSuffix(step, "ing") {
					n = 1 + rand.IntN(2)
				}
				when := fmt.Sprintf("round %d, encrypted %v, killed at %s, time %d", round, recipient != "", step, n)
				if !runChild(t, "create", dir, "", step, fmt.Sprint(n), recipient) {
					if n == 1 {
						t.Fatalf("%s: it was not killed", when)
					}
				}
				numbers := c.counts(t, newest)
				c.swept(t)
				// Killed after the backup had its name, it counts from the sweep on.
				after := c.counts(t, newest)
				if got := after[0] - numbers[0]; got < 0 || got > 1 {
					t.Errorf("%s: got numbers %v, then %v; want at most one more", when, numbers, after)
				}
				if runChild(t, "create", dir, "", "", "0", recipient) {
					t.Fatalf("%s: the next backup was killed", when)
				}
				if numbers = c.counts(t, after[0]+1); numbers[0] != after[0]+1 {
					t.Errorf("%s: got number %d; want %d", when, numbers[0], after[0]+1)
				}
				newest = numbers[0]
				if _, err := c.f.Prune(t.Context()); err != nil {
					t.Fatal(err)
				}
				c.swept(t)
				if t.Failed() {
					t.Fatal(when)
				}
			}
		}
	}
}

// TestCrashCreateToAFile kills a process at each step of a backup to a file of the
// operator's choosing. The same command works again, or finds the backup there.
func TestCrashCreateToAFile(t *testing.T) {
	killsChildren(t)
	t.Parallel()
	dir := t.TempDir()
	if err := filled(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	id := identity(t)
	for round := range rounds() {
		for _, recipient := range []string{"", id.Recipient().String()} {
			steps := slices.Concat(createSteps, fileSteps)
			if recipient != "" {
				steps = slices.Concat(steps, encryptSteps)
			}
			for _, step := range steps {
				when := fmt.Sprintf("round %d, encrypted %v, killed at %s", round, recipient != "", step)
				out := t.TempDir()
				file := filepath.Join(out, "mine.age")
				if !runChild(t, "create", dir, file, step, "1", recipient) {
					t.Fatalf("%s: it was not killed", when)
				}
				if recipient != "" {
					noPlain(t, out)
				}
				if round%2 == 0 { // the next start comes before the next backup
					f, err := crashFolder(dir, "", 0, "")
					if err != nil {
						t.Fatal(err)
					}
					if err := f.SweepPartials(); err != nil {
						t.Errorf("%s: sweep: %v", when, err)
					}
					if got := names(t, out); len(got) > 0 && !slices.Equal(got, []string{"mine.age", "mine.age.json"}) {
						t.Errorf("%s: got %v after the sweep; want nothing, or a backup", when, got)
					}
					if got := names(t, f.Dir); len(got) > 0 {
						t.Errorf("%s: got %v in the folder after the sweep; want nothing", when, got)
					}
				}
				if _, err := os.Lstat(file); os.IsNotExist(err) {
					runChild(t, "create", dir, file, "", "0", recipient)
				} else { // its receipt is put right by whoever wants the name
					f, err := crashFolder(dir, "", 0, "")
					if err != nil {
						t.Fatal(err)
					}
					if _, err := f.Create(t.Context(), nil, file, nil); err == nil || !strings.Contains(err.Error(), "exists") {
						t.Errorf("%s: got %v; want that the file exists", when, err)
					}
				}
				r, err := Verify(t.Context(), file, Want{Key: relayKey, Identities: []age.Identity{id}, Scratch: t.TempDir()})
				if err != nil || !r.Good || r.Receipt == nil {
					t.Errorf("%s: got %+v, %v; want it good, with its receipt", when, r, err)
				}
				if got := names(t, out); !slices.Equal(got, []string{"mine.age", "mine.age.json"}) {
					t.Errorf("%s: got %v; want the file and its receipt", when, got)
				}
			}
		}
	}
}

// noPlain checks that nothing in a folder is a store that anybody can read.
func noPlain(t *testing.T, dir string) {
	t.Helper()
	for _, name := range names(t, dir) {
		if b := string(mustRead(t, filepath.Join(dir, name))); strings.Contains(b, "SQLite format") || strings.Contains(b, "item-") {
			t.Errorf("%s holds what was to be encrypted", name)
		}
	}
}

// TestCrashPrune kills a process at each step of a prune, at the first backup it
// removes and at the second.
func TestCrashPrune(t *testing.T) {
	killsChildren(t)
	t.Parallel()
	dir := t.TempDir()
	s := filled(t, dir)
	f, err := crashFolder(dir, "", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	c := crashed{f, nil, map[string]bool{}}
	for round := range rounds() {
		for _, step := range pruneSteps {
			for n := range 2 {
				when := fmt.Sprintf("round %d, killed at %s, time %d", round, step, n+1)
				for list, err := f.List(t.Context()); len(list) < 4; list, err = f.List(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					take(t, f, s)
				}
				list, err := f.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				newest := list[0].Receipt.N
				if !runChild(t, "prune", dir, step, fmt.Sprint(n+1)) {
					t.Fatalf("%s: it was not killed", when)
				}
				c.counts(t, newest)
				c.swept(t)
				if numbers := c.counts(t, newest); len(numbers) < 2 || numbers[1] != newest-1 {
					t.Errorf("%s: got %v; want the two newest at least", when, numbers)
				}
				runChild(t, "prune", dir, "", "0")
				if numbers := c.counts(t, newest); len(numbers) != 2 {
					t.Errorf("%s: got %v; want two after the next prune", when, numbers)
				}
				c.swept(t)
				if t.Failed() {
					t.Fatal(when)
				}
			}
		}
	}
}

// TestCrashVerify kills a process while it looks at an encrypted backup: what it
// decrypted is swept, and the backup is as it was.
func TestCrashVerify(t *testing.T) {
	killsChildren(t)
	t.Parallel()
	dir := t.TempDir()
	s := filled(t, dir)
	id := identity(t)
	f := folder(t, s)
	f.Recipients = []age.Recipient{id.Recipient()}
	r := take(t, f, s)
	ids := filepath.Join(dir, "id.txt")
	mustWrite(t, ids, []byte(id.String()))
	for range rounds() {
		for _, step := range []string{"read", "decrypt", "check", "items"} {
			if !runChild(t, "verify", r.File, ids, f.Dir, step) {
				t.Fatalf("at %s: it was not killed", step)
			}
			if left := len(names(t, f.Dir)) > 2; left != (step == "decrypt") {
				t.Errorf("at %s: got %v; want a decrypted copy only while it is written", step, names(t, f.Dir))
			}
			if list, err := f.List(t.Context()); err != nil || len(list) != 1 || !list[0].Verified {
				t.Errorf("at %s: got %+v, %v; want the one backup", step, list, err)
			}
			crashed{f: f}.swept(t)
		}
	}
	if report, err := Verify(t.Context(), r.File, Want{Key: relayKey, Identities: []age.Identity{id}}); err != nil || !report.Good {
		t.Errorf("got %+v, %v; want it good", report, err)
	}
}

// verifyChild verifies: file, identities, scratch folder, stage to be killed at.
func verifyChild(args []string) error {
	ids, err := ReadIdentities(args[1])
	if err != nil {
		return err
	}
	at := killAt(args[3], 1)
	_, err = Verify(context.Background(), args[0], Want{Key: relayKey, Identities: ids, Scratch: args[2], Progress: func(stage string, _, _ int64) { at(stage) }})
	return err
}
