package drill

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// push sends the drill's mail, then sends it again as hosts do after a restore:
// what the relay has is a duplicate under the number it got.
func (d *drill) push(ctx context.Context) error {
	if err := d.write(); err != nil {
		return err
	}
	last := map[*host]int64{}
	if err := d.send(ctx, d.mail, func(l *letter, res relayclient.PushResult) (err error) {
		if res.Status != "accepted" {
			return fmt.Errorf("%s from %s to %s was answered %q", l.item.Kind, l.from.caller.Host, l.to.caller.Host, res.Status)
		}
		if l.seq, err = d.accepted(l, res); err == nil && l.seq <= last[l.to] {
			err = fmt.Errorf("%s was given seq %d after %d", l.item.ID, l.seq, last[l.to])
		}
		last[l.to] = l.seq
		return err
	}); err != nil {
		return err
	}
	d.passed("push", "%d items accepted, each with the relay's signed word", len(d.mail))

	stranger, err := d.letter(d.hosts[2], d.hosts[1], "from a host that is not on the list")
	if err != nil {
		return err
	}
	if err := d.send(ctx, []*letter{stranger}, func(_ *letter, res relayclient.PushResult) error {
		if res.Status != "rejected:sender not accepted by target" {
			return fmt.Errorf("a push from outside the sender list was answered %q", res.Status)
		}
		return nil
	}); err != nil {
		return err
	}
	d.passed("sender list", "a push from outside the target's list is refused")
	return d.again(ctx, "push again")
}

// again sends all mail a second time.
func (d *drill) again(ctx context.Context, check string) error {
	if err := d.send(ctx, d.mail, func(l *letter, res relayclient.PushResult) error {
		if res.Status != "duplicate" {
			return fmt.Errorf("%s, sent again, was answered %q", l.item.ID, res.Status)
		}
		seq, err := d.accepted(l, res)
		if err == nil && seq != l.seq {
			err = fmt.Errorf("%s, sent again, has seq %d; it had %d", l.item.ID, seq, l.seq)
		}
		return err
	}); err != nil {
		return d.ends(ctx, check, err)
	}
	d.passed(check, "%d duplicates of %d, each under the number it has", len(d.mail), len(d.mail))
	return nil
}

// ends is the failed check of a name other than the step's, unless the step ended
// because the drill did.
func (d *drill) ends(ctx context.Context, check string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return d.failed(check, "%v", err)
}

// pull has each host read its whole queue, and again from the beginning, as after
// a restore.
func (d *drill) pull(ctx context.Context) error {
	if err := d.pullAll(ctx); err != nil {
		return err
	}
	d.passed("pull", "%d items of %d, none lost, none doubled, byte for byte", len(d.mail), len(d.mail))
	if err := d.pullAll(ctx); err != nil {
		return d.ends(ctx, "pull again", err)
	}
	d.passed("pull again", "from position 0 the same items come again")
	return nil
}

func (d *drill) pullAll(ctx context.Context) error {
	for _, h := range d.hosts {
		items, err := d.queue(ctx, h, 0)
		if err != nil {
			return err
		}
		want := map[string]*letter{}
		for _, l := range d.mail {
			if l.to == h {
				want[l.item.ID] = l
			}
		}
		for _, it := range items {
			l := want[it.ID]
			if l == nil {
				return fmt.Errorf("%s was served %s, which was not sent to it or came before", h.caller.Host, it.ID)
			}
			delete(want, it.ID)
			if err := l.arrived(it); err != nil {
				return err
			}
		}
		if len(want) > 0 {
			return fmt.Errorf("%d of %d items for %s did not come", len(want), len(want)+len(items), h.caller.Host)
		}
	}
	return nil
}

// arrived compares what was pulled with what was sent.
func (l *letter) arrived(it relayclient.PulledItem) error {
	switch {
	case it.Seq != l.seq || it.Kind != l.item.Kind || it.Sender != l.from.key().String():
		return fmt.Errorf("%s came as %s %d from %s; sent was %s %d from %s", it.ID, it.Kind, it.Seq, it.Sender, l.item.Kind, l.seq, l.from.key())
	case !it.WireOK || wire.Hash(it.Wire) != wire.Hash(l.item.Wire):
		return fmt.Errorf("%s did not come byte for byte", it.ID)
	case l.text == "":
		return nil
	}
	body, err := wire.Open(it.Wire, l.to.enc)
	if err == nil && string(body) != l.text {
		err = errors.New("it says something else")
	}
	if err != nil {
		return fmt.Errorf("%s, opened by the host it was sealed for: %w", it.ID, err)
	}
	return nil
}

// ack has each host acknowledge its queue. What was acknowledged never comes
// again, whoever sends it again.
func (d *drill) ack(ctx context.Context) error {
	for _, h := range d.hosts {
		through, n := int64(0), int64(0)
		for _, l := range d.mail {
			if l.to == h {
				through, n = max(through, l.seq), n+1
			}
		}
		a, err := d.client.Ack(ctx, h.caller, d.restored.To, through)
		if err != nil {
			return err
		}
		if a.AckedThrough != through || a.Deleted != n {
			return fmt.Errorf("%s acknowledged %d items through seq %d and was answered %d through %d", h.caller.Host, n, through, a.Deleted, a.AckedThrough)
		}
	}
	if err := d.nothingWaits(ctx); err != nil {
		return err
	}
	d.passed("ack", "%d items acknowledged, and the queues are empty", len(d.mail))
	if err := d.again(ctx, "push after ack"); err != nil {
		return err
	}
	if err := d.nothingWaits(ctx); err != nil {
		return d.ends(ctx, "not again", err)
	}
	d.passed("not again", "what was acknowledged is not delivered again")
	return nil
}

func (d *drill) nothingWaits(ctx context.Context) error {
	for _, h := range d.hosts {
		items, err := d.queue(ctx, h, 0)
		if err != nil {
			return err
		}
		if len(items) > 0 {
			return fmt.Errorf("%d items wait for %s, which acknowledged all of them", len(items), h.caller.Host)
		}
	}
	return nil
}

// staleEpoch has a host go on as if there had been no restore.
func (d *drill) staleEpoch(ctx context.Context) error {
	h, old := d.hosts[0], d.report.Info.Epoch
	_, err := d.client.Pull(ctx, h.caller, 0, 1, old, 0)
	if err := d.stale("pull", err); err != nil {
		return err
	}
	_, err = d.client.Ack(ctx, h.caller, old, 0)
	if err := d.stale("ack", err); err != nil {
		return err
	}
	d.passed("stale epoch", "a host in the backup's epoch is told the new one")
	return nil
}

// sequence looks at the next number of queues, those of real hosts too: none may
// have been given out before. What it stores for real hosts it takes back in the
// same transaction.
func (d *drill) sequence(ctx context.Context) error {
	l, err := d.letter(d.hosts[0], d.hosts[1], "one more")
	if err != nil {
		return err
	}
	before := int64(0)
	for _, m := range d.mail {
		if m.to == l.to {
			before = max(before, m.seq)
		}
	}
	if err := d.send(ctx, []*letter{l}, func(l *letter, res relayclient.PushResult) (err error) {
		l.seq, err = d.accepted(l, res)
		if err == nil && l.seq <= before {
			err = fmt.Errorf("a new item has seq %d, its queue was at %d", l.seq, before)
		}
		return err
	}); err != nil {
		return err
	}
	if err := d.realSequence(ctx); err != nil {
		return err
	}
	if l.seq <= d.report.Read.Head { // the floor of numbers is the clock
		d.passed("sequence", "%d queues go on above their heads; the clock is behind the newest number of the backup", len(d.report.Read.Queues))
		return nil
	}
	d.passed("sequence", "%d queues go on above their heads, and new ones above every number of the backup", len(d.report.Read.Queues))
	return nil
}

func (d *drill) realSequence(ctx context.Context) error {
	undo := errors.New("undo")
	for _, q := range d.report.Read.Queues {
		var head, seq int64
		err := d.st.Update(ctx, func(tx store.Tx) (err error) {
			if head, err = tx.Head(q); err != nil {
				return err
			}
			now := d.Now().UTC()
			if seq, err = tx.Insert(store.Item{
				Target: q, Sender: d.hosts[0].key(), SenderHost: d.hosts[0].caller.Host, Kind: store.KindEnvelope,
				ID: wire.NewID(now), Hash: wire.Hash([]byte{0}), Size: 1, AcceptedAt: now, Wire: []byte{0},
			}); err != nil {
				return err
			}
			return undo
		})
		if !errors.Is(err, undo) {
			return err
		}
		if seq <= head {
			return fmt.Errorf("the next item for %s would have seq %d, its queue is at %d", q.Fingerprint(), seq, head)
		}
	}
	return nil
}
