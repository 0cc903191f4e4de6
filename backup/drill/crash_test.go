package drill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The test binary runs itself as a process that drills, to be killed or measured.
const (
	childFile = "MBX_DRILL_CHILD" // the backup
	childKey  = "MBX_DRILL_KEY"   // of the relay
	childStep = "MBX_DRILL_STEP"  // where to stop and wait to be killed; "" for nowhere
)

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		if err := drillAsChild(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// drillAsChild says each step as it begins. At the one it was told it either stays
// ("NAME") or goes on ("NAME+"): it is killed in both.
func drillAsChild(file string) error {
	key, err := wire.ParsePrivateKey(os.Getenv(childKey))
	if err != nil {
		return err
	}
	r, err := Run(context.Background(), Options{
		File: file, Scratch: filepath.Dir(file), Key: key, Limits: relay.DefaultLimits(), Version: "test", Now: func() time.Time { return t0 },
		step: func(name string) error {
			fmt.Println("step", name)
			if name == os.Getenv(childStep) {
				select {} // until killed
			}
			return nil
		},
	})
	if err == nil && !r.Passed {
		err = errors.New(text(r))
	}
	fmt.Println("done", r.RTO, r.Took, peakRSS())
	return err
}

// peakRSS is the most memory that this process held, in MiB; 0 where nobody tells.
func peakRSS() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib >> 10
		}
	}
	return 0
}

// child runs a drill in a process of its own, which is killed once it says so.
func child(t testing.TB, key wire.PrivateKey, file, stay, killAt string) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0])
	c.Env = append(os.Environ(), childFile+"="+file, childKey+"="+key.Seed(), childStep+"="+stay)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	for sc := bufio.NewScanner(out); sc.Scan(); {
		if lines = append(lines, sc.Text()); !killed && sc.Text() == "step "+killAt {
			killed = true
			if err := c.Process.Kill(); err != nil { // SIGKILL: no defers, nothing removed
				t.Error(err)
			}
		}
	}
	err = c.Wait()
	if killed != (killAt != "") || !killed && err != nil {
		t.Fatalf("killed %v, %v: %s\n%s", killed, err, strings.Join(lines, "\n"), stderr.String())
	}
	return lines
}

// TestCrashDrill kills a drill at the beginning of each step and in the middle of
// it: the live store is untouched, what is left is swept away, and the next drill
// passes.
func TestCrashDrill(t *testing.T) {
	if raceDetector {
		t.Skip("kills find no race and take minutes under the race detector: they run without it")
	}
	rounds := 2
	if n, err := strconv.Atoi(os.Getenv("MBX_TORTURE_ROUNDS")); err == nil && n > 0 {
		rounds = n
	}
	s := newSite(t)
	file := s.backup()
	s.close()
	before := fingerprint(t, s.dir)
	for _, st := range steps {
		for round := range rounds {
			stay := st.name
			if round%2 == 1 {
				stay = "" // it goes on until the kill reaches it
			}
			child(t, s.key, file, stay, st.name)
			left := scratchIn(filepath.Dir(file))
			if stay != "" && len(left) != 1 {
				t.Errorf("%s: got %v left by the kill; want one folder, or this shows nothing", st.name, left)
			}
			wantSame(t, st.name+": the live store's folder", before, fingerprint(t, s.dir))
			if err := s.folder().SweepPartials(); err != nil {
				t.Errorf("%s: sweep: %v", st.name, err)
			}
			if left := scratchIn(filepath.Dir(file)); len(left) > 0 {
				t.Errorf("%s: got %v after the sweep; want nothing", st.name, left)
			}
			wantSame(t, st.name+": the live store's folder, swept", before, fingerprint(t, s.dir))
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	if r, err := s.drill(t.Context(), s.options(file)); err != nil || !r.Passed {
		t.Errorf("the drill after them: got %v, %s", err, text(r))
	}
	s.open()
}
