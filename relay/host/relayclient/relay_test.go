package relayclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// The tests of this file call a real relay.

func TestInfo(t *testing.T) {
	r := newRig(t)
	in := must(r.client.Info(t.Context(), nil))
	same(t, "relay key", in.RelayKey, r.relay.Key())
	same(t, "version", in.Version, "test")
	same(t, "you of nobody", in.You, nil)
	same(t, "limits", in.Limits, relayclient.Limits{
		MaxItemBytes: 512 << 10, MaxBatch: 200, MaxPull: 500, MaxPullBytes: 8 << 20, MaxTargets: 64, RetentionDays: 14, MaxWaitS: 25,
	})

	stranger := caller(wiretest.NewHost("stranger"))
	same(t, "you of a stranger", must(r.client.Info(t.Context(), &stranger)).You, nil)

	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	must(r.client.Push(t.Context(), caller(alpha), []relayclient.Item{mail(alpha, beta)}))
	who := caller(beta)
	you := must(r.client.Info(t.Context(), &who)).You
	same(t, "you", *you, relayclient.You{Host: "beta", Key: beta.Pub(), HeadSeq: 1})

	sig := beta.Key.Sign(wire.EncKeyV1Payload("beta", beta.Enc.Public()))
	if err := r.client.PublishEncKeyV1(t.Context(), who, beta.Enc.Public(), sig); err != nil {
		t.Fatal(err)
	}
	same(t, "v1 key", *must(r.client.Info(t.Context(), &who)).You.Ad, relayclient.YouAd{V1: beta.Enc.Public().String()})
	exp := t0.Add(wire.EncAdLifetime)
	ad, adSig := wire.MakeEncAd(beta.Key, "beta", beta.Enc.Public(), t0, exp)
	if err := r.client.PublishEncAd(t.Context(), who, ad, adSig); err != nil {
		t.Fatal(err)
	}
	same(t, "both keys", *must(r.client.Info(t.Context(), &who)).You.Ad,
		relayclient.YouAd{EncPub: beta.Enc.Public().String(), Exp: exp, V1: beta.Enc.Public().String()})

	r.ahead.Store((6 * time.Minute).Milliseconds())
	same(t, "you of a clock that is off", must(r.client.Info(t.Context(), &who)).You, nil)
}

func TestInfoBoundsLimits(t *testing.T) {
	r := newRig(t, func(l *relay.Limits) {
		l.MaxWaitS, l.MaxPullBytes, l.RetentionDays, l.MaxBatch = 120, 64<<20, 3650, 10_000
	})
	l := must(r.client.Info(t.Context(), nil)).Limits
	same(t, "limits", fmt.Sprint(l.MaxWaitS, l.RetentionDays, l.MaxBatch, l.MaxPullBytes, l.MaxPull), "25 3650 10000 67108864 24")
}

func TestEnrolRefusals(t *testing.T) {
	r := newRig(t)
	alpha := wiretest.NewHost("alpha")
	ctx := t.Context()
	err := r.client.Enrol(ctx, caller(alpha), "", "no such challenge", nil)
	e := status(t, "no challenge", err, 401, "BAD_CHALLENGE")
	same(t, "its reason", e.Reason != "", true)
	if e.Date.IsZero() || time.Since(e.Date).Abs() > time.Hour {
		t.Errorf("date: got %v; want about now", e.Date)
	}
	c := must(r.client.Challenge(ctx, caller(alpha)))
	if err := r.client.Enrol(ctx, caller(alpha), "not a fingerprint!", c, nil); err == nil {
		t.Error("a bad owner was enrolled")
	}
	_, err = r.client.Challenge(ctx, relayclient.Caller{Host: "not a name", Key: alpha.Key})
	status(t, "bad name", err, 400, "BAD_HOST")

	must(r.client.Challenge(ctx, caller(alpha)))
	alpha = r.enrol("alpha")
	must(r.relay.RevokeHost(ctx, alpha.Pub(), relay.Deed{Actor: "test"}))
	c, err = r.client.Challenge(ctx, caller(alpha))
	if err == nil {
		err = r.client.Enrol(ctx, caller(alpha), "", c, nil)
	}
	status(t, "revoked", err, 403, "REVOKED")
	_, err = r.client.Pull(ctx, caller(alpha), 0, 10, "", 0)
	e = status(t, "a pull of a revoked key", err, 401, "")
	same(t, "its reason", e.Reason, "bad relay hop")
	same(t, "the error", err.Error(), "pull: relay answered 401: bad relay hop")
}

func TestMailThroughARelay(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	in := must(r.client.Info(ctx, nil))

	rid, rw := alpha.Receipt("01HZZZZZZZZZZZZZZZZZZZZZZZ", "read", 1)
	items := []relayclient.Item{
		mail(alpha, beta),
		{Kind: "letter", ID: "x\"\u2028\U0001F600", Target: beta.Pub(), Wire: []byte("{}")},
		{Kind: wire.KindReceipt, ID: rid, Target: beta.Pub(), Wire: rw},
	}
	results := must(r.client.Push(ctx, caller(alpha), items))
	same(t, "results", len(results), 3)
	same(t, "a bad kind", fmt.Sprint(results[1]), fmt.Sprint(relayclient.PushResult{ItemID: items[1].ID, Status: "rejected:bad kind"}))
	for _, i := range []int{0, 2} {
		a, err := wire.VerifyAccept(results[i].Accept, results[i].Sig, in.RelayKey)
		same(t, "accept", fmt.Sprint(err, results[i].Status, a.ItemID, a.Targets[0].WireHash), fmt.Sprint(nil, "accepted", items[i].ID, wire.HashHex(items[i].Wire)))
	}
	same(t, "again", must(r.client.Push(ctx, caller(alpha), items[:1]))[0].Status, "duplicate")
	none, err := r.client.Push(ctx, caller(alpha), nil)
	same(t, "nothing to push", fmt.Sprint(none, err), "[] <nil>")

	p := must(r.client.Pull(ctx, caller(beta), 0, 1, in.Epoch, 0))
	same(t, "page 1", fmt.Sprint(p.Epoch, p.HeadSeq, p.LastSeq, p.More, len(p.Items)), fmt.Sprint(in.Epoch, 2, 1, true, 1))
	it := p.Items[0]
	same(t, "item", fmt.Sprintln(it.Seq, it.Kind, it.ID, it.Sender, it.WireOK, string(it.Wire), it.Raw),
		fmt.Sprintln(1, "envelope", items[0].ID, alpha.Pub(), true, string(items[0].Wire), []byte(nil)))
	p = must(r.client.Pull(ctx, caller(beta), 1, 500, "", 25*time.Second)) // no wait with mail there
	same(t, "page 2", fmt.Sprint(p.LastSeq, p.More, len(p.Items), p.Items[0].ID), fmt.Sprint(2, false, 1, rid))
	p = must(r.client.Pull(ctx, caller(beta), 2, 500, in.Epoch, 0))
	same(t, "an empty page", fmt.Sprint(p.LastSeq, p.More, len(p.Items)), "2 false 0")
	_, err = r.client.Pull(ctx, caller(beta), 0, 500, "other & epoch", 0)
	same(t, "epoch of the 409", status(t, "another epoch", err, 409, "").Epoch, in.Epoch)
	_, err = r.client.Pull(ctx, caller(beta), -1, 500, "", 0)
	status(t, "a bad query", err, 400, "BAD_QUERY")

	same(t, "ack", must(r.client.Ack(ctx, caller(beta), in.Epoch, 1)), relayclient.Acked{AckedThrough: 1, Deleted: 1, HeadSeq: 2})
	_, err = r.client.Ack(ctx, caller(beta), in.Epoch, 3)
	e := status(t, "ack beyond the head", err, 400, "BAD_ACK")
	same(t, "where the queue stands", fmt.Sprint(e.Epoch, e.Head), fmt.Sprint(in.Epoch, 2))
	_, err = r.client.Ack(ctx, caller(beta), "stale", 1)
	e = status(t, "ack in another epoch", err, 409, "EPOCH")
	same(t, "where the queue stands", fmt.Sprint(e.Epoch, e.Head), fmt.Sprint(in.Epoch, 2))
}

func TestBatchOfLargeItems(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	var items []relayclient.Item
	for i := range 8 {
		id, w := alpha.Envelope(beta, "hello", string(bytes.Repeat([]byte{'x'}, 150<<10+i)))
		items = append(items, relayclient.Item{Kind: wire.KindEnvelope, ID: id, Target: beta.Pub(), Wire: w})
	}
	for _, res := range must(r.client.Push(t.Context(), caller(alpha), items)) {
		same(t, "status", res.Status, "accepted")
	}
	p := must(r.client.Pull(t.Context(), caller(beta), 0, 500, "", 0))
	for i, it := range p.Items {
		same(t, "bytes", string(it.Wire) == string(items[i].Wire), true)
	}
	same(t, "items", len(p.Items), len(items))
}

func TestLongPoll(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	type pulled struct {
		p   relayclient.Page
		err error
	}
	done := make(chan pulled, 1)
	poll := func(ctx context.Context) {
		p, err := r.client.Pull(ctx, caller(beta), 0, 10, "", time.Hour) // as long as there is
		done <- pulled{p, err}
	}
	waits := func(polls int) {
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for must(r.relay.Status(t.Context())).LongPolls != polls {
			<-look.C
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go poll(ctx)
	waits(1)
	cancel()
	if got := <-done; !errors.Is(got.err, relayclient.ErrUnreachable) || !errors.Is(got.err, context.Canceled) {
		t.Errorf("a poll that was cancelled: got %v; want it unreachable and cancelled", got.err)
	}
	waits(0)
	go poll(t.Context())
	waits(1)
	must(r.client.Push(t.Context(), caller(alpha), []relayclient.Item{mail(alpha, beta)}))
	got := <-done
	same(t, "a poll that a push woke", fmt.Sprint(len(got.p.Items), got.err), "1 <nil>")
}

func TestRotate(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	must(r.client.Push(ctx, caller(alpha), []relayclient.Item{mail(alpha, beta)}))
	next := wiretest.NewHost("beta")
	doc := wire.MakeRotation(beta.Key, next.Key, "beta", next.Enc.Public(), t0)
	same(t, "moved", must(r.client.Rotate(ctx, doc)), 1)
	_, err := r.client.Rotate(ctx, doc)
	status(t, "again", err, 404, "NOT_ENROLLED")
	_, err = r.client.Rotate(ctx, []byte(`{}`))
	same(t, "no rotation", status(t, "no rotation", err, 400, "BAD_ROTATION").Reason != "", true)
	same(t, "items", len(must(r.client.Pull(ctx, caller(next), 0, 10, "", 0)).Items), 1)
}

func TestPublishAndLookUp(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	list, sig := wire.MakeSenderList(beta.Key, []wire.PublicKey{alpha.Pub()}, t0)
	if err := r.client.PublishSenders(ctx, caller(beta), list, sig); err != nil {
		t.Error(err)
	}
	status(t, "the same list", r.client.PublishSenders(ctx, caller(beta), list, sig), 409, "NOT_NEWER")
	status(t, "not signed", r.client.PublishSenders(ctx, caller(beta), list, "x"), 401, "BAD_SIGNATURE")

	_, err := r.client.EncKey(ctx, caller(alpha), beta.Pub())
	status(t, "nothing published", err, 404, "NOT_FOUND")
	ad, adSig := wire.MakeEncAd(beta.Key, "beta", beta.Enc.Public(), t0, t0.Add(time.Hour))
	if err := r.client.PublishEncAd(ctx, caller(beta), ad, adSig); err != nil {
		t.Error(err)
	}
	k := must(r.client.EncKey(ctx, caller(alpha), beta.Pub()))
	same(t, "host", k.Host+" "+k.HostKey+" "+k.EncPub+" "+k.Sig, "beta "+beta.Pub().String()+" "+beta.Enc.Public().String()+" ")
	got, err := wire.ParseEncAd(k.Ad, k.AdSig, "beta", beta.Pub(), t0)
	same(t, "ad", fmt.Sprint(got.EncPub, err), fmt.Sprint(beta.Enc.Public(), nil))
	status(t, "a bad ad", r.client.PublishEncAd(ctx, caller(beta), ad, "x"), 400, "BAD_AD")

	pub := beta.Enc.Public()
	v1sig := beta.Key.Sign(wire.EncKeyV1Payload("beta", pub))
	status(t, "v1, not signed", r.client.PublishEncKeyV1(ctx, caller(beta), pub, "x"), 401, "BAD_SIGNATURE")
	if err := r.client.PublishEncKeyV1(ctx, caller(beta), pub, v1sig); err != nil {
		t.Error(err)
	}
	k = must(r.client.V1EncKey(ctx, caller(alpha), "beta"))
	same(t, "v1 pair", k.EncPub+" "+k.Sig, pub.String()+" "+v1sig)
	_, err = r.client.V1EncKey(ctx, caller(alpha), "a&b=c d")
	status(t, "no such host", err, 404, "NOT_FOUND")
}

func TestV1(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	_, w := alpha.Envelope(beta, "hello", "hi")
	_, nowhere := alpha.Envelope(wiretest.NewHost("nowhere"), "hello", "hi")
	push := func(envelopes ...[]byte) string {
		stored, reason, err := r.client.V1Push(ctx, caller(alpha), envelopes)
		return fmt.Sprintf("%d %q %v", stored, reason, err)
	}
	same(t, "push", push(w), `1 "" <nil>`)
	same(t, "two", push(w, nowhere), `1 "recipient host not enrolled" <nil>`)
	same(t, "none", push(nowhere), `0 "recipient host not enrolled" <nil>`)
	same(t, "nothing", push(), `0 "" <nil>`)
	_, _, err := r.client.V1Push(ctx, caller(alpha), [][]byte{bytes.Repeat([]byte(" "), 9<<20)})
	status(t, "a body over the cap", err, 413, "TOO_LARGE")

	// As deep as an envelope may be: deeper than a document once it is in a page.
	env := alpha.Draft(beta, "hello", "hi")
	deep := must(wire.Seal(env, beta.Enc.Public(), alpha.Key, "alpha"))
	deep = append(bytes.TrimSuffix(deep, []byte("}")), (`,"x":` + nest(wire.MaxDepth-1) + `}`)...)
	res := must(r.client.Push(ctx, caller(alpha), []relayclient.Item{{Kind: "envelope", ID: env.ID, Target: beta.Pub(), Wire: deep}}))
	same(t, "a deep one", res[0].Status, "accepted")

	items, cursor, err := r.client.V1Pull(ctx, caller(beta), 0)
	if err != nil || len(items) != 2 {
		t.Fatalf("pull: got %d items, %v; want 2", len(items), err)
	}
	same(t, "item", fmt.Sprint(items[0].Seq, items[0].From, string(items[0].Envelope), cursor), fmt.Sprint(1, "alpha", string(w), 2))
	same(t, "the deep one", string(items[1].Envelope), string(deep))
	if err := r.client.V1Ack(ctx, caller(beta), cursor); err != nil {
		t.Error(err)
	}
	items, cursor, err = r.client.V1Pull(ctx, caller(beta), cursor)
	same(t, "after the ack", fmt.Sprint(len(items), cursor, err), "0 2 <nil>")
	status(t, "a bad ack", r.client.V1Ack(ctx, caller(beta), -1), 400, "BAD_ACK")
}

func nest(depth int) string {
	return string(bytes.Repeat([]byte("["), depth)) + string(bytes.Repeat([]byte("]"), depth))
}
