package tui

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/bubbles/key"
)

// docsFile is made by `make docs-tui`: the screens as they are drawn, and the keys
// as the key map has them.
const docsFile = "../docs/tui.md"

const docsHead = `# The terminal screens

<!-- Made by "make docs-tui" from the screens themselves. Do not edit. -->

` + "`agentmbx relay admin`" + ` shows a running relay on a terminal of 80×24 or more, and lets
its operator act on it. It works in sixteen colours or none, in ASCII where the
locale has no UTF-8, without a mouse, and over ssh. Nothing is changed without a
dialog whose default is no; what cannot be undone wants a name typed in full.

` + "```" + `
agentmbx relay admin --store-dir ./data             the relay on this machine
agentmbx relay admin --url URL --token-file FILE    a relay elsewhere
agentmbx relay admin --read-only                    change nothing
agentmbx relay admin --refresh 5s                   ask every 5 s (200ms to 1h, else 2s)
agentmbx relay admin --once                         print every screen once as text
` + "```" + `

- ` + "`--once`" + ` needs no terminal and no running relay: it opens the store itself then,
  under its lock. The screens never do: without a relay they wait for one, and
  say so.
- While the relay is away, what was seen last stays, with the time since when.
- ` + "`NO_COLOR`" + ` with any text: no colour. ` + "`TERM=dumb`" + `, or no terminal: exit code 2 and
  the command that does the same. ` + "`LC_ALL`, `LC_CTYPE` or `LANG`" + ` without UTF-8: ASCII.
- Names and other text from outside are shown, never obeyed: codes and marks of
  direction appear as ` + "`\\x1b` or `\\u202e`" + `.
- ` + "`y`" + ` copies by OSC 52, which a terminal may forbid. Nothing else is sent to the
  clipboard, and the terminal is never asked for anything.
- The screens end by themselves when the terminal goes away.

Every list has a command that does the same, for scripts: see
` + "`agentmbx relay admin -h`" + `.
`

// docsViews are the pictures.
var docsViews = []struct {
	title, text string
	play        func(s *stage)
}{
	{"1 Overview", "Alarms first, then how the relay does, then where mail piles up.", func(s *stage) { s.show(atOverview) }},
	{"2 Queues", "What waits for whom. A queue opens to its items, and an item to all that the\nrelay knows of it; never its body.", func(s *stage) { s.show(atQueues) }},
	{"Items of a queue", "", func(s *stage) { s.show(atQueues).press("enter") }},
	{"One item", "", func(s *stage) { s.show(atQueues).press("enter", "enter") }},
	{"A dialog", "It is pinned to the items it names: one that moved meanwhile is said to be gone,\nand nothing else is touched.", func(s *stage) { s.show(atQueues).press("enter", "h") }},
	{"3 Enrolments", "Who may use the relay, and the deny list. A block has an end; a revocation is\nfor ever.", func(s *stage) { s.show(atEnrolments) }},
	{"The deny list", "Every refusal that need not be for ever: of a host, of an account's credential, or\nof both. The filter takes a name, a fingerprint, or \"client \" and its id.", func(s *stage) { s.show(atEnrolments).press("d", "a") }},
	{"4 Quarantine", "What needs a person: items that were held, and pushes that were refused.", func(s *stage) { s.show(atQuarantine) }},
	{"5 Backups & drills", "", func(s *stage) { s.show(atBackups) }},
	{"6 Jobs", "", func(s *stage) { s.show(atJobs) }},
	{"7 Log", "The relay log. A line opens to its whole receipt.", func(s *stage) { s.show(atLog) }},
	{"The relay is gone", "", func(s *stage) {
		s.show(atJobs)
		s.app.svc.(*fakeDesk).fail(errGone)
		s.later(9 * time.Second)
	}},
	{"Help", "", func(s *stage) { s.show(atOverview).press("?") }},
}

// docs is the whole document.
func docs(t *testing.T) string {
	var b strings.Builder
	b.WriteString(docsHead + "\n## Keys\n\nEverywhere:\n\n" + keyLines(everywhere()))
	b.WriteString("\nIn lists and texts:\n\n" + keyLines(append(moving(), keys.Open, keys.Filter, keys.Sort, keys.Copy, keys.Mark)))
	b.WriteString("\nIn a dialog: `y` or the name typed in full does it; `enter` goes to the next line,\n`esc` and `n` leave it. Nothing that is pasted is a yes.\n\n## Screens\n")
	for _, v := range docsViews {
		s := newStage(t, full())
		v.play(s)
		fmt.Fprintf(&b, "\n### %s\n\n", v.title)
		if v.text != "" {
			b.WriteString(v.text + "\n\n")
		}
		var own []key.Binding
		for _, k := range s.app.tabs[s.app.shown].bindings() {
			if !slices.ContainsFunc(moving(), func(m key.Binding) bool { return m.Help() == k.Help() }) {
				own = append(own, k)
			}
		}
		lines := strings.Split(s.view(), "\n")
		for i := range lines {
			lines[i] = strings.TrimRight(lines[i], " ")
		}
		b.WriteString("```\n" + strings.Join(lines, "\n") + "\n```\n")
		if len(own) > 0 && !s.app.help {
			b.WriteString("\n" + keyLines(own))
		}
	}
	return b.String()
}

func keyLines(list []key.Binding) string {
	var b strings.Builder
	b.WriteString("| key | does |\n|---|---|\n")
	for _, k := range list {
		fmt.Fprintf(&b, "| `%s` | %s |\n", k.Help().Key, k.Help().Desc)
	}
	return b.String()
}

// The document shows the screens and the keys as they are.
func TestDocsAreFresh(t *testing.T) {
	t.Parallel()
	want := docs(t)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale: make docs-tui", docsFile)
	}
}
