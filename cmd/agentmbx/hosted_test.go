package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hosted is a relay that takes hosts with an account's token only, beside its
// issuer: two processes at addresses that stay the same.
type hosted struct {
	t                   *testing.T
	dir, accounts       string
	relayURL, base      string
	relay, issuer       *process
	relayPort, basePort string
}

// sessionLife is how long a token lives here, and so a session: long enough for a
// slow machine to enrol in, short enough for several in a test.
const sessionLife = 10 * time.Second

func newHosted(t *testing.T) *hosted {
	h := &hosted{t: t, dir: t.TempDir(), accounts: t.TempDir(), relayPort: quietPort(t), basePort: quietPort(t)}
	h.relayURL, h.base = "http://127.0.0.1:"+h.relayPort, "http://127.0.0.1:"+h.basePort
	h.startIssuer()
	h.startRelay()
	return h
}

var issuing = regexp.MustCompile(`(?m)listening on (http://\S+)`)

func (h *hosted) startIssuer() {
	h.issuer, _ = spawn(h.t, program(h.t, "", "accounts", "dev", "--dir", h.accounts, "--relay", h.relayURL,
		"--listen", "127.0.0.1:"+h.basePort, "--ttl", sessionLife.String(), "--auto-approve"), issuing)
}

func (h *hosted) startRelay(more ...string) {
	h.relay, _ = spawn(h.t, h.serve(more...), said)
}

func (h *hosted) serve(more ...string) *exec.Cmd {
	cmd := program(h.t, "", "relay", "serve", "--store-dir", h.dir, "--port", h.relayPort)
	cmd.Env = append(cmd.Env, "MBX_RELAY_AUTHORITY=jwks", "MBX_RELAY_PUBLIC_URL="+h.relayURL, "MBX_RELAY_ISSUER="+h.base)
	cmd.Env = append(cmd.Env, more...)
	return cmd
}

// join signs a home in and sets the relay that its account names.
func (h *hosted) join(home *homeDir) {
	h.t.Helper()
	home.run("login", "--base-url", h.base)
	home.run("relay", "set")
}

func (h *hosted) account(args ...string) string {
	h.t.Helper()
	out, err := program(h.t, "", append(append([]string{"accounts"}, args...), "--dir", h.accounts)...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("accounts %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func (h *hosted) admin(args ...string) string {
	h.t.Helper()
	code, out, errw := command(h.t, nil, append(append([]string{"relay", "admin"}, args...), "--store-dir", h.dir)...)
	if code != 0 {
		h.t.Fatalf("admin %q: got code %d\n%s", args, code, errw)
	}
	return out
}

// polls is how many long polls are open.
func (h *hosted) polls() int {
	h.t.Helper()
	_, out, _ := command(h.t, nil, "relay", "status", "--json", "--store-dir", h.dir)
	var s struct {
		Relay struct {
			LongPolls int `json:"long_polls"`
		}
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return -1
	}
	return s.Relay.LongPolls
}

// sessionEnds tells when the session of a host ends, as the relay has it.
func (h *hosted) sessionEnds(name string) (at time.Time) {
	h.t.Helper()
	var list struct {
		Items []struct {
			Name        string    `json:"name"`
			SessionEnds time.Time `json:"session_ends"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(h.admin("enrolments", "--json")), &list); err != nil {
		h.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Name == name {
			at = e.SessionEnds
		}
	}
	return at
}

// TestHostedRelay is the whole flow of accounts on one machine: sign-in, enrolment,
// mail over several sessions, an issuer that is away for longer than a session, and
// in the end revocation: the host's long poll ends and it is refused from then on,
// also after a restore from before.
func TestHostedRelay(t *testing.T) {
	t.Parallel()
	h := newHosted(t)
	home, work := newHome(t, "home"), newHome(t, "work")
	pairHomes(t, home, work)
	for _, host := range []*homeDir{home, work} {
		h.join(host)
		host.start("--no-lan")
	}

	// Mail goes both ways over two sessions.
	first := time.Time{}
	await(t, "home has a session", func() bool { first = h.sessionEnds("home"); return !first.IsZero() })
	n := 0
	both := func() {
		n++
		for _, side := range [][2]*homeDir{{home, work}, {work, home}} {
			if _, err := side[0].send(side[1], fmt.Sprintf("%s %d", side[0].name, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for until := first.Add(sessionLife / 2); time.Now().Before(until); {
		both()
	}
	await(t, "home has enrolled again", func() bool { return h.sessionEnds("home").After(first) })
	both()

	// The issuer is away for longer than a session lasts: mail waits, none is lost.
	h.issuer.kill()
	await(t, "the session is over and nothing renews it", func() bool { return time.Now().After(h.sessionEnds("home").Add(time.Second)) })
	both()
	if out, _ := home.try("doctor"); !strings.Contains(out, "session") {
		t.Errorf("doctor without an issuer: got %q; want what became of the session", out)
	}
	h.startIssuer()

	both()
	converge(t, 2*time.Minute, home, work)

	backup := filepath.Join(t.TempDir(), "before.db")
	if code, _, errw := command(t, nil, "relay", "backup", backup, "--store-dir", h.dir); code != 0 {
		t.Fatalf("backup: %s", errw)
	}

	// One host is revoked by the issuer, while its daemon waits in a long poll.
	await(t, "both wait in long polls", func() bool { return h.polls() == 2 })
	began := time.Now()
	h.account("revoke", "work", "--reason", "it was stolen")
	await(t, "its long poll has ended", func() bool { return h.polls() == 1 })
	t.Logf("its long poll ended within %s of the command's start", time.Since(began).Round(time.Millisecond))
	refused := func() {
		t.Helper()
		await(t, "its doctor says that it is denied", func() bool {
			out, _ := work.command("doctor").CombinedOutput()
			return strings.Contains(string(out), "it was stolen")
		})
	}
	refused()

	// A restore from before the revocation brings back mail, but no authority.
	if err := h.relay.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := h.relay.wait(); code != 0 {
		t.Fatalf("serve: got exit code %d\n%s", code, h.relay.stderr)
	}
	if code, _, errw := command(t, nil, "relay", "restore", backup, "--store-dir", h.dir); code != 0 {
		t.Fatalf("restore: %s", errw)
	}
	h.startRelay()
	if out := h.admin("deny", "list"); !strings.Contains(out, "it was stolen") {
		t.Errorf("after the restore: got %q; want the denial", out)
	}
	refused()
	await(t, "the other host is served", func() bool { return h.polls() == 1 })
	if resp, err := http.Get(h.relayURL + "/readyz"); err != nil || resp.StatusCode != 200 {
		t.Errorf("readyz: got %v, %v; want 200", resp, err)
	} else {
		resp.Body.Close()
	}
	home.end()
	work.end()
}
