package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestPrintable(t *testing.T) {
	tests := []struct{ name, in, line, body string }{
		{"plain", "naïve 日本 👩‍💻", "naïve 日本 👩‍💻", "naïve 日本 👩‍💻"},
		{"escape", "a\x1b[2Jb", "a?[2Jb", "a?[2Jb"},
		{"eight-bit escape", "a\u009b2Jb", "a?2Jb", "a?2Jb"},
		{"newline and tab", "a\n\tb", "a??b", "a\n\tb"},
		{"carriage return", "good\rbad", "good?bad", "good?bad"},
		{"lines of Windows", "a\r\nb", "a??b", "a\nb"},
		{"delete and NUL", "\x7f\x00", "??", "??"},
		{"line separators", "a\u2028b\u2029", "a?b?", "a?b?"},
		{"direction override", "a\u202eb\u2066c", "a?b?c", "a?b?c"},
		{"no UTF-8", "a\xffb", "a?b", "a?b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := printable(tt.in); got != tt.line {
				t.Errorf("line: got %q; want %q", got, tt.line)
			}
			if got := printableBody(tt.in); got != tt.body {
				t.Errorf("body: got %q; want %q", got, tt.body)
			}
		})
	}
}

// What is printed as JSON says what it is about, and holds nothing that a
// terminal obeys.
func TestPrintJSONIsSafeAndExact(t *testing.T) {
	in := map[string]string{"k\u0085": "a\x1b[2J\u009b2J\x7f\u2028\u202e\u2066 <naïve> 日本\n\t👩‍💻"}
	var out strings.Builder
	if err := printJSON(&out, in); err != nil {
		t.Fatal(err)
	}
	for _, r := range strings.ReplaceAll(out.String(), "\n", "") {
		if unprintable(r) {
			t.Errorf("got %q in %q; want it escaped", r, out.String())
		}
	}
	got := map[string]string{}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got["k\u0085"] != in["k\u0085"] {
		t.Errorf("got %q, %v; want %q", got, err, in)
	}
}

func TestHostNameOf(t *testing.T) {
	for in, want := range map[string]string{
		"studio":                       "studio",
		"Toms-MacBook.local":           "Toms-MacBook",
		"a b's machine":                "a-b-s-machine",
		"_x_":                          "x",
		"größe":                        "gr--e",
		".local":                       "",
		"":                             "",
		"日本":                           "",
		strings.Repeat("a", 70):        strings.Repeat("a", 63),
		strings.Repeat("a", 62) + "-b": strings.Repeat("a", 62),
	} {
		if got := hostNameOf(in); got != want || got != "" && !wire.ValidHostName(got) {
			t.Errorf("%q: got %q; want %q", in, got, want)
		}
	}
}

func TestParseAge(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"30d": 720 * time.Hour, "0d": 0, "12h": 12 * time.Hour, "1h30m": 90 * time.Minute, "36500d": 36_500 * 24 * time.Hour,
	} {
		if got, err := parseAge(in); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "30", "-1d", "+1d", "-1h", "1.5d", "36501d", "999999999999d", "1d12h", "soon"} {
		if got, err := parseAge(in); err == nil {
			t.Errorf("%q: got %s; want an error", in, got)
		}
	}
}

func TestOwnAddrs(t *testing.T) {
	if got := ownAddrs("192.168.1.5:8000"); len(got) != 1 || got[0] != "192.168.1.5:8000" {
		t.Errorf("got %v; want the one address that is served", got)
	}
	for served, port := range map[string]string{"": ":7373", "0.0.0.0:8000": ":8000", "[::]:8000": ":8000"} {
		for _, addr := range ownAddrs(served) {
			if !strings.HasSuffix(addr, port) || strings.HasPrefix(addr, "127.") || strings.HasPrefix(addr, "0.") {
				t.Errorf("%q: got %s; want an address of this machine with port %s", served, addr, port)
			}
		}
	}
}

func TestHostErrorCodes(t *testing.T) {
	for want, errs := range map[int][]error{
		0: {nil},
		1: {errors.New("no"), host.ErrDamagedDB},
		2: {host.ErrBadMail, host.ErrBadName, host.ErrBadRelayKey, host.ErrBadTokenLife, wire.ErrBadToken, usage(host.ErrExists)},
		3: {host.ErrExists, host.ErrDaemonRuns, host.ErrTaken, host.ErrPairRefused, host.ErrUnproven, host.ErrTooManyOpen,
			host.ErrForeignDB, host.ErrNewerDB, &host.KeyMismatchError{}},
		4: {host.ErrNoHome, host.ErrNoPeer, host.ErrNoMessage, host.ErrNotQuarantined},
	} {
		for _, err := range errs {
			if err != nil {
				err = fmt.Errorf("doing: %w", err)
			}
			if got := exitCode(hostError(err)); got != want {
				t.Errorf("%v: got %d; want %d", err, got, want)
			}
		}
	}
}
