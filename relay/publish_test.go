package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestJ1_SenderList(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	keys := make([]wire.PublicKey, 1025)
	for i := range keys {
		keys[i] = wire.PublicKey{byte(i), byte(i >> 8), 1}
	}
	put := func(by, forHost *wiretest.Host, senders []wire.PublicKey, iat time.Time) error {
		list, _ := wire.MakeSenderList(forHost.Key, senders, iat)
		return r.relay.PutSenders(t.Context(), r.caller(beta), list, by.Key.Sign(list))
	}
	one := []wire.PublicKey{alpha.Pub()}
	bad := func(what string, err error) {
		t.Helper()
		refused(t, what, err, relay.BadRequest, "BAD_LIST")
	}
	bad("iat 6 min ahead", put(beta, beta, one, t0.Add(6*time.Minute)))
	bad("iat 1 ms too far ahead", put(beta, beta, one, t0.Add(5*time.Minute+time.Millisecond)))
	bad("1,025 keys", put(beta, beta, keys, t0))
	bad("another host's list, by its own key", put(alpha, alpha, one, t0))
	bad("another host's list, signed by beta", put(beta, alpha, one, t0))
	refused(t, "signed by another key", put(alpha, beta, one, t0), relay.Unauthorized, "BAD_SIGNATURE")
	for _, doc := range []string{``, `null`, `[]`, `{}`, `{"v":1}`} {
		bad("list "+doc, r.relay.PutSenders(t.Context(), r.caller(beta), []byte(doc), beta.Key.Sign([]byte(doc))))
	}
	r.view(func(v store.Reader) error {
		listed, _, err := v.Accepts(beta.Pub(), alpha.Pub())
		same(t, "list stored by what was refused", listed, false)
		return err
	})

	ok(t, "1,024 keys", put(beta, beta, keys[:1024], t0))
	refused(t, "the same iat", put(beta, beta, one, t0), relay.Conflict, "NOT_NEWER")
	refused(t, "an older iat", put(beta, beta, one, t0.Add(-time.Millisecond)), relay.Conflict, "NOT_NEWER")
	r.pushed(alpha, mail(alpha, beta), "rejected:sender not accepted by target")
	ok(t, "a newer iat", put(beta, beta, one, t0.Add(time.Millisecond)))
	r.pushed(alpha, mail(alpha, beta), "accepted")
	ok(t, "5 min ahead", put(beta, beta, nil, t0.Add(5*time.Minute)))
	r.pushed(alpha, mail(alpha, beta), "rejected:sender not accepted by target")
}

// The store keeps whole milliseconds; a list with a finer iat is as new as
// itself all the same.
func TestSenderListFinerThanAMillisecond(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	beta := r.enrol("beta")
	list := []byte(`{"host_pubkey":"` + beta.Pub().String() + `","iat":"2026-10-02T11:59:59.1239Z","senders":[],"type":"relay-senders","v":1}`)
	sig := beta.Key.Sign(list)
	ok(t, "publish", r.relay.PutSenders(t.Context(), r.caller(beta), list, sig))
	refused(t, "the same list again", r.relay.PutSenders(t.Context(), r.caller(beta), list, sig), relay.Conflict, "NOT_NEWER")
}

func TestJ2_Allowlist(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, mallory := r.enrol("alpha"), r.enrol("beta"), r.enrol("mallory")
	for _, h := range []*wiretest.Host{alpha, mallory} { // without a list all enrolled senders pass
		r.pushed(h, mail(h, beta), "accepted")
		same(t, "v1", r.pushV1(h, wireOf(mail(h, beta))), relay.V1Result{Stored: 1})
	}
	ok(t, "publish", r.publish(beta, t0, alpha))
	before := r.queued(beta)
	r.pushed(mallory, mail(mallory, beta), "rejected:sender not accepted by target")
	r.pushed(mallory, receipt(mallory, beta, mail(beta, mallory).ID, 1), "rejected:sender not accepted by target")
	same(t, "v1", r.pushV1(mallory, wireOf(mail(mallory, beta))), relay.V1Result{Error: "sender not accepted by target"})
	same(t, "queue", r.queued(beta), before)
	r.pushed(alpha, mail(alpha, beta), "accepted")
	same(t, "v1 of a listed one", r.pushV1(alpha, wireOf(mail(alpha, beta))), relay.V1Result{Stored: 1})
	r.pushed(mallory, mail(mallory, alpha), "accepted") // the list is beta's alone

	r.restart() // and it survives
	r.pushed(mallory, mail(mallory, beta), "rejected:sender not accepted by target")
	// The target's own rules do not keep the relay's notices from it.
	it := mail(beta, alpha)
	r.pushed(beta, it, "accepted")
	r.clock.Add(14 * day)
	r.sweep()
	p := r.pull(beta, relay.PullQuery{})
	last := p.Items[len(p.Items)-1]
	same(t, "notice for beta", last.ID, "expired:"+it.ID+":"+alpha.Pub().String())
}

// D12, the relay's half: a list of exactly one key turns a stranger away.
func TestD12_StrangerIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, stranger := r.enrol("alpha"), r.enrol("beta"), r.enrol("stranger")
	ok(t, "publish", r.publish(beta, t0, alpha))
	r.pushed(stranger, mail(stranger, beta), "rejected:sender not accepted by target")
	r.view(func(v store.Reader) error {
		l, err := v.SenderList(beta.Pub())
		same(t, "senders", fmt.Sprint(l.Senders), fmt.Sprint([]wire.PublicKey{alpha.Pub()}))
		same(t, "record and signature", beta.Pub().Verify(l.Record, l.Sig), true)
		return err
	})
}

func TestG2_EncAds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	put := func(record []byte, sig string) error {
		return r.relay.PutEncAd(t.Context(), r.caller(beta), record, sig)
	}
	look := func() relay.EncKeyAnswer {
		t.Helper()
		a, err := r.relay.EncKey(t.Context(), r.caller(alpha), "", "beta")
		ok(t, "look up", err)
		return a
	}
	// Both forms, as a session publishes them.
	ad, sig := wire.MakeEncAd(beta.Key, "beta", beta.Enc.Public(), t0, t0.Add(wire.EncAdLifetime))
	ok(t, "publish the ad", put(ad, sig))
	if a := look(); a.Ad == nil || a.V1.EncPub != "" || a.AdKey != beta.Enc.Public().String() {
		t.Errorf("ad alone: got %+v; want the v2 key, no v1 pair", a)
	}
	r.encKey(beta)
	is := func(what string) {
		t.Helper()
		a := look()
		if a.Ad == nil || string(a.Ad.Record) != string(ad) || a.Ad.Sig != sig || a.HostKey != beta.Pub() || a.Host != "beta" ||
			a.V1.EncPub != beta.Enc.Public().String() || !beta.Pub().Verify(wire.EncKeyV1Payload("beta", beta.Enc.Public()), a.V1.Sig) {
			t.Errorf("%s: got %+v; want both forms as they were published", what, a)
		}
	}
	is("both")
	who := r.caller(beta)
	in, err := r.relay.Info(t.Context(), &who)
	ok(t, "info", err)
	want := relay.AdInfo{EncPub: beta.Enc.Public().String(), Exp: t0.Add(wire.EncAdLifetime), V1: beta.Enc.Public().String()}
	if in.You.Ad == nil || *in.You.Ad != want {
		t.Errorf("info: got %+v; want %+v", in.You.Ad, want)
	}

	other := wiretest.NewHost("beta").Enc.Public()
	for _, tt := range []struct {
		name, host, reason string
		key                wire.PrivateKey
		iat, exp           time.Time
	}{
		{"another host's", "alpha", "wrong peer", alpha.Key, t0, t0.Add(day)},
		{"another name", "gamma", "wrong peer", beta.Key, t0, t0.Add(day)},
		{"expired", "beta", "expired", beta.Key, t0.Add(-2 * day), t0},
		{"from the future", "beta", "not yet valid", beta.Key, t0.Add(time.Hour), t0.Add(day)},
		{"too long", "beta", "lifetime over the maximum", beta.Key, t0, t0.Add(365 * day)},
	} {
		record, sig := wire.MakeEncAd(tt.key, tt.host, other, tt.iat, tt.exp)
		contains(t, tt.name, refused(t, tt.name, put(record, sig), relay.BadRequest, "BAD_AD").Text, tt.reason)
		is("after one that is " + tt.name)
	}
	record, _ := wire.MakeEncAd(beta.Key, "beta", other, t0, t0.Add(day))
	for name, sig := range map[string]string{"altered": sig, "signed by another": alpha.Key.Sign(record)} {
		contains(t, name, refused(t, name, put(record, sig), relay.BadRequest, "BAD_AD").Text, "bad signature")
	}
	contains(t, "unsigned", refused(t, "unsigned", put(record, ""), relay.BadRequest, "BAD_AD").Text, "unsigned")
	contains(t, "no record", refused(t, "no record", put(nil, sig), relay.BadRequest, "BAD_AD").Text, "unsigned")
	contains(t, "malformed", refused(t, "malformed", put([]byte(`{"v":2}`), sig), relay.BadRequest, "BAD_AD").Text, "malformed")
	is("after all of them")

	bad := r.relay.PutEncKey(t.Context(), who, other.String(), alpha.Key.Sign(wire.EncKeyV1Payload("beta", other)))
	refused(t, "v1 key signed by another", bad, relay.Unauthorized, "BAD_SIGNATURE")
	refused(t, "v1 key that is none", r.relay.PutEncKey(t.Context(), who, "x", "y"), relay.BadRequest, "BAD_KEY")
	is("after bad v1 keys")

	r.clock.Add(wire.EncAdLifetime - time.Millisecond)
	is("1 ms before it expires")
	r.clock.Add(time.Millisecond)
	if a := look(); a.Ad != nil || a.AdKey != "" || a.V1.EncPub == "" {
		t.Errorf("expired: got %+v; want the v1 pair alone", a)
	}
	in, err = r.relay.Info(t.Context(), &who)
	ok(t, "info", err)
	same(t, "info of an expired ad", *in.You.Ad, relay.AdInfo{V1: beta.Enc.Public().String()})
}

// What a host published under an older name is not served: it is signed for
// that name.
func TestEncKeysOfARenamedHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	beta := r.enrol("beta")
	r.encKey(beta)
	ad, sig := wire.MakeEncAd(beta.Key, "beta", beta.Enc.Public(), t0, t0.Add(day))
	ok(t, "publish", r.relay.PutEncAd(t.Context(), r.caller(beta), ad, sig))
	beta.Name = "gamma"
	ok(t, "enrol under another name", r.tryEnrol(beta, ""))
	_, err := r.relay.EncKey(t.Context(), r.caller(beta), beta.Pub().String(), "")
	refused(t, "look up", err, relay.NotFound, "NOT_FOUND")
	r.encKey(beta)
	a, err := r.relay.EncKey(t.Context(), r.caller(beta), "", "gamma")
	ok(t, "look up, published again", err)
	same(t, "host", a.Host, "gamma")
}

func TestEncKeyLookups(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	r.encKey(beta)
	for _, tt := range []struct {
		name, key, host string
		found           bool
	}{
		{"by key", beta.Pub().String(), "", true},
		{"by name", "", "beta", true},
		{"by name in another case", "", "BETA", true},
		{"the key counts", beta.Pub().String(), "nobody", true},
		{"nothing published", alpha.Pub().String(), "", false},
		{"a key of nobody", wiretest.NewHost("x").Pub().String(), "", false},
		{"not a key", "x", "beta", false},
		{"a name of nobody", "", "nobody", false},
		{"not a name", "", "be ta", false},
		{"neither", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := r.relay.EncKey(t.Context(), r.caller(alpha), tt.key, tt.host)
			if !tt.found {
				refused(t, "look up", err, relay.NotFound, "NOT_FOUND")
				return
			}
			ok(t, "look up", err)
			same(t, "host key", a.HostKey, beta.Pub())
		})
	}
	r.revoke(beta)
	for _, q := range [][2]string{{beta.Pub().String(), ""}, {"", "beta"}} {
		_, err := r.relay.EncKey(t.Context(), r.caller(alpha), q[0], q[1])
		refused(t, "a revoked host", err, relay.NotFound, "NOT_FOUND")
	}
}
