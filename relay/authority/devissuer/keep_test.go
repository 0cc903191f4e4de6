package devissuer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestRestart(t *testing.T) {
	r := newRig(t, nil)
	h := r.enrolled(newHost(t, "laptop"), "alice")
	lost := r.enrolled(newHost(t, "lost"), "alice")
	_, err := r.i.Revoke(t.Context(), "lost", "")
	noError(t, err)
	before := r.form("/token", r.asking(h, relayURL, nil)).text("access_token")
	_, err = r.i.Rotate(false)
	noError(t, err)
	bearer := r.login(h, "alice")
	waiting := r.form("/device/code", h.begin())
	hosts, keys := r.i.Hosts(), r.i.publicKeys()

	r.restart()
	if !reflect.DeepEqual(r.i.Hosts(), hosts) || !reflect.DeepEqual(r.i.publicKeys(), keys) || len(r.i.state.Denials) != 2 {
		t.Errorf("got %+v, %+v; want %+v, %+v", r.i.Hosts(), r.i.publicKeys(), hosts, keys)
	}
	r.verified(before)
	r.form("/token", r.asking(h, relayURL, nil)).is(200, "")
	r.form("/token", r.asking(lost, relayURL, nil)).is(401, "invalid_client")
	r.json("/v1/host/enrolments", bearer, r.enrolment(h, bearer)).is(200, "") // the session goes on
	r.form("/device/token", poll(waiting.text("device_code"))).is(400, "invalid_grant")

	files, err := os.ReadDir(r.o.Dir)
	noError(t, err)
	for _, f := range files {
		fi, err := f.Info()
		noError(t, err)
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: got mode %v; want 0600", f.Name(), fi.Mode())
		}
	}
	if len(files) != 2 { // the state and the lock
		t.Errorf("got %v", files)
	}
}

func TestFolder(t *testing.T) {
	r := newRig(t, nil)
	if i, err := New(r.o); !errors.Is(err, ErrInUse) {
		t.Errorf("a second one: got %v, %v; want %v", i, err, ErrInUse)
	}
	noError(t, r.i.Close())
	path := filepath.Join(r.o.Dir, stateFile)
	good, err := os.ReadFile(path)
	noError(t, err)
	for name, doc := range map[string]string{
		"empty": "", "cut": string(good[:len(good)/2]), "another version": strings.Replace(string(good), `"v": 1`, `"v": 2`, 1),
		"no keys": `{"v":1,"base":"x","keys":[]}`, "bad key": strings.Replace(string(good), `"kty": "OKP"`, `"kty": "oct"`, 1),
	} {
		noError(t, os.WriteFile(path, []byte(doc), 0o600))
		i, err := New(r.o)
		if err == nil {
			noError(t, i.Close())
		}
		if err == nil || !strings.Contains(err.Error(), "put back a copy") || strings.Contains(err.Error(), `"d"`) {
			t.Errorf("%s: got %v; want to be told to put back a copy", name, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != doc {
			t.Errorf("%s: the file was touched: %v", name, err)
		}
	}
	noError(t, os.WriteFile(path, good, 0o600))
	noError(t, os.Chmod(path, 0o640))
	if _, err := New(r.o); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("got %v; want to be told of the mode", err)
	}
	noError(t, os.Chmod(path, 0o600))
	r.o.Base = "https://elsewhere.example"
	r.open()
	if !strings.Contains(r.log.String(), "another one than before") {
		t.Error("nothing was said of another URL")
	}
}

// A change that can't be stored has not happened.
func TestFullDisk(t *testing.T) {
	r := newRig(t, nil)
	h := r.enrolled(newHost(t, "laptop"), "alice")
	bearer := r.login(h, "alice")
	keys := r.i.publicKeys()
	away := r.o.Dir + ".away"
	noError(t, os.Rename(r.o.Dir, away))
	if _, err := r.i.Revoke(t.Context(), "laptop", ""); err == nil || r.i.Hosts()[0].revoked() {
		t.Errorf("revoke: got %v, %+v", err, r.i.Hosts())
	}
	for _, drop := range []bool{false, true} {
		if _, err := r.i.Rotate(drop); err == nil || !reflect.DeepEqual(r.i.publicKeys(), keys) {
			t.Errorf("rotate: got %v, %+v", err, r.i.publicKeys())
		}
	}
	a := r.json("/revoke-session", bearer, struct{}{})
	a.is(500, "server_error")
	if strings.Contains(string(a.body), "/") {
		t.Errorf("got %s; want no paths", a.body)
	}
	noError(t, os.Rename(away, r.o.Dir))
	r.form("/token", r.asking(h, relayURL, nil)).is(200, "")
	r.json("/revoke-session", bearer, struct{}{}).is(200, "")
}

func TestRotate(t *testing.T) {
	r := newRig(t, nil)
	h := r.enrolled(newHost(t, "laptop"), "alice")
	old := r.form("/token", r.asking(h, relayURL, nil)).text("access_token")
	first := r.i.publicKeys()[0].ID
	got, err := r.i.Rotate(false)
	if err != nil || len(got.Keys) != 2 || got.Dropped != 0 || got.Keys[0].ID == first || got.Keys[1].ID != first {
		t.Fatalf("got %+v, %v", got, err)
	}
	r.verified(old)
	if header, _ := r.verified(r.form("/token", r.asking(h, relayURL, nil)).text("access_token")); header["kid"] != got.Keys[0].ID {
		t.Errorf("got %v; want the new key to sign", header)
	}
	dropped, err := r.i.Rotate(true)
	if err != nil || len(dropped.Keys) != 1 || dropped.Dropped != 1 || dropped.Keys[0] != got.Keys[0] {
		t.Errorf("got %+v, %v", dropped, err)
	}
	if strings.Contains(string(r.send("GET", "/.well-known/jwks.json", "", "", "").body), first) {
		t.Error("the old key is still in the set")
	}
	for range maxKeys - 1 {
		_, err = r.i.Rotate(false)
		noError(t, err)
	}
	if got, err := r.i.Rotate(false); !errors.Is(err, ErrRefused) || len(r.i.publicKeys()) != maxKeys {
		t.Errorf("got %+v, %v; want %v", got, err, ErrRefused)
	}
}

// The commands of another process, over the port that the folder tells.
func TestCommands(t *testing.T) {
	r := newRig(t, nil)
	if _, err := Dial(r.o.Dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("before: got %v; want %v", err, ErrNotRunning)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	noError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.i.Serve(ctx, l, func() error { close(ready); return nil }) }()
	<-ready
	c, err := Dial(r.o.Dir)
	noError(t, err)
	fi, err := os.Stat(filepath.Join(r.o.Dir, doorFile))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v; want 0600", fi.Mode(), err)
	}
	resp, err := http.Get("http://" + l.Addr().String() + "/healthz")
	noError(t, err)
	noError(t, resp.Body.Close())

	h := newHost(t, "laptop")
	a, b := r.form("/device/code", h.begin()), r.form("/device/code", h.begin())
	if l, err := c.Approve(t.Context(), a.text("user_code"), "alice", ""); err != nil || l.Account != "alice" || l.Host != "laptop" {
		t.Errorf("approve: got %+v, %v", l, err)
	}
	if l, err := c.Deny(t.Context(), b.text("user_code")); err != nil || !l.Denied {
		t.Errorf("deny: got %+v, %v", l, err)
	}
	if hosts, err := c.Hosts(t.Context()); err != nil || len(hosts) != 0 {
		t.Errorf("hosts: got %+v, %v", hosts, err)
	}
	r.enrolled(h, "alice")
	if hosts, err := c.Hosts(t.Context()); err != nil || !reflect.DeepEqual(hosts, r.i.Hosts()) {
		t.Errorf("hosts: got %+v, %v; want %+v", hosts, err, r.i.Hosts())
	}
	if got, err := c.Rotate(t.Context(), false); err != nil || len(got.Keys) != 2 {
		t.Errorf("rotate: got %+v, %v", got, err)
	}
	if got, err := c.Revoke(t.Context(), h.clientID, "lost"); err != nil || len(got.Hosts) != 1 || got.Hosts[0].Reason != "lost" {
		t.Errorf("revoke: got %+v, %v", got, err)
	}
	_, notFound := c.Approve(t.Context(), "BBBB-BBBB", "", "")
	_, refused := c.Approve(t.Context(), a.text("user_code"), "", "")
	_, bad := c.Revoke(t.Context(), h.clientID, "a\nb")
	for want, got := range map[error]error{ErrNotFound: notFound, ErrRefused: refused, ErrBadCall: bad} {
		if !errors.Is(got, want) || got.Error() == want.Error() {
			t.Errorf("got %v; want %v in words", got, want)
		}
	}
	for _, token := range []string{"", "Bearer ", "Bearer " + secret()} {
		q, err := http.NewRequest("POST", c.door.URL+"/hosts", strings.NewReader("{}"))
		noError(t, err)
		q.Header.Set("Authorization", token)
		if got := r.do(q); got.status != http.StatusUnauthorized {
			t.Errorf("%q: got %d; want 401", token, got.status)
		}
	}
	if strings.Contains(r.log.String(), c.door.Token) {
		t.Error("the token of the commands stands in the log")
	}
	left, err := os.ReadFile(filepath.Join(r.o.Dir, doorFile))
	noError(t, err)
	stop()
	noError(t, <-ended)
	if _, err := Dial(r.o.Dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after: got %v; want %v", err, ErrNotRunning)
	}
	noError(t, os.WriteFile(filepath.Join(r.o.Dir, doorFile), left, 0o600)) // what one leaves that was killed
	c, err = Dial(r.o.Dir)
	noError(t, err)
	if _, err := c.Hosts(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("killed: got %v; want %v", err, ErrNotRunning)
	}
}
