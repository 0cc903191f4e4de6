package sqlite

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
)

const (
	tsChild  = "MBX_TS_CHILD"     // a TypeScript relay's store to hold open
	impChild = "MBX_IMPORT_CHILD" // file|dir|step to be killed at
)

// TestTypeScriptRelayChild is no test: it is a relay that has its store open, and
// has written to its log, until it is killed.
func TestTypeScriptRelayChild(t *testing.T) {
	file := os.Getenv(tsChild)
	if file == "" {
		t.Skip("a child of TestImportFromALog")
	}
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("UPDATE acked SET acked_through = 1795161602000; DELETE FROM items WHERE seq = 1795161602000"); err != nil {
		t.Fatal(err)
	}
	fmt.Println("open")
	select {}
}

// child runs one of the tests above in a process of its own until it says a line.
func child(t *testing.T, test, env, line string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^"+test+"$")
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		if sc.Text() == line {
			return kill
		}
	}
	t.Fatalf("the child ended without saying %q", line)
	return nil
}

// TestImportFromALog: the store of a relay that runs is refused, whatever --force
// says; one that was killed is read together with the log that it left, and
// nothing of it is changed.
func TestImportFromALog(t *testing.T) {
	t.Parallel()
	file, dir := tsStore(t), t.TempDir()
	kill := child(t, "TestTypeScriptRelayChild", tsChild+"="+file, "open")
	o := importOptions(t, file, dir)
	o.Force = true
	if _, err := importInto(t, o); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "stop that relay first") {
		t.Errorf("got %v; want ErrInUse, and what to do", err)
	}
	wantOnly(t, dir, "relay.lock")
	kill()
	before := map[string]string{}
	for _, name := range dirEntries(t, filepath.Dir(file)) {
		before[name] = string(readFile(t, filepath.Join(filepath.Dir(file), name)))
	}
	if before["relay.db-wal"] == "" {
		t.Fatal("the killed relay left no log")
	}
	o.Force = false
	if did, err := PreviewImport(t.Context(), o); err != nil || did.Items != 5 {
		t.Errorf("preview: got %d items, %v; want 5", did.Items, err)
	}
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	o.File = link // SQLite's log stands beside the file, not the link
	did, err := importInto(t, o)
	if err != nil || did.Items != 5 {
		t.Fatalf("got %d items, %v; want 5", did.Items, err)
	}
	wantOnly(t, dir, "relay.db", "relay.lock")
	for _, name := range dirEntries(t, filepath.Dir(file)) {
		if string(readFile(t, filepath.Join(filepath.Dir(file), name))) != before[name] {
			t.Errorf("%s was changed", name)
		}
		delete(before, name)
	}
	if len(before) > 0 {
		t.Errorf("gone from beside the source: %v", before)
	}
}

// TestImportOfAStoreThatWasClosed: a store in the form with a log, which its
// relay folded when it stopped, is read where it lies.
func TestImportOfAStoreThatWasClosed(t *testing.T) {
	t.Parallel()
	file, dir := tsStore(t, "PRAGMA journal_mode = wal", "DELETE FROM items WHERE seq = 1795161602000"), t.TempDir()
	did, err := importInto(t, importOptions(t, file, dir))
	if err != nil || did.Items != 5 {
		t.Fatalf("got %d items, %v; want 5", did.Items, err)
	}
	wantOnly(t, filepath.Dir(file), "relay.db")
}

// importSteps are the steps at which an import is killed.
var importSteps = []string{"source copied", "begun", "first item", "rows copied", "committed", "checked", "synced", "before rename", "renamed"}

// TestImportChild is no test: it imports and says each step, waiting at one of
// them to be killed.
func TestImportChild(t *testing.T) {
	file, rest, ok := strings.Cut(os.Getenv(impChild), "|")
	if !ok {
		t.Skip("a child of TestCrashImport")
	}
	dir, stop, _ := strings.Cut(rest, "|")
	o := importOptions(t, file, dir)
	o.step = func(name string) {
		if name == stop {
			fmt.Println("at the step")
			select {}
		}
	}
	_, err := importInto(t, o)
	fmt.Println("ended", err)
}

// TestCrashImport kills an import at each of its steps: there is no store or the
// whole one, the source is untouched, and the next import takes away what is
// left; a start waits for it.
func TestCrashImport(t *testing.T) {
	t.Parallel()
	for range rounds(t) {
		file := tsStore(t)
		kill := child(t, "TestTypeScriptRelayChild", tsChild+"="+file, "open") // so that a log has to be copied, too
		kill()
		for _, step := range importSteps {
			dir := t.TempDir()
			child(t, "TestImportChild", impChild+"="+file+"|"+dir+"|"+step, "at the step")()
			exists, err := Exists(dir)
			if err != nil || exists != (step == "renamed") {
				t.Errorf("killed at %q: a store is there: %t, %v", step, exists, err)
			}
			if !exists {
				if _, err := importInto(t, importOptions(t, file, dir)); err != nil {
					t.Errorf("killed at %q: the next import: %v", step, err)
				}
				wantOnly(t, dir, "relay.db", "relay.lock")
			}
			o := testOptions(dir)
			o.Key = fixtureKey(t)
			s := mustOpen(t, o)
			if err := s.View(t.Context(), func(r store.Reader) error {
				totals, err := r.Totals()
				if totals.Items != 5 {
					t.Errorf("killed at %q: got %d items; want 5", step, totals.Items)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			checkedClose(t, s)
			wantOnly(t, dir, "relay.db", "relay.lock", "reserve")
		}
		// A start makes no empty store in its place, and leaves what tells of it.
		dir := t.TempDir()
		child(t, "TestImportChild", impChild+"="+file+"|"+dir+"|rows copied", "at the step")()
		if s, err := Open(t.Context(), testOptions(dir)); !errors.Is(err, ErrCutOff) {
			t.Errorf("got %v, %v; want ErrCutOff", s, err)
		}
		wantOnly(t, dir, importPartial, importSource, "relay.lock")
	}
}

// rounds is how often a process is killed at each step.
func rounds(t *testing.T) int {
	n := 2
	if v := os.Getenv("MBX_TORTURE_ROUNDS"); v != "" {
		if _, err := fmt.Sscan(v, &n); err != nil {
			t.Fatal(err)
		}
	}
	return n
}
