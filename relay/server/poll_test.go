package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

const wait25 = "/v2/relay/items?after=0&wait=25"

// poll begins a pull that waits.
func (r *rig) poll(h *wiretest.Host, target string) <-chan *reply {
	q := r.request(h, "GET", target, nil)
	done := make(chan *reply, 1)
	go func() { done <- r.do(q) }()
	return done
}

func TestLongPollIsWokenByAPush(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	done := r.poll(beta, "/v2/relay/items?after=0&wait=9000") // as long as there is
	r.waits(1)
	r.pushed(alpha, mail(alpha, beta))
	same(t, "items", len((<-done).page().Items), 1)
	same(t, "with mail there", len(r.call(beta, "GET", wait25, nil).page().Items), 1)
	r.waits(0)
}

func TestLongPollsOfAKeyAreBounded(t *testing.T) {
	r := newRig(t, limits(func(l *relay.Limits) { l.PollsPerKey = 2 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	one, two := r.poll(beta, wait25), r.poll(beta, wait25)
	r.waits(2)
	same(t, "a third", len(r.call(beta, "GET", wait25, nil).page().Items), 0)
	other := r.poll(alpha, wait25)
	r.waits(3)
	r.pushed(alpha, mail(alpha, beta))
	same(t, "one", len((<-one).page().Items), 1)
	same(t, "two", len((<-two).page().Items), 1)
	r.pushed(beta, mail(beta, alpha))
	same(t, "the other", len((<-other).page().Items), 1)
}

func TestLongPollsEndAtAStop(t *testing.T) {
	r := newRig(t)
	beta := r.enrol("beta")
	done := r.poll(beta, wait25)
	r.waits(1)
	began := time.Now()
	r.stop()
	same(t, "items", len((<-done).page().Items), 0)
	err := <-r.served
	r.served <- err // for close
	if took := time.Since(began); err != nil || took > 4*time.Second {
		t.Errorf("stop: got %v after %v; want nil before requests are cut off", err, took)
	}
}

func TestClientThatGoesAwayFreesItsPoll(t *testing.T) {
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	for _, body := range []any{nil, "with a body"} {
		ctx, leave := context.WithCancel(t.Context())
		q := r.request(beta, "GET", wait25, body).WithContext(ctx)
		done := make(chan error, 1)
		go func() {
			_, err := r.client.Do(q)
			done <- err
		}()
		r.waits(1)
		leave()
		if err := <-done; err == nil {
			t.Error("the poll was answered")
		}
		r.waits(0)
	}
	r.pushed(alpha, mail(alpha, beta))
}

func TestRevokedWhileItPolls(t *testing.T) {
	r := newRig(t)
	beta := r.enrol("beta")
	done := r.poll(beta, wait25)
	r.waits(1)
	must(r.relay.RevokeHost(t.Context(), beta.Pub(), relay.Deed{Actor: "test"}))
	(<-done).is(401)
}

func TestBlockedWhileItPolls(t *testing.T) {
	r := newRig(t)
	beta := r.enrol("beta")
	done := r.poll(beta, wait25)
	r.waits(1)
	if _, err := r.relay.Block(t.Context(), beta.Pub(), time.Time{}, relay.Deed{Actor: "test", Reason: "it floods the others"}); err != nil {
		t.Fatal(err)
	}
	(<-done).is(401).says(`{"error":"it floods the others","code":"DENIED"}`)
}

func TestEpochChangesWhileItPolls(t *testing.T) {
	r := newRig(t)
	beta := r.enrol("beta")
	done := r.poll(beta, wait25+"&epoch="+r.epoch())
	r.waits(1)
	epoch := must(r.relay.RotateEpoch(t.Context(), "test", "test"))
	(<-done).is(409).says(`{"error":"the epoch has changed","epoch":"%s"}`, epoch)
}

func TestNoWaitIsServed(t *testing.T) {
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxWaitS = 0 }))
	beta := r.enrol("beta")
	r.call(beta, "GET", wait25, nil).is(200)
}
