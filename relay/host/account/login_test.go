package account

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
)

func TestLogin(t *testing.T) {
	t.Parallel()
	i, home := newIssuer(t), newHome(t)
	i.token = append([]func(http.ResponseWriter){refuses(400, "authorization_pending"), refuses(400, "slow_down"), breaks, refuses(503, ""), refuses(429, "temporarily_unavailable")}, i.token...)
	r, shown, waits, err := i.login(t.Context(), home, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Record{1, i.url, "host-1", testClient, i.url + "/token", i.url + "/jwks.json", Resources{"https://api.example", testRelay}}
	if stored, err := ReadRecord(home); r != want || stored != want || err != nil {
		t.Errorf("got %+v, stored %+v, %v; want %+v", r, stored, err, want)
	}
	if len(shown) != 1 || shown[0] != (Prompt{i.url + "/device", "", "ABCD-EFGH", t0.Add(10 * time.Minute)}) {
		t.Errorf("shown: got %+v", shown)
	}
	// The interval, once more, five seconds longer, and twice as long after each
	// answer that did not come.
	if got, want := fmt.Sprint(waits), "[2s 2s 7s 14s 28s 56s]"; got != want {
		t.Errorf("waits: got %s; want %s", got, want)
	}
	if n := i.count("/revoke-session"); n != 1 {
		t.Errorf("sessions ended: got %d; want 1", n)
	}
	i.noSecrets(home)

	// The key is made once, the record every time.
	key := must(os.ReadFile(filepath.Join(home, KeyFile)))
	if _, _, _, err := i.login(t.Context(), home, nil); err != nil {
		t.Fatal(err)
	}
	if again := must(os.ReadFile(filepath.Join(home, KeyFile))); string(again) != string(key) {
		t.Error("the cloud key is another one after the second sign-in")
	}
	if err := Remove(home); err != nil {
		t.Fatal(err)
	}
	if err := Remove(home); !errors.Is(err, ErrNoRecord) {
		t.Errorf("got %v; want ErrNoRecord", err)
	}
	if _, err := ReadKey(home); err != nil {
		t.Errorf("the cloud key after it: %v", err)
	}
}

// An issuer that takes no forms is asked once more as JSON, and then at once.
func TestLoginAsJSON(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(http.ResponseWriter){
		"415":             refuses(415, "unsupported"),
		"400 alone":       func(w http.ResponseWriter) { w.WriteHeader(400) },
		"400 invalid":     refuses(400, "invalid_request"),
		"400 and no code": func(w http.ResponseWriter) { say(w, 400, map[string]any{"error": map[string]string{"message": "no"}}) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newIssuer(t)
			for _, path := range []string{"/device/code", "/device/token"} {
				i.instead[path] = func(w http.ResponseWriter, r *http.Request) {
					if strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
						refuse(w)
						return
					}
					i.mu.Lock()
					keep := i.instead[path]
					delete(i.instead, path)
					i.calls = i.calls[:len(i.calls)-1]
					i.mu.Unlock()
					i.ServeHTTP(w, r)
					i.mu.Lock()
					i.instead[path] = keep
					i.mu.Unlock()
				}
			}
			if _, _, _, err := i.login(t.Context(), newHome(t), nil); err != nil {
				t.Fatal(err)
			}
			if code, token := i.count("/device/code"), i.count("/device/token"); code != 2 || token != 1 {
				t.Errorf("calls: got %d and %d; want 2 and 1", code, token)
			}
		})
	}
}

// What goes wrong is one line without a secret, stores nothing and ends the
// session if there is one.
func TestLoginFails(t *testing.T) {
	t.Parallel()
	const secret = "the-issuer-repeats-" + testBearer
	for _, tt := range []struct {
		name, path string
		answer     func(http.ResponseWriter, *http.Request)
		token      func(http.ResponseWriter)
		want       string
		is         error
		session    bool
	}{
		{name: "denied", token: refuses(400, "access_denied"), is: ErrDenied},
		{name: "expired", token: refuses(400, "expired_token"), is: ErrExpired},
		{name: "never approved", token: refuses(400, "authorization_pending"), is: ErrExpired},
		{name: "unreachable for good", token: breaks, is: ErrExpired},
		{name: "another error", token: refuses(400, "invalid_grant"), want: "answered 400 invalid_grant"},
		{name: "not a bearer", token: func(w http.ResponseWriter) {
			say(w, 200, map[string]string{"access_token": testBearer, "token_type": "DPoP"})
		}, want: "another type than Bearer"},
		{name: "an empty bearer", token: func(w http.ResponseWriter) { say(w, 200, map[string]string{}) }, want: "is no token"},
		{name: "a bearer of two lines", token: func(w http.ResponseWriter) { say(w, 200, map[string]string{"access_token": "a\r\nb: c"}) }, want: "is no token"},
		{name: "a page that is none", path: "/device/code", answer: func(w http.ResponseWriter, _ *http.Request) {
			say(w, 200, map[string]any{"device_code": "d", "user_code": "u", "verification_uri": "javascript:alert(1)"})
		}, want: "names no page"},
		{name: "a web page", path: "/device/code", answer: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, want: "is the URL an issuer's?"},
		{name: "no end", path: "/device/code", answer: func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"device_code":%q}`, strings.Repeat("x", maxAnswer))
		}, want: "over 65536 bytes"},
		{name: "redirected", path: "/device/code", answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusTemporaryRedirect)
		}, want: "a redirect, which is not followed"},
		{name: "hostile text", path: "/device/code", answer: func(w http.ResponseWriter, _ *http.Request) {
			say(w, 403, map[string]string{"error": "no", "error_description": "go\x1b[2J away\nnow"})
		}, want: "go?[2J away?now"},
		{name: "an echo of the bearer", path: "/v1/host/enrolments/challenge", answer: func(w http.ResponseWriter, _ *http.Request) {
			say(w, 403, map[string]string{"error": "no", "error_description": secret})
		}, want: "withheld", session: true},
		{name: "enrolment refused", path: "/v1/host/enrolments", answer: func(w http.ResponseWriter, _ *http.Request) { refuses(403, "denied")(w) }, want: "403 denied", session: true},
		{name: "a token endpoint elsewhere in the clear", path: "/v1/host/enrolments", answer: func(w http.ResponseWriter, _ *http.Request) {
			say(w, 200, map[string]any{"host_id": "h", "client_id": "c", "token_endpoint": "http://elsewhere.example/token"})
		}, want: "token_endpoint is not a URL", session: true},
		{name: "a relay that is none", path: "/v1/host/enrolments", answer: func(w http.ResponseWriter, _ *http.Request) {
			say(w, 200, map[string]any{"host_id": "h", "client_id": "c", "token_endpoint": "https://a.example/t", "resources": map[string]string{"relay": "$(reboot)"}})
		}, want: "resources.relay is not a relay's URL", session: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i, home := newIssuer(t), newHome(t)
			if tt.answer != nil {
				i.instead[tt.path] = tt.answer
			}
			if tt.token != nil {
				i.token = []func(http.ResponseWriter){tt.token}
			}
			_, _, _, err := i.login(t.Context(), home, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Fatalf("got %v; want %q, %v", err, tt.want, tt.is)
			}
			if strings.Contains(err.Error(), testBearer) || strings.ContainsAny(err.Error(), "\x1b\n") {
				t.Errorf("got %q; want no secret and no control characters", err)
			}
			if _, err := ReadRecord(home); !errors.Is(err, ErrNoRecord) {
				t.Errorf("stored: got %v; want nothing", err)
			}
			if n := i.count("/revoke-session"); n > 0 != tt.session {
				t.Errorf("sessions ended: got %d; want it: %v", n, tt.session)
			}
			i.noSecrets(home)
		})
	}
}

// A sign-in that is broken off ends the session all the same; an issuer that
// does not do it is no failure of the sign-in.
func TestLoginEndsItsSession(t *testing.T) {
	t.Parallel()
	i, home := newIssuer(t), newHome(t)
	ctx, cancel := context.WithCancel(t.Context())
	i.instead["/v1/host/enrolments/challenge"] = func(w http.ResponseWriter, _ *http.Request) { cancel(); breaks(w) }
	if _, _, _, err := i.login(ctx, home, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want context.Canceled", err)
	}
	if n := i.count("/revoke-session"); n != 1 {
		t.Errorf("sessions ended: got %d; want 1", n)
	}

	delete(i.instead, "/v1/host/enrolments/challenge")
	i.instead["/revoke-session"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }
	noted := ""
	if _, _, _, err := i.login(t.Context(), home, func(o *LoginOptions) { o.Noted = func(s string) { noted = s } }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(noted, "answered 500") {
		t.Errorf("noted: got %q", noted)
	}
}

func TestParseBase(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://accounts.example":    "https://accounts.example",
		"https://accounts.example/a/": "https://accounts.example/a",
		"http://127.0.0.1:8080/":      "http://127.0.0.1:8080",
		"http://[::1]:1":              "http://[::1]:1",
		"http://localhost":            "http://localhost",
		"http://accounts.example":     "",
		"http://127.0.0.1.example":    "",
		"https://me:pw@a.example":     "",
		"https://a.example?x":         "",
		"https://a.example#x":         "",
		"https://":                    "",
		"ftp://a.example":             "",
		"a.example":                   "",
		"https://a.example/\x1b":      "",
		"":                            "",
	} {
		got, err := ParseBase(in)
		if got != want || (err == nil) != (want != "") || err != nil && strings.Contains(err.Error(), "pw") {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
	}
}

// A lost or readable key is told, and none is made in its place.
func TestCloudKey(t *testing.T) {
	t.Parallel()
	i, home := newIssuer(t), newHome(t)
	if _, _, _, err := i.login(t.Context(), home, nil); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home, KeyFile)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := cloudKey(home); !errors.Is(err, homefile.ErrUnsafe) {
		t.Errorf("readable: got %v; want ErrUnsafe", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := cloudKey(home); !errors.Is(err, ErrNoKey) {
		t.Errorf("missing: got %v; want ErrNoKey", err)
	}
	if err := os.WriteFile(path, []byte("secret nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cloudKey(home); !errors.Is(err, ErrBadKey) || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("damaged: got %v; want ErrBadKey", err)
	}
}
