package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestCILimits: each step of .ci/run has a limit that timeout(1) can read, and
// together they end inside 30 minutes.
func TestCILimits(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`^\s*step ("[^"]*"|\S+) (\S+) \S`)
	steps, sum := 0, 0
	for line := range strings.Lines(string(b)) {
		m := call.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[2])
		if err != nil || n < 1 {
			t.Errorf("step %s: got the limit %q; want whole seconds", m[1], m[2])
		}
		steps++
		sum += n
	}
	if steps < 7 || sum > 30*60 {
		t.Errorf("got %d steps of %d s together; want at least 7 and at most %d s", steps, sum, 30*60)
	}
}
