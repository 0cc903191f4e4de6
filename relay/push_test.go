package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestC2_AnswerLostAfterCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	first := r.pushed(alpha, it, "accepted") // the answer never arrives
	r.restart()
	r.clock.Add(time.Minute)
	again := r.pushed(alpha, it, "duplicate")
	was, now := r.accept(alpha, it, first), r.accept(alpha, it, again)
	same(t, "target", now.Targets[0], was.Targets[0])
	same(t, "at", now.At, was.At)
	same(t, "queue", r.queued(beta), "1:"+it.ID)
}

func TestC3_AcceptDuplicateConflict(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	draft := alpha.Draft(beta, "hello", "the build is green")
	it := sealed(alpha, draft, beta)
	w := it.Targets[0].Wire

	first := r.pushed(alpha, it, "accepted")
	a := r.accept(alpha, it, first) // (a)
	same(t, "hash", a.Targets[0].WireHash, hex64(w))
	same(t, "at", a.At, wire.FormatTime(t0))

	r.clock.Add(time.Hour)
	again := r.accept(alpha, it, r.pushed(alpha, it, "duplicate")) // (b)
	same(t, "seq", again.Targets[0].Seq, 1)
	same(t, "at of the duplicate", again.At, wire.FormatTime(t0))

	var spaced bytes.Buffer
	ok(t, "indent", json.Indent(&spaced, w, "", " "))
	for _, tt := range []struct {
		name string
		wire []byte
	}{
		{"c: serialised with spaces", spaced.Bytes()},
		{"d: sealed anew", sealed(alpha, draft, beta).Targets[0].Wire},
	} {
		res := r.pushed(alpha, item(wire.KindEnvelope, it.ID, to(beta, tt.wire)), "rejected:conflict")
		if len(res.Targets) != 0 || res.Accept != nil || res.Sig != "" {
			t.Errorf("%s: got targets %v, accept %s; want neither", tt.name, res.Targets, res.Accept)
		}
	}
	same(t, "queue", r.queued(beta), "1:"+it.ID)
	if got := r.queue(beta)[0]; !bytes.Equal(got.Wire, w) || got.Sender != alpha.Pub() || got.SenderHost != "alpha" {
		t.Errorf("stored item: got %+v; want the exact bytes of alpha", got)
	}
}

func TestC4_MultiTargetAndWireChecks(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxQueueItems = 1 }))
	alpha, beta, gamma, mallory := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma"), r.enrol("mallory")
	stranger := wiretest.NewHost("stranger")
	r.pushed(alpha, mail(alpha, gamma), "accepted") // gamma is full

	rejected := func(t *testing.T, it wire.PushItem, want string) {
		t.Helper()
		before := r.totals()
		prefix(t, "status", r.push(alpha, it)[0].Status, want)
		same(t, "items and bytes stored", r.totals(), before)
	}
	t.Run("a", func(t *testing.T) {
		rejected(t, mail(alpha, beta, gamma), "rejected:quota:queue depth exceeded for gamma")
		same(t, "queue of beta", r.queued(beta), "")
	})
	t.Run("b", func(t *testing.T) {
		it := mail(alpha, beta)
		it.Targets = append(it.Targets, it.Targets[0])
		rejected(t, it, "rejected:duplicate target")
	})
	t.Run("d", func(t *testing.T) {
		id, w := alpha.PlainEnvelope(beta, "hello", "plain")
		rejected(t, item(wire.KindEnvelope, id, to(beta, w)), "rejected:envelope body is not sealed")
	})
	t.Run("e", func(t *testing.T) {
		it := mail(alpha, beta)
		rejected(t, item(wire.KindEnvelope, it.ID), "rejected:bad targets")
	})
	t.Run("f", func(t *testing.T) {
		rejected(t, mail(alpha, stranger), "rejected:target not enrolled")
		rejected(t, mail(alpha, beta, stranger), "rejected:target not enrolled")
	})
	msg := mail(beta, alpha).ID
	t.Run("h", func(t *testing.T) {
		it := receipt(alpha, beta, msg, 1)
		it.ID = strings.Replace(it.ID, ":1", ":2", 1)
		rejected(t, it, "rejected:item id is not the receipt id")
	})
	t.Run("i", func(t *testing.T) {
		rejected(t, receipt(mallory, beta, msg, 1), "rejected:receipt is not signed by the sending host")
	})
	t.Run("j", func(t *testing.T) {
		rejected(t, receipt(alpha, beta, "123456789", 1), "rejected:bad receipt")
	})
	t.Run("c", func(t *testing.T) {
		draft := alpha.Draft(beta, "hello", "to both of you")
		draft.To = []string{"reviewer@beta", "builder@beta"}
		it := sealed(alpha, draft, beta)
		r.accept(alpha, it, r.pushed(alpha, it, "accepted"))
		r.ack(beta, 1)
	})
	t.Run("g", func(t *testing.T) {
		it := receipt(alpha, beta, msg, 1)
		r.accept(alpha, it, r.pushed(alpha, it, "accepted"))
		p := r.pull(beta, relay.PullQuery{After: 1})
		if len(p.Items) != 1 || p.Items[0].Kind != "receipt" || !bytes.Equal(p.Items[0].Wire, it.Targets[0].Wire) {
			t.Errorf("pull: got %+v; want the receipt", p.Items)
		}
	})
}

// refusedVectors are wires that a relay must refuse, with the beginning of the
// status it answers.
func refusedVectors(t testing.TB) (list []struct {
	Why, Status string
	WireB64     []byte `json:"wire_b64"`
	ItemID      string `json:"item_id"`
}) {
	wiretest.LoadVector(t, "refused.json", &list)
	if len(list) == 0 {
		t.Fatal("no refused vectors")
	}
	return list
}

func TestRefusedVectorsThroughPush(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	work, home := r.enrol("work"), r.enrol("home")
	for _, tt := range refusedVectors(t) {
		t.Run(tt.Why, func(t *testing.T) {
			res := r.push(work, item(wire.KindEnvelope, tt.ItemID, to(home, tt.WireB64)))[0]
			prefix(t, "status", res.Status, tt.Status)
			same(t, "item_id", res.ItemID, tt.ItemID)
			if len(res.Targets) != 0 || res.Accept != nil || res.Sig != "" {
				t.Errorf("got %+v; want no targets and no accept", res)
			}
		})
		if tt.Why == "item id is another id" { // the envelope itself is good, and v1 sends no item id
			continue
		}
		if v1 := r.pushV1(work, tt.WireB64); v1.Stored != 0 || v1.Error == "" {
			t.Errorf("%s, v1: got %+v; want it refused", tt.Why, v1)
		}
	}
	same(t, "items stored", r.totals().Items, 0)
}

// A faulty item answers its first fault in the protocol's order, and only it is
// lost: its mates in the batch are stored.
func TestPushCheckOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) {
		l.MaxItemBytes, l.MaxQueueItems, l.MaxTargets = 4096, 3, 2
	}))
	alpha, mallory, beta, listed, full := r.enrol("alpha"), r.enrol("mallory"), r.enrol("beta"), r.enrol("listed"), r.enrol("full")
	gone, stranger := r.enrol("gone"), wiretest.NewHost("stranger")
	r.revoke(gone)
	ok(t, "publish", r.publish(listed, t0, mallory))
	known := mail(alpha, full)
	r.pushed(alpha, known, "accepted")
	r.pushed(alpha, mail(alpha, full), "accepted")
	r.pushed(alpha, mail(alpha, full), "accepted")

	long := strings.Repeat("x", 300)
	good := mail(alpha, beta)
	junk, big := []byte("{not json"), bytes.Repeat([]byte("{"), 4097)
	unsealed := func(id string, to *wiretest.Host) []byte {
		draft := alpha.Draft(to, "hello", "plain")
		draft.ID = id
		return must(wire.SignEnvelope(draft, alpha.Key, alpha.Name))
	}
	shapeless := bytes.Replace(unsealed(good.ID, beta), []byte(`"v":3`), []byte(`"v":2`), 1)
	_, rcpt := alpha.Receipt(good.ID, "read", 7)
	noWire, noKey := to(beta, nil), wire.PushTarget{Wire: good.Targets[0].Wire, WireOK: true}

	tests := []struct {
		name string
		item wire.PushItem
		want string
	}{
		{"no id, and all else wrong", wire.PushItem{Kind: "nonsense"}, "bad item id"},
		{"id of 301 characters", item("nonsense", long+"x"), "bad item id"},
		{"id of 300 UTF-16 units is one", item("nonsense", strings.Repeat("\U0001F600", 150)), "bad kind"},
		{"id of 301 UTF-16 units", item("nonsense", strings.Repeat("\U0001F600", 150)+"x"), "bad item id"},
		{"kind before targets", item("nonsense", good.ID), "bad kind"},
		{"hosts make no notices", item(wire.KindExpired, good.ID, to(beta, junk)), "bad kind"},
		{"no targets", item(wire.KindEnvelope, good.ID), "bad targets"},
		{"not a key, before its wire", item(wire.KindEnvelope, good.ID, wire.PushTarget{}), "target not enrolled"},
		{"not a key, before a repeat", item(wire.KindEnvelope, good.ID, noKey, noKey), "target not enrolled"},
		{"not enrolled, before its wire", item(wire.KindEnvelope, good.ID, to(stranger, nil)), "target not enrolled"},
		{"revoked", item(wire.KindEnvelope, good.ID, to(gone, big)), "target not enrolled"},
		{"not accepted, before its wire", item(wire.KindEnvelope, good.ID, to(listed, nil)), "sender not accepted by target"},
		{"repeated, before its wire", item(wire.KindEnvelope, good.ID, good.Targets[0], noWire), "duplicate target"},
		{"repeated, not accepted", item(wire.KindEnvelope, good.ID, to(listed, junk), to(listed, junk)), "sender not accepted by target"},
		{"no wire", item(wire.KindEnvelope, good.ID, noWire), "bad wire"},
		{"the first target's wire before the second target", item(wire.KindEnvelope, good.ID, noWire, to(stranger, junk)), "bad wire"},
		{"the first target's shape before the second's repeat", item(wire.KindEnvelope, good.ID, to(beta, shapeless), to(beta, shapeless)), "bad envelope: "},
		{"size before what is in it", item(wire.KindEnvelope, good.ID, to(beta, big)), "item over size limit"},
		{"not JSON", item(wire.KindEnvelope, good.ID, to(beta, junk)), "bad wire"},
		{"not JSON, as a receipt", item(wire.KindReceipt, good.ID, to(beta, junk)), "bad wire"},
		{"shape before id", item(wire.KindEnvelope, "another", to(beta, shapeless)), "bad envelope: "},
		{"id before seal", item(wire.KindEnvelope, "another", to(beta, unsealed(good.ID, beta))), "item id is not the envelope id"},
		{"not sealed", item(wire.KindEnvelope, good.ID, to(beta, unsealed(good.ID, beta))), "envelope body is not sealed"},
		{"an envelope as a receipt", item(wire.KindReceipt, good.ID, good.Targets[0]), "bad receipt"},
		{"a receipt as an envelope", item(wire.KindEnvelope, good.ID, to(beta, rcpt)), "bad envelope: "},
		{"receipt id before its signature", item(wire.KindReceipt, "another", receipt(mallory, beta, good.ID, 1).Targets[0]), "item id is not the receipt id"},
		{"the first target's seal before the second target",
			item(wire.KindEnvelope, known.ID, to(full, unsealed(known.ID, full)), to(stranger, nil)), "envelope body is not sealed"},
		{"enrolment before conflict", item(wire.KindEnvelope, known.ID, sealedAs(alpha, known.ID, full), to(stranger, nil)), "target not enrolled"},
		{"conflict before quota", item(wire.KindEnvelope, known.ID, sealedAs(alpha, known.ID, beta), sealedAs(alpha, known.ID, full)), "conflict"},
		{"quota of the second target", mail(alpha, beta, full), "quota:queue depth exceeded for full"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.clock.Add(time.Minute)
			before, mates := r.totals().Items, []wire.PushItem{mail(alpha, beta), mail(alpha, beta)}
			res := r.push(alpha, mates[0], tt.item, mates[1])
			prefix(t, "status", res[1].Status, "rejected:"+tt.want)
			if !strings.HasSuffix(tt.want, ": ") {
				same(t, "status", res[1].Status, "rejected:"+tt.want)
			}
			same(t, "item_id", res[1].ItemID, tt.item.ID)
			same(t, "mates", res[0].Status+" "+res[2].Status, "accepted accepted")
			same(t, "items stored", r.totals().Items-before, 2)
			r.ack(beta, res[2].Targets[0].Seq)
		})
	}
}

// sealedAs is a target with an envelope of a given id, sealed anew.
func sealedAs(from *wiretest.Host, id string, host *wiretest.Host) wire.PushTarget {
	draft := from.Draft(host, "hello", "again")
	draft.ID = id
	return sealed(from, draft, host).Targets[0]
}

// What a push looks like on the wire, through the parser the server uses.
func TestPushAsParsed(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits(func(l *relay.Limits) { l.MaxTargets = 2 }))
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	good := mail(alpha, beta)
	b64 := string(must(json.Marshal(good.Targets[0].Wire)))
	target := `{"host_pubkey":"` + beta.Pub().String() + `","wire_b64":` + b64 + `}`
	withID := func(rest string) string { return `{"item_id":"` + good.ID + `",` + rest + `}` }
	tests := []struct{ name, item, want, id string }{
		{"id is a number", `{"kind":"envelope","item_id":7,"targets":[]}`, "rejected:bad item id", ""},
		{"id is not there", `{}`, "rejected:bad item id", ""},
		{"not an object", `"item"`, "rejected:bad item id", ""},
		{"kind in another case", withID(`"kind":"Envelope","targets":[` + target + `]`), "rejected:bad kind", good.ID},
		{"member in another case", withID(`"Kind":"envelope","targets":[` + target + `]`), "rejected:bad kind", good.ID},
		{"targets is an object", withID(`"kind":"envelope","targets":` + target), "rejected:bad targets", good.ID},
		{"too many targets", withID(`"kind":"envelope","targets":[1,2,3]`), "rejected:bad targets", good.ID},
		{"target is a number", withID(`"kind":"envelope","targets":[1]`), "rejected:target not enrolled", good.ID},
		{"unpadded base64", withID(`"kind":"envelope","targets":[{"host_pubkey":"` + beta.Pub().String() + `","wire_b64":"e30"}]`), "rejected:bad wire", good.ID},
		{"empty wire", withID(`"kind":"envelope","targets":[{"host_pubkey":"` + beta.Pub().String() + `","wire_b64":""}]`), "rejected:bad wire", good.ID},
		{"good", withID(`"kind":"envelope","targets":[` + target + `]`), "accepted", good.ID},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := r.relay.Limits()
			items, err := wire.ParsePush([]byte(`{"items":[`+tt.item+`]}`), int(l.MaxBatch), int(l.MaxTargets))
			ok(t, "parse", err)
			res := r.push(alpha, items...)[0]
			same(t, "status", res.Status, tt.want)
			same(t, "item_id", res.ItemID, tt.id)
		})
	}
	same(t, "queue", r.queued(beta), "1:"+good.ID)
}

// Results stand in the order of the request; the same item twice in a batch is
// accepted once.
func TestPushBatchOfTheSameItem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	a, b := mail(alpha, beta), mail(alpha, beta)
	res := r.push(alpha, a, b, a)
	same(t, "statuses", res[0].Status+" "+res[1].Status+" "+res[2].Status, "accepted accepted duplicate")
	same(t, "ids", res[0].ItemID+res[1].ItemID+res[2].ItemID, a.ID+b.ID+a.ID)
	same(t, "seq of the repeat", res[2].Targets[0].Seq, 1)
	same(t, "queue", r.queued(beta), "1:"+a.ID+" 2:"+b.ID)
	empty, err := r.relay.Push(context.Background(), r.caller(alpha), nil)
	if err != nil || len(empty) != 0 {
		t.Errorf("push of nothing: got %v, %v; want no results", empty, err)
	}
}

// Duplicates keep the first acceptance; an item with one new target is accepted
// now, and keeps the seq of what was known.
func TestPushPartialDuplicate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	both := mail(alpha, beta, gamma)
	one := item(both.Kind, both.ID, both.Targets[0])
	r.pushed(alpha, one, "accepted")

	r.clock.Add(time.Hour)
	a := r.accept(alpha, both, r.pushed(alpha, both, "accepted"))
	same(t, "at of a partial duplicate", a.At, wire.FormatTime(t0.Add(time.Hour)))
	same(t, "queues", r.queued(beta)+" "+r.queued(gamma), "1:"+both.ID+" 1:"+both.ID)
	same(t, "at of the copy that was known", r.queue(beta)[0].AcceptedAt, t0)

	r.clock.Add(time.Hour)
	a = r.accept(alpha, one, r.pushed(alpha, one, "duplicate"))
	same(t, "at of the first target's retry", a.At, wire.FormatTime(t0))
	a = r.accept(alpha, both, r.pushed(alpha, both, "duplicate"))
	same(t, "at of the whole item's retry", a.At, wire.FormatTime(t0.Add(time.Hour)))

	r.ack(beta, 1) // an acked item is still known
	a = r.accept(alpha, one, r.pushed(alpha, one, "duplicate"))
	same(t, "at after the ack", a.At, wire.FormatTime(t0))
	same(t, "queue of beta", r.queued(beta), "")

	// Dedup is by sender too: another sender's item of that id is another item.
	mallory := r.enrol("mallory")
	draft := mallory.Draft(beta, "mine", "mine")
	draft.ID = both.ID
	r.pushed(mallory, sealed(mallory, draft, beta), "accepted")
}

// Enrolment is looked at inside the transaction that writes: a caller whose hop
// was good a moment ago, and a target that was live, are looked at again.
func TestPushAfterTheHopWasVerified(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	ctx := context.Background()
	was := r.caller(alpha)
	next := r.rotated(alpha)
	_, err := r.relay.Push(ctx, was, []wire.PushItem{mail(alpha, beta)})
	refused(t, "push of a key that was rotated away", err, relay.Unauthorized, "")
	_, err = r.relay.PushV1(ctx, was, [][]byte{mail(alpha, beta).Targets[0].Wire})
	refused(t, "v1 push of a key that was rotated away", err, relay.Unauthorized, "")

	was = r.caller(next)
	r.revoke(next)
	_, err = r.relay.Push(ctx, was, []wire.PushItem{mail(next, beta)})
	refused(t, "push of a key that was revoked", err, relay.Unauthorized, "")

	stale := mail(gamma, beta)
	r.rotated(beta)
	r.pushed(gamma, stale, "rejected:target not enrolled")
	same(t, "items on dead keys", r.totals().Items, 0)
}
