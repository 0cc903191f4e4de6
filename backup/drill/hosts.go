package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// host is one of the drill's own. Its keys were made for the drill and are gone
// after it: no mail of a real host can be meant for it, or come from it.
type host struct {
	caller relayclient.Caller
	enc    wire.EncPrivateKey
}

func (h *host) key() wire.PublicKey { return h.caller.Key.Public() }

// letter is one item that a host of the drill sends.
type letter struct {
	item     relayclient.Item
	from, to *host
	text     string // what a sealed one says, "" for a receipt
	seq      int64  // once it was accepted
}

// Letters of a drill: enough for several pages and batches.
const (
	lettersEach = 40 // from each host that may write to another
	receipts    = 8
	pageSize    = 25
)

// enrol makes the drill's hosts known to the relay, as hosts do it: by
// challenge, with a sealing key for mail to them, and one with a list of whom it
// takes mail from.
func (d *drill) enrol(ctx context.Context) error {
	for _, name := range []string{"drill-a", "drill-b", "drill-c"} {
		h := &host{}
		var err error
		h.caller.Host = name
		if h.caller.Key, err = wire.GenerateKey(); err != nil {
			return err
		}
		if h.enc, err = wire.GenerateEncKey(); err != nil {
			return err
		}
		d.hosts = append(d.hosts, h)
		challenge, err := d.client.Challenge(ctx, h.caller)
		if err != nil {
			return err
		}
		if err := d.client.Enrol(ctx, h.caller, "", challenge, nil); err != nil {
			return err
		}
		now := d.Now()
		ad, sig := wire.MakeEncAd(h.caller.Key, name, h.enc.Public(), now, now.Add(wire.EncAdLifetime))
		if err := d.client.PublishEncAd(ctx, h.caller, ad, sig); err != nil {
			return err
		}
	}
	a, b := d.hosts[0], d.hosts[1]
	list, sig := wire.MakeSenderList(b.caller.Key, []wire.PublicKey{a.key()}, d.Now())
	if err := d.client.PublishSenders(ctx, b.caller, list, sig); err != nil {
		return err
	}
	k, err := d.client.EncKey(ctx, a.caller, b.key())
	if err != nil {
		return err
	}
	ad, err := wire.ParseEncAd(k.Ad, k.AdSig, b.caller.Host, b.key(), d.Now())
	if err == nil && ad.EncPub != b.enc.Public() {
		err = errors.New("it is another")
	}
	if err != nil {
		return fmt.Errorf("the sealing key that is served for %s: %w", b.caller.Host, err)
	}
	d.passed("enrol", "%d hosts of the drill's own enrolled and published their keys", len(d.hosts))
	return nil
}

// write makes the drill's mail: from a to b and c, from b to c, and b's receipts
// to a. c is not on b's list.
func (d *drill) write() error {
	a, b, c := d.hosts[0], d.hosts[1], d.hosts[2]
	for _, route := range [][2]*host{{a, b}, {a, c}, {b, c}} {
		for i := range lettersEach {
			l, err := d.letter(route[0], route[1], fmt.Sprintf("letter %d of a restore drill", i+1))
			if err != nil {
				return err
			}
			d.mail = append(d.mail, l)
		}
	}
	for _, l := range d.mail[:receipts] {
		r := wire.Receipt{Msg: l.item.ID, Recipient: "drill@" + b.caller.Host, State: "delivered", At: d.Now(), Seq: 1}
		d.mail = append(d.mail, &letter{from: b, to: a, item: relayclient.Item{
			Kind: wire.KindReceipt, ID: r.ID(), Target: a.key(), Wire: wire.MakeReceipt(b.caller.Key, r),
		}})
	}
	return nil
}

// letter is a sealed envelope from one host to another.
func (d *drill) letter(from, to *host, text string) (*letter, error) {
	now := d.Now()
	id := wire.NewID(now)
	w, err := wire.Seal(wire.Envelope{
		V: 3, ID: id, TS: wire.FormatTime(now), From: "drill@" + from.caller.Host, To: []string{"drill@" + to.caller.Host},
		Thread: id, Kind: "message", Subject: "restore drill", Body: text,
	}, to.enc.Public(), from.caller.Key, from.caller.Host)
	return &letter{from: from, to: to, text: text, item: relayclient.Item{
		Kind: wire.KindEnvelope, ID: id, Target: to.key(), Wire: w,
	}}, err
}

// send pushes letters in batches that the relay takes and gives each its result.
func (d *drill) send(ctx context.Context, letters []*letter, each func(*letter, relayclient.PushResult) error) error {
	limit := int(limits(d.Limits).MaxBatch)
	for len(letters) > 0 {
		n := 0
		var items []relayclient.Item
		for n < len(letters) && n < limit && letters[n].from == letters[0].from {
			items = append(items, letters[n].item)
			n++
		}
		results, err := d.client.Push(ctx, letters[0].from.caller, items)
		if err != nil {
			return err
		}
		for i, res := range results {
			if err := each(letters[i], res); err != nil {
				return err
			}
		}
		letters = letters[n:]
	}
	return nil
}

// accepted is the seq that a result gives a letter, by the relay's signed word.
func (d *drill) accepted(l *letter, res relayclient.PushResult) (seq int64, err error) {
	acc, err := wire.VerifyAccept(res.Accept, res.Sig, d.Key.Public())
	if err != nil {
		return 0, fmt.Errorf("%s was answered %q, and the relay's word for it does not hold: %w", l.item.ID, res.Status, err)
	}
	if acc.Epoch != d.restored.To || acc.ItemID != l.item.ID || acc.SenderPubkey != l.from.key() || len(acc.Targets) != 1 ||
		acc.Targets[0].HostPubkey != l.to.key() || acc.Targets[0].WireHash != wire.HashHex(l.item.Wire) {
		return 0, fmt.Errorf("the relay's word for %s is about something else", l.item.ID)
	}
	return acc.Targets[0].Seq, nil
}

// status is the status of an answer that is an error, 0 for none.
func status(err error) (int, *relayclient.StatusError) {
	var e *relayclient.StatusError
	if errors.As(err, &e) {
		return e.Status, e
	}
	return 0, nil
}

// queue pulls all that waits for a host, page by page from a position on, and
// checks that sequence numbers only grow.
func (d *drill) queue(ctx context.Context, h *host, after int64) (items []relayclient.PulledItem, err error) {
	for {
		p, err := d.client.Pull(ctx, h.caller, after, pageSize, d.restored.To, 0)
		if err != nil {
			return nil, err
		}
		for _, it := range p.Items {
			if it.Seq <= after {
				return nil, fmt.Errorf("%s was served seq %d after %d", h.caller.Host, it.Seq, after)
			}
			after = it.Seq
		}
		items = append(items, p.Items...)
		if p.LastSeq != after {
			return nil, fmt.Errorf("a page for %s says it ends at seq %d and ends at %d", h.caller.Host, p.LastSeq, after)
		}
		if !p.More {
			return items, nil
		}
		if len(p.Items) == 0 {
			return nil, fmt.Errorf("a page for %s is empty and says there is more", h.caller.Host)
		}
	}
}

// stale reports what is wrong with the answer to a call in the backup's epoch.
func (d *drill) stale(call string, err error) error {
	code, e := status(err)
	switch {
	case code == 0 && err != nil:
		return err
	case code != http.StatusConflict:
		return fmt.Errorf("a %s in the backup's epoch was not answered 409 (%v): hosts would not notice the restore", call, err)
	case e.Epoch != d.restored.To:
		return fmt.Errorf("a %s in the backup's epoch was told epoch %q; it is %s", call, e.Epoch, d.restored.To)
	}
	return nil
}
