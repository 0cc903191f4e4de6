// Package wiretest makes hosts, mail and receipts for the tests of other
// packages, and reads the worked examples of the protocol. Only tests import
// it; what cannot fail on sane input panics.
package wiretest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Host is a host with keys of its own.
type Host struct {
	Name string
	Key  wire.PrivateKey
	Enc  wire.EncPrivateKey
}

// NewHost makes a host with fresh keys.
func NewHost(name string) *Host {
	key, err := wire.GenerateKey()
	if err != nil {
		panic(err)
	}
	enc, err := wire.GenerateEncKey()
	if err != nil {
		panic(err)
	}
	return &Host{Name: name, Key: key, Enc: enc}
}

// Pub is the key the host is known by.
func (h *Host) Pub() wire.PublicKey { return h.Key.Public() }

// Draft is an open envelope from builder at h to reviewer at the other host,
// for tests that change it before they seal or sign it.
func (h *Host) Draft(to *Host, subject, body string) wire.Envelope {
	now := time.Now()
	id := wire.NewID(now)
	return wire.Envelope{
		V: 3, ID: id, TS: wire.FormatTime(now),
		From: "builder@" + h.Name, To: []string{"reviewer@" + to.Name},
		Thread: id, Kind: "message", Subject: subject, Body: body,
	}
}

// Seal seals a draft for the other host.
func (h *Host) Seal(env wire.Envelope, to *Host) (id string, wireBytes []byte) {
	w, err := wire.Seal(env, to.Enc.Public(), h.Key, h.Name)
	if err != nil {
		panic(err)
	}
	return env.ID, w
}

// Envelope is a sealed and signed message from h to the other host.
func (h *Host) Envelope(to *Host, subject, body string) (id string, wireBytes []byte) {
	return h.Seal(h.Draft(to, subject, body), to)
}

// PlainEnvelope is a signed message whose body is not sealed.
func (h *Host) PlainEnvelope(to *Host, subject, body string) (id string, wireBytes []byte) {
	env := h.Draft(to, subject, body)
	w, err := wire.SignEnvelope(env, h.Key, h.Name)
	if err != nil {
		panic(err)
	}
	return env.ID, w
}

// Receipt is a receipt of h's reviewer for the message msg.
func (h *Host) Receipt(msg, state string, seq int64) (id string, wireBytes []byte) {
	r := wire.Receipt{Msg: msg, Recipient: "reviewer@" + h.Name, State: state, At: time.Now(), Seq: seq}
	return r.ID(), wire.MakeReceipt(h.Key, r)
}

// Hop signs a request of h at the time now and returns its four headers.
func (h *Host) Hop(method, path string, body []byte, now time.Time) map[string]string {
	ts, sig := wire.SignHop(h.Key, method, path, body, now)
	return map[string]string{
		wire.HeaderHost: h.Name, wire.HeaderKey: h.Pub().String(),
		wire.HeaderTS: ts, wire.HeaderSig: sig,
	}
}

// Vector returns a file of worked examples, such as records.json.
func Vector(t testing.TB, name string) []byte {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = parent
	}
	b, err := os.ReadFile(filepath.Join(dir, "relay", "wire", "testdata", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// LoadVector decodes a file of worked examples into v.
func LoadVector(t testing.TB, name string, v any) {
	t.Helper()
	if err := json.Unmarshal(Vector(t, name), v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// Keys returns the keys of keys.json by name: relay, home, work, work-next, stranger and cloud.
func Keys(t testing.TB) map[string]wire.PrivateKey {
	t.Helper()
	var list []struct {
		Name       string `json:"name"`
		PrivateKey string `json:"private_key"`
	}
	LoadVector(t, "keys.json", &list)
	keys := make(map[string]wire.PrivateKey, len(list))
	for _, e := range list {
		k, err := wire.ParsePrivateKey(e.PrivateKey)
		if err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		keys[e.Name] = k
	}
	if len(keys) == 0 {
		t.Fatal("no keys in keys.json")
	}
	return keys
}
