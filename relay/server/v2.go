package server

import (
	"errors"
	"net/http"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (c *call) push() error {
	items, err := wire.ParsePush(c.body, int(c.limits.MaxBatch), int(c.limits.MaxTargets))
	switch {
	case errors.Is(err, wire.ErrBadBatch):
		return errBatch
	case err != nil:
		return errJSON
	}
	results, err := c.relay.Push(c.ctx, c.who, items)
	if err != nil {
		return err
	}
	size := 16
	for i := range results {
		size += 128 + len(results[i].ItemID) + len(results[i].Accept) + 128*len(results[i].Targets)
	}
	c.answer(http.StatusOK, appendResults(make([]byte, 0, size), results))
	return nil
}

func appendResults(b []byte, results []relay.PushResult) []byte {
	b = append(b, `{"results":[`...)
	for i := range results {
		res := &results[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = wire.AppendString(append(b, `{"item_id":`...), res.ItemID)
		b = wire.AppendString(append(b, `,"status":`...), res.Status)
		b = append(b, `,"targets":[`...)
		for j, t := range res.Targets {
			if j > 0 {
				b = append(b, ',')
			}
			b = wire.AppendString(append(b, `{"host_pubkey":`...), t.HostPubkey.String())
			b = append(appendInt(append(b, `,"seq":`...), t.Seq), '}')
		}
		b = append(b, ']')
		if res.Accept != nil {
			b = append(append(b, `,"accept":`...), res.Accept...)
			b = wire.AppendString(append(b, `,"sig":`...), res.Sig)
		}
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

func (c *call) pull() error {
	q, err := c.pullQuery()
	if err != nil {
		return err
	}
	c.releaseBody() // of a GET; a poll must not hold it while it waits
	p, done, err := c.readPage(q)
	defer done()
	if err != nil {
		var e *relay.Error
		if errors.As(err, &e) && e.Kind == relay.Conflict && e.At != nil {
			b := wire.AppendString([]byte(`{"error":`), e.Text)
			b = wire.AppendString(append(b, `,"epoch":`...), e.At.Epoch)
			c.answer(http.StatusConflict, append(b, '}'))
			return nil
		}
		return err
	}
	c.sendPage(func(out *page) { out.items(p) })
	return nil
}

func (c *call) pullQuery() (q relay.PullQuery, err error) {
	got, err := c.parameters("after", "limit", "epoch", "wait")
	if err != nil {
		return q, err
	}
	var limit, wait int64
	for _, p := range []struct {
		name string
		to   *int64
	}{{"after", &q.After}, {"limit", &limit}, {"wait", &wait}} {
		if *p.to, err = integer(got, p.name); err != nil {
			return q, err
		}
	}
	q.Limit = int(min(limit, c.limits.MaxPull))
	q.Wait = time.Duration(min(wait, c.limits.MaxWaitS)) * time.Second
	q.Epoch = got["epoch"]
	return q, nil
}

// readPage pulls within the share for pages: a full page is much memory, and a
// client that takes its time holds it. What the page takes of the share is
// held until done is called, which must be, also after an error.
func (c *call) readPage(q relay.PullQuery) (p relay.Page, done func(), err error) {
	held, err := c.holdPage()
	if err != nil {
		return p, func() {}, err
	}
	now := q
	now.Wait = 0
	p, err = c.relay.Pull(c.ctx, c.who, now)
	if err != nil || len(p.Items) > 0 || q.Wait == 0 {
		return p, held.fit(p), err
	}
	held.release() // a poll must not hold a share while it waits
	if p, err = c.relay.Pull(c.ctx, c.who, q); err != nil || len(p.Items) == 0 {
		return p, func() {}, err
	}
	if held, err = c.holdPage(); err != nil {
		return p, func() {}, err
	}
	return p, held.fit(p), nil
}

func (p *page) items(pg relay.Page) {
	p.b = wire.AppendString(append(p.b, `{"epoch":`...), pg.Epoch)
	p.b = appendInt(append(p.b, `,"head_seq":`...), pg.HeadSeq)
	p.b = append(p.b, `,"items":[`...)
	for i := range pg.Items {
		it := &pg.Items[i]
		if i > 0 {
			p.b = append(p.b, ',')
		}
		p.b = appendInt(append(p.b, `{"seq":`...), it.Seq)
		p.b = wire.AppendString(append(p.b, `,"kind":`...), it.Kind)
		p.b = wire.AppendString(append(p.b, `,"item_id":`...), it.ID)
		p.b = wire.AppendString(append(p.b, `,"sender_pubkey":`...), it.Sender.String())
		p.b = append(p.b, `,"wire_b64":"`...)
		p.base64(it.Wire)
		p.b = append(p.b, `"}`...)
		p.full()
	}
	p.b = appendInt(append(p.b, `],"last_seq":`...), pg.LastSeq)
	p.b = append(p.b, `,"more":`...)
	if pg.More {
		p.b = append(p.b, `true}`...)
	} else {
		p.b = append(p.b, `false}`...)
	}
}

func (c *call) ack() error {
	var q struct {
		Epoch   member `json:"epoch"`
		Through member `json:"through"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	// An epoch that is no string is not the current one.
	a, err := c.relay.Ack(c.ctx, c.who, textOrEmpty(q.Epoch), number(q.Through))
	if err != nil {
		return err
	}
	b := appendInt([]byte(`{"acked_through":`), a.AckedThrough)
	b = appendInt(append(b, `,"deleted":`...), a.Deleted)
	b = appendInt(append(b, `,"head_seq":`...), a.HeadSeq)
	c.answer(http.StatusOK, append(b, '}'))
	return nil
}
