package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// records are a host's signed rotations, oldest first.
func (h *testHost) records() [][]byte { return h.keyring().rotations }

// rotateAt gives a host the rotations of another as the LAN does.
func rotateAt(at, of *testHost) error {
	results, err := at.Rotate(context.Background(), of.records())
	for _, r := range results {
		if err == nil && r != "rotated" {
			err = errors.New(r)
		}
	}
	return err
}

// live reports whether a key is enrolled at the relay.
func (r *testRelay) live(key wire.PublicKey) (live bool) {
	_ = r.store.View(context.Background(), func(v store.Reader) error {
		e, err := v.Enrolment(key)
		live = err == nil && e.Live()
		return err
	})
	return live
}

// crashAt runs fn, which is cut short at a point as by a crash, and starts the host again.
func (h *testHost) crashAt(point string, fn func()) {
	h.w.t.Helper()
	crashed := false
	func() {
		defer func() { crashed = recover() == point }()
		h.at = func(p string) {
			if p == point {
				panic(point)
			}
		}
		fn()
	}()
	same(h.w.t, "crashed at "+point, crashed, true)
	h.reopen()
}

func TestG6_OwnRotationWithMailQueued(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	old := alpha.Key()
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	must(alpha.RotateKey(ctx))

	r := alpha.relayOnly()
	same(t, "state", r.State, "ok")
	same(t, "pushed", r.Accepted, 1)
	same(t, "the old key is enrolled", w.relay.live(old), false)
	same(t, "the new key is enrolled", w.relay.live(alpha.Key()), true)
	same(t, "the new key's ad", w.relay.ad(alpha.Key(), "alpha"), alpha.encPub())
	same(t, "the new key's v1 ad", w.relay.adV1(alpha.Key()), alpha.encPub())
	same(t, "the old key's ad", w.relay.ad(old, "alpha")+w.relay.adV1(old), "")

	results, err := beta.Rotate(ctx, alpha.records())
	noError(t, err)
	sameList(t, "the LAN record", results, "rotated")
	same(t, "received", beta.relayOnly().Received, 1)
	same(t, "inbox", beta.inbox(), 1)
}

// The relay may be faster than the record: the mail waits in quarantine for it.
func TestMailAheadOfTheRotation(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	must(alpha.RotateKey(ctx))
	same(t, "pushed", alpha.relayOnly().Accepted, 1)

	r := beta.relayOnly()
	same(t, "received", r.Received, 0)
	same(t, "quarantined", r.Quarantined, 1)
	noError(t, rotateAt(beta, alpha))
	same(t, "inbox", beta.inbox(), 1)
	same(t, "in quarantine", beta.count("quarantine"), 0)
	beta.relayOnly() // its receipt
	alpha.relayOnly()
	same(t, "settled", alpha.sentState(msg), "settled")
}

// What has nothing to do with the rotation stays in quarantine, and so does
// what a relay passes off as pushed by the new key.
func TestARotationReleasesItsOwnMailOnly(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta, mallory := w.host("alpha"), w.host("beta"), w.host("alpha")
	pair(alpha, beta, false)
	beta.tick()
	mallory.pin(beta, deadAddr)
	must(alpha.RotateKey(ctx))
	for _, sender := range []wire.PublicKey{mallory.Key(), alpha.Key()} {
		msg := mallory.send(beta, "as alpha")
		var env wire.Envelope
		noError(t, mallory.db.read(ctx, func(t *tx) (err error) {
			env, err = loadEnvelope(t, msg)
			return err
		}))
		forged := must(wire.Seal(env, beta.keyring().enc.Public(), mallory.keyring().key, "alpha"))
		w.relay.plant(beta, wire.KindEnvelope, msg, sender, forged)
	}
	same(t, "quarantined", beta.relayOnly().Quarantined, 2)
	noError(t, rotateAt(beta, alpha))
	same(t, "in quarantine", ask[int64](beta, "SELECT count(*) FROM quarantine WHERE reason = 'rejected:bad signature'"), 2)
	same(t, "inbox", beta.inbox(), 0)
}

// A rotation that is cut short is completed with the same key, and everybody
// learns it: mail in both directions arrives once.
func TestRotateKeyCutShort(t *testing.T) {
	for _, overLAN := range []bool{false, true} {
		for _, point := range []string{"rotate:staged", "rotate:renamed"} {
			name := point + " without a LAN"
			if overLAN {
				name = point + " on a LAN"
			}
			t.Run(name, func(t *testing.T) { rotateCutShort(t, point, overLAN) })
		}
	}
}

func rotateCutShort(t *testing.T, point string, overLAN bool) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, overLAN)
	beta.tick()
	alpha.tick()
	old := alpha.Key()
	out, in := alpha.send(beta, "there"), beta.send(alpha, "back")
	if !overLAN {
		alpha.lanFailedTwice()
		beta.lanFailedTwice()
		same(t, "beta pushes to the old key", beta.relayOnly().Accepted, 1)
	}

	alpha.crashAt(point, func() { _, _ = alpha.RotateKey(ctx) })
	next := alpha.Key()
	staged := point == "rotate:staged"
	if staged {
		same(t, "the old key until the rename", next, old)
		next = must(readKeys(filepath.Join(alpha.opts.Home, nextKeys))).key.Public()
		r, err := alpha.RotateKey(ctx)
		noError(t, err)
		same(t, "rotated", r, Rotated{Fingerprint: next.Fingerprint(), Resumed: true, Peers: 1})
	}
	same(t, "the new key", alpha.Key(), next)
	same(t, "another than the old one", next != old, true)
	same(t, "rotations", len(alpha.records()), 1)
	if _, err := os.Stat(filepath.Join(alpha.opts.Home, nextKeys)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: got %v; want it gone", nextKeys, err)
	}
	same(t, "peers to tell", ask[int64](alpha, "SELECT count(*) FROM rotation_peers"), 1)
	same(t, "audited", alpha.audited("keys.rotated"), 1)

	alpha.tick()
	same(t, "the relay knows the new key", w.relay.live(next), true)
	same(t, "and not the old one", w.relay.live(old), false)
	if overLAN {
		same(t, "beta knows the new key", ask[int64](beta, "SELECT count(*) FROM peers WHERE key = ?", next[:]), 1)
		same(t, "nobody is left to tell", ask[int64](alpha, "SELECT count(*) FROM rotation_peers"), 0)
	} else {
		noError(t, rotateAt(beta, alpha))
	}
	for range 3 {
		w.pass(2 * time.Hour)
		beta.tick()
		alpha.tick()
	}
	same(t, "beta's inbox", beta.inbox(), 1)
	same(t, "alpha's inbox", alpha.inbox(), 1)
	same(t, "alpha's mail", alpha.routed(out), "confirmed")
	same(t, "beta's mail", beta.routed(in), "confirmed")
	same(t, "in quarantine", alpha.count("quarantine")+beta.count("quarantine"), 0)
	same(t, "alerts", len(alpha.alerts("builder"))+len(beta.alerts("builder")), 0)
}

// Other keys under the name of the next ones are never taken.
func TestStagedKeysOfAnotherRotation(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	before := alpha.Key()
	path := filepath.Join(alpha.opts.Home, nextKeys)
	noError(t, must(newKeyring()).write(path))
	_, err := alpha.RotateKey(t.Context())
	if err == nil {
		t.Fatal("got no error; want it refused")
	}
	hasPart(t, "what to do", err.Error(), "move it away")
	same(t, "the key", alpha.Key(), before)
	noError(t, os.Remove(path))
	_, err = alpha.RotateKey(t.Context())
	noError(t, err)
}

// Peers and relays that were away are told every rotation, in order, even when
// the clock stood still or went back between two of them.
func TestSeveralRotationsAtOnce(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	beta.tick()
	alpha.tick()
	beta.lanUp.Store(false)
	w.relay.stop()
	keys := []wire.PublicKey{alpha.Key()}
	for _, ahead := range []time.Duration{0, 0, -time.Hour, 0, time.Millisecond, -time.Minute} {
		alpha.ahead.Store(ahead.Milliseconds())
		must(alpha.RotateKey(ctx))
		alpha.tick()
		keys = append(keys, alpha.Key())
	}
	alpha.ahead.Store(0)
	same(t, "to tell", ask[int64](alpha, "SELECT count(*) FROM rotation_peers"), 6)

	w.relay.start()
	beta.lanUp.Store(true)
	w.pass(2 * time.Hour)
	r := alpha.tick()
	same(t, "state", r.Relay.State, "ok")
	for i, key := range keys {
		same(t, "enrolled", w.relay.live(key), i == len(keys)-1)
	}
	own := alpha.Key()
	same(t, "beta's key of alpha", ask[int64](beta, "SELECT count(*) FROM peers WHERE key = ?", own[:]), 1)
	same(t, "keys retired at beta", beta.count("retired_keys"), 6)
	same(t, "left to tell", alpha.count("rotation_peers"), 0)
	same(t, "refused", ask[int64](alpha, "SELECT count(*) FROM rotations WHERE refused <> ''")+int64(alpha.audited("rotation.refused")), 0)
	alpha.send(beta, "hello")
	alpha.tick()
	same(t, "inbox", beta.inbox(), 1)
}

// A record is taken only for the peer it names, from the key that is paired, to
// a key that is nobody's.
func TestJudgingAPeersRotation(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	pair(alpha, beta, false)
	pair(alpha, gamma, false)
	k0 := beta.keyring().key
	fresh := func() wire.PrivateKey { return must(wire.GenerateKey()) }
	enc := must(wire.GenerateEncKey()).Public()
	record := func(from, to wire.PrivateKey, host string) []byte {
		return wire.MakeRotation(from, to, host, enc, w.clock())
	}
	k1, k2 := fresh(), fresh()
	first, second := record(k0, k1, "beta"), record(k1, k2, "beta")
	altered := bytes.Replace(first, []byte(enc.String()), []byte(must(wire.GenerateEncKey()).Public().String()), 1)
	var half map[string]json.RawMessage
	noError(t, json.Unmarshal(first, &half))
	half["old_sig"] = half["new_sig"]
	for _, tc := range []struct {
		name, want string
		record     []byte
	}{
		{"out of order", "rejected:not the paired key", second},
		{"of a stranger", "rejected:host not paired", record(k0, k1, "delta")},
		{"under another peer's name", "rejected:not the paired key", record(k0, k1, "gamma")},
		{"to another peer's key", "rejected:the new key is known already", record(k0, gamma.keyring().key, "beta")},
		{"to this host's own key", "rejected:the new key is known already", record(k0, alpha.keyring().key, "beta")},
		{"altered", "rejected:bad signature", altered},
		{"signed by the new key only", "rejected:bad signature", must(json.Marshal(half))},
		{"not JSON", "rejected:malformed", []byte(`{"rec"`)},
		{"good", "rotated", first},
		{"replayed", "rotated", first},
		{"the next one", "rotated", second},
		{"the first replayed after it", "rejected:not the paired key", first},
		{"back to a retired key", "rejected:the new key is known already", record(k2, k0, "beta")},
		{"the name in capitals, from a clock that is ahead", "rotated", wire.MakeRotation(k2, fresh(), "BETA", enc, w.clock().Add(time.Hour))},
	} {
		results, err := alpha.Rotate(ctx, [][]byte{tc.record})
		noError(t, err)
		sameList(t, tc.name, results, tc.want)
	}
	same(t, "audited", alpha.audited("peer.rotated"), 3)
	same(t, "retired", alpha.count("retired_keys"), 3)
	same(t, "the sealing key", ask[int64](alpha, "SELECT count(*) FROM peers WHERE fold = 'beta' AND enc_key = ?", enc[:]), 1)
}

// Mail that was on its way while the keys changed still arrives: signed with
// the old key, or sealed for it.
func TestMailInFlightAtARotation(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	w.relay.on(http.MethodGet, itemsPath, refusing(503, "")) // nobody receives yet
	signedBefore := alpha.sendByRelay(beta, "signed with the old key")
	sealedBefore := beta.sendByRelay(alpha, "sealed for the old key")
	w.relay.intercept(nil)
	old := alpha.keyring()

	must(alpha.RotateKey(ctx))
	noError(t, rotateAt(beta, alpha))
	held := w.relay.held(beta)
	if len(held) != 1 || wire.VerifyEnvelope(held[0].Wire, old.key.Public()) != nil {
		t.Errorf("the relay holds %v; want one signed with the old key", held)
	}
	same(t, "beta receives", beta.relayOnly().Received, 1)
	same(t, "alpha receives", alpha.relayOnly().Received, 1)
	same(t, "beta reads it", beta.body(signedBefore), "the body of signed with the old key")
	same(t, "alpha reads it", alpha.body(sealedBefore), "the body of sealed for the old key")
	for range 2 {
		alpha.relayOnly()
		beta.relayOnly()
	}
	same(t, "settled", alpha.sentState(signedBefore), "settled")
	same(t, "settled", beta.sentState(sealedBefore), "settled")
}

// The relay takes a rotation and its answer is lost: it says 404 from then on,
// and the receive position is one of before all the same.
func TestRotationAnswerLost(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	alpha.tick()
	beta.tick()
	for _, subject := range []string{"one", "two"} { // seqs 1 and 2 of the old key
		beta.sendByRelay(alpha, subject)
		alpha.relayOnly()
	}
	same(t, "position", alpha.relayRow().position, 2)
	w.relay.on(http.MethodPost, "/v2/relay/rotate", answerLost)
	must(alpha.RotateKey(t.Context()))
	same(t, "state", alpha.relayOnly().State, "unreachable")
	noError(t, rotateAt(beta, alpha))
	w.relay.intercept(nil)
	for _, subject := range []string{"three", "four"} { // seqs 1 and 2 of the new key
		beta.sendByRelay(alpha, subject)
	}
	alpha.relayOnly()
	same(t, "inbox", alpha.inbox(), 4)
	same(t, "not told yet", ask[int64](alpha, "SELECT count(*) FROM rotations WHERE relay = ''"), 0)
}

// A relay that refuses a rotation is used all the same, and the refusal is kept.
func TestRelayRefusesARotation(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	alpha.relayOnly()
	w.relay.on(http.MethodPost, "/v2/relay/rotate", refusing(409, `{"error":"the new key is revoked here","code":"REVOKED"}`))
	must(alpha.RotateKey(t.Context()))
	for range 3 {
		same(t, "state", alpha.relayOnly().State, "ok")
	}
	same(t, "audited once", alpha.audited("relay.rotation_refused"), 1)
	hasPart(t, "why", ask[string](alpha, "SELECT refused FROM rotations"), "revoked")
	w.relay.intercept(nil)
	same(t, "state", alpha.relayOnly().State, "ok")
	same(t, "refused still", ask[string](alpha, "SELECT refused FROM rotations"), "")
}

// A peer that rotated is reached under its new key: what was sealed for the old
// one is sealed again, once, and what the relay held has moved.
func TestPeerRotatesWhileMailWaits(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	held := alpha.sendByRelay(beta, "held by the relay")
	// This one's push is lost before it gets there.
	w.relay.on(http.MethodPost, itemsPath, requestLost)
	waiting := alpha.send(beta, "waiting here")
	alpha.lanFailedTwice()
	alpha.relayOnly()
	w.relay.intercept(nil)
	sealed := ask[string](alpha, "SELECT hash FROM wires WHERE msg = ?", waiting)

	must(beta.RotateKey(ctx))
	beta.relayOnly()
	same(t, "to the old key", alpha.relayOnly().Rejected, 1)
	same(t, "outbox", alpha.outbox(), 1)
	noError(t, rotateAt(alpha, beta))
	same(t, "to the new key", alpha.relayOnly().Accepted, 1)
	if now := ask[string](alpha, "SELECT hash FROM wires WHERE msg = ?", waiting); now == sealed {
		t.Errorf("wire hash: got %s; want another one than for the old key", now)
	}
	beta.relayOnly()
	same(t, "inbox", beta.inbox(), 2)
	beta.relayOnly()
	alpha.relayOnly()
	same(t, "settled", alpha.sentState(held)+" "+alpha.sentState(waiting), "settled settled")
}

// A running host takes over the keys that a command rotated beside it.
func TestRotatedByAnotherProcess(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	beta.tick()
	alpha.tick()
	other := must(Open(t.Context(), alpha.opts))
	must(other.RotateKey(t.Context()))
	next := other.Key()
	noError(t, other.Close())
	alpha.tick()
	same(t, "the key", alpha.Key(), next)
	same(t, "the relay's", w.relay.live(next), true)
	same(t, "beta's", ask[int64](beta, "SELECT count(*) FROM peers WHERE key = ?", next[:]), 1)
	alpha.send(beta, "hello")
	same(t, "sent", alpha.tick().LAN.Sent, 1)
}

// A peer that can't be reached is told later, with the outbox's backoff.
func TestTellingARotationLater(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	beta.tick()
	alpha.tick()
	beta.lanUp.Store(false)
	must(alpha.RotateKey(t.Context()))
	wait := 5 * time.Second
	for range 3 {
		before := ask[int64](alpha, "SELECT attempts FROM rotation_peers")
		alpha.tick()
		same(t, "attempts", ask[int64](alpha, "SELECT attempts FROM rotation_peers"), before+1)
		w.pass(wait - time.Millisecond)
		alpha.tick()
		same(t, "attempts before "+wait.String(), ask[int64](alpha, "SELECT attempts FROM rotation_peers"), before+1)
		w.pass(time.Millisecond)
		wait *= 2
	}
	beta.lanUp.Store(true)
	alpha.tick()
	same(t, "left to tell", alpha.count("rotation_peers"), 0)
}

// A relay that lost its store has lost the rotations as well: it refuses a
// receipt that the key of before signed. The receipt is signed again.
func TestReceiptOfTheOldKeyAfterTheRelayLostTheRotation(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	alpha.tick()
	same(t, "received", beta.relayOnly().Received, 1)
	w.relay.wipe()
	rotated, err := beta.RotateKey(t.Context())
	noError(t, err)
	same(t, "peers to tell", rotated.Peers, 1)
	record := ask[[]byte](beta, "SELECT record FROM rotations")
	results, err := alpha.Rotate(t.Context(), [][]byte{record})
	noError(t, err)
	same(t, "the record over the LAN", results[0], "rotated")
	for range 6 {
		w.pass(time.Minute)
		alpha.tick()
		beta.tick()
	}
	same(t, "state", alpha.sentState(msg), "settled")
	same(t, "inbox", beta.inbox(), 1)
	same(t, "owed", ask[int64](beta, "SELECT count(*) FROM receipts_out"), 0)
}

// A pairing that was signed with keys that another process has just rotated
// away is put right: the new peer is told.
func TestPairingDuringARotation(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	old := beta.Key()
	_, err := beta.RotateKey(t.Context())
	noError(t, err)
	pair(alpha, beta, true)
	alpha.sql("UPDATE peers SET key = ?", old[:]) // what a daemon that had not noticed would have said
	w.pass(time.Second)
	beta.tick()
	same(t, "the key alpha knows", must(alpha.Peer(t.Context(), "beta")).Key, beta.Key())
}

// A relay that always says it has no sealing key of ours costs a publication a minute.
func TestRelayThatDeniesTheAdIsNotFlooded(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	alpha.tick()
	w.relay.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		if in.URL.Path != "/v2/relay/info" {
			relay.ServeHTTP(out, in)
			return
		}
		rec := httptest.NewRecorder()
		relay.ServeHTTP(rec, in)
		var m map[string]any
		noError(t, json.Unmarshal(rec.Body.Bytes(), &m))
		if you, ok := m["you"].(map[string]any); ok {
			you["enc_ad"] = nil
		}
		noError(t, json.NewEncoder(out).Encode(m))
	})
	for range 31 {
		w.pass(2 * time.Second)
		alpha.tick()
	}
	same(t, "audit entries in a minute", alpha.audited("relay.enc_ad_missing"), 2)
}

// Two calls at once rotate one after the other: no key that was told of is lost.
func TestRotationsDoNotFork(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	other := must(Open(context.Background(), alpha.opts)) // as another process does
	defer other.Close()
	done := make(chan error, 6)
	for i := range 6 {
		h := []*Host{alpha.Host, other}[i%2]
		go func() {
			_, err := h.RotateKey(context.Background())
			done <- err
		}()
	}
	for range 6 {
		noError(t, <-done)
	}
	alpha.tick()
	same(t, "rotations", len(alpha.keyring().rotations), 6)
	same(t, "the key beta knows", must(beta.Peer(context.Background(), "alpha")).Key, alpha.Key())
}
