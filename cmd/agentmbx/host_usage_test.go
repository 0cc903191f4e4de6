package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// What is wrong with a host's command line or input is one line that says so,
// nothing on stdout, and nothing done. Where no code stands it is 2.
func TestHostUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	run := func(in string, args ...string) (code int, stdout, stderr string) {
		var out, errw bytes.Buffer
		code = Main(args, strings.NewReader(in), &out, &errw)
		return code, out.String(), errw.String()
	}
	if code, _, errw := run("", "init", "--name", "alpha", "--home", home); code != 0 {
		t.Fatal(errw)
	}
	config := readFile(t, filepath.Join(home, "config.json"))
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, bytes.Repeat([]byte("x"), wire.MaxPlainBody+1), 0o600); err != nil {
		t.Fatal(err)
	}
	const id, token = "01JAZ0Q8B3N4T5V6W7X8Y9Z0AB", "0000-0000-0000"
	for _, tt := range []struct {
		args string // with | between the words
		want string // part of the line
		in   string
		code int
	}{
		{args: "init|--name|no blanks", want: `--name is "no blanks": want 1 to 63 letters`},
		{args: "init|--name|", want: "--name is empty"},
		{args: "inbox|--home|", want: "--home is empty: want a folder"},

		{args: "send|--subject|x", want: "a recipient is missing: see agentmbx send -h"},
		{args: "send|owner|--body|x", want: `"subject" not set: see agentmbx send -h`},
		{args: "send|owner|--subject|x|--body|y|--body-file|z", want: "[body body-file]"},
		{args: "send|owner|--subject|x|--body|y|--kind|letter", want: `--kind is "letter": want one of message, request, reply, status, decision, alert, task`},
		{args: "send|owner|--subject|x|--body|y|--from|Not A Name", want: "not a mailbox name"},
		{args: "send|owner|--subject|two\nlines|--body|y", want: "or has a control character: put the rest in the body"},
		{args: "send|owner|--subject|" + strings.Repeat("x", 201) + "|--body|y", want: "--subject is over 200 characters"},
		{args: "send|owner|--subject|\xff|--body|y", want: "UTF-8"},
		{args: "send|a b|--subject|x|--body|y", want: `"a b" is not a recipient: want name@host, a name, role:NAME or *`},
		{args: "send|owner@|--subject|x|--body|y", want: "want name@host"},
		{args: "send|role:|--subject|x|--body|y", want: "is not a recipient"},
		{args: "send|owner|--subject|x|--body-file|" + big, want: "the body is over 262144 bytes"},
		{args: "send|owner|--subject|x", in: strings.Repeat("x", wire.MaxPlainBody+1), want: "the body is over 262144 bytes"},
		{args: "send|owner|--subject|x", in: "\xff", want: "UTF-8"},
		{args: "send|owner|--subject|x|--body-file|" + filepath.Join(dir, "none"), want: "--body-file: ", code: 4},
		{args: "send|owner|--subject|x|--body-file|" + dir, want: "is a directory", code: 1},
		{args: "send|owner@beta|--subject|x|--body|y", want: "beta: not paired", code: 4},

		{args: "inbox|one|two", want: `unexpected argument "two"`},
		{args: "inbox|ghost", want: "no mailbox ghost here: see agentmbx mailbox", code: 4},
		{args: "inbox|ghost|--json", want: "no mailbox ghost here", code: 4},
		{args: "inbox|Not A Name", want: "not a mailbox name"},
		{args: "inbox|--limit|0", want: "--limit is 0: want 1 to 1000"},
		{args: "sent|--limit|1001", want: "--limit is 1001: want 1 to 1000"},
		{args: "read", want: "the id of a message is missing"},
		{args: "read|" + id, want: "no message " + id + " here", code: 4},
		{args: "read|a\x1b[2J", want: "no message a?[2J here", code: 4},
		{args: "ack", want: "the id of a message is missing"},
		{args: "ack|" + id + "|--mailbox|owner", want: "no such message", code: 4},
		{args: "ack|" + id + "|--mailbox|owner|--note|" + strings.Repeat("x", 501), want: "at most 500 characters"},
		{args: "sent|" + id, want: "no such message was sent from here", code: 4},
		{args: "mailbox|add", want: "the name of a mailbox is missing"},
		{args: "mailbox|add|Bad", want: `"Bad": not a mailbox name`},
		{args: "mailbox|add|good|--role|a b", want: `role "a b"`},
		{args: "mailbox|ad", want: "did you mean add?"},

		{args: "pair|--ttl|2h", want: "a pairing token lives a second to an hour"},
		{args: "pair|--ttl|soon", want: "--ttl"},
		{args: "join", want: "the address of the other host is missing"},
		{args: "join|not an address|" + token, want: `ADDR is "not an address": not an address: want host:port`},
		{args: "join|127.0.0.1:1|" + token + "|--addr|a:b:c", want: `--addr is "a:b:c"`},
		{args: "join|127.0.0.1:1|nonsense", want: "not a pairing token: want XXXX-XXXX-XXXX"},
		{args: "join|127.0.0.1:1", want: "no token: give it on standard input, or after the address"},
		{args: "join|127.0.0.1:1|-", in: "nonsense\n", want: "not a pairing token"},
		{args: "join|127.0.0.1:1|" + token, want: "agentmbx: 127.0.0.1:1: nobody answers (connect: connection refused): is the address right, and does agentmbx daemon run there?", code: 1},
		{args: "peers|remove", want: "the name of a host is missing"},
		{args: "peers|remov|x", want: "did you mean remove?"},
		{args: "peers|remove|beta", want: "beta: not paired", code: 4},

		{args: "daemon|--lan-port|65536", want: `--lan-port is "65536": want 0 to 65535`},
		{args: "daemon|--lan-bind|127.0.0.1:80", want: `--lan-bind is "127.0.0.1:80"`},
		{args: "daemon|--once|--lan-port|1", want: "[once lan-port]"},
		{args: "daemon|--no-lan|--lan-bind|::1", want: "[no-lan lan-bind]"},
		{args: "daemon|--json", want: "--json is for --once"},

		{args: "prune", want: `"older-than" not set: see agentmbx prune -h`},
		{args: "prune|--older-than|soon", want: `--older-than is "soon": want whole days up to 36500d, or a duration such as 12h`},
		{args: "prune|--older-than|-1h", want: "--older-than"},

		{args: "relay|set", want: "the URL of a relay is missing, and no sign-in names one: see agentmbx relay set -h"},
		{args: "relay|set|https://a.example|https://b.example", want: "unexpected argument"},
		{args: "login", want: `"base-url" not set: see agentmbx login -h`},
		{args: "login|--base-url|accounts.example", want: "--base-url is not an issuer's URL: want https://HOST"},
		{args: "login|--base-url|http://accounts.example", want: "http:// only on this machine"},
		{args: "login|--base-url|https://me:hunter2@accounts.example", want: "--base-url is not an issuer's URL"},
		{args: "login|--base-url|http://127.0.0.1:1", want: "sign in: the issuer can't be reached", code: 1},
		{args: "logout", want: "this host is not signed in: agentmbx login --base-url URL", code: 4},
		{args: "relay|set|relay.example", want: "not a relay URL: want https://HOST or http://HOST, with :PORT if needed"},
		{args: "relay|set|https://me:hunter2@relay.example", want: "not a relay URL: it must not hold a user name or password"},
		{args: "relay|set|https://relay.example/mail", want: "not a relay URL: it must not have a path"},
		{args: "relay|set|https://relay.example|--key|", want: "--key is empty"},
		{args: "relay|set|https://relay.example|--key|0123", want: "not a relay key"},
		{args: "relay|quarantine|--limit|0", want: "--limit is 0"},
		{args: "relay|quarantine|show", want: "the number of an item is missing"},
		{args: "relay|quarantine|show|one", want: `"one" is not the number of an item in quarantine: see agentmbx relay quarantine`},
		{args: "relay|quarantine|show|1", want: "1: not in quarantine: see agentmbx relay quarantine", code: 4},
		{args: "relay|quarantine|show|1|--raw|--json", want: "[raw json]"},
		{args: "relay|quarantine|retry|0", want: `"0" is not the number`},
		{args: "relay|quarantine|retry|1", want: "1: not in quarantine", code: 4},
		{args: "relay|quarantine|discard|1|x", want: `"x" is not the number`},
		{args: "relay|quarantine|discard|1", want: "1: not in quarantine", code: 4},
	} {
		t.Run(tt.args[:min(len(tt.args), 60)], func(t *testing.T) {
			args := strings.Split(tt.args, "|")
			switch {
			case args[0] == "init":
				args = append(args, "--home", filepath.Join(dir, "new"))
			case !slices.Contains(args, "--home"):
				args = append(args, "--home", home)
			}
			code, out, errw := run(tt.in, args...)
			want := tt.code
			if want == 0 {
				want = codeUsage
			}
			if code != want || out != "" || !strings.Contains(errw, tt.want) || strings.Count(errw, "\n") != 1 || !strings.HasPrefix(errw, "agentmbx: ") {
				t.Errorf("got code %d, stdout %q, stderr %q; want %d and one line with %q", code, out, errw, want, tt.want)
			}
			if strings.Contains(errw, "hunter2") {
				t.Errorf("got %q; want no password in it", errw)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Errorf("init made a home: %v", err)
	}
	if got := readFile(t, filepath.Join(home, "config.json")); got != config {
		t.Errorf("config.json: got %s; want it as before, %s", got, config)
	}
	for _, args := range [][]string{{"inbox", "--all"}, {"sent"}} {
		if code, out, errw := run("", append(args, "--json", "--home", home)...); code != 0 || !strings.Contains(out, `"messages": []`) {
			t.Errorf("%v: got code %d, %q, %q; want nothing there", args, code, out, errw)
		}
	}
}

// The host's variables are named when they are wrong; so is one that was mistyped.
func TestHostVariables(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	for name, tt := range map[string]struct{ value, want string }{
		"MBX_LOG_FORMAT": {"xml", `MBX_LOG_FORMAT is "xml": want text or json`},
		"MBX_RELAY_URL":  {"relay.example", "MBX_RELAY_URL is not a relay URL: want https://HOST"},
		"MBX_RELAY_ULR":  {"https://relay.example", `"MBX_RELAY_ULR" is no setting of this version`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, tt.value)
			var out, errw bytes.Buffer
			code := Main([]string{"daemon", "--once", "--home", home}, strings.NewReader(""), &out, &errw)
			if code != codeUsage || out.Len() > 0 || !strings.HasPrefix(errw.String(), "agentmbx: "+tt.want) {
				t.Errorf("got code %d, %q, %q; want 2 and %q", code, out.String(), errw.String(), tt.want)
			}
		})
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
