package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// everyAdminCommand calls each for every command below `relay admin`, and for that
// itself.
func everyAdminCommand(t *testing.T, each func(path []string, c *cobra.Command)) {
	t.Helper()
	if n := everyCommand(t, []string{"relay", "admin"}, each); n < 25 {
		t.Fatalf("got %d commands; want all of them", n)
	}
}

// everyCommand calls each for a command and those below it, and counts them.
func everyCommand(t *testing.T, path []string, each func(path []string, c *cobra.Command)) (n int) {
	t.Helper()
	var walk func(path []string, c *cobra.Command)
	walk = func(path []string, c *cobra.Command) {
		if c.Runnable() {
			n++
			each(path, c)
		}
		for _, sub := range c.Commands() {
			walk(append(path[:len(path):len(path)], sub.Name()), sub)
		}
	}
	c, _, err := newRoot(env{}).Find(path)
	if err != nil {
		t.Fatal(err)
	}
	walk(path, c)
	return n
}

// A flag that is given without a value is an error of usage in every command of the
// desk, whatever the flag: it never means that the flag was not given.
func TestEmptyFlagsAreRefused(t *testing.T) {
	t.Parallel()
	everyAdminCommand(t, func(path []string, c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			for _, value := range []string{"", " "} {
				var out, errw bytes.Buffer
				root := newRoot(env{in: strings.NewReader(""), out: &out, errw: &errw})
				cmd, _, err := root.Find(path)
				if err != nil {
					t.Fatal(err)
				}
				cmd.Args = cobra.ArbitraryArgs
				root.SetArgs(append(path[:len(path):len(path)], "--"+f.Name+"="+value))
				err = root.ExecuteContext(t.Context())
				if exitCode(err) != codeUsage || !strings.Contains(err.Error(), "--"+f.Name) || out.Len() > 0 {
					t.Errorf("%s --%s=%q: got %v, %q; want an error of usage that names the flag", c.CommandPath(), f.Name, value, err, out.String())
				}
				if f.Value.Type() == "string" && err != nil && !strings.HasPrefix(err.Error(), "--"+f.Name+" is empty: want a value; see agentmbx relay admin") {
					t.Errorf("%s --%s=%q: got %v; want it said that it is empty", c.CommandPath(), f.Name, value, err)
				}
			}
		})
	})
}

// A reason that is no UTF-8 would reach the log in other letters: it is refused.
func TestReasonIsText(t *testing.T) {
	t.Parallel()
	n := 0
	everyCommand(t, []string{"relay"}, func(path []string, c *cobra.Command) {
		if c.Flags().Lookup("reason") == nil {
			return
		}
		n++
		var out, errw bytes.Buffer
		root := newRoot(env{in: strings.NewReader(""), out: &out, errw: &errw})
		cmd, _, err := root.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args = cobra.ArbitraryArgs
		root.SetArgs(append(path[:len(path):len(path)], "x", "1", "--store-dir", t.TempDir(), "--reason", "caf\xe9"))
		if err := root.ExecuteContext(t.Context()); exitCode(err) != codeUsage || !strings.HasPrefix(err.Error(), "--reason is no text") {
			t.Errorf("%s: got %v; want an error of usage", c.CommandPath(), err)
		}
	})
	if n < 8 {
		t.Errorf("got %d commands with a reason; want all of them", n)
	}
}
