package host

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/host/account"
	"github.com/agentmbx/agentmbx/relay/host/homefile"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// accountStates are what a host of a hosted relay may be in.
var accountStates = []struct {
	name  string
	state func(w *hosted, alpha *member)
}{
	{"session", func(w *hosted, alpha *member) { alpha.tick(); w.pass(2 * time.Minute) }},
	{"session-signed-in", func(w *hosted, alpha *member) { signedIn(alpha, w.relay.url); alpha.tick(); w.pass(time.Minute) }},
	{"session-not-renewed", func(w *hosted, alpha *member) { alpha.tick(); w.pass(9 * time.Minute); alpha.tick() }},
	{"session-not-renewed-refused", func(w *hosted, alpha *member) {
		alpha.tick()
		w.pass(9 * time.Minute)
		alpha.give(jwkstest.JSON{"aud": "https://other.example"})
		alpha.tick()
	}},
	{"session-over", func(w *hosted, alpha *member) { alpha.tick(); w.pass(20 * time.Minute) }},
	{"session-over-at-the-relay", func(w *hosted, alpha *member) {
		alpha.tick()
		s := *alpha.sessionNow()
		s.enrolled = false
		w.pass(20 * time.Minute)
		_, err := alpha.ack(context.Background(), &s, 0)
		noError(w.t, alpha.noteState(context.Background(), s.url, relayOver, err.(*trouble)))
	}},
	{"session-over-no-token", func(w *hosted, alpha *member) { alpha.tick(); w.pass(20 * time.Minute); alpha.tick() }},
	{"no-token-source", func(w *hosted, alpha *member) { alpha.opts.TokenFile = ""; alpha.reopen(); alpha.tick() }},
	{"token-command-fails", func(w *hosted, alpha *member) {
		alpha.opts.TokenCommand = "echo secret >&2; exit 4"
		alpha.reopen()
		alpha.patience = time.Minute
		alpha.tick()
	}},
	{"token-file-missing", func(w *hosted, alpha *member) {
		alpha.opts.TokenFile = filepath.Join(alpha.opts.Home, "no-token")
		alpha.reopen()
		alpha.patience = time.Minute
		alpha.tick()
	}},
	{"token-of-another-relay", func(w *hosted, alpha *member) {
		alpha.give(jwkstest.JSON{"aud": "https://other.example"})
		alpha.tick()
	}},
	{"token-too-old", func(w *hosted, alpha *member) { w.pass(15 * time.Minute); alpha.tick() }},
	{"token-of-another-key", func(w *hosted, alpha *member) { alpha.cloud = must(wire.GenerateKey()); alpha.give(nil); alpha.tick() }},
	{"token-of-another-issuer", func(w *hosted, alpha *member) {
		alpha.give(jwkstest.JSON{"iss": "https://other.example"})
		alpha.tick()
	}},
	{"token-and-clock", func(w *hosted, alpha *member) {
		w.pass(-4 * time.Minute)
		alpha.ahead.Store(4 * time.Minute.Milliseconds())
		alpha.tick()
	}},
	{"denied", func(w *hosted, alpha *member) { deny(alpha); alpha.tick(); w.pass(10 * time.Second) }},
	{"relay-without-keys", func(w *hosted, alpha *member) { w.issuer.Serve(jwkstest.Status(500)); alpha.tick() }},
	{"signed-in-for-another-relay", func(w *hosted, alpha *member) { signedIn(alpha, "https://other.example"); alpha.tick() }},
	{"cloud-key-missing", func(w *hosted, alpha *member) {
		signedIn(alpha, w.relay.url)
		noError(w.t, os.Remove(filepath.Join(alpha.opts.Home, account.KeyFile)))
		alpha.tick()
	}},
	{"cloud-key-readable-by-others", func(w *hosted, alpha *member) {
		noError(w.t, os.Chmod(filepath.Join(alpha.opts.Home, account.KeyFile), 0o644))
		alpha.tick()
	}},
	{"cloud-key-damaged", func(w *hosted, alpha *member) {
		noError(w.t, homefile.Write(filepath.Join(alpha.opts.Home, account.KeyFile), []byte("junk")))
		alpha.tick()
	}},
	{"account-damaged", func(w *hosted, alpha *member) {
		alpha.tick()
		noError(w.t, homefile.Write(filepath.Join(alpha.opts.Home, account.File), []byte(`{"v":1}`)))
	}},
	{"before-sessions", func(w *hosted, alpha *member) {
		alpha.tick()
		alpha.sql("DROP TABLE sessions")
		alpha.sql("PRAGMA user_version = 1")
	}},
}

func TestDoctorOfAnAccount(t *testing.T) {
	for _, tt := range accountStates {
		t.Run(tt.name, func(t *testing.T) {
			w := newHosted(t)
			alpha := w.member("alpha")
			w.relay.listen(nil) // with the world's time
			tt.state(w, alpha)
			e := newExaminer(alpha.opts)
			e.free = func(string) (int64, error) { return 1 << 40, nil }
			d := e.examine(context.Background())
			golden(t, tt.name, d, alpha.opts.Home, "HOME", w.relay.url, "RELAY", d.Fingerprint, "OWN-KEY",
				w.relay.key.Public().Fingerprint(), "RELAY-KEY", w.relay.epoch(), "EPOCH", alpha.opts.TokenFile, "TOKEN-FILE")
		})
	}
}

// signedIn leaves what a sign-in does.
func signedIn(m *member, relay string) {
	m.w.t.Helper()
	noError(m.w.t, homefile.Write(filepath.Join(m.opts.Home, account.File), []byte(`{"v":1,"base":"https://accounts.example","host_id":"host-1",
		"client_id":"client-1","token_endpoint":"https://accounts.example/token","jwks_uri":"","resources":{"api":"","relay":"`+relay+`"}}`)))
}

// A database from before sessions is brought up to date with all that is in it.
func TestDatabaseFromBeforeSessions(t *testing.T) {
	w := newHosted(t)
	alpha := w.member("alpha")
	alpha.tick()
	alpha.sql("DROP TABLE sessions")
	alpha.sql("PRAGMA user_version = 1")
	alpha.reopen()
	same(t, "pinned", alpha.relayRow().key, w.relay.key.Public())
	same(t, "ends", alpha.sessionRow().ends, 0)
	same(t, "state", alpha.tick().Relay.State, relayOK)
	same(t, "ends", alpha.sessionRow().ends, t0.Add(10*time.Minute).UnixMilli())
}
