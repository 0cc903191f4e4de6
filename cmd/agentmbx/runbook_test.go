package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

var runbookCommand = regexp.MustCompile("(?m)(?:^ +|`)(agentmbx [^`\n]+)")

// TestRunbookCommands: every command of the runbook exists and takes its flags
// and arguments.
func TestRunbookCommands(t *testing.T) {
	b, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	found := runbookCommand.FindAllStringSubmatch(string(b), -1)
	if len(found) < 20 {
		t.Fatalf("got %d commands in the runbook; want all of them", len(found))
	}
	for _, m := range found {
		root := newRoot(env{in: strings.NewReader(""), out: io.Discard, errw: io.Discard})
		args := strings.Fields(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(strings.TrimSuffix(m[1], " |"), "TEXT"))[1:]
		cmd, rest, err := root.Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && cmd.Args != nil {
			err = cmd.Args(cmd, cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
	}
}
