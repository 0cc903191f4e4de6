package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// smallIssuer approves every sign-in at the second look, and names a relay.
// relay/host/account checks what is sent to one.
func smallIssuer(t *testing.T, relay string) (url string, revoked *atomic.Int64) {
	revoked = new(atomic.Int64)
	looks := 0
	mux := http.NewServeMux()
	answer := func(path string, status func() int, doc func() string) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status())
			fmt.Fprint(w, doc())
		})
	}
	ok := func() int { return 200 }
	answer("/device/code", ok, func() string {
		return `{"device_code":"d","user_code":"AB\u001b[2JCD","verification_uri":"` + url + `/device","expires_in":600,"interval":1}`
	})
	answer("/device/token", func() int { looks++; return 400 - 200*((looks+1)%2) }, func() string {
		if looks%2 == 1 {
			return `{"error":"authorization_pending"}`
		}
		return `{"access_token":"secret-bearer","token_type":"Bearer"}`
	})
	answer("/v1/host/enrolments/challenge", ok, func() string { return `{"nonce":"n","expires_in":60}` })
	answer("/v1/host/enrolments", ok, func() string {
		return `{"host_id":"h-1","client_id":"c-1","token_endpoint":"` + url + `/token","jwks_uri":"` + url + `/jwks","resources":{"api":"https://api.example","relay":"` + relay + `"}}`
	})
	answer("/revoke-session", func() int { revoked.Add(1); return 200 }, func() string { return `{}` })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	url = s.URL
	return url, revoked
}

func TestLogin(t *testing.T) {
	t.Parallel()
	const relay = "http://127.0.0.1:1" // nobody's
	url, revoked := smallIssuer(t, relay)
	home := filepath.Join(t.TempDir(), "home")
	run := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errw bytes.Buffer
		if code := Main(append(args, "--home", home), strings.NewReader(""), &out, &errw); code != want {
			t.Fatalf("%v: got code %d, %s%s; want %d", args, code, &out, &errw, want)
		}
		if all := out.String() + errw.String(); strings.Contains(all, "secret-bearer") || strings.Contains(all, "\x1b") {
			t.Errorf("%v: got %q; want no secret and no control characters", args, all)
		}
		return out.String(), errw.String()
	}
	run(0, "init", "--name", "alpha")
	out, errw := run(0, "login", "--base-url", url+"/")
	want := "open       " + url + "/device\ncode       AB?[2JCD\nsigned in  " + url + "\nclient     c-1\nrelay      " + relay + "\nnext       agentmbx relay set " + relay + "\n"
	if out != want || !regexp.MustCompile(`^waiting until \d\d:\d\d:\d\d for the code`).MatchString(errw) {
		t.Errorf("got %s%s; want %s and how long it waits", out, errw, want)
	}
	if n := revoked.Load(); n != 1 {
		t.Errorf("sessions ended: got %d; want 1", n)
	}

	out, _ = run(0, "relay", "set", "--json")
	if !strings.Contains(out, `"url": "`+relay+`"`) {
		t.Errorf("relay set without a URL: got %s; want %s", out, relay)
	}
	out, _ = run(0, "login", "--base-url", url, "--json")
	docs := json.NewDecoder(strings.NewReader(out))
	var prompt, done map[string]any
	if err := docs.Decode(&prompt); err != nil || prompt["verification_uri"] != url+"/device" || prompt["user_code"] == nil {
		t.Errorf("first: got %v, %v in %s", prompt, err, out)
	}
	if err := docs.Decode(&done); err != nil || done["client_id"] != "c-1" || done["relay"] != relay || done["relay_url"] != relay {
		t.Errorf("then: got %v, %v in %s", done, err, out)
	}
	out, _ = run(0, "doctor")
	if !regexp.MustCompile(`(?m)^ok +account +signed in at \S+ as client c-1$`).MatchString(out) {
		t.Errorf("doctor: got %s", out)
	}
	out, _ = run(0, "logout")
	if out != "removed  account.json\nkept     cloud.key\n" {
		t.Errorf("logout: got %s", out)
	}
	run(codeNotFound, "logout")
}

// A mistyped variable of the tokens is an error, and so is one in a command that
// needs none of them: the daemon would be without a token.
func TestTokenVariables(t *testing.T) {
	t.Setenv("MBX_ACCOUNT_TOKEN_COMMAND", "secret-command")
	var out, errw bytes.Buffer
	code := Main([]string{"inbox", "--home", t.TempDir()}, strings.NewReader(""), &out, &errw)
	if want := `"MBX_ACCOUNT_TOKEN_COMMAND" is no setting of this version: want MBX_ACCOUNT_TOKEN_CMD or MBX_ACCOUNT_TOKEN_FILE`; code != codeUsage || !strings.Contains(errw.String(), want) || strings.Contains(errw.String(), "secret") {
		t.Errorf("got code %d, %s; want 2 and %s", code, &errw, want)
	}
}
