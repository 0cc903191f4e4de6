package host

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// listen notes every call of the relay, which answers with the world's time,
// and lets fn answer those it returns true for.
func (r *testRelay) listen(fn func(out http.ResponseWriter, in *http.Request) bool) *callLog {
	calls := &callLog{}
	r.intercept(func(out http.ResponseWriter, in *http.Request, relay http.Handler) {
		calls.note(in)
		out.Header().Set("Date", r.w.clock().Format(http.TimeFormat))
		if fn == nil || !fn(out, in) {
			relay.ServeHTTP(out, in)
		}
	})
	return calls
}

// ad is what the relay holds of a host's sealing key, "" for nothing.
func (r *testRelay) ad(key wire.PublicKey, host string) string {
	enc := ""
	_ = r.store.View(r.w.t.Context(), func(v store.Reader) error {
		ad, err := v.EncAd(key)
		if err == nil {
			enc = must(wire.ParseEncAd(ad.Record, ad.Sig, host, key, r.w.clock())).EncPub.String()
		}
		return err
	})
	return enc
}

// adV1 is the v1 sealing key that the relay holds of a host.
func (r *testRelay) adV1(key wire.PublicKey) string {
	var k store.EncKey
	_ = r.store.View(r.w.t.Context(), func(v store.Reader) (err error) {
		k, err = v.EncKey(key)
		return err
	})
	return k.EncPub
}

// encPub is a host's own sealing key.
func (h *testHost) encPub() string { return h.keyring().enc.Public().String() }

func TestG4_TheRelayLostEverything(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	msg := alpha.sendByRelay(beta, "hello")
	w.relay.wipe()
	calls := w.relay.listen(nil)

	same(t, "beta's state", beta.relayOnly().State, "ok")
	same(t, "alpha's state", alpha.relayOnly().State, "ok")
	same(t, "challenges", calls.count("POST /v1/relay/challenge"), 2)
	same(t, "enrolments", calls.count("POST /v1/relay/enrol"), 2)
	for _, h := range []*testHost{alpha, beta} {
		same(t, h.Name()+"'s ad", w.relay.ad(h.Key(), h.Name()), h.encPub())
		same(t, h.Name()+"'s enrolments", h.audited("relay.enrolled"), 2)
	}
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "state of the row", alpha.sentState(msg), "repush")

	same(t, "pushed again", alpha.relayOnly().Accepted, 1)
	held := w.relay.held(beta)
	if len(held) != 1 || strings.Contains(string(held[0].Wire), "the body of") || !beta.opens(held[0].Wire) || alpha.opens(held[0].Wire) {
		t.Errorf("the relay holds %v; want one envelope that only beta opens", held)
	}
	same(t, "received", beta.tick().Relay.Received, 1)
	beta.tick()
	same(t, "inbox", beta.inbox(), 1)
	same(t, "body", beta.body(msg), "the body of hello")
	alpha.tick()
	same(t, "settled", alpha.sentState(msg), "settled")
}

func TestG5_EnrolmentLostAndKeyStale(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	key := alpha.Key()
	epoch := w.relay.epoch()
	var gone []string
	for _, from := range []string{"enrolments WHERE host_pubkey", "enc_ads WHERE host_pubkey", "enc_ad_records WHERE host_pubkey",
		"sender_lists WHERE target_pubkey", "listed_senders WHERE target_pubkey"} {
		gone = append(gone, "DELETE FROM "+from+" = x'"+hexOf(key[:])+"'")
	}
	w.relay.sql(append(gone, "UPDATE totals SET value = value - 1 WHERE name = 'enrolments'")...)
	same(t, "epoch", w.relay.epoch(), epoch)
	stale := must(wire.GenerateEncKey()).Public()
	w.relay.change(func(tx store.Tx) error {
		return tx.PutEncKey(beta.Key(), "beta", store.EncKey{
			EncPub: stale.String(), Sig: beta.keyring().key.Sign(wire.EncKeyV1Payload("beta", stale)), At: w.clock(),
		})
	})

	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	r := alpha.relayOnly()
	same(t, "alpha's state", r.State, "ok")
	same(t, "pushed in the same pass", r.Accepted, 1)
	same(t, "enrolment lost", alpha.audited("relay.enrolment_lost"), 1)
	same(t, "alpha's ad", w.relay.ad(alpha.Key(), "alpha"), alpha.encPub())
	same(t, "alpha's ad missing", alpha.audited("relay.enc_ad_missing"), 0)

	same(t, "received", beta.relayOnly().Received, 1)
	same(t, "beta's key was stale", beta.audited("relay.enc_ad_missing"), 1)
	same(t, "beta's ad", w.relay.ad(beta.Key(), "beta"), beta.encPub())
	same(t, "beta's v1 key", w.relay.adV1(beta.Key()), beta.encPub())
	beta.relayOnly()
	same(t, "once", beta.audited("relay.enc_ad_missing"), 1)
	same(t, "beta was not forgotten", beta.audited("relay.enrolment_lost"), 0)
	// Alpha's list is back, too: only beta may push to it.
	listed, named := w.relay.accepts(alpha, beta)
	same(t, "alpha published a list", listed, true)
	same(t, "beta is on it", named, true)
}

func TestG7_OwnKeyRevoked(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	w.relay.change(func(tx store.Tx) error {
		_, err := tx.Revoke(alpha.Key(), w.clock())
		return err
	})
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	calls := w.relay.listen(nil)
	r := alpha.relayOnly()
	same(t, "state", r.State, "enrol-failed")
	hasPart(t, "detail", r.Detail, "403")
	hasPart(t, "detail", r.Detail, "revoked")
	same(t, "v1 mail", calls.count("POST /v1/relay/messages")+calls.count("GET /v1/relay/messages"), 0)
	same(t, "pushes", calls.count("POST /v2/relay/items"), 0)
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "at the relay", w.relay.queued(beta), 0)
	d := alpha.doctor()
	hasCheck(t, d, LevelWarn, "relay", "not enrolled", "403", "revoked")
	hasCheck(t, d, LevelFail, "relay-mail", "1 message waits")
}

func TestG9_PinningTheRelaysKey(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	url, right := w.relay.url, w.relay.key.Public().Fingerprint()
	wrong := must(wire.GenerateKey()).Public()

	for _, junk := range []string{"junk", "0123", strings.Repeat("0", 15), strings.Repeat("0", 17), "zzzz-zzzz-zzzz-zzzz", right + "0"} {
		if _, err := alpha.SetRelay(ctx, url, junk); err != ErrBadRelayKey {
			t.Errorf("%q: got %v; want ErrBadRelayKey", junk, err)
		}
	}
	for _, key := range []string{wrong.Fingerprint(), wrong.String()} {
		_, err := alpha.SetRelay(ctx, url, key)
		if _, ok := err.(*KeyMismatchError); !ok {
			t.Errorf("%q: got %v; want a *KeyMismatchError", key, err)
		}
	}
	same(t, "pinned by what was refused", alpha.relayRow().key.IsZero(), true)
	same(t, "expected by what was refused", alpha.relayRow().expected, "")
	same(t, "configured by what was refused", must(readConfig(alpha.opts.Home)).Relay, "")

	set, err := alpha.SetRelay(ctx, url, strings.ToUpper(strings.ReplaceAll(right, "-", "")))
	noError(t, err)
	same(t, "set", set, RelaySet{URL: url, Fingerprint: right, Pinned: true, Source: "owner", Reachable: true})
	same(t, "pinned", alpha.relayRow().key, w.relay.key.Public())
	same(t, "state", alpha.relayOnly().State, "ok")
	same(t, "enrolments", alpha.audited("relay.enrolled"), 1)
	hasCheck(t, alpha.doctor(), LevelOK, "relay", right, "pinned by the owner")

	// The relay has another key now.
	old := w.relay.key.Public()
	w.relay.stop()
	w.relay.key, w.relay.dir = must(wire.GenerateKey()), t.TempDir()
	w.relay.start()
	calls := w.relay.listen(nil)
	alpha.send(beta, "hello")
	alpha.lanFailedTwice()
	for range 3 {
		same(t, "state with another key", alpha.relayOnly().State, "key-mismatch")
	}
	same(t, "noticed", alpha.audited("relay.key_changed"), 1)
	same(t, "calls but info", calls.count("")-calls.count("GET /v2/relay/info"), 0)
	same(t, "pinned still", alpha.relayRow().key, old)
	confirm := "agentmbx relay set " + url + " --key " + w.relay.key.Public().Fingerprint()
	hasCheck(t, alpha.doctor(), LevelFail, "relay", confirm)
	if _, err := alpha.SetRelay(ctx, url, ""); err == nil {
		t.Error("bare set: got no error; want it refused")
	} else {
		hasPart(t, "bare set", err.Error(), confirm)
	}
	same(t, "pinned after the bare set", alpha.relayRow().key, old)

	set, err = alpha.SetRelay(ctx, url, w.relay.key.Public().String())
	noError(t, err)
	same(t, "source", set.Source, "owner")
	same(t, "confirmed", alpha.audited("relay.key_confirmed"), 1)
	same(t, "state", alpha.relayOnly().State, "ok")
	same(t, "enrolments", alpha.audited("relay.enrolled"), 2)
	same(t, "outbox", alpha.outbox(), 1) // beta is not there yet
	noCheck(t, alpha.doctor(), LevelFail, "relay")
}

// A relay that shows the pinned key again is used again, without anybody's word.
func TestTheOldKeyIsBack(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	alpha.relayOnly()
	dir, key := w.relay.dir, w.relay.key
	w.relay.stop()
	w.relay.key, w.relay.dir = must(wire.GenerateKey()), t.TempDir()
	w.relay.start()
	same(t, "state", alpha.relayOnly().State, "key-mismatch")
	w.relay.stop()
	w.relay.key, w.relay.dir = key, dir
	w.relay.start()
	same(t, "state", alpha.relayOnly().State, "ok")
	same(t, "the other key is forgotten", alpha.relayRow().served, "")
	same(t, "enrolments", alpha.audited("relay.enrolled"), 1)
}

func TestG10_ExpectingAKeyUnseen(t *testing.T) {
	w := newWorld(t)
	url := w.relay.url
	right, wrong := w.relay.key.Public().Fingerprint(), must(wire.GenerateKey()).Public().Fingerprint()
	alpha, beta := w.host("alpha"), w.host("beta")
	w.relay.stop()
	for h, key := range map[*testHost]string{alpha: wrong, beta: right} {
		set, err := h.SetRelay(t.Context(), url, key)
		noError(t, err)
		same(t, "set", set, RelaySet{URL: url, Fingerprint: key})
		same(t, "state", h.relayOnly().State, "unreachable")
	}
	w.relay.start()
	for range 2 {
		same(t, "alpha's state", alpha.relayOnly().State, "key-mismatch")
	}
	same(t, "alpha pinned", alpha.relayRow().key.IsZero(), true)
	same(t, "alpha enrolled", alpha.audited("relay.enrolled"), 0)
	hasCheck(t, alpha.doctor(), LevelFail, "relay", wrong, right)
	same(t, "beta's state", beta.relayOnly().State, "ok")
	same(t, "beta's source", beta.relayRow().pinSource, "owner")
	same(t, "beta expects", beta.relayRow().expected, "")
}

// A refused enrolment is tried again after 60 s, twice that, and so on up to an
// hour; only a session that opens starts the count anew.
func TestEnrolmentBackoff(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	refuse := func(out http.ResponseWriter, in *http.Request) bool {
		if in.URL.Path == "/v1/relay/enrol" {
			out.WriteHeader(http.StatusForbidden)
			answerJSON(out, map[string]string{"error": "not now", "code": "DENIED"})
			return true
		}
		return false
	}
	tries := func(calls *callLog, want ...time.Duration) {
		t.Helper()
		for _, wait := range want {
			before := calls.count("POST /v1/relay/enrol")
			same(t, "state", alpha.relayOnly().State, "enrol-failed")
			same(t, "tries", calls.count("POST /v1/relay/enrol"), before+1)
			all := calls.count("")
			w.pass(wait - time.Millisecond)
			same(t, "state meanwhile", alpha.relayOnly().State, "enrol-failed")
			same(t, "calls before "+wait.String(), calls.count(""), all)
			w.pass(time.Millisecond)
		}
	}
	calls := w.relay.listen(refuse)
	tries(calls, time.Minute, 2*time.Minute, 4*time.Minute)

	// It can't be reached for once: the next refusal goes on where it was.
	w.relay.listen(func(out http.ResponseWriter, _ *http.Request) bool { hangUp(out); return true })
	same(t, "state", alpha.relayOnly().State, "unreachable")
	same(t, "is asked again at once", alpha.relayOnly().State, "unreachable")
	calls = w.relay.listen(refuse)
	tries(calls, 8*time.Minute, 16*time.Minute, 32*time.Minute, time.Hour, time.Hour)

	w.relay.listen(nil)
	same(t, "state", alpha.relayOnly().State, "ok")
	w.relay.wipe()
	calls = w.relay.listen(refuse)
	tries(calls, time.Minute, 2*time.Minute)
}

func TestClockSkew(t *testing.T) {
	w := newWorld(t)
	for _, ahead := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		alpha := w.host("alpha" + ahead.String()[:1])
		alpha.ahead.Store(ahead.Milliseconds())
		calls := w.relay.listen(nil)
		r := alpha.relayOnly()
		same(t, "state", r.State, "clock-skew")
		hasPart(t, "detail", r.Detail, "10m0s")
		all := calls.count("")
		alpha.relayOnly()
		same(t, "calls while it is left alone", calls.count(""), all)

		// With the clock set right it works within the minute.
		alpha.ahead.Store(0)
		w.pass(time.Minute)
		if ahead < 0 { // its own clock jumped over the wait
			w.pass(-time.Minute)
		}
		same(t, "state with the right clock", alpha.relayOnly().State, "ok")
	}
}

func TestRefusedAfterEnrol(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	calls := w.relay.listen(func(out http.ResponseWriter, in *http.Request) bool {
		if in.URL.Path == "/v2/relay/enc-key" {
			refusing(401, `{"error":"bad relay hop"}`)(out, in, nil)
			return true
		}
		return false
	})
	same(t, "state", alpha.relayOnly().State, "refused-after-enrol")
	same(t, "enrolment kept", alpha.relayRow().enrolled, "")
	all := calls.count("")
	w.pass(59 * time.Second)
	alpha.relayOnly()
	same(t, "calls within a minute", calls.count(""), all)
	w.pass(time.Second)
	// It is enrolled there: the signed call is refused for no reason it could know.
	same(t, "state after a minute", alpha.relayOnly().State, "unavailable")
	w.relay.listen(nil)
	same(t, "state in the end", alpha.relayOnly().State, "ok")
}

// A 401 on any signed call makes the host enrol again, in the next pass, when
// the relay really does not know it.
func TestA401ForgetsTheEnrolment(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	alpha.relayOnly()
	w.relay.listen(func(out http.ResponseWriter, in *http.Request) bool {
		if in.Method == http.MethodGet && in.URL.Path == "/v2/relay/items" {
			refusing(401, `{"error":"bad relay hop"}`)(out, in, nil)
			return true
		}
		return false
	})
	same(t, "state", alpha.relayOnly().State, "unavailable")
	same(t, "enrolled", alpha.relayRow().enrolled, "")
	calls := w.relay.listen(nil)
	same(t, "state", alpha.relayOnly().State, "ok")
	same(t, "a known host enrols", calls.count("POST /v1/relay/enrol"), 0)
	same(t, "but publishes again", calls.count("POST /v2/relay/enc-key"), 1)
}

// accepts asks the relay whether a host published a list and names another in it.
func (r *testRelay) accepts(target, sender *testHost) (listed, named bool) {
	r.w.t.Helper()
	noError(r.w.t, r.store.View(r.w.t.Context(), func(v store.Reader) (err error) {
		listed, named, err = v.Accepts(target.Key(), sender.Key())
		return err
	}))
	return listed, named
}

// The relay is told whom a host takes mail from: its peers, whenever they
// change; a host that never had one takes mail from everybody.
func TestSenderListFollowsThePeers(t *testing.T) {
	w := newWorld(t)
	alpha, beta, gamma := w.host("alpha"), w.host("beta"), w.host("gamma")
	calls := w.relay.listen(nil)
	published := func() int { return calls.count("POST /v2/relay/senders") }
	check := func(what string, lists int, listed, takesAlpha, takesGamma bool) {
		t.Helper()
		beta.relayOnly()
		beta.relayOnly()
		same(t, what+": published", published(), lists)
		got, named := w.relay.accepts(beta, alpha)
		same(t, what+": there is a list", got, listed)
		same(t, what+": alpha", named, takesAlpha)
		_, named = w.relay.accepts(beta, gamma)
		same(t, what+": gamma", named, takesGamma)
	}
	check("no peers", 0, false, false, false)
	beta.pin(alpha, deadAddr)
	check("alpha", 1, true, true, false)
	beta.pin(gamma, deadAddr)
	check("alpha and gamma", 2, true, true, true)
	beta.pin(gamma, "127.0.0.1:2") // the same peers
	check("another address", 2, true, true, true)
	for _, name := range []string{"alpha", "gamma"} {
		must(beta.RemovePeer(t.Context(), name))
	}
	check("nobody any more", 3, true, false, false)

	// What was a peer's is refused now, and what beta held in stock is no use.
	gamma.pin(beta, deadAddr)
	gamma.send(beta, "hello")
	gamma.lanFailedTwice()
	same(t, "rejected", gamma.relayOnly().Rejected, 1)
	same(t, "at the relay", w.relay.queued(beta), 0)
}

// A list of this host that is newer than its clock, or than its memory, is gone
// past in a few passes.
func TestSenderListNewerThanOurs(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	newer := w.clock().Add(time.Minute)
	list, sig := wire.MakeSenderList(beta.keyring().key, nil, newer)
	w.relay.change(func(tx store.Tx) error {
		return tx.PutSenderList(store.SenderList{Target: beta.Key(), IAT: newer, Record: list, Sig: sig})
	})
	beta.pin(w.host("gamma"), deadAddr)
	for range 10 {
		same(t, "state", beta.relayOnly().State, "ok")
	}
	_, named := w.relay.accepts(beta, alpha)
	same(t, "alpha is listed", named, true)
}

// An owner's word that comes while a session is being opened is not overwritten
// by a first use.
func TestOwnerIsHeardWhileASessionOpens(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	snapshot := alpha.relayRow()
	noError(t, alpha.db.write(t.Context(), func(t *tx) error { return makeRelay(t, w.relay.url) }))
	alpha.sql("UPDATE relays SET expected = '0000-0000-0000-0000'")
	err := alpha.checkRelayKey(t.Context(), snapshot, w.relay.key.Public())
	hasPart(t, "the session", fmt.Sprint(err), relayMismatch)
	same(t, "pinned", ask[int64](alpha, "SELECT count(*) FROM relays WHERE key IS NOT NULL"), 0)
}
