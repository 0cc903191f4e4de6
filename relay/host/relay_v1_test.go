package host

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// A relay of before v2 is the real one with its v2 paths gone.

// onlyV1 takes away what v1 relays don't have, and returns what they were asked.
func (r *testRelay) onlyV1() *callLog {
	calls := &callLog{}
	r.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		calls.note(in)
		if strings.HasPrefix(in.URL.Path, "/v2/") {
			http.NotFound(out, in)
			return
		}
		relay.ServeHTTP(out, in)
	})
	return calls
}

// callLog remembers the calls that a relay got.
type callLog struct {
	mu    sync.Mutex
	calls []string
}

func (c *callLog) note(in *http.Request) {
	c.mu.Lock()
	c.calls = append(c.calls, in.Method+" "+in.URL.Path)
	c.mu.Unlock()
}

// count counts the calls that begin with a text.
func (c *callLog) count(prefix string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if strings.HasPrefix(call, prefix) {
			n++
		}
	}
	return n
}

// change writes to the relay's store behind the relay's back.
func (r *testRelay) change(fn func(t store.Tx) error) {
	r.w.t.Helper()
	noError(r.w.t, r.store.Update(context.Background(), fn))
}

// opens reports whether a host can open a sealed envelope.
func (h *testHost) opens(wired []byte) bool {
	_, err := wire.Open(wired, h.keyring().enc)
	return err == nil
}

// body reads a message as its recipient does.
func (h *testHost) body(msg string) string {
	h.w.t.Helper()
	m, err := h.Read(context.Background(), "reviewer", msg)
	noError(h.w.t, err)
	return m.Body
}

func TestB2_MailOverAV1Relay(t *testing.T) {
	w := newWorld(t)
	w.relay.onlyV1()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	same(t, "alpha's state", alpha.relayOnly().State, "ok-v1")
	same(t, "beta's state", beta.relayOnly().State, "ok-v1")
	for _, h := range []*testHost{alpha, beta} {
		noError(t, w.relay.store.View(t.Context(), func(v store.Reader) error {
			k, err := v.EncKey(h.Key())
			same(t, h.Name()+"'s published key", k.EncPub, h.keyring().enc.Public().String())
			return err
		}))
	}

	msg := alpha.send(beta, "hello")
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "a fresh row is for the LAN: accepted", alpha.relayOnly().Accepted, 0)
	alpha.lanFailedTwice()
	r := alpha.relayOnly()
	same(t, "pushed", r.Accepted, 1)
	same(t, "failed", r.Failed, 0)
	same(t, "outbox after", alpha.outbox(), 0)

	held := w.relay.held(beta)
	if len(held) != 1 || strings.Contains(string(held[0].Wire), "the body of") || !beta.opens(held[0].Wire) || alpha.opens(held[0].Wire) {
		t.Errorf("the relay holds %v; want one envelope that only beta opens", held)
	}
	same(t, "beta pulls", beta.relayOnly().Received, 1)
	same(t, "plaintext", beta.body(msg), "the body of hello")
	for range 2 {
		r := beta.relayOnly()
		same(t, "beta pulls again", r.Received+r.Duplicates+r.Quarantined, 0)
	}
	same(t, "inbox", beta.inbox(), 1)
	same(t, "left at the relay", w.relay.queued(beta), 0)
}

func TestB3_NoSealingKeyNoMail(t *testing.T) {
	w := newWorld(t)
	w.relay.onlyV1()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.relayOnly()
	beta.relayOnly()
	w.relay.sql("DELETE FROM enc_ads", "DELETE FROM enc_ad_records")

	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	r := alpha.relayOnly()
	same(t, "pushed", r.Accepted, 0)
	same(t, "failed", r.Failed, 1)
	same(t, "at the relay", w.relay.queued(beta), 0)
	same(t, "outbox", alpha.outbox(), 1)
}

func TestB5_ASquatterOpensNothing(t *testing.T) {
	for _, tc := range []struct {
		name   string
		lie    bool // the relay itself serves the altered row
		signed bool // with mallory's signature over it
	}{
		{"the row is altered in the store", false, false},
		{"the relay serves the altered row", true, false},
		{"the relay serves mallory's own pair", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.relay.onlyV1()
			alpha, beta, mallory := w.host("alpha"), w.host("beta"), w.host("beta")
			pair(alpha, beta, false)
			alpha.relayOnly()
			beta.relayOnly()
			if !tc.lie { // a second holder of the name makes it ambiguous
				same(t, "mallory enrols as beta", mallory.relayOnly().State, "ok-v1")
			}
			hers := mallory.keyring().enc.Public()
			sig := beta.keyring().key.Sign(wire.EncKeyV1Payload("beta", beta.keyring().enc.Public()))
			if tc.signed {
				sig = mallory.keyring().key.Sign(wire.EncKeyV1Payload("beta", hers))
			}
			w.relay.change(func(tx store.Tx) error {
				return tx.PutEncKey(beta.Key(), "beta", store.EncKey{EncPub: hers.String(), Sig: sig, At: w.clock()})
			})
			if tc.lie {
				w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
					switch {
					case strings.HasPrefix(in.URL.Path, "/v2/"):
						http.NotFound(out, in)
					case in.Method == http.MethodGet && in.URL.Path == "/v1/relay/enc-key":
						answerJSON(out, map[string]any{"host": "beta", "host_pubkey": beta.Key(), "enc_pub": hers, "sig": sig})
					default:
						relay.ServeHTTP(out, in)
					}
				})
			}

			alpha.send(beta, "hello")
			for range 3 {
				alpha.lanFailedTwice()
				same(t, "pushed", alpha.relayOnly().Accepted, 0)
			}
			same(t, "outbox", alpha.outbox(), 1)
			for _, h := range []*testHost{beta, mallory} {
				for _, held := range w.relay.held(h) {
					if mallory.opens(held.Wire) {
						t.Errorf("mallory can open %s", held.Wire)
					}
				}
			}
		})
	}
}

func TestB6_AKeySignedByThePinnedHostIsEnough(t *testing.T) {
	w := newWorld(t)
	w.relay.onlyV1()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.relayOnly()
	same(t, "pinned sealing keys", ask[int64](alpha, "SELECT count(*) FROM peers WHERE enc_key IS NOT NULL"), 0)
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	same(t, "pushed", alpha.relayOnly().Accepted, 1)
	same(t, "beta pulls", beta.relayOnly().Received, 1)
	same(t, "plaintext", beta.body(msg), "the body of hello")
}

// The relay takes mail and its answer is lost: the retry, sealed anew, is no
// second message.
func TestV1AnswerLost(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	w.relay.onlyV1()
	alpha.relayOnly()
	beta.relayOnly()
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if strings.HasPrefix(in.URL.Path, "/v2/") {
			http.NotFound(out, in)
			return
		}
		if in.Method == http.MethodPost && in.URL.Path == "/v1/relay/messages" {
			answerLost(out, in, relay)
			return
		}
		relay.ServeHTTP(out, in)
	})
	same(t, "state", alpha.relayOnly().State, "unreachable")
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "at the relay", w.relay.queued(beta), 1)

	w.relay.onlyV1()
	same(t, "pushed again", alpha.relayOnly().Accepted, 1)
	same(t, "at the relay", w.relay.queued(beta), 1)
	same(t, "beta pulls", beta.relayOnly().Received, 1)
	same(t, "inbox", beta.inbox(), 1)
}

// A 200 that stored nothing is no reason to drop a row.
func TestV1KeepsWhatWasNotStored(t *testing.T) {
	for name, answer := range map[string]struct {
		status int
		body   map[string]any
	}{
		"200 with nothing stored": {200, map[string]any{"stored": 0}},
		"413 with the reason":     {413, map[string]any{"stored": 0, "error": "queue depth exceeded"}},
		"200 without stored":      {200, map[string]any{"ok": true}},
		"401":                     {401, map[string]any{"error": "bad relay hop"}},
		"503":                     {503, map[string]any{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			w.relay.onlyV1()
			alpha.relayOnly()
			beta.relayOnly()
			alpha.send(beta, "hello")
			alpha.lanFailedTwice()
			w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
				switch {
				case strings.HasPrefix(in.URL.Path, "/v2/"):
					http.NotFound(out, in)
				case in.Method == http.MethodPost && in.URL.Path == "/v1/relay/messages":
					out.Header().Set("Content-Type", "application/json")
					out.WriteHeader(answer.status)
					answerJSON(out, answer.body)
				default:
					relay.ServeHTTP(out, in)
				}
			})
			r := alpha.relayOnly()
			same(t, "pushed", r.Accepted, 0)
			same(t, "failed", r.Failed, 1)
			same(t, "outbox", alpha.outbox(), 1)
			w.relay.onlyV1()
			alpha.relayOnly() // after the 401 it enrols again
			same(t, "outbox in the end", alpha.outbox(), 0)
			same(t, "beta pulls", beta.relayOnly().Received, 1)
		})
	}
}

// A v1 relay keeps nothing over a restart: it knows nobody, and counts from 1.
func TestV1RelayStartedAgain(t *testing.T) {
	w := newWorld(t)
	w.relay.onlyV1()
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	pair(alpha, beta, false)
	gamma.pin(beta, deadAddr)
	for _, h := range []*testHost{alpha, beta, gamma} {
		h.relayOnly()
	}
	deliver := func(from *testHost, subject string) {
		t.Helper()
		from.send(beta, subject)
		from.lanFailedTwice()
		same(t, subject+" is pushed", from.relayOnly().Accepted, 1)
	}
	deliver(gamma, "stranger 1") // seq 1, into quarantine
	deliver(alpha, "one")
	r := beta.relayOnly()
	same(t, "received", r.Received, 1)
	same(t, "quarantined", r.Quarantined, 1)

	w.relay.wipe()
	same(t, "beta is not known", beta.relayOnly().State, "unavailable")
	// It enrols again and can't read yet; meanwhile as much arrives as before.
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if strings.HasPrefix(in.URL.Path, "/v2/") || in.Method == http.MethodGet && in.URL.Path == "/v1/relay/messages" {
			http.NotFound(out, in)
			return
		}
		relay.ServeHTTP(out, in)
	})
	beta.relayOnly()
	w.relay.onlyV1()
	for _, h := range []*testHost{alpha, gamma} {
		h.relayOnly()
		h.relayOnly()
	}
	deliver(gamma, "stranger 2") // seq 1 again
	deliver(alpha, "two")
	r = beta.relayOnly()
	same(t, "received", r.Received, 1)
	same(t, "quarantined", r.Quarantined, 1)
	same(t, "inbox", beta.inbox(), 2)
	same(t, "both strangers' mail is kept", ask[int64](beta, "SELECT count(DISTINCT item_id) FROM quarantine"), 2)
}

// Nothing goes the unsigned way any more once a relay's key was seen, or is
// expected: whoever makes v2 disappear gets no mail by it.
func TestV1IsNotUsedOnceAKeyIsKnown(t *testing.T) {
	for _, tc := range []struct {
		name  string
		known func(t *testing.T, h *testHost)
	}{
		{"pinned", func(t *testing.T, h *testHost) { same(t, "state", h.relayOnly().State, "ok") }},
		{"expected", func(t *testing.T, h *testHost) {
			url := h.w.relay.url
			h.w.relay.intercept(refusing(502, ""))
			set, err := h.SetRelay(t.Context(), url, h.w.relay.key.Public().Fingerprint())
			noError(t, err)
			same(t, "pinned", set.Pinned, false)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			alpha, beta := w.host("alpha"), w.host("beta")
			pair(alpha, beta, false)
			beta.relayOnly()
			tc.known(t, alpha)
			alpha.send(beta, "hello")
			alpha.lanFailedTwice()
			calls := w.relay.onlyV1()
			r := alpha.relayOnly()
			same(t, "state", r.State, "unavailable")
			same(t, "pushed", r.Accepted, 0)
			same(t, "v1 calls", calls.count("POST /v1/")+calls.count("GET /v1/"), 0)
			same(t, "outbox", alpha.outbox(), 1)
			same(t, "at the relay", w.relay.queued(beta), 0)
		})
	}
}

// Only an exact 404 means a relay of before v2.
func TestV1IsUsedAfterA404Only(t *testing.T) {
	for _, status := range []int{301, 400, 401, 403, 405, 410, 500, 501, 503} {
		w := &world{t: t}
		w.now.Store(t0.UnixMilli())
		w.relay = newTestRelay(w, openLimits())
		alpha := w.host("alpha")
		calls := &callLog{}
		w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
			calls.note(in)
			if strings.HasPrefix(in.URL.Path, "/v2/") {
				out.WriteHeader(status)
				return
			}
			relay.ServeHTTP(out, in)
		})
		same(t, http.StatusText(status), alpha.relayOnly().State, "unavailable")
		same(t, http.StatusText(status)+": v1 calls", calls.count("POST /v1/")+calls.count("GET /v1/"), 0)
	}
}

// A relay that learns v2 is pinned then; what it held is not delivered twice.
func TestV1RelayBecomesV2(t *testing.T) {
	w := newWorld(t)
	w.relay.onlyV1()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.relayOnly()
	beta.relayOnly()
	alpha.send(beta, "before")
	alpha.lanFailedTwice()
	same(t, "pushed", alpha.relayOnly().Accepted, 1)

	w.relay.intercept(nil)
	same(t, "beta's state", beta.relayOnly().State, "ok")
	same(t, "inbox", beta.inbox(), 1)
	same(t, "pin", beta.relayRow().pinSource, "first-use")
	alpha.send(beta, "after")
	alpha.lanFailedTwice()
	same(t, "pushed over v2", alpha.relayOnly().Accepted, 1)
	beta.relayOnly()
	beta.relayOnly()
	same(t, "inbox", beta.inbox(), 2)
}

// A v1 relay that takes an enrolment and then refuses is left alone for a while, too.
func TestV1RefusedAfterEnrol(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	calls := &callLog{}
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		calls.note(in)
		out.Header().Set("Date", w.clock().Format(http.TimeFormat))
		switch {
		case strings.HasPrefix(in.URL.Path, "/v2/"):
			http.NotFound(out, in)
		case in.URL.Path == "/v1/relay/enc-key":
			out.WriteHeader(http.StatusUnauthorized)
		default:
			relay.ServeHTTP(out, in)
		}
	})
	same(t, "state", alpha.relayOnly().State, "refused-after-enrol")
	alpha.relayOnly()
	same(t, "enrolments tried", calls.count("POST /v1/relay/enrol"), 1)
}
