package host

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// states are what a host that works may be in.
var states = []struct {
	name  string
	relay bool
	state func(w *world, alpha *testHost)
}{
	{"fresh", false, func(w *world, alpha *testHost) {}},
	{"disk-low", false, func(w *world, alpha *testHost) {}},
	{"relay-not-used-yet", true, func(w *world, alpha *testHost) {}},
	{"relay-set", true, func(w *world, alpha *testHost) { setRelay(alpha, "") }},
	{"relay-set-not-reached", true, func(w *world, alpha *testHost) {
		w.relay.stop()
		setRelay(alpha, w.relay.key.Public().Fingerprint())
		w.relay.start()
	}},
	{"relay-set-and-down", true, func(w *world, alpha *testHost) {
		refuse(w)
		setRelay(alpha, w.relay.key.Public().Fingerprint())
		alpha.tick()
		w.pass(time.Hour)
	}},
	{"relay-bad-url", true, func(w *world, alpha *testHost) { alpha.opts.RelayURL = "https://user:secret@relay.example" }},
	{"enrolled", true, func(w *world, alpha *testHost) { alpha.tick(); w.pass(time.Minute) }},
	{"enrolled-by-owner-with-daemon", true, func(w *world, alpha *testHost) {
		setRelay(alpha, w.relay.key.Public().Fingerprint())
		alpha.tick()
		daemon(alpha)
	}},
	{"daemon-without-passes", true, func(w *world, alpha *testHost) { alpha.tick(); daemon(alpha); w.pass(3 * time.Hour) }},
	{"rotated-since", true, func(w *world, alpha *testHost) {
		alpha.tick()
		must(alpha.RotateKey(context.Background()))
	}},
	{"key-mismatch", true, func(w *world, alpha *testHost) { alpha.tick(); otherKey(w); alpha.tick() }},
	{"key-mismatch-owner", true, func(w *world, alpha *testHost) {
		setRelay(alpha, w.relay.key.Public().Fingerprint())
		otherKey(w)
		alpha.tick()
	}},
	{"key-not-expected", true, func(w *world, alpha *testHost) {
		w.relay.stop()
		setRelay(alpha, must(wire.GenerateKey()).Public().Fingerprint())
		w.relay.start()
		alpha.tick()
	}},
	{"key-confirmed", true, func(w *world, alpha *testHost) {
		alpha.tick()
		otherKey(w)
		alpha.tick()
		setRelay(alpha, w.relay.key.Public().Fingerprint())
	}},
	{"unreachable", true, func(w *world, alpha *testHost) {
		alpha.tick()
		w.pass(time.Hour)
		refuse(w)
		alpha.tick()
		w.pass(2 * time.Hour)
	}},
	{"never-reached", true, func(w *world, alpha *testHost) { refuse(w); alpha.tick(); w.pass(50 * time.Hour) }},
	{"unavailable", true, func(w *world, alpha *testHost) {
		alpha.tick()
		w.pass(time.Minute)
		w.relay.intercept(func(out http.ResponseWriter, _ *http.Request, _ http.Handler) { out.WriteHeader(503) })
		alpha.tick()
		w.pass(time.Minute)
	}},
	{"bad-answer", true, func(w *world, alpha *testHost) {
		w.relay.intercept(func(out http.ResponseWriter, _ *http.Request, _ http.Handler) { fmt.Fprint(out, "<html>") })
		alpha.tick()
		w.pass(time.Minute)
	}},
	{"clock-skew", true, func(w *world, alpha *testHost) {
		w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
			out.Header().Set("Date", w.clock().Format(http.TimeFormat))
			relay.ServeHTTP(out, in)
		})
		alpha.ahead.Store(10 * time.Minute.Milliseconds())
		alpha.tick()
	}},
	{"refused-after-enrol", true, func(w *world, alpha *testHost) {
		w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
			if in.URL.Path == "/v2/relay/enc-key" {
				out.Header().Set("Date", w.clock().Format(http.TimeFormat))
				out.WriteHeader(http.StatusUnauthorized)
				return
			}
			relay.ServeHTTP(out, in)
		})
		alpha.tick()
		w.pass(20 * time.Second)
	}},
	{"enrol-failed", true, func(w *world, alpha *testHost) { revoked(w, alpha); w.pass(10 * time.Second) }},
	{"enrol-failed-mail-waits", true, func(w *world, alpha *testHost) {
		beta := w.host("beta")
		pair(alpha, beta, false)
		alpha.send(beta, "one")
		alpha.send(beta, "two")
		alpha.lanFailedTwice()
		revoked(w, alpha)
		w.pass(90 * time.Second)
	}},
	{"relay-v1", true, func(w *world, alpha *testHost) {
		w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
			if in.URL.Path == "/v2/relay/info" {
				out.WriteHeader(http.StatusNotFound)
				return
			}
			relay.ServeHTTP(out, in)
		})
		alpha.tick()
	}},
	{"quarantine", true, func(w *world, alpha *testHost) {
		alpha.tick()
		quarantined(alpha, "rejected:undecryptable body", 1)
		quarantined(alpha, "rejected:host not paired", 2)
	}},
	{"quarantine-full", true, func(w *world, alpha *testHost) {
		alpha.tick()
		quarantined(alpha, "rejected:host not paired", maxQuarantine)
		alpha.tick()
		w.pass(3 * time.Minute)
	}},
	{"outbox", true, func(w *world, alpha *testHost) {
		beta := w.host("beta")
		pair(alpha, beta, false)
		alpha.send(beta, "one")
		w.pass(2 * time.Hour)
		alpha.send(beta, "two")
		alpha.relayOnly()
		alpha.sql("UPDATE outbox SET error = 'the host can''t be reached on the LAN'")
	}},
	{"at-the-relay", true, func(w *world, alpha *testHost) {
		atRelay(w, alpha, "one")
		w.pass(3 * 24 * time.Hour)
		atRelay(w, alpha, "two")
	}},
	{"repush", true, func(w *world, alpha *testHost) {
		atRelay(w, alpha, "one")
		w.relay.wipe()
		alpha.tick() // the row is due from the next one on
		w.pass(time.Minute)
	}},
	{"came-to-nothing", true, func(w *world, alpha *testHost) {
		for i, state := range []string{"expired", "expired", "rejected", "unconfirmed"} {
			id := atRelay(w, alpha, fmt.Sprint(i))
			alpha.sql("UPDATE relay_sent SET state = ?, state_at = ? WHERE msg = ?", state, alpha.now().UnixMilli(), id)
		}
		w.pass(29 * 24 * time.Hour)
	}},
	{"came-to-nothing-long-ago", true, func(w *world, alpha *testHost) {
		for i, state := range []string{"expired", "rejected", "unconfirmed"} {
			id := atRelay(w, alpha, fmt.Sprint(i))
			alpha.sql("UPDATE relay_sent SET state = ?, state_at = ? WHERE msg = ?", state, alpha.now().UnixMilli(), id)
		}
		w.pass(31 * 24 * time.Hour)
		alpha.tick()
	}},
	{"rotation-begun", true, func(w *world, alpha *testHost) {
		alpha.tick()
		noError(w.t, must(alpha.keyring().next("alpha", w.clock())).write(filepath.Join(alpha.opts.Home, nextKeys)))
	}},
	{"rotation-does-not-follow", true, func(w *world, alpha *testHost) {
		alpha.tick()
		noError(w.t, must(newKeyring()).write(filepath.Join(alpha.opts.Home, nextKeys)))
	}},
	{"rotation-not-noted", true, func(w *world, alpha *testHost) {
		alpha.tick()
		_, _, err := rotateKeys(alpha.opts.Home, "alpha", w.clock(), func(string) {})
		noError(w.t, err)
	}},
	{"rotation-refused", true, func(w *world, alpha *testHost) {
		alpha.tick()
		must(alpha.RotateKey(context.Background()))
		w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
			if in.URL.Path == "/v2/relay/rotate" {
				out.WriteHeader(http.StatusConflict)
				fmt.Fprint(out, `{"error":"the new key is revoked here","code":"REVOKED"}`)
				return
			}
			relay.ServeHTTP(out, in)
		})
		alpha.tick()
	}},
	{"rotation-peers-not-told", true, func(w *world, alpha *testHost) {
		pair(alpha, w.host("beta"), false)
		must(alpha.RotateKey(context.Background()))
		alpha.tick()
		w.pass(5 * time.Second)
	}},
	{"rotation-peers-not-told-for-days", true, func(w *world, alpha *testHost) {
		for i := range 7 {
			addPeerRow(alpha, fmt.Sprintf("peer%d", i), "")
		}
		must(alpha.RotateKey(context.Background()))
		w.pass(49 * time.Hour)
		alpha.tick()
	}},
	{"rotation-refused-by-a-peer", true, func(w *world, alpha *testHost) {
		beta := w.host("beta")
		pair(alpha, beta, true)
		beta.sql("UPDATE peers SET key = zeroblob(32)") // it knows other keys
		must(alpha.RotateKey(context.Background()))
		alpha.tick()
		w.pass(5 * time.Second)
	}},
	{"sealing-keys", true, func(w *world, alpha *testHost) {
		beta, gamma := w.host("beta"), w.host("gamma")
		pair(alpha, beta, false)
		pair(alpha, gamma, false)
		alpha.tick()
		alpha.send(beta, "one")
		alpha.lanFailedTwice()
		alpha.relayOnly() // asks the relay, where beta never was
		w.pass(time.Minute)
		alpha.send(gamma, "two")
		addPeerRow(alpha, "delta", adReplay)
	}},
	{"many-sealing-keys-refused", false, func(w *world, alpha *testHost) {
		for i := range maxPeerLines + 3 {
			addPeerRow(alpha, fmt.Sprintf("peer%02d", i), wire.AdUnsigned)
		}
	}},
	{"too-many-peers", true, func(w *world, alpha *testHost) {
		alpha.sql(`INSERT INTO peers (fold, name, key, paired_at, enc_key)
			WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1025)
			SELECT 'p' || i, 'p' || i, CAST(printf('%032d', i) AS BLOB), 0, zeroblob(32) FROM n`)
		alpha.tick()
	}},
	{"receipts", false, func(w *world, alpha *testHost) {
		for i, reason := range []string{"", "the host can't be reached on the LAN", receiptsUnknown} {
			alpha.sql("INSERT INTO receipts_out (msg, recipient, seq, fold, wire, queued_at, next_at, error) VALUES (?, 'a', 1, ?, x'00', ?, 0, ?)",
				fmt.Sprint(i), fmt.Sprint("host", i), w.now.Load(), reason)
		}
	}},
	{"clock-back", true, func(w *world, alpha *testHost) { alpha.tick(); w.pass(-3 * 24 * time.Hour) }},
	{"tokens", false, func(w *world, alpha *testHost) {
		must(alpha.NewPairToken(context.Background(), time.Minute))
		must(alpha.NewPairToken(context.Background(), TokenLife))
		w.pass(3 * time.Minute)
	}},
}

func TestDoctor(t *testing.T) {
	for _, tt := range states {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			alpha := w.host("alpha")
			if !tt.relay {
				alpha.opts.RelayURL, alpha.Host.opts.RelayURL = "", ""
			}
			first := w.relay.key.Public().Fingerprint()
			epoch := ""
			tt.state(w, alpha)
			e := newExaminer(alpha.opts)
			e.free = func(string) (int64, error) { return 1 << 40, nil }
			if tt.name == "disk-low" {
				e.free = func(string) (int64, error) { return 100 << 20, nil }
			}
			d := e.examine(context.Background())
			same(t, "host", d.Host, "alpha")
			served, expected := "", ""
			if tt.relay {
				r := alpha.relayRow()
				epoch, served, expected = r.epoch, r.served, r.expected
			}
			golden(t, tt.name, d, alpha.opts.Home, "HOME", w.relay.url, "RELAY", d.Fingerprint, "OWN-KEY", first, "RELAY-KEY",
				served, "SERVED-KEY", w.relay.key.Public().Fingerprint(), "NEW-RELAY-KEY", expected, "EXPECTED-KEY", epoch, "EPOCH")
		})
	}
}

// setRelay runs relay set.
func setRelay(h *testHost, key string) {
	h.w.t.Helper()
	_, err := h.SetRelay(context.Background(), h.w.relay.url, key)
	noError(h.w.t, err)
}

// daemon makes this process the home's daemon until the test ends.
func daemon(h *testHost) {
	l := must(h.lock())
	h.w.t.Cleanup(func() { noError(h.w.t, l.Close()) })
}

// otherKey gives the relay a new store and another key.
func otherKey(w *world) {
	w.relay.stop()
	w.relay.dir, w.relay.key = w.t.TempDir(), must(wire.GenerateKey())
	w.relay.start()
}

// refuse makes the relay end every connection.
func refuse(w *world) {
	w.relay.intercept(func(out http.ResponseWriter, _ *http.Request, _ http.Handler) {
		c, _, err := out.(http.Hijacker).Hijack()
		noError(w.t, err)
		c.Close()
	})
}

// revoked makes the relay revoke a host that it knows.
func revoked(w *world, h *testHost) {
	if !h.relayRow().key.IsZero() {
		w.t.Fatal("enrolled already")
	}
	waiting := h.outbox()
	h.sql("UPDATE outbox SET next_at = next_at + 1000000")
	h.tick() // enrols
	must(w.relay.relay.RevokeHost(context.Background(), h.Key(), relay.Deed{Actor: "test"}))
	h.sql("UPDATE outbox SET next_at = next_at - 1000000")
	h.relayOnly()
	same(w.t, "outbox", h.outbox(), waiting)
}

func quarantined(h *testHost, reason string, n int) {
	h.w.t.Helper()
	h.sql(`INSERT INTO quarantine (relay, epoch, seq, kind, item_id, sender, claims, reason, wire, at)
		WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
		SELECT ?2, ?3, i, 'envelope', 'm' || i, 's', 'x', ?3, x'00', ?4 FROM n`, n, h.relayURL(), reason, h.now().UnixMilli())
}

// addPeerRow adds a paired host that does not exist.
func addPeerRow(h *testHost, name, refused string) {
	h.w.t.Helper()
	noError(h.w.t, h.db.write(context.Background(), func(t *tx) error {
		return h.addPeer(t, name, must(wire.GenerateKey()).Public(), "", deadAddr)
	}))
	h.sql("UPDATE peers SET ad_refused = ? WHERE fold = ?", refused, name)
}

// atRelay leaves a message to beta at the relay.
func atRelay(w *world, alpha *testHost, subject string) string {
	w.t.Helper()
	if ask[int64](alpha, "SELECT count(*) FROM peers") == 0 {
		beta := w.host("beta")
		pair(alpha, beta, false)
		beta.tick()
	}
	s := must(alpha.Send(context.Background(), Draft{From: "builder", To: []string{"reviewer@beta"}, Subject: subject, Body: "body"}))
	alpha.lanFailedTwice()
	same(w.t, "accepted", alpha.relayOnly().Accepted, 1)
	return s.ID
}
