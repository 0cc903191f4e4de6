package host

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// adOf makes the relay's answer about a sealing key, as an honest relay gives it.
func adOf(key wire.PrivateKey, host string, enc wire.EncPublicKey, iat time.Time, life time.Duration) relayclient.EncKey {
	ad, sig := wire.MakeEncAd(key, host, enc, iat, iat.Add(life))
	return relayclient.EncKey{Host: host, HostKey: key.Public().String(), EncPub: enc.String(), Ad: ad, AdSig: sig}
}

// replaced is an ad with a piece of it changed after it was signed.
func replaced(k relayclient.EncKey, old, new string) relayclient.EncKey {
	changed := bytes.Replace(k.Ad, []byte(old), []byte(new), 1)
	if bytes.Equal(changed, k.Ad) {
		panic("nothing to replace")
	}
	k.Ad = changed
	return k
}

func TestG1_CheckingAnAd(t *testing.T) {
	key, other := must(wire.GenerateKey()), must(wire.GenerateKey())
	enc, otherEnc := must(wire.GenerateEncKey()).Public(), must(wire.GenerateEncKey()).Public()
	good := adOf(key, "beta", enc, t0, wire.EncAdLifetime)
	withV1 := good
	withV1.EncPub, withV1.Sig = otherEnc.String(), "AAAA"
	unsigned, noRecord, v1Only := good, good, good
	unsigned.AdSig = ""
	noRecord.Ad, noRecord.EncPub = nil, ""
	v1Only.Ad, v1Only.AdSig, v1Only.Sig = nil, "", key.Sign(wire.EncKeyV1Payload("beta", enc))
	short := []byte(strings.Replace(string(good.Ad), enc.String(), enc.String()[:40], 1))

	for _, tc := range []struct {
		name, refused string
		k             relayclient.EncKey
	}{
		{"good", "", good},
		{"good to the last moment", "", adOf(key, "beta", enc, t0.Add(-wire.EncAdLifetime+time.Millisecond), wire.EncAdLifetime)},
		{"the name in capitals", "", adOf(key, "BETA", enc, t0, wire.EncAdLifetime)},
		{"a v1 pair beside it", "", withV1},
		{"another key", "bad signature", replaced(good, enc.String(), otherEnc.String())},
		{"a field more", "bad signature", replaced(good, `{"enc_pub"`, `{"a":1,"enc_pub"`)},
		{"31 days old", "expired", adOf(key, "beta", enc, t0.Add(-31*day), wire.EncAdLifetime)},
		{"30 days old", "expired", adOf(key, "beta", enc, t0.Add(-30*day), wire.EncAdLifetime)},
		{"from in an hour", "not yet valid", adOf(key, "beta", enc, t0.Add(time.Hour), wire.EncAdLifetime)},
		{"for a year", "lifetime over the maximum", adOf(key, "beta", enc, t0, 365*day)},
		{"of another host", "wrong peer", adOf(other, "beta", enc, t0, wire.EncAdLifetime)},
		{"of another name", "wrong peer", adOf(key, "gamma", enc, t0, wire.EncAdLifetime)},
		{"no signature", "unsigned", unsigned},
		{"no record", "unsigned", noRecord},
		{"a short key", "malformed", relayclient.EncKey{Ad: short, AdSig: key.Sign(short)}},
		{"v1 only", "unsigned: a v1 key only", v1Only},
	} {
		ad, refused := checkAd(tc.k, &peer{name: "beta", key: key.Public()}, t0)
		same(t, tc.name, refused, tc.refused)
		if refused == "" {
			same(t, tc.name+": key", ad.EncPub, enc)
			same(t, tc.name+": iat is kept", ad.IAT.IsZero(), false)
		} else {
			same(t, tc.name+": a key all the same", ad.EncPub.IsZero(), true)
		}
	}
}

// serveAd has the relay answer k about any sealing key that a host asks for.
func (r *testRelay) serveAd(k relayclient.EncKey) {
	r.on(http.MethodGet, "/v2/relay/enc-key", func(out http.ResponseWriter, _ *http.Request, _ http.Handler) {
		m := map[string]any{"host": k.Host, "host_pubkey": k.HostKey, "enc_pub": k.EncPub}
		if k.Sig != "" {
			m["sig"] = k.Sig
		}
		if k.Ad != nil {
			m["ad"] = json.RawMessage(k.Ad)
		}
		if k.AdSig != "" {
			m["ad_sig"] = k.AdSig
		}
		answerJSON(out, m)
	})
}

func TestG3_ARelayThatLiesAboutAKey(t *testing.T) {
	w := newWorld(t)
	alpha, beta, mallory := w.host("alpha"), w.host("beta"), w.host("mallory")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	key, hers := beta.keyring().key, mallory.keyring().enc.Public()
	now := w.clock()
	honest := adOf(key, "beta", beta.keyring().enc.Public(), now, wire.EncAdLifetime)
	unsigned, v1Only := honest, honest
	unsigned.AdSig = ""
	v1Only.Ad, v1Only.AdSig, v1Only.Sig = nil, "", key.Sign(wire.EncKeyV1Payload("beta", beta.keyring().enc.Public()))
	msg := alpha.send(beta, "hello")
	refused := 0
	for _, lie := range []struct {
		name, reason string
		k            relayclient.EncKey
	}{
		{"tampered", "bad signature", replaced(honest, beta.encPub(), hers.String())},
		{"expired", "expired", adOf(key, "beta", beta.keyring().enc.Public(), now.Add(-31*day), wire.EncAdLifetime)},
		{"wrong peer", "wrong peer", adOf(mallory.keyring().key, "beta", hers, now, wire.EncAdLifetime)},
		{"unsigned", "unsigned", unsigned},
		{"v1 only", "a v1 key only", v1Only},
	} {
		w.relay.serveAd(lie.k)
		alpha.lanFailedTwice()
		for range 2 {
			r := alpha.relayOnly()
			same(t, lie.name+": state", r.State, "ok")
			same(t, lie.name+": accepted", r.Accepted, 0)
			same(t, lie.name+": rejected", r.Rejected, 0)
			same(t, lie.name+": failed", r.Failed, 1)
		}
		same(t, lie.name+": outbox", alpha.outbox(), 1)
		same(t, lie.name+": bytes sealed", alpha.count("wires"), 0)
		hasPart(t, lie.name+": reason", ask[string](alpha, "SELECT ad_refused FROM peers"), lie.reason)
		hasPart(t, lie.name+": the row says", alpha.rowError(msg), lie.reason)
		refused++
		same(t, lie.name+": audited once", alpha.audited("enc_ad.refused"), refused)
		hasCheck(t, alpha.doctor(), LevelWarn, "sealing-key", "beta", lie.reason)
		hasPart(t, lie.name+": peers say", must(alpha.Peers(t.Context()))[0].AdRefused, lie.reason)
	}
	w.relay.intercept(nil)
	same(t, "honest: accepted", alpha.relayOnly().Accepted, 1)
	same(t, "honest: reason", ask[string](alpha, "SELECT ad_refused FROM peers"), "")
	noCheck(t, alpha.doctor(), LevelWarn, "sealing-key")
	for _, it := range w.relay.held(beta) {
		same(t, "beta opens it", beta.opens(it.Wire), true)
		same(t, "mallory opens it", mallory.opens(it.Wire), false)
	}
}

// An ad that beta once signed and has replaced since is good by itself: it
// must not lead back to a key that was given up.
func TestAnOldAdIsNoReplacement(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, false)
	beta.tick()
	alpha.tick()
	key := beta.keyring().key
	first, second, third := must(wire.GenerateEncKey()).Public(), must(wire.GenerateEncKey()).Public(), must(wire.GenerateEncKey()).Public()
	at := w.clock().Add(-time.Hour)
	for _, tc := range []struct {
		name    string
		k       relayclient.EncKey
		refused string
	}{
		{"the first", adOf(key, "beta", second, at, wire.EncAdLifetime), ""},
		{"another key, older", adOf(key, "beta", first, at.Add(-time.Minute), wire.EncAdLifetime), adReplay},
		{"another key, of the same moment", adOf(key, "beta", first, at, wire.EncAdLifetime), adReplay},
		{"the same key, older", adOf(key, "beta", second, at.Add(-time.Minute), wire.EncAdLifetime), ""},
		{"another key between the two", adOf(key, "beta", first, at.Add(-time.Second), wire.EncAdLifetime), adReplay},
		{"the same key, newer", adOf(key, "beta", second, at.Add(time.Minute), wire.EncAdLifetime), ""},
		{"another key, no newer than that", adOf(key, "beta", third, at.Add(time.Minute), wire.EncAdLifetime), adReplay},
		{"another key, newer", adOf(key, "beta", third, at.Add(2*time.Minute), wire.EncAdLifetime), ""},
		{"the key of before", adOf(key, "beta", second, at.Add(time.Minute), wire.EncAdLifetime), adReplay},
	} {
		w.relay.serveAd(tc.k)
		alpha.send(beta, tc.name)
		alpha.lanFailedTwice()
		r := alpha.relayOnly()
		same(t, tc.name+": refused", ask[string](alpha, "SELECT ad_refused FROM peers"), tc.refused)
		same(t, tc.name+": accepted", r.Accepted > 0, tc.refused == "")
		alpha.sql("DELETE FROM outbox")
	}
}

// The sealing key is published again once a day, both forms, and when the
// relay's copy ends within a week.
func TestAdIsPublishedAgain(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	calls := w.relay.listen(nil)
	check := func(what string, times int) {
		t.Helper()
		same(t, what+": state", alpha.relayOnly().State, "ok")
		same(t, what+": v2", calls.count("POST /v2/relay/enc-key"), times)
		same(t, what+": v1", calls.count("POST /v1/relay/enc-key"), times)
	}
	check("at first", 1)
	check("at once", 1)
	w.pass(day - time.Millisecond)
	check("within the day", 1)
	w.pass(time.Millisecond)
	check("after a day", 2)
	check("at once again", 2)

	w.pass(-3 * time.Second)
	check("the clock went back a little", 2)
	w.pass(-2 * time.Minute)
	check("and a little more", 2)

	put := func(life time.Duration) {
		ad, sig := wire.MakeEncAd(alpha.keyring().key, "alpha", alpha.keyring().enc.Public(), w.clock(), w.clock().Add(life))
		w.relay.change(func(tx store.Tx) error {
			return tx.PutEncAd(alpha.Key(), store.EncAd{Record: ad, Sig: sig, At: w.clock()})
		})
	}
	put(8 * day)
	check("8 days are left", 2)
	put(6 * day)
	check("6 days are left", 3)
	check("once", 3)
}

// A relay that has the v1 form no more is no reason to publish all the time;
// nor is one that refuses it.
func TestAdWithoutAV1Form(t *testing.T) {
	w := newWorld(t)
	alpha := w.host("alpha")
	calls := w.relay.listen(func(out http.ResponseWriter, in *http.Request) bool {
		if in.URL.Path == "/v1/relay/enc-key" {
			refusing(404, `{"error":"not found"}`)(out, in, nil)
			return true
		}
		return false
	})
	for range 5 {
		same(t, "state", alpha.relayOnly().State, "ok")
	}
	same(t, "published", calls.count("POST /v2/relay/enc-key"), 1)
}

// Whoever enrols a host's name gets none of its mail: a relay is told keys.
func TestANameSquatterGetsNoMail(t *testing.T) {
	w := newWorld(t)
	alpha, beta, mallory := w.host("alpha"), w.host("beta"), w.host("beta")
	pair(alpha, beta, false)
	same(t, "mallory enrols as beta", mallory.relayOnly().State, "ok")
	alpha.send(beta, "before beta is there")
	alpha.lanFailedTwice()
	same(t, "accepted", alpha.relayOnly().Accepted, 0)
	beta.tick()
	same(t, "accepted", alpha.relayOnly().Accepted, 1)
	same(t, "mallory's queue", w.relay.queued(mallory), 0)
	same(t, "beta receives", beta.tick().Relay.Received, 1)
}

func TestI1_TheSealingKeyOverTheLAN(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.host("alpha"), w.host("beta")
	pair(alpha, beta, true)
	pinned := func() string {
		return ask[string](alpha, "SELECT coalesce(hex(enc_key), '') FROM peers")
	}
	same(t, "pinned at first", pinned(), "")
	noError(t, alpha.RefreshEncKey(t.Context(), "beta"))
	enc := beta.keyring().enc.Public()
	same(t, "pinned", pinned(), strings.ToUpper(hexOf(enc[:])))
	same(t, "audited", alpha.audited("enc_key.pinned"), 1)
	noError(t, alpha.RefreshEncKey(t.Context(), "Beta"))
	same(t, "pinned still", pinned(), strings.ToUpper(hexOf(enc[:])))
	same(t, "audited once", alpha.audited("enc_key.pinned"), 1)
}

func TestI2_AnImpostorIsPinned(t *testing.T) {
	w := newWorld(t)
	alpha, beta, impostor := w.host("alpha"), w.host("beta"), w.host("beta")
	alpha.pin(impostor, beta.addr)
	beta.pin(alpha, alpha.addr)
	if err := alpha.RefreshEncKey(t.Context(), "beta"); err == nil {
		t.Error("got no error; want the answer refused")
	}
	same(t, "pinned", ask[int64](alpha, "SELECT count(*) FROM peers WHERE enc_key IS NOT NULL"), 0)
	same(t, "audited", alpha.audited("enc_key.rejected"), 1)
	// No mail either: it could be sealed for the wrong one.
	alpha.send(beta, "hello")
	alpha.tick()
	same(t, "outbox", alpha.outbox(), 1)
	same(t, "inbox", beta.inbox(), 0)
}
