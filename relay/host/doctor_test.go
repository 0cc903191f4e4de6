package host

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

var update = flag.Bool("update", false, "write testdata/doctor/*.golden anew")

// doctor examines the host's home with its clock.
func (h *testHost) doctor() Diagnosis { return Doctor(context.Background(), h.opts) }

// checksOf are the checks of one level and name.
func checksOf(d Diagnosis, level Level, name string) (found []Check) {
	for _, c := range d.Checks {
		if c.Level == level && c.Name == name {
			found = append(found, c)
		}
	}
	return found
}

// hasCheck checks that a diagnosis has one check of this level and name that
// says every part, in its text or its fix.
func hasCheck(t testing.TB, d Diagnosis, level Level, name string, parts ...string) {
	t.Helper()
	for _, c := range checksOf(d, level, name) {
		all := c.Text + "\n" + c.Fix
		missing := false
		for _, p := range parts {
			missing = missing || !strings.Contains(all, p)
		}
		if !missing {
			return
		}
	}
	t.Errorf("got\n%swant %s %s with %q", d, level, name, parts)
}

func noCheck(t testing.TB, d Diagnosis, level Level, name string) {
	t.Helper()
	if found := checksOf(d, level, name); len(found) > 0 {
		t.Errorf("got %q; want no %s %s", found, level, name)
	}
}

// golden compares a diagnosis with its file, once every pair of a random text
// and its stand-in is replaced.
func golden(t *testing.T, name string, d Diagnosis, standIns ...string) {
	t.Helper()
	for _, c := range d.Checks {
		if c.Fix == "" && (c.Level == LevelWarn || c.Level == LevelFail) {
			t.Errorf("%s %s %q: got no fix", c.Level, c.Name, c.Text)
		}
	}
	got := d.String()
	for i := 0; i < len(standIns); i += 2 {
		if standIns[i] != "" {
			got = strings.ReplaceAll(got, standIns[i], standIns[i+1])
		}
	}
	got = regexp.MustCompile(`127\.0\.0\.1:\d{2,}`).ReplaceAllString(got, "ADDR")
	got = regexp.MustCompile(`\buid \d+|chown -R \d+`).ReplaceAllStringFunc(got, func(s string) string { return s[:strings.LastIndex(s, " ")] + " UID" })
	path := filepath.Join("testdata", "doctor", name+".golden")
	if *update {
		noError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		noError(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	noError(t, err)
	if got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestD11_DoctorOnAnEnrolledHost(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	atRelay(w, alpha, "hello")
	quarantined(alpha, "rejected:undecryptable body", 1)
	d := alpha.doctor()
	hasCheck(t, d, LevelOK, "relay", "enrolled at "+w.relay.url, w.relay.key.Public().Fingerprint(), alpha.relayRow().epoch)
	hasCheck(t, d, LevelInfo, "relay-mail", "1 message taken by the relay")
	hasCheck(t, d, LevelWarn, "quarantine", "1 item", "undecryptable body", "agentmbx relay quarantine")
	same(t, "healthy", d.Healthy, true)
}

func TestG3_DoctorWarnsAboutARefusedSealingKey(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.URL.Path == "/v2/relay/enc-key" && in.Method == http.MethodGet {
			// What an older host publishes: no record that ends.
			k := beta.keyring()
			fmt.Fprintf(out, `{"host":"beta","host_pubkey":%q,"enc_pub":%q,"sig":%q}`, beta.Key(), k.enc.Public(), k.key.Sign(wire.EncKeyV1Payload("beta", k.enc.Public())))
			return
		}
		relay.ServeHTTP(out, in)
	})
	alpha.lanFailedTwice()
	same(t, "accepted", alpha.relayOnly().Accepted, 0)
	d := alpha.doctor()
	hasCheck(t, d, LevelWarn, "sealing-key", "beta", "unsigned: a v1 key only")

	w.relay.intercept(nil)
	alpha.lanFailedTwice()
	same(t, "accepted from an honest relay", alpha.relayOnly().Accepted, 1)
	same(t, "state", alpha.sentState(msg), "relay-accepted")
	noCheck(t, alpha.doctor(), LevelWarn, "sealing-key")
}

func TestG7_DoctorOnAHostThatTheRelayRevoked(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	revoked(w, alpha)
	same(t, "state", alpha.relayRow().state, relayEnrolFailed)
	d := alpha.doctor()
	hasCheck(t, d, LevelWarn, "relay", "not enrolled", "403", "revoked")
	hasCheck(t, d, LevelFail, "relay-mail", "1 message waits")
	noCheck(t, d, LevelOK, "relay")
	same(t, "healthy", d.Healthy, false)
}

func TestG9_DoctorAndThePinnedKey(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	first := w.relay.key.Public().Fingerprint()
	setRelay(alpha, strings.ToUpper(strings.ReplaceAll(first, "-", "")))
	alpha.tick()
	hasCheck(t, alpha.doctor(), LevelOK, "relay", "its key "+first+" is pinned by the owner")

	otherKey(w)
	second := w.relay.key.Public().Fingerprint()
	alpha.tick()
	d := alpha.doctor()
	hasCheck(t, d, LevelFail, "relay", second, first, "agentmbx relay set "+w.relay.url+" --key "+second)
	same(t, "healthy", d.Healthy, false)

	setRelay(alpha, second)
	noCheck(t, alpha.doctor(), LevelFail, "relay")
	alpha.tick()
	d = alpha.doctor()
	noCheck(t, d, LevelFail, "relay")
	hasCheck(t, d, LevelOK, "relay", "its key "+second+" is pinned by the owner")
}

func TestG10_DoctorAndAKeyExpectedUnseen(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	served := w.relay.key.Public().Fingerprint()
	wrong := must(wire.GenerateKey()).Public().Fingerprint()
	w.relay.stop()
	setRelay(alpha, wrong)
	d := alpha.doctor()
	same(t, "healthy before the relay was reached", d.Healthy, true)
	hasCheck(t, d, LevelInfo, "relay", wrong)

	w.relay.start()
	alpha.tick()
	same(t, "pinned", alpha.relayRow().key.IsZero(), true)
	hasCheck(t, alpha.doctor(), LevelFail, "relay", served, wrong, "agentmbx relay set "+w.relay.url+" --key "+served)

	w.relay.stop()
	setRelay(alpha, served) // the owner has looked again, while the relay is away
	noCheck(t, alpha.doctor(), LevelFail, "relay")
	w.relay.start()
	alpha.tick()
	hasCheck(t, alpha.doctor(), LevelOK, "relay", served+" is pinned by the owner")
}

func TestE9c_DoctorWarnsAboutARejectedRePush(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	msg := atRelay(w, alpha, "hello")
	alpha.sql("UPDATE relay_sent SET state = 'repush' WHERE msg = ?", msg)
	noError(t, alpha.db.write(context.Background(), func(t *tx) error {
		p, err := findPeer(t, "beta")
		return errors.Join(err, alpha.undelivered(t, msg, p, "the host refused it"))
	}))
	same(t, "state", alpha.sentState(msg), "rejected")
	hasCheck(t, alpha.doctor(), LevelWarn, "relay-mail", "1 rejected re-push")
}

func TestDiagnosisAsJSON(t *testing.T) {
	t.Parallel()
	d := Diagnosis{Home: "/h", Host: "alpha", Fingerprint: "f", Healthy: true, Checks: []Check{{LevelInfo, "relay", "none is set", ""}, {LevelWarn, "disk", "low", "make room"}}}
	same(t, "json", string(must(json.Marshal(d))), `{"home":"/h","host":"alpha","fingerprint":"f","healthy":true,"checks":[`+
		`{"level":"info","name":"relay","text":"none is set"},{"level":"warn","name":"disk","text":"low","fix":"make room"}]}`)
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0 seconds"},
		{time.Second, "1 second"},
		{59 * time.Second, "59 seconds"},
		{time.Minute, "1 minute"},
		{119 * time.Minute, "1 hour"},
		{47 * time.Hour, "47 hours"},
		{48 * time.Hour, "2 days"},
	} {
		same(t, tt.d.String(), span(tt.d), tt.want)
	}
}

// However the environment spells a relay's URL, it is the relay that was set.
func TestDoctorFindsThePinnedRelay(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	setRelay(alpha, w.relay.key.Public().Fingerprint())
	alpha.opts.RelayURL = w.relay.url + "/"
	alpha.reopen()
	same(t, "relay", alpha.relayURL(), w.relay.url)
	otherKey(w)
	alpha.tick()
	hasCheck(t, alpha.doctor(), LevelFail, "relay", w.relay.key.Public().Fingerprint())
}
