package account

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

const patient = time.Minute

// source is one of a home, at the issuer's clock.
func (i *issuer) source(o SourceOptions) *Source {
	o.Now = i.clock
	s := NewSource(o)
	i.t.Cleanup(s.Close)
	return s
}

func TestTokenByLogin(t *testing.T) {
	t.Parallel()
	i, home := newIssuer(t), newHome(t)
	s := i.source(SourceOptions{Home: home})
	if got := s.For(testRelay); got != ByNone {
		t.Errorf("before the sign-in: got %v; want none", got)
	}
	if _, _, _, err := i.login(t.Context(), home, nil); err != nil {
		t.Fatal(err)
	}
	if got, other := s.For(testRelay), s.For("https://other.example"); got != ByLogin || other != ByNone {
		t.Errorf("got %v, and %v for another relay; want the sign-in and none", got, other)
	}
	start := i.clock()
	ask := func() Token {
		t.Helper()
		token, cloud, err := s.Token(t.Context(), testRelay, patient)
		if err != nil || cloud.Public() != i.cloud {
			t.Fatalf("got %v; want a token for the cloud key", err)
		}
		return token
	}
	first := ask()
	if !first.Expires.Equal(start.Add(10*time.Minute)) || !first.Renew().Equal(start.Add(8*time.Minute)) {
		t.Errorf("got %v, renewed at %v", first.Expires, first.Renew())
	}
	if !ask().same(first) {
		t.Error("asked again at once: want the same token")
	}
	i.pass(8*time.Minute + time.Second)
	if ask().same(first) {
		t.Error("nearly over: want another token")
	}
	i.noSecrets(home)
	for _, text := range []string{fmt.Sprint(first), fmt.Sprintf("%+v %#v %q", first, first, first)} {
		if strings.Contains(text, ".") {
			t.Errorf("a token prints as %s", text)
		}
	}
}

// A source that has nothing new is asked every 30 seconds.
func TestTokenByFile(t *testing.T) {
	t.Parallel()
	i, home := newIssuer(t), newHome(t)
	path := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := i.source(SourceOptions{Home: home, File: path})
	ask := func() (Token, error) {
		token, _, err := s.Token(t.Context(), testRelay, patient)
		return token, err
	}
	if _, err := ask(); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "MBX_ACCOUNT_TOKEN_FILE: ") {
		t.Errorf("no file: got %v", err)
	}
	first := jwt(t0, t0.Add(time.Minute), "first")
	put(first + "\n")
	if _, err := ask(); err == nil {
		t.Error("asked again within 30 seconds")
	}
	i.pass(AskEvery)
	token, err := ask()
	if err != nil || token.text != first {
		t.Fatalf("got %v; want the first token", err)
	}
	i.pass(25 * time.Second) // nearly over
	second := jwt(t0, t0.Add(5*time.Minute), "second")
	if token, err = ask(); err != nil || token.text != first {
		t.Fatalf("got %v; want the first token still", err)
	}
	put(second)
	if token, _ = ask(); token.text != first {
		t.Error("a source without news was asked again at once")
	}
	i.pass(AskEvery)
	if token, _ = ask(); token.text != second {
		t.Error("want the second token")
	}
	for text, want := range map[string]string{
		"":                                  "is no token",
		"two words":                         "is no token",
		strings.Repeat("x", maxToken+1):     "no relay takes it",
		strings.Repeat("secret", maxOutput): "more than 16384 bytes",
	} {
		put(text)
		i.pass(AskEvery)
		if _, err := ask(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v; want %q", err, want)
		}
	}
	// What is no token of ours to read is the relay's to judge.
	put("opaque")
	i.pass(AskEvery)
	if token, err = ask(); err != nil || !token.Expires.IsZero() || !token.Renew().IsZero() {
		t.Errorf("got %v, %v", token.Expires, err)
	}
}

func TestTokenByCommand(t *testing.T) {
	t.Parallel()
	good := jwt(t0, t0.Add(time.Minute), "1")
	for command, want := range map[string]string{
		"printf '" + good + "\\n'":                     "",
		"echo " + good + "; echo hush-hush >&2":        "",
		"echo hush-hush >&2; exit 3":                   "ended with exit code 3",
		"echo hush-hush; exit 1":                       "ended with exit code 1",
		"kill -9 $$":                                   "was killed",
		"yes hush-hush":                                "more than 16384 bytes",
		"true":                                         "is no token",
		"no-such-command-here":                         "exit code 127",
		"echo " + good + " | cat; test -t 0 && echo x": "ended with exit code 1",
	} {
		i, home := newIssuer(t), newHome(t)
		s := i.source(SourceOptions{Home: home, Command: command, File: "/not/looked/at"})
		token, _, err := s.Token(t.Context(), testRelay, patient)
		switch {
		case want == "":
			if err != nil || token.text != good {
				t.Errorf("%s: got %v; want its token", command, err)
			}
		case err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") ||
			!strings.HasPrefix(err.Error(), "MBX_ACCOUNT_TOKEN_CMD: "):
			t.Errorf("%s: got %v; want %q", command, err, want)
		}
	}
}

// One that hangs keeps a pass as long as it has patience, and ends with the home:
// all of it, also what its shell has started.
func TestTokenByCommandThatHangs(t *testing.T) {
	t.Parallel()
	i, home := newIssuer(t), newHome(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewSource(SourceOptions{Home: home, Command: "exec 3>" + pipe + "; echo up >&3; sleep 1000 | cat", Now: i.clock})
	for range 3 {
		if _, _, err := s.Token(t.Context(), testRelay, time.Millisecond); !errors.Is(err, ErrWaiting) {
			t.Errorf("got %v; want ErrWaiting", err)
		}
	}
	up, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	if _, err := up.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := io.ReadAll(up); err != nil { // to its end, which comes when nobody has it open
		t.Error(err)
	}
	if _, _, err := s.Token(t.Context(), testRelay, patient); err == nil || errors.Is(err, ErrWaiting) {
		t.Errorf("got %v; want it broken off", err)
	}
}

func TestTokenInTheClear(t *testing.T) {
	t.Parallel()
	i, home := newIssuer(t), newHome(t)
	s := i.source(SourceOptions{Home: home, Command: "echo " + jwt(t0, t0.Add(time.Minute), "1")})
	if _, _, err := s.Token(t.Context(), "http://relay.example", patient); err == nil || !strings.Contains(err.Error(), "in the clear") {
		t.Errorf("got %v; want it refused", err)
	}
}

// A proof is what the relay checks: certificate and signature by the keys, over
// this challenge and for this relay.
func TestProof(t *testing.T) {
	t.Parallel()
	host, cloud := must(wire.GenerateKey()), must(wire.GenerateKey())
	token := must(readToken(jwt(t0, t0.Add(time.Minute), "1")))
	var p struct {
		Token       string `json:"token"`
		Certificate struct {
			Payload jsontext.Value `json:"payload"`
			Sig     string         `json:"sig"`
		} `json:"certificate"`
		CloudSig string `json:"cloud_sig"`
	}
	if err := wire.Decode(token.Proof(host, cloud, "challenge", testRelay, t0), &p); err != nil {
		t.Fatal(err)
	}
	c, err := wire.VerifyCloudCertificate(p.Certificate.Payload, p.Certificate.Sig, host.Public())
	if err != nil || c.CloudPub != cloud.Public() || c.Aud != testRelay || !c.IAT.Equal(t0) {
		t.Errorf("certificate: got %+v, %v", c, err)
	}
	if p.Token != token.text || !wire.VerifyCloudProof(cloud.Public(), p.CloudSig, "challenge", host.Public(), testRelay) {
		t.Error("the token or the cloud key's signature is another")
	}
}
