package relay_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestC8_Rotation(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts)
	alpha, beta := r.enrol("alpha"), r.enrol("beta", "acme")
	a, b := mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, a, b)
	next := wiretest.NewHost("beta")
	doc := wire.MakeRotation(beta.Key, next.Key, "Beta", next.Enc.Public(), t0)
	broken := func(f func(m map[string]any)) []byte {
		var m map[string]any
		ok(t, "decode", json.Unmarshal(doc, &m))
		f(m)
		return must(json.Marshal(m))
	}

	for name, doc := range map[string][]byte{ // (a)
		"no new_sig":            broken(func(m map[string]any) { delete(m, "new_sig") }),
		"no old_sig":            broken(func(m map[string]any) { delete(m, "old_sig") }),
		"old_sig twice":         broken(func(m map[string]any) { m["new_sig"] = m["old_sig"] }),
		"altered":               broken(func(m map[string]any) { m["rec"].(map[string]any)["iat"] = wire.FormatTime(t0.Add(time.Second)) }),
		"another host's name":   wire.MakeRotation(beta.Key, next.Key, "gamma", next.Enc.Public(), t0),
		"to itself":             wire.MakeRotation(beta.Key, beta.Key, "beta", next.Enc.Public(), t0),
		"not a rotation at all": []byte(`{}`),
		"not JSON":              []byte(`{`),
	} {
		_, err := r.relay.Rotate(t.Context(), doc)
		refused(t, name, err, relay.BadRequest, "BAD_ROTATION")
	}
	_, err := r.rotate(wiretest.NewHost("beta"), next) // (b)
	refused(t, "old key not enrolled", err, relay.NotFound, "NOT_ENROLLED")
	same(t, "queue after refusals", r.queued(beta), "1:"+a.ID+" 2:"+b.ID)

	moved, err := r.relay.Rotate(t.Context(), doc) // (c)
	ok(t, "rotate", err)
	same(t, "moved", moved, 2)
	_, err = r.hop(beta)
	refused(t, "hop of the old key", err, relay.Unauthorized, "")
	got, _ := r.enrolment(next)
	if got.Name != "beta" || got.Account != "acme" || got.AuthorizedBy != "accounts" || !got.Live() {
		t.Errorf("new key: got %+v; want the old one's name and account", got)
	}
	same(t, "live enrolments", r.totals().Enrolments, 2)
	same(t, "old queue", r.queued(beta), "")
	same(t, "new queue", r.queued(next), "1:"+a.ID+" 2:"+b.ID) // (d)

	again := item(a.Kind, a.ID, to(next, wireOf(a))) // (e)
	res := r.pushed(alpha, again, "duplicate")
	same(t, "seq", r.accept(alpha, again, res).Targets[0].Seq, 1)
	r.pushed(alpha, a, "rejected:target not enrolled")

	refused(t, "enrol the old key", r.tryEnrol(beta, "", "acme"), relay.Forbidden, "REVOKED") // (f)
	_, err = r.rotate(next, beta)
	refused(t, "rotate back", err, relay.Conflict, "REVOKED")
	_, err = r.relay.Rotate(t.Context(), doc)
	refused(t, "the same record again", err, relay.NotFound, "NOT_ENROLLED")
	same(t, "new queue", r.queued(next), "1:"+a.ID+" 2:"+b.ID)
}

func TestJ10_RotationToAKeyWithAQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	next := wiretest.NewHost("beta")
	ok(t, "enrol the new key", r.tryEnrol(next, ""))
	ok(t, "list", r.publish(gamma, t0, beta))

	twin := mail(alpha, beta) // both keys hold these bytes
	twin.Targets = append(twin.Targets, to(next, wireOf(twin)))
	draft := alpha.Draft(beta, "hello", "sealed for each") // each key holds bytes of its own
	other := sealed(alpha, draft, beta, next)
	a, b, c := mail(alpha, beta), mail(alpha, next), mail(alpha, beta)
	r.push(alpha, a, b, twin, other, c)
	same(t, "old queue", r.queued(beta), "1:"+a.ID+" 2:"+twin.ID+" 3:"+other.ID+" 4:"+c.ID)
	same(t, "new queue", r.queued(next), "1:"+b.ID+" 2:"+twin.ID+" 3:"+other.ID)

	moved, err := r.rotate(beta, next)
	ok(t, "rotate", err)
	same(t, "moved", moved, 3)
	same(t, "new queue", r.queued(next), "1:"+b.ID+" 2:"+twin.ID+" 3:"+other.ID+" 4:"+a.ID+" 5:"+other.ID+" 6:"+c.ID)
	r.pushed(alpha, item(other.Kind, other.ID, other.Targets[1]), "duplicate") // the new key's row stands
	r.pushed(alpha, item(other.Kind, other.ID, to(next, other.Targets[0].Wire)), "rejected:conflict")
	same(t, "usage of the old key", r.usage(beta), store.Usage{})
	same(t, "usage of the new key", r.usage(next).Items, 6)

	r.pushed(next, mail(next, gamma), "accepted") // gamma's list names the new key now
	r.view(func(v store.Reader) error {
		l, err := v.SenderList(gamma.Pub())
		if len(l.Senders) != 1 || l.Senders[0] != next.Pub() {
			t.Errorf("gamma's list: got %v; want the new key alone", l.Senders)
		}
		return err
	})

	dead := r.enrol("dead")
	r.revoke(dead)
	_, err = r.rotate(next, &wiretest.Host{Name: "beta", Key: dead.Key, Enc: dead.Enc})
	refused(t, "rotate to a revoked key", err, relay.Conflict, "REVOKED")
	_, err = r.hop(next)
	ok(t, "the key that stays", err)
}

// Of two sender lists the newer one stays.
func TestRotationOfSenderLists(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	senders := map[string]*wiretest.Host{"old": r.enrol("old"), "new": r.enrol("new")}
	for _, tt := range []struct {
		name     string
		old, new time.Time // zero: none published
		want     string
	}{
		{"the old key's alone", t0, time.Time{}, "old"},
		{"the new key's alone", time.Time{}, t0, "new"},
		{"the old key's is newer", t0.Add(time.Second), t0, "old"},
		{"the new key's is newer", t0, t0.Add(time.Second), "new"},
		{"neither", time.Time{}, time.Time{}, "any"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			beta, next := r.enrol("beta"), r.enrol("beta")
			if !tt.old.IsZero() {
				ok(t, "publish", r.publish(beta, tt.old, senders["old"]))
			}
			if !tt.new.IsZero() {
				ok(t, "publish", r.publish(next, tt.new, senders["new"]))
			}
			_, err := r.rotate(beta, next)
			ok(t, "rotate", err)
			for name, h := range senders {
				want := "accepted"
				if tt.want != "any" && tt.want != name {
					want = "rejected:sender not accepted by target"
				}
				r.pushed(h, mail(h, next), want)
			}
		})
	}
}

// A sender with a new key that retries what its old key pushed is answered as
// the same sender, in v1 and v2.
func TestRotatedSenderRetries(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	ok(t, "list", r.publish(beta, t0, alpha))
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	r.clock.Add(time.Hour)
	next := r.rotated(r.rotated(alpha))
	a := r.accept(next, it, r.pushed(next, it, "duplicate"))
	same(t, "seq and at", a.Targets[0].Seq == 1 && a.At == wire.FormatTime(t0), true)
	same(t, "v1", r.pushV1(next, wireOf(it)), relay.V1Result{Stored: 1})
	same(t, "queue", r.queued(beta), "1:"+it.ID)
	if got := r.queue(beta)[0]; got.Sender != alpha.Pub() {
		t.Errorf("sender of the item: got another; want the key that pushed it")
	}
}

// Sender and target may both have rotated since: the item is known and queued
// once, and its dedup row lives as long as it does.
func TestBothEndsRotated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	held, gone := mail(alpha, beta), mail(alpha, beta)
	same(t, "v1", r.pushV1(alpha, wireOf(gone), wireOf(held)), relay.V1Result{Stored: 2})
	r.ack(beta, 1)
	alphaNext := r.rotated(alpha)
	betaNext := r.rotated(beta)
	retry := func(it wire.PushItem) wire.PushItem { return item(it.Kind, it.ID, to(betaNext, wireOf(it))) }
	r.pushed(alphaNext, retry(held), "duplicate")
	r.pushed(alphaNext, retry(gone), "duplicate")
	same(t, "queue", r.queued(betaNext), "1:"+held.ID)
	r.clock.Add(22 * day)
	same(t, "pruned", r.sweep().Pruned, 1)
	r.pushed(alphaNext, retry(held), "duplicate")
	same(t, "queue", r.queued(betaNext), "1:"+held.ID)
	// A third key that got the same bytes itself keeps them once.
	third := r.enrol("beta")
	r.pushed(alphaNext, item(held.Kind, held.ID, to(third, wireOf(held))), "accepted")
	moved, err := r.rotate(betaNext, third)
	ok(t, "rotate", err)
	same(t, "moved", moved, 0)
	same(t, "queue", r.queued(third), "1:"+held.ID)
}

// A receipt is signed by the pushing key or by an older key of that host.
func TestReceiptOfARotatedHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	msg := mail(beta, alpha).ID
	second := r.rotated(alpha)
	third := r.rotated(second)
	gammaNext := r.rotated(gamma)
	for i, tt := range []struct {
		name   string
		signer *wiretest.Host
		want   string
	}{
		{"its own key", third, "accepted"},
		{"the key before", second, "accepted"},
		{"the first key", alpha, "accepted"},
		{"a stranger", wiretest.NewHost("alpha"), "rejected:receipt is not signed by the sending host"},
		{"another host", beta, "rejected:receipt is not signed by the sending host"},
		{"another host's older key", gamma, "rejected:receipt is not signed by the sending host"},
		{"another host's newer key", gammaNext, "rejected:receipt is not signed by the sending host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.pushed(third, receipt(tt.signer, beta, msg, int64(i+1)), tt.want)
		})
	}
	r.pushed(gammaNext, receipt(third, beta, msg, 99), "rejected:receipt is not signed by the sending host")
}

// What a rotation takes along and leaves behind: published keys of the old key
// are not served any more, the signed record is kept, a name of the account
// cannot be taken by it.
func TestRotationLeftovers(t *testing.T) {
	t.Parallel()
	r := newRig(t, withAccounts)
	beta, alpha := r.enrol("beta", "acme"), r.enrol("alpha")
	r.encKey(beta)
	next := r.rotated(beta)
	for _, h := range []*wiretest.Host{beta, next} {
		_, err := r.relay.EncKey(t.Context(), r.caller(alpha), h.Pub().String(), "")
		refused(t, "sealing key of "+h.Pub().Fingerprint(), err, relay.NotFound, "NOT_FOUND")
	}
	r.view(func(v store.Reader) error {
		older, err := v.RotatedFrom(next.Pub(), 8)
		if len(older) != 1 || older[0] != beta.Pub() {
			t.Errorf("recorded: got %v; want the old key", older)
		}
		return err
	})

	r.enrol("web", "globex")
	mine, into := r.enrol("web"), r.enrol("db", "globex")
	_, err := r.relay.Rotate(t.Context(), wire.MakeRotation(mine.Key, into.Key, "web", into.Enc.Public(), t0))
	refused(t, "rotate to a key whose account has that name", err, relay.BadRequest, "NAME_TAKEN")
	e, _ := r.enrolment(mine)
	same(t, "the old key lives", e.Live(), true)
}

// An item on its way while its target rotates is on one live key, never on a
// dead one; nothing is lost or doubled.
func TestRotationUnderConcurrentPushes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	const n = 40
	var items []wire.PushItem
	for range n {
		items = append(items, mail(alpha, beta))
	}
	who := r.caller(alpha)
	results := make(chan relay.PushResult, n)
	errs := make(chan error, n)
	for _, it := range items {
		go func() {
			res, err := r.relay.Push(t.Context(), who, []wire.PushItem{it})
			if err == nil {
				results <- res[0]
			}
			errs <- err
		}()
	}
	next := r.rotated(beta)
	for range n {
		if err := <-errs; err != nil {
			t.Fatalf("push: %v", err)
		}
	}
	close(results)
	accepted := 0
	for res := range results {
		if res.Status == "accepted" {
			accepted++
		} else {
			same(t, "status", res.Status, "rejected:target not enrolled")
		}
	}
	same(t, "queue of the dead key", r.queued(beta), "")
	same(t, "queue of the live key", len(r.queue(next)), accepted)
	for i := range items { // the sender's retries, to the new key
		items[i] = item(items[i].Kind, items[i].ID, to(next, wireOf(items[i])))
	}
	duplicates := 0
	for _, res := range r.push(alpha, items...) {
		if res.Status == "duplicate" {
			duplicates++
		} else {
			same(t, "status of a retry", res.Status, "accepted")
		}
	}
	same(t, "duplicates", duplicates, accepted)
	same(t, "queue after the retries", len(r.queue(next)), n)
}
