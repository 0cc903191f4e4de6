package backup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// childVar tells this binary that it is a child of a crash test: the name of what
// it does and its arguments, with newlines between them.
const childVar = "MBX_BACKUP_CHILD"

// children are what a child may do.
var children = map[string]func(args []string) error{
	"create":              createChild,
	"limited":             limitedChild,
	"prune":               pruneChild,
	"restore":             restoreChild,
	"restore, limited":    limitedRestore,
	"restore, unfolded":   unfoldedRestore,
	"restore, as another": strangersRestore,
	"restore and measure": measuredRestore,
	"verify":              verifyChild,
	"verify and measure":  measureChild,
}

func TestMain(m *testing.M) {
	if v := os.Getenv(childVar); v != "" {
		args := strings.Split(v, "\n")
		if err := children[args[0]](args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runChild runs this binary as a child and reports whether it was killed; an end of
// its own with an error is a failure.
func runChild(t testing.TB, args ...string) (killed bool) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childVar+"="+strings.Join(args, "\n"))
	out, err := child.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("child %q: %v: %s", args, err, out)
	}
	return false
}

// killAt kills this process, with SIGKILL, at the n-th time of a step.
func killAt(step string, n int) func(string) {
	return func(name string) {
		if name != step {
			return
		}
		if n--; n == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
	}
}

// rounds is how often a crash test does its work.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("MBX_TORTURE_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return 2
}
