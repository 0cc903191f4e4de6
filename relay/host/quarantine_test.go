package host

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// strangersMail puts mail of a host that beta does not know into its quarantine.
func strangersMail(t *testing.T, w *world) (beta, gamma *testHost, msg string) {
	t.Helper()
	beta, gamma = w.host("beta"), w.host("gamma")
	gamma.pin(beta, deadAddr)
	beta.relayOnly()
	msg = gamma.sendByRelay(beta, "hello")
	same(t, "quarantined", beta.relayOnly().Quarantined, 1)
	same(t, "reason", beta.reason(), notPaired)
	same(t, "still wanted by the relay", w.relay.queued(beta), 0)
	return beta, gamma, msg
}

func TestJ7_RetriedOncePaired(t *testing.T) {
	w := newWorld(t)
	beta, gamma, msg := strangersMail(t, w)
	same(t, "retried before", beta.tick().Retried, 0)
	beta.pin(gamma, deadAddr)
	same(t, "retried", beta.tick().Retried, 1)
	same(t, "inbox", beta.inbox(), 1)
	same(t, "body", beta.body(msg), "the body of hello")
	same(t, "in quarantine", beta.count("quarantine"), 0)
	same(t, "released", beta.audited("quarantine.released"), 1)
	same(t, "retried again", beta.tick().Retried, 0)
	for range 2 {
		beta.relayOnly()
		gamma.relayOnly()
	}
	same(t, "settled", gamma.sentState(msg), "settled")
}

func TestJ7_NotRetriedUnderAnotherName(t *testing.T) {
	w := newWorld(t)
	beta, gamma, _ := strangersMail(t, w)
	noError(t, beta.db.write(t.Context(), func(tx *tx) error { return beta.addPeer(tx, "delta", gamma.Key(), "", deadAddr) }))
	for range 3 {
		same(t, "retried", beta.tick().Retried, 0)
	}
	same(t, "tried at all", ask[int64](beta, "SELECT max(retried_at) FROM quarantine"), 0)
	same(t, "reason", beta.reason(), notPaired)
	same(t, "inbox", beta.inbox(), 0)
}

func TestJ7_NotRetriedForAnotherKey(t *testing.T) {
	w := newWorld(t)
	beta, _, _ := strangersMail(t, w)
	beta.pin(w.host("gamma"), deadAddr) // of the same name
	for range 3 {
		same(t, "retried", beta.tick().Retried, 0)
	}
	same(t, "tried at all", ask[int64](beta, "SELECT max(retried_at) FROM quarantine"), 0)
}

// What fails its retry for another reason is tried no more.
func TestARetryThatFailsIsTheLast(t *testing.T) {
	w := newWorld(t)
	beta, gamma := w.host("beta"), w.host("gamma")
	beta.relayOnly()
	gamma.pin(beta, deadAddr)
	// Sealed for a key that beta never had.
	enc := must(wire.GenerateEncKey()).Public()
	gamma.sql("UPDATE peers SET enc_key = ?", enc[:])
	gamma.sendByRelay(beta, "for somebody else")
	beta.relayOnly()
	beta.pin(gamma, deadAddr)
	same(t, "retried", beta.tick().Retried, 0)
	same(t, "reason", beta.reason(), "rejected:undecryptable body")
	at := ask[int64](beta, "SELECT retried_at FROM quarantine")
	w.pass(time.Second)
	beta.tick()
	same(t, "tried again", ask[int64](beta, "SELECT retried_at FROM quarantine"), at)
}

// A pass tries a hundred, the next one goes on.
func TestRetriesAreBounded(t *testing.T) {
	muchWork(t)
	w := newWorld(t)
	beta, gamma := w.host("beta"), w.host("gamma")
	beta.pin(gamma, deadAddr)
	for i := range 150 {
		beta.sql(`INSERT INTO quarantine (relay, epoch, seq, kind, item_id, sender, claims, reason, wire, at) VALUES ('r', 'e', ?, 'envelope', ?, ?, 'gamma', ?, x'7b7d', 1)`,
			i, fmt.Sprint(i), gamma.Key().String(), notPaired)
	}
	for _, want := range []int64{100, 150, 150} {
		beta.tick()
		same(t, "tried", ask[int64](beta, "SELECT count(*) FROM quarantine WHERE retried_at > 0"), want)
	}
	same(t, "kept", beta.count("quarantine"), 150)
}

// A person looks, tries again, or throws away.
func TestQuarantineByHand(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	beta, gamma, msg := strangersMail(t, w)
	list := must(beta.Quarantine(ctx, 0, 10))
	q := must(beta.Quarantined(ctx, list[0].ID))
	same(t, "item", q.ItemID, msg)
	same(t, "sender", q.Sender, gamma.Key().String())
	same(t, "claims", q.Claims, "gamma")
	same(t, "beta can open it", beta.opens(q.Wire), true)
	same(t, "bytes", q.Bytes, int64(len(q.Wire)))

	same(t, "tried again", must(beta.RetryQuarantined(ctx, q.ID)), notPaired)
	same(t, "kept", beta.count("quarantine"), 1)
	beta.pin(gamma, deadAddr)
	same(t, "tried once paired", must(beta.RetryQuarantined(ctx, q.ID)), "accepted")
	same(t, "inbox", beta.inbox(), 1)
	if _, err := beta.RetryQuarantined(ctx, q.ID); !errors.Is(err, ErrNotQuarantined) {
		t.Errorf("once more: got %v; want ErrNotQuarantined", err)
	}

	enc := must(wire.GenerateEncKey()).Public()
	gamma.sql("UPDATE peers SET enc_key = ?", enc[:])
	gamma.sendByRelay(beta, "junk")
	beta.relayOnly()
	list = must(beta.Quarantine(ctx, q.ID, 10))
	noError(t, beta.DiscardQuarantined(ctx, list[0].ID))
	same(t, "in quarantine", beta.count("quarantine"), 0)
	same(t, "audited", beta.audited("quarantine.discarded"), 1)
	if err := beta.DiscardQuarantined(ctx, list[0].ID); !errors.Is(err, ErrNotQuarantined) {
		t.Errorf("discard again: got %v; want ErrNotQuarantined", err)
	}
}
